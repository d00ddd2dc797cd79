//! A hold and the looks at it: what a guard, its views and its loss signal share.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::claim_state::ClaimState;
use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::grant::Claimed;
use crate::local_queue::Turn;
use crate::loss::{Loss, Lost};
use crate::name::Name;
use crate::sync::locked;
use crate::token::FencingToken;

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
    /// Its place behind the gate of a `fast` lock.
    turn: TurnSlot,
}

/// A turn that its hold gives up, or the keeper when the claim is lost: whoever waits behind the gate need not wait until a
/// lost guard is dropped.
pub(crate) type TurnSlot = Arc<Mutex<Option<Turn>>>;

impl Hold {
    pub(crate) fn new(
        client: Arc<Client>,
        state: Arc<ClaimState>,
        name: Name,
        token: FencingToken,
        not_before: Option<Moment>,
    ) -> Hold {
        Hold { client, state, name, token, not_before, ended: OnceLock::new(), turn: TurnSlot::default() }
    }

    pub(crate) fn in_turn(self, turn: Turn) -> Hold {
        let before = locked(&self.turn).replace(turn);
        drop(before);
        self.state.in_turn(self.turn.clone());
        self
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
                    // It was gone, and the question took a new one, which nobody holds: it goes before we say so.
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

    /// Ends this turn and says what its end was: `Released` if it was good up to now.
    pub(crate) fn finish(&self) -> Loss {
        let loss = self.loss().unwrap_or_else(|| *self.ended.get_or_init(|| Loss::Released));
        self.state.changed.notify_waiters();
        loss
    }
}

/// A look at a hold: it outlives the guard, it releases nothing, and it may be cloned for subtasks.
#[derive(Clone)]
pub struct Held(pub(crate) Arc<Hold>);

/// The six looks, inherent on every type that has a `Held`.
macro_rules! view_methods {
    ($type:ty, $($held:tt)+) => {
        impl $type {
            /// The lock's name, as it was written, without the store's namespace.
            pub fn name(&self) -> &crate::Name {
                &self.$($held)+.0.name
            }

            /// The token to hand to the resource with each write. Equal for the whole hold.
            pub fn fencing_token(&self) -> crate::FencingToken {
                self.$($held)+.0.token
            }

            /// Whether the lock is provably ours at this instant. Computed now, from a clock that counts suspend: a starved
            /// task and a process that was stopped see the truth. It asks nobody. A pause right after it is beyond any
            /// lock: the resource's check of the token is what protects data then.
            pub fn is_valid(&self) -> bool {
                self.$($held)+.0.loss().is_none()
            }

            /// For how much longer it is provably ours if nothing renews it; zero once it is not.
            pub fn remaining(&self) -> std::time::Duration {
                self.$($held)+.time_left()
            }

            /// `Err` with kind [`ErrorKind::Lost`](crate::ErrorKind::Lost) once it is not ours any more. Local, computed now.
            pub fn check(&self) -> crate::Result<()> {
                self.$($held)+.0.verdict()
            }

            /// Resolves when the hold has ended, at the latest when it is no longer provably ours; with
            /// [`Loss::Released`](crate::Loss::Released) after a release. Owned: keep it, move it, drop it.
            pub fn lost(&self) -> crate::Lost {
                self.$($held)+.watch()
            }

            /// A look at this hold that outlives the guard and releases nothing.
            pub fn view(&self) -> crate::Held {
                self.$($held)+.clone()
            }
        }

        impl crate::Lease for $type {
            fn loss(&self) -> Option<crate::Loss> {
                self.$($held)+.0.loss()
            }
            fn remaining(&self) -> std::time::Duration {
                self.$($held)+.time_left()
            }
            fn lost(&self) -> crate::Lost {
                self.$($held)+.watch()
            }
        }

        impl crate::Fenced for $type {
            fn name(&self) -> &crate::Name {
                &self.$($held)+.0.name
            }
            fn fencing_token(&self) -> crate::FencingToken {
                self.$($held)+.0.token
            }
            fn full_name(&self) -> &crate::Name {
                &self.$($held)+.0.state.claim.name
            }
            fn place(&self) -> Option<crate::seam::Place> {
                self.$($held)+.0.state.place()
            }
        }
    };
}
pub(crate) use view_methods;

view_methods!(Held, itself());

impl Held {
    /// Lets the looks be implemented on `Held` itself by the same macro.
    fn itself(&self) -> &Held {
        self
    }

    pub(crate) fn time_left(&self) -> Duration {
        if self.0.loss().is_some() { Duration::ZERO } else { self.0.state.remaining() }
    }

    pub(crate) fn watch(&self) -> Lost {
        let hold = self.0.clone();
        Lost::new(async move {
            loop {
                let changed = hold.state.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(loss) = hold.loss() {
                    return loss;
                }
                hold.client.register_this_runtime();
                changed.await;
            }
        })
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hold { name, token, .. } = &*self.0;
        f.debug_struct("Held").field("name", name).field("token", &token.get()).field("loss", &self.0.loss()).finish()
    }
}
