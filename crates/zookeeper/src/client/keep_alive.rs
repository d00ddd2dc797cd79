//! A session's own task: its connections, its heartbeats, and its bell. That is a node of its own that others touch so that it
//! looks after its nodes: one standing watch, however many nodes it has.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Loss;
use leasehold_core::seam::{Clock, Moment};
use tokio::time::timeout;
use zookeeper_client::{CreateMode, Error as ZkError};

use crate::client::connection::Over;
use crate::client::request::{found, mkdir};
use crate::client::session::{Session, Tenant};
use crate::error::Answer;

/// Unanswered heartbeats at a time. More would only queue up while there is no connection.
const UNANSWERED: usize = 6;

/// How long to wait before trying again what has failed.
const BREATHE: Duration = Duration::from_millis(200);

/// Resolves when somebody rings, or the connection is over.
pub(crate) type Bell = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Keeps the session alive until it ends. If this ends before, with its runtime, whoever uses the session begins it anew.
pub(crate) async fn live<T: Tenant>(session: Arc<Session<T>>, mut bell: Option<Bell>) {
    let _attended = Attended(&session);
    let loss = loop {
        if let Some(over) = session.over() {
            serve(&session, over, bell.take()).await;
        }
        if session.is_left() {
            break Loss::Gone;
        }
        match attach(&session).await {
            Ok(()) => session.notifier.notify_all(), // whoever watches may have missed something
            Err(loss) => break loss,
        }
    };
    drop(session.leave());
    T::ended(&session, loss);
}

struct Attended<'a, T: Tenant>(&'a Session<T>);

impl<T: Tenant> Drop for Attended<'_, T> {
    fn drop(&mut self) {
        self.0.life().attended = false;
    }
}

/// Connects the session again, until it has ended. A session that was left meanwhile is closed, for the sake of what is in it.
async fn attach<T: Tenant>(session: &Session<T>) -> Result<(), Loss> {
    session.disconnected();
    loop {
        for server in session.config.each_server() {
            match attach_to(session, server).await {
                Ok(()) if session.is_left() => return Err(Loss::Gone),
                Ok(()) => return Ok(()),
                Err(ZkError::SessionExpired) => return Err(Loss::Expired),
                Err(ZkError::AuthFailed) => return Err(Loss::Gone),
                Err(e) => tracing::debug!(server, error = %e, "no connection to ZooKeeper"),
            }
        }
        if session.life().proof.is_long_over(Moment::now()) {
            return Err(Loss::Expired);
        }
        if session.is_left() && session.tenant().is_idle() {
            return Err(Loss::Gone);
        }
        tokio::time::sleep(BREATHE).await;
    }
}

/// Connects the session to this server. It is the leader that says whether it still lives, and a heartbeat that who said so
/// still leads: the session was heard of when this was asked for.
///
/// A server's limit counts as soon as it has asked the leader, whether its answer arrives or not. So another session asks for
/// it first, if there is anything that was promised for longer.
async fn attach_to<T: Tenant>(session: &Session<T>, server: &str) -> Answer<()> {
    if !session.tenant().is_idle() {
        session.negotiated(session.connect(server, false).await?.session_timeout());
    }
    let asked = Moment::now();
    let client = session.connect(server, true).await?;
    session.negotiated(client.session_timeout());
    let sent = Moment::now();
    let beat = timeout(session.config.timeout, client.set_data(&session.config.sessions(), b"", None));
    beat.await.unwrap_or(Err(ZkError::ConnectionLoss))?;
    session.connected_since(client, asked, sent);
    Ok(())
}

/// Sends heartbeats and hears the bell, for as long as the connection lasts.
async fn serve<T: Tenant>(session: &Session<T>, mut over: Over, bell: Option<Bell>) {
    let mut hearing = pin!(hear(session, bell));
    let mut beats = FuturesUnordered::new();
    let (clock, mut last) = (Clock::boot(), Moment::now());
    loop {
        let due = session.life().proof.next(last);
        tokio::select! {
            _ = over.wait_for(|over| *over) => return,
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
    let Ok(client) = session.client() else { return };
    match client.set_data(&session.config.sessions(), b"", None).await {
        Ok(_) => session.life().answered(sent),
        Err(e) => return tracing::debug!(error = %e, "a heartbeat to ZooKeeper was not answered"),
    }
    drop(client);
    T::proven(session).await;
}

/// Listens at the session's bell, and makes it if it is not there.
pub(crate) async fn listen<T: Tenant>(session: &Session<T>) -> Answer<Bell> {
    let client = session.connected().await?;
    let bell = session.config.bell(session.id());
    loop {
        if let Some((.., watcher)) = found(client.get_and_watch_data(&bell).await)? {
            return Ok(Box::pin(client.watch(watcher)));
        }
        mkdir(&client, &session.config, &session.config.sessions()).await?;
        client.create(&bell, b"", &session.config.make(CreateMode::Ephemeral)).await?;
    }
}

/// Hears whoever rings, for as long as the connection lasts.
async fn hear<T: Tenant>(session: &Session<T>, mut bell: Option<Bell>) -> Infallible {
    loop {
        if let Some(bell) = bell.take() {
            bell.await;
        }
        // Listen again first: what happens after that rings again.
        let heard = async {
            let bell = listen(session).await?;
            T::rung(session).await.map(|()| bell)
        };
        match session.limited(heard).await {
            Ok(heard) => bell = Some(heard),
            Err(_) => tokio::time::sleep(BREATHE).await,
        }
    }
}
