//! The keeper: one task per store client that renews everything in batches, says when a hold has run out, and owns the
//! background releases.

use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::backend::Backend;
use crate::bells::Bells;
use crate::claim::{ClaimId, Tenure};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::events;
use crate::grant::Renewal;
use crate::loss::Loss;
use crate::release::{Release, withdraw};
use crate::standing::Standing;
use crate::sync::locked;
use crate::token::FencingToken;

pub(crate) struct Keeper {
    backend: Arc<dyn Backend>,
    clock: Clock,
    bells: Bells,
    random: Mutex<fastrand::Rng>,
    /// The runtime of the latest use: where to run, also for a guard that is dropped outside of any.
    runtime: Mutex<Option<Handle>>,
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
    /// When to ask for it (again), whatever becomes of a renewal that is in flight.
    renew_at: Moment,
    /// The end of `min_hold`, for a hold whose guard has gone.
    release_at: Option<Moment>,
    /// Its entry in the agenda.
    at: Option<Moment>,
}

impl Keeper {
    pub(crate) fn new(backend: Arc<dyn Backend>, bells: Bells, random: fastrand::Rng) -> Keeper {
        let (clock, random) = (backend.clock(), Mutex::new(random));
        let (runtime, registry) = (Mutex::default(), Mutex::default());
        Keeper { backend, clock, bells, random, runtime, registry, wake: Notify::new(), quiet: Notify::new() }
    }

    pub(crate) fn used_in(&self, runtime: Handle) {
        *locked(&self.runtime) = Some(runtime);
    }

    pub(crate) fn runtime(&self) -> Option<Handle> {
        locked(&self.runtime).clone()
    }

    /// Renews `standing` from now on; one that is kept already stays in its batch. Says whether the keeper must be woken.
    pub(crate) fn keep(&self, standing: &Arc<Standing>) -> bool {
        let renew_at = self.clock.now() + standing.renew_in();
        let fresh = || Kept { standing: standing.clone(), is_hold: false, renew_at, release_at: None, at: None };
        let mut registry = locked(&self.registry);
        let id = standing.claim.id;
        registry.kept.entry(id).or_insert_with(fresh);
        let at = registry.schedule(id);
        !registry.running || registry.sleeps_past(at)
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

    /// Ends whatever is kept: holds are lost, whoever waits looks again, and all are withdrawn. A hold whose guard has gone and
    /// that is within its `min_hold` goes on, unless that is to end `too`.
    pub(crate) fn end_all(&self, min_hold_too: bool) {
        let mut registry = locked(&self.registry);
        let ends = |kept: &&Kept| min_hold_too || kept.release_at.is_none();
        let ending: Vec<_> = registry.kept.values().filter(ends).map(|kept| kept.standing.clone()).collect();
        ending.iter().for_each(|standing| registry.remove(standing.claim.id));
        drop(registry);
        for standing in &ending {
            self.bells.unlisten(standing.claim.id);
            standing.lose(Loss::Gone);
            self.queue(Release::of([standing]));
        }
    }

    /// Completes when nothing is kept and no background release is left.
    pub(crate) async fn drained(&self) {
        loop {
            let quiet = self.quiet.notified();
            if locked(&self.registry).is_drained() {
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
                due |= kept.renew_at <= now;
                // Whatever is due now goes into the batch below, which plans it anew.
                if kept.renew_at > now {
                    registry.schedule(id);
                }
            }
        }
        let early = locked(&self.random).f64() / 20.0;
        let batch = if due { registry.take_batch(now, early) } else { Vec::new() };
        for (standing, loss) in &given_up {
            if *loss != Loss::Released {
                events::lost(&standing.claim, *loss);
            }
            registry.releasing += 1;
            registry.queued.push(Release::of([standing]));
        }
        registry.next_wake = registry.agenda.first().map(|(at, _)| *at);
        registry.watching = registry.holds > 0;
        let plan = Plan {
            batch,
            releases: std::mem::take(&mut registry.queued),
            next: registry.next_wake,
            watching: registry.watching,
            // What is still kept when every guard has gone is within its min_hold.
            stop: registry.no_more_work && registry.is_drained(),
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
                if let Some((standing, _)) = batch.standings.first() {
                    events::renewal_unknown(&standing.claim, &e);
                }
                Vec::new().into_iter()
            }
        };
        let now = self.clock.now();
        for (standing, token) in &batch.standings {
            let mut unknown = false;
            match answers.next() {
                Some(Renewal::Renewed(validity)) => standing.extend(validity, batch.stamp),
                Some(Renewal::Granted(grant)) => standing.grant(grant, batch.stamp),
                Some(Renewal::Lost(loss)) => standing.lose_tenure(*token, loss),
                Some(Renewal::Unknown(e)) => {
                    events::renewal_unknown(&standing.claim, &e);
                    unknown = true;
                }
                None => unknown = true,
            }
            let mut registry = locked(&self.registry);
            if let Some(kept) = registry.kept.get_mut(&standing.claim.id).filter(|_| unknown) {
                kept.renew_at = kept.renew_at.min(now + standing.ttl() / 6);
            }
            registry.schedule(standing.claim.id);
        }
    }

    /// The store has a new connection: what was in flight on the old one may be late for its lease.
    fn renew_holds_now(&self) {
        let now = self.clock.now();
        let mut registry = locked(&self.registry);
        let holds: Vec<ClaimId> = registry.kept.iter().filter(|(_, kept)| kept.is_hold).map(|(id, _)| *id).collect();
        for id in holds {
            if let Some(kept) = registry.kept.get_mut(&id) {
                kept.renew_at = kept.renew_at.min(now);
            }
            registry.schedule(id);
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
    fn is_drained(&self) -> bool {
        self.releasing == 0 && self.kept.is_empty()
    }

    /// Whether the task would miss something that comes up then, or a hold that began while it napped.
    fn sleeps_past(&self, at: Moment) -> bool {
        self.holds > 0 && !self.watching || self.next_wake.is_none_or(|planned| at < planned)
    }

    /// Enters a kept one into the agenda and says when it comes up.
    fn schedule(&mut self, id: ClaimId) -> Moment {
        let never = Moment::from_nanos(u64::MAX);
        let Some(kept) = self.kept.get_mut(&id) else { return never };
        let ends = kept.standing.ends();
        if ends.is_some() && !std::mem::replace(&mut kept.is_hold, true) {
            self.holds += 1;
        }
        let at = [kept.release_at, ends].into_iter().flatten().fold(kept.renew_at, Moment::min);
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

    /// Everything that is due, and what would be soon: so that the renewals of one client fall together. The next ones are
    /// `early` by this share, another each time: so that those of many clients do not, because they began together.
    fn take_batch(&mut self, now: Moment, early: f64) -> Vec<Arc<Standing>> {
        let soon = |kept: &Kept| kept.renew_at <= now + kept.standing.ttl() / 6;
        let ids: Vec<ClaimId> = self.kept.iter().filter(|(_, kept)| soon(kept)).map(|(id, _)| *id).collect();
        let mut batch = Vec::with_capacity(ids.len());
        for id in ids {
            // After a loss no renewal is sent; one that was lost just now comes up again at once, to be given up.
            if let Some(kept) = self.kept.get_mut(&id).filter(|kept| kept.standing.loss().is_none()) {
                kept.renew_at = now + kept.standing.renew_every().mul_f64(1.0 - early);
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
                kept.renew_at = kept.renew_at.min(now + standing.ttl() / 6);
            }
            registry.schedule(standing.claim.id);
        }
        let busy = !registry.is_drained();
        drop(registry);
        self.0.quiet.notify_waiters();
        // Another runtime may use the client still: its guards live on. It is taken, so that one that is ending itself is
        // tried once.
        let other = locked(&self.0.runtime).take();
        if busy
            && let Some(other) = other
            && let Some(running) = self.0.start()
        {
            other.spawn(run(running));
        }
        // If not, whoever listens in a third one starts the keeper there.
        all.iter().for_each(|standing| standing.changed.notify_waiters());
    }
}

struct Batch {
    /// Each with the token of the grant that the store was asked about.
    standings: Vec<(Arc<Standing>, Option<FencingToken>)>,
    stamp: Moment,
}

pub(crate) async fn run(running: Running) {
    let keeper = &*running.0;
    let mut random = locked(&keeper.random).fork();
    let mut rings = keeper.bells.rings_for_everyone();
    let mut renewals = FuturesUnordered::new();
    let mut releases = FuturesUnordered::new();
    loop {
        let plan = keeper.plan();
        if !plan.batch.is_empty() {
            renewals.push(renew(keeper, plan.batch));
        }
        releases.extend(
            plan.releases.into_iter().map(|release| withdraw(&*keeper.backend, &keeper.clock, release, random.fork())),
        );
        if plan.stop {
            return;
        }
        tokio::select! {
            () = keeper.wake.notified() => {}
            Ok(()) = rings.changed() => keeper.renew_holds_now(),
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

/// One attempt to renew a batch, given up in time for another. Those with a shorter lease are asked for again before that: a
/// store that is too slow for them is not too slow for the rest.
async fn renew(keeper: &Keeper, batch: Vec<Arc<Standing>>) -> (Batch, Result<Vec<Renewal>>) {
    let Keeper { backend, clock, .. } = keeper;
    let (standings, tenures): (Vec<_>, Vec<Tenure>) =
        batch.into_iter().filter_map(|s| s.tenure().map(|tenure| ((s, tenure.token), tenure))).unzip();
    let stamp = clock.now();
    let longest = standings.iter().map(|(s, _)| s.ttl()).max().unwrap_or_default();
    let limit = (longest / 6).clamp(Duration::from_millis(50), Duration::from_secs(5));
    let answer = tokio::select! {
        biased;
        answer = backend.renew(&tenures) => answer,
        () = clock.sleep(limit) => Err(Error::new(ErrorKind::Ambiguous, "the store did not answer in time")),
    };
    (Batch { standings, stamp }, answer)
}

#[cfg(test)]
mod tests;
