//! The context of one case: its own namespace, clients on demand, and the checks that cases share.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, Grant, LeaseRef, Mode, Renewal, WaitPolicy, Waiting,
};
use leasehold_core::{Contention, ErrorKind, Guard, LockQueue, Loss, Lost, Name, Result, Store};
use tokio::task::JoinHandle;

use crate::faulty::{Faults, Faulty};
use crate::harness::{Harness, Need};

/// The decorator between core and the store while a case runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// No decorator: the client as `Arc<dyn Backend>`.
    Bare,
    /// The client in a `Box<dyn Backend>`.
    Boxed,
    /// A decorator that loses requests and replies and delays ([`Faults::frequent`](crate::faulty::Faults::frequent)).
    Faulty,
}

/// A lease that no pause of the machine ends.
pub const LONG: Duration = Duration::from_secs(20);

/// The time within which a queue must reach the expected state.
const SETTLED: Duration = Duration::from_secs(60);

/// The context of one case.
#[derive(Clone)]
pub struct TestContext {
    harness: Arc<dyn Harness>,
    variant: Variant,
    namespace: String,
    seed: u64,
    /// The number of steps that the case has made. A long case is not stuck as long as this grows.
    steps: Arc<AtomicU64>,
}

impl fmt::Debug for TestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TestContext({:?} on {})",
            self.namespace,
            self.harness.store_name()
        )
    }
}

impl TestContext {
    /// Returns whether requests and replies are lost in this variant, and leases with them.
    pub(crate) fn is_faulty(&self) -> bool {
        matches!(self.variant, Variant::Faulty)
    }

    pub(crate) fn new(
        harness: Arc<dyn Harness>,
        variant: Variant,
        case: &str,
        seed: u64,
    ) -> TestContext {
        let namespace = format!(
            "{}suite {seed:x} {}",
            harness.prefix(),
            case.replace('/', " ")
        );
        TestContext {
            harness,
            variant,
            namespace,
            seed,
            steps: Arc::default(),
        }
    }

    /// The case is one step further.
    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Returns a context of this case in a world of its own: see [`Harness::private`].
    pub async fn private(&self) -> TestContext {
        TestContext {
            harness: self.harness.private().await,
            ..self.clone()
        }
    }

    /// The harness of the store's test.
    pub fn harness(&self) -> &dyn Harness {
        &*self.harness
    }

    /// Returns a context in a world of its own whose names are so short that very many fit into
    /// every list of a store.
    pub async fn private_and_short(&self) -> TestContext {
        let private = self.private().await;
        TestContext {
            namespace: format!("{}s", private.harness.prefix()),
            ..private
        }
    }

    /// The seed of all random choices of this run. A failure prints it, and `LEASEHOLD_SEED` sets
    /// it.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The lease that cases use.
    pub fn ttl(&self) -> Duration {
        self.harness.ttl()
    }

    /// A new client's backend, as it is: for cases that call it themselves.
    pub async fn backend(&self) -> Arc<dyn Backend> {
        self.step();
        self.harness.client().await
    }

    /// A store over a new client, with the decorator of this variant.
    pub async fn store(&self) -> Store {
        self.step();
        let client = self.harness.client().await;
        match self.variant {
            Variant::Bare => self.over(client),
            Variant::Boxed => self.over(Arc::new(Box::new(client) as Box<dyn Backend>)),
            Variant::Faulty => {
                self.over(Arc::new(Faulty::new(client, Faults::frequent(), self.seed)))
            }
        }
    }

    /// A store over a new client with faults that the case controls.
    pub async fn store_with(&self, faults: &Faults) -> Store {
        self.over(Arc::new(Faulty::new(
            self.harness.client().await,
            faults.clone(),
            self.seed,
        )))
    }

    /// A store over this client.
    pub fn over(&self, client: Arc<dyn Backend>) -> Store {
        let seed = self.seed;
        Store::with_random_seed(client, seed)
            .namespace(&self.namespace)
            .ttl(self.ttl())
    }

    /// The name as the store sees it.
    pub fn full(&self, name: &str) -> Name {
        Name::new(format!("{}/{name}", self.namespace))
    }

    /// A claim for cases that call it themselves.
    pub fn claim(&self, name: &str, policy: WaitPolicy) -> Claim {
        self.claim_as(name, Mode::Exclusive, policy)
    }

    /// A claim of this mode. A fair claim becomes fast on a store that keeps no order.
    pub fn claim_as(&self, name: &str, mode: Mode, policy: WaitPolicy) -> Claim {
        let lacks_order = self.harness.capabilities().lack(&[Need::Fair]).is_some();
        let policy = if policy == WaitPolicy::Fair && lacks_order {
            WaitPolicy::Fast
        } else {
            policy
        };
        Claim::new(self.full(name), mode, policy, self.ttl(), "suite")
    }

    /// Waits until `name` has neither holder nor waiter, for at most one lease and the store's
    /// `recovery`.
    pub async fn becomes_empty(&self, name: &str) {
        self.become_empty(&[name]).await;
    }

    /// Waits until none of these names has a holder or a waiter. One client checks all of them,
    /// because a new client may take a dozen handshakes.
    pub async fn become_empty(&self, names: &[impl AsRef<str>]) {
        let store = self.over(self.backend().await);
        let limit = self.ttl() + store.guarantees().recovery() + Duration::from_secs(1);
        for name in names {
            self.queue(&store, name.as_ref(), limit, "be free of traces", |seen| {
                seen == (0, 0)
            })
            .await;
        }
    }

    /// Waits until the queue for `name` has this number of waiters.
    pub async fn queue_reaches(&self, store: &Store, name: &str, waiters: usize) {
        self.queue(
            store,
            name,
            SETTLED,
            &format!("have {waiters} waiters"),
            |seen| seen.1 == waiters,
        )
        .await;
    }

    /// Waits until the queue for `name` has these numbers of holders and waiters.
    pub async fn queue_is(&self, store: &Store, name: &str, holders: usize, waiters: usize) {
        let what = format!("have {holders} holders and {waiters} waiters");
        self.queue(store, name, SETTLED, &what, |seen| {
            seen == (holders, waiters)
        })
        .await;
    }

    /// Waits until the numbers of holders and of waiters of `name` meet a condition.
    async fn queue(
        &self,
        store: &Store,
        name: &str,
        limit: Duration,
        what: &str,
        is_so: impl Fn((usize, usize)) -> bool,
    ) {
        self.step();
        let mut last = None;
        let reached = in_time(limit, async {
            loop {
                let seen = store.lock(name).inspect().await.map(|queue| counts(&queue));
                if seen.as_ref().is_ok_and(|seen| is_so(*seen)) {
                    return;
                }
                last = Some(seen);
                pause().await;
            }
        });
        if reached.await.is_none() {
            panic!(
                "{name:?} should {what} after {limit:?}, and the holders and waiters are {last:?}"
            );
        }
    }

    /// Returns the guard of a waiter whose turn has come, or comes when the leases of dead claims
    /// before it have run out.
    pub async fn served<G>(&self, what: &str, waiter: JoinHandle<Result<G>>) -> G {
        let limit = self.ttl() * 2 + self.recovery().await * 2 + Duration::from_secs(5);
        within(limit, what, waiter)
            .await
            .unwrap()
            .unwrap_or_else(|e| panic!("{what}: {e:?}"))
    }

    /// Returns the leases of the next renewals that pass these faults.
    pub async fn renewed(&self, faults: &Faults, what: &str) -> Vec<LeaseRef> {
        let before = faults.renewed().len();
        let limit = self.ttl() * 2 + Duration::from_secs(10);
        until(limit, &format!("a renewal of {what}"), || async {
            faults.renewed().len() > before
        })
        .await;
        faults.renewed().split_off(before)
    }

    /// The greatest delay of the store after the end of a lease.
    pub async fn recovery(&self) -> Duration {
        self.backend().await.guarantees().recovery()
    }

    /// Takes the lock with repeated tries within `limit`.
    pub async fn soon(&self, store: &Store, name: &str, limit: Duration) -> Guard {
        let lock = store.lock(name);
        answered(limit, &format!("{name:?} to come free"), || {
            lock.try_acquire()
        })
        .await
    }
}

/// Returns whether the cases of load run whole (`LEASEHOLD_CAMPAIGN=1`).
pub fn is_campaign() -> bool {
    std::env::var_os("LEASEHOLD_CAMPAIGN").is_some_and(|on| on == "1")
}

/// Returns whether a glance at the load is enough (`LEASEHOLD_GLANCE=1`).
pub fn is_glance() -> bool {
    std::env::var_os("LEASEHOLD_GLANCE").is_some_and(|on| on == "1")
}

/// Returns the number of items in a case: `part`, a quarter of it for a glance, or `all` in a
/// campaign.
pub fn campaign(part: usize, all: usize) -> usize {
    match (is_campaign(), is_glance()) {
        (true, _) => all,
        (false, true) => part / 4,
        (false, false) => part,
    }
}

/// Returns the numbers of holders and of waiters.
pub fn counts(queue: &LockQueue) -> (usize, usize) {
    (queue.holders.len(), queue.waiters.len())
}

/// Gives a guard back. Under faults the store's answer may be lost, and the release goes on in the
/// background; the hold was still valid to its end.
pub async fn give_back(guard: Guard) {
    if let Err(e) = guard.release().await {
        assert!(e.is_retryable(), "{e:?}");
    }
}

/// Asks until the store has answered: under faults an answer may be lost, but it is never a refusal.
pub async fn answered<T, F: Future<Output = Result<T>>>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    within(limit, what, async {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(e) if e.is_retryable() => pause().await,
                Err(e) => panic!("{what}: {e:?}"),
            }
        }
    })
    .await
}

/// Waits until the condition is true.
pub async fn until<F: Future<Output = bool>>(
    limit: Duration,
    what: &str,
    mut is_so: impl FnMut() -> F,
) {
    within(limit, what, async {
        while !is_so().await {
            pause().await;
        }
    })
    .await;
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

/// Returns `None` if the work takes longer. The limit counts only time in which this process runs:
/// it is measured in small sleeps, each of which takes longer on a busy machine.
pub async fn in_time<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
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

/// The contention of a refused try, or a failure. `what` explains the error if the try was granted.
pub fn busy(what: &str, answer: Result<Claimed>) -> Contention {
    match answer {
        Ok(Claimed::Busy(who)) => who,
        other => panic!("{what}: {other:?}"),
    }
}

/// Claims a free lock, and returns its lease to renew and to give back. A store that a busy machine
/// could not reach in time is asked once more.
pub async fn taken(client: &dyn Backend, claim: Claim) -> LeaseRef {
    let mut answer = client.claim(&claim).await;
    if answer
        .as_ref()
        .is_err_and(|e| e.kind() == ErrorKind::Unavailable)
    {
        answer = client.claim(&claim).await;
    }
    let grant = granted(answer);
    LeaseRef::new(Arc::new(claim), grant.place, Some(grant.token))
}

/// Gives the lease back.
pub async fn given_back(client: &dyn Backend, lease: &LeaseRef) {
    client
        .release(&lease.claim, Some(&lease.place))
        .await
        .unwrap();
}

/// Renews one lease.
pub async fn renewed(client: &dyn Backend, lease: &LeaseRef) -> Result<Renewal> {
    client
        .renew(std::slice::from_ref(lease))
        .await
        .map(|mut answers| answers.remove(0))
}

/// Fails unless the store tells the holder that it was evicted.
pub async fn told_of_eviction(limit: Duration, lost: Lost) {
    let loss = within(limit, "the evicted to hear of it", lost).await;
    assert!(
        matches!(loss, Loss::Evicted | Loss::Gone),
        "the evicted was not told: {loss:?}"
    );
}

/// Fails unless the answer is this kind of error.
pub fn expect_kind<T: fmt::Debug>(answer: Result<T>, kind: ErrorKind) -> leasehold_core::Error {
    match answer {
        Err(e) if e.kind() == kind => e,
        other => panic!("expected {kind:?}, got {other:?}"),
    }
}
