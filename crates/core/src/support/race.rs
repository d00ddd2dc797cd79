//! Several servers, of which any will do: none is waited for while another was not asked.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::sleep;

/// The first success of these attempts. Each begins a `step` after the one before it, or at once if that one has failed; what is under way
/// when one succeeds is dropped.
///
/// # Errors
///
/// The latest, once all have failed; one that `is_final`, at once; `None` if there was no attempt.
pub async fn race<F, T, E>(
    attempts: impl IntoIterator<Item = F>,
    step: Duration,
    is_final: impl Fn(&E) -> bool,
) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let (mut attempts, mut under_way, mut failure) = (attempts.into_iter().peekable(), FuturesUnordered::new(), None);
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

    /// Attempts of which each fails or succeeds after so many milliseconds, or never ends: the outcome, after how many milliseconds, and
    /// when each was begun.
    async fn raced(
        all: &[(Option<u64>, Result<&'static str, &'static str>)],
    ) -> (Result<&'static str, Option<&'static str>>, u128, Vec<u128>) {
        let (began, begun) = (Instant::now(), RefCell::default());
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
        assert_eq!(raced(&[silent, silent, (Some(10), Ok("here"))]).await, (Ok("here"), 610, vec![0, 300, 600]));
        assert_eq!(raced(&[(Some(250), Ok("here")), silent]).await, (Ok("here"), 250, vec![0]), "no need");
        assert_eq!(
            raced(&[(Some(400), Ok("first")), (Some(200), Ok("second"))]).await,
            (Ok("first"), 400, vec![0, 300])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_fails_is_left_at_once() {
        let gone = (Some(10), Err("gone"));
        assert_eq!(raced(&[gone, gone, (Some(10), Ok("here"))]).await, (Ok("here"), 30, vec![0, 10, 20]));
        assert_eq!(raced(&[gone, (Some(500), Err("late"))]).await, (Err(Some("late")), 510, vec![0, 10]));
        assert_eq!(raced(&[(Some(10), Err("refused")), gone]).await, (Err(Some("refused")), 10, vec![0]), "for good");
        assert_eq!(raced(&[]).await, (Err(None), 0, vec![]));
    }
}
