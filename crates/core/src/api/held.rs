//! The methods that a guard and its views have in common: those that check a hold.
//!
//! A view and a guard answer the same questions, by the same code. The difference is only that the
//! drop of a guard releases.

use std::fmt;
use std::time::Duration;

use crate::backend::loss::Lost;
use crate::engine::hold::Hold;

/// A view of a hold: it can be checked, and has the token, but releases nothing.
///
/// The body of [`Guard::run`](crate::Guard::run) gets one. Clone it for subtasks that should stop
/// when the lock is lost. It outlives the guard; after a release it is invalid, with
/// [`Loss::Released`](crate::Loss::Released).
///
/// # Examples
///
/// ```no_run
/// # async fn example(guard: leasehold_core::Guard) {
/// let held = guard.view();
/// tokio::spawn(async move {
///     while held.is_valid() {
///         // … one step …
///         tokio::task::yield_now().await;
///     }
/// });
/// # }
/// ```
#[derive(Clone)]
pub struct Held(pub(crate) Hold);

/// Implements the methods of a view as inherent ones on a type that has a hold, given the place of
/// its `Hold`.
macro_rules! view_methods {
    ($type:ty, $($hold:tt)*) => {
        impl $type {
            /// The name of the lock, as it was written: without the store's namespace.
            pub fn name(&self) -> &crate::Name {
                &self$($hold)*.name
            }

            /// The token to send to the resource with each write.
            ///
            /// It is the same for the whole hold. A later conflicting holder of the same name has a
            /// greater one. Tokens of different names or stores cannot be compared.
            pub fn fencing_token(&self) -> crate::FencingToken {
                self$($hold)*.token
            }

            /// Returns whether this client can prove, at this instant, that it holds the lock.
            ///
            /// It is computed now, from a clock that counts suspend, and sends nothing. It is
            /// therefore correct also in a task that did not run for long, and in a process that
            /// was stopped. It is cheap: one reading of the clock.
            ///
            /// No lock can cover a pause right after it returns. The token, compared by the
            /// resource, protects the data then.
            ///
            /// # Examples
            ///
            /// ```no_run
            /// # async fn example(guard: leasehold_core::Guard) -> leasehold_core::Result<()> {
            /// for chunk in ["a", "b", "c"] {
            ///     if !guard.is_valid() {
            ///         break; // another client may hold the lock soon
            ///     }
            ///     write(chunk, guard.fencing_token()).await; // the resource compares the token
            /// }
            /// # Ok(()) }
            /// # async fn write(_: &str, _: leasehold_core::FencingToken) {}
            /// ```
            pub fn is_valid(&self) -> bool {
                self$($hold)*.loss().is_none()
            }

            /// The time for which the hold stays valid if no renewal succeeds; zero when it is not
            /// valid any more.
            ///
            /// It jumps up with each successful renewal. Use it to decide whether a step of known
            /// length fits.
            ///
            /// # Examples
            ///
            /// ```no_run
            /// # fn example(guard: leasehold_core::Guard) {
            /// use std::time::Duration;
            ///
            /// if guard.remaining() > Duration::from_secs(2) {
            ///     println!("a step of one second fits, also if the store becomes unavailable now");
            /// }
            /// # }
            /// ```
            pub fn remaining(&self) -> std::time::Duration {
                self$($hold)*.time_left()
            }

            /// The TTL of the lease that the store granted, as it said last.
            ///
            /// It is less than the option [`ttl`](crate::Options::ttl) where the store has a longest
            /// lease ([`Guarantees::max_ttl`](crate::Guarantees)), and more where it rounds up. It may
            /// change with a renewal: a server may come to other terms. Plan by it what has to be done
            /// within a lease, such as the end of a child process.
            ///
            /// # Examples
            ///
            /// ```no_run
            /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
            /// use std::time::Duration;
            ///
            /// let guard = store.lock("nightly").ttl(Duration::from_secs(3600)).acquire().await?;
            /// // A ZooKeeper server as it is shipped grants 40 s.
            /// let warn_before_the_end = guard.granted_ttl() / 10;
            /// # let _ = warn_before_the_end;
            /// # Ok(()) }
            /// ```
            pub fn granted_ttl(&self) -> std::time::Duration {
                self$($hold)*.state.ttl()
            }

            /// Returns an error if the hold is not valid any more: [`is_valid`](Self::is_valid) for
            /// code that uses `?`.
            ///
            /// # Errors
            ///
            /// [`Lost`](crate::ErrorKind::Lost), with the reason in
            /// [`Error::loss`](crate::Error::loss). If its lease ran out, the source is what the
            /// latest renewal failed with.
            pub fn check(&self) -> crate::Result<()> {
                self$($hold)*.verdict()
            }

            /// A future that resolves when the hold has ended, with the reason.
            ///
            /// It resolves at the latest at the end of validity, also while a renewal hangs or the
            /// store cannot be reached; after a release it resolves with
            /// [`Loss::Released`](crate::Loss::Released). A process that was stopped, or a runtime
            /// that was blocked, sees it within a quarter of a second after it runs again.
            ///
            /// # Cancel safety
            ///
            /// The future owns what it needs. Keep it in a `select!` loop, move it to another task,
            /// drop it at any time: the loss is not consumed by it.
            pub fn lost(&self) -> crate::Lost {
                self$($hold)*.watch()
            }

            /// A view of this hold: it has the token and can be checked, but it releases nothing.
            /// It outlives the guard, and can be cloned for subtasks.
            pub fn view(&self) -> crate::Held {
                crate::Held(self$($hold)*.clone())
            }
        }

        impl crate::Lease for $type {
            fn loss(&self) -> Option<crate::Loss> {
                self$($hold)*.loss()
            }
            fn remaining(&self) -> std::time::Duration {
                self$($hold)*.time_left()
            }
            fn granted_ttl(&self) -> std::time::Duration {
                self$($hold)*.state.ttl()
            }
            fn lost(&self) -> crate::Lost {
                self$($hold)*.watch()
            }
        }

        impl crate::Fenced for $type {
            fn name(&self) -> &crate::Name {
                &self$($hold)*.name
            }
            fn fencing_token(&self) -> crate::FencingToken {
                self$($hold)*.token
            }
            fn full_name(&self) -> &crate::Name {
                &self$($hold)*.state.claim.name
            }
            fn place(&self) -> Option<crate::backend::Place> {
                self$($hold)*.state.place()
            }
            fn check_condition(&self) -> crate::Result<()> {
                self$($hold)*.check_condition()
            }
        }
    };
}
pub(crate) use view_methods;

view_methods!(Held, .0);

impl Hold {
    pub(crate) fn time_left(&self) -> Duration {
        if self.loss().is_some() {
            Duration::ZERO
        } else {
            self.state.remaining()
        }
    }

    pub(crate) fn watch(&self) -> Lost {
        let hold = self.clone();
        Lost::new(async move {
            loop {
                let changed = hold.state.changed.notified();
                if let Some(loss) = hold.loss() {
                    return loss;
                }
                drop(hold.client.register_this_runtime());
                changed.await;
            }
        })
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hold { name, token, .. } = &self.0;
        f.debug_struct("Held")
            .field("name", name)
            .field("token", &token.get())
            .field("loss", &self.0.loss())
            .finish()
    }
}
