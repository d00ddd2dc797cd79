//! The servers of a campaign, and the way to them.

use std::time::Duration;

use leasehold_testbed::{Etcd, Proxy, Redis, RedisOptions, Server, ZooKeeper};
use tempfile::TempDir;

use super::{kind::Kind, work::LOCKS};

pub(crate) enum Servers {
    Memory,
    File(TempDir),
    Redis(Vec<Redis>),
    Etcd(Etcd),
    ZooKeeper(ZooKeeper),
}

impl Servers {
    pub(crate) async fn start(kind: Kind) -> Servers {
        let persistent = RedisOptions { persistent: true, ..RedisOptions::default() };
        match kind {
            Kind::Memory => Servers::Memory,
            Kind::Sqlite => Servers::File(tempfile::tempdir().unwrap()),
            Kind::Redis => Servers::Redis(vec![Redis::start_with(&persistent).await.unwrap()]),
            Kind::Redlock => Servers::Redis(Redis::start_many_with(5, &persistent).await.unwrap()),
            Kind::Etcd => Servers::Etcd(Etcd::start().await.unwrap()),
            Kind::ZooKeeper => Servers::ZooKeeper(ZooKeeper::start().await.unwrap()),
        }
    }

    pub(crate) fn all(&self) -> Vec<&Server> {
        match self {
            Servers::Memory | Servers::File(_) => Vec::new(),
            Servers::Redis(servers) => servers.iter().map(|server| &**server).collect(),
            Servers::Etcd(server) => vec![server],
            Servers::ZooKeeper(server) => vec![server],
        }
    }

    /// A way to each server for one client alone.
    pub(crate) async fn proxies(&self) -> Vec<Proxy> {
        let mut proxies = Vec::new();
        for server in self.all() {
            proxies.push(Proxy::to(server.addr()).await.unwrap());
        }
        proxies
    }

    /// The URL of the store, by these ways to its servers.
    pub(crate) fn url(&self, addresses: impl IntoIterator<Item = String>) -> String {
        let addresses: Vec<String> = addresses.into_iter().collect();
        let addresses = addresses.join(",");
        match self {
            Servers::Memory => "memory://".into(),
            Servers::File(folder) => format!("sqlite://{}", folder.path().join("locks.db").display()),
            Servers::Redis(servers) if servers.len() == 1 => format!("redis://{addresses}"),
            Servers::Redis(_) => format!("redlock://{addresses}"),
            Servers::Etcd(_) => format!("etcd://{addresses}"),
            Servers::ZooKeeper(_) => format!("zookeeper://{addresses}/locks"),
        }
    }

    /// What the store still has: of what, how many, and how many there may be. Asked until there is no more than that, or the
    /// time is over.
    pub(crate) async fn left(&self, within: Duration) -> Vec<(String, u64, u64)> {
        let asked = async {
            loop {
                let left = self.left_now().await;
                if left.iter().all(|(_, left, allowed)| left <= allowed) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        // What is left after that time is the answer.
        let _ = tokio::time::timeout(within, asked).await;
        self.left_now().await
    }

    async fn left_now(&self) -> Vec<(String, u64, u64)> {
        let mut left = Vec::new();
        match self {
            Servers::Memory => return left,
            Servers::File(_) => {}
            // The fence of the database; on Redlock's nodes the last token of each name.
            Servers::Redis(servers) => {
                let allowed = if servers.len() == 1 { 1 } else { LOCKS.len() as u64 + 1 };
                for server in servers {
                    let mut keys = server.keys("*").await.unwrap();
                    // Whoever observed has ended; this ends by itself.
                    keys.retain(|key| !key.ends_with("}:o"));
                    left.push((format!("keys {}", keys.join(" ")), keys.len() as u64, allowed));
                }
            }
            // The revision of the last place of a client may stay until its lease ends.
            Servers::Etcd(server) => left.push(("keys".into(), server.key_count().await.unwrap(), 0)),
            Servers::ZooKeeper(server) => {
                let nodes = server.ephemerals_count().await.unwrap();
                // Which they are, and of which sessions.
                let dump = if nodes > 0 { server.four_letter_word("dump").await.unwrap() } else { String::new() };
                left.push((format!("ephemeral nodes {dump}"), nodes, 0));
            }
        }
        let store = leasehold::connect(self.url(self.all().iter().map(|it| it.addr().to_owned()))).await.unwrap();
        let names = store.list("", None, 100).await.unwrap();
        left.push(("locks".into(), names.len() as u64, 0));
        store.close(Duration::from_secs(2)).await.unwrap();
        left
    }
}
