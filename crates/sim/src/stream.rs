//! Connections that carry bytes in their order: each piece that is written is a message, and
//! arrives after those before it.
//!
//! As with TCP, nothing in the midst of a connection is lost. A lost piece is sent again later, and
//! a piece that is cut off waits for the end of the cut. Otherwise the connection breaks, or is
//! dead and nobody notices.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use leasehold_core::support::locked;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::machine::now_nanos;
use crate::network::{End, Inner, Network, Pair};
use crate::plan::{MS, Request, Way};

/// The time after which a lost piece is sent again, in nanoseconds.
const AGAIN: u64 = 200 * MS;

/// A server at its end of connections. It is called outside of all processes.
pub(crate) trait Serve: Send + Sync {
    fn opened(&self, connection: u64);
    /// Handles bytes that have arrived. It answers by [`Network::say`].
    fn received(&self, connection: u64, bytes: &[u8]);
    fn closed(&self, connection: u64);
    /// The subject of a piece from a client.
    fn kind(&self, bytes: &[u8]) -> Request;
}

/// All connections, by their numbers.
#[derive(Default)]
pub(crate) struct Streams {
    made: u64,
    all: BTreeMap<u64, Stream>,
}

struct Stream {
    pair: Pair,
    server: Arc<dyn Serve>,
    socket: Arc<Mutex<Received>>,
    /// Nothing passes any more, but nobody notices.
    dead: bool,
    /// The times at which the last piece there and the last piece back arrive, and the pieces that
    /// wait for the end of a cut.
    there: u64,
    back: u64,
    held: Vec<(Way, Piece)>,
}

/// Bytes that are sent at once; `None` is the end of the connection.
type Piece = Option<Vec<u8>>;

/// The bytes that have arrived at a process.
#[derive(Default)]
struct Received {
    bytes: VecDeque<u8>,
    /// Set once the connection has ended, or is broken by this error.
    end: Option<Option<io::ErrorKind>>,
    waker: Option<Waker>,
}

/// A process' end of a connection.
pub(crate) struct Socket {
    network: Network,
    connection: u64,
    received: Arc<Mutex<Received>>,
}

fn receive(received: &Mutex<Received>, what: impl FnOnce(&mut Received)) {
    let waker = {
        let mut received = locked(received);
        what(&mut received);
        received.waker.take()
    };
    // The wake may drop the task, which then writes, so the lock is released before.
    waker.into_iter().for_each(Waker::wake);
}

impl Network {
    /// Connects a process with a server.
    pub(crate) fn connect(
        &self,
        pair: Pair,
        server: &Arc<impl Serve + 'static>,
    ) -> io::Result<Socket> {
        let received: Arc<Mutex<Received>> = Arc::default();
        let connection = {
            let inner = &mut *self.inner();
            match inner.links.get(&pair) {
                Some(link) if link.alive && !matches!(link.cut, Some((_, true))) => {}
                _ => return Err(io::ErrorKind::ConnectionRefused.into()),
            }
            inner.streams.made += 1;
            let connection = inner.streams.made;
            let socket = received.clone();
            let server: Arc<dyn Serve> = server.clone();
            let stream = Stream {
                pair,
                server,
                socket,
                dead: false,
                there: 0,
                back: 0,
                held: Vec::new(),
            };
            inner.streams.all.insert(connection, stream);
            connection
        };
        server.opened(connection);
        Ok(Socket {
            network: self.clone(),
            connection,
            received,
        })
    }

    /// Sends bytes from a server to a client: the answer to a request of this kind, or a push.
    pub(crate) fn say(&self, connection: u64, kind: Request, bytes: Vec<u8>) {
        drop(self.write(connection, Way::Back, kind, Some(bytes)));
    }

    /// Closes a connection as its server, after everything that was sent on it.
    pub(crate) fn hang_up(&self, connection: u64) {
        drop(self.write(connection, Way::Back, Request::Look, None));
    }

    /// Sends a piece, in its order.
    fn write(&self, connection: u64, way: Way, kind: Request, piece: Piece) -> io::Result<()> {
        let is_aimed_at = {
            let inner = &mut *self.inner();
            let Some(pair) = inner.streams.all.get(&connection).map(|stream| stream.pair) else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            inner.passed.insert((pair.0, kind, way));
            let aimed = inner
                .links
                .get_mut(&pair)
                .and_then(|link| link.aimed(kind, way));
            let dies = inner
                .links
                .get_mut(&pair)
                .is_some_and(|link| link.random.bool());
            let Some(stream) = inner.streams.all.get_mut(&connection) else {
                return Ok(());
            };
            match aimed {
                _ if stream.dead => false,
                Some(None) if dies => {
                    stream.dead = true;
                    false
                }
                Some(None) => true,
                late => {
                    inner.carry(connection, way, piece, late.flatten().unwrap_or_default());
                    false
                }
            }
        };
        if is_aimed_at {
            self.reset_streams_of(&[connection]);
        }
        Ok(())
    }

    /// Breaks the streams of these pairs.
    pub(crate) fn reset_streams(&self, which: impl Fn(Pair) -> bool) {
        let all: Vec<u64> = {
            let streams = &self.inner().streams.all;
            streams
                .iter()
                .filter(|(_, stream)| which(stream.pair))
                .map(|(nth, _)| *nth)
                .collect()
        };
        self.reset_streams_of(&all);
    }

    fn reset_streams_of(&self, connections: &[u64]) {
        for connection in connections {
            let stream = self.inner().streams.all.remove(connection);
            if let Some(stream) = stream.filter(|stream| !stream.dead) {
                stream.server.closed(*connection);
                // The process notices it when it runs next.
                receive(&stream.socket, |it| {
                    it.end = Some(Some(io::ErrorKind::ConnectionReset));
                });
            }
        }
    }

    /// Sends the pieces that were held back during a cut of this process.
    pub(crate) fn resume_streams(&self, process: usize) {
        let inner = &mut *self.inner();
        let theirs = inner
            .streams
            .all
            .iter_mut()
            .filter(|(_, stream)| stream.pair.0 == process);
        let held: Vec<_> = theirs
            .map(|(nth, stream)| (*nth, std::mem::take(&mut stream.held)))
            .collect();
        for (connection, pieces) in held {
            pieces
                .into_iter()
                .for_each(|(way, piece)| inner.carry(connection, way, piece, 0));
        }
    }
}

impl Inner {
    /// Puts a piece on its way, after those before it.
    fn carry(&mut self, connection: u64, way: Way, piece: Piece, late: u64) {
        let Some(stream) = self.streams.all.get_mut(&connection) else {
            return;
        };
        let pair = stream.pair;
        let loss = self.loss;
        let Some(link) = self.links.get_mut(&pair) else {
            return;
        };
        if link.cut.is_some_and(|(cut, _)| cut.includes(way))
            || stream.held.iter().any(|(held, _)| *held == way)
        {
            return stream.held.push((way, piece));
        }
        let mut again = 0;
        while link.random.u32(0..10_000) < loss {
            again = (again * 2).max(AGAIN);
        }
        let due = now_nanos() + self.latency(pair) + late + again;
        let Some(stream) = self.streams.all.get_mut(&connection) else {
            return;
        };
        let last = if way == Way::There {
            &mut stream.there
        } else {
            &mut stream.back
        };
        *last = due.max(*last + 1);
        let due = *last;
        if way == Way::There {
            let server = stream.server.clone();
            let job = move || match piece {
                Some(bytes) => server.received(connection, &bytes),
                None => server.closed(connection),
            };
            self.put(due, End::Server(pair.1), pair, Box::new(job));
        } else {
            let socket = stream.socket.clone();
            let job = move || {
                receive(&socket, |it| match piece {
                    Some(bytes) => it.bytes.extend(bytes),
                    None => it.end = it.end.or(Some(None)),
                });
            };
            self.put(due, End::Socket(pair.0), pair, Box::new(job));
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let received = &mut *locked(&self.received);
        if !received.bytes.is_empty() {
            let many = to.remaining().min(received.bytes.len());
            let bytes: Vec<u8> = received.bytes.drain(..many).collect();
            to.put_slice(&bytes);
            return Poll::Ready(Ok(()));
        }
        match received.end {
            Some(Some(kind)) => Poll::Ready(Err(kind.into())),
            Some(None) => Poll::Ready(Ok(())),
            None => {
                received.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let server = self
            .network
            .inner()
            .streams
            .all
            .get(&self.connection)
            .map(|stream| stream.server.clone());
        let Some(server) = server else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let sent = self.network.write(
            self.connection,
            Way::There,
            server.kind(bytes),
            Some(bytes.to_vec()),
        );
        Poll::Ready(sent.map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        drop(
            self.network
                .write(self.connection, Way::There, Request::Look, None),
        );
        // Pieces that are on their way to the server still arrive.
        let streams = &mut self.network.inner().streams.all;
        if streams
            .get(&self.connection)
            .is_some_and(|stream| stream.held.is_empty())
        {
            streams.remove(&self.connection);
        }
    }
}
