//! Waiting and losing, as a user sees it: through core's engine, which gets the notifications.

mod common;

use std::time::Duration;

use common::*;
use leasehold_core::seam::{Backend, Moment};
use leasehold_core::{Loss, Store};

#[tokio::test]
async fn a_release_hands_over_at_once_and_in_order() {
    limited(async {
        let server = server().await;
        let mut stores = Vec::new();
        for _ in 0..3 {
            stores.push(store(&server).await);
        }
        let watcher = client(&server).await;
        let mut guard = hold(&stores[0], "a", LONG).await;
        let mut tasks = Vec::new();
        for i in 0..6 {
            let store = stores[i % 3].clone();
            tasks.push(tokio::spawn(async move { (hold(&store, "a", LONG).await, Moment::now()) }));
            until(|| async { watcher.inspect(&"a".into()).await.unwrap().waiters.len() == i + 1 }).await;
        }
        let mut gaps = Vec::new();
        for task in tasks {
            let (token, released) = (guard.fencing_token(), Moment::now());
            guard.release().await.unwrap();
            let (next, at) = task.await.unwrap();
            assert!(next.fencing_token() > token);
            gaps.push(at.since(released));
            guard = next;
        }
        gaps.sort();
        assert!(gaps[3] < Duration::from_millis(100), "{gaps:?}");
        guard.release().await.unwrap();
        until_entries(&server, 0, 7).await;
    })
    .await;
}

#[tokio::test]
async fn a_dead_waiter_is_skipped_at_the_head_and_in_the_middle() {
    limited(async {
        let server = server().await;
        let (a, b, c) = (store(&server).await, store(&server).await, store(&server).await);
        let watcher = client(&server).await;
        let queued = |n: usize| {
            let watcher = &watcher;
            until(move || async move { watcher.inspect(&"a".into()).await.unwrap().waiters.len() == n })
        };
        let wait = |store: &Store| {
            let store = store.clone();
            tokio::spawn(async move { hold(&store, "a", LONG).await })
        };
        let guard = hold(&a, "a", LONG).await;
        let first = wait(&b);
        queued(1).await;
        let second = wait(&a);
        queued(2).await;
        let third = wait(&b);
        queued(3).await;
        let fourth = wait(&c);
        queued(4).await;
        first.abort(); // the head of the waiters
        third.abort(); // one in the middle
        queued(2).await;
        guard.release().await.unwrap();
        let guard = second.await.unwrap();
        assert!(!fourth.is_finished());
        guard.release().await.unwrap();
        let guard = fourth.await.unwrap();
        guard.release().await.unwrap();
        // The death of a whole client frees what it holds.
        let guard = hold(&b, "a", LONG).await;
        let next = wait(&c);
        queued(1).await;
        drop((guard, b));
        drop(next.await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn an_evicted_holder_hears_it_and_the_next_is_served() {
    limited(async {
        let server = server().await;
        let (a, b) = (store(&server).await, store(&server).await);
        let (kept, evicted) = (hold(&a, "kept", LONG).await, hold(&a, "a", LONG).await);
        let next = tokio::spawn({
            let b = b.clone();
            async move { hold(&b, "a", LONG).await }
        });
        let started = Moment::now();
        assert!(b.evict("a", evicted.fencing_token()).await.unwrap());
        assert_eq!(evicted.lost().await, Loss::Evicted);
        assert!(Moment::now().since(started) < Duration::from_secs(2));
        let next = next.await.unwrap();
        assert!(next.fencing_token() > evicted.fencing_token());
        assert!(!b.evict("a", evicted.fencing_token()).await.unwrap());
        // Notifications work again, and no other session was meant.
        assert!(a.evict("a", next.fencing_token()).await.unwrap());
        assert_eq!(next.lost().await, Loss::Evicted);
        assert!(kept.is_valid());
    })
    .await;
}

#[tokio::test]
async fn what_is_removed_by_hand_is_lost_within_a_renewal() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        let guard = hold(&store, "a", SHORT).await;
        let raw = zookeeper_client::Client::connect(server.addr()).await.unwrap();
        for node in raw.list_children("/test/a").await.unwrap() {
            raw.delete(&format!("/test/a/{node}"), None).await.unwrap();
        }
        assert_eq!(guard.lost().await, Loss::Gone);
        // And what the session writes to and hears by is made again.
        let other = hold(&store, "b", SHORT).await;
        for node in raw.list_children("/test/.leasehold").await.unwrap() {
            raw.delete(&format!("/test/.leasehold/{node}"), None).await.unwrap();
        }
        tokio::time::sleep(SHORT * 2).await;
        assert!(other.is_valid());
        until(|| async { server.watch_count().await.unwrap() == 2 }).await;
        assert!(store.evict("b", other.fencing_token()).await.unwrap());
        // A renewal may find it gone before the notification comes.
        assert!(matches!(other.lost().await, Loss::Evicted | Loss::Gone));
    })
    .await;
}

#[tokio::test]
async fn a_hold_stays_valid_and_a_new_session_gives_a_usable_grant_at_once() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        let guard = hold(&store, "a", SHORT).await;
        assert!(guard.remaining() > SHORT / 2, "{:?}", guard.remaining());
        let mut least = guard.remaining();
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            least = least.min(guard.remaining());
        }
        assert!(least > SHORT / 10, "{least:?}");
        assert!(guard.is_valid());
    })
    .await;
}

/// The client crate's own lock is an implementation of Curator's recipe that is not ours.
#[tokio::test]
async fn a_foreign_lock_waits_for_us_and_we_for_it() {
    limited(async {
        use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};
        let server = server().await;
        let ours = client(&server).await;
        let store = Store::new(ours.clone());
        let options = || {
            let container = CreateMode::Container.with_acls(Acls::anyone_all());
            LockOptions::new(Acls::anyone_all()).with_ancestor_options(container).unwrap()
        };
        let foreign = Client::connect(server.addr()).await.unwrap();
        let prefix = || LockPrefix::new_curator("/test/a", "lock-").unwrap();
        let theirs = foreign.lock(prefix(), b"127.0.0.1", options()).await.unwrap();
        let who = busy(&ours, &trying("a", LONG)).await;
        assert!(who.foreign && who.label.is_none(), "{who:?}");
        assert!(ours.inspect(&"a".into()).await.unwrap().holders[0].foreign);
        let waits = tokio::spawn({
            let store = store.clone();
            async move { hold(&store, "a", LONG).await }
        });
        until(|| async { ours.inspect(&"a".into()).await.unwrap().waiters.len() == 1 }).await;
        drop(theirs);
        let guard = waits.await.unwrap();
        let again = tokio::spawn(async move {
            let theirs = foreign.lock(prefix(), b"127.0.0.1", options()).await.unwrap();
            assert!(theirs.lock_path().starts_with("/test/a/"));
            drop(theirs);
            foreign
        });
        until(|| async { ours.inspect(&"a".into()).await.unwrap().waiters.len() == 1 }).await;
        assert!(!again.is_finished());
        guard.release().await.unwrap();
        let _foreign = again.await.unwrap();
        drop(hold(&store, "a", LONG).await);
    })
    .await;
}

#[tokio::test]
async fn an_observer_hears_of_every_leader_and_value() {
    limited(async {
        let server = server().await;
        let (one, two, three) = (store(&server).await, store(&server).await, store(&server).await);
        let mut seen = three.election("a").observe().await.unwrap();
        assert!(seen.current().is_none());
        let mut next = async |expected: Option<&str>| {
            seen.changed().await.unwrap();
            assert_eq!(seen.current().map(|leader| &*leader.value), expected);
        };
        let first = one.election("a").ttl(LONG).campaign("one").await.unwrap();
        next(Some("one")).await;
        first.proclaim("uno").await.unwrap();
        next(Some("uno")).await;
        let second = tokio::spawn(two.election("a").ttl(LONG).campaign("two"));
        until(|| async { two.lock("a").inspect().await.unwrap().waiters.len() == 1 }).await;
        first.resign().await.unwrap();
        next(Some("two")).await;
        second.await.unwrap().unwrap().resign().await.unwrap();
        next(None).await;
    })
    .await;
}

/// At the seam: a ring when it listens, one for each change of the head, none for who comes behind it.
#[tokio::test]
async fn an_observed_name_is_rung_for_its_head_alone() {
    limited(async {
        let server = server().await;
        let (client, other) = (client(&server).await, client(&server).await);
        let store = Store::new(client.clone());
        let mut seen = store.election("a").observe().await.unwrap();
        // Each change is heard far sooner than the observer's own nap.
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
        assert!(late <= 3, "{late} of 12 changes were found by a nap");
        drop(seen);
        until(|| async { server.watch_count().await.unwrap() == 3 }).await;
    })
    .await;
}
