//! Which nodes of a Redis Cluster carry the notice to a waiter, and that it comes wherever its slot goes. No lease ends within a test, so
//! without a notice a waiter waits for minutes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::time::Duration;

use leasehold_core::support::Host;
use leasehold_core::{Guard, Store};
use leasehold_redis::{Config, Redis};
use leasehold_testbed::{Proxy, RedisCluster, RedisClusterOptions, Reply};
use support::*;

const LONG: Duration = Duration::from_secs(1800);

/// A Cluster, and two clients of it. With a limit that a busy machine keeps.
struct World {
    cluster: RedisCluster,
    stores: [Store; 2],
}

impl World {
    async fn start(replicas: usize) -> World {
        let options = RedisClusterOptions { replicas, ..RedisClusterOptions::default() };
        let cluster = RedisCluster::start(&options).await.unwrap();
        World { stores: World::stores(&cluster).await, cluster }
    }

    async fn stores(cluster: &RedisCluster) -> [Store; 2] {
        let url = format!("{}?timeout=10000", cluster.url());
        let store = async || Store::new(Redis::connect(&url).await.unwrap()).ttl(LONG);
        [store().await, store().await]
    }

    async fn owner(&self) -> &Server {
        &self.cluster.nodes()[self.cluster.owner(self.cluster.slot("x").await.unwrap()).await.unwrap()]
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

    /// Ends the connections on which notices of slots are heard, and no other. How many that were.
    async fn deafen(&self) -> usize {
        let owner = self.owner().await;
        let clients = text(owner, &["CLIENT", "LIST", "TYPE", "pubsub"]).await.unwrap();
        let mut all = 0;
        for client in clients.lines().filter(|client| !client.contains(" ssub=0 ")) {
            let id = client.split(' ').find_map(|word| word.strip_prefix("id=")).unwrap();
            // One may have ended by itself.
            all += usize::from(owner.command(&["CLIENT", "KILL", "ID", id]).await.is_ok());
        }
        all
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

    /// The same an even number of times, and for so many messages between nodes: in channels of all, and of slots. On a machine that stands
    /// still connections break, so it may be seen later.
    async fn costs(&self, mut guard: Guard, times: usize, messages: [u64; 2]) -> Guard {
        let mut seen = Vec::new();
        for _ in 0..5 {
            let before = self.sent().await;
            guard = self.handed_over(guard, times).await;
            let after = self.sent().await;
            seen.push([0, 1].map(|which| after[which] - before[which]));
            if seen.ends_with(&[messages]) {
                return guard;
            }
            sleep(500).await;
        }
        panic!("{seen:?}");
    }

    /// Both are heard in the slot's channels, after they have waited once.
    async fn heard(&self) -> Guard {
        let guard = self.handed_over(self.acquired(0).await, 2).await;
        self.until_heard().await;
        guard
    }

    /// A primary hears from its replica which one it follows: at the latest after half of the time after which it is taken for dead.
    async fn until_its_replica_is_known(&self) {
        until(async || {
            let nodes = text(self.owner().await, &["CLUSTER", "NODES"]).await.unwrap();
            let own = nodes.lines().find(|node| node.contains("myself")).and_then(|node| node.split(' ').next());
            own.is_some_and(|own| nodes.contains(&format!("slave {own}")))
        })
        .await;
    }

    async fn until_heard(&self) {
        until(async || channels(self.owner().await).await == 2).await;
    }

    /// How many messages the nodes have sent each other because of what was published: in channels of all, and of slots.
    async fn sent(&self) -> [u64; 2] {
        let mut sent = [0; 2];
        for node in self.cluster.nodes() {
            let info = text(node, &["CLUSTER", "INFO"]).await.unwrap();
            for (sent, what) in sent.iter_mut().zip(["publish", "publishshard"]) {
                let what = format!("cluster_stats_messages_{what}_sent:");
                *sent += info.lines().find_map(|line| line.strip_prefix(&what)?.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        sent
    }

    async fn on_all(&self, words: &[&str]) {
        for node in self.cluster.nodes() {
            node.command(words).await.unwrap();
        }
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

/// How many channels of slots somebody hears at this node.
async fn channels(node: &Server) -> usize {
    match node.command(&["PUBSUB", "SHARDCHANNELS"]).await.unwrap() {
        Reply::Array(all) => all.len(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_nodes_of_a_slot_carry_its_notices_alone() {
    within(120, async {
        let world = World::start(1).await;
        world.until_its_replica_is_known().await;
        let guard = world.heard().await;
        // To the one replica of its primary.
        let guard = world.costs(guard, 20, [0, 20]).await;
        release(guard).await;
    })
    .await;
}

/// Its node says unasked that it gives the slot away.
#[tokio::test]
async fn they_come_wherever_the_slot_goes() {
    within(120, async {
        let world = World::start(0).await;
        let mut guard = world.heard().await;
        let slot = world.cluster.slot("x").await.unwrap();
        for n in 0..4 {
            let waiter = world.waiting(1).await;
            let owner = world.cluster.owner(slot).await.unwrap();
            world.cluster.move_slot(slot, (owner + 1) % 3).await.unwrap();
            if n < 2 {
                // Else at once: a notice that is missed is made good.
                surely_confirmed(&guard).await;
                world.until_heard().await;
            }
            release(guard).await;
            guard = waiter.await.unwrap().unwrap();
            surely_confirmed(&guard).await;
            world.until_heard().await;
            let waiter = world.waiting(0).await;
            release(guard).await;
            guard = world.costs(waiter.await.unwrap().unwrap(), 2, [0, 0]).await;
        }
        release(guard).await;
    })
    .await;
}

/// The connections on which they are heard are cut just before the release, and no other.
#[tokio::test]
async fn one_that_is_missed_is_made_good() {
    within(120, async {
        let world = World::start(0).await;
        let mut guard = world.heard().await;
        for n in 0..6 {
            let waiter = world.waiting(1 - n % 2).await;
            assert!(world.deafen().await > 0);
            release(guard).await;
            guard = waiter.await.unwrap().unwrap();
            world.until_heard().await;
        }
        release(guard).await;
    })
    .await;
}

/// Nothing comes over one of these connections any more, and nobody closes it. The others work, and no new one can be made.
#[tokio::test]
async fn a_connection_that_is_silent_is_given_up() {
    within(120, async {
        let mut world = World::start(0).await;
        let (owner, proxy) =
            (world.owner().await.addr().to_owned(), Proxy::to(world.owner().await.addr()).await.unwrap());
        let host = |addr: &str| Host::parse(addr, 6379).unwrap();
        let (owner, through) = (host(&owner), host(proxy.addr()));
        let config = Config::from_url(&format!("{}?timeout=10000", world.cluster.url())).unwrap();
        let config = config.reach(move |at| if *at == owner { through.clone() } else { at.clone() });
        world.stores[1] = Store::new(Redis::with_config(config).await.unwrap()).ttl(LONG);
        let guard = world.heard().await;
        proxy.hold_reply_matching("PING").sprung().await;
        let waiter = world.waiting(1).await;
        world.owner().await.command(&["CONFIG", "SET", "maxclients", "1"]).await.unwrap();
        release(guard).await;
        release(waiter.await.unwrap().unwrap()).await;
    })
    .await;
}

/// As if many slots left their node, one after the other. Each time all who wait claim again.
#[tokio::test]
async fn connections_that_end_again_and_again_are_made_ever_more_rarely() {
    within(120, async {
        let world = World::start(0).await;
        let guard = world.heard().await;
        let (begun, mut ended) = (clock(), 0);
        while begun.elapsed() < Duration::from_secs(4) {
            ended += world.deafen().await;
            sleep(20).await;
        }
        assert!(ended < 40, "{ended} connections of two clients in {:?}", begun.elapsed());
        world.until_heard().await;
        release(guard).await;
    })
    .await;
}

/// With the rights that the store's page says, and no other.
#[tokio::test]
async fn the_rights_that_are_documented_are_enough() {
    within(120, async {
        let mut world = World::start(0).await;
        let rights = "+@scripting +@read +@write +@pubsub +@connection +time +info +config|get +cluster|slots \
                      &leasehold:* ~x* ~{x* ~{}:f:*";
        let user: Vec<&str> = ["ACL", "SETUSER", "app", "on", ">secret"].into_iter().chain(rights.split(' ')).collect();
        world.on_all(&user).await;
        let url = world.cluster.url().replace("://", "://app:secret@");
        for store in &mut world.stores {
            *store = Store::new(Redis::connect(&format!("{url}?timeout=10000")).await.unwrap()).ttl(LONG);
        }
        let guard = world.heard().await;
        release(world.costs(guard, 4, [0, 0]).await).await;
    })
    .await;
}

/// As on a server before Redis 7: who may not hear them is told in its own channel, by whoever may not publish in another.
#[tokio::test]
async fn who_has_no_such_channels_is_told_in_its_own() {
    within(120, async {
        let world = World::start(0).await;
        let guard = world.heard().await;
        world.on_all(&["ACL", "SETUSER", "default", "-spublish"]).await;
        // To the two other nodes.
        let guard = world.costs(guard, 4, [8, 0]).await;
        release(guard).await;
        world.on_all(&["ACL", "SETUSER", "default", "+spublish", "-ssubscribe"]).await;
        let world = World { stores: World::stores(&world.cluster).await, ..world };
        let guard = world.costs(world.acquired(0).await, 6, [12, 0]).await;
        release(guard).await;
    })
    .await;
}
