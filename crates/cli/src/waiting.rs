//! What people see while they wait: after two seconds, on a terminal, who is before them.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use leasehold::Store;
use leasehold::seam::Moment;

const PATIENCE: Duration = Duration::from_secs(2);
const FRAME: Duration = Duration::from_millis(250);
const FRAMES: [&str; 4] = ["|", "/", "-", "\\"];
/// Every so many frames the store is asked.
const FRAMES_PER_LOOK: usize = 4;

/// Never returns: drop it when the wait is over, and its line is gone.
pub(crate) async fn show(store: &Store, name: &str, shown: &str, label: &str) {
    if !stderr().is_terminal() {
        return std::future::pending().await;
    }
    let started = Moment::now();
    tokio::time::sleep(PATIENCE).await;
    let _line = Line;
    let mut who = String::new();
    for frame in 0.. {
        if frame % FRAMES_PER_LOOK == 0 {
            who = look(store, name, label).await;
        }
        let waited = Moment::now().since(started).as_secs();
        let spin = FRAMES[frame % FRAMES.len()];
        let _ = write!(stderr(), "\r\x1b[2K{spin} waiting {waited} s for {name:?} at {shown}{who}");
        tokio::time::sleep(FRAME).await;
    }
}

async fn look(store: &Store, name: &str, label: &str) -> String {
    let Ok(line) = store.lock(name).inspect().await else { return ": the store does not answer".into() };
    let mut text = String::new();
    if let Some(holder) = line.holders.first() {
        let label = holder.label.as_deref().unwrap_or("somebody");
        text.push_str(&format!(": held by {label}"));
    }
    if let Some(place) = line.waiters.iter().position(|waiter| waiter.label.as_deref() == Some(label)) {
        text.push_str(&format!(", we are {} of {} in line", place + 1, line.waiters.len()));
    }
    text
}

/// The line on the terminal, wiped when it is over.
struct Line;

impl Drop for Line {
    fn drop(&mut self) {
        let _ = write!(stderr(), "\r\x1b[2K");
    }
}
