//! The time that an acquisition may wait for others.

use std::time::Duration;

use crate::backend::clock::Moment;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Try,
    For(Duration),
    Forever,
}

impl Wait {
    /// The deadline of a wait that began at `began`.
    pub(crate) fn ends_at(self, began: Moment) -> Option<Moment> {
        match self {
            Wait::For(d) => Some(began + d),
            Wait::Try | Wait::Forever => None,
        }
    }

    /// The rest of the wait after `elapsed`.
    pub(crate) fn left(self, elapsed: Duration) -> Wait {
        match self {
            Wait::For(d) => Wait::For(d.saturating_sub(elapsed)),
            other => other,
        }
    }
}
