//! Redis, and Redlock on several nodes.

use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::harness::{FencedResource, ForeignHold};
use leasehold_conformance::{Budget, Capabilities, Harness, Link};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::support::dial;
use leasehold_core::{Fenced, Result};
use leasehold_redis::Redis;
use leasehold_redis::client::aio::MultiplexedConnection;
use leasehold_redis::client::{AsyncConnectionConfig, FromRedisValue, RedisConnectionInfo, cmd};
use leasehold_redis::redlock::Redlock;
use leasehold_sim::stage::{Link as Way, Site};

use crate::suite::unfit::capabilities;
use crate::suite::{Network, row};

/// That of the suite on real servers.
pub(crate) const TTL: Duration = Duration::from_secs(2);

pub(crate) struct World(pub(crate) Arc<Site>);

impl World {
    fn is_redlock(&self) -> bool {
        self.0.servers() > 1
    }

    async fn redis(&self, way: &Way) -> Redis {
        Redis::connect(&format!("redis://{}", way.hosts()[0]))
            .await
            .expect("a client")
    }

    async fn connect(&self, way: &Way) -> Arc<dyn Backend> {
        if self.is_redlock() {
            let url = format!("redlock://{}?timeout=1000", way.hosts().join(","));
            Arc::new(Redlock::connect(&url).await.expect("a client"))
        } else {
            Arc::new(self.redis(way).await)
        }
    }

    /// Connections that are no lock's, one to each server.
    async fn raw(&self) -> Vec<MultiplexedConnection> {
        let mut all = Vec::new();
        for host in self.0.link().hosts() {
            let stream = dial(host, 6379)
                .expect("a simulated machine")
                .expect("a server");
            let (plain, config) = (RedisConnectionInfo::default(), AsyncConnectionConfig::new());
            let made = MultiplexedConnection::new_with_config(&plain, stream, config).await;
            let (connection, driver) = made.expect("a connection");
            tokio::spawn(driver);
            all.push(connection);
        }
        all
    }

    /// The same on every server.
    async fn everywhere<T: FromRedisValue>(&self, words: &[&str]) -> Vec<T> {
        let mut all = Vec::new();
        for mut connection in self.raw().await {
            all.push(ask(&mut connection, words).await);
        }
        all
    }
}

async fn ask<T: FromRedisValue>(connection: &mut MultiplexedConnection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    command.query_async(connection).await.expect(words[0])
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        if self.is_redlock() {
            "redlock"
        } else {
            "redis"
        }
    }

    async fn client(&self) -> Arc<dyn Backend> {
        self.connect(&self.0.link()).await
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.0.kind())
    }

    async fn private(&self) -> Arc<dyn Harness> {
        Arc::new(World(self.0.others()))
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let way = self.0.link();
        (self.connect(&way).await, Arc::new(Network(way)))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        let (locks, row) = (Arc::new(self.redis(&self.0.link()).await), row(&self.0));
        let connection = self.raw().await.remove(0);
        (
            locks.clone(),
            Arc::new(Row {
                locks,
                connection,
                row,
            }),
        )
    }

    async fn delete_holder(&self, full_name: &str) {
        for mut node in self.raw().await {
            // A majority granted it; the request to the last node may be on its way.
            while ask::<i64>(&mut node, &["DEL", full_name]).await != 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        // What every client of the Redlock family does.
        let set = self
            .everywhere::<String>(&["SET", full_name, "somebody-else", "NX", "PX", "30000"])
            .await;
        assert!(set.iter().all(|reply| reply == "OK"), "{set:?}");
        Box::new(Foreign(World(self.0.clone()), full_name.to_owned()))
    }

    async fn put_junk(&self, full_name: &str) {
        self.everywhere::<i64>(&["RPUSH", full_name, "junk"]).await;
    }

    async fn restart(&self) {
        self.0.restart().await;
    }

    async fn wipe(&self) {
        self.everywhere::<String>(&["FLUSHALL"]).await;
    }

    fn servers(&self) -> u64 {
        self.0.servers() as u64
    }

    async fn requests(&self) -> u64 {
        self.0.counts().requests
    }

    fn budget(&self) -> Budget {
        match self.servers() {
            1 => Budget {
                cycle: 2.0,
                hand_over: 2.1,
                permits: 2.1,
                idle: 0.0,
            },
            nodes => Budget {
                cycle: 2.0 * nodes as f64,
                hand_over: 8.0 * nodes as f64,
                permits: 0.0,
                idle: 0.0,
            },
        }
    }

    async fn footprint(&self) -> u64 {
        self.0.counts().lasting
    }

    /// Keys, and on Redlock the names in the hashes of last tokens.
    async fn contents(&self) -> u64 {
        let mut contents = self.0.counts().contents;
        if self.is_redlock() {
            for hash in ["{}:rt", "{}:ro"] {
                contents += self
                    .everywhere::<u64>(&["HLEN", hash])
                    .await
                    .iter()
                    .sum::<u64>();
            }
        }
        contents
    }

    fn forgets_within(&self, _names: usize) -> Duration {
        Duration::from_secs(if self.is_redlock() { 6 } else { 0 })
    }
}

/// A number that is added to while its writer still holds.
struct Row {
    locks: Arc<Redis>,
    connection: MultiplexedConnection,
    row: String,
}

#[async_trait]
impl FencedResource for Row {
    async fn write(&self, by: &dyn Fenced) -> Result<bool> {
        let add = "return redis.call('INCR', KEYS[1])";
        let held = self.locks.still_holds(by)?;
        let written = held
            .then::<i64>(&mut self.connection.clone(), add, &[&self.row], &[""; 0])
            .await?;
        Ok(written.is_some())
    }

    async fn written(&self) -> u64 {
        ask::<Option<u64>>(&mut self.connection.clone(), &["GET", &self.row])
            .await
            .unwrap_or_default()
    }
}

struct Foreign(World, String);

#[async_trait]
impl ForeignHold for Foreign {
    async fn release(self: Box<Self>) {
        self.0.everywhere::<i64>(&["DEL", &self.1]).await;
    }
}
