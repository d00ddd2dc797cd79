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

use tokio::sync::Notify;

use super::kept::{BatchItem, Kept, Renewing};
use super::work::Work;
use crate::engine::claim_state::ClaimState;
use crate::seam::claim::ClaimId;
use crate::seam::clock::Moment;
use crate::seam::loss::Loss;
use crate::support::own_keys::OwnMap;

/// How soon the task looks again after something was kept, if nothing comes up before: then it wakes no more until it is
/// called.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The key of what waits no longer.
const AT_ONCE: Moment = Moment::from_nanos(0);

#[derive(Default)]
pub(super) struct Registry {
    pub(super) kept: OwnMap<ClaimId, Kept>,
    /// When something must be done about which of them; one entry each.
    pub(super) agenda: BTreeSet<(Moment, ClaimId)>,
    /// From when on each may be renewed together with others.
    joining: BTreeSet<(Moment, ClaimId)>,
    /// Renewals that wait for a request, by when a third of their leases is left.
    due: BTreeSet<(Moment, ClaimId)>,
    /// When the store last answered a request that renews.
    pub(super) moved: Option<Moment>,
    /// How many of them are holds, whose end is to be seen in time.
    pub(super) holds: usize,
    works: OwnMap<u64, Work>,
    next_work: u64,
    /// Those of them that no task does yet.
    queued: Vec<u64>,
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
        let unwatched = self.holds > 0 && !self.watching;
        let sleeps_past = unwatched || self.next_wake.is_none_or(|planned| at < planned);
        self.called.is_none() && (self.runner.is_none() || sleeps_past)
    }

    /// Keeps this one from now on, and says when it comes up. One that is kept already stays as it is.
    pub(super) fn keep(&mut self, state: &Arc<ClaimState>, now: Moment, renew_at: Moment) -> Moment {
        let id = state.claim.id;
        let recent = &mut self.recent;
        self.kept.entry(id).or_insert_with(|| {
            let soon = renew_at.since(now);
            *recent = Some(recent.map_or(soon, |recent| recent.min(soon)));
            Kept::new(state.clone(), renew_at)
        });
        self.schedule(id)
    }

    /// Until when the task sleeps after this plan. If anything was kept since the latest one it looks once more, before more of
    /// the same kind could come up: so a task that takes and gives back locks without a pause need not wake it.
    pub(super) fn plan_sleep(&mut self, now: Moment) {
        let recent = self.recent.take();
        let again = recent.map(|soon| now + soon.min(LOOK_AGAIN));
        self.called = None;
        self.next_wake = self.agenda.first().map(|(at, _)| *at).into_iter().chain(again).min();
        self.watching = self.holds > 0 || recent.is_some();
    }

    /// Enters a kept one where it belongs, and says when it comes up.
    pub(super) fn schedule(&mut self, id: ClaimId) -> Moment {
        let never = Moment::from_nanos(u64::MAX);
        let Some(kept) = self.kept.get_mut(&id) else { return never };
        let ends = kept.state.ends_at();
        if ends.is_some() && !std::mem::replace(&mut kept.is_hold, true) {
            self.holds += 1;
        }
        let (asks, joins) = match kept.renewal {
            // What is to lapse soon is renewed only if the store does not answer that.
            Renewing::At(at) if kept.lapsing => (at.max(kept.third_left_at(at)), None),
            Renewing::At(at) if kept.in_flight > 0 => (at, None),
            Renewing::At(at) => (at, Some(at.before(kept.state.ttl() / 6))),
            // If nothing moves it waits no longer for others.
            Renewing::Due(_, at) => (self.moved.map_or(at, |moved| at.max(moved + kept.state.ttl() / 6)), None),
        };
        let at = [kept.release_at, ends].into_iter().flatten().fold(asks, Moment::min);
        replace(&mut self.agenda, &mut kept.at, Some(at), id);
        replace(&mut self.joining, &mut kept.joins, joins, id);
        at
    }

    /// The caller drops what comes back when the mutex is free again.
    #[must_use]
    pub(super) fn remove(&mut self, id: ClaimId) -> Option<Kept> {
        let mut kept = self.kept.remove(&id)?;
        self.holds -= usize::from(kept.is_hold);
        replace(&mut self.agenda, &mut kept.at, None, id);
        replace(&mut self.joining, &mut kept.joins, None, id);
        if let Renewing::Due(_, key) = kept.renewal {
            self.due.remove(&(key, id));
        }
        Some(kept)
    }

    /// Takes out whatever was lost, or has come to the end of its `min_hold`, and makes due what is to be renewed now: with
    /// everything that would be soon, so that the renewals of one client fall together.
    pub(super) fn collect_due(&mut self, now: Moment) -> Vec<(Kept, Loss)> {
        let mut ended = Vec::new();
        let mut any_due = false;
        while let Some(&(at, id)) = self.agenda.first().filter(|(at, _)| *at <= now) {
            self.agenda.remove(&(at, id));
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            kept.at = None;
            let released = kept.release_at.filter(|at| *at <= now).map(|_| Loss::Released);
            if let Some(loss) = kept.state.loss_by(now).or(released) {
                ended.extend(self.remove(id).map(|kept| (kept, loss)));
                continue;
            }
            let renewal = kept.renewal;
            match renewal {
                _ if self.schedule(id) > now => {}
                Renewing::At(_) => {
                    any_due = true;
                    self.make_due(id, now, None);
                }
                Renewing::Due(..) => self.make_due(id, now, Some(AT_ONCE)),
            }
        }
        while let Some(&(_, id)) = self.joining.first().filter(|(from, _)| any_due && *from <= now) {
            self.make_due(id, now, None);
        }
        ended
    }

    /// It waits for a request from now on; `key`: not by when a third of its lease is left.
    fn make_due(&mut self, id: ClaimId, now: Moment, key: Option<Moment>) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let since = match kept.renewal {
            Renewing::At(at) => at.min(now),
            Renewing::Due(since, old) => {
                self.due.remove(&(old, id));
                since
            }
        };
        let key = key.unwrap_or_else(|| kept.third_left_at(since));
        kept.renewal = Renewing::Due(since, key);
        self.due.insert((key, id));
        // It comes up next when it has waited for too long.
        replace(&mut self.agenda, &mut kept.at, None, id);
        if key != AT_ONCE {
            self.schedule(id);
        }
    }

    /// What goes out now, in requests of at most so many: of those that may wait only `room` requests. The next renewals are
    /// `early` by this share, another each time: so that those of many clients do not fall together, because they began
    /// together.
    pub(super) fn take_batches(&mut self, now: Moment, early: f64, most: usize, room: usize) -> Vec<Vec<BatchItem>> {
        let mut batches = Vec::new();
        while let Some((key, _)) = self.due.first() {
            if *key > AT_ONCE && batches.len() >= room {
                break;
            }
            let mut batch = Vec::new();
            while batch.len() < most.max(1)
                && let Some((_, id)) = self.due.pop_first()
            {
                batch.extend(self.take_item(id, now, early));
            }
            if !batch.is_empty() {
                batches.push(batch);
            }
        }
        batches
    }

    fn take_item(&mut self, id: ClaimId, now: Moment, early: f64) -> Option<BatchItem> {
        let kept = self.kept.get_mut(&id)?;
        let state = kept.state.clone();
        let due_since = if let Renewing::Due(since, _) = kept.renewal { since } else { now };
        // After a loss no renewal is sent; one that was lost just now comes up again at once, to be given up.
        let lost = state.loss_by(now).is_some();
        let lease = state.lease().filter(|_| !lost);
        let again = match kept.in_flight {
            _ if lost => Duration::ZERO,
            0 => state.renew_every().mul_f64(1.0 - early),
            _ => state.ttl() / 6,
        };
        kept.renewal = Renewing::At(now + again);
        kept.in_flight += usize::from(lease.is_some());
        kept.sent = Some(now);
        self.schedule(id);
        lease.map(|lease| BatchItem { state, lease, due_since })
    }

    /// A request that asked for this one was answered, or never will be.
    pub(super) fn answered(&mut self, id: ClaimId, sent: Moment, now: Moment, early: f64, renewed: bool) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        kept.in_flight = kept.in_flight.saturating_sub(1);
        let (lost, ttl) = (kept.state.loss_by(now).is_some(), kept.state.ttl());
        // An older request than the latest leaves it to that one when to ask again.
        let latest = renewed && kept.sent.is_none_or(|latest| latest <= sent);
        let next = sent + kept.state.renew_every().mul_f64(1.0 - early);
        kept.renewal = match kept.renewal {
            Renewing::At(_) if lost => Renewing::At(now),
            Renewing::At(_) if latest => Renewing::At(next),
            Renewing::At(at) if !renewed => Renewing::At(at.min(now + ttl / 6)),
            Renewing::Due(_, key) if latest => {
                self.due.remove(&(key, id));
                Renewing::At(next)
            }
            as_it_is => as_it_is,
        };
        self.schedule(id);
    }

    /// It has not been answered for so long that another is sent soon.
    pub(super) fn overdue(&mut self, id: ClaimId, now: Moment) {
        let Some(kept) = self.kept.get(&id) else { return };
        self.renew_by(id, now + kept.state.ttl() / 6);
    }

    /// It is renewed then at the latest.
    fn renew_by(&mut self, id: ClaimId, latest: Moment) {
        if let Some(Kept { renewal: Renewing::At(at), .. }) = self.kept.get_mut(&id) {
            *at = latest.min(*at);
        }
        self.schedule(id);
    }

    /// Every hold is due, also what is in flight.
    pub(super) fn renew_holds_now(&mut self, now: Moment) {
        let holds: Vec<ClaimId> = self.kept.iter().filter(|(_, kept)| kept.is_hold).map(|(id, _)| *id).collect();
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

    pub(super) fn queue(&mut self, work: Work) {
        self.works.insert(self.next_work, work);
        self.queued.push(self.next_work);
        self.next_work += 1;
    }

    /// The work that no task does yet.
    pub(super) fn take_work(&mut self) -> Vec<(u64, Work)> {
        let begin = |id: u64| self.works.get_mut(&id).map(|work| (id, work.begin()));
        std::mem::take(&mut self.queued).into_iter().filter_map(begin).collect()
    }

    /// The caller drops what comes back when the mutex is free again.
    #[must_use]
    pub(super) fn finish(&mut self, id: u64) -> Option<Work> {
        self.works.remove(&id)
    }

    pub(super) fn is_run_by(&self, task: &Arc<Notify>) -> bool {
        self.runner.as_ref().is_some_and(|runner| Arc::ptr_eq(runner, task))
    }

    /// When the running task should have planned long ago.
    pub(super) fn stalls_at(&self, stall: Duration) -> Option<Moment> {
        let first = [self.next_wake, self.called].into_iter().flatten().min();
        first.filter(|_| self.runner.is_some()).map(|at| at + stall)
    }

    /// Another task runs from now on and does all the work anew. What is in flight may still be answered to the former one.
    pub(super) fn begun_anew(&mut self) {
        (self.next_wake, self.called) = (None, None);
        self.queued = self.works.keys().copied().collect();
    }

    /// The task that ran has gone.
    pub(super) fn orphaned(&mut self) {
        self.runner = None;
        self.begun_anew();
    }

    /// What was in flight has gone with its runtime, and is asked for again.
    pub(super) fn crashed(&mut self, now: Moment) {
        let unanswered = |(id, kept): (&ClaimId, &mut Kept)| (*id, std::mem::take(&mut kept.in_flight) > 0);
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

/// Moves an entry of an index.
fn replace(index: &mut BTreeSet<(Moment, ClaimId)>, entry: &mut Option<Moment>, to: Option<Moment>, id: ClaimId) {
    if *entry == to {
        return;
    }
    if let Some(old) = std::mem::replace(entry, to) {
        index.remove(&(old, id));
    }
    if let Some(new) = to {
        index.insert((new, id));
    }
}
