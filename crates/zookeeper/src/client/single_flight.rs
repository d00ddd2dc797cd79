//! A mutex with an expiry whose waiters share the work of its owner. Data: a watch channel with the
//! number of turns so far and the time at which the current one began, if there is one.
//!
//! Algorithm ([`SingleFlight::unless`]), for work that many tasks need:
//! 1. If the result is there, it is returned.
//! 2. If there is no turn, or the current one began too long ago, a new turn begins, and its task
//!    does the work.
//! 3. Otherwise the task waits until the turn ends or is too old, or until a call of
//!    [`SingleFlight::look_again`], and starts over.
//!
//! A turn ends when it is dropped, or when another one begins. Turns expire because their task may
//! not be polled any more: it is behind another branch of a `select!`, or in a runtime that is not
//! driven. The work of an expired turn must do no harm if it still completes.

use std::time::Duration;

use leasehold_core::backend::Moment;
use tokio::sync::watch;
use tokio::time::timeout;

/// The turns, one after the other.
#[derive(Default)]
pub(crate) struct SingleFlight(watch::Sender<Taken>);

#[derive(Default)]
struct Taken {
    /// The number of turns so far.
    nth: u64,
    /// The time at which the current turn began.
    since: Option<Moment>,
}

/// A turn. It is over when this is dropped, or when another one has begun.
pub(crate) struct Turn<'a> {
    of: &'a SingleFlight,
    nth: u64,
}

impl SingleFlight {
    /// Returns the result of `done` as soon as there is one, or else a turn to do the work. A turn
    /// that began `age` ago is not waited for.
    pub(crate) async fn unless<R>(
        &self,
        age: Duration,
        mut done: impl FnMut() -> Option<R>,
    ) -> Result<R, Turn<'_>> {
        let mut changes = None;
        loop {
            if let Some(done) = done() {
                return Ok(done);
            }
            let now = Moment::now();
            let until = match self.take(age, now) {
                Ok(turn) => return Err(turn),
                Err(until) => until,
            };
            match &mut changes {
                // It looks once more, for changes since its first look.
                None => changes = Some(self.0.subscribe()),
                Some(changes) => drop(timeout(until.since(now), changes.changed()).await),
            }
        }
    }

    /// Makes all waiting tasks look again.
    pub(crate) fn look_again(&self) {
        self.0.send_modify(|_| ());
    }

    /// Begins a turn, or returns the time until which the current one lasts.
    fn take(&self, age: Duration, now: Moment) -> Result<Turn<'_>, Moment> {
        let mut taken = Err(now);
        self.0.send_if_modified(|it| {
            taken = match it.since.map(|since| since + age) {
                Some(until) if now < until => Err(until),
                _ => {
                    (it.nth, it.since) = (it.nth + 1, Some(now));
                    Ok(Turn {
                        of: self,
                        nth: it.nth,
                    })
                }
            };
            false
        });
        taken
    }
}

impl Turn<'_> {
    /// Returns whether another turn has begun meanwhile.
    pub(crate) fn is_over(&self) -> bool {
        self.of.0.borrow().nth != self.nth
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.of.0.send_if_modified(|it| {
            let ends = it.nth == self.nth;
            if ends {
                it.since = None;
            }
            ends
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    const AGE: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_turn_that_is_not_ended_is_passed_by_and_ends_no_other() {
        let turns = SingleFlight::default();
        let none = || None::<()>;
        let first = turns.unless(AGE, none).await.expect_err("it is free");
        assert!(turns.unless(AGE, none).now_or_never().is_none() && !first.is_over());
        let second = turns
            .unless(AGE, none)
            .await
            .expect_err("the first one is too old");
        assert!(first.is_over() && !second.is_over());
        drop(first);
        assert!(
            turns.unless(AGE, none).now_or_never().is_none(),
            "the second one lasts"
        );
        drop(second);
        assert!(
            turns
                .unless(AGE, none)
                .now_or_never()
                .is_some_and(|turn| turn.is_err())
        );
    }

    #[tokio::test]
    async fn who_waits_looks_whenever_a_turn_ends_and_when_told() {
        let turns = SingleFlight::default();
        let turn = turns.unless(AGE * 1000, || None::<u8>).await;
        let mut looks = 0;
        let waiters = || (0..3).map(|_| turns.unless(AGE * 1000, || Some(7)));
        assert!(
            join_all(waiters()).now_or_never().is_some(),
            "it was done already"
        );
        let mut third_look = || {
            looks += 1;
            (looks == 3).then_some(7)
        };
        let (seen, ()) = tokio::join!(turns.unless(AGE * 1000, &mut third_look), async {
            turns.look_again();
        });
        assert_eq!(seen.ok(), Some(7));
        drop(turn);
    }
}
