//! Loss: why a guard is no longer good, and the future that says so.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Why a hold ended. Terminal: nothing revives a guard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// Its lease ran out without a renewal that surely counted.
    Expired,
    /// The store no longer has it: deleted by hand, data lost, session closed.
    Gone,
    /// Somebody evicted it by its token.
    Evicted,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// Its own guard released it.
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

/// Resolves when a hold has ended, with the reason: at the latest when it is no longer provably ours.
///
/// It owns what it needs: keep it in a `select!` loop, move it into another task, drop it at any time. In a running
/// process it resolves at the end of validity, before the store can grant to another, even while a renewal hangs. A
/// process that was paused, or whose runtime was blocked or not driven, learns it when that runs again: check
/// [`Guard::is_valid`](crate::Guard::is_valid), and send the fencing token.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Lost(Pin<Box<dyn Future<Output = Loss> + Send + Sync>>);

impl Lost {
    /// Resolves as `f` does: for test doubles and decorators.
    pub fn new(f: impl Future<Output = Loss> + Send + Sync + 'static) -> Lost {
        Lost(Box::pin(f))
    }

    /// Never resolves.
    pub fn never() -> Lost {
        Lost::new(std::future::pending())
    }

    /// Resolves with the first of several; never, if there is none.
    pub fn any(all: impl IntoIterator<Item = Lost>) -> Lost {
        let mut all: Vec<Lost> = all.into_iter().collect();
        Lost::new(std::future::poll_fn(move |cx| {
            all.iter_mut()
                .find_map(|one| match Pin::new(one).poll(cx) {
                    Poll::Ready(loss) => Some(Poll::Ready(loss)),
                    Poll::Pending => None,
                })
                .unwrap_or(Poll::Pending)
        }))
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
        let all = [Lost::never(), Lost::new(async { Loss::Gone }), Lost::never()];
        assert_eq!(Lost::any(all).await, Loss::Gone);
    }
}
