//! A session's own task: its heartbeats, its connection's ups and downs, and the bell at which evictors ring.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Loss;
use leasehold_core::seam::{Clock, Moment};
use zookeeper_client::{Error as ZkError, EventType, OneshotWatcher, SessionState};

use crate::session::Session;

/// A session that nobody has used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Unanswered heartbeats at a time. More would only queue up while there is no connection.
const UNANSWERED: usize = 6;

/// How long to wait before trying again what has failed.
const BREATHE: Duration = Duration::from_millis(200);

/// Keeps the session alive until it ends, and says so then.
pub(crate) async fn beat(session: Arc<Session>, bell: OneshotWatcher) {
    let loss = live(&session, bell).await;
    session.ended(loss);
}

async fn live(session: &Arc<Session>, bell: OneshotWatcher) -> Loss {
    let Some(mut states) = session.current().map(|client| client.state_watcher()) else { return Loss::Gone };
    let mut hearing = pin!(hear(session, bell));
    let mut beats = FuturesUnordered::new();
    let (clock, mut last) = (Clock::boot(), Moment::now());
    loop {
        // Also what changed before there was a watcher.
        match session.current().map(|client| client.state()) {
            Some(SessionState::Expired) => return Loss::Expired,
            Some(state) if !state.is_terminated() => {}
            _ => return Loss::Gone,
        }
        let due = session.proof().next(last);
        tokio::select! {
            state = states.changed() => match state {
                SessionState::SyncConnected => session.reconnected(),
                SessionState::Expired => return Loss::Expired,
                state if state.is_terminated() => return Loss::Gone,
                _ => {}
            },
            () = clock.sleep_until(due) => {
                last = Moment::now();
                session.lapse();
                if session.places().retire(IDLE, last) {
                    return Loss::Gone;
                }
                if beats.len() < UNANSWERED && let Some(client) = session.current() {
                    let sent = last;
                    // A write: it needs the leader and a quorum, which a read does not.
                    let answer = client.set_data(&session.config.root.beat(session.id), b"", None);
                    beats.push(async move { (sent, answer.await) });
                }
            }
            Some((sent, answer)) = beats.next() => match answer {
                Ok(_) => session.proven(sent),
                Err(ZkError::NoNode) => drop(session.furnish().await), // somebody removed it
                Err(e) => tracing::debug!(error = %e, "a heartbeat to ZooKeeper was not answered"),
            },
            never = &mut hearing => match never {},
        }
    }
}

/// Hears evictors for as long as the session lives: one standing watch, however many locks it holds.
async fn hear(session: &Arc<Session>, mut bell: OneshotWatcher) -> Infallible {
    while bell.changed().await.event_type != EventType::Session {
        // Listen again first: what happens after that rings again.
        bell = loop {
            match session.furnish().await {
                Ok(bell) => break bell,
                Err(ZkError::SessionExpired | ZkError::ClientClosed | ZkError::AuthFailed) => return pending().await,
                Err(_) => tokio::time::sleep(BREATHE).await,
            }
        };
        while let Err(ZkError::ConnectionLoss) = session.audit(session.config.timeout, Loss::Evicted).await {
            tokio::time::sleep(BREATHE).await;
        }
    }
    pending().await // its state says why
}
