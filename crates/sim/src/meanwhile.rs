//! A holder that waits for an answer goes on saying until when it holds.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

/// So shortly before its end it is asked once more what holds.
const BEFORE: Duration = Duration::from_millis(2);

/// Waits for an answer about what is held. `says`: until when that is valid, in nanoseconds from now, as is noted. It is asked at first, since what
/// was held a moment ago may have been renewed since; and then each time shortly before the end: who asks after that is told of the loss
/// by asking.
pub(crate) async fn meanwhile<T>(says: impl Fn() -> u64, asked: impl Future<Output = T>) -> T {
    let (mut asked, before) = (pin!(asked), BEFORE.as_nanos() as u64);
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

    /// `--store zookeeper --seed 40782`: it was renewed while it wrote, and not asked again before the answer to its next question.
    #[tokio::test(start_paused = true)]
    async fn a_holder_that_waits_has_said_until_when_it_holds() {
        let (lease, ends, said) = (Duration::from_millis(400), Cell::new(Instant::now()), Cell::new(0));
        let says = || {
            said.set(said.get() + 1);
            // It is renewed each time.
            ends.set(Instant::now() + lease);
            lease.as_nanos() as u64
        };
        for (waits, times) in [(100, 1), (1000, 3)] {
            said.set(0);
            meanwhile(says, sleep(Duration::from_millis(waits))).await;
            assert!(said.get() == times && Instant::now() < ends.get(), "{} after {waits} ms", said.get());
        }
    }
}
