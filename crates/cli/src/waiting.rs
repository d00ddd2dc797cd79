//! What people see while they wait: after two seconds, on a terminal, what for and who is before them.

use std::convert::Infallible;
use std::time::Duration;

use leasehold::Store;
use leasehold::seam::Moment;

use crate::status_line::StatusLine;

const PATIENCE: Duration = Duration::from_secs(2);
const FRAME: Duration = Duration::from_millis(250);
const FRAMES: [&str; 4] = ["|", "/", "-", "\\"];
/// Every so many frames it is asked what to show.
const FRAMES_PER_LOOK: usize = 4;

/// Does the work, of which this is shown: what is done, and to or with what.
pub(crate) async fn during<T>(work: impl Future<Output = T>, doing: &str, what: &str) -> T {
    tokio::select! {
        done = work => done,
        never = spin(doing, async || what.to_owned()) => match never {},
    }
}

/// Waits for a lock, in a line in which we have this label.
pub(crate) async fn in_line<T>(work: impl Future<Output = T>, store: &Store, name: &str, at: &str, label: &str) -> T {
    tokio::select! {
        done = work => done,
        never = spin("waiting", async || line(store, name, at, label).await) => match never {},
    }
}

async fn spin(doing: &str, mut what: impl AsyncFnMut() -> String) -> Infallible {
    let status = StatusLine::new();
    if !status.is_watched() {
        return std::future::pending().await;
    }
    let started = Moment::now();
    tokio::time::sleep(PATIENCE).await;
    let (mut frame, mut text) = (0, String::new());
    loop {
        if frame % FRAMES_PER_LOOK == 0 {
            text = what().await;
        }
        let waited = Moment::now().since(started).as_secs();
        status.show(&format!("{} {doing} {waited} s {text}", FRAMES[frame % FRAMES.len()]));
        frame += 1;
        tokio::time::sleep(FRAME).await;
    }
}

/// What matters most comes first: a narrow terminal cuts the rest.
async fn line(store: &Store, name: &str, at: &str, label: &str) -> String {
    let Ok(line) = store.lock(name).inspect().await else {
        return format!("for {name:?}: the store at {at} does not answer");
    };
    let mut text = format!("for {name:?}");
    if let Some(place) = line.waiters.iter().position(|waiter| waiter.label.as_deref() == Some(label)) {
        text.push_str(&format!(", {} of {} in line", place + 1, line.waiters.len()));
    }
    if let Some(holder) = line.holders.first() {
        text.push_str(&format!(", held by {}", holder.label.as_deref().unwrap_or("somebody")));
    }
    format!("{text}, at {at}")
}
