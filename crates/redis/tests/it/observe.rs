//! Observing: changes of a holder and of its label are notified while there is an observer, and after a broken connection.

use std::time::{Duration, Instant};

use crate::support::*;
use leasehold_core::{Observer, Store};

const CHANNEL: &str = "leasehold:name:x";

async fn store(server: &Server) -> Store {
    Store::new(client(server).await)
}

/// How many connections listen to the changes of `x`.
async fn listeners(server: &Server) -> i64 {
    let answer = server
        .command(&["PUBSUB", "NUMSUB", CHANNEL])
        .await
        .unwrap();
    let leasehold_testbed::Reply::Array(answer) = answer else {
        panic!("{answer:?}")
    };
    answer[1].integer().unwrap()
}

async fn until_listeners(server: &Server, n: i64) {
    while listeners(server).await != n {
        sleep(5).await;
    }
}

fn value(observer: &Observer) -> Option<&str> {
    observer.current().map(|leader| leader.value.as_str())
}

#[allow(clippy::disallowed_methods)]
fn clock() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn each_change_is_told() {
    bounded(async {
        let server = server().await;
        let (one, two) = (store(&server).await, store(&server).await);
        let mut observer = two.election("x").observe().await.unwrap();
        until_listeners(&server, 1).await;
        assert_eq!(value(&observer), None);
        let start = clock();
        let mut changes = 0;
        for round in 0..4 {
            let leadership = one.election("x").campaign("a").await.unwrap();
            observer.changed().await.unwrap();
            assert_eq!(value(&observer), Some("a"));
            let new = format!("{round} \u{1F512} {}", "long".repeat(1000));
            leadership.proclaim(new.clone()).await.unwrap();
            observer.changed().await.unwrap();
            assert_eq!(value(&observer), Some(new.as_str()));
            leadership.resign().await.unwrap();
            observer.changed().await.unwrap();
            assert_eq!(value(&observer), None);
            changes += 3;
        }
        // A deaf observer looks once a second.
        assert!(
            start.elapsed() < Duration::from_secs(changes / 2),
            "{:?}",
            start.elapsed()
        );
    })
    .await;
}

#[tokio::test]
async fn the_server_is_asked_to_tell_only_while_somebody_listens() {
    bounded(async {
        let server = server().await;
        let store = store(&server).await;
        assert_eq!(listeners(&server).await, 0);
        let [one, two] = [
            store.election("x").observe().await.unwrap(),
            store.election("x").observe().await.unwrap(),
        ];
        let other = store.election("y").observe().await.unwrap();
        until_listeners(&server, 1).await;
        drop((one, other));
        until_alone_in(&server, "leasehold:name:y").await;
        assert_eq!(listeners(&server).await, 1);
        drop(two);
        until_listeners(&server, 0).await;
        // It still hears its own pushes.
        let held = store.lock("z").ttl(TTL).acquire().await.unwrap();
        let waiter = tokio::spawn(store.lock("z").ttl(TTL).acquire());
        while in_line(&server, "z").await == 0 {
            sleep(1).await;
        }
        held.release().await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(3), waiter)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(next.is_valid());
    })
    .await;
}

async fn until_alone_in(server: &Server, channel: &str) {
    while text(server, &["PUBSUB", "CHANNELS", channel])
        .await
        .is_some_and(|found| !found.is_empty())
    {
        sleep(5).await;
    }
}

#[tokio::test]
async fn it_listens_again_after_a_broken_connection() {
    bounded(async {
        let server = server().await;
        let (one, two) = (store(&server).await, store(&server).await);
        let mut observer = two.election("x").observe().await.unwrap();
        until_listeners(&server, 1).await;
        server
            .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
            .await
            .unwrap();
        until_listeners(&server, 1).await;
        let leadership = loop {
            match one.election("x").try_campaign("a").await {
                Ok(leadership) => break leadership,
                Err(_) => sleep(10).await,
            }
        };
        observer.changed().await.unwrap();
        assert_eq!(value(&observer), Some("a"));
        leadership.resign().await.unwrap();
    })
    .await;
}
