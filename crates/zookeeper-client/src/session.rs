//! One session with ZooKeeper: the lease of every node that was made through it.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::seam::{Bells, Moment, Validity, locked};
use leasehold_core::{Loss, Result};
use tokio::time::timeout;
use zookeeper_client::{Client, Error as ZkError, SessionState, StateWatcher};

use crate::config::Config;
use crate::error::{Answer, reading};
use crate::heart;
use crate::proof::Proof;

/// A server that says nothing for so long is left for another one.
const SILENCE: Duration = Duration::from_secs(2);

/// A session that nobody has used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Who lives in a session, from its beginning on, and hears what becomes of it.
pub trait Tenant: Default + Send + 'static {
    /// A heartbeat was answered: the session's [`validity`](Session::validity) may have grown, and the connection works.
    fn proven(session: &Session<Self>) -> impl Future<Output = ()> + Send;

    /// Somebody rang: nodes of this session may have been removed. After an error it is told again.
    fn rung(session: &Session<Self>) -> impl Future<Output = Answer<()>> + Send;

    /// Nothing in here needs the session. One that nobody takes into use for a minute then is closed.
    fn is_idle(&self) -> bool;

    /// The session has ended, and with it all its nodes.
    fn ended(session: &Session<Self>, loss: Loss);
}

/// One session, until it ends.
pub struct Session<T> {
    /// What its tenant rings.
    pub bells: Bells,
    /// What the server agreed to.
    pub timeout: Duration,
    pub(crate) config: Arc<Config>,
    pub(crate) id: i64,
    tenant: Mutex<T>,
    life: Mutex<Life>,
}

pub(crate) struct Life {
    /// `None` once the session has ended.
    client: Option<Client>,
    pub(crate) proof: Proof,
    /// When the latest heartbeat was sent that was answered.
    pub(crate) fresh: Moment,
    /// When it was last taken into use.
    used: Moment,
}

impl<T: Tenant> Session<T> {
    /// Makes a session whose timeout is as near to `ttl` as the server allows, and keeps it alive.
    pub(crate) async fn open(config: &Arc<Config>, bells: &Bells, ttl: Duration) -> Result<Arc<Session<T>>> {
        // ZooKeeper counts in milliseconds, and a lease is never shorter than was asked for.
        let in_milliseconds = ttl + Duration::from_nanos(999_999);
        let connector = config.connector.clone().with_session_timeout(in_milliseconds).with_fail_eagerly();
        let connector = connector.with_connection_timeout(SILENCE.min(ttl * 2 / 5));
        let asked = Moment::now();
        let client = connector.connect(&config.servers).await.map_err(reading)?;
        let (states, timeout, id) = (client.state_watcher(), client.session_timeout(), client.session_id().0);
        let life = Life { client: Some(client), proof: Proof::new(asked, timeout), fresh: asked, used: Moment::now() };
        let (bells, config, tenant) = (bells.clone(), config.clone(), Mutex::default());
        let session = Arc::new(Session { bells, timeout, config, id, tenant, life: Mutex::new(life) });
        // A server that cannot say which nodes a session has is too old to tell a loss.
        session.nodes().await.map_err(reading)?;
        let bell = heart::listen(&session).await.map_err(reading)?;
        tokio::spawn(heart::live(session.clone(), states, bell));
        Ok(session)
    }

    /// The client once it is connected. An error means that nothing was sent.
    ///
    /// A request that is made while there is no connection would be queued, and sent whenever there is one.
    pub async fn connected(&self) -> Answer<Client> {
        let client = self.client()?;
        let connected = |state: SessionState| state == SessionState::SyncConnected || state.is_terminated();
        self.until(connected, client.state_watcher()).await.map(|()| client)
    }

    /// Waits for such a state as long as for any request.
    async fn until(&self, reached: impl Fn(SessionState) -> bool, mut states: StateWatcher) -> Answer<()> {
        let mut state = states.state();
        let reaching = async {
            while !reached(state) {
                state = states.changed().await;
            }
        };
        timeout(self.config.timeout, reaching).await.map_err(|_| ZkError::Timeout)
    }

    /// Bounds a call in time. A request that is given up may still arrive.
    pub async fn limited<R>(&self, call: impl Future<Output = Answer<R>>) -> Answer<R> {
        timeout(self.config.timeout * 2, call).await.unwrap_or(Err(ZkError::ConnectionLoss))
    }

    /// Its tenant. Nobody waits while having it.
    pub fn tenant(&self) -> MutexGuard<'_, T> {
        locked(&self.tenant)
    }

    /// The node under which everything lives.
    pub fn root(&self) -> &str {
        &self.config.root
    }

    /// How long something holds that was last asked for at `asked`, as is proven now.
    pub fn validity(&self, asked: Moment) -> Validity {
        self.life().proof.validity(asked)
    }

    /// What is read in this session from now on is no older than this: at that moment a heartbeat was sent, which was answered.
    pub fn fresh(&self) -> Moment {
        self.life().fresh
    }

    /// The paths of all nodes that live as long as the session. One request.
    pub async fn nodes(&self) -> Answer<HashSet<String>> {
        let client = self.client()?;
        let listed = timeout(self.config.timeout, client.list_ephemerals(self.root())).await;
        Ok(listed.unwrap_or(Err(ZkError::ConnectionLoss))?.into_iter().collect())
    }

    /// Rings another session, so that it looks after its nodes. One that is not ours has no bell.
    pub async fn ring(&self, other: i64) -> Answer<()> {
        self.client()?.set_data(&self.config.bell(other), b"", None).await.map(drop)
    }

    /// Takes the session into use; `false` if it has ended.
    pub(crate) fn touch(&self) -> bool {
        let mut life = self.life();
        life.used = Moment::now();
        life.client.as_ref().is_some_and(|client| !client.state().is_terminated())
    }

    /// The client, if the session has not ended.
    pub(crate) fn client(&self) -> Answer<Client> {
        self.life().client.clone().ok_or(ZkError::ClientClosed)
    }

    pub(crate) fn life(&self) -> MutexGuard<'_, Life> {
        locked(&self.life)
    }

    /// Lets the client go if nobody needs it, and nobody did for a while.
    pub(crate) fn leave_if_idle(&self, now: Moment) {
        let is_idle = self.tenant().is_idle();
        let mut life = self.life();
        if is_idle && life.is_unused(now) {
            life.client = None;
        }
    }

    /// Lets the client go. When its last request is answered it closes the session, and whatever is left of it is gone.
    pub(crate) fn leave(&self) -> Option<Client> {
        self.life().client.take()
    }

    /// Closes the session, and waits for it as long as for any request.
    pub(crate) async fn close(&self) {
        let Some(states) = self.leave().map(|client| client.state_watcher()) else { return };
        let _ = self.until(SessionState::is_terminated, states).await;
    }
}

impl Life {
    /// A heartbeat that was sent at `sent` has just been answered.
    pub(crate) fn answered(&mut self, sent: Moment) {
        self.fresh = self.fresh.max(sent);
        self.proof.answered(sent, Moment::now());
    }

    fn is_unused(&self, now: Moment) -> bool {
        self.used + IDLE <= now
    }
}

impl<T> fmt::Debug for Session<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_unused_a_minute_after_its_last_use() {
        let at = |s: u64| Moment::from_nanos(s * 1_000_000_000);
        let mut life = Life { client: None, proof: Proof::new(at(10), IDLE), fresh: at(10), used: at(10) };
        assert!(!life.is_unused(at(69)) && life.is_unused(at(70)));
        life.used = at(490);
        assert!(!life.is_unused(at(549)));
    }
}
