//! The guard: the one value whose life is the lock's. Not `Clone`; dropping it gives the lock back.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::api::held::{Held, view_methods};
use crate::engine::hold::{Hold, Share};
use crate::seam::claim::Mode;
use crate::seam::error::{Error, ErrorKind, Result};
use crate::seam::loss::Lost;

/// A held lock. While it lives it renews itself; [`release`](Guard::release) or drop gives the lock back.
///
/// Dropping it releases in the background, retried until done or the lease has run out; it never blocks and never panics,
/// also outside of a runtime. If no runtime is left, the lease ends it. Bind it to a name: `let _ = lock.acquire().await?`
/// releases at once.
///
/// **A program that returns from `main` with a guard alive, or just after it was dropped, leaves the lock taken until its TTL
/// has passed**: the runtime ends before the background has sent anything. Call `release`, or end with
/// [`Store::close`](crate::Store::close), which waits for what is under way. There is no last attempt at the end of a runtime:
/// by then its connections cannot be driven any more, and to block there could hang the program's end.
#[must_use = "dropping the guard releases the lock; bind it to a name, not to `_`"]
pub struct Guard {
    held: Held,
    share: Arc<Share>,
}

view_methods!(Guard, held);

impl Guard {
    pub(crate) fn of(share: Arc<Share>) -> Guard {
        Guard { held: Held(share.hold.clone()), share }
    }

    pub(crate) fn share(&self) -> &Arc<Share> {
        &self.share
    }

    /// Asks the store, with one request, whether the lock is ours *now*; the answer extends the lease.
    ///
    /// `Err` of kind [`Lost`](crate::ErrorKind::Lost): it is not. Any other error, after at most five seconds: the store did
    /// not say; validity is what it was. Cancel-safe.
    pub async fn confirm(&self) -> Result<()> {
        self.check()?;
        self.share.hold.claim_again().await
    }

    /// Makes an exclusive hold a shared one without letting go of it: the same guard, the same token; readers who wait in
    /// line get in beside it, writers wait on. There is no way back: two who wanted it would wait for each other.
    ///
    /// `Err` of kind [`Invalid`](crate::ErrorKind::Invalid): it is a semaphore's, or other guards of its owner share the
    /// hold and count on its being exclusive. `Unsupported`: this store cannot. Any other error: the store did not say; ask
    /// again. Cancel-safe: dropped midway it may or may not have happened, and may be asked again.
    pub async fn downgrade(&self) -> Result<()> {
        let _one_at_a_time = self.share.downgrading.lock().await;
        self.check()?;
        let Hold { state, name, .. } = &*self.share.hold;
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text).with_name(name));
        let before = state.mode();
        if matches!(before, Mode::Permits { .. }) {
            return invalid("a semaphore's permits cannot be shared");
        }
        // First of all nobody of this owner enters to write any more: whoever did before is counted.
        state.count_as_shared(true);
        if before == Mode::Exclusive && Arc::strong_count(&self.share) > 1 {
            state.count_as_shared(false);
            return invalid("other guards of this owner count on an exclusive hold");
        }
        // Nor does another task of this process take an exclusive turn of it.
        drop(self.share.hold.take_turn());
        let done = self.share.hold.claim_again().await;
        if done.as_ref().is_err_and(|e| !e.kind().may_have_been_executed()) {
            state.count_as_shared(before == Mode::Shared);
        }
        done
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Gives the lock back and waits for the store's word, at most five seconds.
    ///
    /// `Ok`: it was ours up to now. `Err` of kind [`Lost`](crate::ErrorKind::Lost): it was not, so the section was not
    /// protected to its end. Any other error: it was ours, and the release goes on in the background. The release of a
    /// re-entered hold that other guards share, or of one within its `min_hold`, takes effect later.
    ///
    /// # Cancel safety
    ///
    /// Dropped midway, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        let verdict = self.check();
        match Arc::into_inner(self.share) {
            Some(last) => last.release().await,
            None => verdict,
        }
    }

    /// Runs `body` while the lock is held, and gives it back afterwards.
    ///
    /// The body gets a look at the hold. If the lock is lost, the body is dropped at its current await and the result is
    /// `Err` of kind [`Lost`](crate::ErrorKind::Lost), also if it had just ended but the lock was no longer ours by then.
    /// On loss and on cancellation the body is dropped first, then the lock is given back. A release that fails after a
    /// good body is no error: it goes on in the background. It cannot stop blocking calls or detached tasks: let those look
    /// at [`Held::is_valid`] and send the token.
    pub async fn run<T, F: Future<Output = T>>(self, body: impl FnOnce(Held) -> F) -> Result<T> {
        let outcome = while_held(self.lost(), body(self.view())).await;
        let done = outcome.map_err(|e| e.with_name(self.name()))?;
        match self.release().await {
            Err(e) if e.loss().is_some() => Err(e),
            _ => Ok(done),
        }
    }
}

/// Runs a body until it ends or the hold is lost; then the body is dropped at its current await.
pub(crate) async fn while_held<T>(lost: Lost, body: impl Future<Output = T>) -> Result<T> {
    tokio::pin!(body);
    tokio::select! {
        biased;
        loss = lost => Err(Error::lost(loss)),
        done = body => Ok(done),
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?})", self.held)
    }
}
