//! The suite against three private Redis servers that know nothing of each other.

#![allow(clippy::expect_used, clippy::panic, reason = "a harness that cannot do its part has failed")]

use std::alloc::System;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::harness::ForeignHold;
use leasehold_conformance::{Budget, Capabilities, Harness, Link, Need};
use leasehold_core::seam::{Backend, async_trait};
use leasehold_redlock::Redlock;
use leasehold_testbed::{Proxy, Redis, RedisOptions, Reply};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

const NODES: usize = 3;

/// Counts what the suite and the clients allocate.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

struct World(Arc<Vec<Redis>>);

impl World {
    /// Only where nodes are restarted do they wait for the disk, which a busy machine may hold up for longer than a lease.
    async fn start(persistent: bool) -> Arc<dyn Harness> {
        let options = RedisOptions { persistent, ..RedisOptions::default() };
        Arc::new(World(Arc::new(Redis::start_many_with(NODES, &options).await.expect("private redis-servers"))))
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
        "redlock"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(connect(self.0.iter().map(|node| node.addr())).await)
    }

    fn ttl(&self) -> Duration {
        // With one second, a machine with many times more work than cores loses leases that nothing is wrong with.
        Duration::from_secs(2)
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{AnotherTool, DeleteHolder, Footprint, Heap, Junk, Link, Private, PushedWake, Requests, Restart};
        let able = [Private, Link, DeleteHolder, AnotherTool, Junk, Restart, Footprint, Heap, Requests, PushedWake];
        Capabilities::new(
            &able,
            "tokens rise only as long as the nodes keep their data, and the last one of each name stays for two hours",
        )
        .lacks(&[Need::Fair], "the nodes share no order")
        .lacks(&[Need::Permits], "no majority counts permits")
        .lacks(&[Need::AtomicMulti], "a majority of the nodes agrees on one name at a time")
    }

    async fn private(&self) -> Arc<dyn Harness> {
        World::start(true).await
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let mut proxies = Vec::new();
        for node in &*self.0 {
            proxies.push(Proxy::to(node.addr()).await.expect("a proxy"));
        }
        let client = connect(proxies.iter().map(Proxy::addr)).await;
        (Arc::new(client), Arc::new(Links(proxies)))
    }

    async fn delete_holder(&self, full_name: &str) {
        let gone = self.everywhere(&["DEL", full_name]).await;
        assert!(gone.iter().all(|reply| reply.integer() == Some(1)), "{gone:?}");
    }

    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        // What every client of the Redlock family does.
        let set = self.everywhere(&["SET", full_name, "somebody-else", "NX", "PX", "30000"]).await;
        assert!(set.iter().all(|reply| reply.text().as_deref() == Some("OK")), "{set:?}");
        Box::new(Foreign(World(self.0.clone()), full_name.to_owned()))
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
            requests += ["evalsha", "eval", "ping"].iter().filter_map(|command| stats.get(*command)).sum::<u64>();
        }
        requests
    }

    fn budget(&self) -> Budget {
        Budget { cycle: 2.0 * NODES as f64, hand_over: 8.0 * NODES as f64, permits: 0.0, idle: 0.0 }
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

    async fn contents(&self) -> u64 {
        let mut contents = 0;
        for node in &*self.0 {
            contents += node.dbsize().await.expect("DBSIZE");
        }
        contents
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

async fn connect(addrs: impl Iterator<Item = &str>) -> Redlock {
    let addrs: Vec<&str> = addrs.collect();
    Redlock::connect(&format!("redlock://{}?timeout=1000", addrs.join(","))).await.expect("a client")
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

fn main() -> ExitCode {
    leasehold_conformance::main(|| World::start(false))
}
