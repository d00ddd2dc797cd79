//! The parts without a notion of locks: the file and the checks whether it can be trusted where it
//! is (`connect`, `file`, `completed`, `generation`, `presence`), the FIFOs by which processes notify each other
//! and see each other's end, the thread that owns the connection, and the client that it runs.

pub(crate) mod completed;
pub(crate) mod connect;
pub(crate) mod fifo;
pub(crate) mod file;
pub(crate) mod generation;
pub(crate) mod identity;
pub(crate) mod place;
pub(crate) mod presence;
pub(crate) mod thread;
pub(crate) mod time;
pub(crate) mod tokens;
pub(crate) mod words;
pub(crate) mod worker;
