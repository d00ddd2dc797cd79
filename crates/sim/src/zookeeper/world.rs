//! The ZooKeeper of a world: one server or several, and the store's clients.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_core::Result;
use leasehold_core::backend::Backend;
use leasehold_core::support::{Stream, locked};
use leasehold_sim_zookeeper::{Config, ZooKeeper};
use leasehold_sim_zookeeper_client::wire::{Reader, op};

use super::server::MiniZooKeeper;
use super::sessions::Sessions;
use super::tree::{Change, Tree};
use crate::kind::{Kind, Own};
use crate::machine::now_nanos;
use crate::network::{Network, Pair};
use crate::plan::{MS, Request, Wrong};
use crate::servers::{Counts, Setting};
use crate::stream::Serve;

/// The time for which a client waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The servers of a world.
pub(crate) struct Servers {
    members: Vec<Arc<Member>>,
    ttl: u64,
    kept: Mutex<Option<(Tree, i64, Sessions)>>,
}

/// One server. All servers have one state, and each shows the part that has reached it.
struct Member {
    nth: usize,
    network: Network,
    all: Arc<Mutex<MiniZooKeeper>>,
}

impl Servers {
    pub(crate) fn new(kind: Kind, network: &Network, setting: &Setting) -> Servers {
        let ttl = setting.ttl.as_nanos() as u64;
        let many = kind.servers();
        let all = Arc::new(Mutex::new(MiniZooKeeper::new(setting.seed, many, ttl / 4)));
        let member = |nth| {
            Arc::new(Member {
                nth,
                network: network.clone(),
                all: all.clone(),
            })
        };
        Servers {
            members: (0..many).map(member).collect(),
            ttl,
            kept: Mutex::default(),
        }
    }

    fn all(&self) -> MutexGuard<'_, MiniZooKeeper> {
        locked(&self.members[0].all)
    }

    /// Makes another member the leader, if this one is and there is another.
    fn leave(&self, nth: usize, now: u64) {
        let all = &mut *self.all();
        let many = all.ensemble.members.len();
        if all.ensemble.leader == nth && many > 1 {
            all.ensemble.leader = (nth + 1) % many;
            let leader = all.ensemble.leader;
            all.catch_up(leader, true, now);
            all.sessions.promote(now);
        }
    }
}

impl crate::servers::Servers for Servers {
    fn dial(&self, pair: Pair) -> io::Result<Box<dyn Stream>> {
        let member = self.members.get(pair.1).ok_or(io::ErrorKind::NotFound)?;
        if locked(&member.all).ensemble.members[pair.1].is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(Box::new(member.network.connect(pair, member)?))
    }

    fn counts(&self, _now: u64) -> Counts {
        self.all().counts()
    }

    fn connect(&self, _process: usize) -> BoxFuture<'static, Result<Arc<dyn Backend>>> {
        let servers: Vec<String> = (0..self.members.len())
            .map(|nth| format!("s{nth}"))
            .collect();
        let config = Config::new(&servers.join(",")).timeout(TIMEOUT);
        Box::pin(async move {
            let backend: Arc<dyn Backend> = Arc::new(ZooKeeper::with_config(config).await?);
            Ok(backend)
        })
    }

    fn make(&self, wrong: &Wrong, now: u64) {
        match wrong {
            Wrong::RestartServer(nth) | Wrong::Wipe(nth) => {
                self.leave(*nth, now);
                let all = &mut *self.all();
                all.ensemble.members[*nth].is_down = true;
                all.sessions.forget(*nth);
                if matches!(wrong, Wrong::Wipe(_)) && self.members.len() == 1 {
                    all.ensemble.restore((Tree::default(), 0));
                    all.sessions.restore(Sessions::new(self.ttl / 4, 1));
                }
            }
            Wrong::Delete(lock) => {
                let all = &mut *self.all();
                let below = format!("/leasehold/{}/", lock.replace('/', "%2F"));
                let paths = all
                    .ensemble
                    .tree
                    .paths()
                    .filter(|path| path.starts_with(&below))
                    .cloned();
                let changes: Vec<Change> = paths.map(|path| Change::Delete { path }).collect();
                all.ensemble.execute(changes, now);
            }
            Wrong::Own(_, Own::NoLeader) => self.close(0..self.members.len(), true),
            Wrong::Own(nth, Own::Alone) => {
                self.leave(*nth, now);
                let all = &mut *self.all();
                all.ensemble.members[*nth].cut = Some(now);
            }
            Wrong::Own(nth, Own::Shorter) => {
                self.all().limits[*nth].1 = self.ttl / 2;
                self.close(*nth..*nth + 1, false);
            }
            Wrong::Own(nth, Own::Expire) => {
                let all = &mut *self.all();
                let ids = all.sessions.ids();
                if !ids.is_empty() {
                    all.expire(ids[(now as usize / MS as usize + nth) % ids.len()], now);
                }
            }
            Wrong::Own(_, Own::Restore) => {
                let all = self.all();
                let (tree, zxid) = all.ensemble.kept();
                *locked(&self.kept) = Some((tree, zxid, all.sessions.clone()));
            }
            _ => {}
        }
        self.members[0].send();
    }

    fn heal(&self, wrong: &Wrong, now: u64) {
        match wrong {
            Wrong::RestartServer(nth) | Wrong::Wipe(nth) => {
                let all = &mut *self.all();
                all.ensemble.members[*nth].is_down = false;
                if self.members.len() == 1 {
                    all.sessions.promote(now);
                }
            }
            Wrong::Own(_, Own::NoLeader) => {
                let all = &mut *self.all();
                all.ensemble
                    .members
                    .iter_mut()
                    .for_each(|member| member.is_down = false);
                all.sessions.promote(now);
            }
            Wrong::Own(nth, Own::Alone) => self.all().rejoin(*nth, now),
            Wrong::Own(nth, Own::Shorter) => self.all().limits[*nth].1 = 60_000 * MS,
            Wrong::Own(_, Own::Restore) => {
                if let Some((tree, zxid, sessions)) = locked(&self.kept).take() {
                    // All members begin with the kept state.
                    self.close(0..self.members.len(), false);
                    let all = &mut *self.all();
                    all.ensemble.restore((tree, zxid));
                    all.sessions.restore(sessions);
                    all.sessions.promote(now);
                }
            }
            _ => {}
        }
        self.members[0].send();
    }

    fn tick(&self, now: u64) {
        self.all().tick(now);
        self.members[0].send();
    }

    fn has_operator(&self) -> bool {
        true
    }

    fn left(&self, _now: u64) -> u64 {
        self.all()
            .ensemble
            .tree
            .paths()
            .filter(|path| path.contains("lock-") && !path.contains("/.leasehold/"))
            .count() as u64
    }
}

impl Servers {
    /// Closes all connections with these members. If `is_down`, they serve nobody any more.
    fn close(&self, which: std::ops::Range<usize>, is_down: bool) {
        for nth in which {
            let all = &mut *self.all();
            all.ensemble.members[nth].is_down |= is_down;
            all.hang_up_all(nth);
        }
    }
}

impl Member {
    /// Sends the waiting messages, whichever member they are from.
    fn send(&self) {
        let said = locked(&self.all).said();
        for (connection, op, piece) in said {
            let kind = match op {
                0 => Request::Push,
                op::SET_DATA => Request::Renew,
                op::MULTI | op::CREATE => Request::Claim,
                op::DELETE => Request::Release,
                _ => Request::Look,
            };
            match piece {
                Some(bytes) => self.network.say(connection, kind, bytes),
                None => self.network.hang_up(connection),
            }
        }
    }
}

impl Serve for Member {
    fn opened(&self, connection: u64) {
        locked(&self.all).opened(connection, self.nth);
    }

    fn received(&self, connection: u64, bytes: &[u8]) {
        locked(&self.all).received(connection, bytes, now_nanos());
        self.send();
    }

    fn closed(&self, connection: u64) {
        locked(&self.all).closed(connection);
    }

    /// A piece is a packet: a client sends each packet by itself.
    fn kind(&self, bytes: &[u8]) -> Request {
        let mut reader = Reader(bytes);
        match (reader.int(), reader.int(), reader.int()).2 {
            Some(op::SET_DATA) => Request::Renew,
            Some(op::DELETE) => Request::Release,
            Some(op::CREATE) => Request::Claim,
            Some(op::MULTI) => match reader.part() {
                Some(op::CREATE_CONTAINER) => Request::Claim,
                Some(op::DELETE) => Request::Release,
                _ => Request::Renew,
            },
            _ => Request::Look,
        }
    }
}
