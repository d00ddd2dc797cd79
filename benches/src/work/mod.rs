//! What subjects are made to do: one file for each kind of work.

mod commands;
mod contended;
mod cycles;
mod flat;
mod held;
mod idle;
mod names;
mod refused;
mod releases;
mod share;
mod touched;

pub use commands::commands;
pub use contended::{contended, turns};
pub use cycles::cycles;
pub use flat::{Cycles, flat};
pub use held::{Holds, held};
pub use idle::idle;
pub use names::names;
pub use refused::refused;
pub use releases::releases;
pub use share::share;
pub use touched::touched;
