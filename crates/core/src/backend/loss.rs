//! Loss: the reason why a guard is no longer valid, and the future that resolves with it.
//!
//! Loss is a value and a future: the value for code that checks between steps, the future for code
//! that waits in a `select!`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::{FutureExt, select_all};

/// The reason why a hold ended. It is final: nothing makes the guard valid again.
///
/// Act on the fact of the loss, not on the reason: the reason is for logs, and the store may be
/// wrong about it. For example a hold that was evicted while the store was unreachable is
/// [`Expired`](crate::Loss::Expired) for its holder.
///
/// # Examples
///
/// ```no_run
/// # async fn example(guard: leasehold_core::Guard) {
/// use leasehold_core::Loss;
///
/// match guard.lost().await {
///     Loss::Released => {}
///     Loss::Evicted => println!("an operator has taken the lock away"),
///     other => println!("lost: {other}"),
/// }
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ran out without a renewal that surely succeeded: the store was unreachable or
    /// slow, the process was paused, or the runtime was blocked.
    Expired,
    /// The store does not have the hold any more: it was deleted by hand, the data was lost, the
    /// session has ended, or this store was closed.
    Gone,
    /// A client evicted it by its token: see [`Store::evict`](crate::Store::evict).
    Evicted,
    /// It was held for as long as [`max_hold`](crate::Options::max_hold) allows.
    MaxHold,
    /// Its own guard released it. The only reason that is not a fault.
    Released,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Expired => "its lease ran out before it could be renewed",
            Loss::Gone => "the store no longer has it",
            Loss::Evicted => "it was evicted",
            Loss::MaxHold => "it was held for as long as max_hold allows",
            Loss::Released => "it was released",
        })
    }
}

/// A future that resolves when a hold has ended, with the reason.
///
/// It resolves at the latest at the end of validity, before the store can grant the lock to another
/// client, also while a renewal hangs. A process that was stopped, or a runtime that was blocked or
/// not driven, sees it when it runs again. It tells a task to stop, but it cannot protect data.
/// Check [`Guard::is_valid`](crate::Guard::is_valid) and send the fencing token.
///
/// # Cancel safety
///
/// It owns what it needs. Keep it in a `select!` loop, move it into another task, drop it at any
/// time.
///
/// # Examples
///
/// ```no_run
/// # async fn example(guard: leasehold_core::Guard) {
/// let mut lost = guard.lost();
/// loop {
///     tokio::select! {
///         loss = &mut lost => break println!("stop: {loss}"),
///         () = step() => {}
///     }
/// }
/// # }
/// # async fn step() {}
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct Lost(Pin<Box<dyn Future<Output = Loss> + Send + Sync>>);

impl Lost {
    /// Makes one that resolves as `f` does: for test doubles and decorators.
    pub fn new(f: impl Future<Output = Loss> + Send + Sync + 'static) -> Lost {
        Lost(Box::pin(f))
    }

    /// Makes one that never resolves: for a double whose hold is never lost.
    pub fn never() -> Lost {
        Lost::new(std::future::pending())
    }

    /// Resolves with the first of several; never, if there is none.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{Loss, Lost};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let both = Lost::any([Lost::never(), Lost::new(async { Loss::Gone })]);
    /// assert_eq!(both.await, Loss::Gone);
    /// # });
    /// ```
    pub fn any(all: impl IntoIterator<Item = Lost>) -> Lost {
        let all: Vec<Lost> = all.into_iter().collect();
        if all.is_empty() {
            Lost::never()
        } else {
            Lost::new(select_all(all).map(|(loss, ..)| loss))
        }
    }
}

impl Future for Lost {
    type Output = Loss;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Loss> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lost")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn any_takes_the_first() {
        let all = [
            Lost::never(),
            Lost::new(async { Loss::Gone }),
            Lost::never(),
        ];
        assert_eq!(Lost::any(all).await, Loss::Gone);
    }

    #[test]
    fn each_reason_is_told() {
        let told = [
            Loss::Expired,
            Loss::Gone,
            Loss::Evicted,
            Loss::MaxHold,
            Loss::Released,
        ]
        .map(|loss| loss.to_string());
        let words = ["ran out", "no longer", "evicted", "max_hold", "released"];
        assert!(
            told.iter()
                .zip(words)
                .all(|(told, word)| told.contains(word)),
            "{told:?}"
        );
    }
}
