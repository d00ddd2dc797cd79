//! A grant that no replica has is lost in a failover (class F). Its holder goes on to write once the next one has: it is refused by its
//! token.
//!
//! `LEASEHOLD_FAILOVERS=50` makes more of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::*;
use leasehold_core::{Guard, Store};
use leasehold_redis::Redis;
use leasehold_testbed::seen::Seen;
use leasehold_testbed::{RedisCluster, RedisClusterOptions, RedisSentinel, SentinelOptions};

/// Longer than a failover takes: the guard that is lost still says that it is valid when the next one is granted.
const LEASE: Duration = Duration::from_secs(30);

async fn connected(url: &str) -> Store {
    loop {
        match Redis::connect(url).await {
            Ok(store) => return Store::new(store).ttl(LEASE),
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

async fn granted(store: &Store, seen: &Seen) -> Guard {
    loop {
        let floor = seen.floor();
        match store.lock("x").acquire().await {
            Ok(guard) => {
                seen.granted(&guard, floor);
                return guard;
            }
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

/// Nothing of what this server writes from here on comes to one of the others.
async fn unheard(server: &Server, others: impl Iterator<Item = &Server>) {
    for other in others {
        other
            .command(&["CONFIG", "SET", "masterauth", "wr0ng"])
            .await
            .unwrap();
    }
    until(async || {
        let _ = server.command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
        server
            .info("replication")
            .await
            .is_ok_and(|info| info.contains("connected_slaves:0"))
    })
    .await;
}

/// The server of the lock is killed when it has granted it and no other server knows, and comes back when another was granted it.
async fn a_stale_write(
    stores: &[Store; 2],
    seen: &Seen,
    server: &Server,
    others: impl Iterator<Item = &Server>,
) {
    unheard(server, others).await;
    let stale = granted(&stores[0], seen).await;
    seen.write(&stale);
    server.kill().await.unwrap();
    let next = granted(&stores[1], seen).await;
    seen.write(&next);
    let refused = seen.refused.load(Ordering::SeqCst);
    seen.write(&stale);
    assert_eq!(
        seen.refused.load(Ordering::SeqCst),
        refused + 1,
        "{} after {}",
        stale.fencing_token(),
        next.fencing_token()
    );
    // Its holder is told, too.
    while let Err(e) = stale.confirm().await {
        if e.loss().is_some() {
            break;
        }
        assert!(e.is_retryable(), "{e:?}");
    }
    assert!(!stale.is_valid());
    // What is not answered is released in the background.
    let _ = next.release().await;
    server.start_again().await.unwrap();
}

fn rounds() -> usize {
    std::env::var("LEASEHOLD_FAILOVERS").map_or(1, |n| n.parse().unwrap())
}

/// How often two guards said that they are valid: no lock can rule that out there, and so its tokens are for the resource to look at.
fn told(seen: &Seen) {
    let number = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::SeqCst);
    println!(
        "{} stale writes, all refused; {} overlaps of guards",
        number(&seen.refused),
        number(&seen.overlaps)
    );
}

#[tokio::test]
async fn behind_sentinels() {
    let options = SentinelOptions {
        down_after: Duration::from_secs(1),
        ..SentinelOptions::default()
    };
    let all = RedisSentinel::start_with(&options).await.unwrap();
    let (stores, seen) = (
        [connected(&all.url()).await, connected(&all.url()).await],
        Seen::default(),
    );
    for _ in 0..rounds() {
        until(|| all.is_ready()).await;
        let master = all.master().await.unwrap();
        let (servers, server) = (all.servers(), &all.servers()[master]);
        a_stale_write(
            &stores,
            &seen,
            server,
            servers.iter().filter(|other| other.port() != server.port()),
        )
        .await;
        for server in servers {
            server
                .command(&["CONFIG", "SET", "masterauth", ""])
                .await
                .unwrap();
        }
    }
    told(&seen);
}

#[tokio::test]
async fn in_a_cluster() {
    let options = RedisClusterOptions {
        node_timeout: Duration::from_secs(3),
        ..RedisClusterOptions::default()
    };
    let all = RedisCluster::start(&options).await.unwrap();
    let (stores, seen) = (
        [connected(&all.url()).await, connected(&all.url()).await],
        Seen::default(),
    );
    for _ in 0..rounds() {
        all.until_ok().await.unwrap();
        let server = &all.nodes()[all.owner(all.slot("x").await.unwrap()).await.unwrap()];
        let others = all
            .nodes()
            .iter()
            .map(|node| &**node)
            .filter(|other| other.port() != server.port());
        a_stale_write(&stores, &seen, server, others).await;
        for node in all.nodes() {
            node.command(&["CONFIG", "SET", "masterauth", ""])
                .await
                .unwrap();
        }
    }
    told(&seen);
}
