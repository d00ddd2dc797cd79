//! A hold: what a guard, its views and its loss signal share.
//!
//! A hold is one turn of one granted claim. A guard owns it; views and loss signals share it, so
//! that they can outlive the guard and still be true. It has an end of its own,
//! because the claim of a [`fast`](crate::Lock::fast) lock goes on when the turn is over.

use std::sync::{Arc, Mutex, OnceLock};

use crate::engine::claim_state::ClaimState;
use crate::engine::client::Client;
use crate::engine::keeper::Work;
use crate::engine::local_queue::Turn;
use crate::engine::release::Release;
use crate::seam::clock::Moment;
use crate::seam::error::{Error, Result};
use crate::seam::grant::Claimed;
use crate::seam::loss::Loss;
use crate::seam::name::Name;
use crate::seam::token::FencingToken;
use crate::support::locked;

/// One turn of one granted claim. It ends when its guard is released, or with the claim.
pub(crate) struct Hold {
    pub(crate) client: Arc<Client>,
    pub(crate) state: Arc<ClaimState>,
    /// As the user wrote it.
    pub(crate) name: Name,
    pub(crate) token: FencingToken,
    /// Before this instant a release takes no effect in the store.
    pub(crate) not_before: Option<Moment>,
    ended: OnceLock<Loss>,
    /// Its turn of a `fast` lock's local queue. The hold gives it up, or the keeper when the claim is lost: the local queue
    /// need not wait until a lost guard is dropped.
    turn: Arc<Mutex<Option<Turn>>>,
}

impl Hold {
    pub(crate) fn new(
        client: Arc<Client>,
        state: Arc<ClaimState>,
        name: Name,
        token: FencingToken,
        not_before: Option<Moment>,
    ) -> Hold {
        Hold { client, state, name, token, not_before, ended: OnceLock::new(), turn: Arc::default() }
    }

    pub(crate) fn take_turn(&self) -> Option<Turn> {
        locked(&self.turn).take()
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        if let Some(ended) = self.ended.get() {
            return Some(*ended);
        }
        // Terminal for this turn too, whatever becomes of the claim.
        self.state.loss().map(|loss| *self.ended.get_or_init(|| loss))
    }

    /// Asks the store for this hold once more, with its mode and label of now: the answer extends it, or says that it is gone.
    pub(crate) async fn claim_again(&self) -> Result<()> {
        let Hold { client, state, name, .. } = self;
        let stamp = client.clock.now();
        match client.ask(client.backend.claim(&state.again())).await.map_err(|e| e.with_name(name))? {
            Claimed::Granted(grant) => {
                state.grant(grant, stamp);
                if state.loss().is_some() {
                    // It was gone, and the request took a new one, which no guard holds: it is released before the error is returned.
                    state.end_turns();
                    let _ = client.release_now(state).await;
                }
            }
            Claimed::Waiting(_) | Claimed::Busy(_) => state.lose(Loss::Gone),
        }
        self.verdict()
    }

    pub(crate) fn verdict(&self) -> Result<()> {
        match self.loss() {
            None => Ok(()),
            Some(loss) => Err(Error::lost(loss).with_name(&self.name)),
        }
    }

    /// Gives the lock to the next task of this process, or back to the store in the background: at once, or after `min_hold`.
    fn give_back(&self) {
        let Hold { client, state, not_before, .. } = self;
        let turn = self.take_turn();
        if let Some(at) = not_before.filter(|at| *at > client.clock.now() && state.loss().is_none()) {
            client.release_at(state, at);
        } else if turn.is_none_or(|turn| turn.pass(client, state).is_some()) {
            client.forget(state);
            client.work(Work::Withdraw(Release::of([state])));
        }
    }

    /// Ends this turn and says what its end was: `Released` if it was good up to now.
    pub(crate) fn finish(&self) -> Loss {
        let loss = self.loss().unwrap_or_else(|| *self.ended.get_or_init(|| Loss::Released));
        self.state.changed.notify_waiters();
        loss
    }
}

/// What the guards of one re-entered hold share: the last of them releases.
pub(crate) struct Share {
    pub(crate) hold: Arc<Hold>,
    /// Downgrades go one after the other.
    pub(crate) downgrading: tokio::sync::Mutex<()>,
    /// `release` has begun to give the hold back: the drop does nothing.
    answered: bool,
}

impl Share {
    pub(crate) fn new(hold: Hold, turn: Option<Turn>) -> Arc<Share> {
        let hold = Arc::new(hold);
        if turn.is_some() {
            *locked(&hold.turn) = turn;
            // Only the slot: the last owner of the hold closes the client, which is nothing for a store to do in a notification.
            let slot = hold.turn.clone();
            hold.state.in_turn(Box::new(move || {
                let turn = locked(&slot).take();
                drop(turn); // it goes to the next task only when the lock on it is free again
            }));
        }
        Arc::new(Share { hold, downgrading: tokio::sync::Mutex::default(), answered: false })
    }

    /// Gives the hold back and waits for the store's answer.
    pub(crate) async fn release(mut self) -> Result<()> {
        self.answered = true;
        let Hold { client, state, name, not_before, .. } = &*self.hold;
        let ended = self.hold.finish();
        let later = not_before.filter(|at| *at > client.clock.now());
        match (ended, later) {
            (Loss::Released, Some(at)) => {
                // No task here takes a turn of it any more: the next one claims in the store.
                drop(self.hold.take_turn());
                client.release_at_now(state, at).await.map_err(|e| e.with_name(name))
            }
            (Loss::Released, None) => {
                if let Some(turn) = self.hold.take_turn() {
                    // A task of this process gets it, or the next one claims in the store.
                    let Some(_leaves) = turn.pass(client, state) else { return Ok(()) };
                }
                client.release_now(state).await.map_err(|e| e.with_name(name))
            }
            (loss, _) => {
                self.hold.give_back();
                Err(Error::lost(loss).with_name(name))
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !self.answered {
            self.hold.finish();
            self.hold.give_back();
        }
    }
}
