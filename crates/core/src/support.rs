//! Internal: tools that know nothing of locks, for the stores of this repository. The module is no
//! part of the public API, and changes in any version. [`backend`](crate::backend) re-exports what
//! an author of another store needs.

mod address;
mod background;
mod credentials;
mod faults;
pub(crate) mod own_keys;
mod race;
pub(crate) mod setters;
mod simulation;
pub(crate) mod sync;
pub(crate) mod system;
pub(crate) mod thread;

pub use address::{Address, Host, escape, unescape};
pub use background::{Background, Home, Signal};
pub use credentials::Credentials;
#[doc(hidden)]
pub use faults::fault;
#[doc(hidden)]
pub use own_keys::OwnMap;
pub use race::race;
#[cfg(leasehold_lab)]
#[doc(hidden)]
pub use simulation::simulate;
#[doc(hidden)]
pub use simulation::{Machine, Stream, dial};
pub use sync::locked;
#[doc(hidden)]
pub use system::{uuid, wall};
