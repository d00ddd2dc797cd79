//! The guard: the one value whose life is the lock's. Not `Clone`; dropping it gives the lock back.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::claim::Queue;
use crate::error::{Error, Result};
use crate::grant::Claimed;
use crate::hold::{Held, Hold, looks};
use crate::keeper::Release;
use crate::loss::Loss;

/// A held lock. While it lives it renews itself; [`release`](Guard::release) or drop gives the lock back.
///
/// Dropping it releases in the background, retried until done or the lease has run out; it never blocks and never panics,
/// also outside of a runtime (then the lease ends it). Bind it to a name: `let _ = lock.acquire().await?` releases at once.
#[must_use = "dropping the guard releases the lock; bind it to a name, not to `_`"]
pub struct Guard {
    share: Arc<Share>,
}

looks!(Guard, share.held);

/// What the guards of one re-entered hold share: the last of them releases.
pub(crate) struct Share {
    pub(crate) held: Held,
    /// Somebody answers for the release already.
    answered: bool,
}

impl Guard {
    pub(crate) fn new(hold: Hold) -> Guard {
        Guard { share: Arc::new(Share { held: Held(Arc::new(hold)), answered: false }) }
    }

    pub(crate) fn of(share: Arc<Share>) -> Guard {
        Guard { share }
    }

    pub(crate) fn share(&self) -> &Arc<Share> {
        &self.share
    }

    /// Asks the store, with one request, whether the lock is ours *now*; the answer extends the lease.
    ///
    /// `Err` of kind [`Lost`](crate::ErrorKind::Lost): it is not. Any other error: the store did not say; validity is what
    /// it was. Cancel-safe.
    pub async fn confirm(&self) -> Result<()> {
        self.check()?;
        let Hold { client, standing, name, .. } = &*self.share.held.0;
        let stamp = client.clock.now();
        let mut again = (*standing.claim).clone();
        again.queue = Queue::Try; // a hold that is gone must not leave a place in line
        match client.ask(client.backend.claim(&again)).await.map_err(|e| e.with_name(name))? {
            Claimed::Granted(grant) => standing.grant(grant, stamp),
            Claimed::Waiting(_) | Claimed::Busy(_) => standing.lose(Loss::Gone),
        }
        self.check()
    }

    /// Gives the lock back and waits for the store's word.
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
        let Hold { client, standing, name, not_before, .. } = &*held.0;
        let ended = held.0.end();
        let later = not_before.filter(|at| *at > client.clock.now());
        match (ended, later) {
            (Loss::Released, Some(_)) => give_back(&held.0),
            (Loss::Released, None) => {
                if let Some(turn) = held.0.take_turn() {
                    // A task of this process gets it, or whoever waits here goes to the store.
                    let Some(_leaves) = turn.pass(client, standing) else { return Ok(()) };
                }
                client.release_now(standing).await.map_err(|e| e.with_name(name))?;
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
        let outcome = {
            let body = body(self.view());
            tokio::pin!(body);
            tokio::select! {
                biased;
                loss = self.lost() => Err(Error::lost(loss).with_name(self.name())),
                done = body => Ok(done),
            }
        };
        let done = outcome?;
        match self.release().await {
            Err(e) if e.loss().is_some() => Err(e),
            _ => Ok(done),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !self.answered {
            self.held.0.end();
            give_back(&self.held.0);
        }
    }
}

/// Gives the lock to the next task of this process, or back to the store in the background: at once, or after `min_hold`.
fn give_back(hold: &Hold) {
    let Hold { client, standing, not_before, .. } = hold;
    let turn = hold.take_turn();
    if let Some(at) = not_before.filter(|at| *at > client.clock.now() && standing.loss().is_none()) {
        client.release_at(standing, at);
    } else if turn.is_none_or(|turn| turn.pass(client, standing).is_some()) {
        client.forget(standing);
        client.release(Release::of(standing));
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?})", self.share.held)
    }
}
