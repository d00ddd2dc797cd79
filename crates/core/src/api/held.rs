//! The looks at a hold: what a guard and its views have in common.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::hold::Hold;
use crate::seam::loss::Lost;

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
