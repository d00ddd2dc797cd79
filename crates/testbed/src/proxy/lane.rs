//! One direction of a connection: it reads a chunk, keeps it as long as the test wants, and writes
//! it.

use std::sync::{Mutex, PoisonError, atomic::Ordering};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    sync::{mpsc, watch},
    time::{self, Instant},
};

use super::{
    connection::until_quiet,
    control::{Control, Flow, Shared, Side},
    trap::{Action, Trap},
};

const READ_AT_ONCE: usize = 64 * 1024;

/// The bytes of one read.
pub(super) struct Chunk {
    bytes: Vec<u8>,
    came: Instant,
}

/// The trap that has sprung and concerns the replies of a connection.
pub(super) type Doom = Mutex<Option<Trap>>;

/// The reason why the proxy closes a connection.
pub(super) enum Ended {
    /// The reply for which a trap waited was thrown away.
    ReplyLost(Trap),
    /// Bytes of the connection were dropped, and the test wants working connections again.
    Tainted,
}

/// Reads until the sender has closed or broken the connection, which closes the queue.
pub(super) async fn read(
    from: &mut OwnedReadHalf,
    queue: mpsc::Sender<Chunk>,
    shared: &Shared,
    side: Side,
) {
    let mut buffer = vec![0; READ_AT_ONCE];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => {
                if side == Side::Requests {
                    shared
                        .request_bytes
                        .fetch_add(length as u64, Ordering::Relaxed);
                }
                let chunk = Chunk {
                    bytes: buffer[..length].to_vec(),
                    came: Instant::now(),
                };
                if queue.send(chunk).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Forwards requests. A request that springs a trap is held back, or it dooms the replies.
pub(super) async fn write_requests(
    to: &mut OwnedWriteHalf,
    mut queue: mpsc::Receiver<Chunk>,
    (shared, nth): (&Shared, u64),
    doom: &Doom,
) -> Result<(), Ended> {
    let mut gate = Gate::new(shared, Side::Requests, nth);
    while let Some(mut chunk) = gate.next(&mut queue).await? {
        if !gate.admits(&chunk).await {
            continue;
        }
        shared.rewritten(&mut chunk.bytes);
        let trap = shared.spring(&chunk.bytes);
        match &trap {
            Some(trap) if trap.action() == Action::Hold => trap.released().await,
            // The replies are doomed before the request is sent: the server may answer at once.
            Some(trap) => set(doom, Some(trap)),
            None => {}
        }
        if to.write_all(&chunk.bytes).await.is_err() {
            // The server is gone. The other direction forwards its last replies and its end.
            return Ok(());
        }
        if let Some(trap) = trap.filter(|trap| trap.action() == Action::Hold) {
            trap.finish();
        }
    }
    // The server may be gone already, so the result is ignored.
    let _ = to.shutdown().await;
    Ok(())
}

/// Forwards replies, unless they are doomed.
pub(super) async fn write_replies(
    to: &mut OwnedWriteHalf,
    mut queue: mpsc::Receiver<Chunk>,
    (shared, nth): (&Shared, u64),
    doom: &Doom,
) -> Result<(), Ended> {
    let mut gate = Gate::new(shared, Side::Replies, nth);
    let mut gone = false;
    while let Some(chunk) = gate.next(&mut queue).await? {
        match doomed(doom) {
            Some(trap) if trap.action() == Action::HoldReply => {
                trap.released().await;
                trap.finish();
                set(doom, None);
            }
            Some(trap) => {
                until_quiet(&mut queue).await;
                return Err(Ended::ReplyLost(trap));
            }
            None => {}
        }
        // The connection of a client that is gone goes on: its requests may be held back and still
        // be delivered.
        if !gone && gate.admits(&chunk).await {
            gone = to.write_all(&chunk.bytes).await.is_err();
        }
    }
    if let Some(trap) = doomed(doom).filter(|trap| trap.action() == Action::LoseReply) {
        return Err(Ended::ReplyLost(trap));
    }
    // The client may be gone already, so the result is ignored.
    let _ = to.shutdown().await;
    Ok(())
}

fn doomed(doom: &Doom) -> Option<Trap> {
    doom.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Sets or clears the doom. The first of several traps counts.
fn set(doom: &Doom, trap: Option<&Trap>) {
    let mut doom = doom.lock().unwrap_or_else(PoisonError::into_inner);
    if trap.is_none() || doom.is_none() {
        *doom = trap.cloned();
    }
}

/// The point at which chunks of one direction wait for the test.
struct Gate {
    control: watch::Receiver<Control>,
    side: Side,
    /// The connection's number.
    nth: u64,
    /// Bytes of this direction were thrown away.
    tainted: bool,
}

impl Gate {
    fn new(shared: &Shared, side: Side, nth: u64) -> Self {
        Self {
            control: shared.control.subscribe(),
            side,
            nth,
            tainted: false,
        }
    }

    /// The next chunk, or `None` at the end of the direction, which is held like a chunk.
    async fn next(&mut self, queue: &mut mpsc::Receiver<Chunk>) -> Result<Option<Chunk>, Ended> {
        let side = self.side;
        let nth = self.nth;
        let next = tokio::select! {
            biased;
            _ = self.control.wait_for(|control| control.flow(side, nth) == Flow::Pass), if self.tainted => None,
            next = queue.recv() => next,
        };
        if next.is_none() {
            // The sender outlives every connection, so waiting does not fail.
            let _ = self
                .control
                .wait_for(|control| control.flow(side, nth) == Flow::Pass)
                .await;
            if self.tainted {
                return Err(Ended::Tainted);
            }
        }
        Ok(next)
    }

    /// Waits until a chunk may go on. Returns `false` if it is to be thrown away.
    async fn admits(&mut self, chunk: &Chunk) -> bool {
        self.linger(chunk).await;
        let side = self.side;
        let nth = self.nth;
        let flow = match self
            .control
            .wait_for(|control| control.flow(side, nth) != Flow::Hold)
            .await
        {
            Ok(control) => control.flow(side, nth),
            Err(_) => Flow::Drop,
        };
        // Bytes after a gap are useless, too.
        self.tainted |= flow == Flow::Drop;
        !self.tainted
    }

    async fn linger(&mut self, chunk: &Chunk) {
        loop {
            let delay = self.control.borrow_and_update().lane(self.side).delay;
            tokio::select! {
                biased;
                changed = self.control.changed(), if !delay.is_zero() => if changed.is_err() { return },
                () = time::sleep_until(chunk.came + delay), if !delay.is_zero() => return,
                else => return,
            }
        }
    }
}
