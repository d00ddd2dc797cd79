//! A hold: what guards, views and the loss signal of one turn share.
//!
//! A hold is one turn of one granted claim. Guards own it together: the last of them that goes gives it
//! back. Views and loss signals only look at it, so that they can outlive the guards and still be
//! true. What they look at is the claim's state, which knows also when a turn ended: the claim of a
//! [`fast`](crate::Lock::fast) lock goes on when the turn is over.

use std::sync::{Arc, Weak};

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
use crate::support::sync::Mutex;

/// One turn of one granted claim, to look at.
#[derive(Clone)]
pub(crate) struct Hold {
    pub(crate) client: Arc<Client>,
    pub(crate) state: Arc<ClaimState>,
    /// As the user wrote it.
    pub(crate) name: Name,
    pub(crate) token: FencingToken,
}

impl Hold {
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.state.loss_of(self.token)
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

    /// Whether the store may have forgotten it since it was last confirmed: then no other task is given a part of it.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.client.is_in_doubt(&self.state)
    }

    /// Waits until the store has confirmed it, or it has ended.
    pub(crate) async fn settle(&self) {
        let pause = self.state.ttl() / 30;
        while self.is_in_doubt() && self.loss().is_none() {
            if self.claim_again().await.is_err() {
                self.client.clock.sleep(pause).await;
            }
        }
    }

    pub(crate) fn verdict(&self) -> Result<()> {
        self.loss().map_or(Ok(()), |loss| Err(self.lost(loss)))
    }

    fn lost(&self, loss: Loss) -> Error {
        Error::lost(loss).with_name(&self.name)
    }
}

/// The turn of a `fast` lock's local queue. The last guard gives it up, or the keeper when the claim is lost: the local queue
/// need not wait until a lost guard is dropped.
type TurnSlot = Option<Arc<Mutex<Option<Turn>>>>;

/// One guard's part in a hold. The last of them that goes gives the hold back.
pub(crate) struct Share {
    pub(crate) hold: Hold,
    /// Before this instant a release takes no effect in the store.
    not_before: Option<Moment>,
    turn: TurnSlot,
    /// It takes no part any more: the drop does nothing.
    left: bool,
}

impl Share {
    /// The first one of a turn.
    pub(crate) fn new(hold: Hold, not_before: Option<Moment>, turn: Option<Turn>) -> Share {
        let turn = turn.map(|turn| Arc::new(Mutex::new(Some(turn))));
        if let Some(slot) = turn.clone() {
            // Only the slot: the last owner of a hold closes the client, which is nothing for a store to do in a notification.
            hold.state.in_turn(Box::new(move || {
                let turn = locked(&slot).take();
                drop(turn); // it goes to the next task only when the lock on it is free again
            }));
            if hold.loss().is_some() {
                // It ended just before: no notification of that comes any more.
                hold.state.end_turns();
            }
        }
        Share { hold, not_before, turn, left: false }
    }

    /// By which its owner enters the hold again.
    pub(crate) fn downgrade(&self) -> WeakShare {
        let Share { hold: Hold { state, token, .. }, not_before, turn, .. } = self;
        WeakShare { state: Arc::downgrade(state), token: *token, not_before: *not_before, turn: turn.clone() }
    }

    pub(crate) fn take_turn(&self) -> Option<Turn> {
        self.turn.as_ref().and_then(|slot| locked(slot).take())
    }

    /// Gives the hold back if this is the last share of it, and waits for the store's answer.
    pub(crate) async fn release(mut self) -> Result<()> {
        self.left = true;
        let Hold { client, state, name, token } = &self.hold;
        match state.leave(*token) {
            // Another guard may give it back just now: up to then it was good.
            None => {
                self.hold.loss().filter(|loss| *loss != Loss::Released).map_or(Ok(()), |loss| Err(self.hold.lost(loss)))
            }
            Some(Loss::Released) => {
                if let Some(at) = self.not_before.filter(|at| *at > client.clock.now()) {
                    // No task here takes a turn of it any more: the next one claims in the store.
                    drop(self.take_turn());
                    return client.release_at_now(state, at).await.map_err(|e| e.with_name(name));
                }
                if let Some(turn) = self.take_turn() {
                    // A task of this process gets it, or the next one claims in the store.
                    let Some(_leaves) = turn.pass(client, state) else { return Ok(()) };
                }
                client.release_now(state).await.map_err(|e| e.with_name(name))
            }
            Some(loss) => {
                self.give_back();
                Err(self.hold.lost(loss))
            }
        }
    }

    /// Gives the lock to the next task of this process, or back to the store in the background: at once, or after `min_hold`.
    fn give_back(&self) {
        let Hold { client, state, .. } = &self.hold;
        let turn = self.take_turn();
        if let Some(at) = self.not_before.filter(|at| *at > client.clock.now() && state.loss().is_none()) {
            client.release_at(state, at);
        } else if turn.is_none_or(|turn| turn.pass(client, state).is_some()) {
            client.forget(state);
            client.work(Work::Withdraw(Release::of([state])));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !self.left && self.hold.state.leave(self.hold.token).is_some() {
            self.give_back();
        }
    }
}

/// A hold that its owner may enter again as long as it has a guard.
pub(crate) struct WeakShare {
    state: Weak<ClaimState>,
    token: FencingToken,
    not_before: Option<Moment>,
    turn: TurnSlot,
}

impl WeakShare {
    /// Another guard's part in the hold, if it is good and has a guard. `name`: as the user wrote it.
    pub(crate) fn upgrade(&self, client: &Arc<Client>, name: &Name) -> Option<Share> {
        let state = self.state.upgrade().filter(|state| state.share(self.token))?;
        let hold = Hold { client: client.clone(), state, name: name.clone(), token: self.token };
        Some(Share { hold, not_before: self.not_before, turn: self.turn.clone(), left: false })
    }

    /// Whether its claim has a guard. Nothing is notified: the caller has a mutex locked.
    pub(crate) fn is_held(&self) -> bool {
        self.state.upgrade().is_some_and(|state| state.guards() > 0)
    }
}
