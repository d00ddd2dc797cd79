//! Where one case happens: its own namespace, clients on demand, and the judgements that cases share.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::seam::{Backend, Claim, Claimed, Grant, Mode, WaitPolicy, Waiting};
use leasehold_core::{ErrorKind, Guard, Name, Result, Store};
use tokio::task::JoinHandle;

use crate::faulty::{Faults, Faulty};
use crate::harness::{Harness, Need};

/// What stands between core and the store while a case runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// Nothing: the client as `Arc<dyn Backend>`.
    Bare,
    /// The client in a `Box<dyn Backend>`.
    Boxed,
    /// A decorator that loses requests and replies and delays ([`Faults::frequent`](crate::faulty::Faults::frequent)).
    Faulty,
}

/// One case's place.
#[derive(Clone)]
pub struct TestContext {
    harness: Arc<dyn Harness>,
    variant: Variant,
    namespace: String,
    seed: u64,
    /// How many steps the case has made. What takes long is not stuck as long as this grows.
    steps: Arc<AtomicU64>,
}

impl fmt::Debug for TestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestContext({:?} on {})", self.namespace, self.harness.store_name())
    }
}

impl TestContext {
    pub(crate) fn new(harness: Arc<dyn Harness>, variant: Variant, case: &str, seed: u64) -> TestContext {
        let namespace = format!("{}suite {seed:x} {}", harness.prefix(), case.replace('/', " "));
        TestContext { harness, variant, namespace, seed, steps: Arc::default() }
    }

    /// The case is one step further.
    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The same case in a world of its own.
    pub async fn private(&self) -> TestContext {
        TestContext { harness: self.harness.private().await, ..self.clone() }
    }

    /// The store's test.
    pub fn harness(&self) -> &dyn Harness {
        &*self.harness
    }

    /// What this run's accidents follow from. A failure prints it, and `LEASEHOLD_SEED` asks for it.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The lease that cases use.
    pub fn ttl(&self) -> Duration {
        self.harness.ttl()
    }

    /// A new client's backend, as it is: for cases that talk to the seam.
    pub async fn backend(&self) -> Arc<dyn Backend> {
        self.step();
        self.harness.client().await
    }

    /// A store over a new client, dressed as this run wants it.
    pub async fn store(&self) -> Store {
        self.step();
        let client = self.harness.client().await;
        match self.variant {
            Variant::Bare => self.over(client),
            Variant::Boxed => self.over(Arc::new(Box::new(client) as Box<dyn Backend>)),
            Variant::Faulty => self.over(Arc::new(Faulty::new(client, Faults::frequent(), self.seed))),
        }
    }

    /// A store over a new client with faults that the case controls.
    pub async fn store_with(&self, faults: &Faults) -> Store {
        self.over(Arc::new(Faulty::new(self.harness.client().await, faults.clone(), self.seed)))
    }

    /// A store over this client.
    pub fn over(&self, client: Arc<dyn Backend>) -> Store {
        let seed = self.seed;
        Store::with_random_seed(client, seed).namespace(&self.namespace).ttl(self.ttl())
    }

    /// The name as the store sees it.
    pub fn full(&self, name: &str) -> Name {
        Name::new(format!("{}/{name}", self.namespace))
    }

    /// A claim for cases that talk to the seam.
    pub fn claim(&self, name: &str, policy: WaitPolicy) -> Claim {
        self.claim_as(name, Mode::Exclusive, policy)
    }

    /// A claim of this mode. Where nothing is fair, it is fast.
    pub fn claim_as(&self, name: &str, mode: Mode, policy: WaitPolicy) -> Claim {
        let lacks_order = self.harness.capabilities().lack(&[Need::Fair]).is_some();
        let policy = if policy == WaitPolicy::Fair && lacks_order { WaitPolicy::Fast } else { policy };
        Claim::new(self.full(name), mode, policy, self.ttl(), "suite")
    }

    /// Waits until nobody holds and nobody waits for `name`, at most one lease and the store's lateness.
    pub async fn becomes_empty(&self, name: &str) {
        let store = self.over(self.backend().await);
        self.step();
        let limit = self.ttl() + store.guarantees().recovery + Duration::from_secs(1);
        let what = format!("{name:?} to be free of traces");
        within(limit, &what, async {
            loop {
                let queue = store.lock(name).inspect().await.unwrap();
                if queue.holders.is_empty() && queue.waiters.is_empty() {
                    return;
                }
                pause().await;
            }
        })
        .await;
    }

    /// Waits until `n` stand in the queue for `name`.
    pub async fn queue_reaches(&self, store: &Store, name: &str, n: usize) {
        let what = format!("{n} waiters for {name:?}");
        within(Duration::from_secs(60), &what, async {
            while store.lock(name).inspect().await.map_or(0, |queue| queue.waiters.len()) != n {
                pause().await;
            }
        })
        .await;
    }

    /// Waits until so many hold `name` and so many wait for it.
    pub async fn queue_is(&self, store: &Store, name: &str, holders: usize, waiters: usize) {
        self.step();
        let last = Mutex::new(None);
        let is_so = async {
            loop {
                let seen =
                    store.lock(name).inspect().await.ok().map(|queue| (queue.holders.len(), queue.waiters.len()));
                *last.lock().unwrap() = seen;
                if seen == Some((holders, waiters)) {
                    return;
                }
                pause().await;
            }
        };
        if in_time(Duration::from_secs(60), is_so).await.is_none() {
            let last = *last.lock().unwrap();
            panic!("{name:?} should have {holders} holders and {waiters} waiters, and has {last:?}");
        }
    }

    /// The guard of somebody who waits and whose turn has come, or comes when the dead before it have run out.
    pub async fn served<G>(&self, what: &str, waiter: JoinHandle<Result<G>>) -> G {
        let limit = self.ttl() * 2 + self.recovery().await * 2 + Duration::from_secs(5);
        within(limit, what, waiter).await.unwrap().unwrap_or_else(|e| panic!("{what}: {e:?}"))
    }

    /// How much later than a lease the store may be.
    pub async fn recovery(&self) -> Duration {
        self.backend().await.guarantees().recovery
    }

    /// Takes the lock with tries, as often as it needs within `limit`.
    pub async fn soon(&self, store: &Store, name: &str, limit: Duration) -> Guard {
        within(limit, &format!("{name:?} to come free"), async {
            loop {
                match store.lock(name).try_acquire().await {
                    Ok(guard) => return guard,
                    Err(e) if e.is_retryable() => pause().await,
                    Err(e) => panic!("{e:?}"),
                }
            }
        })
        .await
    }
}

/// Gives a guard back. Under faults the store's word may be lost, and the release goes on in the background; the hold was
/// good to its end all the same.
pub async fn give_back(guard: Guard) {
    if let Err(e) = guard.release().await {
        assert!(e.is_retryable(), "{e:?}");
    }
}

/// The pause of a case that polls.
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// Fails if `what` takes longer than `limit`.
pub async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = T>) -> T {
    match in_time(limit, work).await {
        Some(done) => done,
        None => panic!("waited {limit:?} for {what}"),
    }
}

/// `None` if it takes longer. The limit is one of time in which this process runs: it is counted in small sleeps, each of which
/// takes longer where many others want the machine.
async fn in_time<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    const TICK: Duration = Duration::from_millis(10);
    let passes = async {
        for _ in 0..limit.as_nanos().div_ceil(TICK.as_nanos()) {
            tokio::time::sleep(TICK).await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = passes => None,
    }
}

/// The grant in an answer, or a failure.
pub fn granted(answer: Result<Claimed>) -> Grant {
    match answer {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// The place in the queue in an answer, or a failure.
pub fn waiting(answer: Result<Claimed>) -> Waiting {
    match answer {
        Ok(Claimed::Waiting(waiting)) => waiting,
        other => panic!("expected a place in the queue, got {other:?}"),
    }
}

/// Fails unless the answer is this kind of error.
pub fn expect_kind<T: fmt::Debug>(answer: Result<T>, kind: ErrorKind) -> leasehold_core::Error {
    match answer {
        Err(e) if e.kind() == kind => e,
        other => panic!("expected {kind:?}, got {other:?}"),
    }
}
