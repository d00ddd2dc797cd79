//! The powers of the suite over three private Redis servers that know nothing of each other, reached as they are or over TLS.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a harness that cannot do its part has failed"
)]

use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::harness::ForeignHold;
use leasehold_conformance::{Budget, Capabilities, Harness, Link, Need};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_redis::redlock::Redlock;
use leasehold_testbed::verbs::connected;
use leasehold_testbed::{Certificates, Proxy, Redis, RedisGate, RedisOptions, Reply, TlsPort};

use crate::ALLOCATOR;

const NODES: usize = 3;

/// Nodes of somebody else, by their URL.
pub struct External(pub String);

#[async_trait]
impl Harness for External {
    fn store_name(&self) -> &'static str {
        "redlock"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(connected(|| Redlock::connect(&self.0)).await)
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn capabilities(&self) -> Capabilities {
        able(
            &[Need::PushedWake],
            "the nodes of LEASEHOLD_REDLOCK_URL are not ours to disturb",
        )
    }
}

/// With one second, a machine with many times more work than cores loses leases that nothing is wrong with.
const TTL: Duration = Duration::from_secs(2);

fn able(needs: &[Need], why: &'static str) -> Capabilities {
    Capabilities::new(needs, why)
        .lacks(&[Need::Fair], "the nodes share no order")
        .lacks(&[Need::Permits], "no majority counts permits")
        .lacks(
            &[Need::Once],
            "a record on a majority of the nodes is not read by one step",
        )
        .lacks(
            &[Need::AtomicMulti],
            "a majority of the nodes agrees on one name at a time",
        )
        .lacks(
            &[Need::Raise, Need::Floor],
            "each node counts by itself, and no majority raises the others",
        )
}

pub struct World(Arc<Vec<Redis>>, Way);

/// The way of clients to the nodes.
#[derive(Clone)]
enum Way {
    Straight,
    Secure(Arc<Secure>),
    /// By proxies that refuse scripts which touch undeclared keys.
    Declared(Arc<Vec<RedisGate>>),
}

/// Where the nodes serve TLS, and whose certificates they show and ask for.
pub struct Secure {
    certificates: Certificates,
    ports: Vec<TlsPort>,
}

impl World {
    /// Only where nodes are restarted do they wait for the disk, which a busy machine may hold up for longer than a lease.
    pub async fn start(persistent: bool) -> Arc<dyn Harness> {
        let options = RedisOptions {
            persistent,
            ..RedisOptions::default()
        };
        Arc::new(World(
            Arc::new(
                Redis::start_many_with(NODES, &options)
                    .await
                    .expect("private redis-servers"),
            ),
            Way::Straight,
        ))
    }

    /// Nodes behind proxies that refuse keys which a script does not declare.
    pub async fn start_declared(persistent: bool) -> Arc<dyn Harness> {
        let options = RedisOptions {
            persistent,
            ..RedisOptions::default()
        };
        let nodes = Redis::start_many_with(NODES, &options).await;
        let nodes = nodes.expect("private redis-servers");
        let mut gates = Vec::new();
        for node in &nodes {
            let gate = RedisGate::declared_keys(node.addr()).await;
            gates.push(gate.expect("a proxy"));
        }
        let way = Way::Declared(Arc::new(gates));
        Arc::new(World(Arc::new(nodes), way))
    }

    /// The same, with clients that come over TLS.
    pub async fn start_secure(persistent: bool) -> Arc<dyn Harness> {
        let certificates = Certificates::new().expect("a CA");
        certificates
            .issue("client")
            .expect("a client's certificate");
        let (mut nodes, mut ports) = (Vec::new(), Vec::new());
        for _ in 0..NODES {
            let port = TlsPort::new(&certificates).expect("a port").mutual();
            let options = RedisOptions {
                persistent,
                extra: port.redis(),
                ..RedisOptions::default()
            };
            nodes.push(
                Redis::start_with(&options)
                    .await
                    .expect("a private redis-server"),
            );
            ports.push(port);
        }
        Arc::new(World(
            Arc::new(nodes),
            Way::Secure(Arc::new(Secure {
                certificates,
                ports,
            })),
        ))
    }

    /// Where the nodes' clients connect.
    fn addrs(&self) -> Vec<String> {
        match &self.1 {
            Way::Secure(secure) => secure.ports.iter().map(TlsPort::addr).collect(),
            Way::Declared(gates) => gates.iter().map(|gate| gate.addr().to_owned()).collect(),
            Way::Straight => self.0.iter().map(|node| node.addr().to_owned()).collect(),
        }
    }

    /// A client of the store that connects there, by a patient connection.
    async fn connect(&self, addrs: &[String]) -> Redlock {
        let hosts = addrs.join(",");
        let url = match &self.1 {
            Way::Secure(secure) => {
                let folder = secure
                    .certificates
                    .ca()
                    .parent()
                    .expect("a folder")
                    .display();
                let files =
                    format!("ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key");
                format!("redlocks://{hosts}?timeout=1000&{files}")
            }
            _ => return connect(addrs.iter().map(String::as_str)).await,
        };
        connected(|| Redlock::connect(&url)).await
    }

    /// The same on every node.
    async fn everywhere(&self, words: &[&str]) -> Vec<Reply> {
        let mut replies = Vec::new();
        for node in &*self.0 {
            replies.push(node.command(words).await.expect(words[0]));
        }
        replies
    }
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        match self.1 {
            Way::Straight => "redlock",
            Way::Secure(_) => "redlock, TLS",
            Way::Declared(_) => "redlock, declared keys",
        }
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.connect(&self.addrs()).await)
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{
            AnotherTool, Contents, DeleteHolder, Footprint, Heap, Junk, Link, Private, PushedWake,
            Requests, Restart,
        };
        able(
            &[
                Private,
                Link,
                DeleteHolder,
                AnotherTool,
                Junk,
                Restart,
                Footprint,
                Contents,
                Heap,
                Requests,
                PushedWake,
            ],
            "tokens rise only as long as the nodes keep their data",
        )
    }

    async fn private(&self) -> Arc<dyn Harness> {
        match self.1 {
            Way::Straight => World::start(true).await,
            Way::Secure(_) => World::start_secure(true).await,
            Way::Declared(_) => World::start_declared(true).await,
        }
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let mut proxies = Vec::new();
        for addr in self.addrs() {
            proxies.push(Proxy::to(addr).await.expect("a proxy"));
        }
        let addrs: Vec<String> = proxies
            .iter()
            .map(|proxy| proxy.addr().to_owned())
            .collect();
        let client = self.connect(&addrs).await;
        (Arc::new(client), Arc::new(Links(proxies)))
    }

    async fn delete_holder(&self, full_name: &str) {
        for node in &*self.0 {
            // A majority granted it; the request to the last node may be on its way.
            while node
                .command(&["DEL", full_name])
                .await
                .expect("DEL")
                .integer()
                != Some(1)
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        // What every client of the Redlock family does.
        let set = self
            .everywhere(&["SET", full_name, "somebody-else", "NX", "PX", "30000"])
            .await;
        assert!(
            set.iter()
                .all(|reply| reply.text().as_deref() == Some("OK")),
            "{set:?}"
        );
        Box::new(Foreign(
            World(self.0.clone(), Way::Straight),
            full_name.to_owned(),
        ))
    }

    async fn put_junk(&self, full_name: &str) {
        self.everywhere(&["RPUSH", full_name, "junk"]).await;
    }

    async fn restart(&self) {
        for node in &*self.0 {
            node.restart_with_data().await.expect("a restart");
        }
    }

    fn servers(&self) -> u64 {
        NODES as u64
    }

    async fn requests(&self) -> u64 {
        let mut requests = 0;
        for node in &*self.0 {
            let stats = node.commandstats().await.expect("INFO commandstats");
            // What scripts call inside is counted too, under its own name.
            requests += ["evalsha", "eval", "ping"]
                .iter()
                .filter_map(|command| stats.get(*command))
                .sum::<u64>();
        }
        requests
    }

    fn budget(&self) -> Budget {
        Budget {
            cycle: 2.0 * NODES as f64,
            hand_over: 8.0 * NODES as f64,
            permits: 0.0,
            idle: 0.0,
        }
    }

    async fn footprint(&self) -> u64 {
        let mut lasting = 0;
        for node in &*self.0 {
            for key in node.keys("*").await.expect("KEYS") {
                let ttl = node.command(&["PTTL", &key]).await.expect("PTTL");
                lasting += u64::from(ttl.integer() == Some(-1));
            }
        }
        lasting
    }

    /// Keys, and the names in the hashes of last tokens.
    async fn contents(&self) -> u64 {
        let mut contents = 0;
        for node in &*self.0 {
            contents += node.dbsize().await.expect("DBSIZE");
            for hash in ["{}:rt", "{}:ro"] {
                let names = node.command(&["HLEN", hash]).await.expect("HLEN").integer();
                contents += names
                    .and_then(|names| u64::try_from(names).ok())
                    .unwrap_or_default();
            }
        }
        contents
    }

    fn forgets_within(&self, _names: usize) -> Duration {
        Duration::from_secs(6)
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

async fn connect(addrs: impl Iterator<Item = &str>) -> Redlock {
    let addrs: Vec<&str> = addrs.collect();
    let url = format!("redlock://{}?timeout=1000", addrs.join(","));
    connected(|| Redlock::connect(&url)).await
}

struct Foreign(World, String);

#[async_trait]
impl ForeignHold for Foreign {
    async fn release(self: Box<Self>) {
        self.0.everywhere(&["DEL", &self.1]).await;
    }
}

/// The links to all nodes, which share one fate.
struct Links(Vec<Proxy>);

#[async_trait]
impl Link for Links {
    async fn black_hole(&self) {
        self.0.iter().for_each(Proxy::hold);
    }
    async fn lose_replies(&self) {
        self.0.iter().for_each(Proxy::drop_replies);
    }
    async fn cut(&self) {
        for proxy in &self.0 {
            Proxy::cut(proxy).await;
        }
    }
    async fn heal(&self) {
        for proxy in &self.0 {
            Proxy::heal(proxy).await;
        }
    }
}
