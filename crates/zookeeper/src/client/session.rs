//! One session with ZooKeeper: the lease of every node that was created through it.
//!
//! Data: a watch channel with its link ([`ConnectionState`]: connected by a client, disconnected, or ended for
//! good); under one mutex its [`Liveness`], the time of its last use and the number of its task; and
//! under another one its [`SessionHandler`].
//!
//! Life of a session:
//! 1. [`Session::open`] asks the servers one after the other, with a delay of [`STEP`], takes the
//!    first one that answers, and begins the session's task (see `keep_alive`), which sends
//!    keep-alives. It runs in one of the runtimes that use the session.
//! 2. When the connection is lost, the task finds a server that allows what was promised
//!    ([`Session::find_server`]), connects the session there with a new client, and verifies by a
//!    write that it lives.
//! 3. A session that nothing has used for [`IDLE`], and that its handler does not need, is closed.
//!    Its end, or its loss, is reported to the handler.

use std::collections::HashSet;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use leasehold_core::backend::{Moment, Notifier};
use leasehold_core::support::{Background, locked};
use leasehold_core::{Loss, Result};
use leasehold_net::race;
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{Connector, Error as ZkError, MultiReadResult, MultiReader, SessionInfo};

use crate::client::base::Base;
use crate::client::connection::{Client, Closed, Watch};
use crate::client::keep_alive;
use crate::client::liveness::Liveness;
use crate::client::request::read;
use crate::config::Config;
use crate::error::Answer;
use crate::names;

/// The time after which a server that answers nothing is left for another one.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The delay after which another server is asked beside it.
const STEP: Duration = Duration::from_millis(300);

/// The time without use after which a session is closed.
const IDLE: Duration = Duration::from_secs(60);

/// The receiver of a session's events, from its beginning on.
pub(crate) trait SessionHandler: Default + Send + 'static {
    /// The session's [`validity`](Liveness::validity) may have grown. Called four times in the session's timeout while it is connected,
    /// and when the connection is lost.
    fn extended(session: &Session<Self>);

    /// The connection works, so remaining work can be done. Called when the connection is made and
    /// four times in the session's timeout, but not while an earlier call still runs.
    fn tend(session: &Session<Self>) -> impl Future<Output = ()> + Send;

    /// The session is about to be connected again, over this connection: perhaps to a server that has old data again.
    fn reconnected(&mut self, over: &Closed);

    /// Another client notified this session: some of its nodes may have been removed. After an error it is called again.
    fn notified(session: &Session<Self>) -> impl Future<Output = Answer<()>> + Send;

    /// A server has agreed to less than was agreed before, and to less than was promised until now.
    fn shortened(session: &Session<Self>);

    /// The session has ended, and with it all its nodes.
    fn ended(session: &Session<Self>, loss: Loss);

    /// Returns whether the handler does not need the session. It is closed after a minute without
    /// use.
    fn is_idle(&self) -> bool;

    /// Returns whether something was promised that depends on the session's validity: its
    /// keep-alives are writes then.
    fn is_holding(&self) -> bool;
}

/// One session, until it ends.
pub(crate) struct Session<T> {
    /// The notifier that its handler uses.
    pub(crate) notifier: Notifier,
    pub(crate) config: Arc<Config>,
    /// The identity by which the server knows it.
    info: SessionInfo,
    /// The timeout that it asks for.
    ttl: Duration,
    handler: Mutex<T>,
    state: Mutex<State>,
    link: watch::Sender<ConnectionState>,
    base: Base,
    /// Runs the session's task.
    background: Background,
    /// The watch of its notification node with which the first task begins.
    first_watch: Mutex<Option<Watch>>,
}

/// The state of its connection.
enum ConnectionState {
    Connected(Client),
    Disconnected,
    /// Closed by this client, or ended.
    Ended,
}

pub(crate) struct State {
    pub(crate) liveness: Liveness,
    last_used: Moment,
    /// The number of the session's latest task. Only that one counts.
    pub(crate) latest_task: u64,
}

impl<T: SessionHandler> Session<T> {
    /// Opens a session whose timeout is as near to `ttl` as the server allows, and keeps it alive.
    pub(crate) async fn open(
        config: &Arc<Config>,
        notifier: &Notifier,
        ttl: Duration,
    ) -> Result<Arc<Session<T>>> {
        // ZooKeeper counts in milliseconds, and a lease is never shorter than was asked for.
        let ttl = ttl.saturating_add(Duration::from_nanos(999_999));
        let asked = Moment::now();
        let connector = connector(config, ttl).await?;
        let is_known = config.identity.id().is_some();
        let each: Vec<_> = config
            .each_server()
            .map(async |server| {
                config.check_company(server).await?;
                let client = Client::connect(connector.clone(), &config.at(server)).await?;
                if is_known {
                    // Nothing is written to another store.
                    limited_check(config, &client).await?;
                }
                Ok(client)
            })
            .collect();
        let is_final = |e: &ZkError| *e == ZkError::AuthFailed;
        let client = race(each, STEP, is_final).await.map_err(|e| {
            let of_servers = || config.reading(e.unwrap_or(ZkError::NoHosts));
            config.complaint().unwrap_or_else(of_servers)
        })?;
        let liveness = Liveness::new(asked, client.session_timeout());
        let state = Mutex::new(State {
            liveness,
            last_used: Moment::now(),
            latest_task: 0,
        });
        let info = client.session().clone();
        let link = watch::Sender::new(ConnectionState::Connected(client));
        let notifier = notifier.clone();
        let config = config.clone();
        let handler = Mutex::default();
        let base = Base::default();
        let session = Arc::new_cyclic(|this: &Weak<Session<T>>| {
            let this = this.clone();
            let task = move |anew| keep_alive::begin(this.upgrade(), anew);
            Session {
                notifier,
                config,
                info,
                ttl,
                handler,
                state,
                link,
                base,
                background: Background::new(task),
                first_watch: Mutex::default(),
            }
        });
        let of = |e| session.config.reading(e);
        // A server that cannot list a session's nodes is too old to detect a loss. It answers no
        // other request meanwhile, and closes the connection.
        session.nodes().await.map_err(of)?;
        let learnt = async { session.learn_base(&session.client()?).await };
        let (watch, ()) =
            tokio::try_join!(keep_alive::begin_notifications(&session), learnt).map_err(of)?;
        if !is_known {
            let learnt = async { session.config.learn_identity(&session.client()?).await };
            session.limited(learnt).await.map_err(of)?;
        }
        *locked(&session.first_watch) = Some(watch);
        session.background.here();
        Ok(session)
    }

    /// Connects to this server: with this session, or with a new one of the same timeout.
    pub(crate) async fn connect(&self, server: &str, of_this: bool) -> Answer<Client> {
        let connector = connector(&self.config, self.ttl)
            .await
            .map_err(|e| ZkError::UnexpectedError(e.to_string()))?;
        let connector = if of_this {
            connector.with_session(self.info.clone())
        } else {
            connector
        };
        Client::connect(connector, &self.config.at(server)).await
    }

    /// The first server that answers and allows this session as much as was promised. From then on
    /// its limit counts.
    pub(crate) async fn find_server(&self) -> Answer<&str> {
        let each: Vec<_> = self
            .config
            .each_server()
            .map(|server| self.ask_server(server))
            .collect();
        race(each, STEP, |_| false)
            .await
            .map_err(|e| e.unwrap_or(ZkError::NoHosts))
    }

    async fn ask_server<'a>(&self, server: &'a str) -> Answer<&'a str> {
        self.config.check_company(server).await?;
        let client = self.connect(server, false).await?;
        limited_check(&self.config, &client).await?;
        let timeout = client.session_timeout();
        drop(client);
        // The handler is locked, so no grant comes in between.
        let handler = self.handler();
        let now = Moment::now();
        if handler.is_holding() && self.state().liveness.promises_more(timeout, now) {
            let text = format!(
                "{server} allows a session {timeout:?}, which would end before what is promised"
            );
            return Err(ZkError::UnexpectedError(text));
        }
        self.state().liveness.negotiated(timeout, now);
        Ok(server)
    }

    /// The client, once it is connected. An error means that nothing was sent.
    pub(crate) async fn connected(&self) -> Answer<Client> {
        let mut link = self.link.subscribe();
        let connected = link.wait_for(|link| match link {
            ConnectionState::Connected(client) => client.closed.has_changed().is_ok(),
            ConnectionState::Disconnected => false,
            ConnectionState::Ended => true,
        });
        match timeout(self.config.timeout, connected)
            .await
            .map_err(|_| ZkError::Timeout)?
            .as_deref()
        {
            Ok(ConnectionState::Connected(client)) => Ok(client.clone()),
            _ => Err(ZkError::ClientClosed),
        }
    }

    /// Learns the raises of all transactions about which this connection has answered: see `base`.
    pub(crate) async fn learn_base(&self, client: &Client) -> Answer<()> {
        self.base
            .learn(client, &names::base(&self.config.root), self.config.timeout)
            .await
    }

    /// The raised number of this transaction.
    pub(crate) fn number(&self, zxid: i64) -> i64 {
        self.base.number(zxid)
    }

    /// Bounds a call in time, and by the end of a connection whose runtime is not driven. A request
    /// that is given up may still arrive.
    pub(crate) async fn limited<R>(&self, call: impl Future<Output = Answer<R>>) -> Answer<R> {
        let mut closed = self.client().map(|client| client.closed);
        let abandoned = async {
            // An error says that the connection was lost, and the call learns of that itself.
            if let Ok(closed) = &mut closed
                && closed.changed().await.is_ok()
            {
                return;
            }
            pending::<()>().await;
        };
        let limit = self.config.timeout * 2;
        tokio::select! {
            biased;
            answer = timeout(limit, call) => answer.unwrap_or(Err(ZkError::ConnectionLoss)),
            () = abandoned => Err(ZkError::ConnectionLoss),
        }
    }

    /// Locks its handler. Do not await anything while it is locked.
    pub(crate) fn handler(&self) -> MutexGuard<'_, T> {
        locked(&self.handler)
    }

    /// The paths of all nodes that live as long as the session. One request.
    pub(crate) async fn nodes(&self) -> Answer<HashSet<String>> {
        let client = self.client()?;
        let listed = timeout(
            self.config.timeout,
            client.list_ephemerals(&self.config.root),
        )
        .await;
        Ok(listed
            .unwrap_or(Err(ZkError::ConnectionLoss))?
            .into_iter()
            .collect())
    }

    /// The paths among these at which there is a node that lives as long as the session. One
    /// request for each 128.
    pub(crate) async fn nodes_at(
        &self,
        paths: impl Iterator<Item = &str>,
    ) -> Answer<HashSet<String>> {
        let client = self.client()?;
        let paths = paths.collect::<Vec<_>>();
        let read = timeout(
            self.config.timeout,
            read(&client, &paths, MultiReader::add_get_data),
        )
        .await;
        let mut nodes = HashSet::new();
        for (path, answer) in paths
            .iter()
            .zip(read.unwrap_or(Err(ZkError::ConnectionLoss))?)
        {
            match answer {
                MultiReadResult::Data { stat, .. } if stat.ephemeral_owner == self.info.id().0 => {
                    nodes.insert((*path).to_owned());
                }
                MultiReadResult::Data { .. }
                | MultiReadResult::Error {
                    err: ZkError::NoNode,
                } => {}
                MultiReadResult::Error { err } => return Err(err),
                _ => {
                    return Err(ZkError::UnexpectedError(
                        "another read was answered".to_owned(),
                    ));
                }
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
        self.client()?
            .set_data(&names::notification(&self.config.root, other), b"", None)
            .await
            .map(drop)
    }

    /// Records a use of the session; `false` if it has ended. This runtime runs the session's task
    /// from now on if no other does.
    pub(crate) fn mark_used(&self) -> bool {
        self.state().last_used = Moment::now();
        let lives = !self.has_ended();
        if lives {
            self.background.here();
        }
        lives
    }

    /// Begins another task of the session. Returns its number, and its watch of the notification
    /// node if it is the first one.
    pub(crate) fn begin_task(&self) -> (u64, Option<Watch>) {
        let mut state = self.state();
        state.latest_task += 1;
        (state.latest_task, locked(&self.first_watch).take())
    }

    /// The client, if the session is connected.
    pub(crate) fn client(&self) -> Answer<Client> {
        match &*self.link.borrow() {
            ConnectionState::Connected(client) => Ok(client.clone()),
            ConnectionState::Disconnected => Err(ZkError::ConnectionLoss),
            ConnectionState::Ended => Err(ZkError::ClientClosed),
        }
    }

    /// Locks its liveness, its last use and the number of its task. Do not await anything while they are locked.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Records that its connection is closed.
    pub(crate) fn disconnected(&self) {
        self.set_link(ConnectionState::Disconnected);
        self.base.disconnected();
    }

    /// Records that a server that was asked at `asked` agreed to this timeout, which may differ for
    /// each server and connection.
    pub(crate) fn negotiated(&self, timeout: Duration, asked: Moment) {
        self.state().liveness.negotiated(timeout, asked);
        if self.state().liveness.is_shortened() {
            tracing::warn!(?timeout, "another ZooKeeper server allows a session less");
            T::shortened(self);
        }
    }

    /// Records that it is connected again by a request that was sent at `asked`, and that a
    /// keep-alive sent at `sent` was answered.
    pub(crate) fn reconnected(&self, client: Client, asked: Moment, sent: Moment) {
        let mut state = self.state();
        state.liveness.reconnected(asked);
        state.liveness.answered(sent, Moment::now());
        drop(state);
        self.set_link(ConnectionState::Connected(client));
    }

    /// Records that a write over this connection, sent at `sent`, was answered. It counts if this
    /// is still the session's connection: another server does not know of it.
    pub(crate) fn written(&self, client: &Client, sent: Moment) {
        let mut state = self.state();
        if self.client().is_ok_and(|now| now.is_same(client)) {
            state.liveness.answered(sent, Moment::now());
        }
    }

    /// Changes the link, unless the session has ended.
    fn set_link(&self, to: ConnectionState) {
        self.link.send_if_modified(|link| {
            let applies = !matches!(link, ConnectionState::Ended);
            if applies {
                *link = to;
            }
            applies
        });
    }

    /// Returns whether it was closed by this client, or has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(*self.link.borrow(), ConnectionState::Ended)
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
        match self.link.send_replace(ConnectionState::Ended) {
            ConnectionState::Connected(client) => Some(client.closed),
            ConnectionState::Disconnected | ConnectionState::Ended => None,
        }
    }

    /// Ends it and waits until it is closed, for no longer than for any request.
    pub(crate) async fn close(&self) {
        if let Some(mut closed) = self.start_closing() {
            let _ = timeout(self.config.timeout, closed.changed()).await;
        }
    }
}

/// The connector for a session of this timeout.
async fn connector(config: &Config, ttl: Duration) -> Result<Connector> {
    let connector = config
        .authenticated()
        .await?
        .with_session_timeout(ttl)
        .with_fail_eagerly()
        .with_readonly(false);
    #[cfg(feature = "tls-no-provider")]
    let connector = config.secured(connector).await?;
    Ok(connector.with_connection_timeout(SERVER_TIMEOUT.min(ttl * 2 / 5)))
}

/// Fails if this connection leads to another ensemble, or does not answer.
async fn limited_check(config: &Config, client: &Client) -> Answer<()> {
    let checked = timeout(config.timeout, config.check_identity(client)).await;
    checked
        .map_err(|_| ZkError::Timeout)?
        .map_err(|e| ZkError::UnexpectedError(e.to_string()))
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
        let mut state = State {
            liveness,
            last_used: at(10),
            latest_task: 0,
        };
        assert!(!state.is_unused(at(69)) && state.is_unused(at(70)));
        state.last_used = at(490);
        assert!(!state.is_unused(at(549)));
    }
}
