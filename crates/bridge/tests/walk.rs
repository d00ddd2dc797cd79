//! Random walks of clients of all stages over the real code, one request at a time: never two guards, never a token that falls,
//! whatever is lost, late or dropped; and afterwards nothing is left and nobody is stuck.
//!
//! Core is in the walk as a few lines: a guard counts from before its request, a lost one does not come back, and what was begun is
//! withdrawn.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::future::BoxFuture;
use leasehold_bridge::Bridge;
use leasehold_core::seam::{
    Backend, Claim, Claimed, Clock, LeaseRef, Mode, Moment, Notification, Place, Renewal, Subscription, VirtualClock,
    WaitPolicy,
};
use leasehold_core::{ErrorKind, FencingToken, Result};
use leasehold_memory::Memory;
use support::{Plan, TTL, Wire, drive};

/// What a client has of its claim.
#[derive(Default)]
struct Has {
    place: Option<Place>,
    guard: Option<Guard>,
}

#[derive(Clone)]
struct Guard {
    token: FencingToken,
    until: Moment,
    lost: Arc<AtomicBool>,
}

/// A request that is out, and what it was.
enum Out {
    Claim(BoxFuture<'static, Result<Claimed>>, Moment),
    Renew(BoxFuture<'static, Result<Vec<Renewal>>>, Moment, Option<FencingToken>),
    Release(BoxFuture<'static, Result<()>>),
}

struct Client {
    who: &'static str,
    backend: Arc<dyn Backend>,
    wires: Vec<Wire>,
    claim: Option<Claim>,
    has: Has,
    out: Option<Out>,
    /// It is being withdrawn until then.
    leaves: Option<Moment>,
    sleeps_until: usize,
    /// How often its request was looked at in vain.
    waited: u32,
    told_lost: Arc<Mutex<Option<Moment>>>,
    listens: Option<Subscription>,
}

/// All guards so far.
#[derive(Default)]
struct Gate {
    seed: u64,
    most: u64,
    grants: usize,
}

impl Client {
    fn new(who: &'static str, backend: Arc<dyn Backend>, wires: Vec<Wire>) -> Client {
        let (claim, has, out, leaves) = (None, Has::default(), None, None);
        let (sleeps_until, waited, told_lost, listens) = (0, 0, Arc::default(), None);
        Client { who, backend, wires, claim, has, out, leaves, sleeps_until, waited, told_lost, listens }
    }

    fn holds(&self, now: Moment) -> bool {
        self.has.guard.as_ref().is_some_and(|guard| guard.until > now && !guard.lost.load(Ordering::Relaxed))
    }

    /// Begins something: the next claim, a renewal, a release.
    fn begin(&mut self, random: &mut fastrand::Rng, clock: &Clock) {
        let (now, backend) = (clock.now(), self.backend.clone());
        let Some(claim) = self.claim.clone() else {
            let all = [WaitPolicy::Fair, WaitPolicy::Fair, WaitPolicy::Fast, WaitPolicy::Try];
            let policy = all[random.usize(0..all.len())];
            let claim = Claim::new("a", Mode::Exclusive, policy, TTL, self.who);
            let (clock, told) = (clock.clone(), Arc::default());
            self.told_lost = Arc::clone(&told);
            let heard = move |notification| {
                if let Notification::Lost(_) = notification {
                    *told.lock().unwrap() = Some(clock.now());
                }
            };
            self.listens = backend.notifier().map(|notifier| notifier.subscribe(claim.id, heard));
            self.claim = Some(claim);
            return;
        };
        let lost = self.has.guard.is_some() && !self.holds(now);
        if self.leaves.is_some() || lost || random.u32(0..100) < 8 {
            // What was a guard is none from here on.
            self.has.guard = None;
            self.leaves.get_or_insert(now + TTL);
            let place = self.has.place.clone();
            self.out = Some(Out::Release(Box::pin(async move { backend.release(&claim, place.as_ref()).await })));
            return;
        }
        let token = self.has.guard.as_ref().map(|guard| guard.token);
        if let (Some(place), true) = (self.has.place.clone(), random.u32(0..3) == 0) {
            let lease = LeaseRef::new(Arc::new(claim), place, token);
            self.out = Some(Out::Renew(Box::pin(async move { backend.renew(&[lease]).await }), now, token));
            return;
        }
        let policy = if token.is_some() { WaitPolicy::Try } else { claim.policy };
        let mut again = claim;
        again.policy = policy;
        self.out = Some(Out::Claim(Box::pin(async move { backend.claim(&again).await }), now));
    }

    /// One poll of what is out.
    fn step(&mut self, now: Moment, gate: &mut Gate) {
        self.waited = if self.out.is_some() { self.waited + 1 } else { 0 };
        if self.waited > 60 {
            // It is not answered at all.
            (self.out, self.waited) = (None, 0);
        }
        match self.out.take() {
            None => {}
            Some(Out::Claim(mut out, sent)) => match poll(&mut out) {
                None => self.out = Some(Out::Claim(out, sent)),
                Some(answer) => self.claimed(answer, sent, now, gate),
            },
            Some(Out::Renew(mut out, sent, token)) => match poll(&mut out) {
                None => self.out = Some(Out::Renew(out, sent, token)),
                Some(Ok(answers)) => self.renewed(answers, sent, token),
                Some(Err(_)) => {}
            },
            Some(Out::Release(mut out)) => match poll(&mut out) {
                None => self.out = Some(Out::Release(out)),
                Some(Ok(())) => self.forget(),
                Some(Err(_)) if self.leaves.is_some_and(|until| until <= now) => self.forget(),
                Some(Err(_)) => {}
            },
        }
    }

    fn claimed(&mut self, answer: Result<Claimed>, sent: Moment, now: Moment, gate: &mut Gate) {
        match answer {
            Ok(Claimed::Granted(grant)) => {
                self.has.place = Some(grant.place.clone());
                let until = grant.validity.until(sent);
                let gone = self.told_lost.lock().unwrap().is_some_and(|gone| sent <= gone);
                match &mut self.has.guard {
                    Some(guard) if guard.token == grant.token => guard.until = guard.until.max(until),
                    Some(guard) => guard.lost.store(true, Ordering::Relaxed),
                    None if until <= now || gone => {}
                    None => {
                        let first = grant.token.get();
                        assert!(first > gate.most, "seed {}: {first} of {} after {}", gate.seed, self.who, gate.most);
                        gate.most = first + u64::from(grant.turns) - 1;
                        gate.grants += 1;
                        self.has.guard = Some(Guard { token: grant.token, until, lost: Arc::default() });
                    }
                }
            }
            Ok(Claimed::Waiting(waiting)) => {
                self.lose();
                self.has.place = Some(waiting.place);
            }
            Ok(Claimed::Busy(_)) => {
                self.lose();
                self.leaves = Some(now + TTL);
            }
            // It leaves, as the error says that nothing of it is there: nothing is withdrawn.
            Err(e) if e.kind() == ErrorKind::Unavailable && self.has.place.is_none() => {}
            Err(_) => {}
        }
    }

    fn renewed(&mut self, answers: Vec<Renewal>, sent: Moment, token: Option<FencingToken>) {
        let mine = self.has.guard.as_mut().filter(|guard| Some(guard.token) == token);
        match (answers.into_iter().next().unwrap(), mine) {
            (Renewal::Renewed(validity), Some(guard)) => guard.until = guard.until.max(validity.until(sent)),
            (Renewal::Granted(grant), Some(guard)) if grant.token != guard.token => {
                guard.lost.store(true, Ordering::Relaxed)
            }
            (Renewal::Lost(_), Some(guard)) => guard.lost.store(true, Ordering::Relaxed),
            _ => {}
        }
    }

    fn lose(&mut self) {
        if let Some(guard) = &self.has.guard {
            guard.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Hears what it was told.
    fn hear(&mut self) {
        if self.told_lost.lock().unwrap().is_some() {
            self.lose();
        }
    }

    fn forget(&mut self) {
        (self.claim, self.has, self.out, self.leaves, self.listens) = (None, Has::default(), None, None, None);
    }
}

fn poll<T>(out: &mut BoxFuture<'static, T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match out.as_mut().poll(&mut context) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// Which of the two stores numbers places.
#[derive(Clone, Copy, Debug)]
enum Places {
    None,
    InOld,
    InNew,
}

struct World {
    seed: u64,
    random: fastrand::Rng,
    time: VirtualClock,
    plan: Plan,
    old: Wire,
    new: Wire,
    gate: Gate,
}

impl World {
    fn new(seed: u64, places: Places) -> World {
        let (memory, time) = Memory::with_virtual_time();
        let plan = Plan::default();
        let (mut old, mut new) =
            (Wire::to("old", &memory, &plan).slow(), Wire::to("new", &memory.another_store(), &plan).slow());
        match places {
            Places::None => {}
            Places::InOld => old = old.numbering_places(),
            Places::InNew => new = new.numbering_places(),
        }
        let mut random = fastrand::Rng::with_seed(seed);
        // Leases of different lengths.
        match random.u32(0..4) {
            0 => old = old.granting(3),
            1 => new = new.granting(3),
            _ => {}
        }
        World { seed, random, time, plan, old, new, gate: Gate { seed, ..Gate::default() } }
    }

    fn bridge(&self) -> Client {
        let wires = vec![self.old.another(), self.new.another()];
        let bridge = Bridge::new(wires[0].clone(), wires[1].clone()).unwrap();
        Client::new("bridge", Arc::new(bridge), wires)
    }

    fn alone(&self, who: &'static str, wire: &Wire) -> Client {
        let wire = wire.another();
        Client::new(who, Arc::new(wire.clone()), vec![wire])
    }

    /// Lets these clients go on for so many steps, and then leaves nothing of them.
    async fn phase(&mut self, mut clients: Vec<Client>, steps: usize) {
        let clock = self.time.clock();
        self.plan.random(self.random.u64(..), 60);
        for step in 0..steps {
            let random = &mut self.random;
            let n = random.usize(0..clients.len());
            match random.u32(0..200) {
                0..7 => self.time.advance(TTL / random.u32(2..12)),
                7 => self.time.advance(TTL * 19 / 20),
                8..14 => {
                    for wire in clients[n].wires.clone() {
                        wire.deliver().await;
                    }
                }
                // A crash: nothing of it is withdrawn.
                14 => clients[n].forget(),
                // A pause: it goes on believing what it has.
                15..18 => clients[n].sleeps_until = step + random.usize(20..120),
                // Its caller leaves: what was sent may still arrive.
                18..21 => {
                    if let Some(Out::Claim(..) | Out::Release(_)) = clients[n].out {
                        clients[n].out = None;
                    }
                }
                _ if clients[n].sleeps_until > step => {}
                _ => {
                    if clients[n].out.is_none() {
                        clients[n].begin(random, &clock);
                    }
                    clients[n].step(clock.now(), &mut self.gate);
                }
            }
            clients.iter_mut().for_each(Client::hear);
            let now = clock.now();
            let holders: Vec<&str> =
                clients.iter().filter(|client| client.holds(now)).map(|client| client.who).collect();
            assert!(holders.len() <= 1, "seed {}, step {step}: {holders:?}", self.seed);
        }
        self.plan.calm();
        for client in clients {
            for wire in &client.wires {
                wire.deliver().await;
            }
        }
        self.time.advance(TTL * 4);
        assert_eq!((self.old.memory.entries(), self.new.memory.entries()), (0, 0), "seed {}: left for good", self.seed);
        // Nobody is stuck: whoever comes now holds at once.
        let bridge = self.bridge();
        let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Try, TTL, "after");
        let Some(Ok(Claimed::Granted(grant))) = drive(bridge.backend.claim(&claim)).await else {
            panic!("seed {}: nobody can hold", self.seed)
        };
        assert!(grant.token.get() > self.gate.most);
        self.gate.most = grant.token.get();
        drive(bridge.backend.release(&claim, None)).await.unwrap().unwrap();
    }
}

/// From old to new and back, by deploys and seals as an operator does them.
async fn walk(seed: u64, places: Places) -> usize {
    let mut world = World::new(seed, places);
    let steps = 600;
    let first = vec![world.alone("stage 1", &world.old), world.bridge(), world.bridge()];
    world.phase(first, steps).await;
    let mark = drive(world.old.mark()).await.unwrap().unwrap();
    drive(world.new.raise(mark)).await.unwrap().unwrap();
    let second = vec![world.bridge(), world.alone("stage 3", &world.new), world.bridge()];
    world.phase(second, steps).await;
    let mark = drive(world.new.mark()).await.unwrap().unwrap();
    drive(world.old.raise(mark)).await.unwrap().unwrap();
    let back = vec![world.bridge(), world.alone("stage 1", &world.old), world.alone("stage 1", &world.old)];
    world.phase(back, steps).await;
    world.gate.grants
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("LEASEHOLD_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..std::env::var("LEASEHOLD_WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(150),
    }
}

fn walks(places: Places) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let grants: usize = seeds().map(|seed| runtime.block_on(walk(seed, places))).sum();
    let walks = seeds().count();
    println!("{places:?}: {grants} grants in {walks} walks");
    assert!(grants > walks * 5, "{grants} grants in {walks} walks prove little");
}

#[test]
fn over_stores_that_number_holds() {
    walks(Places::None);
}

#[test]
fn to_a_store_that_numbers_places() {
    walks(Places::InNew);
}

#[test]
fn from_a_store_that_numbers_places() {
    walks(Places::InOld);
}
