//! The task of a session: its connections, its keep-alives, and its notification node. Other
//! clients write to that node to make the session check its nodes. This takes one watch, however
//! many nodes the session has.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Loss;
use leasehold_core::backend::{Clock, Moment};
use scopeguard::{ScopeGuard, guard};
use tokio::time::{sleep, timeout};
use zookeeper_client::{CreateMode, Error as ZkError};

use crate::client::connection::{Client, Closed, Watch};
use crate::client::request::{RETRY_INTERVAL, found, mkdir};
use crate::client::session::{Session, SessionHandler};
use crate::error::Answer;
use crate::names;

/// The greatest number of keep-alives in flight. More would only queue up while there is no
/// connection.
const IN_FLIGHT: usize = 6;

/// Begins the session's task in this runtime. `anew`: another runtime did so before, and the
/// session's connection is not driven there any more.
pub(crate) async fn begin<T: SessionHandler>(session: Option<Arc<Session<T>>>, anew: bool) {
    let Some(session) = session else { return };
    let (nth, watch) = session.begin_task();
    if anew {
        tracing::debug!("a session with ZooKeeper goes on in another runtime");
        if let Ok(client) = session.client() {
            client.abandon();
        }
        session.disconnected();
    }
    run(session, nth, watch).await;
}

/// Keeps the session alive until it ends. It is the `nth` task of the session, and leaves the
/// session alone once there is another one.
async fn run<T: SessionHandler>(session: Arc<Session<T>>, nth: u64, mut watch: Option<Watch>) {
    let counts = || session.state().latest_task == nth;
    let loss = loop {
        if let Ok(closed) = session.client().map(|client| client.closed) {
            serve(&session, closed, watch.take()).await;
            T::extended(&session); // what was answered before the connection was lost
        }
        if !counts() {
            return;
        }
        if session.has_ended() {
            break Loss::Gone;
        }
        match reconnect(&session, nth).await {
            _ if !counts() => return,
            Ok(()) => session.notifier.notify_all(), // watches may have been missed
            Err(loss) => break loss,
        }
    };
    drop(session.start_closing());
    T::ended(&session, loss);
}

/// Connects the session again, until it has ended. A session that this client closes meanwhile is
/// still connected if its handler is not idle, so that its nodes are removed at once.
async fn reconnect<T: SessionHandler>(session: &Session<T>, nth: u64) -> Result<(), Loss> {
    session.disconnected();
    loop {
        match reconnect_once(session, nth).await {
            _ if session.state().latest_task != nth => return Ok(()),
            Ok(()) if session.has_ended() => return Err(Loss::Gone),
            Ok(()) => return Ok(()),
            Err(ZkError::SessionExpired) => return Err(Loss::Expired),
            Err(e) => tracing::debug!(error = %e, "no connection to ZooKeeper"),
        }
        if session.state().liveness.has_surely_expired(Moment::now()) {
            return Err(Loss::Expired);
        }
        if session.has_ended() && session.handler().is_idle() {
            return Err(Loss::Gone);
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Connects the session to the server that answers first. The leader decides whether the session
/// still lives, and an answered keep-alive verifies that it was still the leader, and so has heard
/// of the session since the connection was asked for.
///
/// A server's limit counts as soon as the server has asked the leader, whether its answer arrives
/// or not, and at any time from then on. New sessions therefore ask the servers for their limits
/// first, even for a session that has promised nothing yet, because one session is at one server
/// only and cannot try several. A server that allows less is not used until its limit, counted from
/// now, lasts as long as the promises to holds: a holder that was told of such a promise may stand
/// still.
///
/// A connection over which the keep-alive was not answered is left without closing the session,
/// which may hold locks until its time is over. A connection that is made after another task has
/// taken over is left, too.
async fn reconnect_once<T: SessionHandler>(session: &Session<T>, nth: u64) -> Answer<()> {
    let server = session.find_server().await?;
    let asked = Moment::now();
    let client = guard(session.connect(server, true).await?, Client::leave);
    session.negotiated(client.session_timeout(), asked);
    let sent = Moment::now();
    timeout(session.config.timeout, write(session, &client))
        .await
        .unwrap_or(Err(ZkError::ConnectionLoss))?;
    if session.state().latest_task == nth {
        // The handler is told before anything verified over this connection counts.
        session.handler().reconnected(&client.closed);
        session.reconnected(ScopeGuard::into_inner(client), asked, sent);
    }
    Ok(())
}

/// Sends keep-alives and receives notifications, for as long as the connection lasts.
async fn serve<T: SessionHandler>(session: &Session<T>, mut closed: Closed, watch: Option<Watch>) {
    let mut notifications = pin!(receive_notifications(session, watch));
    let mut in_flight = FuturesUnordered::new();
    let clock = Clock::boot();
    let mut last = Moment::now();
    let mut tended = last;
    let mut tending = FuturesUnordered::from_iter([T::tend(session)]);
    loop {
        // The writes of claims count as keep-alives, so a busy session may send none, and still has things to tend.
        let tend = tended + session.state().liveness.timeout / 4;
        let due = session.state().liveness.next(last);
        tokio::select! {
            biased;
            _ = closed.changed() => return,
            () = clock.sleep_until(due.min(tend)) => {
                let now = Moment::now();
                if tend <= now {
                    tended = now;
                    session.end_if_idle(now);
                    T::extended(session);
                    if tending.is_empty() {
                        tending.push(T::tend(session));
                    }
                }
                // No keep-alive is due if a claim has written meanwhile.
                if session.state().liveness.next(last) <= now {
                    last = now;
                    if in_flight.len() < IN_FLIGHT {
                        in_flight.push(keep_alive(session, last));
                    }
                }
            }
            Some(answered) = in_flight.next() => if let Err(e) = answered {
                tracing::debug!(error = %e, "a keep-alive to ZooKeeper was not answered");
            },
            Some(()) = tending.next() => {}
            never = &mut notifications => match never {},
        }
    }
}

/// Sends one keep-alive. A session that holds nothing has nothing to verify, so it only reads and
/// does not trouble the leader and a quorum.
async fn keep_alive<T: SessionHandler>(session: &Session<T>, sent: Moment) -> Answer<()> {
    let client = session.client()?;
    let holding = session.handler().is_holding();
    if holding {
        write(session, &client).await?;
        session.state().liveness.answered(sent, Moment::now());
    } else {
        read(session, &client).await?;
        session.state().liveness.touched(sent, Moment::now());
    }
    Ok(())
}

async fn read<T: SessionHandler>(session: &Session<T>, client: &Client) -> Answer<()> {
    client
        .check_stat(&names::sessions(&session.config.root))
        .await
        .map(drop)
}

/// A write needs the leader and a quorum, which a read does not.
async fn write<T: SessionHandler>(session: &Session<T>, client: &Client) -> Answer<()> {
    client
        .set_data(&names::sessions(&session.config.root), b"", None)
        .await
        .map(drop)
}

/// Watches the session's notification node, and creates it if it is not there.
async fn watch_notifications<T: SessionHandler>(session: &Session<T>) -> Answer<Watch> {
    let client = session.connected().await?;
    match found(
        client
            .get_and_watch_data(&session.notification_node())
            .await,
    )? {
        Some((.., watcher)) => Ok(Box::pin(client.watch(watcher))),
        None => begin_notifications(session).await,
    }
}

/// Creates the session's notification node and watches it. Both requests are sent at once, and
/// executed in this order.
pub(crate) async fn begin_notifications<T: SessionHandler>(session: &Session<T>) -> Answer<Watch> {
    let client = session.connected().await?;
    let node = session.notification_node();
    let options = session.config.create_options(CreateMode::Ephemeral);
    loop {
        let (created, watched) = tokio::join!(
            client.create(&node, b"", &options),
            client.get_and_watch_data(&node)
        );
        if let Some((.., watcher)) = found(watched)? {
            return Ok(Box::pin(client.watch(watcher)));
        }
        match created {
            Err(ZkError::NoNode) => {
                mkdir(
                    &client,
                    &session.config,
                    &names::sessions(&session.config.root),
                )
                .await?;
            }
            // The node was removed just then.
            Ok(_) | Err(ZkError::NodeExists) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Reports each notification, for as long as the connection lasts.
async fn receive_notifications<T: SessionHandler>(
    session: &Session<T>,
    mut watch: Option<Watch>,
) -> Infallible {
    loop {
        if let Some(watch) = watch.take() {
            watch.await;
        }
        // The watch comes first, so that any later change notifies again.
        let received = async {
            let watch = watch_notifications(session).await?;
            T::notified(session).await.map(|()| watch)
        };
        match session.limited(received).await {
            Ok(next) => watch = Some(next),
            Err(_) => sleep(RETRY_INTERVAL).await,
        }
    }
}
