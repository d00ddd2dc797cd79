//! The one shape of whatever locks: raw commands, leasehold, other crates.

use std::error::Error;
use std::time::Duration;

/// Whatever fails ends the row that it fails in.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A lease so long that no renewal falls into a round.
pub const TTL: Duration = Duration::from_secs(60);

/// One client of something that locks. A clone is the same client, for another task.
///
/// Its futures are its own: nothing is boxed for an operation that is measured.
pub trait Subject: Clone + Send + Sync + 'static {
    /// What stands for a hold.
    type Held: Send;

    /// Takes the lock of this name; waits while somebody has it, where the subject can wait.
    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held>> + Send;

    /// Gives it back, and returns when it is given back.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<()>> + Send;

    /// One after the other.
    fn cycle(&self, name: &str) -> impl Future<Output = Result<()>> + Send {
        async move { self.release(self.acquire(name).await?).await }
    }
}

/// A subject that can also give up at once.
pub trait Tries: Subject {
    /// Takes the lock; `None` if somebody has it.
    fn try_acquire(&self, name: &str) -> impl Future<Output = Result<Option<Self::Held>>> + Send;
}

/// What the raw ones say, which cannot wait.
pub const TAKEN: &str = "somebody else has it";
