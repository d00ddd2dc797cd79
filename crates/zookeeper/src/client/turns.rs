//! Turns: one task does what many need, and the others wait for that.
//!
//! Whose turn it is may be polled no more: behind another branch of a `select!`, or in a runtime that is not driven. So nobody waits for a
//! turn that began too long ago. What comes of that one after all must do no harm.

use std::time::Duration;

use leasehold_core::seam::Moment;
use tokio::sync::watch;
use tokio::time::timeout;

/// One turn after the other.
#[derive(Default)]
pub(crate) struct Turns(watch::Sender<Taken>);

#[derive(Default)]
struct Taken {
    /// How many there were.
    nth: u64,
    /// When that of now began.
    since: Option<Moment>,
}

/// It is over when this is dropped, or when another one has begun.
pub(crate) struct Turn<'a> {
    of: &'a Turns,
    nth: u64,
}

impl Turns {
    /// What `done` answers as soon as that is something, or else a turn to see to it. One that began `age` ago is waited for no longer.
    pub(crate) async fn unless<R>(&self, age: Duration, mut done: impl FnMut() -> Option<R>) -> Result<R, Turn<'_>> {
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
                // It looks once more: for what has changed since it did.
                None => changes = Some(self.0.subscribe()),
                Some(changes) => drop(timeout(until.since(now), changes.changed()).await),
            }
        }
    }

    /// All who wait look again.
    pub(crate) fn look_again(&self) {
        self.0.send_modify(|_| ());
    }

    /// A turn, or until when the one of now lasts.
    fn take(&self, age: Duration, now: Moment) -> Result<Turn<'_>, Moment> {
        let mut taken = Err(now);
        self.0.send_if_modified(|it| {
            taken = match it.since.map(|since| since + age) {
                Some(until) if now < until => Err(until),
                _ => {
                    (it.nth, it.since) = (it.nth + 1, Some(now));
                    Ok(Turn { of: self, nth: it.nth })
                }
            };
            false
        });
        taken
    }
}

impl Turn<'_> {
    /// Whether another one has begun meanwhile.
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
        let turns = Turns::default();
        let none = || None::<()>;
        let first = turns.unless(AGE, none).await.expect_err("it is free");
        assert!(turns.unless(AGE, none).now_or_never().is_none() && !first.is_over());
        let second = turns.unless(AGE, none).await.expect_err("the first one is too old");
        assert!(first.is_over() && !second.is_over());
        drop(first);
        assert!(turns.unless(AGE, none).now_or_never().is_none(), "the second one lasts");
        drop(second);
        assert!(turns.unless(AGE, none).now_or_never().is_some_and(|turn| turn.is_err()));
    }

    #[tokio::test]
    async fn who_waits_looks_whenever_a_turn_ends_and_when_told() {
        let turns = Turns::default();
        let (turn, mut looks) = (turns.unless(AGE * 1000, || None::<u8>).await, 0);
        let waiters = || (0..3).map(|_| turns.unless(AGE * 1000, || Some(7)));
        assert!(join_all(waiters()).now_or_never().is_some(), "it was done already");
        let mut third_look = || {
            looks += 1;
            (looks == 3).then_some(7)
        };
        let (seen, ()) = tokio::join!(turns.unless(AGE * 1000, &mut third_look), async { turns.look_again() });
        assert_eq!(seen.ok(), Some(7));
        drop(turn);
    }
}
