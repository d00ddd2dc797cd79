//! Attempts at several servers, of which any will do: a silent server does not delay the attempt at
//! the next one for long.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::sleep;

/// Returns the first success of these attempts. Each begins a `step` after the one before it, or at
/// once if an attempt has failed. Attempts that are under way when one succeeds are dropped.
///
/// # Errors
///
/// The latest error once all attempts have failed; an error that `is_final` at once; `None` if
/// there was no attempt.
pub async fn race<F, T, E>(
    attempts: impl IntoIterator<Item = F>,
    step: Duration,
    is_final: impl Fn(&E) -> bool,
) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut attempts = attempts.into_iter().peekable();
    let mut under_way = FuturesUnordered::new();
    let mut failure = None;
    loop {
        under_way.extend(attempts.next());
        tokio::select! {
            biased;
            ended = under_way.next() => match ended {
                Some(Err(e)) if !is_final(&e) => failure = Some(e),
                Some(ended) => return ended.map_err(Some),
                None => return Err(failure),
            },
            () = sleep(step), if attempts.peek().is_some() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;

    use tokio::time::Instant;

    use super::*;

    const STEP: Duration = Duration::from_millis(300);

    /// Races attempts that fail or succeed after the given milliseconds, or never end (`None`).
    /// Returns the outcome, the milliseconds that it took, and the milliseconds at which each
    /// attempt began.
    async fn raced(
        all: &[(Option<u64>, Result<&'static str, &'static str>)],
    ) -> (Result<&'static str, Option<&'static str>>, u128, Vec<u128>) {
        let began = Instant::now();
        let begun = RefCell::default();
        let attempts = all.iter().map(async |(takes, outcome)| {
            RefCell::<Vec<_>>::borrow_mut(&begun).push(began.elapsed().as_millis());
            match takes {
                Some(ms) => sleep(Duration::from_millis(*ms)).await,
                None => pending().await,
            }
            *outcome
        });
        let outcome = race(attempts, STEP, |e| *e == "refused").await;
        (outcome, began.elapsed().as_millis(), begun.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_silent_holds_up_no_other() {
        let silent = (None, Err("silent"));
        assert_eq!(
            raced(&[silent, silent, (Some(10), Ok("here"))]).await,
            (Ok("here"), 610, vec![0, 300, 600])
        );
        assert_eq!(
            raced(&[(Some(250), Ok("here")), silent]).await,
            (Ok("here"), 250, vec![0]),
            "no need"
        );
        assert_eq!(
            raced(&[(Some(400), Ok("first")), (Some(200), Ok("second"))]).await,
            (Ok("first"), 400, vec![0, 300])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_fails_is_left_at_once() {
        let gone = (Some(10), Err("gone"));
        assert_eq!(
            raced(&[gone, gone, (Some(10), Ok("here"))]).await,
            (Ok("here"), 30, vec![0, 10, 20])
        );
        assert_eq!(
            raced(&[gone, (Some(500), Err("late"))]).await,
            (Err(Some("late")), 510, vec![0, 10])
        );
        assert_eq!(
            raced(&[(Some(10), Err("refused")), gone]).await,
            (Err(Some("refused")), 10, vec![0]),
            "for good"
        );
        assert_eq!(raced(&[]).await, (Err(None), 0, vec![]));
    }
}
