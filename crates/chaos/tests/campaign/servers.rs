//! The servers of a campaign, and the way to them.

use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::{
    changes,
    counter::Counted,
    databases, deployments,
    kind::{Kind, loses_data},
    room::Room,
    standbys::Pair,
    work::LOCKS,
};
use leasehold::Store;
use leasehold_testbed::{
    Etcd, EtcdCluster, EtcdOptions, PgBouncer, Postgres, PostgresOptions, Proxy, Redis,
    RedisCluster, RedisClusterOptions, RedisOptions, RedisSentinel, SentinelOptions, Server,
    ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions,
};

/// How much later one member of an ensemble hears what the leader has decided: its clients read what was.
const LAG: Duration = Duration::from_millis(60);
/// How long a node of a Redis Cluster may be silent: nobody else takes its place unless told to.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many keys a server may keep that has one for each name: also for that of the naive clients, of a relay, and of an idler, for its identity
/// and for the list that it is in.
const EACH: u64 = LOCKS.len() as u64 + 6;
/// How often a store that does not answer in time is asked again for its locks.
const TRIES: u32 = 60;

/// Of etcd's users.
const PASSWORD: &str = "pass";

pub(crate) enum Servers {
    Memory,
    File(Room),
    Redis(Vec<Redis>),
    /// Nodes of Redlock, and which of them are in the list.
    Nodes(Vec<Redis>, Mutex<Vec<usize>>),
    Etcd(Etcd),
    EtcdCluster(EtcdCluster),
    ZooKeeper(ZooKeeper),
    Ensemble(ZooKeeperEnsemble),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
    Postgres(Box<Postgres>, Option<PgBouncer>),
    Pair(Pair),
}

impl Servers {
    pub(crate) async fn start(kind: Kind, seed: u64) -> Servers {
        let others = !loses_data(seed);
        let persistent = RedisOptions {
            persistent: true,
            ..RedisOptions::default()
        };
        let clocked = RedisOptions {
            clock: true,
            ..persistent.clone()
        };
        match kind {
            Kind::Memory => Servers::Memory,
            Kind::Sqlite => Servers::File(Room::new()),
            Kind::Redis => Servers::Redis(vec![Redis::start_with(&clocked).await.unwrap()]),
            Kind::Redlock => Servers::Redis(Redis::start_many_with(5, &clocked).await.unwrap()),
            Kind::RedlockNodes => deployments::start(&clocked).await,
            Kind::Etcd | Kind::EtcdCluster => of_etcd(kind, others).await,
            Kind::ZooKeeper => Servers::ZooKeeper(ZooKeeper::start().await.unwrap()),
            Kind::Ensemble => {
                let options = ZooKeeperOptions {
                    peer_proxies: true,
                    ..ZooKeeperOptions::default()
                };
                let ensemble = ZooKeeper::ensemble_with(3, &options).await.unwrap();
                ensemble.lag(0, LAG);
                Servers::Ensemble(ensemble)
            }
            Kind::Sentinel => {
                let options = SentinelOptions {
                    servers: persistent,
                    ..SentinelOptions::default()
                };
                Servers::Sentinel(RedisSentinel::start_with(&options).await.unwrap())
            }
            Kind::Postgres | Kind::PgBouncer => {
                // No machine is switched off here.
                let options = PostgresOptions {
                    clock: kind == Kind::Postgres,
                    ..PostgresOptions::default()
                }
                .set("fsync", "off");
                let server = Postgres::start_with(&options).await.unwrap();
                let pooler = if kind == Kind::PgBouncer {
                    Some(PgBouncer::start(&server).await.unwrap())
                } else {
                    None
                };
                Servers::Postgres(Box::new(server), pooler)
            }
            Kind::Pair => Servers::Pair(Pair::start().await),
            Kind::Cluster => {
                let options = RedisClusterOptions {
                    node: persistent,
                    node_timeout: PATIENCE,
                    ..RedisClusterOptions::default()
                };
                Servers::Cluster(RedisCluster::start(&options).await.unwrap())
            }
        }
    }

    pub(crate) fn all(&self) -> Vec<&Server> {
        match self {
            Servers::Memory | Servers::File(_) => Vec::new(),
            Servers::Redis(servers) | Servers::Nodes(servers, _) => {
                servers.iter().map(|server| &**server).collect()
            }
            Servers::Etcd(server) => vec![server],
            Servers::EtcdCluster(cluster) => {
                cluster.members().iter().map(|server| &**server).collect()
            }
            Servers::ZooKeeper(server) => vec![server],
            Servers::Ensemble(ensemble) => {
                ensemble.members().iter().map(|server| &**server).collect()
            }
            Servers::Sentinel(sentinel) => {
                sentinel.servers().iter().map(|server| &**server).collect()
            }
            Servers::Cluster(cluster) => cluster.nodes().iter().map(|server| &***server).collect(),
            Servers::Postgres(server, None) => vec![server],
            Servers::Postgres(server, Some(pooler)) => vec![server, pooler],
            Servers::Pair(pair) => pair.servers.iter().map(|server| &***server).collect(),
        }
    }

    /// Those that are Redis.
    pub(crate) fn of_redis(&self) -> Vec<&Redis> {
        match self {
            Servers::Redis(servers) | Servers::Nodes(servers, _) => servers.iter().collect(),
            Servers::Sentinel(sentinel) => sentinel.servers().iter().collect(),
            Servers::Cluster(cluster) => cluster.nodes().iter().map(|node| &**node).collect(),
            _ => Vec::new(),
        }
    }

    /// The member that leads, of several that are one store. The last one, if none does.
    pub(crate) async fn leader(&self) -> usize {
        let leads = async {
            match self {
                Servers::EtcdCluster(cluster) => cluster.leader().await,
                Servers::Ensemble(ensemble) => ensemble.leader().await,
                Servers::Sentinel(sentinel) => sentinel.master().await.unwrap_or_default(),
                _ => 0,
            }
        };
        let within = Duration::from_secs(1);
        tokio::time::timeout(within, leads)
            .await
            .unwrap_or(self.all().len().saturating_sub(1))
    }

    /// Lets nothing pass between this member and the others.
    pub(crate) fn isolate(&self, member: usize) {
        match self {
            Servers::EtcdCluster(cluster) => cluster.isolate(member),
            Servers::Ensemble(ensemble) => ensemble.isolate(member),
            _ => false,
        };
    }

    pub(crate) async fn rejoin(&self, member: usize) {
        match self {
            Servers::EtcdCluster(cluster) => cluster.rejoin(member).await,
            Servers::Ensemble(ensemble) => {
                ensemble.rejoin(member).await;
                ensemble.lag(0, LAG);
            }
            _ => {}
        }
    }

    /// A way to each server for one client alone. None where servers tell the clients their addresses, or where all clients have to write
    /// them alike.
    pub(crate) async fn proxies(&self) -> Vec<Proxy> {
        let mut proxies = Vec::new();
        if matches!(
            self,
            Servers::Sentinel(_) | Servers::Cluster(_) | Servers::Nodes(..)
        ) {
            return proxies;
        }
        for server in self.reached() {
            proxies.push(Proxy::to(server.addr()).await.unwrap());
        }
        proxies
    }

    /// The servers that clients reach, in the order of their [`proxies`](Servers::proxies).
    pub(crate) fn reached(&self) -> Vec<&Server> {
        let mut all = self.all();
        if let Servers::Postgres(_, Some(_)) = self {
            all.remove(0);
        }
        all
    }

    /// The nodes of the list that clients have to go by.
    pub(crate) fn list(&self) -> Vec<usize> {
        match self {
            Servers::Nodes(_, list) => list.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            _ => Vec::new(),
        }
    }

    /// The URL of the store, by these ways to its servers.
    pub(crate) fn url(&self, addresses: impl IntoIterator<Item = String>) -> String {
        let addresses: Vec<String> = addresses.into_iter().collect();
        let addresses = addresses.join(",");
        match self {
            Servers::Memory => "memory://".into(),
            Servers::File(room) => format!("sqlite://{}", room.file().display()),
            Servers::Redis(servers) if servers.len() == 1 => format!("redis://{addresses}"),
            Servers::Redis(_) => format!("redlock://{addresses}"),
            Servers::Nodes(servers, _) => deployments::of_list(servers, &self.list()),
            Servers::Etcd(server) => of_user(server, &addresses),
            Servers::EtcdCluster(cluster) => of_user(&cluster.members()[0], &addresses),
            Servers::ZooKeeper(_) | Servers::Ensemble(_) => {
                format!("zookeeper://{addresses}/locks")
            }
            Servers::Sentinel(sentinel) => sentinel.url(),
            Servers::Cluster(cluster) => cluster.url(),
            Servers::Postgres(..) | Servers::Pair(_) => {
                let (user, password, database) =
                    (Postgres::USER, Postgres::PASSWORD, Postgres::DATABASE);
                let has_pooler = matches!(self, Servers::Postgres(_, Some(_)));
                let listen = if has_pooler { "?listen=off" } else { "" };
                format!("postgres://{user}:{password}@{addresses}/{database}{listen}")
            }
        }
    }

    /// Where they are, without a proxy.
    pub(crate) fn addresses(&self) -> String {
        self.all()
            .iter()
            .map(|server| server.addr().to_owned())
            .collect::<Vec<_>>()
            .join(",")
    }

    /// The same, without a proxy.
    pub(crate) fn direct_url(&self) -> String {
        let all = self.all();
        let all = if let Servers::Postgres(..) = self {
            &all[..1]
        } else {
            &all[..]
        };
        self.url(all.iter().map(|server| server.addr().to_owned()))
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
            // Whoever looks now has one, too.
            Servers::File(folder) => left.push(("FIFOs".into(), fifos(folder.path()), 0)),
            // The fence and the identity of the database; on Redlock's nodes the last token of each name, in a Cluster that of each slot.
            Servers::Redis(servers) if servers.len() == 1 => left.push(keys(&servers[0], 2).await),
            Servers::Redis(servers) | Servers::Nodes(servers, _) => {
                for server in servers {
                    left.push(keys(server, EACH).await);
                }
            }
            Servers::Sentinel(sentinel) => {
                left.push(
                    keys(
                        &sentinel.servers()[sentinel.master().await.unwrap_or_default()],
                        2,
                    )
                    .await,
                );
            }
            Servers::Cluster(cluster) => {
                for node in cluster.nodes() {
                    left.push(keys(node, EACH).await);
                }
            }
            // The revision of the last place of a client may stay until its lease ends.
            Servers::Etcd(server) => {
                left.push(("keys".into(), server.key_count().await.unwrap(), 0));
            }
            Servers::EtcdCluster(cluster) => {
                left.push((
                    "keys".into(),
                    cluster.members()[0].key_count().await.unwrap(),
                    0,
                ));
            }
            Servers::Postgres(server, _) => left.extend(databases::left(server).await),
            Servers::Pair(pair) => left.extend(databases::left(pair.primary()).await),
            Servers::ZooKeeper(server) => left.push(ephemerals(server).await),
            Servers::Ensemble(ensemble) => {
                left.push(ephemerals(&ensemble.members()[ensemble.leader().await]).await);
            }
        }
        let names = sure(|| self.locks()).await;
        left.push((format!("locks {names:?}"), names.len() as u64, 0));
        left
    }

    /// What was counted in the database of the locks, if they are in one.
    pub(crate) async fn counted(&self) -> Option<Counted> {
        match self {
            Servers::Postgres(server, _) => Some(Counted::in_database(server).await),
            _ => None,
        }
    }

    /// A client of the store, without a proxy.
    pub(crate) async fn connect(&self) -> Store {
        sure(async || leasehold::connect(self.direct_url()).await).await
    }

    /// The locks that the store lists.
    async fn locks(&self) -> leasehold::Result<Vec<leasehold::Name>> {
        let store = leasehold::connect(self.direct_url()).await?;
        let names = store.list("", None, 100).await;
        // What it leaves ends by itself.
        let _ = store.close(Duration::from_secs(2)).await;
        names
    }

    /// What a person wants to see of the store when clients do not end.
    pub(crate) async fn dump(&self) -> String {
        if matches!(self, Servers::Memory) {
            return String::new();
        }
        let seen = async {
            let mut text = format!("{:#?}\n", self.left_now().await);
            let Ok(store) = leasehold::connect(self.direct_url()).await else {
                return text;
            };
            for lock in LOCKS {
                text += &format!("{lock}: {:#?}\n", store.lock(lock).inspect().await);
            }
            text
        };
        tokio::time::timeout(Duration::from_secs(10), seen)
            .await
            .unwrap_or_else(|_| "no answer".into())
    }
}

/// One of them or three, with users whose tokens end before a lease does, or without.
async fn of_etcd(kind: Kind, users: bool) -> Servers {
    let jwt = users.then(|| changes::good_for(kind));
    let options = EtcdOptions {
        jwt,
        peer_proxies: kind == Kind::EtcdCluster,
        ..EtcdOptions::default()
    };
    if kind == Kind::Etcd {
        let server = Etcd::start_with(&options).await.unwrap();
        if users {
            server.add_users(PASSWORD).await.unwrap();
        }
        return Servers::Etcd(server);
    }
    let cluster = Etcd::cluster_with(3, &options).await.unwrap();
    if users {
        cluster.add_users(PASSWORD).await.unwrap();
    }
    Servers::EtcdCluster(cluster)
}

fn of_user(server: &Etcd, addresses: &str) -> String {
    let user = if server.has_users() {
        format!("me:{PASSWORD}@")
    } else {
        String::new()
    };
    format!("etcd://{user}{addresses}")
}

/// Asks again: on a busy machine a server may not answer in time.
async fn sure<T>(ask: impl AsyncFn() -> leasehold::Result<T>) -> T {
    for _ in 1..TRIES {
        if let Ok(answer) = ask().await {
            return answer;
        }
    }
    ask().await.unwrap()
}

/// What a server of Redis has.
async fn keys(server: &Redis, allowed: u64) -> (String, u64, u64) {
    let mut keys = server.keys("*").await.unwrap();
    // Whoever observed has ended; this ends by itself.
    keys.retain(|key| !key.ends_with("}:o"));
    (
        format!("keys {}", keys.join(" ")),
        keys.len() as u64,
        allowed,
    )
}

/// How many there are: which they are, and of which sessions.
async fn ephemerals(server: &ZooKeeper) -> (String, u64, u64) {
    let nodes = server.ephemerals_count().await.unwrap();
    let dump = if nodes > 0 {
        server.four_letter_word("dump").await.unwrap()
    } else {
        String::new()
    };
    (format!("ephemeral nodes {dump}"), nodes, 0)
}

fn fifos(folder: &Path) -> u64 {
    let is_fifo = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_fifo());
    fs::read_dir(folder).map_or(0, |all| all.flatten().filter(is_fifo).count() as u64)
}
