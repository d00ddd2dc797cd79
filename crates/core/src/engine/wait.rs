//! How long an acquisition may wait for others.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Try,
    For(Duration),
    Forever,
}

impl Wait {
    /// What is left of it when so much time has gone.
    pub(crate) fn left(self, elapsed: Duration) -> Wait {
        match self {
            Wait::For(d) => Wait::For(d.saturating_sub(elapsed)),
            other => other,
        }
    }
}
