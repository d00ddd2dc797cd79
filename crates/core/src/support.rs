//! For authors of stores: what is true of no lock. One grammar of store URLs, one escaping of names, a mutex without poison, one way to
//! find a server that answers.

mod address;
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
pub use credentials::Credentials;
#[doc(hidden)]
pub use faults::fault;
#[doc(hidden)]
pub use own_keys::OwnMap;
pub use race::race;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use simulation::simulate;
#[doc(hidden)]
pub use simulation::{Machine, Stream, dial};
pub use sync::locked;
#[doc(hidden)]
pub use system::{uuid, wall};
