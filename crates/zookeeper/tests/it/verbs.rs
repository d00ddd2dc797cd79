//! What the conformance suite cannot see of the verbs: ZooKeeper's nodes, sessions and connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::{Backend, Claimed, Mode};
use leasehold_core::{ErrorKind, FencingToken};
use zookeeper_client::{Acls, Client, CreateMode};

#[tokio::test]
async fn contention_says_who_holds_since_when_and_how_many_wait() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let first = granted(&a, &fair("a", LONG)).await;
        for before in 0..3 {
            let who = waiting(&b, &fair("a", LONG)).await.who;
            assert_eq!(who.waiters, Some(before));
            if before == 0 {
                assert_eq!(
                    (who.label.as_deref(), who.token, who.foreign),
                    (Some("label of a"), Some(first.token), false)
                );
            }
        }
        let who = busy(&b, &trying("a", LONG)).await;
        assert_eq!(
            (who.label.as_deref(), who.token, who.waiters),
            (Some("label of a"), Some(first.token), Some(3))
        );
        assert!(who.held_for.is_some());
    })
    .await;
}

#[tokio::test]
async fn junk_beside_the_entries_is_ignored() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let raw = Client::connect(server.addr()).await.unwrap();
        let claim = fair("a", LONG);
        let grant = granted(&client, &claim).await;
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        for junk in ["0", "junk", "lock-", "_c_-lock-x"] {
            raw.create(&format!("/test/a/{junk}"), b"\xff", &persistent)
                .await
                .unwrap();
        }
        release(&client, &claim, &grant.place).await;
        let next = granted(&client, &fair("a", LONG)).await;
        assert!(next.token > grant.token);
        assert_eq!(client.inspect(&claim.name).await.unwrap().holders.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn an_old_style_parent_and_a_deleted_one_do_no_harm() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let raw = Client::connect(server.addr()).await.unwrap();
        raw.mkdir(
            "/test/old",
            &CreateMode::Persistent.with_acls(Acls::anyone_all()),
        )
        .await
        .unwrap();
        let mut last = FencingToken::new(0);
        for name in ["old", "new", "old", "new"] {
            let claim = fair(name, LONG);
            let grant = granted(&client, &claim).await;
            assert!(grant.token > last);
            last = grant.token;
            release(&client, &claim, &grant.place).await;
            // Its numbers begin again. One that its first user created is gone already.
            let deleted = raw.delete(&format!("/test/{name}"), None).await;
            assert!(
                matches!(deleted, Ok(()) | Err(zookeeper_client::Error::NoNode)),
                "{deleted:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_closed_client_leaves_nothing_and_says_so() {
    limited(async {
        let server = server().await;
        let (client, other) = (client(&server).await, client(&server).await);
        let claim = fair("a", LONG);
        granted(&client, &claim).await;
        waiting(&client, &fair("a", SHORT)).await;
        client.close().await.unwrap();
        until_entries(&server, 0, 1).await;
        assert_eq!(
            client.claim(&claim).await.unwrap_err().kind(),
            ErrorKind::Closed
        );
        assert!(matches!(
            other.claim(&claim).await.unwrap(),
            Claimed::Granted(_)
        ));
        drop(other);
        until(|| async { server.ephemerals_count().await.unwrap() == 0 }).await;
        assert_eq!(server.watch_count().await.unwrap(), 0);
        assert_eq!(server.connection_count().await.unwrap(), 0);
    })
    .await;
}

/// A downgrade is in the data of its node alone: evictions and tries must read it.
#[tokio::test]
async fn a_reader_beside_a_downgraded_hold_is_evicted_and_a_try_gets_in() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let (mut writer, reader) = (of_mode(Mode::Exclusive, "a"), of_mode(Mode::Shared, "a"));
        let grant = granted(&a, &writer).await;
        waiting(&b, &reader).await;
        writer.mode = Mode::Shared;
        assert_eq!(granted(&a, &writer).await.token, grant.token);
        let beside = granted(&b, &reader).await;
        assert!(a.evict(&writer.name, beside.token).await.unwrap());
        let mut attempt = trying("a", LONG);
        attempt.mode = Mode::Shared;
        granted(&b, &attempt).await;
        b.release(&attempt, None).await.unwrap();
        release(&a, &writer, &grant.place).await;
        until_entries(&server, 0, 4).await;
        until(|| async { server.watch_count().await.unwrap() == 4 }).await;
    })
    .await;
}

/// More permits than are watched one by one.
#[tokio::test]
async fn of_twelve_permits_never_more_are_held_and_none_is_lost() {
    const PERMITS: u32 = 12;
    limited(async {
        let server = server().await;
        let held = Arc::new(AtomicU32::new(0));
        let mut tasks = Vec::new();
        for i in 0..16_u32 {
            let (store, held, n) = (store(&server).await, held.clone(), 1 + i % 2);
            tasks.push(tokio::spawn(async move {
                for _ in 0..4 {
                    let permit = store
                        .semaphore("a", PERMITS)
                        .permits(n)
                        .ttl(LONG)
                        .acquire()
                        .await
                        .unwrap();
                    assert!(held.fetch_add(n, Ordering::SeqCst) + n <= PERMITS);
                    tokio::time::sleep(Duration::from_millis(u64::from(i % 3))).await;
                    held.fetch_sub(n, Ordering::SeqCst);
                    permit.release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    })
    .await;
}
