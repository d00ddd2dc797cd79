//! A decorator that counts and times renewals, and changes nothing.

use leasehold::backend::{Completions, TokenFloor};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::backend::{
    Backend, Claim, Claimed, ClaimedAll, Clock, LeaseRef, Moment, Notifier, Place, Renewal,
    Subscription, async_trait,
};
use leasehold::{FencingToken, Guarantees, LockQueue, Name, Result, StoreId};

/// The batches of one client so far: how long each took, and of how many places.
pub(super) type Batches = Arc<Mutex<Vec<(Duration, usize)>>>;

/// A client whose renewals are counted.
#[derive(Debug)]
pub(super) struct Counting {
    pub(super) inner: Arc<dyn Backend>,
    pub(super) batches: Batches,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Counting {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.inner.claim(claim).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.inner.claim_all(claims).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let begin = Moment::now();
        let answer = self.inner.renew(leases).await;
        let took = Moment::now().since(begin);
        self.batches
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((took, leases.len()));
        answer
    }

    fn renew_batch(&self) -> usize {
        self.inner.renew_batch()
    }

    async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()> {
        self.inner.release(claim, place).await
    }

    async fn release_after(
        &self,
        claim: &Claim,
        place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        self.inner.release_after(claim, place, rest).await
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

    fn completions(&self) -> Option<&dyn Completions> {
        self.inner.completions()
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        self.inner.token_floor()
    }

    fn notifier(&self) -> Option<&Notifier> {
        self.inner.notifier()
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
