//! The task of a connection: it waits until a repair is due and makes another one, for ever, and listens to the sentinels.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use crate::connection::link::{Link, State};

/// The pause before the first attempt to connect again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Keeps the connection, for ever.
pub(super) async fn keep(link: Arc<Link>) {
    tokio::join!(repair(link.clone()), link.listen());
}

/// Waits until a repair is due and makes a new connection, for ever. A server that does nothing for us (a replica, one that loads)
/// is asked ever more rarely, as one that is not there.
async fn repair(link: Arc<Link>) {
    let mut pause = PAUSES.0;
    loop {
        link.repair_due.notified().await;
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
            // Where the server has just moved to is tried at once, in place of what is tried meanwhile.
            tokio::select! {
                biased;
                () = sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)) => pause = (pause * 2).min(PAUSES.1),
                () = link.relocated.notified() => {}
            }
            tokio::select! {
                biased;
                made = link.connect() => match made {
                    Ok(()) => break,
                    Err(e) => link.set(State::Down(e)),
                },
                () = link.relocated.notified() => link.relocated.notify_one(),
            }
        }
        // Pushes may have been missed, and renewals were given up.
        link.inbox.notifier.notify_all();
    }
}
