//! Decorators of a backend that misbehave on purpose, between core and the store.

use leasehold_core::backend::TokenFloor;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, ClaimedAll, Clock, Complete, Completed, Completions, LeaseRef,
    Notifier, Place, Renewal, Subscription, async_trait,
};
use leasehold_core::{
    Completion, Error, ErrorKind, FencingToken, Guarantees, LockQueue, Name, Result, StoreId,
};
use tokio::sync::watch;

/// The faults between core and a store. Shared by its clones.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Settings>);

#[derive(Debug, Default)]
struct Settings {
    /// The number of requests in a thousand that are lost before the store has seen them;
    /// `unanswered` is the number lost after that.
    lost: AtomicU32,
    unanswered: AtomicU32,
    /// The longest delay, in milliseconds.
    delay: AtomicU32,
    hang_renewals: AtomicBool,
    fail_renewals: AtomicU32,
    lose_claim_replies: AtomicU32,
    lose_release_replies: AtomicU32,
    lose_completion_replies: AtomicU32,
    lose_notifications: AtomicBool,
    /// Claims that the store has answered are held back while this is set.
    hold_claim_replies: watch::Sender<bool>,
    /// The leases that the store was asked to renew, in order.
    renewed: Mutex<Vec<LeaseRef>>,
}

impl Faults {
    /// The usual faults: one request in twenty is lost, one in ten unanswered, all are delayed by up
    /// to 3 ms. Of three renewals in a row one is answered, since a lease has room for three.
    pub fn frequent() -> Faults {
        let faults = Faults::default();
        faults.0.lost.store(50, Ordering::Relaxed);
        faults.0.unanswered.store(100, Ordering::Relaxed);
        faults.0.delay.store(3, Ordering::Relaxed);
        faults
    }

    /// No renewal is answered, and none arrives, while this is set.
    pub fn hang_renewals(&self, on: bool) {
        self.0.hang_renewals.store(on, Ordering::Relaxed);
    }

    /// The next `n` renewals fail.
    pub fn fail_renewals(&self, n: u32) {
        self.0.fail_renewals.store(n, Ordering::Relaxed);
    }

    /// The replies to the next `n` claims are lost after the store has acted.
    pub fn lose_claim_replies(&self, n: u32) {
        self.0.lose_claim_replies.store(n, Ordering::Relaxed);
    }

    /// The replies to the next `n` releases are lost after the store has acted.
    pub fn lose_release_replies(&self, n: u32) {
        self.0.lose_release_replies.store(n, Ordering::Relaxed);
    }

    /// The replies to the next `n` completions are lost after the store has acted.
    pub fn lose_completion_replies(&self, n: u32) {
        self.0.lose_completion_replies.store(n, Ordering::Relaxed);
    }

    /// Replies to claims are held back, after the store has acted, while this is set.
    pub fn hold_claim_replies(&self, on: bool) {
        self.0.hold_claim_replies.send_replace(on);
    }

    /// The leases that the store was asked to renew so far, in order.
    pub fn renewed(&self) -> Vec<LeaseRef> {
        self.0
            .renewed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// No notification is heard. It must be called before a store is made of the backend.
    pub fn lose_notifications(&self) {
        self.0.lose_notifications.store(true, Ordering::Relaxed);
    }
}

fn take(counter: &AtomicU32) -> bool {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        .is_ok()
}

/// A backend with some [`Faults`].
pub struct Faulty {
    inner: Arc<dyn Backend>,
    faults: Faults,
    random: Mutex<fastrand::Rng>,
    /// The number of renewals in a row that failed at random.
    failed_renewals: AtomicU32,
}

/// The number of renewals in a row that may fail at random.
const FAILED_RENEWALS: u32 = 2;

impl Faulty {
    /// `inner` with these faults, which follow from `seed`.
    pub fn new(inner: Arc<dyn Backend>, faults: Faults, seed: u64) -> Faulty {
        Faulty {
            inner,
            faults,
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            failed_renewals: AtomicU32::new(0),
        }
    }

    fn roll(&self, in_a_thousand: &AtomicU32) -> bool {
        let n = in_a_thousand.load(Ordering::Relaxed);
        n > 0
            && self
                .random
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .u32(0..1000)
                < n
    }

    async fn before(&self) -> Result<()> {
        let most = self.faults.0.delay.load(Ordering::Relaxed);
        if most > 0 {
            let delay = self
                .random
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .u32(0..=most);
            tokio::time::sleep(Duration::from_millis(delay.into())).await;
        }
        if self.roll(&self.faults.0.lost) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "lost on the way, by the suite",
            ));
        }
        Ok(())
    }

    fn after<T>(&self, answer: Result<T>, lose: bool) -> Result<T> {
        if lose || self.roll(&self.faults.0.unanswered) {
            return Err(Error::new(
                ErrorKind::Ambiguous,
                "answer lost, by the suite",
            ));
        }
        answer
    }
}

impl Faulty {
    async fn renew_at_random(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let may_fail = self.failed_renewals.load(Ordering::Relaxed) < FAILED_RENEWALS;
        if may_fail {
            self.before().await?;
        }
        self.faults
            .0
            .renewed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(leases);
        let answer = self.inner.renew(leases).await;
        match may_fail {
            true => self.after(answer, false),
            false => answer,
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({:?})", self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Faulty {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.before().await?;
        let answer = self.inner.claim(claim).await;
        // The sender is ours, so the wait cannot fail.
        drop(
            self.faults
                .0
                .hold_claim_replies
                .subscribe()
                .wait_for(|held| !held)
                .await,
        );
        self.after(answer, take(&self.faults.0.lose_claim_replies))
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.before().await?;
        let answer = self.inner.claim_all(claims).await;
        self.after(answer, take(&self.faults.0.lose_claim_replies))
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        if self.faults.0.hang_renewals.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if take(&self.faults.0.fail_renewals) {
            return Err(Error::new(ErrorKind::Unavailable, "refused, by the suite"));
        }
        let renewed = self.renew_at_random(leases).await;
        match renewed {
            Ok(_) => self.failed_renewals.store(0, Ordering::Relaxed),
            Err(_) => drop(self.failed_renewals.fetch_add(1, Ordering::Relaxed)),
        }
        renewed
    }

    fn renew_batch(&self) -> usize {
        self.inner.renew_batch()
    }

    async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()> {
        self.before().await?;
        let answer = self.inner.release(claim, place).await;
        self.after(answer, take(&self.faults.0.lose_release_replies))
    }

    async fn release_after(
        &self,
        claim: &Claim,
        place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        self.before().await?;
        let answer = self.inner.release_after(claim, place, rest).await;
        self.after(answer, take(&self.faults.0.lose_release_replies))
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.inner.list(prefix, after, limit).await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.inner.evict(name, token).await
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    fn identity(&self) -> Option<StoreId> {
        self.inner.identity()
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        self.inner.token_floor()
    }

    fn completions(&self) -> Option<&dyn Completions> {
        self.inner.completions().map(|_| self as &dyn Completions)
    }

    fn notifier(&self) -> Option<&Notifier> {
        self.inner
            .notifier()
            .filter(|_| !self.faults.0.lose_notifications.load(Ordering::Relaxed))
    }

    fn observe(&self, name: &Name) -> Subscription {
        self.inner.observe(name)
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

impl Faulty {
    fn completions_inside(&self) -> Result<&dyn Completions> {
        let none = || Error::new(ErrorKind::Unsupported, "the store records no completions");
        self.inner.completions().ok_or_else(none)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Completions for Faulty {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        self.before().await?;
        let answer = self.completions_inside()?.complete(claim, request).await;
        self.after(answer, take(&self.faults.0.lose_completion_replies))
    }

    async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        self.completions_inside()?.completion(name).await
    }

    async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.completions_inside()?.forget(name, token).await
    }

    async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        let completions = self.completions_inside()?;
        completions.list_completions(prefix, after, limit).await
    }

    async fn recorded(&self, claim: &Claim, token: FencingToken) -> Result<Option<Completion>> {
        self.before().await?;
        let answer = self.completions_inside()?.recorded(claim, token).await;
        self.after(answer, false)
    }
}
