//! The etcd of a world: one member or several, and the store's clients.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use etcd_client::Client;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold_core::Result;
use leasehold_core::backend::Backend;
use leasehold_core::support::{Stream, dial, locked};
use leasehold_etcd::Config;

use crate::etcd::about::{About, about};
use crate::etcd::channel::channel;
use crate::etcd::messages::DeleteRequest;
use crate::etcd::server::Etcd;
use crate::etcd::wire::{Kind as Piece, next_frame, next_message};
use crate::kind::Own;
use crate::machine::now_nanos;
use crate::network::{Network, Pair};
use crate::plan::{Request, Wrong};
use crate::servers::{Counts, Servers};
use crate::stream::Serve;

/// The time for which a client waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The servers of a world.
pub(crate) struct Cluster {
    members: Vec<Arc<Member>>,
}

/// One member. All members show one state.
struct Member {
    nth: u64,
    network: Network,
    state: Arc<Mutex<Etcd>>,
    is_down: Mutex<bool>,
}

impl Cluster {
    pub(crate) fn new(seed: u64, members: usize, network: &Network) -> Cluster {
        let state = Arc::new(Mutex::new(Etcd::new(seed)));
        let member = |nth: usize| Member {
            nth: nth as u64,
            network: network.clone(),
            state: state.clone(),
            is_down: Mutex::default(),
        };
        Cluster {
            members: (0..members).map(|nth| Arc::new(member(nth))).collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, Etcd> {
        locked(&self.members[0].state)
    }
}

/// Returns a client of etcd-client for this endpoint, over the network of the simulated machine.
#[must_use]
pub fn reach(endpoint: &str) -> Client {
    let host = endpoint.trim_start_matches("http://").to_owned();
    let refused = || Err(io::ErrorKind::ConnectionRefused.into());
    let dial = Arc::new(move || dial(&host, 2379).unwrap_or_else(refused));
    #[expect(clippy::expect_used, reason = "without a user nothing is asked")]
    Client::from_channel(channel(dial), None)
        .now_or_never()
        .and_then(std::result::Result::ok)
        .expect("a client")
}

impl Servers for Cluster {
    fn dial(&self, pair: Pair) -> io::Result<Box<dyn Stream>> {
        let member = self.members.get(pair.1).ok_or(io::ErrorKind::NotFound)?;
        if *locked(&member.is_down) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(Box::new(member.network.connect(pair, member)?))
    }

    /// Every key that is counted has a lease, so nothing else ends by itself.
    fn counts(&self, _now: u64) -> Counts {
        let state = self.state();
        let lasting = state.entries() as u64;
        Counts {
            requests: state.handled,
            lasting,
            contents: lasting,
        }
    }

    fn connect(&self, _process: usize) -> BoxFuture<'static, Result<Arc<dyn Backend>>> {
        let endpoints: Vec<String> = (0..self.members.len())
            .map(|nth| format!("http://s{nth}"))
            .collect();
        let config = Config::new(endpoints).reached_by(reach).timeout(TIMEOUT);
        Box::pin(async move {
            let backend: Arc<dyn Backend> =
                Arc::new(leasehold_etcd::Etcd::with_config(config).await?);
            Ok(backend)
        })
    }

    fn make(&self, wrong: &Wrong, now: u64) {
        match wrong {
            Wrong::RestartServer(nth) | Wrong::Wipe(nth) => {
                *locked(&self.members[*nth].is_down) = true;
                if self.members.len() == 1 {
                    self.state().leave();
                }
            }
            Wrong::Delete(lock) => {
                let [from, end] = ["/", "0"]
                    .map(|last| format!("{}{last}", lock.replace('/', "%2F")).into_bytes());
                let delete = DeleteRequest {
                    key: from,
                    end,
                    wants_before: false,
                };
                drop(self.state().delete_keys(&delete));
            }
            Wrong::Own(_, Own::NoLeader) => self.state().leave(),
            Wrong::Own(_, Own::FormerLeader) => self.state().usurp(now),
            Wrong::Own(_, Own::Compact) => self.state().compact_all(),
            _ => {}
        }
        self.members[0].send();
    }

    fn heal(&self, wrong: &Wrong, now: u64) {
        match wrong {
            Wrong::RestartServer(nth) | Wrong::Wipe(nth) => {
                *locked(&self.members[*nth].is_down) = false;
                if self.members.len() == 1 {
                    self.state().lead(now);
                }
            }
            Wrong::Own(_, Own::NoLeader | Own::FormerLeader) => self.state().lead(now),
            _ => {}
        }
        self.members[0].send();
    }

    fn tick(&self, now: u64) {
        self.state().tick(now);
        self.members[0].send();
    }

    fn has_operator(&self) -> bool {
        true
    }

    fn left(&self, _now: u64) -> u64 {
        self.state().entries() as u64
    }
}

impl Member {
    /// Sends the waiting messages, whichever member they are from.
    fn send(&self) {
        let said = std::mem::take(&mut locked(&self.state).outbox);
        for (connection, about, bytes) in said {
            self.network.say(connection, request(about), bytes);
        }
    }
}

fn request(about: About) -> Request {
    match about {
        About::Claim => Request::Claim,
        About::Renew => Request::Renew,
        About::Release => Request::Release,
        About::Look => Request::Look,
        About::Watch => Request::Push,
    }
}

impl Serve for Member {
    fn opened(&self, connection: u64) {
        locked(&self.state).opened(connection, self.nth);
    }

    fn received(&self, connection: u64, bytes: &[u8]) {
        locked(&self.state).received(connection, bytes, now_nanos());
        self.send();
    }

    fn closed(&self, connection: u64) {
        locked(&self.state).closed(connection);
    }

    /// The kind follows from the path, which comes with the first message. Later messages are those
    /// of keep-alives or of watches.
    fn kind(&self, bytes: &[u8]) -> Request {
        let mut frames = bytes.to_vec();
        let mut path = String::new();
        while let Some((kind, mut payload)) = next_frame(&mut frames) {
            match kind {
                Piece::Path => path = String::from_utf8_lossy(&payload).into_owned(),
                Piece::Messages if path.is_empty() => return Request::Renew,
                Piece::Messages => {
                    return request(about(
                        &path,
                        &next_message(&mut payload).unwrap_or_default(),
                    ));
                }
                Piece::End | Piece::Ping => {}
            }
        }
        Request::Look
    }
}
