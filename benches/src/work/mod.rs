//! What subjects are made to do: one file for each kind of work.

mod contended;
mod cycles;
mod held;
mod idle;
mod names;
mod releases;

pub use contended::contended;
pub use cycles::cycles;
pub use held::{Holds, held};
pub use idle::idle;
pub use names::names;
pub use releases::releases;
