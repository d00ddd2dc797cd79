//! A Redis Cluster: where the keys are, what is refused, and slots that move under those who hold and wait.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Renewal};
use leasehold_core::{ErrorKind, Fencing, Store};
use leasehold_redis::client::IntoConnectionInfo;
use leasehold_redis::{Config, Redis};
use leasehold_testbed::{RedisCluster, RedisClusterOptions, RedisOptions, Reply};

async fn cluster() -> RedisCluster {
    with(RedisOptions::default()).await
}

async fn with(node: RedisOptions) -> RedisCluster {
    RedisCluster::start(&RedisClusterOptions {
        replicas: 0,
        node,
        ..RedisClusterOptions::default()
    })
    .await
    .unwrap()
}

/// With a limit that a busy machine keeps.
async fn connect(cluster: &RedisCluster) -> Redis {
    Redis::connect(&format!("{}?timeout=10000", cluster.url()))
        .await
        .unwrap()
}

/// The slot of a name, its node, and another one.
async fn home(cluster: &RedisCluster, name: &str) -> (u16, usize, usize) {
    let slot = cluster.slot(name).await.unwrap();
    let owner = cluster.owner(slot).await.unwrap();
    (slot, owner, (owner + 1) % 3)
}

async fn keys(cluster: &RedisCluster, node: usize) -> BTreeSet<String> {
    cluster.nodes()[node]
        .keys("*")
        .await
        .unwrap()
        .into_iter()
        .collect()
}

#[tokio::test]
async fn a_name_has_its_keys_in_one_slot_and_each_slot_a_fence() {
    bounded(async {
        let cluster = cluster().await;
        let store = connect(&cluster).await;
        let mut last = 0;
        for n in 0..30 {
            let [holder, next] = [fair(&format!("job/{n}")), fair(&format!("job/{n}"))];
            last = granted(&store, &holder).await.token.get().max(last);
            waiting(&store, &next).await;
        }
        let mut fences = 0;
        for node in 0..3 {
            let keys = keys(&cluster, node).await;
            for key in &keys {
                assert_eq!(
                    cluster
                        .owner(cluster.slot(key).await.unwrap())
                        .await
                        .unwrap(),
                    node,
                    "{key}"
                );
            }
            let held = keys.iter().filter(|key| key.starts_with("job/")).count();
            assert!(
                held > 0 && keys.iter().filter(|key| key.ends_with(":l")).count() == held,
                "{keys:?}"
            );
            fences += keys.iter().filter(|key| key.starts_with("{}:f:")).count();
        }
        assert!((25..=30).contains(&fences), "{fences}");
        // All primaries are walked, and every name is found by whoever asks.
        let names = store.list("job/", None, 100).await.unwrap();
        assert_eq!(names.len(), 30);
        assert_eq!(
            store.list("job/", Some(&names[3]), 5).await.unwrap(),
            names[4..9]
        );
        let other = connect(&cluster).await;
        for name in &names {
            let queue = other.inspect(name).await.unwrap();
            assert_eq!((queue.holders.len(), queue.waiters.len()), (1, 1));
            assert!(
                other
                    .evict(name, queue.holders[0].token.unwrap())
                    .await
                    .unwrap()
            );
        }
    })
    .await;
}

#[tokio::test]
async fn what_it_can_and_cannot_do_is_said() {
    bounded(async {
        let cluster = cluster().await;
        let store = connect(&cluster).await;
        let said = store.guarantees();
        assert_eq!(
            (said.atomic_multi(), said.fencing()),
            (1, Fencing::SurvivesDataLoss)
        );
        assert!(said.notes().contains("slot"), "{}", said.notes());
        assert_eq!(
            kind(store.claim_all(&[fair("a"), fair("b")]).await),
            ErrorKind::Unsupported
        );
        // Of each node, and its address with it: none has a replica here.
        for node in cluster.nodes() {
            let alone = |text: &&String| {
                text.starts_with(node.addr()) && text.contains("no replica follows it")
            };
            assert_eq!(
                said.warnings().iter().filter(alone).count(),
                1,
                "{:?}",
                said.warnings()
            );
        }
        let store = Store::new(store);
        let both = store
            .multi_lock(["a", "b", "c", "d"])
            .ttl(TTL)
            .acquire()
            .await
            .unwrap();
        assert!(both.is_valid() && store.lock("c").try_acquire().await.is_err());
        both.release().await.unwrap();
        store
            .lock("c")
            .try_acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_is_no_cluster_or_is_one_is_refused_by_its_address() {
    bounded(async {
        let (single, cluster) = (server().await, cluster().await);
        let node = &cluster.nodes()[1];
        for (url, kind, parts) in [
            (
                format!("redis+cluster://{}", single.addr()),
                ErrorKind::Unsupported,
                ["no node of a Cluster", single.addr()],
            ),
            (
                node.url(),
                ErrorKind::Unsupported,
                ["redis+cluster://", node.addr()],
            ),
            (
                "redis+cluster://127.0.0.1:1".to_owned(),
                ErrorKind::Unavailable,
                ["127.0.0.1:1", "refused"],
            ),
            (
                format!("redis+cluster://{}/1", node.addr()),
                ErrorKind::Invalid,
                ["one database", "0"],
            ),
            (
                format!("redis+cluster://{}?min_replicas=1", node.addr()),
                ErrorKind::Unsupported,
                ["min_replicas", "Cluster"],
            ),
            (
                "redis+cluster://".to_owned(),
                ErrorKind::Invalid,
                ["host", "URL"],
            ),
        ] {
            let error = Redis::connect(&url).await.unwrap_err();
            let text = error.to_string();
            assert!(
                error.kind() == kind && parts.iter().all(|part| text.contains(part)),
                "{url}: {error:?}"
            );
        }
        assert!(Config::cluster(Vec::new()).is_err());
        // One that is down does no harm beside one that is not; a cluster is also named without a URL.
        let url = format!("redis+cluster://127.0.0.1:1,{}", node.addr());
        granted(&Redis::connect(&url).await.unwrap(), &fair("x")).await;
        let config = Config::cluster(vec![node.url().into_connection_info().unwrap()]).unwrap();
        granted(&Redis::with_config(config).await.unwrap(), &fair("y")).await;
    })
    .await;
}

#[tokio::test]
async fn a_slot_that_nobody_serves_is_unavailable_and_named() {
    bounded(async {
        let extra = ["--cluster-require-full-coverage", "no"]
            .map(str::to_owned)
            .to_vec();
        let cluster = with(RedisOptions {
            extra,
            ..RedisOptions::default()
        })
        .await;
        let (slot, owner, _) = home(&cluster, "x").await;
        let store = connect(&cluster).await;
        granted(&store, &fair("x")).await;
        cluster.nodes()[owner]
            .command(&["CLUSTER", "DELSLOTS", &slot.to_string()])
            .await
            .unwrap();
        for node in cluster.nodes() {
            // One that has heard of it refuses.
            let _ = node
                .command(&["CLUSTER", "DELSLOTS", &slot.to_string()])
                .await;
        }
        until(async || cluster.owner(slot).await.is_err()).await;
        let started = tokio::time::Instant::now();
        let error = store.claim(&fair("x")).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.to_string().contains(&slot.to_string()),
            "{error}"
        );
        // Also to whoever comes now, and with the way to look at it.
        let late = connect(&cluster).await;
        // A node that has not heard of it yet says something else.
        until(async || {
            let error = late.claim(&fair("x")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            error.to_string().contains("--cluster check")
        })
        .await;
        assert!(started.elapsed() < Duration::from_secs(30));
        assert!(
            late.guarantees()
                .warnings()
                .iter()
                .any(|text| text.contains("1 slots"))
        );
        // Other names are as before.
        granted(&late, &fair("another")).await;
        cluster.nodes()[owner]
            .command(&["CLUSTER", "ADDSLOTS", &slot.to_string()])
            .await
            .unwrap();
        until(async || store.claim(&fair("x")).await.is_ok()).await;
    })
    .await;
}

#[tokio::test]
async fn a_slot_moves_with_its_holders_its_waiters_and_its_tokens() {
    bounded(async {
        let cluster = cluster().await;
        let (slot, _, to) = home(&cluster, "x").await;
        let (one, two) = (connect(&cluster).await, connect(&cluster).await);
        let [holder, next, reader] = [fair("x"), fair("x"), as_mode(&fair("x"), SHARED)];
        let token = granted(&one, &holder).await.token;
        waiting(&two, &next).await;
        waiting(&one, &reader).await;
        // The last token of the slot is far above the clock of every node: it moves with it.
        let fence = keys(&cluster, home(&cluster, "x").await.1)
            .await
            .into_iter()
            .find(|key| key.starts_with("{}:f:"));
        let (fence, ahead) = (fence.unwrap(), token.get() + 3_600_000_000);
        cluster
            .command("x", &["SET", &fence, &ahead.to_string()])
            .await
            .unwrap();
        cluster.move_slot(slot, to).await.unwrap();
        assert_eq!(home(&cluster, "x").await.1, to);
        // Each is asked for where it is now.
        assert!(matches!(
            renewed(&one, &holder, token).await,
            Renewal::Renewed(_)
        ));
        assert!(matches!(
            renewed(&two, &next, None).await,
            Renewal::Renewed(_)
        ));
        one.release(&holder, None).await.unwrap();
        let after = granted(&two, &next).await.token;
        assert!(after.get() > ahead, "{after} after {ahead}");
        two.release(&next, None).await.unwrap();
        assert!(granted(&one, &reader).await.token > after);
        one.release(&reader, None).await.unwrap();
        let rest: Vec<_> = keys(&cluster, to)
            .await
            .into_iter()
            .filter(|key| !key.starts_with("{}:f:"))
            .collect();
        assert!(rest.is_empty(), "{rest:?}");
    })
    .await;
}

#[tokio::test]
async fn while_a_slot_is_moved_holds_live_and_all_else_waits_whole() {
    bounded(async {
        let cluster = cluster().await;
        let (slot, owner, to) = home(&cluster, "x").await;
        let store = connect(&cluster).await;
        let (holder, next) = (fair("x"), fair("x"));
        let token = granted(&store, &holder).await.token;
        waiting(&store, &next).await;
        cluster.open_slot(slot, to).await.unwrap();
        // Its keys go one after the other: a script that ran would find some of them, and stop in its midst.
        let queue = [
            "MIGRATE",
            "127.0.0.1",
            &cluster.nodes()[to].port().to_string(),
            "{x}:l",
            "0",
            "5000",
        ];
        cluster.nodes()[owner].command(&queue).await.unwrap();
        for moved in 0..2 {
            let wait = |error: leasehold_core::Error| {
                assert!(
                    error.kind() == ErrorKind::Unavailable && error.is_retryable(),
                    "{moved}: {error:?}"
                );
            };
            wait(store.release(&holder, None).await.unwrap_err());
            wait(store.claim(&fair("x")).await.unwrap_err());
            wait(store.inspect(&"x".into()).await.unwrap_err());
            assert!(matches!(
                renewed(&store, &next, None).await,
                Renewal::Unknown(_)
            ));
            // The hold itself is one key, and always somewhere.
            assert!(
                matches!(renewed(&store, &holder, token).await, Renewal::Renewed(_)),
                "{moved}"
            );
            while cluster.move_keys(slot, to, 10).await.unwrap() > 0 {}
        }
        cluster.close_slot(slot, to).await.unwrap();
        // Nothing was lost, and nothing was done twice.
        store.release(&holder, None).await.unwrap();
        assert!(granted(&store, &next).await.token > token);
        store.release(&next, None).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn many_renewals_go_to_their_nodes_side_by_side() {
    bounded(async {
        let cluster = cluster().await;
        let store = connect(&cluster).await;
        let claims: Vec<_> = (0..90).map(|n| fair(&format!("held/{n}"))).collect();
        let mut leases = Vec::new();
        for (n, claim) in claims.iter().enumerate() {
            let claim = if n % 3 == 0 {
                as_mode(claim, SHARED)
            } else {
                claim.clone()
            };
            let token = granted(&store, &claim).await.token;
            leases.push(lease(&claim, token));
        }
        // One is gone, one waits, and one has moved.
        cluster.command("held/1", &["DEL", "held/1"]).await.unwrap();
        let waiter = fair("held/2");
        waiting(&store, &waiter).await;
        leases.push(lease(&waiter, None));
        let (slot, _, to) = home(&cluster, "held/4").await;
        cluster.move_slot(slot, to).await.unwrap();
        let renewals = store.renew(&leases).await.unwrap();
        assert_eq!(renewals.len(), 91);
        for (n, renewal) in renewals.iter().enumerate() {
            match (n, renewal) {
                (1, Renewal::Lost(_)) => {}
                (n, Renewal::Renewed(_)) if n != 1 => {}
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_waiter_is_served_wherever_its_slot_goes() {
    bounded(async {
        let cluster = cluster().await;
        let store = Store::new(connect(&cluster).await);
        let (slot, owner, to) = home(&cluster, "x").await;
        let ttl = Duration::from_secs(90);
        let held = store.lock("x").ttl(ttl).acquire().await.unwrap();
        let waiter = tokio::spawn(store.lock("x").ttl(ttl).acquire());
        until(async || {
            let waiters = cluster.command("x", &["HGET", "{x}:l", "n"]).await.unwrap();
            waiters != Reply::Nil
        })
        .await;
        cluster.move_slot(slot, to).await.unwrap();
        held.confirm().await.unwrap();
        let token = held.fencing_token();
        held.release().await.unwrap();
        let guard = tokio::time::timeout(Duration::from_secs(30), waiter)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(guard.fencing_token() > token && guard.is_valid());
        // And back.
        cluster.move_slot(slot, owner).await.unwrap();
        guard.confirm().await.unwrap();
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_observer_hears_of_a_name_wherever_it_goes() {
    bounded(async {
        let cluster = cluster().await;
        let (slot, _, to) = home(&cluster, "x").await;
        let store = Store::new(connect(&cluster).await);
        let election = store.election("x").ttl(TTL);
        let mut observer = store.election("x").observe().await.unwrap();
        let leader = election.campaign("one").await.unwrap();
        until_led(&mut observer, "one").await;
        cluster.move_slot(slot, to).await.unwrap();
        leader.proclaim("two").await.unwrap();
        until_led(&mut observer, "two").await;
        leader.resign().await.unwrap();
    })
    .await;
}

async fn until_led(observer: &mut leasehold_core::Observer, value: &str) {
    while observer
        .current()
        .is_none_or(|leader| leader.value != value)
    {
        observer.changed().await.unwrap();
    }
}
