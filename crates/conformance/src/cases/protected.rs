//! A resource that a lock protects: a page that only holders of the lock write and read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Detects writers that are not alone, lost writes, and tokens that do not rise.
#[derive(Default)]
pub(super) struct Protected {
    readers: AtomicU64,
    writers: AtomicU64,
    writes: AtomicU64,
    greatest_token: AtomicU64,
    last_written: AtomicU64,
}

impl Protected {
    /// A writer is inside from here until it [leaves](Self::leave).
    pub(super) fn enter(&self, token: u64) {
        assert_eq!(
            self.writers.fetch_add(1, Ordering::SeqCst),
            0,
            "two are inside"
        );
        assert_eq!(
            self.readers.load(Ordering::SeqCst),
            0,
            "what is read is written"
        );
        let before = self.greatest_token.fetch_max(token, Ordering::SeqCst);
        assert!(
            before < token,
            "the writer's token {token} came after {before}"
        );
        self.last_written.store(token, Ordering::SeqCst);
    }

    pub(super) fn leave(&self) {
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts one up: reads, and writes a moment later.
    pub(super) async fn write(&self, token: u64) {
        self.enter(token);
        let writes = self.writes.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.writes.store(writes + 1, Ordering::SeqCst);
        self.leave();
    }

    pub(super) async fn read(&self, token: u64) {
        self.readers.fetch_add(1, Ordering::SeqCst);
        self.greatest_token.fetch_max(token, Ordering::SeqCst);
        let written = self.last_written.load(Ordering::SeqCst);
        assert!(
            written < token,
            "the reader's token {token} came after the writer's {written}"
        );
        tokio::task::yield_now().await;
        assert_eq!(
            self.writers.load(Ordering::SeqCst),
            0,
            "what is read is written"
        );
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The number of writes that were not lost.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }
}
