//! What breaks things, by a seed.

use std::{cell::RefCell, collections::BTreeSet, fs, time::Duration};

use leasehold_chaos::{Breaks, What};
use serde_json::Value;

use super::{
    clients::Slot,
    kind::{Kind, NAIVE_FROM},
    recorder::Record,
    servers::Servers,
    work::{LOCKS, NAIVE},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    PauseClient,
    KillClient,
    Cut,
    Hold,
    LateReplies,
    LoseReplies,
    Slow,
    Disconnect,
    Freeze,
    PauseServer,
    RestartServer,
    ForgetScripts,
    CloseSubscriptions,
    Compact,
    DeleteFiles,
    DeleteKey,
    LoseData,
}

const CLIENTS: &[Fault] = &[Fault::PauseClient, Fault::PauseClient, Fault::KillClient];
const LINKS: &[Fault] = &[
    Fault::Cut,
    Fault::Hold,
    Fault::LateReplies,
    Fault::LoseReplies,
    Fault::Slow,
    Fault::Disconnect,
    Fault::Freeze,
    Fault::PauseServer,
    Fault::RestartServer,
];

fn faults(kind: Kind) -> Vec<Fault> {
    let own: &[Fault] = match kind {
        Kind::Memory => return vec![Fault::PauseClient],
        Kind::Sqlite => &[Fault::DeleteFiles],
        Kind::Redis => &[Fault::ForgetScripts, Fault::CloseSubscriptions, Fault::DeleteKey, Fault::LoseData],
        Kind::Redlock => &[Fault::ForgetScripts, Fault::CloseSubscriptions],
        Kind::Etcd => &[Fault::Compact],
        Kind::ZooKeeper => &[],
    };
    let links: &[Fault] = if kind.has_server() { LINKS } else { &[] };
    [CLIENTS, links, own].concat()
}

impl Fault {
    /// What is not promised under it. The stores' pages say so.
    fn breaks(self) -> Breaks {
        match self {
            Fault::DeleteKey | Fault::LoseData => Breaks::Exclusion,
            _ => Breaks::Nothing,
        }
    }
}

/// Makes faults until it is told to end.
pub(crate) struct Nemesis<'a> {
    kind: Kind,
    record: &'a Record,
    servers: &'a Servers,
    clients: &'a [Slot],
    random: RefCell<fastrand::Rng>,
    /// What is broken at the moment, by clients and then servers: each by one fault at a time.
    busy: RefCell<BTreeSet<usize>>,
    ids: RefCell<u64>,
}

impl<'a> Nemesis<'a> {
    pub(crate) fn new(kind: Kind, seed: u64, record: &'a Record, servers: &'a Servers, clients: &'a [Slot]) -> Self {
        let random = RefCell::new(fastrand::Rng::with_seed(seed));
        Nemesis { kind, record, servers, clients, random, busy: RefCell::default(), ids: RefCell::new(0) }
    }

    /// Storms with pauses between them, in which whoever waits must be served.
    pub(crate) async fn rage(&self, time: Duration) {
        let begin = tokio::time::Instant::now();
        let storm = 4 * self.kind.settle();
        while begin.elapsed() < time {
            let end = storm.min(time.saturating_sub(begin.elapsed()));
            let until = tokio::time::Instant::now() + end;
            let one = || async {
                while tokio::time::Instant::now() < until {
                    tokio::time::sleep(self.up_to(self.kind.ttl())).await;
                    self.one().await;
                }
            };
            // Two at a time.
            tokio::join!(one(), one());
            if begin.elapsed() < time {
                tokio::time::sleep(2 * self.kind.settle()).await;
            }
        }
    }

    /// Pauses naive clients while they hold, each until the other one has got the lock: for so long, and until that has happened once.
    /// The others do not notice.
    pub(crate) async fn pause_naive(&self, naive: &[Slot], time: Duration) {
        let begin = tokio::time::Instant::now();
        let (glance, patience) = (Duration::from_millis(20), 2 * self.kind.settle());
        let mut caught = naive.is_empty();
        while begin.elapsed() < time || !caught && begin.elapsed() < time + patience {
            let Some(holder) = naive.iter().position(Slot::holds) else {
                tokio::time::sleep(glance).await;
                continue;
            };
            let id = self.begin("pause", Breaks::Nothing, Some(NAIVE));
            naive[holder].pause().await;
            let until = tokio::time::Instant::now() + patience;
            let mut other = false;
            while !other && tokio::time::Instant::now() < until {
                tokio::time::sleep(glance).await;
                other = naive.iter().enumerate().any(|(n, slot)| n != holder && slot.holds());
            }
            naive[holder].resume().await;
            self.record.now(What::Healed { id });
            caught |= other;
            tokio::time::sleep(self.up_to(self.kind.ttl())).await;
        }
    }

    async fn one(&self) {
        let kinds = faults(self.kind);
        let fault = kinds[self.random.borrow_mut().usize(0..kinds.len())];
        let clients = self.clients.len();
        let (from, to) = match fault {
            Fault::PauseServer | Fault::RestartServer | Fault::LoseData => {
                (clients, clients + self.servers.all().len())
            }
            _ => (0, clients),
        };
        let target = self.random.borrow_mut().usize(from..to);
        if !self.busy.borrow_mut().insert(target) {
            return;
        }
        let length = self.length();
        let lock = (fault == Fault::DeleteKey).then(|| LOCKS[self.random.borrow_mut().usize(0..LOCKS.len())]);
        let id = self.begin(&format!("{fault:?}"), fault.breaks(), lock);
        match fault {
            Fault::PauseServer | Fault::RestartServer | Fault::LoseData => {
                self.server(fault, target - clients, length).await;
            }
            Fault::PauseClient => {
                self.clients[target].pause().await;
                tokio::time::sleep(length).await;
                self.clients[target].resume().await;
            }
            Fault::KillClient => self.clients[target].replace(self.record).await,
            Fault::ForgetScripts
            | Fault::CloseSubscriptions
            | Fault::Compact
            | Fault::DeleteFiles
            | Fault::DeleteKey => {
                self.content(fault, lock).await;
            }
            _ => self.link(fault, &self.clients[target], length).await,
        }
        self.record.now(What::Healed { id });
        self.busy.borrow_mut().remove(&target);
    }

    fn begin(&self, kind: &str, breaks: Breaks, lock: Option<&str>) -> u64 {
        let id = {
            let mut ids = self.ids.borrow_mut();
            *ids += 1;
            // What concerns naive clients only is told by its number.
            if lock == Some(NAIVE) { NAIVE_FROM + *ids } else { *ids }
        };
        self.record.now(What::Fault { id, kind: kind.to_owned(), breaks, lock: lock.map(str::to_owned) });
        id
    }

    async fn server(&self, fault: Fault, which: usize, length: Duration) {
        let server = self.servers.all()[which];
        match fault {
            Fault::PauseServer => {
                server.pause().await.unwrap();
                tokio::time::sleep(length).await;
                server.resume().unwrap();
            }
            Fault::RestartServer => {
                server.kill().await.unwrap();
                tokio::time::sleep(length / 2).await;
                server.start_again().await.unwrap();
            }
            _ => server.restart_without_data().await.unwrap(),
        }
    }

    /// Breaks the ways of one client: on Redlock to some of the nodes.
    async fn link(&self, fault: Fault, client: &Slot, length: Duration) {
        let chosen: Vec<_> = client.proxies.iter().filter(|_| self.random.borrow_mut().u8(0..3) > 0).collect();
        let chosen = if chosen.is_empty() { client.proxies.iter().collect() } else { chosen };
        for proxy in &chosen {
            match fault {
                Fault::Cut => proxy.cut().await,
                Fault::Hold => proxy.hold(),
                Fault::LateReplies => proxy.hold_replies(),
                Fault::LoseReplies => proxy.drop_replies(),
                Fault::Slow => proxy.delay(length / 8),
                Fault::Freeze => proxy.freeze(),
                _ => proxy.disconnect().await,
            }
        }
        tokio::time::sleep(length).await;
        for proxy in &chosen {
            proxy.heal().await;
        }
    }

    /// Changes what is in the store. A server that is down or does not answer is left alone.
    async fn content(&self, fault: Fault, lock: Option<&str>) {
        let changed = async {
            match self.servers {
                Servers::File(folder) => {
                    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
                        if self.random.borrow_mut().bool() {
                            // It may not be there.
                            let _ = fs::remove_file(folder.path().join(name));
                        }
                    }
                }
                Servers::Redis(servers) => {
                    let server = &servers[self.random.borrow_mut().usize(0..servers.len())];
                    let words: &[&str] = match fault {
                        Fault::ForgetScripts => &["SCRIPT", "FLUSH"],
                        Fault::CloseSubscriptions => &["CLIENT", "KILL", "TYPE", "pubsub"],
                        _ => &["DEL", lock.unwrap_or_default()],
                    };
                    let _ = server.command(words).await;
                }
                Servers::Etcd(server) => {
                    let Ok(range) = server.post("/v3/kv/range", r#"{"key":"AA=="}"#).await else { return };
                    let range: Value = serde_json::from_str(&range).unwrap();
                    let revision = &range["header"]["revision"];
                    let _ = server.post("/v3/kv/compaction", &format!(r#"{{"revision":{revision}}}"#)).await;
                }
                Servers::Memory | Servers::ZooKeeper(_) => {}
            }
        };
        let _ = tokio::time::timeout(self.kind.ttl(), changed).await;
    }

    fn up_to(&self, d: Duration) -> Duration {
        d.mul_f64(self.random.borrow_mut().f64())
    }

    /// Between a tenth of a lease and two and a half.
    fn length(&self) -> Duration {
        self.kind.ttl() / 10 + self.up_to(self.kind.ttl().mul_f64(2.4))
    }
}
