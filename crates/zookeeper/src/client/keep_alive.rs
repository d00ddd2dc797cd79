//! A session's own task: its connections, its keep-alives, and its notification node. Other clients write to that node so that the
//! session checks its nodes: one watch, however many nodes it has.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Loss;
use leasehold_core::seam::{Clock, Moment};
use scopeguard::{ScopeGuard, guard};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use zookeeper_client::{CreateMode, Error as ZkError};

use crate::client::connection::{Client, Closed, Watch};
use crate::client::request::{RETRY_INTERVAL, found, mkdir};
use crate::client::session::{Session, SessionHandler};
use crate::client::tasks::LATE;
use crate::error::Answer;
use crate::names;

/// Keep-alives in flight at most. More would only queue up while there is no connection.
const IN_FLIGHT: usize = 6;
/// A task that has connected for so long without a result is not driven any more.
const RECONNECTS_WITHIN: Duration = Duration::from_secs(15);

/// Keeps the session alive until it ends. If this ends before, with its runtime, the next use of the session begins it anew. It is the `nth`
/// task of the session, and leaves it alone once there is [another one](take_over).
pub(crate) async fn run<T: SessionHandler>(session: Arc<Session<T>>, nth: u64, mut watch: Option<Watch>) {
    let _running = guard(&session, |session| session.state().tasks.ended(nth));
    let counts = || session.state().tasks.is_of(nth);
    let loss = loop {
        if let Ok(closed) = session.client().map(|client| client.closed) {
            serve(&session, nth, closed, watch.take()).await;
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

/// Goes on in this runtime, if the session's task is late still after a moment: its own runtime is not driven, and the connection neither.
pub(crate) async fn take_over<T: SessionHandler>(session: Arc<Session<T>>, late: u64) {
    sleep(LATE).await;
    let nth = {
        let (mut state, now) = (session.state(), Moment::now());
        if !state.tasks.is_late(late, now) {
            return;
        }
        state.tasks.begin(Handle::current().id(), now)
    };
    tracing::debug!("a session with ZooKeeper goes on in another runtime: its own is not driven");
    if let Ok(client) = session.client() {
        client.abandon();
    }
    session.disconnected();
    run(session, nth, None).await;
}

/// Connects the session again, until it has ended. One that this client closes meanwhile is still connected if its handler is not
/// idle, so that its nodes are removed at once.
async fn reconnect<T: SessionHandler>(session: &Session<T>, nth: u64) -> Result<(), Loss> {
    session.disconnected();
    loop {
        session.state().tasks.has_looked(nth, Moment::now() + RECONNECTS_WITHIN);
        match reconnect_once(session, nth).await {
            _ if !session.state().tasks.is_of(nth) => return Ok(()),
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

/// Connects the session to the server that answers first. The leader decides whether it still lives, and an answered keep-alive verifies
/// that it was still the leader: it has heard of the session since this was asked for.
///
/// A server's limit counts as soon as it has asked the leader, whether its answer arrives or not, and at any time from then on. So new
/// sessions ask the servers for that limit first: also for a session that has promised nothing yet. It is at one server only itself, so it
/// cannot try several. And a server that allows less is not taken before that lasts as long as what holds were promised: whoever was told of
/// it may stand still. A connection over which that write was not answered is left: the session may hold locks until its time is over. So is one
/// that comes when another task has taken over.
async fn reconnect_once<T: SessionHandler>(session: &Session<T>, nth: u64) -> Answer<()> {
    let server = session.find_server().await?;
    let asked = Moment::now();
    let client = guard(session.connect(server, true).await?, Client::leave);
    session.negotiated(client.session_timeout(), asked);
    let sent = Moment::now();
    timeout(session.config.timeout, write(session, &client)).await.unwrap_or(Err(ZkError::ConnectionLoss))?;
    if session.state().tasks.is_of(nth) {
        // Before anything that is verified over it counts.
        session.handler().reconnected(&client.closed);
        session.reconnected(ScopeGuard::into_inner(client), asked, sent);
    }
    Ok(())
}

/// Sends keep-alives and receives notifications, for as long as the connection lasts.
async fn serve<T: SessionHandler>(session: &Session<T>, nth: u64, mut closed: Closed, watch: Option<Watch>) {
    let mut notifications = pin!(receive_notifications(session, watch));
    let mut in_flight = FuturesUnordered::new();
    let (clock, mut last) = (Clock::boot(), Moment::now());
    let (mut tended, mut tending) = (last, FuturesUnordered::from_iter([T::tend(session)]));
    loop {
        // The writes of claims count as keep-alives, so a busy session may send none, and still has things to tend.
        let tend = tended + session.state().liveness.timeout / 4;
        let due = session.state().liveness.next(last);
        session.state().tasks.has_looked(nth, due.min(tend));
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
                // Unless a claim has written meanwhile.
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

/// A session that holds nothing has nothing to verify, so it does not trouble the leader and a quorum.
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
    client.check_stat(&names::sessions(&session.config.root)).await.map(drop)
}

/// A write needs the leader and a quorum, which a read does not.
async fn write<T: SessionHandler>(session: &Session<T>, client: &Client) -> Answer<()> {
    client.set_data(&names::sessions(&session.config.root), b"", None).await.map(drop)
}

/// Watches the session's notification node, and creates it if it is not there.
async fn watch_notifications<T: SessionHandler>(session: &Session<T>) -> Answer<Watch> {
    let client = session.connected().await?;
    match found(client.get_and_watch_data(&session.notification_node()).await)? {
        Some((.., watcher)) => Ok(Box::pin(client.watch(watcher))),
        None => begin_notifications(session).await,
    }
}

/// Creates the session's notification node, and watches it. Both are asked for at once, and done in this order.
pub(crate) async fn begin_notifications<T: SessionHandler>(session: &Session<T>) -> Answer<Watch> {
    let (client, node) = (session.connected().await?, session.notification_node());
    let options = session.config.create_options(CreateMode::Ephemeral);
    loop {
        let (created, watched) = tokio::join!(client.create(&node, b"", &options), client.get_and_watch_data(&node));
        if let Some((.., watcher)) = found(watched)? {
            return Ok(Box::pin(client.watch(watcher)));
        }
        match created {
            Err(ZkError::NoNode) => mkdir(&client, &session.config, &names::sessions(&session.config.root)).await?,
            // It was removed just then.
            Ok(_) | Err(ZkError::NodeExists) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Reports each notification, for as long as the connection lasts.
async fn receive_notifications<T: SessionHandler>(session: &Session<T>, mut watch: Option<Watch>) -> Infallible {
    loop {
        if let Some(watch) = watch.take() {
            watch.await;
        }
        // Watch again first: what happens after that notifies again.
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
