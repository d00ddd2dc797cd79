//! The server in memory, in real time and without a network. It is compared with a real server in
//! this form, and used by the suite.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{Client, Error};
use leasehold_core::backend::Moment;
use leasehold_core::support::{Stream, locked};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::etcd::channel::channel;
use crate::etcd::server::Etcd;

/// The interval at which the server looks for leases that are over.
const TICK: Duration = Duration::from_millis(20);
/// The number of bytes that a connection carries before its sender waits.
const ROOM: usize = 1 << 20;

/// An etcd server in memory, which answers at once.
#[derive(Clone)]
pub struct Direct(Arc<Inner>);

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Direct")
    }
}

struct Inner {
    server: Mutex<Etcd>,
    to: Mutex<BTreeMap<u64, UnboundedSender<Vec<u8>>>>,
    made: AtomicU64,
    /// A change of this value ends all existing connections.
    restarts: watch::Sender<u64>,
}

/// The way of a client to the server.
#[derive(Clone, Default, Debug)]
pub struct Way(Arc<watch::Sender<Passes>>);

/// The restrictions of a way.
#[derive(Clone, Copy, Default, Debug)]
struct Passes {
    holds_requests: bool,
    holds_replies: bool,
    refuses: bool,
}

impl Way {
    /// Sets whether requests are held back, whether replies are, and whether connections are ended
    /// and refused.
    pub fn set(&self, holds_requests: bool, holds_replies: bool, refuses: bool) {
        self.0.send_replace(Passes {
            holds_requests,
            holds_replies,
            refuses,
        });
    }
}

impl Direct {
    /// Starts a server. A task of this runtime ends its leases.
    #[must_use]
    pub fn start() -> Direct {
        let server = Mutex::new(Etcd::new(7));
        let to = Mutex::default();
        let made = AtomicU64::default();
        let direct = Direct(Arc::new(Inner {
            server,
            to,
            made,
            restarts: watch::Sender::new(0),
        }));
        let weak = Arc::downgrade(&direct.0);
        tokio::spawn(async move {
            while let Some(inner) = weak.upgrade() {
                Direct(inner).with(|server, now| server.tick(now));
                sleep(TICK).await;
            }
        });
        direct
    }

    /// Returns a client of the server.
    ///
    /// # Errors
    ///
    /// Those of `etcd-client`.
    pub async fn client(&self, way: &Way) -> Result<Client, Error> {
        let direct = self.clone();
        let way = way.clone();
        Client::from_channel(channel(Arc::new(move || direct.dial(&way))), None).await
    }

    /// The number of keys and leases of the server.
    #[must_use]
    pub fn entries(&self) -> u64 {
        locked(&self.0.server).entries() as u64
    }

    /// Closes all connections.
    pub fn restart(&self) {
        self.0.restarts.send_modify(|restarts| *restarts += 1);
    }

    fn with(&self, work: impl FnOnce(&mut Etcd, u64)) {
        let mut server = locked(&self.0.server);
        work(&mut server, Moment::now().as_nanos());
        // The replies are sent in the order in which the server made them.
        let to = locked(&self.0.to);
        for (connection, _, bytes) in std::mem::take(&mut server.outbox) {
            to.get(&connection).map(|to| to.send(bytes));
        }
    }

    fn dial(&self, way: &Way) -> io::Result<Box<dyn Stream>> {
        if way.0.borrow().refuses {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (client, server) = duplex(ROOM);
        let connection = self.0.made.fetch_add(1, SeqCst) + 1;
        let (to, mut replies) = unbounded_channel::<Vec<u8>>();
        locked(&self.0.to).insert(connection, to);
        self.with(|etcd, _| etcd.opened(connection, 0));
        let direct = self.clone();
        let mut restarts = self.0.restarts.subscribe();
        let mut passes = way.0.subscribe();
        tokio::spawn(async move {
            let (mut from, mut into) = split(server);
            let mut bytes = vec![0; 64 * 1024];
            loop {
                let Passes {
                    holds_requests,
                    holds_replies,
                    refuses,
                } = *passes.borrow_and_update();
                if refuses {
                    break;
                }
                tokio::select! {
                    read = from.read(&mut bytes), if !holds_requests => match read {
                        Ok(many @ 1..) => direct.with(|etcd, now| etcd.received(connection, &bytes[..many], now)),
                        _ => break,
                    },
                    Some(reply) = replies.recv(), if !holds_replies => {
                        if into.write_all(&reply).await.is_err() {
                            break;
                        }
                    }
                    _ = restarts.changed() => break,
                    Ok(()) = passes.changed() => {}
                    else => break,
                }
            }
            locked(&direct.0.to).remove(&connection);
            direct.with(|etcd, _| etcd.closed(connection));
        });
        Ok(Box::new(client))
    }
}
