//! What the keeper keeps: when something must be done about which claim, which renewals wait for a request to go out with,
//! and the work for the background. Nothing is notified or dropped here: the keeper's mutex is locked.
//!
//! All that must survive a runtime is here, and nothing in the task that runs: when a runtime ends,
//! another task goes on with the same registry. So each entry says when something is due, and not
//! which task does it.
//!
//! Leases that end first are renewed first. While the store is slow, the others wait: a short lease
//! costs a long one nothing, and a long one does not cost a short one its life.
//!
//! Renewals that would be due soon join those that are due now, so that the renewals of one client
//! fall together. The plan of the next ones is shifted by a random share, so that those of many
//! clients do not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::agenda::Agenda;
use super::kept::{Batch, BatchItem, Kept, NEVER, Renewing};
use super::width::Width;
use super::work::Works;
use crate::engine::claim_state::{ClaimState, Seen};
use crate::seam::clock::Moment;
use crate::seam::loss::Loss;
use crate::support::own_keys::OwnMap;
use crate::support::sync::Notify;

/// How soon the task looks again after something was kept, if nothing comes up before: then it wakes no more until it is
/// called.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The key of what waits no longer.
const AT_ONCE: Moment = Moment::from_nanos(0);

/// When a request was planned, and how much earlier than needed its leases are to be renewed again.
#[derive(Clone, Copy)]
pub(super) struct Planned {
    pub(super) at: Moment,
    pub(super) early: f64,
}

/// By their numbers: those of claims would make the indexes twice as large.
#[derive(Default)]
pub(super) struct Registry {
    pub(super) kept: OwnMap<u64, Kept>,
    /// The number of the latest one.
    latest: u64,
    /// When something must be done about which of them, except of what is being planned.
    pub(super) agenda: Agenda,
    /// Renewals that wait for a request, by when a third of their leases is left.
    due: BTreeSet<(Moment, u64)>,
    /// Those of them that came to it in this plan, and are in the agenda again only if it leaves them.
    newly_due: Vec<u64>,
    pub(super) width: Width,
    pub(super) works: Works,
    /// Until when the task sleeps, and whether it watches over holds meanwhile.
    pub(super) next_wake: Option<Moment>,
    pub(super) watching: bool,
    /// How soon those come up that were kept since the latest plan, also if they are not kept any more.
    pub(super) recent: Option<Duration>,
    /// What wakes the task that runs.
    pub(super) runner: Option<Arc<Notify>>,
    /// Since when it, or the tasks that stand by, have been woken and have not looked.
    pub(super) called: Option<Moment>,
    pub(super) no_more_work: bool,
    /// Until when no other warning says that renewals are slow.
    pub(super) warned_until: Option<Moment>,
}

impl Registry {
    pub(super) fn is_drained(&self) -> bool {
        self.works.is_empty() && self.kept.is_empty()
    }

    /// What is still kept when every guard has gone is within its `min_hold`.
    pub(super) fn has_stopped(&self) -> bool {
        self.no_more_work && self.is_drained()
    }

    /// Whether a task that runs would have nothing to do. What was kept a moment ago is a reason to run: more of the same
    /// kind is likely to come, and then no task must be woken for it.
    pub(super) fn is_idle(&self) -> bool {
        self.is_drained() && (self.no_more_work || self.recent.is_none())
    }

    /// Whether a task must be woken for what comes up then: none runs, or the one that runs would miss it, or a hold that began
    /// during a coarse sleep. One that was woken, and has not looked yet, need not be woken again.
    pub(super) fn must_wake(&self, at: Moment) -> bool {
        let unwatched = self.agenda.holds > 0 && !self.watching;
        let sleeps_past = unwatched || self.next_wake.is_none_or(|planned| at < planned);
        self.called.is_none() && (self.runner.is_none() || sleeps_past)
    }

    /// Keeps this one from now on, and says when it comes up. What waited, and is granted now, may have less of its lease left than its
    /// place had.
    pub(super) fn keep(&mut self, state: &Arc<ClaimState>, now: Moment, renew_at: Moment) -> Moment {
        let Registry { kept, latest, recent, .. } = self;
        let id = state.number(|| {
            *latest += 1;
            *latest
        });
        let kept = kept.entry(id).or_insert_with(|| {
            let soon = renew_at.since(now);
            *recent = Some(recent.map_or(soon, |recent| recent.min(soon)));
            Kept::new(state.clone(), renew_at)
        });
        if let (false, Renewing::At(at)) = (kept.is_hold, &mut kept.renewal) {
            *at = renew_at.min(*at);
        }
        self.schedule(id)
    }

    /// Until when the task sleeps after this plan. If anything was kept since the latest one it looks once more, before more of
    /// the same kind could come up: so a task that takes and gives back locks without a pause need not wake it.
    pub(super) fn plan_sleep(&mut self, now: Moment) {
        let recent = self.recent.take();
        let again = recent.map(|soon| now + soon.min(LOOK_AGAIN));
        self.called = None;
        self.next_wake = self.agenda.first().into_iter().chain(again).min();
        self.watching = self.agenda.holds > 0 || recent.is_some();
    }

    /// Enters a kept one where it belongs, and says when it comes up.
    pub(super) fn schedule(&mut self, id: u64) -> Moment {
        let Some(kept) = self.kept.get_mut(&id) else { return NEVER };
        let seen = kept.state.look();
        self.agenda.enter(id, kept, &seen)
    }

    /// The caller drops what comes back when the mutex is free again.
    #[must_use]
    pub(super) fn remove(&mut self, id: u64) -> Option<Kept> {
        let mut kept = self.kept.remove(&id)?;
        self.agenda.forget(id, &mut kept, self.kept.is_empty());
        if let Renewing::Due(_, key) = kept.renewal {
            self.due.remove(&(key, id));
        }
        Some(kept)
    }

    /// Takes out whatever was lost, or has come to the end of its `min_hold`, and makes due what is to be renewed now: with
    /// everything that would be soon, so that the renewals of one client fall together.
    pub(super) fn collect_due(&mut self, now: Moment) -> Vec<(Kept, Loss)> {
        let (mut ended, mut due) = (Vec::new(), Vec::new());
        while let Some(id) = self.agenda.pop(now) {
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            kept.at = NEVER;
            let (seen, renewal) = (kept.state.look(), kept.renewal);
            let released = (kept.release_at <= now).then_some(Loss::Released);
            if let Some(loss) = seen.loss_by(now).or(released) {
                ended.extend(self.remove(id).map(|kept| (kept, loss)));
                continue;
            }
            if self.agenda.enter(id, kept, &seen) > now {
                continue;
            }
            self.agenda.leave(id, kept);
            match renewal {
                Renewing::At(at) => {
                    self.width.planned(at, now, seen.ttl);
                    due.push((kept.make_due(now), id));
                }
                // Nothing moves.
                Renewing::Due(since, key) => {
                    self.due.remove(&(key, id));
                    self.due.insert((AT_ONCE, id));
                    kept.renewal = Renewing::Due(since, AT_ONCE);
                }
            }
        }
        if !due.is_empty() {
            let Registry { kept, agenda, .. } = self;
            agenda.take_joining(now, |id| {
                let Some(kept) = kept.get_mut(&id) else { return true };
                let joins = kept.joins <= now;
                if joins {
                    kept.at = NEVER;
                    due.push((kept.make_due(now), id));
                }
                joins
            });
            self.newly_due.extend(due.iter().map(|(_, id)| *id));
            self.due.append(&mut due.into_iter().collect());
        }
        ended
    }

    /// What goes out now, in requests of at most so many: of those that may wait only `room` requests. The next renewals are
    /// `early` by this share, another each time: so that those of many clients do not fall together, because they began
    /// together.
    pub(super) fn take_batches(&mut self, now: Moment, early: f64, most: usize, room: usize) -> Vec<Batch> {
        let mut batches = Vec::new();
        while let Some((key, _)) = self.due.first() {
            if *key > AT_ONCE && batches.len() >= room {
                break;
            }
            let size = most.clamp(1, self.due.len());
            let mut batch = Batch { leases: Vec::with_capacity(size), items: Vec::with_capacity(size) };
            while batch.items.len() < size
                && let Some((_, id)) = self.due.pop_first()
            {
                self.take_item(id, now, early, &mut batch);
            }
            if !batch.items.is_empty() {
                self.width.sent(now);
                batches.push(batch);
            }
        }
        // What is left comes up next when it has waited for too long.
        let newly_due = std::mem::take(&mut self.newly_due);
        for id in newly_due.into_iter().filter(|_| !self.due.is_empty()) {
            if let Some(kept) = self.kept.get_mut(&id) {
                self.agenda.wait(id, kept);
            }
        }
        batches
    }

    fn take_item(&mut self, id: u64, now: Moment, early: f64, batch: &mut Batch) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        // After a loss no renewal is sent; one that was lost just now comes up again at once, to be given up.
        let (seen, lost, lease) = kept.state.to_renew(now);
        let again = match kept.in_flight {
            _ if lost => Duration::ZERO,
            0 => seen.renew_every.mul_f64(1.0 - early),
            _ => seen.ttl / 6,
        };
        let due_since = if let Renewing::Due(since, _) = kept.renewal { since } else { now };
        (kept.renewal, kept.sent) = (Renewing::At(now + again), now);
        if let Some(lease) = lease {
            kept.in_flight += 1;
            let (state, token, ttl) = (kept.state.clone(), lease.token, seen.ttl);
            batch.items.push(BatchItem { state, token, ttl, due_since });
            batch.leases.push(lease);
        }
        self.agenda.enter(id, kept, &seen);
    }

    /// A request that asked for this one, as it was planned, was answered, or never will be.
    pub(super) fn answered(&mut self, id: u64, by: &Planned, now: Moment, seen: &Seen, renewed: bool) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        kept.in_flight = kept.in_flight.saturating_sub(1);
        let lost = seen.loss_by(now).is_some();
        // An older request than the latest leaves it to that one when to ask again.
        let latest = renewed && kept.sent <= by.at;
        // If all is as planned, it comes up when it was to.
        let next = by.at + seen.renew_every.mul_f64(1.0 - by.early);
        kept.renewal = match kept.renewal {
            Renewing::At(_) if lost => Renewing::At(now),
            Renewing::At(_) if latest => Renewing::At(next),
            Renewing::At(at) if !renewed => Renewing::At(at.min(now + seen.ttl / 6)),
            Renewing::Due(_, key) if latest => {
                self.due.remove(&(key, id));
                Renewing::At(next)
            }
            as_it_is => as_it_is,
        };
        self.agenda.enter(id, kept, seen);
    }

    /// It has not been answered for so long that another is sent soon.
    pub(super) fn overdue(&mut self, id: u64, now: Moment) {
        let Some(kept) = self.kept.get(&id) else { return };
        self.renew_by(id, now + kept.state.ttl() / 6);
    }

    /// It is renewed then at the latest.
    fn renew_by(&mut self, id: u64, latest: Moment) {
        if let Some(Kept { renewal: Renewing::At(at), .. }) = self.kept.get_mut(&id) {
            *at = latest.min(*at);
        }
        self.schedule(id);
    }

    /// Every hold is due, also what is in flight: the store has a new connection, and what is under way on the old one may be late; or
    /// its server goes by other terms.
    pub(super) fn renew_holds_now(&mut self, now: Moment) {
        self.width.begin_anew(now);
        let holds: Vec<u64> = self.kept.iter().filter(|(_, kept)| kept.is_hold).map(|(id, _)| *id).collect();
        holds.into_iter().for_each(|id| self.renew_by(id, now));
    }

    /// Whether to warn that renewals are slow: not again within a lease.
    pub(super) fn warns(&mut self, now: Moment, ttl: Duration) -> bool {
        let warns = self.warned_until.is_none_or(|until| until <= now);
        if warns {
            self.warned_until = Some(now + ttl);
        }
        warns
    }

    /// Another task runs from now on and does all the work anew. What is in flight may still be answered to the former one.
    pub(super) fn begun_anew(&mut self) {
        (self.next_wake, self.called) = (None, None);
        self.works.begin_anew();
    }

    /// The task that ran has gone.
    pub(super) fn orphaned(&mut self) {
        self.runner = None;
        self.begun_anew();
    }

    /// What was in flight has gone with its runtime, and is asked for again.
    pub(super) fn crashed(&mut self, now: Moment) {
        let unanswered = |(id, kept): (&u64, &mut Kept)| (*id, std::mem::take(&mut kept.in_flight) > 0);
        let kept: Vec<_> = self.kept.iter_mut().map(unanswered).collect();
        for (id, unanswered) in kept {
            // The others, too: the runtime may have gone before it heard that an end comes earlier.
            if unanswered {
                self.renew_by(id, now);
            } else {
                self.schedule(id);
            }
        }
    }

    pub(super) fn states(&self) -> Vec<Arc<ClaimState>> {
        self.kept.values().map(|kept| kept.state.clone()).collect()
    }
}
