//! How many requests that renew may be under way at once: as many as the store bears. And for how long a lease has stood in line.
//!
//! One more for each that is answered in time, half as many when some are late. A late answer says
//! nothing by itself: of a store that is far away all answers are late, and it may bear many at a
//! time; a store that does one after the other has too many already. So how long the quickest of
//! them took decides. If late answers always made room for more, a busy store would be asked again
//! and again for what waits in its line, and would lose all locks of a client at half of what it bears.
//!
//! The same decides when a client keeps more than its store renews in time. Only the time in line is by
//! its number: not the way to the store, and not what this client, the network or the store stood still.

use std::time::Duration;

use crate::seam::clock::Moment;

/// At most. Those that may not wait any longer go all the same, once nothing moves.
const BATCHES: usize = 16;

pub(super) struct Width {
    most: usize,
    /// When that was last made less.
    narrowed: Option<Moment>,
    /// How long the quickest answer took, as far as that is still so.
    quickest: Duration,
    /// Since when a request waits, and none was answered.
    silent: Option<Moment>,
    /// When renewals last went on after a standstill.
    resumed: Moment,
}

impl Default for Width {
    fn default() -> Width {
        let resumed = Moment::from_nanos(0);
        Width { most: BATCHES, narrowed: None, quickest: Duration::MAX, silent: None, resumed }
    }
}

impl Width {
    /// How many more may go, beside those that are under way and not late.
    pub(super) fn room(&self, under_way: usize) -> usize {
        self.most.saturating_sub(under_way)
    }

    /// The store has a new connection, or its server goes by other terms.
    pub(super) fn begin_anew(&mut self, now: Moment) {
        *self = Width { narrowed: self.narrowed, resumed: now, ..Width::default() };
    }

    /// A request is sent.
    pub(super) fn sent(&mut self, now: Moment) {
        self.silent.get_or_insert(now);
    }

    /// One was answered that was sent then. `shortest` of its leases; `others` are under way.
    pub(super) fn answered(&mut self, (sent, now): (Moment, Moment), late: bool, shortest: Duration, others: bool) {
        let (took, silent) = (now.since(sent), std::mem::replace(&mut self.silent, others.then_some(now)));
        if silent.is_some_and(|since| now.since(since) > self.quickest().saturating_add(shortest / 6)) {
            self.resumed = now;
        }
        // One at a time waits in no line of ours: if that is late again and again, the store has become slower.
        let slower = if late && self.most == 1 { self.quickest / 4 } else { Duration::ZERO };
        self.quickest = took.min(self.quickest.saturating_add(slower));
        if !late || took <= self.quickest.saturating_mul(2) {
            self.most = BATCHES.min(self.most + 1);
        } else {
            self.narrow(sent, now);
        }
    }

    /// One is late. If the quickest would be as well, the store is far away, and its answer will tell.
    pub(super) fn late(&mut self, sent: Moment, now: Moment) {
        if now.since(sent) > self.quickest() {
            self.narrow(sent, now);
        }
    }

    /// Those that were in flight together are late together, by one cause.
    fn narrow(&mut self, sent: Moment, now: Moment) {
        if self.narrowed.is_none_or(|at| at <= sent) {
            (self.most, self.narrowed) = (1.max(self.most / 2), Some(now));
        }
    }

    /// Nothing if it is not known yet.
    fn quickest(&self) -> Duration {
        if self.quickest == Duration::MAX { Duration::ZERO } else { self.quickest }
    }

    /// It was to be sent at `at`, and is planned only `now`: this client stood still.
    pub(super) fn planned(&mut self, at: Moment, now: Moment, ttl: Duration) {
        if now.since(at) > ttl / 6 {
            self.resumed = now;
        }
    }

    /// Whether a lease that was due since then, and is answered now, has stood in line for so long that one more could cost another
    /// its lease: a quarter of the time that the way to the store leaves it, which is a sixth of a lease if the store is near.
    pub(super) fn is_behind(&self, due_since: Moment, now: Moment, ttl: Duration) -> bool {
        let in_line = now.since(due_since.max(self.resumed)).saturating_sub(self.quickest());
        in_line > (ttl * 2 / 3).saturating_sub(self.quickest()) / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(6);
    const START: Moment = Moment::from_nanos(3_600_000_000_000);

    fn at(millis: u64) -> Moment {
        START + Duration::from_millis(millis)
    }

    /// One whose quickest answer took so long.
    fn used_to(millis: u64) -> Width {
        let mut width = Width::default();
        width.answered((START, at(millis)), false, TTL, false);
        width
    }

    #[test]
    fn a_new_connection_begins_anew_and_what_is_late_of_before_narrows_nothing() {
        let mut width = used_to(10);
        width.late(START, at(1000));
        assert_eq!(width.room(0), BATCHES / 2);
        assert!(width.is_behind(START, at(2100), TTL));
        width.begin_anew(at(2000));
        assert_eq!(width.room(0), BATCHES);
        assert!(!width.is_behind(START, at(2100), TTL), "what stood in line before says nothing");
        width.late(START, at(3000));
        assert_eq!(width.room(0), BATCHES, "it was in flight together with what was late");
    }

    /// A store that answered nothing for a sixth of a lease stood still: that is not its line.
    #[test]
    fn a_standstill_is_not_time_in_line() {
        for (silent, behind) in [(1010, true), (1011, false), (1500, false)] {
            let mut width = used_to(10);
            width.sent(at(1000));
            width.answered((at(1000), at(1000 + silent)), true, TTL, false);
            assert_eq!(width.is_behind(at(1000), at(1000 + silent), TTL), behind, "{silent} ms");
        }
        let mut width = used_to(10);
        width.sent(at(3000));
        width.answered((at(3000), at(3010)), false, TTL, false);
        assert!(width.is_behind(at(1000), at(3010), TTL), "a quick answer is no standstill");
    }

    /// What was planned a sixth of a lease too late says that this client stood still.
    #[test]
    fn a_plan_that_comes_late_is_not_time_in_line() {
        for (late, behind) in [(1000, true), (1001, false)] {
            let mut width = used_to(10);
            width.planned(at(1000), at(1000 + late), TTL);
            assert_eq!(width.is_behind(START, at(1000 + late), TTL), behind, "{late} ms");
        }
    }

    /// A quarter of what is left of two thirds of the lease.
    #[test]
    fn a_lease_is_behind_after_a_sixth_of_it_in_line() {
        let behind = [1000, 1001].map(|millis| Width::default().is_behind(START, at(millis), TTL));
        assert_eq!(behind, [false, true]);
    }

    /// One request at a time that is late again and again: the store has become slower, a quarter each time.
    #[test]
    fn the_quickest_answer_is_forgotten_only_one_at_a_time() {
        let mut width = used_to(100);
        width.answered((at(1000), at(2000)), true, TTL, true);
        assert_eq!((width.quickest, width.room(0)), (Duration::from_millis(100), BATCHES / 2));
        for nth in 3..7 {
            width.late(at(nth * 1000), at(nth * 1000 + 500));
        }
        assert_eq!(width.room(0), 1, "at least one");
        width.answered((at(8000), at(8050)), false, TTL, false);
        assert_eq!((width.quickest, width.room(0)), (Duration::from_millis(50), 2));
        width.late(at(9000), at(9500));
        width.answered((at(10_000), at(11_000)), true, TTL, false);
        assert_eq!(width.quickest, Duration::from_micros(62_500));
    }

    /// Late by what any answer takes: the store is far away, and bears as many as before.
    #[test]
    fn a_store_that_is_far_away_is_not_narrowed() {
        let mut width = used_to(400);
        width.late(at(1000), at(1400));
        assert_eq!(width.room(4), BATCHES - 4);
        width.answered((at(1000), at(1800)), true, TTL, false);
        assert_eq!(width.room(0), BATCHES);
        assert!(!width.is_behind(at(1000), at(1400), TTL), "it is on its way");
    }
}
