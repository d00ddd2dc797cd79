//! A session's own task: its heartbeats, its connection's ups and downs, and its end.

use std::pin::pin;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Loss;
use leasehold_core::seam::{Clock, Moment};
use zookeeper_client::{OneshotWatcher, SessionState, StateWatcher};

use crate::bell;
use crate::session::{Session, Tenant};

/// Unanswered heartbeats at a time. More would only queue up while there is no connection.
const UNANSWERED: usize = 6;

/// Keeps the session alive until it ends, and says why it did.
pub(crate) async fn live<T: Tenant>(session: &Session<T>, mut states: StateWatcher, bell: OneshotWatcher) -> Loss {
    let mut hearing = pin!(bell::hear(session, bell));
    let mut beats = FuturesUnordered::new();
    let (clock, mut last) = (Clock::boot(), Moment::now());
    loop {
        let due = session.life().proof.next(last);
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
                session.leave_if_idle(last);
                if beats.len() < UNANSWERED {
                    beats.push(beat(session, last));
                }
            }
            Some(()) = beats.next() => {}
            never = &mut hearing => match never {},
        }
    }
}

/// A heartbeat is a write: it needs the leader and a quorum, which a read does not.
async fn beat<T: Tenant>(session: &Session<T>, sent: Moment) {
    let asked = session.client().map(|client| client.set_data(&session.config.sessions(), b"", None));
    let Ok(answer) = asked else { return };
    match answer.await {
        Ok(_) => session.life().proof.answered(sent, Moment::now()),
        Err(e) => return tracing::debug!(error = %e, "a heartbeat to ZooKeeper was not answered"),
    }
    T::proven(session).await;
}
