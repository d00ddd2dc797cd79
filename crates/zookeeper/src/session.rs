//! One session with ZooKeeper: the lease of everything that was claimed through it.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::seam::{Bells, ClaimId, Moment, Renewal, Tenure};
use leasehold_core::{Loss, Result};
use tokio::time::timeout;
use zookeeper_client::{Client, CreateMode, Error as ZkError, OneshotWatcher, SessionState};

use crate::config::Config;
use crate::error::{reading, unavailable};
use crate::proof::Proof;
use crate::state::{Kept, State};
use crate::{heart, withdraw};

/// A server that says nothing for so long is left for another one.
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) struct Session {
    pub(crate) config: Arc<Config>,
    pub(crate) bells: Bells,
    pub(crate) id: i64,
    /// What the server agreed to.
    pub(crate) timeout: Duration,
    /// How long a claim lasts that nobody claims again or renews.
    lease: Duration,
    state: Mutex<State>,
}

impl Session {
    /// Makes a session whose timeout is as near to `ttl` as the server allows, and keeps it alive.
    pub(crate) async fn open(config: &Arc<Config>, bells: &Bells, ttl: Duration) -> Result<Arc<Session>> {
        // ZooKeeper counts in milliseconds, and a lease is never shorter than was asked for.
        let in_milliseconds = ttl + Duration::from_nanos(999_999);
        let connector = config.connector.clone().with_session_timeout(in_milliseconds).with_fail_eagerly();
        let connector = connector.with_connection_timeout(SILENCE.min(ttl * 2 / 5));
        let asked = Moment::now();
        let client = connector.connect(&config.servers).await.map_err(reading)?;
        let (states, timeout) = (client.state_watcher(), client.session_timeout());
        let session = Arc::new(Session {
            config: config.clone(),
            bells: bells.clone(),
            id: client.session_id().0,
            timeout,
            lease: timeout.max(ttl),
            state: Mutex::new(State::new(Some(client), Proof::new(asked, timeout), Moment::now())),
        });
        let bell = session.listen().await.map_err(reading)?;
        let living = session.clone();
        tokio::spawn(async move { living.ended(heart::live(&living, states, bell).await) });
        Ok(session)
    }

    /// Listens at the node that evictors touch, and makes it if it is not there.
    pub(crate) async fn listen(&self) -> Result<OneshotWatcher, ZkError> {
        let client = self.connected().await?;
        let bell = self.config.bell(self.id);
        client.mkdir(&self.config.sessions(), &self.config.make(CreateMode::Container)).await?;
        match client.create(&bell, b"", &self.config.make(CreateMode::Ephemeral)).await {
            Ok(_) | Err(ZkError::NodeExists) => Ok(client.get_and_watch_data(&bell).await?.2),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// The client, if the session has not ended.
    pub(crate) fn current(&self) -> Option<Client> {
        self.state().client.clone()
    }

    /// The client once it is connected. An error means that nothing was sent.
    ///
    /// A request that is made while there is no connection would be queued, and sent whenever there is one.
    pub(crate) async fn connected(&self) -> Result<Client, ZkError> {
        let client = self.current().ok_or(ZkError::ClientClosed)?;
        let mut states = client.state_watcher();
        let mut state = states.state();
        while state != SessionState::SyncConnected && !state.is_terminated() {
            state = timeout(self.config.timeout, states.changed()).await.map_err(|_| ZkError::Timeout)?;
        }
        Ok(client)
    }

    /// Bounds a call in time. A request that is given up may still arrive.
    pub(crate) async fn limited<T>(&self, call: impl Future<Output = Result<T, ZkError>>) -> Result<T, ZkError> {
        timeout(self.config.timeout * 2, call).await.unwrap_or(Err(ZkError::ConnectionLoss))
    }

    /// Takes the session into use; `false` if it has ended.
    pub(crate) fn touch(&self) -> bool {
        let mut state = self.state();
        state.used = Moment::now();
        state.client.as_ref().is_some_and(|client| !client.state().is_terminated())
    }

    /// One heartbeat, and with a connection that is known to work what is left of claims that nobody wants any more.
    ///
    /// A heartbeat is a write: it needs the leader and a quorum, which a read does not.
    pub(crate) async fn beat(&self, sent: Moment) {
        let asked = self.current().map(|client| client.set_data(&self.config.sessions(), b"", None));
        let Some(answer) = asked else { return };
        match answer.await {
            Ok(_) => self.proven(sent),
            Err(e) => return tracing::debug!(error = %e, "a heartbeat to ZooKeeper was not answered"),
        }
        let _ = self.limited(withdraw::clear(self, |_| true)).await;
    }

    /// A heartbeat was answered. What it adds to all that is held is said at once, because the next renewal may fail.
    fn proven(&self, sent: Moment) {
        self.state().proof.answered(sent, Moment::now());
        let grants = self.state().grants();
        grants.into_iter().for_each(|(id, grant)| self.bells.granted(id, grant));
    }

    /// Lets go of what nobody needs: claims that nobody has claimed again or renewed for a lease, and then the session itself.
    pub(crate) fn tidy(&self, now: Moment) {
        let mut state = self.state();
        state.lapse(self.lease, now);
        if state.is_idle(now) {
            state.client = None;
        }
    }

    /// Extends nothing by itself: heartbeats do.
    pub(crate) fn renew(&self, tenure: &Tenure) -> Renewal {
        let mut state = self.state();
        let now = Moment::now();
        match state.renew(tenure.claim.id, now).map(|entry| entry.node) {
            Some(Some(node)) if *node.path == *tenure.place.as_str() => Renewal::Renewed(state.proof.validity(now)),
            Some(None) => Renewal::Unknown(unavailable("the claim is just being made again")),
            Some(Some(_)) | None => Renewal::Lost(Loss::Gone),
        }
    }

    /// Compares the claims' nodes with the session's ephemeral ones, and rings for those that are gone. One request for all.
    pub(crate) async fn audit(&self, loss: Loss) -> Result<(), ZkError> {
        let nodes = |kept: &Kept| kept.entry.node.as_ref().map(|node| node.path.clone());
        let known: HashSet<Arc<str>> = self.state().kept.values().filter_map(nodes).collect();
        let Some(client) = self.current().filter(|_| !known.is_empty()) else { return Ok(()) };
        let listed =
            timeout(self.config.timeout.min(self.timeout / 8), client.list_ephemerals(&self.config.root)).await;
        let alive: HashSet<String> = listed.unwrap_or(Err(ZkError::ConnectionLoss))?.into_iter().collect();
        let is_gone = |kept: &Kept| nodes(kept).is_some_and(|path| known.contains(&path) && !alive.contains(&*path));
        let gone: Vec<ClaimId> = self.state().kept.extract_if(|_, kept| is_gone(kept)).map(|(id, _)| id).collect();
        gone.into_iter().for_each(|id| self.bells.lost(id, loss));
        Ok(())
    }

    /// The session has ended, and with it everything that was claimed through it.
    pub(crate) fn ended(&self, loss: Loss) {
        drop(self.leave());
        let all: Vec<ClaimId> = self.state().kept.drain().map(|(id, _)| id).collect();
        if !all.is_empty() {
            tracing::warn!(claims = all.len(), ?loss, "the session with ZooKeeper has ended");
        }
        all.into_iter().for_each(|id| self.bells.lost(id, loss));
    }

    /// Lets the client go. When its last request is answered it closes the session, and whatever is left of it is gone.
    pub(crate) fn leave(&self) -> Option<Client> {
        self.state().client.take()
    }

    /// Closes the session, and waits for it as long as for any request.
    pub(crate) async fn close(&self) {
        let Some(mut states) = self.leave().map(|client| client.state_watcher()) else { return };
        let mut state = states.state();
        let closed = async {
            while !state.is_terminated() {
                state = states.changed().await;
            }
        };
        let _ = timeout(self.config.timeout, closed).await;
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
