//! The task of a connection: it waits until a repair is due and makes another one, for ever, and listens to the sentinels.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use tokio::time::sleep;

use crate::link::connection::link::{Link, State};

/// The pause before the first attempt to connect again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A server that a store can never use is a mistake at the first connection. Later the server may
/// be in the middle of being replaced.
fn of_repair(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unsupported => Error::new(ErrorKind::Unavailable, e.to_string()),
        _ => e,
    }
}

/// Keeps the connection alive, for ever.
pub(super) async fn keep(link: Arc<Link>) {
    tokio::join!(repair(link.clone()), link.listen());
}

/// Waits until a repair is due and makes a new connection, for ever. A server that does nothing for
/// this client (a replica, or one that loads its data) is tried ever more rarely, like one that
/// cannot be reached.
async fn repair(link: Arc<Link>) {
    let mut pause = PAUSES.0;
    let mut due = link.repair_due.listen();
    let mut relocated = link.relocated.listen();
    // The link outlives this, and its signals with it.
    while due.changed().await.is_ok() {
        if let Ok(wire) = link.wire() {
            match link.check(&wire).await {
                Ok(replaced) => {
                    if replaced {
                        link.inbox.notifier.notify_all();
                    }
                    continue;
                }
                Err(why) => link.fail(wire.nth, why),
            }
        }
        if link.useful.swap(false, Ordering::Relaxed) {
            pause = PAUSES.0;
        }
        loop {
            // After a move the new place is tried at once; it ends the pause or the current
            // attempt.
            tokio::select! {
                biased;
                () = sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)) => pause = (pause * 2).min(PAUSES.1),
                _ = relocated.changed() => {}
            }
            tokio::select! {
                biased;
                made = link.connect() => match made {
                    Ok(()) => break,
                    Err(e) => link.set(State::Down(of_repair(e))),
                },
                _ = relocated.changed() => relocated.mark_changed(),
            }
        }
        // Pushes may have been missed, and renewals were given up.
        link.inbox.notifier.notify_all();
    }
}
