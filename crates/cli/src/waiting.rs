//! The messages during a wait: on a terminal a line that changes, from two seconds on; elsewhere
//! one line after a minute, so that a log says why nothing happens.

use std::convert::Infallible;
use std::io::stderr;
use std::time::Duration;

use leasehold::backend::Moment;
use leasehold::{LockQueue, Participant, Store};

use crate::exit::say;
use crate::output;
use crate::status_line::StatusLine;
use crate::store_url::StoreUrl;

const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// The length of a wait after which a log has a line about it.
const MINUTE: Duration = Duration::from_secs(60);
const FRAME: Duration = Duration::from_millis(250);
/// The text is made anew once in this number of frames.
const FRAMES_PER_TEXT: usize = 4;

/// Does the work, and meanwhile shows the kind of work and its object.
pub(crate) async fn during<T>(work: impl Future<Output = T>, doing: &str, what: &str) -> T {
    let spinning = async {
        let started = Moment::now();
        // The terminal is not looked for before this time is over.
        tokio::time::sleep(SHOWN_AFTER).await;
        spin(started, doing, async || what.to_owned()).await
    };
    tokio::select! {
        // Work that is done at once needs no timer.
        biased;
        done = work => done,
        never = spinning => match never {},
    }
}

/// Does the work, which waits for a lock, and shows the queue meanwhile.
pub(crate) async fn in_queue<T>(work: impl Future<Output = T>, wait: &Wait<'_>) -> T {
    tokio::select! {
        biased;
        done = work => done,
        never = wait.show() => match never {},
    }
}

/// A wait for a lock.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    pub(crate) store: &'a Store,
    pub(crate) name: &'a str,
    pub(crate) url: &'a StoreUrl,
    /// Our label in the queue.
    pub(crate) label: &'a str,
    /// Suppresses all messages.
    pub(crate) quiet: bool,
}

/// Shows a spinner from now on, for work that began at `started`.
async fn spin(started: Moment, doing: &str, mut what: impl AsyncFnMut() -> String) -> Infallible {
    let status = StatusLine::spinner();
    if !status.is_watched() {
        return std::future::pending().await;
    }
    loop {
        let text = what().await;
        for _ in 0..FRAMES_PER_TEXT {
            let waited = Moment::now().since(started).as_secs();
            status.show(0.0, &format!("{doing} {waited} s {text}"));
            tokio::time::sleep(FRAME).await;
        }
    }
}

impl Wait<'_> {
    async fn show(&self) -> Infallible {
        if self.quiet {
            return std::future::pending().await;
        }
        let started = Moment::now();
        tokio::time::sleep(SHOWN_AFTER).await;
        if output::is_watched(&stderr()) {
            return spin(started, "waiting", async || self.state().await).await;
        }
        log_once(MINUTE - SHOWN_AFTER, async || self.state().await, say).await
    }

    /// The text of the line. The most important part comes first, because a narrow terminal cuts
    /// the rest.
    async fn state(&self) -> String {
        let Wait {
            store,
            name,
            url,
            label,
            ..
        } = self;
        match store.lock(*name).inspect().await {
            Ok(queue) => format!("for {name:?}{}, at {url}", place(&queue, label)),
            Err(_) => format!("for {name:?}: the store at {url} does not answer"),
        }
    }
}

/// Logs one line when the rest of a minute is over, and no more.
async fn log_once(
    rest: Duration,
    mut what: impl AsyncFnMut() -> String,
    log: impl FnOnce(String),
) -> Infallible {
    tokio::time::sleep(rest).await;
    log(format!("waiting {} s {}", MINUTE.as_secs(), what().await));
    std::future::pending().await
}

/// The place of this label in the queue, the waiter before it, and the holder.
fn place(queue: &LockQueue, label: &str) -> String {
    let called = |entry: &Participant| {
        entry
            .label
            .clone()
            .unwrap_or_else(|| "another client".into())
    };
    let mut text = String::new();
    let place = queue
        .waiters
        .iter()
        .position(|waiter| waiter.label.as_deref() == Some(label));
    if let Some(place) = place {
        text.push_str(&format!(
            ", place {} of {} in the queue",
            place + 1,
            queue.waiters.len()
        ));
        if let Some(before) = place
            .checked_sub(1)
            .and_then(|before| queue.waiters.get(before))
        {
            text.push_str(&format!(", behind {}", called(before)));
        }
    }
    if let Some(holder) = queue.holders.first() {
        text.push_str(&format!(", held by {}", called(holder)));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_place_in_the_queue_and_the_waiter_before_it() {
        let queue = LockQueue::new(
            vec![Participant::new("h")],
            ["a", "b", "c"].map(Participant::new).to_vec(),
        );
        assert_eq!(place(&queue, "a"), ", place 1 of 3 in the queue, held by h");
        assert_eq!(
            place(&queue, "c"),
            ", place 3 of 3 in the queue, behind b, held by h"
        );
        assert_eq!(place(&queue, "z"), ", held by h");
        assert_eq!(place(&LockQueue::default(), "z"), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_gets_one_line_after_a_minute() {
        let said = RefCell::new(Vec::new());
        let logging = log_once(
            MINUTE,
            async || "for it".to_owned(),
            |text| said.borrow_mut().push(text),
        );
        let an_hour = tokio::time::timeout(Duration::from_secs(3600), logging);
        let before = tokio::time::sleep(Duration::from_secs(59));
        let nothing_yet = async {
            before.await;
            assert!(said.borrow().is_empty());
        };
        assert!(tokio::join!(an_hour, nothing_yet).0.is_err());
        assert_eq!(*said.borrow(), ["waiting 60 s for it"]);
    }
}
