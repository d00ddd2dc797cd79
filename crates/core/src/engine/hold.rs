//! A hold: the value that guards, views and the loss signal of one turn share.
//!
//! A hold is one turn of one granted claim. Guards own it together: the last of them that goes
//! gives it back. Views and loss signals only read it, so that they can outlive the guards and
//! still be true. They read the claim's state, which also knows when a turn ended: the claim of a
//! [`fast`](crate::Lock::fast) lock goes on when the turn is over.

use std::sync::{Arc, Weak};

use crate::backend::clock::Moment;
use crate::backend::completion::{Complete, Completion, Keep};
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::grant::Claimed;
use crate::backend::loss::Loss;
use crate::backend::name::Name;
use crate::backend::token::FencingToken;
use crate::engine::claim_state::ClaimState;
use crate::engine::client::Client;
use crate::engine::completing::{Completing, Ending};
use crate::engine::keeper::Work;
use crate::engine::local_queue::Turn;
use crate::engine::release::Release;
use crate::support::locked;
use crate::support::sync::Mutex;

/// One turn of one granted claim, for reading.
#[derive(Clone)]
pub(crate) struct Hold {
    pub(crate) client: Arc<Client>,
    pub(crate) state: Arc<ClaimState>,
    /// The name as the user wrote it.
    pub(crate) name: Name,
    pub(crate) token: FencingToken,
}

impl Hold {
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.state.loss_of(self.token)
    }

    /// Takes a turn that was passed to this task; false if the task came too late.
    pub(crate) fn take_turn(&self) -> bool {
        self.state.take_turn()
    }

    /// Asks the store for this hold once more, with its current mode and label. The answer extends
    /// the hold, or shows that it is gone.
    pub(crate) async fn claim_again(&self) -> Result<()> {
        let Hold {
            client,
            state,
            name,
            ..
        } = self;
        let stamp = client.clock.now();
        match client
            .ask(client.backend.claim(&state.again()))
            .await
            .map_err(|e| e.with_name(name))?
        {
            Claimed::Granted(grant) => {
                state.grant(grant, stamp);
                if state.loss().is_some() {
                    // The hold was gone, and the request took a new one, which no guard has: the
                    // new one is released before the error is returned.
                    state.end_turns();
                    let again_until = client.release_again_until();
                    let _ = client.release_now(state, again_until).await;
                }
            }
            Claimed::Waiting(_) | Claimed::Busy(_) | Claimed::Done(_) => state.lose(Loss::Gone),
        }
        self.verdict()
    }

    /// Returns whether the store may have forgotten the hold since it was last confirmed. Then no
    /// other task is given a part of it.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.client.is_in_doubt(&self.state)
    }

    /// Waits until the store has confirmed the hold, or the hold has ended.
    pub(crate) async fn settle(&self) {
        let pause = self.state.ttl() / 30;
        while self.is_in_doubt() && self.loss().is_none() {
            if self.claim_again().await.is_err() {
                self.client.clock.sleep(pause).await;
            }
        }
    }

    /// Returns an error unless a condition for a transaction of one store covers the hold. It does
    /// not cover the hold of a `fast` lock, which the next task takes over without the store's
    /// knowledge, or a hold in several stores, where another store may grant the lock to the next
    /// client.
    pub(crate) fn check_condition(&self) -> Result<()> {
        let refused = |why| Err(Error::new(ErrorKind::Unsupported, why).with_name(&self.name));
        if self
            .state
            .place()
            .is_some_and(|place| place.is_in_several_stores())
        {
            return refused(
                "no transaction can depend on a hold over a bridge: once its lease has ended, the other store grants the lock",
            );
        }
        if self.state.claim.turns() > 1 {
            return refused(
                "no transaction can depend on a hold of a `fast` lock: the next task of this process has it without the store",
            );
        }
        Ok(())
    }

    pub(crate) fn verdict(&self) -> Result<()> {
        self.loss().map_or(Ok(()), |loss| Err(self.lost(loss)))
    }

    /// The error for a lost hold, with the error of the failed renewal as its source if that is
    /// known.
    pub(crate) fn lost(&self, loss: Loss) -> Error {
        let lost = Error::lost(loss).with_name(&self.name);
        match self.state.cause_of(loss) {
            Some(cause) => lost.with_source(cause),
            None => lost,
        }
    }
}

/// The turn of a `fast` lock's local queue. The last guard gives it up, or the keeper does when the
/// claim is lost, so that the local queue need not wait until a lost guard is dropped.
type TurnSlot = Option<Arc<Mutex<Option<Turn>>>>;

/// One guard's part in a hold. The last of them that goes gives the hold back.
pub(crate) struct Share {
    pub(crate) hold: Hold,
    /// Before this instant a release takes no effect in the store.
    not_before: Option<Moment>,
    turn: TurnSlot,
    /// The share was released: the drop does nothing.
    left: bool,
}

impl Share {
    /// The first share of a turn.
    pub(crate) fn new(hold: Hold, not_before: Option<Moment>, turn: Option<Turn>) -> Share {
        let turn = turn.map(|turn| Arc::new(Mutex::new(Some(turn))));
        if let Some(slot) = turn.clone() {
            // The closure owns only the slot. The last owner of a hold closes the client, and that
            // must not happen inside a store's notification.
            hold.state.in_turn(Box::new(move || {
                let turn = locked(&slot).take();
                drop(turn); // it goes to the next task only when the lock on it is free again
            }));
            if hold.loss().is_some() {
                // The hold ended just before, so no notification of its end will come.
                hold.state.end_turns();
            }
        }
        Share {
            hold,
            not_before,
            turn,
            left: false,
        }
    }

    /// The weak share by which an owner enters the hold again.
    pub(crate) fn downgrade(&self) -> WeakShare {
        let Share {
            hold: Hold { state, token, .. },
            not_before,
            turn,
            ..
        } = self;
        WeakShare {
            state: Arc::downgrade(state),
            token: *token,
            not_before: *not_before,
            turn: turn.clone(),
        }
    }

    pub(crate) fn take_turn(&self) -> Option<Turn> {
        self.turn.as_ref().and_then(|slot| locked(slot).take())
    }

    /// Gives the hold back if this is the last share of it, and waits for the store's answer. A
    /// request that fails is repeated until `again_until`, and after that in the background.
    pub(crate) async fn release(mut self, again_until: Moment) -> Result<()> {
        self.left = true;
        let Hold {
            client,
            state,
            name,
            token,
        } = &self.hold;
        match state.leave(*token) {
            // Another guard may give the hold back at this moment: until then it was valid.
            None => self
                .hold
                .loss()
                .filter(|loss| *loss != Loss::Released)
                .map_or(Ok(()), |loss| Err(self.hold.lost(loss))),
            Some(Loss::Released) => {
                if let Some(at) = self.not_before.filter(|at| *at > client.clock.now()) {
                    // No task of this process gets another turn: the next one claims in the store.
                    drop(self.take_turn());
                    return client
                        .release_at_now(state, at, again_until)
                        .await
                        .map_err(|e| e.with_name(name));
                }
                if let Some(turn) = self.take_turn() {
                    // The next task of this process gets the turn, or it claims in the store.
                    let Some(_leaves) = turn.pass(client, state) else {
                        return Ok(());
                    };
                }
                client
                    .release_now(state, again_until)
                    .await
                    .map_err(|e| e.with_name(name))
            }
            Some(loss) => {
                self.give_back();
                Err(self.hold.lost(loss))
            }
        }
    }

    /// Completes the work of the hold, which ends with that in the store, and waits for the store's
    /// answer. The completion goes on in the background if the future is dropped. If the hold was
    /// lost before, nothing is completed.
    pub(crate) async fn complete(
        self,
        keep: Keep,
        (result, is_cut): (Option<Arc<str>>, bool),
    ) -> Result<Completion> {
        let Hold {
            state, name, token, ..
        } = &self.hold;
        let place = state.place().ok_or_else(|| {
            Error::new(ErrorKind::Internal, "a hold without a place").with_name(name)
        })?;
        let mut request = Complete::new(*token, place, keep);
        request.result = result;
        request.is_cut = is_cut;
        self.end_work(Ending::Complete(Arc::new(request))).await
    }

    /// Asks whether a transaction of the program has recorded that the work of the hold is done.
    /// Also after a loss: the transaction may have been committed before.
    pub(crate) async fn recorded(self) -> Result<Completion> {
        let token = self.hold.token;
        self.end_work(Ending::Recorded(token)).await
    }

    async fn end_work(mut self, ending: Ending) -> Result<Completion> {
        self.left = true;
        let Hold {
            client,
            state,
            name,
            token,
        } = &self.hold;
        let lost = state.begin_completion(*token);
        if let (Some(loss), Ending::Complete(_)) = (lost, &ending) {
            self.give_back();
            return Err(self.hold.lost(loss));
        }
        let completing = Completing::new(ending, state, client.clock.now());
        let answer = client.complete(state, completing).await;
        match (answer, lost) {
            // Nothing is recorded, because the hold was lost.
            (Err(e), Some(loss)) if e.kind() == ErrorKind::Invalid => Err(self.hold.lost(loss)),
            (answer, _) => answer.map_err(|e| e.with_name(name)),
        }
    }

    /// Gives the lock to the next task of this process, or back to the store in the background, at
    /// once or after `min_hold`.
    fn give_back(&self) {
        let Hold { client, state, .. } = &self.hold;
        let turn = self.take_turn();
        if let Some(at) = self
            .not_before
            .filter(|at| *at > client.clock.now() && state.loss().is_none())
        {
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
    /// Returns a share for another guard if the hold is valid and has a guard. `name` is the name
    /// as the user wrote it.
    pub(crate) fn upgrade(&self, client: &Arc<Client>, name: &Name) -> Option<Share> {
        let state = self
            .state
            .upgrade()
            .filter(|state| state.share(self.token))?;
        let hold = Hold {
            client: client.clone(),
            state,
            name: name.clone(),
            token: self.token,
        };
        Some(Share {
            hold,
            not_before: self.not_before,
            turn: self.turn.clone(),
            left: false,
        })
    }

    /// Returns whether its claim has a guard. Nothing is notified: the caller has a mutex locked.
    pub(crate) fn is_held(&self) -> bool {
        self.state.upgrade().is_some_and(|state| state.guards() > 0)
    }
}
