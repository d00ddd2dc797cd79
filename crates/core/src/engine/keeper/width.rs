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
