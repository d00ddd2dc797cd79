//! The Redis store and the Redlock store, over servers in memory that run their scripts.

mod collections;
mod commands;
mod data;
mod reply;
mod script;
mod server;
mod state;
mod texts;

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use leasehold_core::Result;
use leasehold_core::backend::Backend;
use leasehold_core::support::{Stream, locked};

use crate::kind::{Kind, Own};
use crate::machine::{now_nanos, wall_of};
use crate::network::{Network, Pair};
use crate::plan::{Request, Wrong};
use crate::redis::data::Data;
pub use crate::redis::server::MiniRedis;
use crate::servers::{Counts, Servers, Setting};
use crate::stream::Serve;

/// The time for which a client waits for an answer, in milliseconds, and that of the client that
/// evicts.
const TIMEOUT: [u64; 2] = [400, 60_000];

/// The servers of a world.
pub(crate) struct Redis {
    nodes: Vec<Arc<Node>>,
    url: String,
    operator: usize,
}

/// One server.
struct Node {
    network: Network,
    core: Mutex<Core>,
    is_redlock: bool,
    /// Bytes that only a renewal contains: the usual lease.
    lease: Vec<u8>,
}

#[derive(Default)]
struct Core {
    server: MiniRedis,
    is_down: bool,
    /// The data that it will have again.
    kept: Option<Data>,
}

impl Redis {
    pub(crate) fn new(kind: Kind, network: &Network, setting: &Setting) -> Redis {
        let is_redlock = kind != Kind::Redis;
        let node = |_| Node {
            network: network.clone(),
            core: Mutex::new(Core {
                server: MiniRedis::strict(),
                ..Core::default()
            }),
            is_redlock,
            lease: format!(" {} \r\n", setting.ttl.as_millis()).into(),
        };
        let nodes: Vec<Arc<Node>> = (0..kind.servers()).map(|nth| Arc::new(node(nth))).collect();
        let hosts: Vec<String> = (0..nodes.len()).map(|nth| format!("s{nth}")).collect();
        let url = format!(
            "{}://{}",
            if is_redlock { "redlock" } else { "redis" },
            hosts.join(",")
        );
        Redis {
            nodes,
            url,
            operator: setting.operator,
        }
    }
}

impl Servers for Redis {
    fn dial(&self, pair: Pair) -> io::Result<Box<dyn Stream>> {
        let node = self.nodes.get(pair.1).ok_or(io::ErrorKind::NotFound)?;
        if locked(&node.core).is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(Box::new(node.network.connect(pair, node)?))
    }

    fn counts(&self, now: u64) -> Counts {
        let mut sum = Counts::default();
        for node in &self.nodes {
            let server = &mut locked(&node.core).server;
            let keys = server.keys(wall_of(now));
            sum.lasting += keys.iter().filter(|(_, lives)| *lives < 0).count() as u64;
            sum.contents += keys.len() as u64;
            sum.requests += server.requests();
        }
        sum
    }

    fn connect(&self, process: usize) -> BoxFuture<'static, Result<Arc<dyn Backend>>> {
        let timeout = TIMEOUT[usize::from(process == self.operator)];
        let url = format!("{}?timeout={timeout}", self.url);
        let is_redlock = self.nodes[0].is_redlock;
        Box::pin(async move {
            let backend: Arc<dyn Backend> = if is_redlock {
                Arc::new(leasehold_redis::redlock::Redlock::connect(&url).await?)
            } else {
                Arc::new(leasehold_redis::Redis::connect(&url).await?)
            };
            Ok(backend)
        })
    }

    fn make(&self, wrong: &Wrong, now: u64) {
        match wrong {
            Wrong::RestartServer(nth) | Wrong::Wipe(nth) => {
                let core = &mut *locked(&self.nodes[*nth].core);
                core.is_down = true;
                core.server.restart();
                if matches!(wrong, Wrong::Wipe(_)) {
                    core.server.state.data.clear();
                }
            }
            Wrong::Delete(lock) => self.nodes.iter().for_each(|node| node.delete(lock, now)),
            Wrong::Own(nth, own) => {
                let core = &mut *locked(&self.nodes[*nth].core);
                match own {
                    Own::Restore => core.kept = Some(core.server.state.data.clone()),
                    Own::ClockStep(by) => core.server.step(by / 1000),
                    Own::ForgetScripts => {
                        drop(core.server.by_hand(&["SCRIPT", "FLUSH"], wall_of(now)));
                    }
                    Own::Full => core.server.state.full = true,
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn heal(&self, wrong: &Wrong, _now: u64) {
        match wrong {
            Wrong::RestartServer(nth) | Wrong::Wipe(nth) => {
                locked(&self.nodes[*nth].core).is_down = false;
            }
            Wrong::Own(nth, Own::Full) => locked(&self.nodes[*nth].core).server.state.full = false,
            Wrong::Own(nth, Own::Restore) => {
                let core = &mut *locked(&self.nodes[*nth].core);
                core.server.restart();
                core.server.state.data = core.kept.take().unwrap_or_default();
            }
            _ => {}
        }
    }

    fn has_operator(&self) -> bool {
        true
    }

    fn left(&self, now: u64) -> u64 {
        // A key lives by the server's clock. If that clock stepped back and nobody reads the key,
        // it stays for that much longer.
        let nodes = self
            .nodes
            .iter()
            .filter(|node| !locked(&node.core).server.has_stepped_back());
        // Former tokens outlive their locks, and observers are known for some seconds.
        let lasts = |key: &str| {
            [
                "}:f", "}:rt", "}:ro", "}:rb", "}:rn", "}:re", "}:o", "}:store",
            ]
            .iter()
            .any(|end| key.ends_with(end))
        };
        let left = |node: &Arc<Node>| {
            let keys = locked(&node.core).server.keys(wall_of(now));
            keys.iter().filter(|(key, _)| !lasts(key)).count() as u64
        };
        nodes.map(left).sum()
    }
}

impl Node {
    /// Deletes all keys of a lock, but not the tokens.
    fn delete(&self, lock: &str, now: u64) {
        let core = &mut *locked(&self.core);
        let of_it = |key: &String| *key == lock || key.starts_with(&format!("{{{lock}}}:"));
        let keys: Vec<String> = core
            .server
            .keys(wall_of(now))
            .into_iter()
            .map(|(key, _)| key)
            .filter(of_it)
            .collect();
        for key in keys {
            drop(core.server.by_hand(&["DEL", &key], wall_of(now)));
        }
    }
}

impl Serve for Node {
    fn opened(&self, connection: u64) {
        locked(&self.core).server.opened(connection);
    }

    fn received(&self, connection: u64, bytes: &[u8]) {
        let said = locked(&self.core)
            .server
            .received(connection, bytes, wall_of(now_nanos()));
        let kind = self.kind(bytes);
        for (to, bytes) in said {
            self.network.say(
                to,
                if to == connection {
                    kind
                } else {
                    Request::Push
                },
                bytes,
            );
        }
    }

    fn closed(&self, connection: u64) {
        locked(&self.core).server.closed(connection);
    }

    /// The kind follows from bytes that other requests do not have.
    fn kind(&self, bytes: &[u8]) -> Request {
        let says = |what: &[u8]| {
            bytes
                .windows(what.len())
                .any(|part| part[0] == what[0] && part == what)
        };
        let [claims, renews, releases]: [&[u8]; 3] = if self.is_redlock {
            [b"\r\nclaim\r\n", b"\r\nrenew\r\n", b"\r\nrelease\r\n"]
        } else {
            [b"op-", &self.lease, b"\r\n$33\r\n-"]
        };
        match () {
            () if says(renews) => Request::Renew,
            () if says(releases) => Request::Release,
            () if says(claims) => Request::Claim,
            () => Request::Look,
        }
    }
}
