//! Releases that a server answered, and another one in its place never saw: they are sent again, and end nothing else.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, WaitPolicy};
use leasehold_net::Host;
use leasehold_redis::{Config, Redis};
use leasehold_testbed::{Proxy, RedisCluster, RedisClusterOptions};

/// No lease of it ends within a test.
const LONG: Duration = Duration::from_secs(600);

fn long(name: &str) -> Claim {
    claim(name, WaitPolicy::Fair, LONG, "long")
}

/// Claims until it is granted, whatever outages there are.
async fn surely_granted(store: &Redis, claim: &Claim) {
    until(async || match store.claim(claim).await {
        Ok(claimed) => matches!(claimed, Claimed::Granted(_)),
        Err(e) => {
            assert!(e.is_retryable(), "{e:?}");
            false
        }
    })
    .await;
}

/// Behind one address, with the data of a moment ago: as after a crash, or a failover that no sentinel tells of.
#[tokio::test]
async fn to_a_server_with_older_data_behind_the_same_address() {
    bounded(async {
        let server = server().await;
        let (mine, other) = (client(&server).await, client(&server).await);
        let (kept, given) = (long("kept"), [long("x"), long("y")]);
        for claim in [&kept, &given[0], &given[1]] {
            granted(&mine, claim).await;
        }
        // A place in a queue comes back too.
        let (waits, behind) = (long("kept"), long("kept"));
        waiting(&other, &waits).await;
        server.command(&["SAVE"]).await.unwrap();
        for claim in &given {
            surely_released(&mine, claim).await;
        }
        surely_released(&other, &waits).await;
        server.kill().await.unwrap();
        server.start_again().await.unwrap();
        let third = client(&server).await;
        for name in ["x", "y"] {
            surely_granted(&third, &long(name)).await;
        }
        waiting(&third, &behind).await;
        until(async || place(&server, &waits).await.is_none()).await;
        assert_eq!(held_by(&server, "kept").await, kept.id.to_string());
        surely_released(&mine, &kept).await;
        surely_granted(&third, &behind).await;
    })
    .await;
}

#[tokio::test]
async fn not_to_the_server_that_answered_them() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let given = long("x");
        granted(&store, &given).await;
        surely_released(&store, &given).await;
        let count = Count::from_here(&server).await;
        for n in 1..=3 {
            server
                .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
                .await
                .unwrap();
            // Two for each connection.
            until(async || count.of("hello").await >= 2 * n).await;
            surely_granted(&store, &fair(&n.to_string())).await;
        }
        sleep(50).await;
        assert_eq!(count.of("evalsha").await, 3, "a claim each");
    })
    .await;
}

/// A Cluster, the primary of `x`, its replica, and another name in the slots of that primary.
struct Pair {
    cluster: RedisCluster,
    old: Arc<Server>,
    new: Arc<Server>,
    beside: String,
}

impl Pair {
    async fn start() -> Pair {
        let cluster = RedisCluster::start(&RedisClusterOptions::default())
            .await
            .unwrap();
        let owner = async |name: &str| {
            cluster
                .owner(cluster.slot(name).await.unwrap())
                .await
                .unwrap()
        };
        let at = owner("x").await;
        let old = cluster.nodes()[at].clone();
        let follows = format!("master_port:{}", old.port());
        let mut new = None;
        for node in cluster.nodes() {
            if node.info("replication").await.unwrap().contains(&follows) {
                new = Some(node.clone());
            }
        }
        let mut beside = 0;
        while owner(&format!("kept/{beside}")).await != at {
            beside += 1;
        }
        Pair {
            cluster,
            old,
            new: new.unwrap(),
            beside: format!("kept/{beside}"),
        }
    }

    fn url(&self) -> String {
        format!("{}?timeout=10000", self.cluster.url())
    }

    /// Takes both, and releases `x` when its replica hears of nothing any more. The other one is answered.
    async fn released_unheard(&self, mine: &Redis) -> Claim {
        let (given, kept) = (long("x"), long(&self.beside));
        for claim in [&given, &kept] {
            granted(mine, claim).await;
        }
        until(async || self.new.dbsize().await.unwrap() == self.old.dbsize().await.unwrap()).await;
        self.old
            .command(&["ACL", "SETUSER", "default", "-psync", "-sync"])
            .await
            .unwrap();
        self.old
            .command(&["CLIENT", "KILL", "TYPE", "replica"])
            .await
            .unwrap();
        surely_released(mine, &given).await;
        let keys = self.new.keys("*").await.unwrap();
        assert!(
            keys.contains(&"x".to_owned()),
            "the replica has heard of it: {keys:?}"
        );
        kept
    }

    async fn take_over(&self) {
        self.new
            .command(&["CLUSTER", "FAILOVER", "TAKEOVER"])
            .await
            .unwrap();
    }

    async fn is_at_the_new_one(&self, claim: &Claim) -> bool {
        text(&self.new, &["GET", "x"])
            .await
            .is_some_and(|x| x.contains(&claim.id.to_string()))
    }
}

/// The replica of a primary that has lost its link, and is told to take over.
#[tokio::test]
async fn to_a_replica_that_is_promoted_in_a_cluster() {
    within(240, async {
        let pair = Pair::start().await;
        let (mine, other) = (
            Redis::connect(&pair.url()).await.unwrap(),
            Redis::connect(&pair.url()).await.unwrap(),
        );
        let kept = pair.released_unheard(&mine).await;
        pair.take_over().await;
        // Both hear of it when they ask for anything there, such as a renewal; until then the old primary grants.
        let next = long("x");
        let asks = async || mine.claim(&kept).await.is_ok() && other.claim(&next).await.is_ok();
        until(async || asks().await && pair.is_at_the_new_one(&next).await).await;
        assert_eq!(
            held_by(&pair.new, kept.name.as_str()).await,
            kept.id.to_string()
        );
    })
    .await;
}

/// The client hears of it before it can reach it, and asks nothing after that.
#[tokio::test]
async fn to_a_replica_that_is_promoted_and_cannot_be_reached_yet() {
    within(240, async {
        let pair = Pair::start().await;
        let proxy = Proxy::to(pair.new.addr()).await.unwrap();
        let host = |addr: &str| Host::parse(addr, 6379).unwrap();
        let (new, through) = (host(pair.new.addr()), host(proxy.addr()));
        let config = Config::from_url(&pair.url().replace("10000", "1000")).unwrap();
        let config = config.reach(move |at| {
            if *at == new {
                through.clone()
            } else {
                at.clone()
            }
        });
        let (mine, other) = (
            Redis::with_config(config).await.unwrap(),
            Redis::connect(&pair.url()).await.unwrap(),
        );
        let kept = pair.released_unheard(&mine).await;
        proxy.hold();
        pair.take_over().await;
        until(async || {
            mine.claim(&kept)
                .await
                .is_err_and(|e| e.to_string().contains(proxy.addr()))
        })
        .await;
        proxy.heal().await;
        let next = long("x");
        until(async || other.claim(&next).await.is_ok() && pair.is_at_the_new_one(&next).await)
            .await;
    })
    .await;
}
