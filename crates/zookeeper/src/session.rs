//! One session with ZooKeeper: the lease of everything that was claimed through it.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join3};
use leasehold_core::seam::{Bells, Claim, Moment, Validity};
use leasehold_core::{Loss, Result};
use tokio::time::timeout;
use zookeeper_client::{Client, CreateMode, Error as ZkError, OneshotWatcher, SessionState};

use crate::config::Config;
use crate::error::{reading, unavailable};
use crate::places::Places;
use crate::proof::Proof;
use crate::withdraw::withdraw;
use crate::{claim, heart};

/// How long making a session may take.
const CONNECT: Duration = Duration::from_millis(2500);

/// A server that says nothing for so long is left for another one.
const SILENCE: Duration = Duration::from_secs(2);

pub(crate) struct Session {
    pub(crate) config: Arc<Config>,
    pub(crate) bells: Bells,
    pub(crate) id: i64,
    /// What the server agreed to.
    pub(crate) timeout: Duration,
    /// `None` once it has ended.
    client: Mutex<Option<Arc<Client>>>,
    proof: Mutex<Proof>,
    places: Mutex<Places>,
    /// How often it was connected again.
    connection: AtomicU64,
}

impl Session {
    /// Makes a session whose timeout is as near to `ttl` as the server allows, with its own nodes, and keeps it alive.
    pub(crate) async fn open(config: &Arc<Config>, bells: &Bells, ttl: Duration) -> Result<Arc<Session>> {
        let connector = config.connector.clone().with_session_timeout(ttl).with_fail_eagerly();
        let connector = connector.with_connection_timeout(SILENCE.min(ttl * 2 / 5));
        let asked = Moment::now();
        let connecting = timeout(CONNECT, connector.connect(&config.servers)).await;
        let client = connecting.map_err(|_| unavailable("no ZooKeeper server answers"))?.map_err(reading)?;
        let session = Arc::new(Session {
            config: config.clone(),
            bells: bells.clone(),
            id: client.session_id().0,
            timeout: client.session_timeout(),
            proof: Mutex::new(Proof::new(asked, client.session_timeout())),
            client: Mutex::new(Some(Arc::new(client))),
            places: Mutex::default(),
            connection: AtomicU64::new(0),
        });
        let bell = session.furnish().await.inspect_err(|_| drop(session.leave())).map_err(reading)?;
        session.touch();
        tokio::spawn(heart::beat(session.clone(), bell));
        Ok(session)
    }

    /// Makes the session's own nodes, if they are not there, and listens at its bell.
    pub(crate) async fn furnish(&self) -> Result<OneshotWatcher, ZkError> {
        let client = self.current().ok_or(ZkError::ClientClosed)?;
        let root = &self.config.root;
        let (beat, bell) = (root.beat(self.id), root.bell(self.id));
        let make = self.config.make(CreateMode::Ephemeral);
        for _ in 0..3 {
            let sent = Moment::now();
            let made = join3(
                client.create(&beat, b"", &make),
                client.create(&bell, b"", &make),
                client.get_and_watch_data(&bell),
            );
            match self.limited(async { Ok(made.await) }).await? {
                (Err(ZkError::NoNode), ..) | (_, Err(ZkError::NoNode), _) => self.make_folder(&root.sessions()).await?,
                (Ok(_) | Err(ZkError::NodeExists), Ok(_) | Err(ZkError::NodeExists), Ok((.., bell))) => {
                    self.proven(sent);
                    return Ok(bell);
                }
                (Err(e), ..) | (_, Err(e), _) | (.., Err(e)) => return Err(e),
            }
        }
        Err(ZkError::NoNode)
    }

    /// Makes a folder that ZooKeeper removes by itself once it is empty, and what is above it.
    pub(crate) async fn make_folder(&self, path: &str) -> Result<(), ZkError> {
        let client = self.current().ok_or(ZkError::ClientClosed)?;
        self.limited(client.mkdir(path, &self.config.make(CreateMode::Container))).await
    }

    /// The client, if the session has not ended.
    pub(crate) fn current(&self) -> Option<Arc<Client>> {
        locked(&self.client).clone()
    }

    /// The client once it is connected. An error means that nothing was sent.
    ///
    /// A request that is made while there is no connection would be queued, and sent whenever there is one.
    pub(crate) async fn connected(&self) -> Result<Arc<Client>> {
        let ended = || unavailable("the session with ZooKeeper has ended; a new one will be made");
        let client = self.current().ok_or_else(ended)?;
        let mut states = client.state_watcher();
        let mut state = client.state();
        while state != SessionState::SyncConnected {
            if state.is_terminated() {
                return Err(ended());
            }
            let changed = timeout(self.config.timeout, states.changed()).await;
            state = changed.map_err(|_| unavailable("there is no connection to ZooKeeper"))?;
        }
        Ok(client)
    }

    /// Bounds a request in time. One that is given up may still arrive.
    pub(crate) async fn limited<T>(&self, request: impl Future<Output = Result<T, ZkError>>) -> Result<T, ZkError> {
        timeout(self.config.timeout, request).await.unwrap_or(Err(ZkError::ConnectionLoss))
    }

    /// The children of a node, none if it is not there; seen after everything that happened before, if `sync`.
    pub(crate) async fn children(&self, client: &Client, path: &str, sync: bool) -> Result<Vec<String>> {
        let synced = sync.then(|| client.sync(path));
        let listed = client.list_children(path);
        let both = join(async { if let Some(synced) = synced { synced.await } else { Ok(()) } }, listed);
        match self.limited(async { Ok(both.await) }).await.map_err(reading)? {
            (Err(e), _) if e != ZkError::NoNode => Err(reading(e)),
            (_, Err(ZkError::NoNode)) => Ok(Vec::new()),
            (_, listed) => listed.map_err(reading),
        }
    }

    /// How long what was last asked for at `asked` surely holds; `None` if that is over.
    pub(crate) fn validity(&self, asked: Moment) -> Option<Validity> {
        self.proof().validity(asked, Moment::now())
    }

    /// A heartbeat was answered. What was claimed or renewed before the touch that this proves now holds for its whole lease:
    /// that is said at once, because the next renewal may fail.
    pub(crate) fn proven(&self, sent: Moment) {
        let (before, since) = self.proof().answered(sent, Moment::now());
        let held = self.places().held_since(before, since);
        for (id, node, asked) in held {
            if let Some(validity) = self.validity(asked) {
                self.bells.granted(id, claim::grant(&node, validity));
            }
        }
    }

    /// How long a claim lasts that nobody claims again or renews.
    pub(crate) fn lease(&self, claim: &Claim) -> Duration {
        self.timeout.max(claim.ttl)
    }

    /// Withdraws the claims that nobody has claimed again or renewed for a whole lease. The session goes on without them.
    pub(crate) fn lapse(self: &Arc<Session>) {
        let lapsed = self.places().lapsed(Moment::now());
        for claim in lapsed {
            self.bells.lost(claim.id, Loss::Expired);
            let session = self.clone();
            tokio::spawn(async move { withdraw(&session, &claim).await });
        }
    }

    pub(crate) fn proof(&self) -> MutexGuard<'_, Proof> {
        locked(&self.proof)
    }

    pub(crate) fn places(&self) -> MutexGuard<'_, Places> {
        locked(&self.places)
    }

    /// Which of its connections this is.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }

    /// It is connected again: whoever watches may have missed something.
    pub(crate) fn reconnected(&self) {
        self.connection.fetch_add(1, Ordering::AcqRel);
        tracing::debug!(session = %format_args!("{:#x}", self.id), "connected to ZooKeeper again");
        self.bells.everyone();
    }

    /// Takes the session into use; `false` if it has ended.
    pub(crate) fn touch(&self) -> bool {
        self.current().is_some_and(|client| !client.state().is_terminated()) && self.places().touch(Moment::now())
    }

    /// Compares the claims' nodes with the session's ephemeral ones, and rings for those that are gone. One request for all.
    pub(crate) async fn audit(&self, limit: Duration, loss: Loss) -> Result<(), ZkError> {
        let known = self.places().known();
        if known.is_empty() {
            return Ok(());
        }
        let client = self.current().ok_or(ZkError::ClientClosed)?;
        let listed = timeout(limit, client.list_ephemerals(self.config.root.path())).await;
        let alive: HashSet<String> = listed.unwrap_or(Err(ZkError::ConnectionLoss))?.into_iter().collect();
        let gone = self.places().forget_missing(&known, &alive);
        gone.into_iter().for_each(|id| self.bells.lost(id, loss));
        Ok(())
    }

    /// The session has ended, and with it everything that was claimed through it.
    pub(crate) fn ended(&self, loss: Loss) {
        drop(self.leave());
        let all = self.places().end();
        if !all.is_empty() {
            tracing::warn!(claims = all.len(), ?loss, "the session with ZooKeeper has ended");
        }
        all.into_iter().for_each(|id| self.bells.lost(id, loss));
    }

    /// Lets the client go. When its last request is answered it closes the session, and whatever is left of it is gone.
    pub(crate) fn leave(&self) -> Option<Arc<Client>> {
        locked(&self.client).take()
    }

    /// Closes the session, and waits for it as long as for any request.
    pub(crate) async fn close(&self) {
        let Some(client) = self.leave() else { return };
        let mut states = client.state_watcher();
        let open = !client.state().is_terminated();
        drop(client);
        if open {
            let closed = async { while !states.changed().await.is_terminated() {} };
            let _ = timeout(self.config.timeout, closed).await;
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
