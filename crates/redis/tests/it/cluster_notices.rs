//! The notice to a waiter in a Redis Cluster: its messages between the nodes, and that it comes wherever its slot goes. No lease ends
//! within a test, so without a notice a waiter waits for minutes.

use std::time::Duration;

use crate::support::*;
use leasehold_core::{Guard, Store};
use leasehold_redis::Redis;
use leasehold_testbed::{RedisCluster, RedisClusterOptions};

const LONG: Duration = Duration::from_secs(1800);

/// A Cluster, and two clients of it. With a limit that a busy machine keeps.
struct World {
    cluster: RedisCluster,
    stores: [Store; 2],
}

impl World {
    async fn start() -> World {
        let options = RedisClusterOptions {
            replicas: 0,
            ..RedisClusterOptions::default()
        };
        let cluster = RedisCluster::start(&options).await.unwrap();
        World {
            stores: World::stores(&cluster).await,
            cluster,
        }
    }

    async fn stores(cluster: &RedisCluster) -> [Store; 2] {
        let url = format!("{}?timeout=10000", cluster.url());
        let store = async || Store::new(Redis::connect(&url).await.unwrap()).ttl(LONG);
        [store().await, store().await]
    }

    async fn owner(&self) -> &Server {
        &self.cluster.nodes()[self
            .cluster
            .owner(self.cluster.slot("x").await.unwrap())
            .await
            .unwrap()]
    }

    /// Taken whatever outages there are.
    async fn acquired(&self, by: usize) -> Guard {
        loop {
            match self.stores[by].lock("x").acquire().await {
                Ok(guard) => return guard,
                Err(e) => assert!(e.is_retryable(), "{e:?}"),
            }
        }
    }

    /// One of them waits.
    async fn waiting(&self, by: usize) -> tokio::task::JoinHandle<leasehold_core::Result<Guard>> {
        let waiter = tokio::spawn(self.stores[by].lock("x").acquire());
        until(async || in_line(self.owner().await, "x").await == 1).await;
        waiter
    }

    /// From one to the other, once for each.
    async fn handed_over(&self, mut guard: Guard, times: usize) -> Guard {
        for n in 0..times {
            let waiter = self.waiting(1 - n % 2).await;
            release(guard).await;
            guard = waiter.await.unwrap().unwrap();
        }
        guard
    }

    /// The number of messages that the nodes have sent each other because of what was published.
    async fn sent(&self) -> u64 {
        let mut sent = 0;
        for node in self.cluster.nodes() {
            let info = text(node, &["CLUSTER", "INFO"]).await.unwrap();
            sent += info
                .lines()
                .find_map(|line| line.strip_prefix("cluster_stats_messages_publish_sent:"))
                .map_or(0, |sent| sent.parse::<u64>().unwrap());
        }
        sent
    }
}

async fn release(guard: Guard) {
    if let Err(e) = guard.release().await {
        assert!(e.is_retryable(), "{e:?}");
    }
}

async fn surely_confirmed(guard: &Guard) {
    while let Err(e) = guard.confirm().await {
        assert!(e.is_retryable(), "{e:?}");
        sleep(10).await;
    }
}

#[tokio::test]
async fn a_notice_is_one_message_to_each_other_node() {
    within(120, async {
        let world = World::start().await;
        let mut guard = world.acquired(0).await;
        // On a machine that stands still connections break, and who waits is told again.
        let mut seen = Vec::new();
        while !seen.contains(&40) {
            let before = world.sent().await;
            guard = world.handed_over(guard, 20).await;
            seen.push(world.sent().await - before);
            assert!(seen.len() < 5, "{seen:?}");
        }
        release(guard).await;
    })
    .await;
}

#[tokio::test]
async fn they_come_wherever_the_slot_goes() {
    within(120, async {
        let world = World::start().await;
        let mut guard = world.acquired(0).await;
        let slot = world.cluster.slot("x").await.unwrap();
        for n in 0..4 {
            let waiter = world.waiting(1 - n % 2).await;
            let owner = world.cluster.owner(slot).await.unwrap();
            world
                .cluster
                .move_slot(slot, (owner + 1) % 3)
                .await
                .unwrap();
            if n < 2 {
                surely_confirmed(&guard).await;
            }
            release(guard).await;
            guard = waiter.await.unwrap().unwrap();
        }
        release(guard).await;
    })
    .await;
}
