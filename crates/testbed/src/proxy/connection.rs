//! One connection through the proxy.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io,
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time,
};

use super::{
    control::{Flow, Shared, Side},
    lane::{self, Chunk, Ended},
    trap::Trap,
};

/// The number of chunks that are kept in memory for one direction while they are held or late.
/// Beyond it the sender is slowed down.
const QUEUE: usize = 1024;
/// A reply counts as complete when nothing followed for this time. Protocols answer a request with
/// more than its reply: HTTP/2 acknowledges a request at once that it has only begun to work on.
const QUIET: Duration = Duration::from_millis(50);
/// A server that keeps sending counts as having answered after this time.
const ANSWERED: Duration = Duration::from_secs(1);

/// Counts an open connection until it is dropped.
pub(super) struct Open(Arc<Shared>);

impl Open {
    pub(super) fn count(shared: &Arc<Shared>) -> Self {
        shared.open.send_modify(|open| *open += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

/// Carries a connection until both sides have closed it, or the proxy is cut.
pub(super) async fn serve(client: TcpStream, (nth, generation): (u64, u64), open: Open) {
    let mut control = open.0.control.subscribe();
    tokio::select! {
        biased;
        _ = control.wait_for(|control| control.generation != generation) => {}
        () = carry(client, nth, &open.0) => {}
    }
}

async fn carry(client: TcpStream, nth: u64, shared: &Shared) {
    // Chunks have to pass as they came.
    let _ = client.set_nodelay(true);
    let (mut from_client, mut to_client) = client.into_split();
    let (requests, queue) = mpsc::channel(QUEUE);
    let gone = AtomicBool::new(false);
    // Requests are read from the start and kept here, so that they outlive the client.
    let reading = async {
        lane::read(&mut from_client, requests, shared, Side::Requests).await;
        gone.store(true, Ordering::Relaxed);
        std::future::pending::<()>().await;
    };
    let lost = tokio::select! {
        () = reading => None,
        lost = answer(&mut to_client, queue, &gone, (shared, nth)) => lost,
    };
    if let Some((trap, from_server, _to_server)) = lost {
        drop((from_client, to_client));
        trap.finish();
        discard(from_server).await;
    }
}

/// Dials the server and forwards both ways. Returns the server's side if the client's has to be
/// closed before it.
async fn answer(
    to_client: &mut OwnedWriteHalf,
    queue: mpsc::Receiver<Chunk>,
    gone: &AtomicBool,
    (shared, nth): (&Shared, u64),
) -> Option<(Trap, OwnedReadHalf, OwnedWriteHalf)> {
    let mut control = shared.control.subscribe();
    if control.borrow().requests.flow == Flow::Hold {
        // A connection whose first packet never arrived is not made after its client gave up.
        control
            .wait_for(|control| control.requests.flow != Flow::Hold)
            .await
            .ok()?;
        if gone.load(Ordering::Relaxed) {
            return None;
        }
    }
    let server = TcpStream::connect(shared.upstream()).await.ok()?;
    let _ = server.set_nodelay(true);
    let (mut from_server, mut to_server) = server.into_split();
    let (replies, reply_queue) = mpsc::channel(QUEUE);
    let doom = Mutex::default();
    let outcome = tokio::try_join!(
        lane::write_requests(&mut to_server, queue, (shared, nth), &doom),
        lane::write_replies(to_client, reply_queue, (shared, nth), &doom),
        async {
            lane::read(&mut from_server, replies, shared, Side::Replies).await;
            Ok(())
        },
    );
    match outcome {
        Err(Ended::ReplyLost(trap)) => Some((trap, from_server, to_server)),
        Ok(_) | Err(Ended::Tainted) => None,
    }
}

/// Reads to the end, for a server that still works for a client that is gone.
async fn discard(mut from_server: OwnedReadHalf) {
    // The result does not matter: the connection has ended.
    let _ = io::copy(&mut from_server, &mut io::sink()).await;
}

/// Throws replies away until none came for a while.
pub(super) async fn until_quiet(queue: &mut mpsc::Receiver<Chunk>) {
    let quiet = async { while let Ok(Some(_)) = time::timeout(QUIET, queue.recv()).await {} };
    // The server has answered, with or without a time-out.
    let _ = time::timeout(ANSWERED, quiet).await;
}
