//! The guard: the one value whose life is the lock's. Not `Clone`; dropping it gives the lock back.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::claim::Mode;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Held, Hold, view_methods};
use crate::loss::{Loss, Lost};
use crate::release::Release;

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
    share: Arc<Share>,
}

view_methods!(Guard, share.held);

/// What the guards of one re-entered hold share: the last of them releases.
pub(crate) struct Share {
    pub(crate) held: Held,
    /// Downgrades go one after the other.
    downgrading: tokio::sync::Mutex<()>,
    /// Somebody answers for the release already.
    answered: bool,
}

impl Guard {
    pub(crate) fn new(hold: Hold) -> Guard {
        let (held, downgrading) = (Held(Arc::new(hold)), tokio::sync::Mutex::default());
        Guard { share: Arc::new(Share { held, downgrading, answered: false }) }
    }

    pub(crate) fn of(share: Arc<Share>) -> Guard {
        Guard { share }
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
        self.share.held.0.claim_again().await
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
        let Hold { state, name, .. } = &*self.share.held.0;
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
        drop(self.share.held.0.take_turn());
        let done = self.share.held.0.claim_again().await;
        if done.as_ref().is_err_and(|e| !e.kind().may_have_been_executed()) {
            state.count_as_shared(before == Mode::Shared);
        }
        done
    }

    pub(crate) fn held(&self) -> &Held {
        &self.share.held
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
        let Some(mut share) = Arc::into_inner(self.share) else { return verdict };
        share.answered = true;
        let held = &share.held;
        let Hold { client, state, name, not_before, .. } = &*held.0;
        let ended = held.0.finish();
        let later = not_before.filter(|at| *at > client.clock.now());
        match (ended, later) {
            (Loss::Released, Some(at)) => {
                // Nobody here takes a turn of it any more: whoever waits goes to the store.
                drop(held.0.take_turn());
                client.release_at_now(state, at).await.map_err(|e| e.with_name(name))?;
            }
            (Loss::Released, None) => {
                if let Some(turn) = held.0.take_turn() {
                    // A task of this process gets it, or whoever waits here goes to the store.
                    let Some(_leaves) = turn.pass(client, state) else { return Ok(()) };
                }
                client.release_now(state).await.map_err(|e| e.with_name(name))?;
            }
            (loss, _) => {
                give_back(&held.0);
                return Err(Error::lost(loss).with_name(name));
            }
        }
        Ok(())
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

impl Drop for Share {
    fn drop(&mut self) {
        if !self.answered {
            self.held.0.finish();
            give_back(&self.held.0);
        }
    }
}

/// Gives the lock to the next task of this process, or back to the store in the background: at once, or after `min_hold`.
fn give_back(hold: &Hold) {
    let Hold { client, state, not_before, .. } = hold;
    let turn = hold.take_turn();
    if let Some(at) = not_before.filter(|at| *at > client.clock.now() && state.loss().is_none()) {
        client.release_at(state, at);
    } else if turn.is_none_or(|turn| turn.pass(client, state).is_some()) {
        client.forget(state);
        client.release(Release::of([state]));
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?})", self.share.held)
    }
}
