//! Nodes of a Redis Cluster that hang, forget, refuse, go and come back, or are called by other names: what that costs, and whom.

use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Renewal, WaitPolicy};
use leasehold_core::{Error, ErrorKind, FencingToken, Guard, Loss, Store};
use leasehold_redis::Redis;
use leasehold_testbed::{RedisCluster, RedisClusterOptions, RedisOptions};

const LONG: Duration = Duration::from_secs(90);

/// Three primaries without replicas, where a silent node is taken for dead after so many seconds.
async fn cluster(seconds: u64, extra: &[&str]) -> RedisCluster {
    let extra = extra.iter().map(|word| (*word).to_owned()).collect();
    let node = RedisOptions {
        persistent: true,
        extra,
        ..RedisOptions::default()
    };
    let node_timeout = Duration::from_secs(seconds);
    let options = RedisClusterOptions {
        replicas: 0,
        node,
        node_timeout,
        ..RedisClusterOptions::default()
    };
    RedisCluster::start(&options).await.unwrap()
}

async fn store(cluster: &RedisCluster) -> Store {
    Store::new(
        Redis::connect(&format!("{}?timeout=2000", cluster.url()))
            .await
            .unwrap(),
    )
}

/// A client, whatever outages there are.
async fn connected(url: &str) -> Redis {
    loop {
        match Redis::connect(url).await {
            Ok(redis) => return redis,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

/// So many names of each node.
async fn names(cluster: &RedisCluster, each: usize) -> [Vec<String>; 3] {
    let mut names = [const { Vec::new() }; 3];
    for n in 0.. {
        let name = format!("name/{n}");
        let owner = cluster
            .owner(cluster.slot(&name).await.unwrap())
            .await
            .unwrap();
        if names[owner].len() < each {
            names[owner].push(name);
        }
        if names.iter().all(|names| names.len() == each) {
            break;
        }
    }
    names
}

/// The lock, whatever outages there are.
async fn patient(store: &Store, name: &str, ttl: Duration) -> Guard {
    loop {
        match store.lock(name).ttl(ttl).acquire().await {
            Ok(guard) => return guard,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

/// Asks until the store knows whether it is held.
async fn confirmed(guard: &Guard) -> Result<(), Error> {
    loop {
        match guard.confirm().await {
            Err(e) if e.is_retryable() => sleep(20).await,
            known => return known,
        }
    }
}

#[tokio::test]
async fn a_node_that_hangs_costs_no_hold_of_another() {
    bounded(async {
        let cluster = cluster(600, &[]).await;
        let (store, names, ttl) = (
            store(&cluster).await,
            names(&cluster, 11).await,
            Duration::from_secs(9),
        );
        let mut held = [const { Vec::new() }; 3];
        for (names, held) in names.iter().zip(&mut held) {
            for (n, name) in names[1..].iter().enumerate() {
                held.push(match n % 2 {
                    0 => patient(&store, name, ttl).await,
                    _ => store
                        .rw_lock(name.as_str())
                        .ttl(ttl)
                        .read()
                        .acquire()
                        .await
                        .unwrap(),
                });
            }
        }
        cluster.nodes()[0].pause().await.unwrap();
        tokio::time::sleep(ttl * 2).await;
        for guard in &held[0] {
            assert_eq!(guard.lost().await, Loss::Expired);
        }
        for guard in held[1..].iter().flatten() {
            assert!(guard.is_valid(), "{guard:?}");
            confirmed(guard).await.unwrap();
        }
        // Others are served there meanwhile, and at the node itself once it goes on.
        drop(patient(&store, &names[1][0], ttl).await);
        cluster.nodes()[0].resume().unwrap();
        let again = patient(&store, &names[0][1], ttl).await;
        assert!(again.fencing_token() > held[0][0].fencing_token());
    })
    .await;
}

#[tokio::test]
async fn a_node_that_forgets_takes_only_its_own_holds_along_and_tokens_rise() {
    bounded(async {
        let cluster = cluster(600, &[]).await;
        let (one, two, names) = (
            store(&cluster).await,
            store(&cluster).await,
            names(&cluster, 1).await,
        );
        let held = [
            patient(&one, &names[0][0], LONG).await,
            patient(&one, &names[1][0], LONG).await,
        ];
        cluster.nodes()[0].command(&["FLUSHALL"]).await.unwrap();
        let next = patient(&two, &names[0][0], LONG).await;
        assert!(next.fencing_token() > held[0].fencing_token());
        assert_eq!(
            confirmed(&held[0]).await.unwrap_err().loss(),
            Some(Loss::Gone)
        );
        confirmed(&held[1]).await.unwrap();
        confirmed(&next).await.unwrap();
    })
    .await;
}

/// A promoted replica lacks the last tokens of its primary, be it of a tenth of a second: the clock makes up for them.
#[tokio::test]
async fn tokens_rise_where_the_last_ones_are_missing() {
    bounded(async {
        let cluster = cluster(600, &[]).await;
        let store = Redis::connect(&format!("{}?timeout=10000", cluster.url()))
            .await
            .unwrap();
        for n in 0..20 {
            let [claim, next] = [fair("x"), fair("x")];
            let token = granted(&store, &claim).await.token.get();
            surely_released(&store, &claim).await;
            let owner = cluster
                .owner(cluster.slot("x").await.unwrap())
                .await
                .unwrap();
            let fences = cluster.nodes()[owner].keys("{}:f:*").await.unwrap();
            let back = (token - 50_000).to_string();
            cluster
                .command("x", &["SET", &fences[0], &back, "EX", "7200"])
                .await
                .unwrap();
            assert!(granted(&store, &next).await.token.get() > token, "{n}");
            surely_released(&store, &next).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_node_with_other_credentials_is_denied_and_named_and_no_secret_is_shown() {
    bounded(async {
        let cluster = cluster(600, &[]).await;
        let app = async |node: usize, words: &str| {
            let words: Vec<&str> = ["ACL", "SETUSER", "app"]
                .into_iter()
                .chain(words.split(' '))
                .collect();
            cluster.nodes()[node].command(&words).await.unwrap();
        };
        for node in 0..3 {
            app(node, "on >s3cret ~* &leasehold:* +@all").await;
        }
        let url = format!(
            "{}?timeout=8000",
            cluster.url().replace("://", "://app:s3cret@")
        );
        let store = Store::new(Redis::connect(&url).await.unwrap());
        let names = names(&cluster, 2).await;
        drop(patient(&store, &names[2][1], LONG).await);
        app(2, "<s3cret >another").await;
        let _ = cluster.nodes()[2]
            .command(&["CLIENT", "KILL", "USER", "app"])
            .await;
        // Whoever comes now, and whoever was there: by the node's address.
        let refused = |e: Error| {
            let text = format!("{e} {e:?}");
            assert!(
                e.kind() == ErrorKind::Denied && text.contains(cluster.nodes()[2].addr()),
                "{text}"
            );
            assert!(!text.contains("s3cret"), "{text}");
        };
        refused(Redis::connect(&url).await.unwrap_err());
        loop {
            match store
                .lock(names[2][0].as_str())
                .ttl(LONG)
                .try_acquire()
                .await
            {
                Err(e) if e.is_retryable() => sleep(20).await,
                other => break refused(other.unwrap_err()),
            }
        }
        // The others do what they did; and so does this one, once it takes the password.
        drop(patient(&store, &names[0][0], LONG).await);
        app(2, ">s3cret").await;
        until(async || {
            store
                .lock(names[2][0].as_str())
                .ttl(LONG)
                .try_acquire()
                .await
                .is_ok()
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn nodes_are_reached_by_the_names_that_the_cluster_gives_them() {
    for kind in ["hostname", "unknown-endpoint"] {
        bounded(async {
            let words = [
                "--cluster-announce-hostname",
                "localhost",
                "--cluster-preferred-endpoint-type",
                kind,
            ];
            let cluster = cluster(20, &words).await;
            // One is enough to find the others.
            let url = cluster.nodes()[1]
                .url()
                .replace("redis://", "redis+cluster://");
            let store = Store::new(connected(&format!("{url}?timeout=8000")).await);
            let names = names(&cluster, 1).await.concat();
            let mut held = Vec::new();
            for name in &names {
                held.push(patient(&store, name, LONG).await);
            }
            // Also where another node sends it.
            for (name, guard) in names.iter().zip(held) {
                let slot = cluster.slot(name).await.unwrap();
                let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
                cluster.move_slot(slot, to).await.unwrap();
                confirmed(&guard).await.unwrap();
                assert!(
                    store.lock(name.as_str()).try_acquire().await.is_err(),
                    "{kind}"
                );
            }
        })
        .await;
    }
}

/// A node that is gone takes the whole Cluster down, as it is shipped: nobody is granted anything, and clients go on when it is back.
#[tokio::test]
async fn a_cluster_that_is_down_is_unavailable_and_used_again_when_it_is_back() {
    bounded(async {
        let cluster = cluster(2, &[]).await;
        let (store, names) = (store(&cluster).await, names(&cluster, 1).await);
        let held = patient(&store, &names[0][0], LONG).await;
        cluster.nodes()[0].kill().await.unwrap();
        let error = loop {
            match store
                .lock(names[1][0].as_str())
                .ttl(LONG)
                .try_acquire()
                .await
            {
                Ok(guard) => drop(guard),
                Err(e)
                    if e.kind() == ErrorKind::Unavailable
                        && e.to_string().contains("cannot serve") =>
                {
                    break e;
                }
                Err(e) => assert!(e.is_retryable(), "{e:?}"),
            }
            sleep(50).await;
        };
        assert!(error.to_string().contains("slot"), "{error}");
        assert!(held.is_valid());
        cluster.nodes()[0].start_again().await.unwrap();
        for name in names[1..].iter().flatten() {
            drop(patient(&store, name, LONG).await);
        }
        // It keeps what it had on its disk.
        confirmed(&held).await.unwrap();
    })
    .await;
}

/// The short way of a renewal looks at one key, and extends exactly the hold that it was sent for.
#[tokio::test]
async fn only_the_hold_itself_is_extended() {
    bounded(async {
        let cluster = cluster(600, &[]).await;
        let store = Redis::connect(&format!("{}?timeout=10000", cluster.url()))
            .await
            .unwrap();
        let left = async || {
            cluster
                .command("x", &["PTTL", "x"])
                .await
                .unwrap()
                .integer()
                .unwrap()
        };
        let [holder, other] = [
            claim("x", WaitPolicy::Fair, LONG, "a"),
            claim("x", WaitPolicy::Fair, LONG, "b"),
        ];
        let token = granted(&store, &holder).await.token;
        for stranger in [
            lease(&other, token),
            lease(&holder, FencingToken::new(token.get() + 1)),
        ] {
            cluster
                .command("x", &["PEXPIRE", "x", "60000"])
                .await
                .unwrap();
            let said = store.renew(&[stranger]).await.unwrap();
            assert!(
                matches!(said[..], [Renewal::Lost(Loss::Gone)]) && left().await <= 60_000,
                "{said:?}"
            );
        }
        assert!(
            matches!(renewed(&store, &holder, token).await, Renewal::Renewed(_))
                && left().await > 60_000
        );
        // What ends by itself is extended no more.
        store.release_after(&holder, None, LONG).await.unwrap();
        cluster
            .command("x", &["PEXPIRE", "x", "60000"])
            .await
            .unwrap();
        assert!(matches!(
            renewed(&store, &holder, token).await,
            Renewal::Lost(Loss::Gone)
        ));
        assert!(left().await <= 60_000);
        // Nor is another tool's.
        cluster
            .command("x", &["SET", "x", "theirs", "PX", "60000"])
            .await
            .unwrap();
        assert!(matches!(
            renewed(&store, &holder, token).await,
            Renewal::Lost(Loss::Gone)
        ));
        assert!(left().await <= 60_000);
    })
    .await;
}
