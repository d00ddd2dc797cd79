//! The one shape of whatever locks: raw commands, leasehold, other crates.

use std::time::Duration;

pub use leasehold_lab::measure::{Result, Subject};

/// A lease so long that no renewal falls into a round.
pub const TTL: Duration = Duration::from_secs(60);

/// A subject that can also give up at once.
pub trait Tries: Subject {
    /// Takes the lock; `None` if somebody has it.
    fn try_acquire(&self, name: &str) -> impl Future<Output = Result<Option<Self::Held>>> + Send;
}

/// What the raw ones say, which cannot wait.
pub const TAKEN: &str = "somebody else has it";
