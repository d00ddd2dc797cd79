//! What others see: the pushes word by word, and the last token of an idle lock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::time::Duration;

use leasehold_core::seam::{Backend, Moment, WaitPolicy};
use leasehold_redis::Redis;
use leasehold_redis::client::{AsyncConnectionConfig, Client, PushInfo, PushKind, Value};
use support::*;
use tokio::sync::mpsc;

/// Everything that is published to any client of the store.
async fn pushes(
    server: &Server,
) -> (leasehold_redis::client::aio::MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let client = Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    connection.psubscribe("leasehold:*").await.unwrap();
    (connection, receiver)
}

async fn next_push(pushes: &mut mpsc::UnboundedReceiver<PushInfo>) -> String {
    loop {
        let push = pushes.recv().await.unwrap();
        if let (PushKind::PMessage, [_, _, Value::BulkString(text)]) = (push.kind, &push.data[..])
            && !text.is_empty()
        {
            return String::from_utf8(text.clone()).unwrap();
        }
    }
}

#[tokio::test]
async fn a_push_carries_the_latest_attempt_that_the_place_grew_from() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let (_connection, mut pushes) = pushes(&server).await;
        let [holder, next] = [fair("a name"), claim("a name", WaitPolicy::Fast, Duration::from_millis(5000), "")];
        let token = granted(&store, &holder).await.token;
        waiting(&store, &next).await;
        let micros = || Moment::now().as_nanos() / 1000;
        for by in ["renewal", "claim"] {
            let before = micros();
            match by {
                "renewal" => drop(renewed(&store, &next, None).await),
                _ => drop(waiting(&store, &next).await),
            }
            let after = micros();
            let record = text(&server, &["HGET", "{a name}:w", &next.id.to_string()]).await.unwrap();
            let attempt: u64 = record.split(' ').nth(4).unwrap().parse().unwrap();
            assert!((before..=after).contains(&attempt), "{by}: {before} {attempt} {after}");
        }
        let before = micros();
        waiting(&store, &next).await;
        let after = micros();
        sleep(50).await;
        store.release(&holder, None).await.unwrap();
        let push = next_push(&mut pushes).await;
        let fields: Vec<&str> = push.splitn(7, ' ').collect();
        let [verb, id, new, turns, attempt, ttl, key] = fields[..] else { panic!("{push}") };
        assert_eq!((verb, id, turns, ttl, key), ("granted", next.id.to_string().as_str(), "64", "5000", "a name"));
        assert!((before..=after).contains(&attempt.parse().unwrap()));
        let grant = granted(&store, &next).await;
        assert!(grant.token > token && grant.token.to_string() == new);
        store.evict(&"a name".into(), grant.token).await.unwrap();
        assert_eq!(next_push(&mut pushes).await, format!("evicted {}", next.id));
    })
    .await;
}

/// The token of one hold.
async fn hold(store: &Redis, policy: WaitPolicy) -> u64 {
    let claim = claim("x", policy, TTL, "");
    let token = granted(store, &claim).await.token.get();
    store.release(&claim, None).await.unwrap();
    token
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
