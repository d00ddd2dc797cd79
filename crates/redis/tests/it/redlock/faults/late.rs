//! Requests that arrive late, and how a store is connected.

use std::time::Duration;

use futures_util::future::join;
use leasehold_core::ErrorKind;
use leasehold_core::backend::{Claimed, WaitPolicy};
use leasehold_redis::redlock::Redlock;
use leasehold_testbed::{Proxy, Redis, RedisOptions};

use super::*;

#[tokio::test]
async fn a_late_claim_leaves_nothing_that_outlives_one_ttl() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, proxies) = through(&nodes).await;
        let warm = fast("warm");
        granted(&store, &warm).await;
        given_back(&store, &warm).await;
        let late = claim(
            "x",
            leasehold_core::backend::Mode::Exclusive,
            WaitPolicy::Fast,
            Duration::from_millis(400),
        );
        let traps: Vec<_> = proxies
            .iter()
            .map(|proxy| proxy.hold_matching(late.id.to_string()))
            .collect();
        assert_eq!(kind(store.claim(&late).await), ErrorKind::Ambiguous);
        given_back(&store, &late).await;
        proxies.iter().for_each(Proxy::deliver_held);
        for trap in &traps {
            trap.done().await;
        }
        sleep(500).await;
        // A node may get it a little after it was delivered.
        within(5, until_held_on(&nodes, &late, 0)).await;
        granted(&store, &attempt("x")).await;
    })
    .await;
}

/// The release of an attempt that failed is held up on its way; the same claim is sent again and granted meanwhile.
#[tokio::test]
async fn a_late_release_of_an_earlier_attempt_ends_nothing() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, proxies) = through(&nodes).await;
        until_whole(&store, &nodes).await;
        // No release of before is on its way any more, which the trap would take for the one that it waits for.
        until_clean(&nodes.iter().collect::<Vec<_>>()).await;
        for node in &nodes[..2] {
            node.command(&["SET", "x", "other", "PX", "60000"])
                .await
                .unwrap();
        }
        let claim = fast("x");
        let trap = proxies[2].hold_matching("release");
        assert!(matches!(
            store.claim(&claim).await.unwrap(),
            Claimed::Waiting(_)
        ));
        while !trap.has_sprung() || value(&nodes[2], "x").await != Some(claim.id.to_string()) {
            sleep(10).await;
        }
        for node in &nodes[..2] {
            node.command(&["DEL", "x"]).await.unwrap();
        }
        let token = soon(&store, &claim).await.token;
        // A renewal reaches the node by a new connection, since the old one was silent, and counts it as one that holds.
        let id = claim.id.to_string();
        let record = || async {
            nodes[2]
                .command(&["HGET", "{x}:rh", &id])
                .await
                .unwrap()
                .text()
                .unwrap()
        };
        let attempt = async || {
            record()
                .await
                .split(' ')
                .nth(6)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        let first = attempt().await;
        while attempt().await == first {
            renewed(&store, &claim, token).await;
            sleep(20).await;
        }
        proxies[2].deliver_held();
        trap.done().await;
        // The server may have heard first that its sender has left: the same release once more, as it would arrive.
        let (script, sent) = (
            [BEGINNING, include_str!("../../../../src/redlock/node.lua")].concat(),
            first.to_string(),
        );
        let keys = keys_of("x");
        let args = [
            "release", &id, "2000", "x", "1", "nobody", "", &sent, "0", "0",
        ];
        let late = eval(&script, &keys, &args);
        nodes[2].command(&late).await.unwrap();
        assert_eq!(held_on(&nodes, &claim).await, 3);
        given_back(&store, &claim).await;
        until_clean(&nodes.iter().collect::<Vec<_>>()).await;
    })
    .await;
}

/// A node does not know the script of a try. It says so late: the try is decided and withdrawn by then, and the node knows the script from
/// another client. The try is not sent there once more, behind its withdrawal.
#[tokio::test]
async fn a_try_that_is_withdrawn_is_taught_to_no_node() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, proxies) = linked(&nodes, "?timeout=20000").await;
        let (other, held, tried) = (client(&nodes).await, fast("x"), attempt("x"));
        granted(&other, &held).await;
        until_held_on(&nodes, &held, 3).await;
        for command in [&["DEL", "x", "{x}:rh"][..], &["SCRIPT", "FLUSH"]] {
            nodes[2].command(command).await.unwrap();
        }
        let [undecided, unknown] =
            [0, 2].map(|nth| proxies[nth].hold_reply_matching(tried.id.to_string()));
        let meanwhile = async {
            undecided.sprung().await;
            unknown.sprung().await;
            let teaches = fast("y");
            granted(&other, &teaches).await;
            until_held_on(&nodes, &teaches, 3).await;
            proxies[0].deliver_held();
        };
        let (answer, ()) = join(store.claim(&tried), meanwhile).await;
        assert!(matches!(answer.unwrap(), Claimed::Busy(_)));
        proxies[2].deliver_held();
        unknown.done().await;
        let behind = fast("z");
        let token = granted(&store, &behind).await.token;
        until_held_on(&nodes, &behind, 3).await;
        renewed(&store, &behind, token).await;
        assert_eq!(value(&nodes[2], "x").await, None);
    })
    .await;
}

#[tokio::test]
async fn connecting_needs_a_majority_and_good_credentials() {
    bounded(async {
        let options = RedisOptions {
            password: Some("s3cret".into()),
            ..RedisOptions::default()
        };
        let nodes = Redis::start_many_with(3, &options).await.unwrap();
        let url = |password: &str| {
            let addrs: Vec<&str> = nodes.iter().map(|node| node.addr()).collect();
            format!("redlock://:{password}@{}?timeout=1000", addrs.join(","))
        };
        let error = Redlock::connect(&url("s3ntinel")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(!format!("{error} {error:?}").contains("s3ntinel"));
        nodes[1].kill().await.unwrap();
        let right = url("s3cret");
        let store = connected(|| Redlock::connect(&right)).await;
        assert!(!format!("{store:?}").contains("s3cret"));
        let claim = fast("x");
        granted(&store, &claim).await;
        // The one that was not there is used as soon as it is.
        nodes[1].start_again().await.unwrap();
        let token = granted(&store, &claim).await.token;
        while held_on(&nodes, &claim).await != 3 {
            renewed(&store, &claim, token).await;
            sleep(20).await;
        }
        for node in &nodes[..2] {
            node.kill().await.unwrap();
        }
        let start = clock();
        let error = Redlock::connect(&url("s3cret")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("2 of 3"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(3));
    })
    .await;
}
