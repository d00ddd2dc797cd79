//! One session with ZooKeeper: the lease of every node that was made through it.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::seam::{Moment, Notifier, Validity, locked};
use leasehold_core::{Loss, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{Connector, Error as ZkError, SessionInfo};

use crate::client::connection::{Client, Over};
use crate::client::keep_alive;
use crate::client::liveness::Proof;
use crate::config::Config;
use crate::error::{Answer, reading};

/// A server that says nothing for so long is left for another one.
const SILENCE: Duration = Duration::from_secs(2);

/// A session that nobody has used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Who lives in a session, from its beginning on, and hears what becomes of it.
pub(crate) trait Tenant: Default + Send + 'static {
    /// A heartbeat was answered: the session's [`validity`](Session::validity) may have grown, and the connection works.
    fn proven(session: &Session<Self>) -> impl Future<Output = ()> + Send;

    /// Somebody rang: nodes of this session may have been removed. After an error it is told again.
    fn rung(session: &Session<Self>) -> impl Future<Output = Answer<()>> + Send;

    /// Nothing in here needs the session. One that nobody takes into use for a minute then is closed.
    fn is_idle(&self) -> bool;

    /// Another server agreed to less than was promised until now.
    fn shortened(session: &Session<Self>);

    /// The session has ended, and with it all its nodes.
    fn ended(session: &Session<Self>, loss: Loss);
}

/// One session, until it ends.
pub(crate) struct Session<T> {
    /// What its tenant rings.
    pub(crate) notifier: Notifier,
    pub(crate) config: Arc<Config>,
    /// What the server knows it by.
    info: SessionInfo,
    /// The timeout that it asks for.
    ttl: Duration,
    tenant: Mutex<T>,
    life: Mutex<Life>,
    link: watch::Sender<Link>,
}

/// How it is connected.
enum Link {
    Up(Client),
    Down,
    /// Nobody needs it any more, or it has ended.
    Left,
}

pub(crate) struct Life {
    pub(crate) proof: Proof,
    /// When the latest heartbeat was sent that was answered.
    fresh: Moment,
    /// When it was last taken into use.
    used: Moment,
    /// Its task runs.
    pub(crate) attended: bool,
}

impl<T: Tenant> Session<T> {
    /// Makes a session whose timeout is as near to `ttl` as the server allows, and keeps it alive.
    pub(crate) async fn open(config: &Arc<Config>, notifier: &Notifier, ttl: Duration) -> Result<Arc<Session<T>>> {
        // ZooKeeper counts in milliseconds, and a lease is never shorter than was asked for.
        let ttl = ttl.saturating_add(Duration::from_nanos(999_999));
        let asked = Moment::now();
        let client = Client::connect(connector(config, ttl), &config.servers).await.map_err(reading)?;
        let proof = Proof::new(asked, client.session_timeout());
        let life = Life { proof, fresh: asked, used: Moment::now(), attended: true };
        let (info, life, link) = (client.session().clone(), Mutex::new(life), watch::Sender::new(Link::Up(client)));
        let (notifier, config, tenant) = (notifier.clone(), config.clone(), Mutex::default());
        let session = Arc::new(Session { notifier, config, info, ttl, tenant, life, link });
        // A server that cannot say which nodes a session has is too old to tell a loss.
        session.nodes().await.map_err(reading)?;
        let bell = keep_alive::listen(&session).await.map_err(reading)?;
        tokio::spawn(keep_alive::live(session.clone(), Some(bell)));
        Ok(session)
    }

    /// Another connection to this server, of this session or of one like it.
    pub(crate) async fn connect(&self, server: &str, of_this: bool) -> Answer<Client> {
        let connector = connector(&self.config, self.ttl);
        let connector = if of_this { connector.with_session(self.info.clone()) } else { connector };
        Client::connect(connector, server).await
    }

    /// The client once it is connected. An error means that nothing was sent.
    pub(crate) async fn connected(&self) -> Answer<Client> {
        let mut link = self.link.subscribe();
        let connected = link.wait_for(|link| match link {
            Link::Up(client) => !client.is_over(),
            Link::Down => false,
            Link::Left => true,
        });
        match timeout(self.config.timeout, connected).await.map_err(|_| ZkError::Timeout)?.as_deref() {
            Ok(Link::Up(client)) => Ok(client.clone()),
            _ => Err(ZkError::ClientClosed),
        }
    }

    /// Bounds a call in time. A request that is given up may still arrive.
    pub(crate) async fn limited<R>(&self, call: impl Future<Output = Answer<R>>) -> Answer<R> {
        timeout(self.config.timeout * 2, call).await.unwrap_or(Err(ZkError::ConnectionLoss))
    }

    /// Its tenant. Nobody waits while having it.
    pub(crate) fn tenant(&self) -> MutexGuard<'_, T> {
        locked(&self.tenant)
    }

    /// The node under which everything lives.
    pub(crate) fn root(&self) -> &str {
        &self.config.root
    }

    /// What the servers agreed to: how long it lives if it is not heard of.
    pub(crate) fn timeout(&self) -> Duration {
        self.life().proof.timeout()
    }

    /// How long something holds that was last asked for at `asked`, as is proven now.
    pub(crate) fn validity(&self, asked: Moment) -> Validity {
        self.life().proof.validity(asked)
    }

    /// Whether more was promised before than can be promised now: its server has agreed to less than another one had.
    pub(crate) fn is_shortened(&self) -> bool {
        self.life().proof.is_shortened()
    }

    /// What is read in this session from now on is no older than this: at that moment a heartbeat was sent, which was answered.
    pub(crate) fn fresh(&self) -> Moment {
        self.life().fresh
    }

    /// The paths of all nodes that live as long as the session. One request.
    pub(crate) async fn nodes(&self) -> Answer<HashSet<String>> {
        let client = self.client()?;
        let listed = timeout(self.config.timeout, client.list_ephemerals(self.root())).await;
        Ok(listed.unwrap_or(Err(ZkError::ConnectionLoss))?.into_iter().collect())
    }

    /// Rings another session, so that it looks after its nodes. One that is not ours has no bell.
    pub(crate) async fn ring(&self, other: i64) -> Answer<()> {
        self.client()?.set_data(&self.config.bell(other), b"", None).await.map(drop)
    }

    /// Takes the session into use; `false` if it has ended. If the runtime of its task has ended, it goes on in this one.
    pub(crate) fn touch(self: &Arc<Self>) -> bool {
        let mut life = self.life();
        life.used = Moment::now();
        if let (false, false, Ok(runtime)) = (life.attended, self.is_left(), Handle::try_current()) {
            life.attended = true;
            runtime.spawn(keep_alive::live(self.clone(), None));
        }
        !self.is_left()
    }

    /// The client, if the session is connected.
    pub(crate) fn client(&self) -> Answer<Client> {
        match &*self.link.borrow() {
            Link::Up(client) => Ok(client.clone()),
            Link::Down => Err(ZkError::ConnectionLoss),
            Link::Left => Err(ZkError::ClientClosed),
        }
    }

    /// When its connection is over, if it has one.
    pub(crate) fn over(&self) -> Option<Over> {
        self.client().ok().map(|client| client.over())
    }

    /// Its number, which is known to all.
    pub(crate) fn id(&self) -> i64 {
        self.info.id().0
    }

    pub(crate) fn life(&self) -> MutexGuard<'_, Life> {
        locked(&self.life)
    }

    /// Its connection is over.
    pub(crate) fn disconnected(&self) {
        self.relink(|link| matches!(link, Link::Up(_)), Link::Down);
    }

    /// A server agreed to this timeout, as it may for each connection.
    pub(crate) fn negotiated(&self, timeout: Duration) {
        self.life().proof.negotiated(timeout);
        if self.is_shortened() {
            tracing::warn!(?timeout, "another ZooKeeper server allows a session less");
            T::shortened(self);
        }
    }

    /// It is connected again, since a request that was sent at `asked`, and a heartbeat that was sent at `sent` was answered.
    pub(crate) fn connected_since(&self, client: Client, asked: Moment, sent: Moment) {
        let mut life = self.life();
        life.proof.attached(asked);
        life.answered(sent);
        drop(life);
        self.relink(|link| matches!(link, Link::Down), Link::Up(client));
    }

    fn relink(&self, applies: impl Fn(&Link) -> bool, to: Link) {
        self.link.send_if_modified(|link| {
            let applies = applies(link);
            if applies {
                *link = to;
            }
            applies
        });
    }

    /// Nobody needs it any more, or it has ended.
    pub(crate) fn is_left(&self) -> bool {
        matches!(*self.link.borrow(), Link::Left)
    }

    /// Lets the client go if nobody needs it, and nobody did for a while.
    pub(crate) fn leave_if_idle(&self, now: Moment) {
        let is_idle = self.tenant().is_idle();
        let life = self.life();
        if is_idle && life.is_unused(now) {
            drop(self.leave());
        }
    }

    /// Lets the client go. When its last request is answered it closes the session, and whatever is left of it is gone.
    pub(crate) fn leave(&self) -> Option<Over> {
        match self.link.send_replace(Link::Left) {
            Link::Up(client) => Some(client.over()),
            Link::Down | Link::Left => None,
        }
    }

    /// Closes the session, and waits for it as long as for any request.
    pub(crate) async fn close(&self) {
        if let Some(mut over) = self.leave() {
            let _ = timeout(self.config.timeout, over.wait_for(|over| *over)).await;
        }
    }
}

/// How to connect a session of this timeout.
fn connector(config: &Config, ttl: Duration) -> Connector {
    let connector = config.connector.clone().with_session_timeout(ttl).with_fail_eagerly();
    connector.with_connection_timeout(SILENCE.min(ttl * 2 / 5))
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
        f.debug_struct("Session").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_unused_a_minute_after_its_last_use() {
        let at = |s: u64| Moment::from_nanos(s * 1_000_000_000);
        let proof = Proof::new(at(10), IDLE);
        let mut life = Life { proof, fresh: at(10), used: at(10), attended: true };
        assert!(!life.is_unused(at(69)) && life.is_unused(at(70)));
        life.used = at(490);
        assert!(!life.is_unused(at(549)));
    }
}
