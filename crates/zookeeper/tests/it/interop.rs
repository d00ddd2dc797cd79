//! One queue with kazoo's locks (Debian's python3-kazoo): each side excludes the other, in one
//! order, and neither frees the other.

#[path = "../../../testbed/tests/foreign/mod.rs"]
mod foreign;

use std::time::Duration;

use crate::common::*;
use foreign::{Foreign, count_together};
use leasehold_core::backend::{Backend, Mode};
use leasehold_core::{Contention, Guard, Store};
use leasehold_testbed::ZooKeeper as Server;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use zookeeper_client::{Acls, CreateMode};

/// A lock's name, and the node that stands for it below the root of these tests.
const NAMES: [(&str, &str); 2] = [
    ("orders/42", "/test/orders%2F42"),
    ("50% é", "/test/50%25 %C3%A9"),
];

/// What kazoo must be told to look for, so that it is in one queue with Curator and with us.
const PATTERN: &str = "-lock-";

/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(8);

/// kazoo's client with a session of so many seconds, and its lock of this class.
async fn kazoo_with(
    server: &Server,
    node: &str,
    session: &str,
    class: &str,
    patterns: &[&str],
) -> Foreign {
    let port = server.port().to_string();
    let args: Vec<&str> = [&port, node, session, class]
        .into_iter()
        .chain(patterns.iter().copied())
        .collect();
    Foreign::start(
        env!("CARGO_MANIFEST_DIR"),
        "tests/it/interop/kazoo_lock.py",
        &args,
    )
    .await
}

async fn kazoo(server: &Server, node: &str) -> Foreign {
    kazoo_with(server, node, "10", "Lock", &[PATTERN]).await
}

async fn who(store: &Store, name: &str) -> Contention {
    store
        .lock(name)
        .ttl(LONG)
        .try_acquire()
        .await
        .unwrap_err()
        .into_contention()
        .unwrap()
}

fn wait(store: &Store, name: &str) -> JoinHandle<Guard> {
    let acquire = store.lock(name).ttl(LONG).acquire();
    tokio::spawn(async move { acquire.await.unwrap() })
}

/// Returns when so many wait, of both sides.
async fn until_waiting(store: &Store, name: &str, waiters: usize) {
    until(|| async {
        store
            .lock(name)
            .inspect()
            .await
            .is_ok_and(|queue| queue.waiters.len() == waiters)
    })
    .await;
}

#[tokio::test]
async fn what_kazoo_holds_is_busy_for_us_and_ours_after_its_release() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        for (name, node) in NAMES {
            let mut theirs = kazoo(&server, node).await;
            assert_eq!(theirs.ask("try").await, "held");
            let found = who(&store, name).await;
            assert!(
                found.foreign && found.label.is_none() && found.token.is_some(),
                "{found:?}"
            );
            let waiter = wait(&store, name);
            until_waiting(&store, name, 1).await;
            assert!(!waiter.is_finished());
            let began = Instant::now();
            assert_eq!(theirs.ask("release").await, "released");
            let (guard, gap) = (waiter.await.unwrap(), began.elapsed());
            assert!(
                gap < SLACK && Some(guard.fencing_token()) > found.token,
                "{gap:?}"
            );
            assert_eq!(theirs.ask("try").await, "busy");
            guard.release().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn what_we_hold_is_busy_for_kazoo_and_its_own_after_our_release() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        for (name, node) in NAMES {
            let mut theirs = kazoo(&server, node).await;
            let guard = hold(&store, name, LONG).await;
            assert_eq!(theirs.ask("try").await, "busy");
            theirs.tell("acquire").await;
            until_waiting(&store, name, 1).await;
            let line = store.lock(name).inspect().await.unwrap();
            assert!(
                !line.holders[0].foreign && line.waiters[0].foreign,
                "{line:?}"
            );
            assert!(theirs.waits().await);
            guard.release().await.unwrap();
            assert_eq!(theirs.hear().await, "held");
            assert!(who(&store, name).await.foreign);
            assert_eq!(theirs.ask("release").await, "released");
        }
    })
    .await;
}

#[tokio::test]
async fn both_are_served_in_the_order_in_which_they_came() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        let (mut second, mut fourth) = (
            kazoo(&server, "/test/a").await,
            kazoo(&server, "/test/a").await,
        );
        let first = hold(&store, "a", LONG).await;
        second.tell("acquire").await;
        until_waiting(&store, "a", 1).await;
        let third = wait(&store, "a");
        until_waiting(&store, "a", 2).await;
        fourth.tell("acquire").await;
        until_waiting(&store, "a", 3).await;
        let fifth = wait(&store, "a");
        until_waiting(&store, "a", 4).await;
        let line = store.lock("a").inspect().await.unwrap();
        assert_eq!(
            line.waiters.iter().map(|w| w.foreign).collect::<Vec<_>>(),
            [true, false, true, false]
        );
        assert!(second.waits().await && fourth.waits().await);
        first.release().await.unwrap();
        assert_eq!(second.hear().await, "held");
        assert!(!third.is_finished() && fourth.waits().await);
        assert_eq!(second.ask("release").await, "released");
        let guard = third.await.unwrap();
        assert!(!fifth.is_finished() && fourth.waits().await && guard.is_valid());
        guard.release().await.unwrap();
        assert_eq!(fourth.hear().await, "held");
        assert!(!fifth.is_finished());
        assert_eq!(fourth.ask("release").await, "released");
        fifth.await.unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn neither_side_s_late_release_frees_the_other() {
    limited(async {
        let server = server().await;
        let (store, raw) = (store(&server).await, client(&server).await);
        // They are evicted, we hold, and they release.
        let mut theirs = kazoo(&server, "/test/a").await;
        assert_eq!(theirs.ask("try").await, "held");
        let token = who(&store, "a").await.token.unwrap();
        let waiter = wait(&store, "a");
        until_waiting(&store, "a", 1).await;
        assert!(store.evict("a", token).await.unwrap());
        let guard = waiter.await.unwrap();
        assert_eq!(theirs.ask("node").await, "gone");
        assert_eq!(theirs.ask("release").await, "released"); // as kazoo believes
        guard.confirm().await.unwrap();
        assert_eq!(theirs.ask("try").await, "busy");
        guard.release().await.unwrap();
        // We are evicted, they hold, and we release: with its place, without, and again.
        let evicted = fair("a", LONG);
        let grant = granted(&raw, &evicted).await;
        theirs.tell("acquire").await;
        until_waiting(&store, "a", 1).await;
        assert!(store.evict("a", grant.token).await.unwrap());
        assert_eq!(theirs.hear().await, "held");
        release(&raw, &evicted, &grant.place).await;
        raw.release(&evicted, None).await.unwrap();
        release(&raw, &evicted, &grant.place).await;
        assert_eq!(theirs.ask("node").await, "there");
        assert!(busy(&raw, &trying("a", LONG)).await.foreign);
        assert_eq!(theirs.ask("release").await, "released");
    })
    .await;
}

#[tokio::test]
async fn a_kazoo_that_is_killed_is_replaced_after_its_session() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        let mut theirs = kazoo_with(&server, "/test/a", "2", "Lock", &[PATTERN]).await;
        assert_eq!(theirs.ask("try").await, "held");
        let waiter = wait(&store, "a");
        until_waiting(&store, "a", 1).await;
        theirs.kill().await;
        let killed = Instant::now();
        let (guard, gap) = (waiter.await.unwrap(), killed.elapsed());
        // Its last sign of life is at most a third of its session old.
        assert!(
            gap > Duration::from_secs(1) && gap < Duration::from_secs(2) + SLACK,
            "{gap:?}"
        );
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn every_lock_of_kazoo_s_is_excluded_with_the_pattern_and_none_without() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        // A lock of kazoo's creates its node once, and wants it to stay.
        let raw = zookeeper_client::Client::connect(server.addr())
            .await
            .unwrap();
        raw.mkdir(
            "/test/a",
            &CreateMode::Persistent.with_acls(Acls::anyone_all()),
        )
        .await
        .unwrap();
        for class in ["Lock", "WriteLock", "ReadLock"] {
            for pattern in [PATTERN, "lock-"] {
                let mut theirs = kazoo_with(&server, "/test/a", "10", class, &[pattern]).await;
                let guard = hold(&store, "a", LONG).await;
                assert_eq!(theirs.ask("try").await, "busy", "{class} {pattern}");
                guard.release().await.unwrap();
                assert_eq!(theirs.ask("try").await, "held", "{class} {pattern}");
                assert!(who(&store, "a").await.foreign);
                assert_eq!(theirs.ask("release").await, "released");
            }
            let mut untold = kazoo_with(&server, "/test/a", "10", class, &[]).await;
            let guard = hold(&store, "a", LONG).await;
            assert_eq!(
                untold.ask("try").await,
                "held",
                "{class} sees us now: say so in the documentation"
            );
            assert_eq!(untold.ask("release").await, "released");
            guard.release().await.unwrap();
        }
    })
    .await;
}

/// Our readers, our writer and our permits are all kept out by kazoo's write lock and keep it out.
/// With its read lock our readers share, where it came first: it waits for whatever matches its
/// pattern.
#[tokio::test]
async fn our_read_write_lock_and_kazoo_s_keep_each_other_out() {
    limited(async {
        let server = server().await;
        let (raw, store) = (client(&server).await, store(&server).await);
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 1, of: 3 }];
        for class in ["WriteLock", "ReadLock"] {
            let mut theirs = kazoo_with(&server, "/test/a", "10", class, &[PATTERN]).await;
            for mode in modes {
                let ours = of_mode(mode, "a");
                granted(&raw, &ours).await;
                assert_eq!(theirs.ask("try").await, "busy", "{class} beside {mode:?}");
                theirs.tell("acquire").await;
                until(|| async {
                    let line = store.lock("a").inspect().await.unwrap();
                    line.holders.len() + line.waiters.len() == 2
                })
                .await;
                raw.release(&ours, None).await.unwrap();
                assert_eq!(theirs.hear().await, "held");
                let after = of_mode(mode, "a");
                if (class, mode) == ("ReadLock", Mode::Shared) {
                    granted(&raw, &after).await;
                } else {
                    assert!(
                        waiting(&raw, &after).await.who.foreign,
                        "{class} before {mode:?}"
                    );
                }
                assert_eq!(theirs.ask("release").await, "released");
                granted(&raw, &after).await;
                raw.release(&after, None).await.unwrap();
            }
        }
    })
    .await;
}

/// A writer of ours stands behind kazoo's readers until the last of them has left.
#[tokio::test]
async fn our_writer_waits_for_all_of_kazoo_s_readers() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        let mut readers = Vec::new();
        for _ in 0..2 {
            let mut theirs = kazoo_with(&server, "/test/a", "10", "ReadLock", &[PATTERN]).await;
            assert_eq!(theirs.ask("try").await, "held");
            readers.push(theirs);
        }
        let ours = store.rw_lock("a").ttl(LONG).read().acquire().await.unwrap();
        let writer = tokio::spawn(store.rw_lock("a").ttl(LONG).write().acquire());
        until_waiting(&store, "a", 1).await;
        ours.release().await.unwrap();
        for mut theirs in readers {
            assert!(!writer.is_finished());
            assert_eq!(theirs.ask("release").await, "released");
        }
        writer.await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

/// kazoo 2.8.0's read lock waits for writers that came after it: for ever, because they wait for
/// it.
#[tokio::test]
async fn a_reader_of_kazoo_s_waits_for_later_writers_too() {
    limited(async {
        let server = server().await;
        let store = store(&server).await;
        let first = store
            .rw_lock("a")
            .ttl(LONG)
            .write()
            .acquire()
            .await
            .unwrap();
        let mut theirs = kazoo_with(&server, "/test/a", "10", "ReadLock", &[PATTERN]).await;
        theirs.tell("acquire").await;
        until_waiting(&store, "a", 1).await;
        let later = tokio::spawn(store.rw_lock("a").ttl(LONG).write().acquire());
        until_waiting(&store, "a", 2).await;
        first.release().await.unwrap();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(
                theirs.waits().await && !later.is_finished(),
                "it is mended: say so in the documentation"
            );
        }
        theirs.kill().await;
        later.await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn one_counter_is_right_whoever_adds_to_it() {
    limited(async {
        let server = server().await;
        let (mut locks, mut processes) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            locks.push(store(&server).await.lock("a").ttl(LONG));
        }
        for _ in 0..3 {
            processes.push(kazoo(&server, "/test/a").await);
        }
        count_together(&locks, &mut processes, server.data()).await;
    })
    .await;
}
