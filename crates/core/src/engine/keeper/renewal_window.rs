//! The number of requests that renew which may be under way at once: as many as the store bears. It
//! also measures the time that a lease has stood in line.
//!
//! It grows by one for each request that is answered in time, and is halved when some are late. A
//! late answer alone has no clear meaning: all answers of a distant store are late, and it may bear
//! many requests at a time, while a store that serves one after the other has too many already.
//! Therefore an answer is compared with the quickest one. If late answers always made room for
//! more, a busy store would be asked again and again for renewals that wait in its line, and all
//! locks of a client would be lost at half of the load that the store bears.
//!
//! The time in line also decides whether a client keeps more leases than its store can renew in
//! time. Only this time grows with the number of leases: the way to the store does not, nor does a
//! standstill of this client, the network or the store.

use std::time::Duration;

use crate::backend::clock::Moment;

/// The greatest width. Renewals that may not wait any longer go out in any case, once the store
/// answers none.
const BATCHES: usize = 16;

pub(super) struct RenewalWindow {
    most: usize,
    /// The moment when the width was last reduced.
    narrowed: Option<Moment>,
    /// The time that the quickest answer took. It grows again when the store becomes slower.
    quickest: Duration,
    /// The moment since which requests wait and none was answered.
    silent: Option<Moment>,
    /// The moment when renewals last went on after a standstill.
    resumed: Moment,
}

impl Default for RenewalWindow {
    fn default() -> RenewalWindow {
        let resumed = Moment::from_nanos(0);
        RenewalWindow {
            most: BATCHES,
            narrowed: None,
            quickest: Duration::MAX,
            silent: None,
            resumed,
        }
    }
}

impl RenewalWindow {
    /// The number of further requests that may go out, beside those that are under way and not
    /// late.
    pub(super) fn room(&self, under_way: usize) -> usize {
        self.most.saturating_sub(under_way)
    }

    /// Begins anew: the store has a new connection, or its server has changed its terms.
    pub(super) fn begin_anew(&mut self, now: Moment) {
        *self = RenewalWindow {
            narrowed: self.narrowed,
            resumed: now,
            ..RenewalWindow::default()
        };
    }

    /// A request is sent.
    pub(super) fn sent(&mut self, now: Moment) {
        self.silent.get_or_insert(now);
    }

    /// Processes the answer to a request with its times. `shortest` is the shortest of its leases;
    /// `others` is true if other requests are under way.
    pub(super) fn answered(
        &mut self,
        (sent, now): (Moment, Moment),
        late: bool,
        shortest: Duration,
        others: bool,
    ) {
        let took = now.since(sent);
        let silent = std::mem::replace(&mut self.silent, others.then_some(now));
        if silent
            .is_some_and(|since| now.since(since) > self.quickest().saturating_add(shortest / 6))
        {
            self.resumed = now;
        }
        // A single request at a time has none of ours in front of it: if it is late again and
        // again, the store has become slower.
        let slower = if late && self.most == 1 {
            self.quickest / 4
        } else {
            Duration::ZERO
        };
        self.quickest = took.min(self.quickest.saturating_add(slower));
        if !late || took <= self.quickest.saturating_mul(2) {
            self.most = BATCHES.min(self.most + 1);
        } else {
            self.narrow(sent, now);
        }
    }

    /// Processes a late request. If it has not yet taken longer than the quickest answer, the store
    /// may only be far away; then its answer decides.
    pub(super) fn late(&mut self, sent: Moment, now: Moment) {
        if now.since(sent) > self.quickest() {
            self.narrow(sent, now);
        }
    }

    /// Halves the width, once for all requests that were in flight together: they are late by one
    /// cause.
    fn narrow(&mut self, sent: Moment, now: Moment) {
        if self.narrowed.is_none_or(|at| at <= sent) {
            (self.most, self.narrowed) = (1.max(self.most / 2), Some(now));
        }
    }

    /// The time that the quickest answer took; zero if none is known yet.
    fn quickest(&self) -> Duration {
        if self.quickest == Duration::MAX {
            Duration::ZERO
        } else {
            self.quickest
        }
    }

    /// Processes the plan of a renewal that was due at `at`: if it is planned only much later, this
    /// client stood still.
    pub(super) fn planned(&mut self, at: Moment, now: Moment, ttl: Duration) {
        if now.since(at) > ttl / 6 {
            self.resumed = now;
        }
    }

    /// Returns whether a lease that was due at `due_since` and is answered now has stood in line
    /// for so long that one more lease could cost another its own. The limit is a quarter of the
    /// time that the way to the store leaves of two thirds of the lease: a sixth of the lease if
    /// the store is near.
    pub(super) fn is_behind(&self, due_since: Moment, now: Moment, ttl: Duration) -> bool {
        let in_line = now
            .since(due_since.max(self.resumed))
            .saturating_sub(self.quickest());
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

    /// Returns a width whose quickest answer took `millis` milliseconds.
    fn used_to(millis: u64) -> RenewalWindow {
        let mut width = RenewalWindow::default();
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
        assert!(
            !width.is_behind(START, at(2100), TTL),
            "what stood in line before says nothing"
        );
        width.late(START, at(3000));
        assert_eq!(
            width.room(0),
            BATCHES,
            "it was in flight together with what was late"
        );
    }

    /// A store that answered nothing for a sixth of a lease stood still: that is not time in line.
    #[test]
    fn a_standstill_is_not_time_in_line() {
        for (silent, behind) in [(1010, true), (1011, false), (1500, false)] {
            let mut width = used_to(10);
            width.sent(at(1000));
            width.answered((at(1000), at(1000 + silent)), true, TTL, false);
            assert_eq!(
                width.is_behind(at(1000), at(1000 + silent), TTL),
                behind,
                "{silent} ms"
            );
        }
        let mut width = used_to(10);
        width.sent(at(3000));
        width.answered((at(3000), at(3010)), false, TTL, false);
        assert!(
            width.is_behind(at(1000), at(3010), TTL),
            "a quick answer is no standstill"
        );
    }

    /// A renewal that is planned a sixth of a lease too late shows that this client stood still.
    #[test]
    fn a_plan_that_comes_late_is_not_time_in_line() {
        for (late, behind) in [(1000, true), (1001, false)] {
            let mut width = used_to(10);
            width.planned(at(1000), at(1000 + late), TTL);
            assert_eq!(
                width.is_behind(START, at(1000 + late), TTL),
                behind,
                "{late} ms"
            );
        }
    }

    /// The limit is a quarter of two thirds of the lease, as the way to the store takes no time
    /// here.
    #[test]
    fn a_lease_is_behind_after_a_sixth_of_it_in_line() {
        let behind =
            [1000, 1001].map(|millis| RenewalWindow::default().is_behind(START, at(millis), TTL));
        assert_eq!(behind, [false, true]);
    }

    /// If one request at a time is late again and again, the store has become slower: the quickest
    /// time grows by a quarter each time.
    #[test]
    fn the_quickest_answer_is_forgotten_only_one_at_a_time() {
        let mut width = used_to(100);
        width.answered((at(1000), at(2000)), true, TTL, true);
        assert_eq!(
            (width.quickest, width.room(0)),
            (Duration::from_millis(100), BATCHES / 2)
        );
        for nth in 3..7 {
            width.late(at(nth * 1000), at(nth * 1000 + 500));
        }
        assert_eq!(width.room(0), 1, "at least one");
        width.answered((at(8000), at(8050)), false, TTL, false);
        assert_eq!(
            (width.quickest, width.room(0)),
            (Duration::from_millis(50), 2)
        );
        width.late(at(9000), at(9500));
        width.answered((at(10_000), at(11_000)), true, TTL, false);
        assert_eq!(width.quickest, Duration::from_micros(62_500));
    }

    /// The requests are late only by the time that every answer takes: the store is far away, and
    /// bears as many as before.
    #[test]
    fn a_store_that_is_far_away_is_not_narrowed() {
        let mut width = used_to(400);
        width.late(at(1000), at(1400));
        assert_eq!(width.room(4), BATCHES - 4);
        width.answered((at(1000), at(1800)), true, TTL, false);
        assert_eq!(width.room(0), BATCHES);
        assert!(
            !width.is_behind(at(1000), at(1400), TTL),
            "it is on its way"
        );
    }
}
