//! How servers of Redis change places, and slots move: what only some of the stores have.

use leasehold_testbed::{RedisCluster, RedisSentinel, Result};

use super::{breaking::AGAIN, servers::Servers};

impl Servers {
    /// Another server serves this lock. Returns when all have their new parts.
    pub(crate) async fn fail_over(&self, lock: &str) {
        match self {
            Servers::Sentinel(sentinel) => of_master(sentinel).await,
            Servers::Cluster(cluster) => {
                while of_primary(cluster, lock).await.is_err() {
                    tokio::time::sleep(AGAIN).await;
                }
            }
            _ => {}
        }
    }

    /// The slot of this lock moves on to the next primary: as often as it takes, since a slot that is half moved serves nobody.
    pub(crate) async fn move_slot(&self, lock: &str) {
        let Servers::Cluster(cluster) = self else {
            return;
        };
        while moved(cluster, lock).await.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn of_master(sentinel: &RedisSentinel) {
    let before = sentinel.master().await;
    // One may be under way.
    while sentinel.fail_over().await.is_err() {
        tokio::time::sleep(AGAIN).await;
    }
    while sentinel.master().await == before || !sentinel.is_ready().await {
        tokio::time::sleep(AGAIN).await;
    }
}

async fn of_primary(cluster: &RedisCluster, lock: &str) -> Result<()> {
    let slot = cluster.slot(lock).await?;
    let before = cluster.owner(slot).await?;
    // Nodes have the data in pairs: those that began as primaries come first.
    let replica = (before + cluster.nodes().len() / 2) % cluster.nodes().len();
    while cluster.owner(slot).await? == before {
        // The replica may have given up: then it is told again.
        let _ = cluster.nodes()[replica]
            .command(&["CLUSTER", "FAILOVER"])
            .await;
        tokio::time::sleep(AGAIN).await;
    }
    cluster.until_ok().await
}

async fn moved(cluster: &RedisCluster, lock: &str) -> Result<()> {
    let slot = cluster.slot(lock).await?;
    let (owner, primaries) = (cluster.owner(slot).await?, cluster.primaries().await?);
    let next = primaries
        .iter()
        .find(|node| **node > owner)
        .or(primaries.first());
    match next {
        Some(next) if *next != owner => cluster.move_slot(slot, *next).await,
        _ => Ok(()),
    }
}
