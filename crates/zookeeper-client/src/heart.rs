//! A session's own task: its heartbeats, its connection's ups and downs, and its bell. That is a node of its own that others
//! touch so that it looks after its nodes: one standing watch, however many nodes it has.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Loss;
use leasehold_core::seam::{Clock, Moment};
use zookeeper_client::{CreateMode, OneshotWatcher, SessionState, StateWatcher};

use crate::error::Answer;
use crate::read::found;
use crate::session::{Session, Tenant};

/// Unanswered heartbeats at a time. More would only queue up while there is no connection.
const UNANSWERED: usize = 6;

/// How long to wait before trying again what has failed.
const BREATHE: Duration = Duration::from_millis(200);

/// Keeps the session alive until it ends.
pub(crate) async fn live<T: Tenant>(session: Arc<Session<T>>, mut states: StateWatcher, bell: OneshotWatcher) {
    let mut hearing = pin!(hear(&session, bell));
    let mut beats = FuturesUnordered::new();
    let (clock, mut last) = (Clock::boot(), Moment::now());
    let loss = loop {
        let due = session.life().proof.next(last);
        tokio::select! {
            state = states.changed() => match state {
                // Whoever watches may have missed something.
                SessionState::SyncConnected => session.bells.everyone(),
                SessionState::Expired => break Loss::Expired,
                state if state.is_terminated() => break Loss::Gone,
                _ => {}
            },
            () = clock.sleep_until(due) => {
                last = Moment::now();
                session.leave_if_idle(last);
                if beats.len() < UNANSWERED {
                    beats.push(beat(&session, last));
                }
            }
            Some(()) = beats.next() => {}
            never = &mut hearing => match never {},
        }
    };
    drop(session.leave());
    T::ended(&session, loss);
}

/// A heartbeat is a write: it needs the leader and a quorum, which a read does not.
async fn beat<T: Tenant>(session: &Session<T>, sent: Moment) {
    let asked = session.client().map(|client| client.set_data(&session.config.sessions(), b"", None));
    let Ok(answer) = asked else { return };
    match answer.await {
        Ok(_) => session.life().answered(sent),
        Err(e) => return tracing::debug!(error = %e, "a heartbeat to ZooKeeper was not answered"),
    }
    T::proven(session).await;
}

/// Listens at the session's bell, and makes it if it is not there.
pub(crate) async fn listen<T: Tenant>(session: &Session<T>) -> Answer<OneshotWatcher> {
    let client = session.connected().await?;
    let bell = session.config.bell(session.id);
    loop {
        if let Some((.., watcher)) = found(client.get_and_watch_data(&bell).await)? {
            return Ok(watcher);
        }
        session.config.mkdir(&client, &session.config.sessions()).await?;
        client.create(&bell, b"", &session.config.make(CreateMode::Ephemeral)).await?;
    }
}

/// Hears whoever rings, for as long as the session lives.
async fn hear<T: Tenant>(session: &Session<T>, mut bell: OneshotWatcher) -> Infallible {
    loop {
        bell.changed().await;
        bell = loop {
            // Listen again first: what happens after that rings again.
            let heard = async {
                let bell = listen(session).await?;
                T::rung(session).await.map(|()| bell)
            };
            match session.limited(heard).await {
                Ok(bell) => break bell,
                Err(_) => tokio::time::sleep(BREATHE).await,
            }
        };
    }
}
