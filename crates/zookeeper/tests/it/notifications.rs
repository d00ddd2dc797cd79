//! What is noticed through a watch, and not by a retry or a renewal.

use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::{Backend, Moment};
use leasehold_core::{Loss, Store};

#[tokio::test]
async fn an_evicted_holder_is_notified_and_the_next_is_served() {
    limited(async {
        let server = server().await;
        let (a, b) = (store(&server).await, store(&server).await);
        let (kept, evicted) = (hold(&a, "kept", LONG).await, hold(&a, "a", LONG).await);
        let next = tokio::spawn(b.lock("a").ttl(LONG).acquire());
        let started = Moment::now();
        assert!(b.evict("a", evicted.fencing_token()).await.unwrap());
        assert_eq!(evicted.lost().await, Loss::Evicted);
        // A renewal would find it out after twenty seconds.
        assert!(Moment::now().since(started) < Duration::from_secs(10));
        let next = next.await.unwrap().unwrap();
        assert!(next.fencing_token() > evicted.fencing_token());
        assert!(!b.evict("a", evicted.fencing_token()).await.unwrap());
        // It works again, and the other hold is not affected.
        assert!(a.evict("a", next.fencing_token()).await.unwrap());
        assert_eq!(next.lost().await, Loss::Evicted);
        assert!(kept.is_valid());
    })
    .await;
}

#[tokio::test]
async fn the_nodes_of_a_session_are_created_again() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        let guard = hold(&store, "b", SHORT).await;
        assert!(
            guard.remaining() > SHORT / 2,
            "a new session gives a usable grant: {:?}",
            guard.remaining()
        );
        let raw = zookeeper_client::Client::connect(server.addr())
            .await
            .unwrap();
        for node in raw.list_children("/test/.leasehold").await.unwrap() {
            raw.delete(&format!("/test/.leasehold/{node}"), None)
                .await
                .unwrap();
        }
        tokio::time::sleep(SHORT * 2).await;
        assert!(guard.is_valid());
        // Two sessions, each of which watches two nodes.
        until(|| async { server.watch_count().await.unwrap() == 4 }).await;
        assert!(store.evict("b", guard.fencing_token()).await.unwrap());
        // A renewal may find it gone before the notification arrives.
        assert!(matches!(guard.lost().await, Loss::Evicted | Loss::Gone));
    })
    .await;
}

/// The client crate's own lock is an implementation of Curator's recipe that is not ours.
#[tokio::test]
async fn another_tool_s_lock_waits_for_ours() {
    limited(async {
        use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};
        let server = server().await;
        let store = store(&server).await;
        let guard = hold(&store, "a", LONG).await;
        let theirs = Client::connect(server.addr()).await.unwrap();
        let waits = tokio::spawn(async move {
            let container = CreateMode::Container.with_acls(Acls::anyone_all());
            let options = LockOptions::new(Acls::anyone_all())
                .with_ancestor_options(container)
                .unwrap();
            let prefix = LockPrefix::new_curator("/test/a", "lock-").unwrap();
            theirs
                .lock(prefix, b"127.0.0.1", options)
                .await
                .map(drop)
                .unwrap();
            theirs
        });
        until(|| async {
            store
                .lock("a")
                .inspect()
                .await
                .unwrap()
                .waiters
                .iter()
                .any(|waiter| waiter.foreign)
        })
        .await;
        assert!(!waits.is_finished());
        guard.release().await.unwrap();
        let _theirs = waits.await.unwrap();
        drop(hold(&store, "a", LONG).await);
    })
    .await;
}

/// Each change of the head is noticed far sooner than by the observer's own poll.
#[tokio::test]
async fn an_observer_is_notified_of_each_change_of_the_head() {
    limited(async {
        let server = server().await;
        let (client, other) = (client(&server).await, client(&server).await);
        let store = Store::new(client.clone());
        let mut seen = store.election("a").observe().await.unwrap();
        let mut late = 0;
        for _ in 0..6 {
            let claim = fair("a", LONG);
            for step in 0..2 {
                let started = Moment::now();
                if step == 0 {
                    granted(&other, &claim).await;
                } else {
                    other.release(&claim, None).await.unwrap();
                }
                seen.changed().await.unwrap();
                assert_eq!(seen.current().is_some(), step == 0);
                late += usize::from(Moment::now().since(started) > Duration::from_millis(500));
            }
        }
        assert!(late <= 3, "{late} of 12 changes were found by a poll");
        drop(seen);
        // Of each of three sessions: its notification node, and what raises tokens.
        until(|| async { server.watch_count().await.unwrap() == 6 }).await;
    })
    .await;
}
