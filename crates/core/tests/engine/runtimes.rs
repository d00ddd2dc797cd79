//! Several runtimes, one client: any of them may end, or be driven no more, at any moment.

use std::collections::HashMap;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use leasehold_core::backend::{
    Claim, ClaimId, Claimed, Clock, Grant, LeaseRef, Mode, Moment, Notifier, Place, Renewal,
    VirtualClock, WaitPolicy, Waiting,
};
use leasehold_core::{Contention, Error, FencingToken, Guard, Loss, Result};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::script::{Call, Log, Script, TTL, is_glance, ms, runtime, settle};

/// Whose turn it is, and when their leases end.
type Entries = Vec<(ClaimId, Moment)>;

/// A store of leases in a few lines: exclusive claims, first come, first served.
#[derive(Clone)]
struct Leases {
    clock: Clock,
    notifier: Notifier,
    queues: Arc<Mutex<HashMap<String, Entries>>>,
    tokens: Arc<Mutex<HashMap<ClaimId, u64>>>,
}

impl Leases {
    fn script() -> (Script, VirtualClock, Log, Leases) {
        let (script, time, log) = Script::new();
        let leases = Leases {
            clock: time.clock(),
            notifier: script.notifier(),
            queues: Arc::default(),
            tokens: Arc::default(),
        };
        let (claims, renews, releases) = (leases.clone(), leases.clone(), leases.clone());
        let script = script
            .claims(move |claim, _| std::future::ready(Ok(claims.claim(&claim))))
            .renewals(move |all, _| {
                std::future::ready(Ok(all.iter().map(|lease| renews.renew(lease)).collect()))
            })
            .releases(move |claim, _| std::future::ready(releases.release(&claim)));
        (script, time, log, leases)
    }

    fn with_queue<T>(&self, claim: &Claim, work: impl FnOnce(&mut Entries) -> T) -> T {
        let now = self.clock.now();
        let mut queues = self.queues.lock().unwrap();
        let queue = queues.entry(claim.name.as_str().to_owned()).or_default();
        queue.retain(|(_, ends)| *ends > now);
        work(queue)
    }

    fn claim(&self, claim: &Claim) -> Claimed {
        let ends = self.clock.now() + claim.ttl;
        let place = Place::new("p");
        self.with_queue(claim, |queue| {
            match queue.iter_mut().find(|(id, _)| *id == claim.id) {
                Some((_, mine)) => *mine = ends,
                None => queue.push((claim.id, ends)),
            }
            if queue[0].0 != claim.id {
                return Claimed::Waiting(Waiting::new(place, Contention::by("somebody")));
            }
            let mut tokens = self.tokens.lock().unwrap();
            let next = tokens.len() as u64 + 1;
            let token = *tokens.entry(claim.id).or_insert(next);
            Claimed::Granted(Grant::new(place, FencingToken::new(token), claim.ttl))
        })
    }

    fn renew(&self, lease: &LeaseRef) -> Renewal {
        let ends = self.clock.now() + lease.claim.ttl;
        self.with_queue(&lease.claim, |queue| {
            match queue.iter_mut().find(|(id, _)| *id == lease.claim.id) {
                Some((_, mine)) => {
                    *mine = ends;
                    Renewal::Renewed(lease.claim.ttl.into())
                }
                None => Renewal::Lost(Loss::Gone),
            }
        })
    }

    fn release(&self, claim: &Claim) -> Result<()> {
        let next = self.with_queue(claim, |queue| {
            queue.retain(|(id, _)| *id != claim.id);
            queue.first().map(|(id, _)| *id)
        });
        if let Some(next) = next {
            self.notifier.claim_again(next);
        }
        Ok(())
    }

    /// How many entries are left that have not ended.
    fn left(&self) -> usize {
        let now = self.clock.now();
        self.queues
            .lock()
            .unwrap()
            .values()
            .flatten()
            .filter(|(_, ends)| *ends > now)
            .count()
    }
}

/// Lets time pass in those runtimes that live, in any order.
pub(crate) fn pass(time: &VirtualClock, runtimes: &[Option<Runtime>], d: std::time::Duration) {
    let end = time.clock().now() + d;
    while time.clock().now() < end {
        time.advance(ms(100).min(end.since(time.clock().now())));
        drive(runtimes);
    }
}

fn drive(runtimes: &[Option<Runtime>]) {
    for _ in 0..2 {
        runtimes
            .iter()
            .flatten()
            .for_each(|runtime| runtime.block_on(settle()));
    }
}

type Acquiring = JoinHandle<Result<Guard, Error>>;

/// Takes out those who have got what they waited for, or have gone.
fn harvest(waiting: &mut Vec<(usize, Acquiring)>) -> Vec<Guard> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut served = Vec::new();
    waiting.retain_mut(|(_, acquiring)| match Pin::new(acquiring).poll(&mut cx) {
        Poll::Pending => true,
        Poll::Ready(done) => {
            served.extend(done.map(|acquired| acquired.unwrap()));
            false
        }
    });
    served
}

/// Guards, waiters and background releases of three runtimes, of which one after the other ends: the last one keeps all of
/// them going.
#[test]
fn the_runtime_that_is_left_goes_on() {
    let seeds = if is_glance() { 10 } else { 40 };
    for seed in 0..seeds {
        let mut random = Rng::with_seed(seed);
        let (script, time, _, leases) = Leases::script();
        let store = script.store();
        let mut runtimes: Vec<Option<Runtime>> = (0..3).map(|_| Some(runtime())).collect();
        let mut guards: Vec<Guard> = Vec::new();
        let mut waiting: Vec<(usize, Acquiring)> = Vec::new();
        for _ in 0..40 {
            let living: Vec<usize> = (0..3).filter(|i| runtimes[*i].is_some()).collect();
            let at = living[random.usize(..living.len())];
            let Some(here) = &runtimes[at] else {
                unreachable!()
            };
            match random.u32(..12) {
                0..5 => {
                    let acquire = store.lock(format!("name {}", random.u32(..4))).acquire();
                    waiting.push((at, here.spawn(acquire)));
                }
                5..7 if !guards.is_empty() => {
                    // Dropped in a runtime, or outside of any.
                    let guard = guards.swap_remove(random.usize(..guards.len()));
                    if random.bool() {
                        here.block_on(async move { drop(guard) });
                    } else {
                        drop(guard);
                    }
                }
                7 if !guards.is_empty() => {
                    let guard = guards.swap_remove(random.usize(..guards.len()));
                    here.block_on(guard.release()).unwrap();
                }
                8 if !waiting.is_empty() => waiting[random.usize(..waiting.len())].1.abort(),
                9 if living.len() > 1 => runtimes[at] = None,
                _ => pass(&time, &runtimes, ms(random.u64(..4000))),
            }
            if random.bool() {
                drive(&runtimes);
            }
            guards.extend(harvest(&mut waiting));
            for guard in &guards {
                assert!(guard.is_valid(), "seed {seed}: {:?}", guard.check());
            }
        }
        // Everything is given back; a waiter gets it within a lease, and nothing is left.
        let living: Vec<usize> = (0..3).filter(|i| runtimes[*i].is_some()).collect();
        runtimes.iter_mut().enumerate().for_each(|(i, runtime)| {
            if i != living[0] && random.bool() {
                *runtime = None;
            }
        });
        drop(guards);
        waiting.retain(|(at, _)| runtimes[*at].is_some());
        let mut quiet = ms(0);
        while !waiting.is_empty() {
            pass(&time, &runtimes, ms(100));
            let served = harvest(&mut waiting);
            quiet = if served.is_empty() {
                quiet + ms(100)
            } else {
                ms(0)
            };
            assert!(
                quiet <= TTL,
                "seed {seed}: {} wait beside a free lock",
                waiting.len()
            );
        }
        pass(&time, &runtimes, ms(200));
        assert_eq!(leases.left(), 0, "seed {seed}: not given back");
    }
}

/// A waiter in one runtime, the keeper in another one that ends: it is served at once after a release, and its place lives.
#[test]
fn a_waiter_outlives_the_runtime_of_the_keeper() {
    let (script, time, log, _) = Leases::script();
    let store = script.store();
    let (first, second) = (runtime(), runtime());
    let holder = second.block_on(store.lock("a").acquire()).unwrap();
    let keeper_here = first.block_on(store.lock("b").acquire()).unwrap();
    let waiter = second.spawn(store.lock("a").acquire());
    second.block_on(settle());
    drop(first);
    let runtimes = [None, Some(second)];
    pass(&time, &runtimes, TTL * 2);
    assert!(
        holder.is_valid() && keeper_here.is_valid(),
        "{} renewals",
        log.renewals()
    );
    let claims = log.claims();
    drop(holder);
    drive(&runtimes);
    assert!(
        waiter.is_finished(),
        "it stood beside a free lock; {claims} claims"
    );
    drop(runtimes);
}

/// A runtime that nobody drives any more does not keep the others from going on.
#[test]
fn a_runtime_that_is_not_driven_is_passed_by() {
    let (script, time, log, _) = Leases::script();
    let store = script.store();
    let (first, second) = (runtime(), runtime());
    let early = first.block_on(store.lock("a").acquire()).unwrap();
    let guard = second.block_on(store.lock("b").acquire()).unwrap();
    let runtimes = [None, Some(second)];
    pass(&time, &runtimes, TTL * 3);
    assert!(
        early.is_valid() && guard.is_valid(),
        "{} renewals",
        log.renewals()
    );
    drop(early);
    pass(&time, &runtimes, ms(1000));
    assert_eq!(log.releases(), 1);
    // It wakes up, and leaves the work to the other.
    let runtimes = [Some(first), runtimes.into_iter().flatten().next()];
    pass(&time, &runtimes, TTL * 2);
    assert!(guard.is_valid());
    assert!(
        log.renewals() < 25,
        "{} renewals in five leases",
        log.renewals()
    );
}

/// Without a hold no end is watched: a place in the queue is kept alive all the same.
#[test]
fn a_place_in_the_queue_outlives_a_runtime_that_is_not_driven() {
    let (script, time, log, leases) = Leases::script();
    let claims = leases.clone();
    let script = script.claims(move |claim, _| {
        // A store that says when it is worth to ask again: when the holder's lease ends.
        std::future::ready(Ok(match claims.claim(&claim) {
            Claimed::Waiting(waiting) => Claimed::Waiting(waiting.retry_after(TTL * 100)),
            granted => granted,
        }))
    });
    for name in ["a", "b"] {
        leases.claim(&Claim::new(
            name,
            Mode::Exclusive,
            WaitPolicy::Fair,
            TTL * 100,
            "another client",
        ));
    }
    let store = script.store();
    let (first, second) = (runtime(), runtime());
    let _keeper_here = first.spawn(store.lock("a").acquire());
    first.block_on(settle());
    time.advance(ms(100));
    let _waiter = second.spawn(store.lock("b").acquire());
    let runtimes = [None, Some(second)];
    pass(&time, &runtimes, TTL * 3);
    assert_eq!(
        leases.left(),
        4,
        "a place in queue has ended; {} renewals",
        log.renewals()
    );
    drop(first);
}

/// The release that was in flight when its runtime ended goes on elsewhere, also when nobody has the client any more.
#[test]
fn releases_go_on_elsewhere() {
    for client_lives in [false, true] {
        let (script, time, log) = Script::new();
        let script = script.releases(async |_, n| {
            if n == 0 {
                std::future::pending::<()>().await;
            }
            Ok(())
        });
        let store = script.store();
        let (first, second) = (runtime(), runtime());
        second.block_on(store.list("", None, 1)).unwrap();
        let guard = first.block_on(store.lock("a").acquire()).unwrap();
        first.block_on(async {
            drop(guard);
            settle().await;
        });
        assert_eq!(log.releases(), 1);
        let store = client_lives.then_some(store);
        drop(first);
        pass(&time, &[Some(second)], ms(200));
        assert_eq!(log.releases(), 2, "client lives: {client_lives}");
        assert_eq!(log.dropped(), usize::from(!client_lives));
        drop(store);
    }
}

/// A task that only waits for a loss, in a runtime that never asked anything, keeps the hold alive there.
#[test]
fn a_watcher_keeps_a_hold_alive() {
    let (script, time, log) = Script::new();
    let store = script.store();
    let (first, second) = (runtime(), runtime());
    let guard = first.block_on(store.lock("a").acquire()).unwrap();
    let watching = second.spawn(guard.lost());
    second.block_on(settle());
    drop(first);
    let runtimes = [Some(second)];
    pass(&time, &runtimes, TTL * 2);
    assert!(
        guard.is_valid() && !watching.is_finished(),
        "{} renewals",
        log.renewals()
    );
}

/// A client is used in two runtimes, and goes while its last release is under way: in neither of them a task is left.
#[test]
fn a_client_that_goes_leaves_no_task_in_any_runtime() {
    let (one, two) = (runtime(), runtime());
    let (script, time, log) = Script::new();
    let landing = Arc::new(Notify::new());
    let script = script.releases({
        let landing = landing.clone();
        move |claim, _| {
            let landing = landing.clone();
            async move {
                if claim.name.as_str() == "a" {
                    landing.notified().await;
                }
                Ok(())
            }
        }
    });
    let store = script.store();
    let guard = one
        .block_on(store.lock("a").acquire().into_future())
        .unwrap();
    two.block_on(async { store.lock("b").acquire().await?.release().await })
        .unwrap();
    drop((guard, store));
    one.block_on(settle());
    // Long after the last claim the keeper has nothing to look at but that release.
    time.advance(ms(2000));
    one.block_on(settle());
    two.block_on(settle());
    assert_eq!(
        (
            one.metrics().num_alive_tasks(),
            two.metrics().num_alive_tasks()
        ),
        (1, 1)
    );
    landing.notify_one();
    one.block_on(log.until(1, |call| *call == Call::Dropped));
    one.block_on(settle());
    two.block_on(settle());
    assert_eq!(
        (
            one.metrics().num_alive_tasks(),
            two.metrics().num_alive_tasks()
        ),
        (0, 0)
    );
}
