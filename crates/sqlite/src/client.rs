//! What knows no lock: the file and whether it can be trusted where it is (`connect`, `file`, `generation`, `presence`,
//! `upgrade`), the FIFOs by which processes notify each other and see each other die, the thread that owns the connection, and
//! what it runs there.

pub(crate) mod connect;
pub(crate) mod fifo;
pub(crate) mod file;
pub(crate) mod generation;
pub(crate) mod place;
pub(crate) mod presence;
pub(crate) mod thread;
pub(crate) mod time;
pub(crate) mod tokens;
pub(crate) mod upgrade;
pub(crate) mod words;
pub(crate) mod worker;
