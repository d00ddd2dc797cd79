//! Random programs of operations, and the sequential models that define the expected answer of
//! each.
//!
//! Several clients try, wait, come in again, downgrade, proclaim, release, leave and die; after each step the answers, the
//! lines of both names, the values of leaders and the order of tokens are compared with a model that is a page long
//! ([`Spec`]). The models are those that Hazelcast's locks were checked with by Jepsen (owner-aware, re-entrant and fenced
//! mutexes, and permits), with readers, elections and several names at once.

mod play;
mod program;
mod spec;

pub use play::{Stage, play};
pub use program::{Op, Style, program};
pub use spec::Spec;
