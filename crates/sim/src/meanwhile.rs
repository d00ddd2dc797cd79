//! A holder that waits for an answer keeps recording until when it holds.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

/// The time before the end of the validity at which `says` is called once more.
const BEFORE: Duration = Duration::from_millis(2);

/// Waits for an answer while something is held. `says` records until when the hold is valid, and
/// returns that in nanoseconds from now. It is called first, since a hold may have been renewed a
/// moment ago, and then each time shortly before the end: a holder that asks after the end is told
/// of the loss by asking.
pub(crate) async fn meanwhile<T>(says: impl Fn() -> u64, asked: impl Future<Output = T>) -> T {
    let mut asked = pin!(asked);
    let before = BEFORE.as_nanos() as u64;
    loop {
        let left = says();
        if left <= before {
            return asked.await;
        }
        if let Ok(answer) = timeout(Duration::from_nanos(left - before), &mut asked).await {
            return answer;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::{Instant, sleep};

    use super::*;

    /// `--store zookeeper --seed 40782`: the hold was renewed during a write, and `says` was not
    /// called again before the answer to the next question.
    #[tokio::test(start_paused = true)]
    async fn a_holder_that_waits_has_said_until_when_it_holds() {
        let lease = Duration::from_millis(400);
        let ends = Cell::new(Instant::now());
        let said = Cell::new(0);
        let says = || {
            said.set(said.get() + 1);
            // The hold is renewed each time.
            ends.set(Instant::now() + lease);
            lease.as_nanos() as u64
        };
        for (waits, times) in [(100, 1), (1000, 3)] {
            said.set(0);
            meanwhile(says, sleep(Duration::from_millis(waits))).await;
            assert!(
                said.get() == times && Instant::now() < ends.get(),
                "{} after {waits} ms",
                said.get()
            );
        }
    }
}
