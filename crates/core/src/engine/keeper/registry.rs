//! The claims that the keeper keeps: when each needs attention, which renewals wait for a request,
//! and the work for the background. Nothing is notified or dropped here: the keeper's mutex is
//! locked.
//!
//! All that must survive a runtime is here, and nothing in the task that runs: when a runtime ends,
//! another task goes on with the same registry. Therefore each entry says when something is due,
//! and not which task does it.
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
use super::renewal_window::RenewalWindow;
use super::work::Works;
use crate::backend::clock::Moment;
use crate::backend::loss::Loss;
use crate::engine::claim_state::{ClaimState, RenewalFacts};
use crate::support::own_keys::OwnMap;
use crate::support::sync::Notify;

/// The delay after which the task looks again once a claim was kept, if nothing comes up before.
/// After that it sleeps until it is called.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The key of a renewal that waits no longer for others.
const AT_ONCE: Moment = Moment::from_nanos(0);

/// The moment when a request was planned, and the share by which its leases are renewed earlier the
/// next time.
#[derive(Clone, Copy)]
pub(super) struct Planned {
    pub(super) at: Moment,
    pub(super) early: f64,
}

/// Renewals stay unanswered.
#[derive(Clone, Copy)]
pub(super) struct Outage {
    pub(super) since: Moment,
    /// The number of requests that were unanswered.
    pub(super) requests: usize,
}

/// The report about an outage.
pub(super) enum News {
    /// It begins: this number of claims has an unanswered renewal.
    Begins(usize),
    Ends(Outage),
}

/// The reason why a claim is no longer kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Lost(Loss),
    /// Its `min_hold` is over.
    Released,
    /// It was granted, and the grant was not taken in time.
    Untaken,
}

/// The kept claims by their numbers. The ids of claims would make the indexes twice as large.
#[derive(Default)]
pub(super) struct Registry {
    pub(super) kept: OwnMap<u64, Kept>,
    /// The number of the latest one.
    latest: u64,
    /// The moments when they need attention, except those that are being planned.
    pub(super) agenda: Agenda,
    /// Renewals that wait for a request, ordered by the moment when a third of the lease is left.
    due: BTreeSet<(Moment, u64)>,
    /// The renewals that became due in this plan. They return to the agenda only if the plan does
    /// not send them.
    newly_due: Vec<u64>,
    pub(super) width: RenewalWindow,
    pub(super) works: Works,
    /// The moment until which the task sleeps; `watching` is true if it watches over holds
    /// meanwhile.
    pub(super) next_wake: Option<Moment>,
    pub(super) watching: bool,
    /// The shortest delay until a renewal among the claims that were kept since the latest plan,
    /// also if they are not kept any more.
    pub(super) recent: Option<Duration>,
    /// Wakes the task that runs.
    pub(super) runner: Option<Arc<Notify>>,
    /// The moment since which it, or the tasks that stand by, have been woken and have not looked.
    pub(super) called: Option<Moment>,
    pub(super) no_more_work: bool,
    /// The number of kept claims with an unanswered renewal; `outage` is set while there are any.
    unanswered: usize,
    outage: Option<Outage>,
    /// The moment until which no further warning about slow renewals is given.
    pub(super) warned_until: Option<Moment>,
}

impl Registry {
    pub(super) fn is_drained(&self) -> bool {
        self.works.is_empty() && self.kept.is_empty()
    }

    /// Returns whether the keeper has nothing left to do after the client has gone. Holds that are
    /// still kept then are within their `min_hold`.
    pub(super) fn has_stopped(&self) -> bool {
        self.no_more_work && self.is_drained()
    }

    /// Returns whether a running task would have nothing to do. A claim that was kept a moment ago
    /// is a reason to run: more are likely to come, and then no task must be woken for them.
    pub(super) fn is_idle(&self) -> bool {
        self.is_drained() && (self.no_more_work || self.recent.is_none())
    }

    /// Returns whether a task must be woken for an entry that comes up at `at`: no task runs, the
    /// running one would sleep past it, or a hold began during a coarse sleep. A task that was
    /// woken and has not looked yet need not be woken again.
    pub(super) fn must_wake(&self, at: Moment) -> bool {
        let unwatched = self.agenda.holds > 0 && !self.watching;
        let sleeps_past = unwatched || self.next_wake.is_none_or(|planned| at < planned);
        self.called.is_none() && (self.runner.is_none() || sleeps_past)
    }

    /// Keeps this claim from now on, and returns the moment when it comes up. A waiting claim that
    /// is granted now may be renewed sooner, because less of its lease may be left than its place
    /// had.
    pub(super) fn keep(
        &mut self,
        state: &Arc<ClaimState>,
        now: Moment,
        renew_at: Moment,
    ) -> Moment {
        let Registry {
            kept,
            latest,
            recent,
            ..
        } = self;
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

    /// Plans the sleep of the task. If anything was kept since the latest plan, it looks once more
    /// before further claims of that kind could come up. A caller that takes and gives back locks
    /// without a pause then need not wake it.
    pub(super) fn plan_sleep(&mut self, now: Moment) {
        let recent = self.recent.take();
        let again = recent.map(|soon| now + soon.min(LOOK_AGAIN));
        self.called = None;
        self.next_wake = self.agenda.first().into_iter().chain(again).min();
        self.watching = self.agenda.holds > 0 || recent.is_some();
    }

    /// Enters a kept claim in the agenda, and returns the moment when it comes up.
    pub(super) fn schedule(&mut self, id: u64) -> Moment {
        let Some(kept) = self.kept.get_mut(&id) else {
            return NEVER;
        };
        let seen = kept.state.look();
        self.agenda.enter(id, kept, &seen)
    }

    /// The caller drops what comes back when the mutex is free again.
    #[must_use]
    pub(super) fn remove(&mut self, id: u64) -> Option<Kept> {
        let mut kept = self.kept.remove(&id)?;
        self.unanswered -= usize::from(kept.unanswered);
        if self.unanswered == 0 {
            self.outage = None;
        }
        self.agenda.forget(id, &mut kept, self.kept.is_empty());
        if let Renewing::Due(_, key) = kept.renewal {
            self.due.remove(&(key, id));
        }
        Some(kept)
    }

    /// Removes the claims that were lost, have reached the end of their `min_hold`, or were granted
    /// and not taken in time, and returns them. Makes due the renewals that are due now, together
    /// with those that would be due soon, so that the renewals of one client fall together.
    pub(super) fn collect_due(&mut self, now: Moment) -> Vec<(Kept, Ended)> {
        let mut ended = Vec::new();
        let mut due = Vec::new();
        while let Some(id) = self.agenda.pop(now) {
            let Some(kept) = self.kept.get_mut(&id) else {
                continue;
            };
            kept.at = NEVER;
            let seen = kept.state.look();
            let renewal = kept.renewal;
            let untaken = seen.given_back_at().is_some_and(|at| at <= now);
            let end = match seen.loss_by(now).and_then(|_| kept.state.ended_by(now)) {
                Some(loss) => Some(Ended::Lost(loss)),
                None if kept.release_at <= now => Some(Ended::Released),
                None if untaken && kept.state.give_back(now) => Some(Ended::Untaken),
                None => None,
            };
            if let Some(end) = end {
                ended.extend(self.remove(id).map(|kept| (kept, end)));
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
                // The store answers no renewal, so this one waits no longer.
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
                let Some(kept) = kept.get_mut(&id) else {
                    return true;
                };
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

    /// Returns the requests to send now, each of at most `most` leases. Renewals that may wait go
    /// out in at most `room` requests; the others go out in any case. The next renewals are planned
    /// `early` by this share, which differs each time, so that clients that began together do not
    /// renew together.
    pub(super) fn take_batches(
        &mut self,
        now: Moment,
        early: f64,
        most: usize,
        room: usize,
    ) -> Vec<Batch> {
        let mut batches = Vec::new();
        while let Some((key, _)) = self.due.first() {
            if *key > AT_ONCE && batches.len() >= room {
                break;
            }
            let size = most.clamp(1, self.due.len());
            let mut batch = Batch {
                leases: Vec::with_capacity(size),
                items: Vec::with_capacity(size),
            };
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
        // The renewals that are left come up again when they have waited for too long.
        let newly_due = std::mem::take(&mut self.newly_due);
        for id in newly_due.into_iter().filter(|_| !self.due.is_empty()) {
            if let Some(kept) = self.kept.get_mut(&id) {
                self.agenda.wait(id, kept);
            }
        }
        batches
    }

    fn take_item(&mut self, id: u64, now: Moment, early: f64, batch: &mut Batch) {
        let Some(kept) = self.kept.get_mut(&id) else {
            return;
        };
        // After a loss no renewal is sent. A claim that was lost just now comes up again at once,
        // to be removed.
        let (seen, lost, lease) = kept.state.to_renew(now);
        let again = match kept.in_flight {
            _ if lost => Duration::ZERO,
            0 => seen.renew_every.mul_f64(1.0 - early),
            _ => seen.ttl / 6,
        };
        let due_since = if let Renewing::Due(since, _) = kept.renewal {
            since
        } else {
            now
        };
        (kept.renewal, kept.sent) = (Renewing::At(now + again), now);
        if let Some(lease) = lease {
            kept.in_flight += 1;
            let state = kept.state.clone();
            let token = lease.token;
            let ttl = seen.ttl;
            batch.items.push(BatchItem {
                state,
                token,
                ttl,
                due_since,
            });
            batch.leases.push(lease);
        }
        self.agenda.enter(id, kept, &seen);
    }

    /// Processes the end of a request that renews this claim: it was answered, or never will be.
    /// `by` is the plan of that request.
    pub(super) fn answered(
        &mut self,
        id: u64,
        by: &Planned,
        now: Moment,
        seen: &RenewalFacts,
        renewed: bool,
    ) {
        let Some(kept) = self.kept.get_mut(&id) else {
            return;
        };
        kept.in_flight = kept.in_flight.saturating_sub(1);
        self.unanswered -= usize::from(kept.unanswered);
        self.unanswered += usize::from(!renewed);
        kept.unanswered = !renewed;
        let lost = seen.loss_by(now).is_some();
        // The answer to an older request than the latest does not set the time of the next one.
        let latest = renewed && kept.sent <= by.at;
        // If all goes as planned, the next renewal comes at the planned time.
        let next = by.at + seen.renew_every.mul_f64(1.0 - by.early);
        // A hold is renewed sooner if its answer counts from long before.
        let next = match seen.ends_at() {
            Some(_) => next.min(now + seen.renew_in(now).max(seen.ttl / 24)),
            None => next,
        };
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

    /// Processes a late request: another one for this claim is sent soon.
    pub(super) fn overdue(&mut self, id: u64, now: Moment) {
        let Some(kept) = self.kept.get_mut(&id) else {
            return;
        };
        self.unanswered += usize::from(!std::mem::replace(&mut kept.unanswered, true));
        let at = now + kept.state.ttl() / 6;
        self.renew_by(id, at);
    }

    /// Renews the claim at `latest` at the latest.
    fn renew_by(&mut self, id: u64, latest: Moment) {
        if let Some(Kept {
            renewal: Renewing::At(at),
            ..
        }) = self.kept.get_mut(&id)
        {
            *at = latest.min(*at);
        }
        self.schedule(id);
    }

    /// Makes every hold due, also those with a request in flight. The store has a new connection,
    /// and requests on the old one may be late; or its server has changed its terms.
    pub(super) fn renew_holds_now(&mut self, now: Moment) {
        self.width.begin_anew(now);
        let holds: Vec<u64> = self
            .kept
            .iter()
            .filter(|(_, kept)| kept.is_hold)
            .map(|(id, _)| *id)
            .collect();
        holds.into_iter().for_each(|id| self.renew_by(id, now));
    }

    /// Returns the report after a request was processed, if there is one. An outage lasts as long
    /// as any claim has an unanswered renewal.
    pub(super) fn news(&mut self, now: Moment) -> Option<News> {
        if self.unanswered == 0 {
            return self.outage.take().map(News::Ends);
        }
        if let Some(outage) = &mut self.outage {
            outage.requests += 1;
            return None;
        }
        self.outage = Some(Outage {
            since: now,
            requests: 1,
        });
        Some(News::Begins(self.unanswered))
    }

    /// Returns whether to warn that renewals are slow: at most once per lease.
    pub(super) fn warns(&mut self, now: Moment, ttl: Duration) -> bool {
        let warns = self.warned_until.is_none_or(|until| until <= now);
        if warns {
            self.warned_until = Some(now + ttl);
        }
        warns
    }

    /// Prepares the registry for another task, which does all the work anew. Requests in flight may
    /// still be answered to the former task.
    pub(super) fn begun_anew(&mut self) {
        (self.next_wake, self.called) = (None, None);
        self.works.begin_anew();
    }

    /// The task that ran is gone.
    pub(super) fn orphaned(&mut self) {
        self.runner = None;
        self.begun_anew();
    }

    /// Renews again the claims whose requests were lost with their runtime.
    pub(super) fn crashed(&mut self, now: Moment) {
        let unanswered =
            |(id, kept): (&u64, &mut Kept)| (*id, std::mem::take(&mut kept.in_flight) > 0);
        let kept: Vec<_> = self.kept.iter_mut().map(unanswered).collect();
        for (id, unanswered) in kept {
            // The other claims are scheduled too: the runtime may have gone before it was told of
            // an earlier end.
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
