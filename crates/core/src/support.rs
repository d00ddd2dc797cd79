//! Internal: tools that know nothing of locks, for the stores of this repository. The module is no
//! part of the public API, and changes in any version. [`backend`](crate::backend) re-exports what
//! an author of another store needs.

mod background;
mod escape;
mod faults;
pub(crate) mod own_keys;
pub(crate) mod setters;
mod simulation;
pub(crate) mod sync;
pub(crate) mod system;
pub(crate) mod thread;

pub use background::{Background, Home, Signal};
pub use escape::{escape, unescape};
#[doc(hidden)]
pub use faults::fault;
#[doc(hidden)]
pub use own_keys::OwnMap;
#[cfg(leasehold_lab)]
#[doc(hidden)]
pub use simulation::simulate;
#[doc(hidden)]
pub use simulation::{Machine, Stream, dial};
pub use sync::locked;
#[doc(hidden)]
pub use system::{uuid, wall};
