//! What a node says of a refused request may repeat the request, and what it says of itself matters: no secret in an error, and
//! each node's set-up is asked.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::error::Error as _;
use std::fmt::{Debug, Write as _};

use common::*;
use leasehold_core::seam::{Backend, Claim, Renewal};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use leasehold_redlock::Redlock;
use leasehold_testbed::{Redis, RedisEcho, RedisOptions};

const CANARY: &str = "s3ntinel";

fn refused<T: Debug>(answer: Result<T>, claim: &Claim, verb: &str) -> String {
    let Err(e) = answer else { panic!("{verb}: {answer:?}") };
    let mut words = format!("{e} {e:?} {e:#?}");
    let mut source = e.source();
    while let Some(cause) = source {
        write!(words, " {cause} {cause:?}").unwrap();
        source = cause.source();
    }
    for secret in [CANARY, &claim.id.to_string()] {
        assert!(!words.contains(secret), "{verb}: {words}");
    }
    words
}

#[tokio::test]
async fn no_error_repeats_what_a_request_said() {
    bounded(async {
        for code in ["ERR", "NOPERM", "READONLY", "OOM", "WRONGTYPE", "X-s3ntinel"] {
            let mut servers = Vec::new();
            for _ in 0..3 {
                servers.push(RedisEcho::start(code, true).await.unwrap());
            }
            let addrs: Vec<&str> = servers.iter().map(RedisEcho::addr).collect();
            let url = format!("redlock://:{CANARY}@{}", addrs.join(","));
            let claim = fast("x");
            for verb in ["claim", "renew", "release", "release_after", "inspect", "list", "evict"] {
                let store = Redlock::connect(&url).await.unwrap();
                assert!(!format!("{store:?} {:?}", store.guarantees()).contains(CANARY));
                let words = match verb {
                    "claim" => refused(store.claim(&claim).await, &claim, verb),
                    "renew" => match renewed(&store, &claim, FencingToken::new(1)).await {
                        Renewal::Unknown(e) => refused(Err::<(), Error>(e), &claim, verb),
                        _ => addrs[0].to_owned(),
                    },
                    "release" => refused(store.release(&claim, None).await, &claim, verb),
                    "release_after" => refused(store.release_after(&claim, None, TTL).await, &claim, verb),
                    "inspect" => refused(store.inspect(&claim.name).await, &claim, verb),
                    "list" => refused(store.list("", None, 9).await, &claim, verb),
                    _ => refused(store.evict(&claim.name, FencingToken::new(7)).await, &claim, verb),
                };
                assert!(addrs.iter().any(|addr| words.contains(addr)), "{verb} names no node: {words}");
            }
        }
        let mut servers = Vec::new();
        for _ in 0..3 {
            servers.push(RedisEcho::start("ERR", false).await.unwrap());
        }
        let addrs: Vec<&str> = servers.iter().map(RedisEcho::addr).collect();
        let url = format!("redlock://app:{CANARY}@{}", addrs.join(","));
        refused(Redlock::connect(&url).await, &fast("x"), "connect");
    })
    .await;
}

async fn set_up(words: &[&str], persistent: bool) -> Redis {
    let extra = words.iter().map(|word| (*word).to_owned()).collect();
    let options = RedisOptions { persistent, extra, password: Some(CANARY.into()) };
    Redis::start_with(&options).await.unwrap()
}

#[tokio::test]
async fn each_node_is_asked_whether_it_may_forget_locks() {
    bounded(async {
        let good = set_up(&[], true).await;
        let second = set_up(&["--appendfsync", "everysec"], true).await;
        let forgets = set_up(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"], false).await;
        let url = format!("redlock://:{CANARY}@{},{},{}", good.addr(), second.addr(), forgets.addr());
        let warnings = Redlock::connect(&url).await.unwrap().guarantees().warnings;
        let about = |node: &Redis| warnings.iter().filter(|warning| warning.starts_with(node.addr())).count();
        assert_eq!((about(&good), about(&second), about(&forgets)), (0, 1, 2), "{warnings:?}");
        assert!(warnings.iter().any(|warning| warning.contains("appendfsync always")), "{warnings:?}");
        assert!(!format!("{warnings:?}").contains(CANARY));
    })
    .await;
}

#[tokio::test]
async fn a_node_that_cannot_be_used_is_named() {
    bounded(async {
        let nodes = Redis::start_many(2).await.unwrap();
        let extra = vec!["--cluster-enabled".into(), "yes".into()];
        let cluster = Redis::start_with(&RedisOptions { extra, ..RedisOptions::default() }).await.unwrap();
        let addrs = [nodes[0].addr(), nodes[1].addr(), cluster.addr()];
        let error = Redlock::connect(&url(addrs)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(cluster.addr()) && error.to_string().contains("Cluster"), "{error}");
        // What is no lock is an error, and not a free one.
        let nodes = Redis::start_many(3).await.unwrap();
        let store = client(&nodes).await;
        for node in &nodes {
            node.command(&["RPUSH", "x", "1"]).await.unwrap();
        }
        let error = store.inspect(&"x".into()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Internal && error.to_string().contains("delete it"), "{error}");
    })
    .await;
}
