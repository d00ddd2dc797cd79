//! The fencing token rises, whatever happens to the lock, its keys and its server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::time::Duration;

use leasehold_core::seam::{Backend, WaitPolicy};
use leasehold_redis::Redis;
use leasehold_testbed::RedisOptions;
use support::*;

/// One hold that ends as `end` says; the token.
async fn hold(store: &Redis, policy: WaitPolicy) -> u64 {
    let claim = claim("x", policy, TTL, "");
    let token = granted(store, &claim).await.token.get();
    store.release(&claim, None).await.unwrap();
    token
}

#[tokio::test]
async fn tokens_rise_across_every_end_of_a_hold() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let mut last = hold(&store, WaitPolicy::Fair).await;
        let mut rises = |token: u64, how: &str| {
            assert!(token > last, "{how}: {token} after {last}");
            last = token;
        };
        rises(hold(&store, WaitPolicy::Fast).await, "release");
        rises(hold(&store, WaitPolicy::Fast).await + 63, "a block");
        let short = claim("x", WaitPolicy::Fair, Duration::from_millis(100), "");
        rises(granted(&store, &short).await.token.get(), "a block's end");
        sleep(150).await;
        let evicted = fair("x");
        let token = granted(&store, &evicted).await.token;
        rises(token.get(), "expiry");
        assert!(store.evict(&"x".into(), token).await.unwrap());
        let deleted = fair("x");
        rises(granted(&store, &deleted).await.token.get(), "eviction");
        server.command(&["DEL", "x"]).await.unwrap();
        rises(hold(&store, WaitPolicy::Fair).await, "deletion of the lock");
        server.command(&["FLUSHALL"]).await.unwrap();
        rises(hold(&store, WaitPolicy::Fair).await, "deletion of everything");
    })
    .await;
}

#[tokio::test]
async fn tokens_rise_across_restarts_with_and_without_data() {
    bounded(async {
        for persistent in [true, false] {
            let options = RedisOptions { persistent, ..RedisOptions::default() };
            let server = Server::start_with(&options).await.unwrap();
            let before = hold(&client(&server).await, WaitPolicy::Fast).await;
            server.restart_with_data().await.unwrap();
            assert!(hold(&client(&server).await, WaitPolicy::Fair).await > before + 63);
        }
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_stepped_back_is_outlived_by_the_last_token() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        // As after a step back of an hour: the last token is an hour ahead of the clock.
        let ahead = hold(&store, WaitPolicy::Fair).await + 3_600_000_000;
        server.command(&["SET", "{x}:f", &ahead.to_string(), "PX", "7200000"]).await.unwrap();
        assert_eq!(hold(&store, WaitPolicy::Fair).await, ahead + 1);
        assert_eq!(hold(&store, WaitPolicy::Fast).await, ahead + 2);
        assert_eq!(hold(&store, WaitPolicy::Fair).await, ahead + 66);
        // It is kept until the clock has passed it, and two hours more.
        let left = number(&server, &["PTTL", "{x}:f"]).await;
        assert!((10_790_000..=10_801_000).contains(&left), "{left}");
    })
    .await;
}

#[tokio::test]
async fn the_token_of_one_hold_is_one() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let claim = claim("x", WaitPolicy::Fast, TTL, "");
        let first = granted(&store, &claim).await;
        for _ in 0..3 {
            renewed(&store, &claim, Some(first.token)).await;
            let again = granted(&store, &claim).await;
            assert_eq!((again.token, again.turns), (first.token, 64));
        }
    })
    .await;
}
