//! The keeper: one task per store client that renews everything in batches, says when a hold has run out, and owns the
//! background releases.

use std::collections::{BTreeSet, HashMap};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use crate::backend::Backend;
use crate::backoff::Backoff;
use crate::bells::Bells;
use crate::claim::{Claim, ClaimId, Place, Tenure};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::events;
use crate::grant::{Claimed, Renewal};
use crate::loss::Loss;
use crate::standing::Standing;
use crate::sync::locked;

pub(crate) struct Keeper {
    clock: Clock,
    bells: Bells,
    registry: Mutex<Registry>,
    wake: Notify,
    quiet: Notify,
}

#[derive(Default)]
struct Registry {
    kept: HashMap<ClaimId, Kept>,
    /// When something must be done about which of them; one entry each.
    agenda: BTreeSet<(Moment, ClaimId)>,
    /// How many of them are holds, whose end is to be seen in time.
    holds: usize,
    queued: Vec<Release>,
    releasing: usize,
    /// Until when the task sleeps, and whether it watches over holds meanwhile.
    next_wake: Option<Moment>,
    watching: bool,
    running: bool,
    no_more_work: bool,
}

struct Kept {
    standing: Arc<Standing>,
    is_hold: bool,
    /// `None` while a renewal is in flight.
    renew_at: Option<Moment>,
    /// The end of `min_hold`, for a hold whose guard has gone.
    release_at: Option<Moment>,
    /// Its entry in the agenda.
    at: Option<Moment>,
}

/// A claim to be withdrawn.
pub(crate) struct Release {
    pub(crate) claim: Arc<Claim>,
    pub(crate) place: Option<Place>,
    /// A request of it that is still unanswered: a release never overtakes its own claim.
    pub(crate) flight: Option<Flight>,
}

pub(crate) type Flight = Pin<Box<dyn Future<Output = Result<Claimed>> + Send>>;

impl Release {
    pub(crate) fn of(standing: &Standing) -> Release {
        Release { claim: standing.claim.clone(), place: standing.place(), flight: None }
    }
}

impl Keeper {
    pub(crate) fn new(clock: Clock, bells: Bells) -> Keeper {
        Keeper { clock, bells, registry: Mutex::default(), wake: Notify::new(), quiet: Notify::new() }
    }

    /// Renews `standing` a third of its lease from now; one that is kept already stays in its batch. Says whether the keeper
    /// must be woken.
    pub(crate) fn keep(&self, standing: &Arc<Standing>) -> bool {
        let renew_at = Some(self.clock.now() + standing.ttl() / 3);
        let fresh = || Kept { standing: standing.clone(), is_hold: false, renew_at, release_at: None, at: None };
        let mut registry = locked(&self.registry);
        let id = standing.claim.id;
        registry.kept.entry(id).or_insert_with(fresh);
        let at = registry.schedule(id);
        let unwatched = registry.holds > 0 && !registry.watching;
        !registry.running || unwatched || registry.next_wake.is_none_or(|planned| at < planned)
    }

    /// Looks again at when `standing` comes up: its end has changed.
    pub(crate) fn reschedule(&self, standing: &Standing) {
        locked(&self.registry).schedule(standing.claim.id);
        self.wake.notify_one();
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        locked(&self.registry).remove(id);
    }

    pub(crate) fn release_at(&self, standing: &Arc<Standing>, at: Moment) {
        self.keep(standing);
        let mut registry = locked(&self.registry);
        if let Some(kept) = registry.kept.get_mut(&standing.claim.id) {
            kept.release_at = Some(at);
        }
        registry.schedule(standing.claim.id);
    }

    pub(crate) fn queue(&self, release: Release) {
        let mut registry = locked(&self.registry);
        registry.releasing += 1;
        registry.queued.push(release);
    }

    /// Wakes the keeper; the answer is `Some` if its task must be spawned.
    pub(crate) fn start(self: &Arc<Self>) -> Option<Running> {
        let was_running = std::mem::replace(&mut locked(&self.registry).running, true);
        self.wake.notify_one();
        (!was_running).then(|| Running(self.clone()))
    }

    pub(crate) fn is_running(&self) -> bool {
        locked(&self.registry).running
    }

    pub(crate) fn no_more_work(&self) {
        locked(&self.registry).no_more_work = true;
        self.wake.notify_one();
    }

    /// Completes when no background release is left.
    pub(crate) async fn drained(&self) {
        loop {
            let quiet = self.quiet.notified();
            if locked(&self.registry).releasing == 0 {
                return;
            }
            quiet.await;
        }
    }

    /// Completes when the task has ended.
    pub(crate) async fn ended(&self) {
        loop {
            let quiet = self.quiet.notified();
            if !self.is_running() {
                return;
            }
            quiet.await;
        }
    }

    /// What is to be done now, and when to look again.
    fn plan(&self) -> Plan {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        let mut due = false;
        let mut given_up = Vec::new();
        while let Some(&(at, id)) = registry.agenda.first().filter(|(at, _)| *at <= now) {
            registry.agenda.remove(&(at, id));
            let Some(kept) = registry.kept.get_mut(&id) else { continue };
            kept.at = None;
            let loss = kept.standing.loss();
            if let Some(loss) = loss.or(kept.release_at.filter(|at| *at <= now).map(|_| Loss::Released)) {
                given_up.push((kept.standing.clone(), loss));
                registry.remove(id);
                self.bells.unlisten(id);
            } else {
                due |= kept.renew_at.is_some_and(|at| at <= now);
                // Whatever is due now goes into the batch below, which plans it anew.
                if kept.renew_at.is_none_or(|at| at > now) {
                    registry.schedule(id);
                }
            }
        }
        let batch = if due { registry.take_batch(now) } else { Vec::new() };
        for (standing, loss) in &given_up {
            if *loss != Loss::Released {
                events::lost(&standing.claim, *loss);
            }
            registry.releasing += 1;
            registry.queued.push(Release::of(standing));
        }
        registry.next_wake = registry.agenda.first().map(|(at, _)| *at);
        registry.watching = registry.holds > 0;
        let plan = Plan {
            batch,
            releases: std::mem::take(&mut registry.queued),
            next: registry.next_wake,
            watching: registry.watching,
            // What is still kept when every guard has gone is within its min_hold.
            stop: registry.no_more_work && registry.releasing == 0 && registry.kept.is_empty(),
        };
        drop(registry);
        given_up.iter().for_each(|(standing, _)| standing.end_turns());
        plan
    }

    /// Takes in what the store answered to a batch.
    fn renewed(&self, batch: &Batch, answer: Result<Vec<Renewal>>) {
        let mut answers = match answer {
            Ok(all) => all.into_iter(),
            Err(e) => {
                if let Some(standing) = batch.standings.first() {
                    events::renewal_unknown(&standing.claim, &e);
                }
                Vec::new().into_iter()
            }
        };
        let now = self.clock.now();
        for standing in &batch.standings {
            let ttl = standing.ttl();
            let mut next = batch.stamp + ttl / 3;
            match answers.next() {
                Some(Renewal::Renewed(validity)) => standing.extend(validity, batch.stamp),
                Some(Renewal::Granted(grant)) => standing.grant(grant, batch.stamp),
                Some(Renewal::Lost(loss)) => standing.lose(loss),
                Some(Renewal::Unknown(e)) => {
                    events::renewal_unknown(&standing.claim, &e);
                    next = now + ttl / 6;
                }
                None => next = now + ttl / 6,
            }
            let mut registry = locked(&self.registry);
            if let Some(kept) = registry.kept.get_mut(&standing.claim.id) {
                kept.renew_at = Some(next);
                registry.schedule(standing.claim.id);
            }
        }
    }

    fn released(&self) {
        let mut registry = locked(&self.registry);
        registry.releasing -= 1;
        if registry.releasing == 0 {
            self.quiet.notify_waiters();
        }
    }
}

struct Plan {
    batch: Vec<Arc<Standing>>,
    releases: Vec<Release>,
    next: Option<Moment>,
    watching: bool,
    stop: bool,
}

impl Registry {
    /// Enters a kept one into the agenda and says when it comes up.
    fn schedule(&mut self, id: ClaimId) -> Moment {
        let never = Moment::from_nanos(u64::MAX);
        let Some(kept) = self.kept.get_mut(&id) else { return never };
        let ends = kept.standing.ends();
        if ends.is_some() && !std::mem::replace(&mut kept.is_hold, true) {
            self.holds += 1;
        }
        let times = [kept.renew_at, kept.release_at, ends];
        let at = times.into_iter().flatten().min().unwrap_or(never);
        if let Some(old) = kept.at.replace(at) {
            self.agenda.remove(&(old, id));
        }
        self.agenda.insert((at, id));
        at
    }

    fn remove(&mut self, id: ClaimId) {
        let Some(kept) = self.kept.remove(&id) else { return };
        self.holds -= usize::from(kept.is_hold);
        if let Some(at) = kept.at {
            self.agenda.remove(&(at, id));
        }
    }

    /// Everything that is due, and what would be soon: so that the renewals of one client fall together.
    fn take_batch(&mut self, now: Moment) -> Vec<Arc<Standing>> {
        let due = |kept: &Kept| kept.renew_at.is_some_and(|at| at <= now + kept.standing.ttl() / 6);
        // After a loss no renewal is sent.
        let soon = |kept: &Kept| due(kept) && kept.standing.loss().is_none();
        let ids: Vec<ClaimId> = self.kept.iter().filter(|(_, kept)| soon(kept)).map(|(id, _)| *id).collect();
        let mut batch = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(kept) = self.kept.get_mut(&id) {
                kept.renew_at = None;
                batch.push(kept.standing.clone());
            }
            self.schedule(id);
        }
        batch
    }
}

/// The keeper's task runs as long as this lives; a runtime that shuts down drops it.
pub(crate) struct Running(Arc<Keeper>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut registry = locked(&self.0.registry);
        registry.running = false;
        // What was in flight went with the task: renewals are repeated as after any failure, releases are left to the lease.
        registry.releasing = registry.queued.len();
        let now = self.0.clock.now();
        let all: Vec<Arc<Standing>> = registry.kept.values().map(|kept| kept.standing.clone()).collect();
        for standing in &all {
            if let Some(kept) = registry.kept.get_mut(&standing.claim.id) {
                kept.renew_at.get_or_insert(now + standing.ttl() / 6);
            }
            registry.schedule(standing.claim.id);
        }
        drop(registry);
        self.0.quiet.notify_waiters();
        // Whoever listens in another runtime starts the keeper there.
        all.iter().for_each(|standing| standing.changed.notify_waiters());
    }
}

struct Batch {
    standings: Vec<Arc<Standing>>,
    stamp: Moment,
}

pub(crate) async fn run(running: Running, backend: Arc<dyn Backend>) {
    let keeper = &*running.0;
    let mut renewals = FuturesUnordered::new();
    let mut releases = FuturesUnordered::new();
    loop {
        let plan = keeper.plan();
        if !plan.batch.is_empty() {
            renewals.push(renew(backend.clone(), keeper.clock.clone(), plan.batch));
        }
        releases.extend(plan.releases.into_iter().map(|r| withdraw(backend.clone(), keeper.clock.clone(), r)));
        if plan.stop {
            return;
        }
        tokio::select! {
            () = keeper.wake.notified() => {}
            () = until(&keeper.clock, plan.next, plan.watching) => {}
            Some((batch, answer)) = renewals.next() => keeper.renewed(&batch, answer),
            Some(()) = releases.next() => keeper.released(),
        }
    }
}

async fn until(clock: &Clock, at: Option<Moment>, watching: bool) {
    match at {
        Some(at) if watching => clock.sleep_until(at).await,
        Some(at) => clock.nap_until(at).await,
        None => pending().await,
    }
}

/// One attempt to renew a batch, given up in time for another.
async fn renew(backend: Arc<dyn Backend>, clock: Clock, batch: Vec<Arc<Standing>>) -> (Batch, Result<Vec<Renewal>>) {
    let (standings, tenures): (Vec<_>, Vec<Tenure>) =
        batch.into_iter().filter_map(|s| s.tenure().map(|tenure| (s, tenure))).unzip();
    let stamp = clock.now();
    let shortest = standings.iter().map(|s| s.ttl()).min().unwrap_or_default();
    let limit = (shortest / 6).clamp(Duration::from_millis(50), Duration::from_secs(5));
    let answer = tokio::select! {
        biased;
        answer = backend.renew(&tenures) => answer,
        () = clock.sleep(limit) => Err(Error::new(ErrorKind::Ambiguous, "the store did not answer in time")),
    };
    (Batch { standings, stamp }, answer)
}

/// Withdraws a claim, retried until done or the lease has run out.
async fn withdraw(backend: Arc<dyn Backend>, clock: Clock, release: Release) {
    let Release { claim, mut place, flight } = release;
    if let Some(flight) = flight {
        let landed = tokio::select! {
            biased;
            answer = flight => answer.ok(),
            () = clock.sleep(claim.ttl) => None,
        };
        match landed {
            Some(Claimed::Granted(grant)) => place = Some(grant.place),
            Some(Claimed::Waiting(waiting)) => place = Some(waiting.place),
            Some(Claimed::Busy(_)) | None => {}
        }
    }
    let deadline = clock.now() + claim.ttl;
    let mut backoff = Backoff::for_retries(fastrand::Rng::new());
    loop {
        let answer = tokio::select! {
            biased;
            answer = backend.release(&claim, place.as_ref()) => answer,
            () = clock.sleep_until(deadline) => return events::release_given_up(&claim),
        };
        match answer {
            Ok(()) => return events::released(&claim),
            Err(e) if e.kind().is_final() => return events::release_refused(&claim, &e),
            Err(e) => events::release_unknown(&claim, &e),
        }
        if clock.now() >= deadline {
            return events::release_given_up(&claim);
        }
        clock.sleep(backoff.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Mode, Queue};
    use crate::clock::VirtualClock;
    use crate::grant::{Grant, Validity};
    use crate::token::FencingToken;

    const TTL: Duration = Duration::from_secs(9);

    /// Whether the keeper must be woken for this one, and whether it then watches over holds.
    fn keep(keeper: &Keeper, standing: &Arc<Standing>) -> (bool, bool) {
        (keeper.keep(standing), keeper.plan().watching)
    }

    #[test]
    fn holds_are_watched_over_and_places_in_line_are_not() {
        let time = VirtualClock::new();
        let clock = time.clock();
        let keeper = Keeper::new(clock.clone(), Bells::new());
        locked(&keeper.registry).running = true;
        let [one, two, three] = [(); 3].map(|()| {
            let claim = Claim::new("a", Mode::Shared, Queue::Fair, TTL, "me");
            Arc::new(Standing::new(Arc::new(claim), clock.clone()))
        });
        assert_eq!(keep(&keeper, &one), (true, false));
        assert_eq!(keep(&keeper, &two), (false, false));
        for standing in [&one, &two] {
            let validity = Validity::since(clock.now(), TTL);
            standing.grant(Grant::new(Place::new("p"), FencingToken::new(1), validity), clock.now());
            assert!(standing.take(None).is_some());
        }
        assert_eq!(keep(&keeper, &one), (true, true), "a hold began while the keeper slept in naps");
        assert_eq!(keep(&keeper, &two), (false, true));
        assert_eq!(keep(&keeper, &three), (false, true));
        keeper.forget(one.claim.id);
        assert!(keeper.plan().watching);
        time.advance(TTL);
        assert!(!keeper.plan().watching, "the last hold was lost, and one still waits");
        assert_eq!(keep(&keeper, &three), (false, false));
    }
}
