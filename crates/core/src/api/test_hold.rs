//! A guard without a store: what a mock of a lock returns, and what a test ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::api::guard::Guard;
use crate::api::options::MAX_TTL;
use crate::backend::claim::{Claim, LeaseRef, Mode, Place, WaitPolicy};
use crate::backend::contract::Backend;
use crate::backend::error::Result;
use crate::backend::grant::{Claimed, Grant, Renewal, Validity};
use crate::backend::guarantees::Guarantees;
use crate::backend::loss::Loss;
use crate::backend::name::Name;
use crate::backend::queue::LockQueue;
use crate::backend::token::FencingToken;
use crate::engine::claim_state::{Bounds, ClaimState};
use crate::engine::client::Client;
use crate::engine::hold::{Hold, Share};

/// The test's side of a guard that no store has granted, from [`Guard::for_tests`]: it ends the
/// hold, and sees that it was released.
///
/// The guard does not depend on it, and outlives it.
#[derive(Clone)]
pub struct TestHold {
    state: Arc<ClaimState>,
    token: FencingToken,
}

impl TestHold {
    /// Ends the hold for this reason, as a store would. A hold that has ended stays as it is.
    pub fn lose(&self, loss: Loss) {
        self.state.lose(loss);
    }

    /// Why the hold ended: [`Released`](Loss::Released) once its guard was released or dropped.
    /// `None` while it is held.
    pub fn loss(&self) -> Option<Loss> {
        self.state.loss_of(self.token)
    }
}

impl fmt::Debug for TestHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestHold")
            .field("loss", &self.loss())
            .finish()
    }
}

impl Guard {
    /// A guard that no store has granted, for tests and for mocks of a
    /// [`DistributedLock`](crate::DistributedLock), and the test's side of it.
    ///
    /// It behaves as a guard with a lease of [`MAX_TTL`](crate::MAX_TTL) from a store that answers
    /// every request at once. It excludes nobody, and needs a tokio runtime where any guard does.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{FencingToken, Guard, Loss};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let (guard, hold) = Guard::for_tests("orders/42", FencingToken::new(7));
    /// assert!(guard.is_valid() && guard.fencing_token().get() == 7);
    /// hold.lose(Loss::Evicted);
    /// assert_eq!(guard.lost().await, Loss::Evicted);
    /// assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Evicted));
    /// # });
    /// ```
    pub fn for_tests(name: impl Into<Name>, token: FencingToken) -> (Guard, TestHold) {
        let name = name.into();
        let backend = Arc::new(Granting(token));
        let client = Arc::new(Client::new(backend, fastrand::Rng::new(), None));
        let claim = Claim::new(name.clone(), Mode::Exclusive, WaitPolicy::Try, MAX_TTL, "");
        let bounds = Bounds::default();
        let state = Arc::new(ClaimState::new(claim, client.clock.clone(), bounds));
        let now = client.clock.now();
        state.grant_at(now, granted(token), now);
        let _ = state.take_grant(now);
        let hold = Hold {
            client,
            state: state.clone(),
            name,
            token,
        };
        (
            Guard::of(Share::new(hold, None, None)),
            TestHold { state, token },
        )
    }
}

/// The grant of a store that knows no server.
fn granted(token: FencingToken) -> Grant {
    Grant::new(Place::new("no store"), token, MAX_TTL)
}

/// The store of one guard: it says that it is held, and forgets nothing.
#[derive(Debug)]
struct Granting(FencingToken);

#[async_trait]
impl Backend for Granting {
    async fn claim(&self, _: &Claim) -> Result<Claimed> {
        Ok(Claimed::Granted(granted(self.0)))
    }
    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let renewed = |_| Renewal::Renewed(Validity::from(MAX_TTL));
        Ok(leases.iter().map(renewed).collect())
    }
    async fn release(&self, _: &Claim, _: Option<&Place>) -> Result<()> {
        Ok(())
    }
    async fn release_after(&self, _: &Claim, _: Option<&Place>, _: Duration) -> Result<()> {
        Ok(())
    }
    async fn inspect(&self, _: &Name) -> Result<LockQueue> {
        Ok(LockQueue::default())
    }
    async fn list(&self, _: &str, _: Option<&Name>, _: usize) -> Result<Vec<Name>> {
        Ok(Vec::new())
    }
    async fn evict(&self, _: &Name, _: FencingToken) -> Result<bool> {
        Ok(false)
    }
    fn guarantees(&self) -> Guarantees {
        Guarantees::none("test")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::lease::Lease;

    fn held() -> (Guard, TestHold) {
        Guard::for_tests("a", FencingToken::new(7))
    }

    #[tokio::test]
    async fn it_is_held_until_it_is_released() {
        let (guard, hold) = held();
        let view = guard.view();
        assert!(guard.is_valid() && guard.remaining() > MAX_TTL / 2);
        assert_eq!(
            (guard.name().as_str(), guard.fencing_token().get()),
            ("a", 7)
        );
        guard.confirm().await.unwrap();
        guard.downgrade().await.unwrap();
        assert_eq!((hold.loss(), guard.fencing_token().get()), (None, 7));
        guard.release().await.unwrap();
        assert_eq!(hold.loss(), Some(Loss::Released));
        assert_eq!(view.loss(), Some(Loss::Released));
    }

    #[tokio::test]
    async fn it_is_lost_when_the_test_says_so() {
        let (guard, hold) = held();
        let lost = guard.lost();
        hold.lose(Loss::Evicted);
        hold.lose(Loss::Expired);
        assert_eq!(lost.await, Loss::Evicted);
        assert_eq!(guard.check().unwrap_err().loss(), Some(Loss::Evicted));
        let (guard, hold) = held();
        let ran = tokio::spawn(guard.run(|_| std::future::pending::<()>()));
        hold.lose(Loss::Gone);
        assert_eq!(ran.await.unwrap().unwrap_err().loss(), Some(Loss::Gone));
    }

    #[test]
    fn it_needs_no_runtime_to_be_made_and_dropped() {
        let (guard, hold) = held();
        assert!(guard.is_valid());
        drop(guard);
        assert_eq!(hold.loss(), Some(Loss::Released));
    }
}
