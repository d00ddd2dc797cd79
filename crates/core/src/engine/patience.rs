//! Attempts to connect to a store that is away: a program may start before its database does.
//!
//! There is no store yet and no claim, so nothing here is about a lock. The facade and the command connect by this loop.

use std::time::Duration;

use tokio::select;

use crate::backend::clock::Clock;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::engine::backoff::Backoff;
use crate::engine::events;

/// With less patience left than this, no further attempt is made.
const SHORTEST: Duration = Duration::from_millis(20);

/// Makes the attempt, and makes it again while the store is away, until `patience` is over on this clock.
///
/// Only what may go away by waiting is repeated: [`Unavailable`](ErrorKind::Unavailable), and
/// [`Ambiguous`](ErrorKind::Ambiguous), which is an outage in the middle of an attempt. The first attempt takes as long as it takes;
/// a later one that is under way when `patience` is over is dropped. [`Duration::MAX`] is patience without a limit, and zero is one
/// attempt. `waits` is called at most once: with the first error after which it waits.
///
/// # Errors
///
/// That of the latest attempt that was answered. If it has waited in vain, the message begins with the time that all attempts took.
///
/// # Cancel safety
///
/// The attempt that is under way is dropped.
pub async fn patiently<T, F: Future<Output = Result<T>>>(
    patience: Duration,
    clock: &Clock,
    mut attempt: impl FnMut() -> F,
    waits: impl FnOnce(&Error),
) -> Result<T> {
    let began = clock.now();
    let until = began + patience;
    let mut latest = match attempt().await {
        Err(e) if is_away(&e) => e,
        answer => return answer,
    };
    let mut backoff = Backoff::new(fastrand::Rng::new());
    let mut waits = Some(waits);
    let mut failures = 1;
    loop {
        let left = until.since(clock.now());
        if left < SHORTEST {
            break;
        }
        if let Some(waits) = waits.take() {
            events::store_away(&latest);
            waits(&latest);
        }
        // There is time for one more attempt after each pause.
        clock.sleep(backoff.next().min(left / 2)).await;
        let again = select! {
            biased;
            answer = attempt() => answer,
            () = clock.sleep_until(until) => break,
        };
        match again {
            Err(e) if is_away(&e) => latest = e,
            answer => {
                if answer.is_ok() {
                    events::store_there(failures, clock.now().since(began));
                }
                return answer;
            }
        }
        failures += 1;
    }
    if waits.is_some() {
        return Err(latest);
    }
    let waited = clock.now().since(began).as_secs_f64();
    Err(latest.in_context(format_args!("not available for {waited:.1} s")))
}

/// Another store at the address is no outage: the URL may lead there for good.
fn is_away(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::pending;

    use super::*;
    use crate::backend::clock::VirtualClock;

    const SECOND: Duration = Duration::from_secs(1);

    /// A store that answers from a certain attempt on, and how it was asked.
    #[derive(Default)]
    struct Away {
        attempts: Cell<u32>,
        told: RefCell<Vec<String>>,
    }

    impl Away {
        /// Connects to a store of which attempt `n` (from 1 on) ends with `answer(n)`.
        async fn connect(
            &self,
            patience: Duration,
            time: &VirtualClock,
            answer: impl AsyncFn(u32) -> Result<u32>,
        ) -> Result<u32> {
            let attempt = || {
                self.attempts.update(|n| n + 1);
                answer(self.attempts.get())
            };
            let told = |e: &Error| self.told.borrow_mut().push(e.to_string());
            patiently(patience, &time.clock(), attempt, told).await
        }
    }

    fn failure(kind: ErrorKind) -> Result<u32> {
        Err(Error::new(kind, "refused"))
    }

    /// Its answer, and the seconds after which it came. It has a minute.
    async fn within_a_minute(
        time: &VirtualClock,
        connecting: impl Future<Output = Result<u32>>,
    ) -> (Result<u32>, f64) {
        let began = time.clock().now();
        let timed = async {
            let answer = connecting.await;
            (answer, time.clock().now().since(began).as_secs_f64())
        };
        select! {
            biased;
            answered = timed => answered,
            () = time.pass(60 * SECOND) => panic!("it waits for longer than a minute"),
        }
    }

    #[tokio::test]
    async fn a_store_that_comes_is_connected_to_and_the_wait_is_told_once() {
        for patience in [10 * SECOND, Duration::MAX] {
            for kind in [ErrorKind::Unavailable, ErrorKind::Ambiguous] {
                let time = VirtualClock::new();
                let away = Away::default();
                let there = time.clock().now() + 2 * SECOND;
                let connecting = away.connect(patience, &time, async |n| {
                    match time.clock().now() < there {
                        true => failure(kind),
                        false => Ok(n),
                    }
                });
                let (answer, took) = within_a_minute(&time, connecting).await;
                assert_eq!(answer.unwrap(), away.attempts.get());
                assert!((2.0..3.0).contains(&took), "{took}");
                assert_eq!(*away.told.borrow(), ["refused"]);
            }
        }
    }

    #[tokio::test]
    async fn its_own_reason_and_the_time_are_told_when_patience_is_over() {
        let time = VirtualClock::new();
        let away = Away::default();
        let connecting = away.connect(3 * SECOND, &time, async |_| failure(ErrorKind::Unavailable));
        let (answer, took) = within_a_minute(&time, connecting).await;
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let said = error.to_string();
        assert!(
            said.starts_with("not available for ") && said.ends_with(" s: refused"),
            "{said}"
        );
        // It has tried until nearly the end, and neither all the time nor in steps that miss a server which comes late.
        assert!((2.9..=3.0).contains(&took), "{took}");
        assert!(
            (8..30).contains(&away.attempts.get()),
            "{away:?}",
            away = away.attempts
        );
    }

    #[tokio::test]
    async fn without_patience_there_is_one_attempt_and_its_error() {
        let time = VirtualClock::new();
        let away = Away::default();
        let connecting = away.connect(Duration::ZERO, &time, async |_| {
            failure(ErrorKind::Unavailable)
        });
        let (answer, took) = within_a_minute(&time, connecting).await;
        assert_eq!(answer.unwrap_err().to_string(), "refused");
        assert_eq!((away.attempts.get(), took), (1, 0.0));
        assert!(away.told.borrow().is_empty());
    }

    /// The first attempt has the time limit of its store, and no later one lasts beyond the end.
    #[tokio::test]
    async fn a_silent_store_does_not_prolong_it() {
        let time = VirtualClock::new();
        let away = Away::default();
        let connecting = away.connect(5 * SECOND, &time, async |n| {
            time.clock().sleep(3 * SECOND).await;
            match n {
                1 => failure(ErrorKind::Unavailable),
                _ => pending().await,
            }
        });
        let (answer, took) = within_a_minute(&time, connecting).await;
        assert_eq!(
            answer.unwrap_err().to_string(),
            "not available for 5.0 s: refused"
        );
        assert_eq!((away.attempts.get(), took), (2, 5.0));
        // One that takes longer than all patience is not repeated.
        let time = VirtualClock::new();
        let away = Away::default();
        let connecting = away.connect(SECOND, &time, async |_| {
            time.clock().sleep(3 * SECOND).await;
            failure(ErrorKind::Unavailable)
        });
        let (answer, took) = within_a_minute(&time, connecting).await;
        assert_eq!(answer.unwrap_err().to_string(), "refused");
        assert_eq!((away.attempts.get(), took), (1, 3.0));
    }

    #[tokio::test]
    async fn what_waiting_does_not_mend_ends_it_at_once() {
        use ErrorKind::{
            Closed, Corrupt, Denied, Internal, Invalid, NoRuntime, OtherStore, Unsupported,
        };
        for kind in [
            Closed,
            Corrupt,
            Denied,
            Internal,
            Invalid,
            NoRuntime,
            OtherStore,
            Unsupported,
        ] {
            for attempts in [1, 4] {
                let time = VirtualClock::new();
                let away = Away::default();
                let connecting = away.connect(Duration::MAX, &time, async |n| {
                    failure(if n < attempts {
                        ErrorKind::Unavailable
                    } else {
                        kind
                    })
                });
                let (answer, _) = within_a_minute(&time, connecting).await;
                let error = answer.unwrap_err();
                assert_eq!((error.kind(), error.to_string()), (kind, "refused".into()));
                assert_eq!(away.attempts.get(), attempts);
            }
        }
    }
}
