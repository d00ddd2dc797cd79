//! The powers of the suite over a private Redis Cluster of three primaries, each with a replica.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a harness that cannot do its part has failed"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_conformance::harness::{FencedResource, ForeignHold};
use leasehold_conformance::{Budget, Capabilities, Harness, Link, Need};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::support::escape;
use leasehold_core::{ErrorKind, Fenced, Result};
use leasehold_net::Host;
use leasehold_redis::client::Client;
use leasehold_redis::client::aio::MultiplexedConnection;
use leasehold_redis::{Config, Redis};
use leasehold_testbed::{Detour, Proxy, RedisCluster, RedisClusterOptions, RedisOptions, Reply};

use crate::ALLOCATOR;

pub struct World(Arc<RedisCluster>);

impl World {
    /// Worlds of single cases have no replicas: no such case waits for one.
    pub async fn start(replicas: usize) -> Arc<dyn Harness> {
        let node = RedisOptions {
            persistent: true,
            ..RedisOptions::default()
        };
        let options = RedisClusterOptions {
            replicas,
            node,
            ..RedisClusterOptions::default()
        };
        Arc::new(World(Arc::new(
            RedisCluster::start(&options)
                .await
                .expect("a private Redis Cluster"),
        )))
    }

    async fn connect(&self) -> Redis {
        Redis::connect(&self.0.url()).await.expect("a client")
    }

    /// A client that reaches each node at this address.
    async fn by(&self, addrs: Vec<&str>) -> Redis {
        let port = |addr: &str| {
            let (_, port) = addr.rsplit_once(':').expect("an address");
            port.parse().expect("a port")
        };
        let nodes = self.0.nodes().iter().map(|node| node.port());
        let ports: Vec<(u16, u16)> = nodes.zip(addrs.iter().map(|addr| port(addr))).collect();
        let url = format!("redis+cluster://{}", addrs.join(","));
        let config = Config::from_url(&url).expect("a URL");
        let config = config.reach(move |host: &Host| {
            let by = ports.iter().find(|(port, _)| *port == host.port);
            Host {
                name: host.name.clone(),
                port: by.map_or(host.port, |(_, port)| *port),
            }
        });
        Redis::with_config(config).await.expect("a client")
    }

    async fn sum(&self, words: &[&str]) -> u64 {
        let replies = self
            .0
            .on_primaries(words)
            .await
            .expect("an answer of each primary");
        replies
            .iter()
            .map(|reply| reply.integer().expect("a number") as u64)
            .sum()
    }

    async fn keys(&self, pattern: &str) -> Vec<String> {
        let replies = self.0.on_primaries(&["KEYS", pattern]).await.expect("KEYS");
        let keys = replies.into_iter().flat_map(|reply| match reply {
            Reply::Array(keys) => keys,
            _ => Vec::new(),
        });
        keys.filter_map(|key| key.text()).collect()
    }
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        "redis, Cluster"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.connect().await)
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{
            AnotherTool, AtomicMulti, Contents, DeleteHolder, Detour, Fence, Footprint, Heap, Junk,
            Link, Private, PushedWake, Requests, Restart, Wipe,
        };
        let able = [
            Private,
            Link,
            Fence,
            DeleteHolder,
            AnotherTool,
            Junk,
            Restart,
            Wipe,
            Footprint,
            Requests,
            PushedWake,
            Contents,
            Heap,
            Detour,
        ];
        Capabilities::new(&able, "")
            .lacks(&[AtomicMulti], "names are in different slots")
            .lacks(
                &[Need::Raise, Need::Floor],
                "each slot numbers its holds by itself",
            )
    }

    async fn private(&self) -> Arc<dyn Harness> {
        World::start(0).await
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let mut proxies = Vec::new();
        for node in self.0.nodes() {
            proxies.push(Proxy::to(node.addr()).await.expect("a proxy"));
        }
        let addrs = proxies.iter().map(Proxy::addr).collect();
        let client = Arc::new(self.by(addrs).await);
        (client, Arc::new(Links(proxies)))
    }

    async fn misled_client(&self) -> (Arc<dyn Backend>, Arc<dyn leasehold_conformance::Detour>) {
        let options = RedisClusterOptions {
            primaries: self.0.nodes().len(),
            replicas: 0,
            ..RedisClusterOptions::default()
        };
        let other = RedisCluster::start(&options)
            .await
            .expect("another Cluster");
        let elsewhere = Redis::connect(&other.url()).await.expect("a client");
        let pairs = self.0.nodes().iter().zip(other.nodes());
        let ways = pairs.map(|(here, there)| [here.addr().to_owned(), there.addr().to_owned()]);
        let way = Detour::between(ways.collect(), Arc::new(elsewhere), other);
        let way = way.await.expect("proxies");
        let client = Arc::new(self.by(way.addrs()).await);
        (client, Arc::new(way))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        static ROWS: AtomicU64 = AtomicU64::new(0);
        let locks = Arc::new(self.connect().await);
        let mut connections = Vec::new();
        for node in self.0.primaries().await.expect("primaries") {
            let client = Client::open(self.0.nodes()[node].url()).expect("a URL");
            connections.push(
                client
                    .get_multiplexed_async_connection()
                    .await
                    .expect("a connection"),
            );
        }
        let row = format!("row/{}", ROWS.fetch_add(1, Ordering::Relaxed));
        (
            locks.clone(),
            Arc::new(Row {
                locks,
                connections,
                row,
                written: AtomicU64::new(0),
            }),
        )
    }

    async fn delete_holder(&self, full_name: &str) {
        let gone = self
            .0
            .command(full_name, &["DEL", full_name])
            .await
            .expect("DEL");
        assert_eq!(gone.integer(), Some(1));
    }

    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        let set = ["SET", full_name, "somebody-else", "NX", "PX", "30000"];
        let set = self.0.command(full_name, &set).await.expect("SET");
        assert_eq!(set.text().as_deref(), Some("OK"));
        Box::new(Foreign(self.0.clone(), full_name.to_owned()))
    }

    async fn put_junk(&self, full_name: &str) {
        self.0
            .command(full_name, &["RPUSH", full_name, "junk"])
            .await
            .expect("RPUSH");
    }

    async fn restart(&self) {
        for node in self.0.nodes() {
            node.restart_with_data().await.expect("a restart");
        }
        self.0
            .until_ok()
            .await
            .expect("a Cluster that serves again");
    }

    async fn wipe(&self) {
        self.0.on_primaries(&["FLUSHALL"]).await.expect("FLUSHALL");
    }

    async fn requests(&self) -> u64 {
        let mut sum = 0;
        for node in self.0.primaries().await.expect("primaries") {
            let stats = self.0.nodes()[node]
                .commandstats()
                .await
                .expect("INFO commandstats");
            let all = [
                "evalsha",
                "eval",
                "script|load",
                "ping",
                "asking",
                "cluster|slots",
            ];
            sum += all
                .iter()
                .filter_map(|command| stats.get(*command))
                .sum::<u64>();
        }
        // The harness itself asks who serves a slot.
        sum
    }

    fn budget(&self) -> Budget {
        Budget {
            cycle: 2.0,
            hand_over: 2.1,
            permits: 2.1,
            idle: 0.0,
        }
    }

    /// Keys of one script are in one slot, so each lease has a script; a third of a lease may see two renewals.
    fn renewals_of_a_waiter(&self) -> f64 {
        2.0
    }

    async fn footprint(&self) -> u64 {
        let mut lasting = 0;
        for key in self.keys("*").await {
            let ttl = self.0.command(&key, &["PTTL", &key]).await.expect("PTTL");
            lasting += u64::from(ttl.integer() == Some(-1));
        }
        lasting
    }

    /// Without the fences: one for each slot that was used, 16,384 at most.
    async fn contents(&self) -> u64 {
        let fences = self.keys("{}:f:*").await.len() as u64;
        self.sum(&["DBSIZE"]).await - fences
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

/// The links to all nodes.
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
            proxy.cut().await;
        }
    }
    async fn heal(&self) {
        for proxy in &self.0 {
            proxy.heal().await;
        }
    }
}

/// A number beside each lock, in its slot, that is added to while its writer still holds.
struct Row {
    locks: Arc<Redis>,
    connections: Vec<MultiplexedConnection>,
    row: String,
    written: AtomicU64,
}

#[async_trait]
impl FencedResource for Row {
    async fn write(&self, by: &dyn Fenced) -> Result<bool> {
        let held = self.locks.still_holds(by)?;
        let lock = escape(by.full_name().as_str(), |c| matches!(c, '{' | '}'));
        let row = format!("{{{lock}}}:{}", self.row);
        for connection in &self.connections {
            let add = "return redis.call('INCR', KEYS[1])";
            match held
                .then::<i64>(&mut connection.clone(), add, &[&row], &[""; 0])
                .await
            {
                // It is another node's.
                Err(e) if e.kind() == ErrorKind::Unsupported => {}
                Err(e) => return Err(e),
                Ok(written) => {
                    self.written
                        .fetch_add(u64::from(written.is_some()), Ordering::Relaxed);
                    return Ok(written.is_some());
                }
            }
        }
        panic!("no node serves {row}")
    }

    async fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

struct Foreign(Arc<RedisCluster>, String);

#[async_trait]
impl ForeignHold for Foreign {
    async fn release(self: Box<Self>) {
        self.0
            .command(&self.1, &["DEL", &self.1])
            .await
            .expect("DEL");
    }
}
