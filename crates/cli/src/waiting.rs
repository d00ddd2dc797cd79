//! What people see while they wait, and for whom: on a terminal a line that goes on from two seconds; elsewhere one line after a
//! minute, so that a log says why nothing happens.

use std::convert::Infallible;
use std::io::stderr;
use std::time::Duration;

use leasehold::seam::Moment;
use leasehold::{LockQueue, Participant, Store};

use crate::exit::say;
use crate::output;
use crate::status_line::StatusLine;

const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// How long somebody who cannot watch waits before it is said.
const MINUTE: Duration = Duration::from_secs(60);
const FRAME: Duration = Duration::from_millis(250);
/// Every so many frames it is asked what to show.
const FRAMES_PER_LOOK: usize = 4;

/// Does the work, of which this is shown: what is done, and to or with what.
pub(crate) async fn during<T>(work: impl Future<Output = T>, doing: &str, what: &str) -> T {
    tokio::select! {
        done = work => done,
        never = spin(doing, async || what.to_owned()) => match never {},
    }
}

/// Waits for a lock, in a line in which we have this label; nothing is shown if it is to be quiet.
pub(crate) async fn in_line<T>(work: impl Future<Output = T>, line: &InLine<'_>) -> T {
    tokio::select! {
        done = work => done,
        never = line.show() => match never {},
    }
}

/// Whose wait is shown.
#[derive(Debug)]
pub(crate) struct InLine<'a> {
    pub(crate) store: &'a Store,
    pub(crate) name: &'a str,
    /// The store, for people.
    pub(crate) at: &'a str,
    pub(crate) label: &'a str,
    pub(crate) quiet: bool,
}

async fn spin(doing: &str, mut what: impl AsyncFnMut() -> String) -> Infallible {
    let status = StatusLine::spinner();
    if !status.is_watched() {
        return std::future::pending().await;
    }
    let started = Moment::now();
    tokio::time::sleep(SHOWN_AFTER).await;
    let (mut frame, mut text) = (0, String::new());
    loop {
        if frame % FRAMES_PER_LOOK == 0 {
            text = what().await;
        }
        let waited = Moment::now().since(started).as_secs();
        status.show(0.0, &format!("{doing} {waited} s {text}"));
        frame += 1;
        tokio::time::sleep(FRAME).await;
    }
}

impl InLine<'_> {
    async fn show(&self) -> Infallible {
        if self.quiet {
            return std::future::pending().await;
        }
        if output::is_watched(&stderr()) {
            return spin("waiting", async || self.look().await).await;
        }
        said_once(async || self.look().await, say).await
    }

    /// What matters most comes first: a narrow terminal cuts the rest.
    async fn look(&self) -> String {
        let (name, at) = (self.name, self.at);
        match self.store.lock(name).inspect().await {
            Ok(line) => format!("for {name:?}{}, at {at}", standing(&line, self.label)),
            Err(_) => format!("for {name:?}: the store at {at} does not answer"),
        }
    }
}

/// One line after a minute, and no more.
async fn said_once(mut what: impl AsyncFnMut() -> String, say: impl FnOnce(String)) -> Infallible {
    tokio::time::sleep(MINUTE).await;
    say(format!("waiting {} s {}", MINUTE.as_secs(), what().await));
    std::future::pending().await
}

/// Which place in line that label has, behind whom, and who holds.
fn standing(line: &LockQueue, label: &str) -> String {
    let called = |entry: &Participant| entry.label.clone().unwrap_or_else(|| "somebody".into());
    let mut text = String::new();
    let place = line.waiters.iter().position(|waiter| waiter.label.as_deref() == Some(label));
    if let Some(place) = place {
        text.push_str(&format!(", {} of {} in line", place + 1, line.waiters.len()));
        if let Some(before) = place.checked_sub(1).and_then(|before| line.waiters.get(before)) {
            text.push_str(&format!(", behind {}", called(before)));
        }
    }
    if let Some(holder) = line.holders.first() {
        text.push_str(&format!(", held by {}", called(holder)));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_place_in_line_says_behind_whom() {
        let line = LockQueue::new(vec![Participant::new("h")], ["a", "b", "c"].map(Participant::new).to_vec());
        assert_eq!(standing(&line, "a"), ", 1 of 3 in line, held by h");
        assert_eq!(standing(&line, "c"), ", 3 of 3 in line, behind b, held by h");
        assert_eq!(standing(&line, "z"), ", held by h");
        assert_eq!(standing(&LockQueue::default(), "z"), "");
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_watch_is_told_once_after_a_minute() {
        let said = RefCell::new(Vec::new());
        let tell = said_once(async || "for it".to_owned(), |text| said.borrow_mut().push(text));
        let an_hour = tokio::time::timeout(Duration::from_secs(3600), tell);
        let before = tokio::time::sleep(Duration::from_secs(59));
        let look = async {
            before.await;
            assert!(said.borrow().is_empty());
        };
        assert!(tokio::join!(an_hour, look).0.is_err());
        assert_eq!(*said.borrow(), ["waiting 60 s for it"]);
    }
}
