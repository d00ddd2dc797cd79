//! A store over two stores. It holds each lock in both, so that a fleet can move from one store to
//! the other by two rolling deploys.
//!
//! Stage 1 holds in the old store; stage 2, the bridge, holds in both; stage 3 holds in the new
//! store. Stages 1 and 2 may run at the same time, and later 2 and 3, but never 1 and 3. At no
//! moment do two clients hold one lock, does a lock become impossible to take, or does a token
//! fall.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold_core::Result<()> {
//! use leasehold_bridge::Bridge;
//! use leasehold_core::Store;
//! use leasehold_memory::Memory;
//!
//! let (old, new) = (Memory::new(), Memory::new());
//! let bridge = Store::new(Bridge::new(old.another_client(), new.another_client())?);
//! let guard = bridge.lock("orders/42").acquire().await?;
//! assert!(Store::new(old).lock("orders/42").try_acquire().await.is_err());
//! assert!(Store::new(new).lock("orders/42").try_acquire().await.is_err());
//! guard.release().await
//! # }
//! ```

mod check;
mod children;
mod claim;
mod claim_in_store;
mod inspect;
mod pair;
mod release;
mod renew;
mod stages;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Clock, LeaseRef, Notifier, Place, Renewal, Subscription, async_trait,
};
use leasehold_core::{
    Error, ErrorKind, FencingToken, Guarantees, LockQueue, Name, Result, StoreId,
};

use crate::children::{Children, Parent};
use crate::claim::Attempt;
use crate::pair::{Pair, Side};
pub use crate::stages::{InStage, Stage};

/// A client of two stores, which holds in both: stage 2 of a move from the old one to the new one.
///
/// It takes the lock in the old store, and then in the new one. It holds until the earlier of the
/// two leases ends, and a loss in either store is a loss of the hold. Both stores know a hold by
/// one token before its guard exists, so the tokens of a name keep rising in both. Its guarantees
/// are the weaker ones of the two stores ([`Guarantees`]).
///
/// A condition of one of the two stores (`still_holds`) does not cover a hold of a bridge, and is
/// refused: once the lease has ended, the other store grants the lock, even if a transaction in the
/// first store keeps the hold there. Tokens protect as always.
pub struct Bridge {
    pair: Pair,
    notifier: Notifier,
    clock: Clock,
    children: Children,
    /// The latest claim in the new store was not answered.
    new_failed: AtomicBool,
}

impl Bridge {
    /// Makes a client of two stores from a client of each. No other store may use these clients.
    ///
    /// It sends nothing. [`check`](Bridge::check) asks the servers whether they fit.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported), with the reason, for a pair for which the promises cannot be kept: the
    /// leases of both are not compared with one clock, one of them cannot raise its tokens, or both number a place when it
    /// is taken ([`Raises::Places`](leasehold_core::backend::Raises::Places)).
    pub fn new(old: impl Backend, new: impl Backend) -> Result<Bridge> {
        let pair = Pair::new(Box::new(old), Box::new(new))?;
        let notifier = Notifier::new();
        let clock = pair.on(Side::Old).clock();
        for side in [Side::Old, Side::New] {
            if let Some(part) = pair.on(side).notifier() {
                part.is_part_of(&notifier);
            }
        }
        Ok(Bridge {
            pair,
            notifier,
            clock,
            children: Children::default(),
            new_failed: AtomicBool::new(false),
        })
    }

    /// Claims in both stores, unless the parent was released since `epoch`.
    async fn attempt(&self, parent: &Arc<Parent>, epoch: u64, claim: &Claim) -> Result<Claimed> {
        let answer = Attempt::new(self, parent, epoch, claim).run().await;
        if !matches!(answer, Ok(Claimed::Granted(_) | Claimed::Waiting(_))) {
            self.children.forget_if_gone(parent);
        }
        answer
    }

    /// Returns whether the new store has not answered the latest claim.
    fn new_failed(&self) -> bool {
        self.new_failed.load(Ordering::Acquire)
    }

    /// Marks a claim in the new store as sent. It counts as failed unless it is
    /// [answered](Unanswered::answered).
    fn asks_new(&self) -> Unanswered<'_> {
        Unanswered(&self.new_failed)
    }
}

/// A request that has no answer yet.
struct Unanswered<'a>(&'a AtomicBool);

impl Unanswered<'_> {
    fn answered(self, failed: Option<&Error>) {
        let away = |e: &Error| {
            let kind = e.kind();
            matches!(
                kind,
                ErrorKind::Unavailable | ErrorKind::OtherStore | ErrorKind::Ambiguous
            )
        };
        self.0.store(failed.is_some_and(away), Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Bridge(from {:?} to {:?})",
            self.pair.on(Side::Old),
            self.pair.on(Side::New)
        )
    }
}

#[async_trait]
impl Backend for Bridge {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let (parent, epoch) = self.children.of(claim, self.clock.now());
        self.attempt(&parent, epoch, claim).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        Ok(self.renew_both(leases).await)
    }

    fn renew_batch(&self) -> usize {
        self.pair
            .on(Side::Old)
            .renew_batch()
            .min(self.pair.on(Side::New).renew_batch())
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        self.release_both(claim).await
    }

    async fn release_after(
        &self,
        claim: &Claim,
        _place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        self.release_both_after(claim, rest).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        self.inspect_both(name).await
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.list_both(prefix, after, limit).await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.evict_both(name, token).await
    }

    /// The identities of both stores, of which each store compares its own. `None` if one has none.
    fn identity(&self) -> Option<StoreId> {
        let old = self.pair.on(Side::Old).identity()?;
        let new = self.pair.on(Side::New).identity()?;
        Some(StoreId::of("bridge", format_args!("{old}.{new}")))
    }

    fn guarantees(&self) -> Guarantees {
        self.pair.guarantees()
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.notifier)
    }

    fn observe(&self, name: &Name) -> Subscription {
        self.pair
            .on(Side::Old)
            .observe(name)
            .and(self.pair.on(Side::New).observe(name))
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    async fn close(&self) -> Result<()> {
        let (new, old) = join(
            self.pair.on(Side::New).close(),
            self.pair.on(Side::Old).close(),
        )
        .await;
        self.children.clear();
        new.map_err(|e| Side::New.says(e))
            .and(old.map_err(|e| Side::Old.says(e)))
    }
}
