//! Which Redis Cluster a node belongs to: hosts of two in one URL, nodes that are set up anew, and nodes that are all replaced.

use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Renewal};
use leasehold_core::{ErrorKind, Loss, Store};
use leasehold_redis::Redis;
use leasehold_testbed::{Proxy, RedisCluster, RedisClusterOptions, RedisOptions, Reply};

const LONG: Duration = Duration::from_secs(90);

/// Primaries with so many replicas each; none is taken for dead.
async fn cluster(primaries: usize, replicas: usize) -> RedisCluster {
    let node = RedisOptions {
        persistent: true,
        ..RedisOptions::default()
    };
    let options = RedisClusterOptions {
        primaries,
        replicas,
        node,
        node_timeout: Duration::from_secs(600),
        ..RedisClusterOptions::default()
    };
    RedisCluster::start(&options).await.unwrap()
}

fn url<'a>(nodes: impl IntoIterator<Item = &'a std::sync::Arc<Server>>) -> String {
    let addrs: Vec<&str> = nodes.into_iter().map(|node| node.addr()).collect();
    format!("redis+cluster://{}?timeout=8000", addrs.join(","))
}

async fn store(url: &str) -> Store {
    Store::new(connected(|| Redis::connect(url)).await)
}

/// A name in a slot of this node, the first from this number on.
async fn name_of(cluster: &RedisCluster, node: usize, from: usize) -> String {
    for n in from.. {
        let name = format!("name/{n}");
        let slot = cluster.slot(&name).await.unwrap();
        if cluster.owner(slot).await.unwrap() == node {
            return name;
        }
    }
    unreachable!()
}

/// Claims until the client knows that the node is none of its Cluster: it has heard that from the node, or from the others, which name
/// no node for these slots. It fails if that node grants.
async fn refused(store: &Store, name: &str) {
    loop {
        match store.lock(name).ttl(LONG).try_acquire().await {
            Ok(guard) => panic!("granted elsewhere: {guard:?}"),
            Err(e) if e.kind() == ErrorKind::OtherStore => return,
            Err(e) if e.to_string().contains("served by no node") => return,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
        sleep(10).await;
    }
}

/// Waits until no client listens to this node.
async fn is_left(node: &Server) {
    until(async || {
        let channels = ["PUBSUB", "CHANNELS", "leasehold:*"];
        let subscribed = node.command(&channels).await.unwrap();
        matches!(subscribed, Reply::Array(channels) if channels.is_empty())
    })
    .await;
}

/// The lock, whatever outages there are.
async fn patient(store: &Store, name: &str) -> leasehold_core::Guard {
    loop {
        match store.lock(name).ttl(LONG).acquire().await {
            Ok(guard) => return guard,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

/// This node serves all slots from now on, alone.
async fn serves_alone(node: &Server) {
    let all = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    node.command(&all).await.unwrap();
    until(async || {
        let info = node.command(&["CLUSTER", "INFO"]).await.unwrap();
        info.text().unwrap().contains("cluster_state:ok")
    })
    .await;
}

/// The node forgets its Cluster and its data, but not its id, in the midst of its work.
async fn reset(node: &Server) {
    node.command(&["FLUSHALL"]).await.unwrap();
    node.command(&["CLUSTER", "RESET", "SOFT"]).await.unwrap();
}

async fn keys(node: &Server) -> Vec<String> {
    node.keys("*").await.unwrap()
}

#[tokio::test]
async fn of_two_clusters_in_one_url_that_of_most_hosts_is_used_or_none() {
    bounded(async {
        let one = cluster(3, 0).await;
        let two = cluster(1, 0).await;
        let of_one = store(&one.url()).await;
        let id = of_one.identity().unwrap();
        let of_two = store(&two.url()).await;
        assert_ne!(of_two.identity().as_ref(), Some(&id));
        let (a, b, stranger) = (&one.nodes()[0], &one.nodes()[1], &two.nodes()[0]);
        let is_about = |text: &&String| text.contains("another Redis Cluster");
        // A host that a busy machine keeps silent is not compared.
        let most = loop {
            let most = store(&url([stranger, a, b])).await;
            let warnings = most.guarantees().warnings().to_vec();
            let about: Vec<&String> = warnings.iter().filter(is_about).collect();
            match &about[..] {
                [] => {}
                [one] => {
                    assert!(one.contains(stranger.addr()), "{one}");
                    break most;
                }
                _ => panic!("{about:?}"),
            }
        };
        assert_eq!(most.identity(), Some(id.clone()));
        let held = patient(&of_one, "x").await;
        assert!(most.lock("x").try_acquire().await.is_err());
        drop(held);

        // As many of the one as of the other.
        let tie = url([a, stranger]);
        let refused = loop {
            match Redis::connect(&tie).await {
                Err(e) => break e,
                Ok(one) => {
                    let warnings = one.guarantees().warnings().to_vec();
                    assert_eq!(warnings.iter().filter(is_about).count(), 0);
                }
            }
        };
        assert_eq!(refused.kind(), ErrorKind::OtherStore);
        for node in [a, stranger] {
            assert!(refused.to_string().contains(node.addr()), "{refused}");
        }
        // By the mark that the URL names, whichever answers first.
        let slow = Proxy::to(a.addr()).await.unwrap();
        slow.delay_replies(Duration::from_millis(20));
        // Two of three hosts are the stranger, and answer first.
        let most = url([stranger]).replace(
            '?',
            &format!(",localhost:{},{}?", stranger.port(), slow.addr()),
        );
        for mixed in [url([a, stranger]), url([stranger, a]), most] {
            let pinned = store(&format!("{mixed}&store={id}")).await;
            assert_eq!(pinned.identity(), Some(id.clone()));
        }
        let wrong = format!("{}&store={id}", url([stranger]));
        let refused = Redis::connect(&wrong).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OtherStore);
        assert!(refused.to_string().contains(id.as_str()), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn a_node_that_came_back_empty_as_a_cluster_of_its_own_grants_nothing() {
    for keeps_its_id in [false, true] {
        bounded(async {
            let cluster = cluster(3, 0).await;
            let all = url(cluster.nodes());
            let client = store(&all).await;
            let [taken, free] = [0, 100].map(|from| name_of(&cluster, 0, from));
            let (taken, free) = (taken.await, free.await);
            let elsewhere = name_of(&cluster, 1, 0).await;
            let held = patient(&client, &taken).await;
            let node = &cluster.nodes()[0];
            if keeps_its_id {
                reset(node).await;
                serves_alone(node).await;
                for kind in ["normal", "pubsub"] {
                    let _ = node.command(&["CLIENT", "KILL", "TYPE", kind]).await;
                }
            } else {
                node.restart_without_data().await.unwrap();
                serves_alone(node).await;
            }
            refused(&client, &free).await;
            // Nor does it do so to a program that starts now.
            let late = store(&all).await;
            refused(&late, &taken).await;
            assert_eq!(keys(node).await, Vec::<String>::new());
            // It ended no hold, and the others go on.
            assert!(held.is_valid());
            drop(patient(&late, &elsewhere).await);
            assert_eq!(late.identity(), client.identity());
        })
        .await;
    }
}

/// Connections to the node stay open, and it keeps its id, so that the others notice nothing. It serves no slot for a moment.
#[tokio::test]
async fn a_node_that_is_set_up_anew_under_open_connections_is_examined() {
    bounded(async {
        let cluster = cluster(3, 0).await;
        let client = store(&url(cluster.nodes())).await;
        let name = name_of(&cluster, 0, 0).await;
        drop(patient(&client, &name).await);
        let node = &cluster.nodes()[0];
        reset(node).await;
        let down = client.lock(name.as_str()).try_acquire().await.unwrap_err();
        assert_eq!(down.kind(), ErrorKind::Unavailable, "{down:?}");
        serves_alone(node).await;
        is_left(node).await;
        refused(&client, &name).await;
        assert_eq!(keys(node).await, Vec::<String>::new());
    })
    .await;
}

/// A hold that is gone is the sign, if nothing else was.
#[tokio::test]
async fn a_node_that_has_lost_a_hold_is_examined() {
    bounded(async {
        let cluster = cluster(3, 0).await;
        let all = url(cluster.nodes());
        let client = connected(|| Redis::connect(&all)).await;
        let hold = fair(&name_of(&cluster, 0, 0).await);
        let token = granted(&client, &hold).await.token;
        let node = &cluster.nodes()[0];
        reset(node).await;
        serves_alone(node).await;
        let said = renewed(&client, &hold, token).await;
        assert!(matches!(said, Renewal::Lost(Loss::Gone)), "{said:?}");
        is_left(node).await;
        refused(&Store::new(client), hold.name.as_str()).await;
    })
    .await;
}

/// Its only primary dies, and its replica takes over and forgets it: no node is known, and the mark is.
#[tokio::test]
async fn a_cluster_whose_nodes_were_all_replaced_is_recognized_by_its_mark() {
    bounded(async {
        let cluster = cluster(1, 1).await;
        let client = store(&url(cluster.nodes())).await;
        drop(patient(&client, "x").await);
        let [old, new] = [0, 1].map(|node| &cluster.nodes()[node]);
        let id = old.command(&["CLUSTER", "MYID"]).await.unwrap();
        until(async || keys(new).await.contains(&"{}:store".to_owned())).await;
        old.kill().await.unwrap();
        new.command(&["CLUSTER", "FAILOVER", "TAKEOVER"])
            .await
            .unwrap();
        let forget = ["CLUSTER", "FORGET", &id.text().unwrap()].map(str::to_owned);
        until(async || {
            let words: Vec<&str> = forget.iter().map(String::as_str).collect();
            new.command(&words).await.is_ok()
        })
        .await;
        drop(patient(&client, "x").await);
        assert_eq!(store(&url([new])).await.identity(), client.identity());
    })
    .await;
}

/// All texts in an answer.
fn texts(reply: &Reply) -> String {
    match reply {
        Reply::Array(all) => all.iter().map(|it| texts(it) + " ").collect(),
        one => one.text().unwrap_or_default(),
    }
}

async fn slots(node: &Server) -> String {
    texts(&node.command(&["CLUSTER", "SLOTS"]).await.unwrap())
}

/// The ids of the nodes of a Cluster with a primary and a replica, once the primary tells of both.
async fn ids_of_both(cluster: &RedisCluster) -> [String; 2] {
    let mut ids = Vec::new();
    for node in cluster.nodes() {
        let id = node.command(&["CLUSTER", "MYID"]).await.unwrap();
        ids.push(id.text().unwrap());
    }
    until(async || slots(&cluster.nodes()[0]).await.contains(&ids[1])).await;
    ids.try_into().unwrap()
}

/// A client that cannot read the mark has nothing else to go by.
#[tokio::test]
async fn a_takeover_does_not_lock_out_a_client_without_the_right_to_the_mark() {
    bounded(async {
        let cluster = cluster(1, 1).await;
        let [old, new] = [0, 1].map(|node| &cluster.nodes()[node]);
        for node in [old, new] {
            let rights = "on >pw ~x ~{x}:* ~{}:f:* &* +@all";
            let user = ["ACL", "SETUSER", "app"].into_iter();
            let words: Vec<&str> = user.chain(rights.split(' ')).collect();
            node.command(&words).await.unwrap();
        }
        ids_of_both(&cluster).await;
        let client = store(&url([old, new]).replace("://", "://app:pw@")).await;
        drop(patient(&client, "x").await);
        assert_eq!(client.identity(), None);
        let warnings = client.guarantees().warnings().to_vec();
        assert!(
            warnings.iter().any(|it| it.contains("{}:store")),
            "{warnings:?}"
        );
        old.kill().await.unwrap();
        new.command(&["CLUSTER", "FAILOVER", "TAKEOVER"])
            .await
            .unwrap();
        drop(patient(&client, "x").await);
    })
    .await;
}

/// A primary that hears nothing of a takeover tells an old map. Both hosts are of one Cluster, which only the mark shows.
#[tokio::test]
async fn hosts_with_an_old_and_a_new_map_are_of_one_cluster() {
    bounded(async {
        let cluster = cluster(1, 1).await;
        let [old, new] = [0, 1].map(|node| &cluster.nodes()[node]);
        let client = store(&url([old])).await;
        let [old_id, new_id] = ids_of_both(&cluster).await;
        until(async || keys(new).await.contains(&"{}:store".to_owned())).await;
        old.command(&["CLUSTER", "FORGET", &new_id]).await.unwrap();
        new.command(&["CLUSTER", "FAILOVER", "TAKEOVER"])
            .await
            .unwrap();
        // Neither tells of the other one.
        for (node, own, other) in [(old, &old_id, &new_id), (new, &new_id, &old_id)] {
            let slots = slots(node).await;
            assert!(slots.contains(own) && !slots.contains(other), "{slots}");
        }
        let late = store(&url([old, new])).await;
        assert_eq!(late.identity(), client.identity());
        let pinned = format!("{}&store={}", url([old, new]), client.identity().unwrap());
        let pinned = store(&pinned).await;
        for store in [&late, &pinned] {
            let warnings = store.guarantees().warnings().to_vec();
            let about = |text: &String| text.contains("another Redis Cluster");
            assert!(!warnings.iter().any(about), "{warnings:?}");
        }
    })
    .await;
}

/// It may be a node that was emptied, and nothing shows whether it is.
#[tokio::test]
async fn a_cluster_without_a_mark_is_refused_by_who_names_one() {
    bounded(async {
        let cluster = cluster(1, 0).await;
        let node = &cluster.nodes()[0];
        let pinned = format!("{}&store=redis-mine", url([node]));
        let refused = Redis::connect(&pinned).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OtherStore);
        let hint = refused.to_string();
        assert!(hint.contains("SET {}:store redis-mine"), "{hint}");
        assert_eq!(keys(node).await, Vec::<String>::new());
        node.command(&["SET", "{}:store", "redis-mine"])
            .await
            .unwrap();
        drop(patient(&store(&pinned).await, "x").await);
    })
    .await;
}
