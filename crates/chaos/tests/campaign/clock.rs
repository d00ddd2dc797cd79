//! The machine's own clock. Where leases go by it, and it is stepped or runs at another rate than a lease's margin allows, such as
//! when a virtual machine continues elsewhere, a run shows nothing.

use std::{
    cell::Cell,
    time::{Duration, Instant, SystemTime},
};

/// How often it is looked at.
const EACH: Duration = Duration::from_millis(100);

/// What is known of it.
#[derive(Default)]
pub(crate) struct Clock {
    /// The most that it has gone too far, or too little, between two looks.
    worst: Cell<Duration>,
}

impl Clock {
    /// Looks at it until it is dropped.
    pub(crate) async fn watch(&self) {
        let mut before = read();
        loop {
            tokio::time::sleep(EACH).await;
            let now = read();
            let went = now.1.duration_since(before.1).unwrap_or_default();
            let took = now.0.duration_since(before.0);
            let back = before.1.duration_since(now.1).unwrap_or_default();
            let off = went.abs_diff(took) + back;
            // The margin of a lease.
            if off > took / 100 + Duration::from_millis(2) {
                self.worst.set(self.worst.get().max(off));
            }
            before = now;
        }
    }

    /// What is to be said of it.
    pub(crate) fn trouble(&self) -> Option<String> {
        let worst = self.worst.get();
        (!worst.is_zero())
            .then(|| format!("void: the machine's own clock was stepped, by {worst:?}"))
    }
}

/// Both clocks at one instant, as far as this thread is not interrupted between.
#[allow(clippy::disallowed_methods, reason = "it is these that are compared")]
fn read() -> (Instant, SystemTime) {
    loop {
        let (begin, wall) = (Instant::now(), SystemTime::now());
        if begin.elapsed() < Duration::from_micros(200) {
            return (begin, wall);
        }
    }
}
