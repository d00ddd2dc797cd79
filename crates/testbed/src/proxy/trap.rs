//! A fault that waits for one particular request.

use std::sync::Arc;

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    LoseReply,
    HoldReply,
    Hold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Armed,
    Sprung,
    Released,
    Done,
}

#[derive(Debug)]
struct Inner {
    /// The bytes in a chunk that spring it.
    pattern: Vec<u8>,
    action: Action,
    stage: watch::Sender<Stage>,
}

/// A fault set with [`Proxy::hold_matching`](super::Proxy::hold_matching) and the like. It tells
/// when the fault has happened.
///
/// A trap springs once. Dropping this does not disarm it.
#[derive(Clone, Debug)]
pub struct Trap(Arc<Inner>);

impl Trap {
    pub(super) fn new(pattern: &[u8], action: Action) -> Self {
        Self(Arc::new(Inner {
            pattern: pattern.into(),
            action,
            stage: watch::Sender::new(Stage::Armed),
        }))
    }

    /// Returns whether the request has come.
    #[must_use]
    pub fn has_sprung(&self) -> bool {
        self.stage() >= Stage::Sprung
    }

    /// Waits until the request has come: it is held back, or on its way to the server with its reply doomed.
    pub async fn sprung(&self) {
        self.reaches(Stage::Sprung).await;
    }

    /// Waits until the fault is over: the reply was thrown away and the client's connection closed,
    /// or the held request was written to the server, or the held reply was released.
    pub async fn done(&self) {
        self.reaches(Stage::Done).await;
    }

    pub(super) fn action(&self) -> Action {
        self.0.action
    }

    /// Looks at a request chunk. Returns `true` once, for the chunk with the pattern.
    pub(super) fn meets(&self, chunk: &[u8]) -> bool {
        let pattern = &self.0.pattern[..];
        let found = pattern.is_empty() || chunk.windows(pattern.len()).any(|part| part == pattern);
        let met = found && self.stage() == Stage::Armed;
        if met {
            self.0.stage.send_replace(Stage::Sprung);
        }
        met
    }

    /// Ends the trap if it has not sprung yet.
    pub(super) fn disarm(&self) {
        if !self.has_sprung() {
            self.finish();
        }
    }

    /// Releases the held bytes. Returns `false` if there are none.
    pub(super) fn release(&self) -> bool {
        let held = self.action() != Action::LoseReply && self.stage() == Stage::Sprung;
        if held {
            self.0.stage.send_replace(Stage::Released);
        }
        held
    }

    pub(super) async fn released(&self) {
        self.reaches(Stage::Released).await;
    }

    pub(super) fn finish(&self) {
        self.0.stage.send_replace(Stage::Done);
    }

    fn stage(&self) -> Stage {
        *self.0.stage.borrow()
    }

    async fn reaches(&self, stage: Stage) {
        // The trap has the sender, so waiting does not fail.
        let _ = self.0.stage.subscribe().wait_for(|now| *now >= stage).await;
    }
}
