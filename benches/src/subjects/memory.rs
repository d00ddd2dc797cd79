//! Locks of one process.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::subject::{Result, Subject, Tries};

/// Tokio's mutex, which has no name, no lease and no token.
#[derive(Clone, Default)]
pub struct TokioMutex(Arc<Mutex<()>>);

impl Subject for TokioMutex {
    type Held = OwnedMutexGuard<()>;

    async fn acquire(&self, _: &str) -> Result<Self::Held> {
        Ok(self.0.clone().lock_owned().await)
    }

    async fn release(&self, held: Self::Held) -> Result<()> {
        drop(held);
        Ok(())
    }
}

impl Tries for TokioMutex {
    async fn try_acquire(&self, _: &str) -> Result<Option<Self::Held>> {
        Ok(self.0.clone().try_lock_owned().ok())
    }
}
