//! A session's own task: its heartbeats, its connection's ups and downs, and the bell at which evictors ring.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Loss;
use leasehold_core::seam::{Clock, Moment};
use zookeeper_client::{OneshotWatcher, SessionState, StateWatcher};

use crate::session::Session;

/// Unanswered heartbeats at a time. More would only queue up while there is no connection.
const UNANSWERED: usize = 6;

/// How long to wait before trying again what has failed.
pub(crate) const BREATHE: Duration = Duration::from_millis(200);

/// Keeps the session alive until it ends, and says why it did.
pub(crate) async fn live(session: &Session, mut states: StateWatcher, bell: OneshotWatcher) -> Loss {
    let mut hearing = pin!(hear(session, bell));
    let mut beats = FuturesUnordered::new();
    let (clock, mut last) = (Clock::boot(), Moment::now());
    loop {
        let due = session.state().proof.next(last);
        tokio::select! {
            state = states.changed() => match state {
                // Whoever watches may have missed something.
                SessionState::SyncConnected => session.bells.everyone(),
                SessionState::Expired => return Loss::Expired,
                state if state.is_terminated() => return Loss::Gone,
                _ => {}
            },
            () = clock.sleep_until(due) => {
                last = Moment::now();
                session.tidy(last);
                if beats.len() < UNANSWERED {
                    beats.push(session.beat(last));
                }
            }
            Some(()) = beats.next() => {}
            never = &mut hearing => match never {},
        }
    }
}

/// Hears evictors for as long as the session lives: one standing watch, however many locks it holds.
async fn hear(session: &Session, mut bell: OneshotWatcher) -> Infallible {
    loop {
        bell.changed().await;
        bell = loop {
            // Listen again first: what happens after that rings again.
            let heard = async {
                let bell = session.listen().await?;
                session.audit(Loss::Evicted).await.map(|()| bell)
            };
            match session.limited(heard).await {
                Ok(bell) => break bell,
                Err(_) => tokio::time::sleep(BREATHE).await,
            }
        };
    }
}
