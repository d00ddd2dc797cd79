//! One session with ZooKeeper: the lease of every node that was created through it.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::seam::{Moment, Notifier};
use leasehold_core::support::{locked, race};
use leasehold_core::{Loss, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{Connector, Error as ZkError, MultiReadResult, MultiReader, SessionInfo};

use crate::client::base::Base;
use crate::client::connection::{Client, Closed};
use crate::client::keep_alive;
use crate::client::liveness::Liveness;
use crate::client::request::read;
use crate::client::tasks::{Needed, Tasks};
use crate::config::Config;
use crate::error::Answer;
use crate::names;

/// A server that answers nothing for so long is left for another one.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);

/// And after so long another one is asked beside it.
const STEP: Duration = Duration::from_millis(300);

/// A session that was not used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// What a session reports to, from its beginning on.
pub(crate) trait SessionHandler: Default + Send + 'static {
    /// The session's [`validity`](Liveness::validity) may have grown. Called four times in the session's timeout while it is connected,
    /// and when the connection is lost.
    fn extended(session: &Session<Self>);

    /// The connection works: what is left to do can be done. Called when it is made and as often, but not while it still runs.
    fn tend(session: &Session<Self>) -> impl Future<Output = ()> + Send;

    /// The session is about to be connected again, over this connection: perhaps to a server that has old data again.
    fn reconnected(&mut self, over: &Closed);

    /// Another client notified this session: some of its nodes may have been removed. After an error it is called again.
    fn notified(session: &Session<Self>) -> impl Future<Output = Answer<()>> + Send;

    /// A server has agreed to less than it did a moment before, and to less than was promised until now.
    fn shortened(session: &Session<Self>);

    /// The session has ended, and with it all its nodes.
    fn ended(session: &Session<Self>, loss: Loss);

    /// Whether nothing here needs the session. It is closed after a minute without use.
    fn is_idle(&self) -> bool;

    /// Whether something was promised that depends on the session's validity: its keep-alives are writes then.
    fn is_holding(&self) -> bool;
}

/// One session, until it ends.
pub(crate) struct Session<T> {
    /// What its handler notifies.
    pub(crate) notifier: Notifier,
    pub(crate) config: Arc<Config>,
    /// What the server knows it by.
    info: SessionInfo,
    /// The timeout that it asks for.
    ttl: Duration,
    handler: Mutex<T>,
    state: Mutex<State>,
    link: watch::Sender<Link>,
    base: Base,
}

/// How it is connected.
enum Link {
    Connected(Client),
    Disconnected,
    /// Closed by this client, or ended.
    Ended,
}

pub(crate) struct State {
    pub(crate) liveness: Liveness,
    last_used: Moment,
    pub(crate) tasks: Tasks,
}

impl<T: SessionHandler> Session<T> {
    /// Opens a session whose timeout is as near to `ttl` as the server allows, and keeps it alive.
    pub(crate) async fn open(config: &Arc<Config>, notifier: &Notifier, ttl: Duration) -> Result<Arc<Session<T>>> {
        // ZooKeeper counts in milliseconds, and a lease is never shorter than was asked for.
        let ttl = ttl.saturating_add(Duration::from_nanos(999_999));
        let asked = Moment::now();
        let connector = connector(config, ttl).await?;
        let each: Vec<_> = config
            .each_server()
            .map(async |server| Client::connect(connector.clone(), &config.at(server)).await)
            .collect();
        let is_final = |e: &ZkError| *e == ZkError::AuthFailed;
        let client = race(each, STEP, is_final).await.map_err(|e| config.reading(e.unwrap_or(ZkError::NoHosts)))?;
        let liveness = Liveness::new(asked, client.session_timeout());
        let mut tasks = Tasks::default();
        let nth = tasks.begin(Handle::current().id(), Moment::now());
        let state = Mutex::new(State { liveness, last_used: Moment::now(), tasks });
        let (info, link) = (client.session().clone(), watch::Sender::new(Link::Connected(client)));
        let (notifier, config, handler, base) = (notifier.clone(), config.clone(), Mutex::default(), Base::default());
        let session = Arc::new(Session { notifier, config, info, ttl, handler, state, link, base });
        let of = |e| session.config.reading(e);
        // A server that cannot list a session's nodes is too old to detect a loss. It answers nothing beside, and closes the connection.
        session.nodes().await.map_err(of)?;
        let learnt = async { session.learn_base(&session.client()?).await };
        let (watch, ()) = tokio::try_join!(keep_alive::begin_notifications(&session), learnt).map_err(of)?;
        tokio::spawn(keep_alive::run(session.clone(), nth, Some(watch)));
        Ok(session)
    }

    /// Another connection to this server: of this session, or of a new one with the same timeout.
    pub(crate) async fn connect(&self, server: &str, of_this: bool) -> Answer<Client> {
        let connector = connector(&self.config, self.ttl).await.map_err(|e| ZkError::UnexpectedError(e.to_string()))?;
        let connector = if of_this { connector.with_session(self.info.clone()) } else { connector };
        Client::connect(connector, &self.config.at(server)).await
    }

    /// The first server that answers, and allows this session what was promised. From then on its limit counts.
    pub(crate) async fn find_server(&self) -> Answer<&str> {
        let each: Vec<_> = self.config.each_server().map(|server| self.ask_server(server)).collect();
        race(each, STEP, |_| false).await.map_err(|e| e.unwrap_or(ZkError::NoHosts))
    }

    async fn ask_server<'a>(&self, server: &'a str) -> Answer<&'a str> {
        let timeout = self.connect(server, false).await?.session_timeout();
        // What is granted meanwhile waits for the handler.
        let (handler, now) = (self.handler(), Moment::now());
        if handler.is_holding() && self.state().liveness.promises_more(timeout, now) {
            let text = format!("{server} allows a session {timeout:?}, which would end before what is promised");
            return Err(ZkError::UnexpectedError(text));
        }
        self.state().liveness.negotiated(timeout, now);
        Ok(server)
    }

    /// The client once it is connected. An error means that nothing was sent.
    pub(crate) async fn connected(&self) -> Answer<Client> {
        let mut link = self.link.subscribe();
        let connected = link.wait_for(|link| match link {
            Link::Connected(client) => client.closed.has_changed().is_ok(),
            Link::Disconnected => false,
            Link::Ended => true,
        });
        match timeout(self.config.timeout, connected).await.map_err(|_| ZkError::Timeout)?.as_deref() {
            Ok(Link::Connected(client)) => Ok(client.clone()),
            _ => Err(ZkError::ClientClosed),
        }
    }

    /// Learns how far the numbers of all transactions are raised of which this connection has told: see `base`.
    pub(crate) async fn learn_base(&self, client: &Client) -> Answer<()> {
        self.base.learn(client, &names::base(&self.config.root), self.config.timeout).await
    }

    /// What the number of this transaction is raised to.
    pub(crate) fn number(&self, zxid: i64) -> i64 {
        self.base.number(zxid)
    }

    /// Bounds a call in time. A request that is given up may still arrive.
    pub(crate) async fn limited<R>(&self, call: impl Future<Output = Answer<R>>) -> Answer<R> {
        timeout(self.config.timeout * 2, call).await.unwrap_or(Err(ZkError::ConnectionLoss))
    }

    /// Its handler. Do not await anything while this is locked.
    pub(crate) fn handler(&self) -> MutexGuard<'_, T> {
        locked(&self.handler)
    }

    /// The paths of all nodes that live as long as the session. One request.
    pub(crate) async fn nodes(&self) -> Answer<HashSet<String>> {
        let client = self.client()?;
        let listed = timeout(self.config.timeout, client.list_ephemerals(&self.config.root)).await;
        Ok(listed.unwrap_or(Err(ZkError::ConnectionLoss))?.into_iter().collect())
    }

    /// Those of these paths at which there is a node that lives as long as the session. One request for a hundred.
    pub(crate) async fn nodes_at(&self, paths: impl Iterator<Item = &str>) -> Answer<HashSet<String>> {
        let (client, paths) = (self.client()?, paths.collect::<Vec<_>>());
        let read = timeout(self.config.timeout, read(&client, &paths, MultiReader::add_get_data)).await;
        let mut nodes = HashSet::new();
        for (path, answer) in paths.iter().zip(read.unwrap_or(Err(ZkError::ConnectionLoss))?) {
            match answer {
                MultiReadResult::Data { stat, .. } if stat.ephemeral_owner == self.info.id().0 => {
                    nodes.insert((*path).to_owned());
                }
                MultiReadResult::Data { .. } | MultiReadResult::Error { err: ZkError::NoNode } => {}
                MultiReadResult::Error { err } => return Err(err),
                _ => return Err(ZkError::UnexpectedError("another read was answered".to_owned())),
            }
        }
        Ok(nodes)
    }

    /// The path of the node by which other clients notify this session.
    pub(crate) fn notification_node(&self) -> String {
        names::notification(&self.config.root, self.info.id().0)
    }

    /// Notifies another session, so that it checks its nodes. A session of another tool has no node for that.
    pub(crate) async fn notify(&self, other: i64) -> Answer<()> {
        self.client()?.set_data(&names::notification(&self.config.root, other), b"", None).await.map(drop)
    }

    /// Takes the session into use; `false` if it has ended. If the runtime of its task has ended, the task continues in this one. If that one
    /// is not driven, it does so a moment later.
    pub(crate) fn mark_used(self: &Arc<Self>) -> bool {
        let mut state = self.state();
        state.last_used = Moment::now();
        if let (false, Ok(runtime)) = (self.has_ended(), Handle::try_current()) {
            let now = state.last_used;
            match state.tasks.needed(runtime.id(), now) {
                Some(Needed::Task) => {
                    let nth = state.tasks.begin(runtime.id(), now);
                    runtime.spawn(keep_alive::run(self.clone(), nth, None));
                }
                Some(Needed::Look(late)) => drop(runtime.spawn(keep_alive::take_over(self.clone(), late))),
                None => {}
            }
        }
        !self.has_ended()
    }

    /// The client, if the session is connected.
    pub(crate) fn client(&self) -> Answer<Client> {
        match &*self.link.borrow() {
            Link::Connected(client) => Ok(client.clone()),
            Link::Disconnected => Err(ZkError::ConnectionLoss),
            Link::Ended => Err(ZkError::ClientClosed),
        }
    }

    /// What is known of its life. Do not await anything while this is locked.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Its connection is closed.
    pub(crate) fn disconnected(&self) {
        self.set_link(Link::Disconnected);
        self.base.disconnected();
    }

    /// A server that was asked at `asked` agreed to this timeout, as each server may for each connection.
    pub(crate) fn negotiated(&self, timeout: Duration, asked: Moment) {
        self.state().liveness.negotiated(timeout, asked);
        if self.state().liveness.is_shortened() {
            tracing::warn!(?timeout, "another ZooKeeper server allows a session less");
            T::shortened(self);
        }
    }

    /// It is connected again by a request that was sent at `asked`, and a keep-alive that was sent at `sent` was answered.
    pub(crate) fn reconnected(&self, client: Client, asked: Moment, sent: Moment) {
        let mut state = self.state();
        state.liveness.reconnected(asked);
        state.liveness.answered(sent, Moment::now());
        drop(state);
        self.set_link(Link::Connected(client));
    }

    /// A write over this connection, sent at `sent`, was answered. It counts if that is the connection of now: another server knows
    /// nothing of it.
    pub(crate) fn written(&self, client: &Client, sent: Moment) {
        let mut state = self.state();
        if self.client().is_ok_and(|now| now.is_same(client)) {
            state.liveness.answered(sent, Moment::now());
        }
    }

    /// Unless it has ended.
    fn set_link(&self, to: Link) {
        self.link.send_if_modified(|link| {
            let applies = !matches!(link, Link::Ended);
            if applies {
                *link = to;
            }
            applies
        });
    }

    /// Whether it was closed by this client, or has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(*self.link.borrow(), Link::Ended)
    }

    /// Ends it if nothing needs it and it was not used for a while.
    pub(crate) fn end_if_idle(&self, now: Moment) {
        let is_idle = self.handler().is_idle();
        let state = self.state();
        if is_idle && state.is_unused(now) {
            drop(self.start_closing());
        }
    }

    /// Drops the client. When its last request is answered it closes the session, and with it all its nodes.
    pub(crate) fn start_closing(&self) -> Option<Closed> {
        self.base.disconnected();
        match self.link.send_replace(Link::Ended) {
            Link::Connected(client) => Some(client.closed),
            Link::Disconnected | Link::Ended => None,
        }
    }

    /// Ends it, and waits until it is closed, at most as long as for any request.
    pub(crate) async fn close(&self) {
        if let Some(mut closed) = self.start_closing() {
            let _ = timeout(self.config.timeout, closed.changed()).await;
        }
    }
}

/// How to connect a session of this timeout.
async fn connector(config: &Config, ttl: Duration) -> Result<Connector> {
    let connector = config.authenticated().await?.with_session_timeout(ttl).with_fail_eagerly().with_readonly(false);
    #[cfg(feature = "tls")]
    let connector = config.secured(connector).await?;
    Ok(connector.with_connection_timeout(SERVER_TIMEOUT.min(ttl * 2 / 5)))
}

impl State {
    fn is_unused(&self, now: Moment) -> bool {
        self.last_used + IDLE <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_unused_a_minute_after_its_last_use() {
        let at = |s: u64| Moment::from_nanos(s * 1_000_000_000);
        let liveness = Liveness::new(at(10), IDLE);
        let mut state = State { liveness, last_used: at(10), tasks: Tasks::default() };
        assert!(!state.is_unused(at(69)) && state.is_unused(at(70)));
        state.last_used = at(490);
        assert!(!state.is_unused(at(549)));
    }
}
