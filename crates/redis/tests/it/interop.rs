//! One lock with redis-py's `Lock` (Debian's python3-redis): each side excludes the other, and neither frees the other.

#[path = "../../../testbed/tests/foreign/mod.rs"]
mod foreign;

use std::time::Duration;

use crate::support::*;
use foreign::{Foreign, count_together};
use leasehold_core::backend::{Backend, WaitPolicy};
use leasehold_core::{Contention, Guard, Store};
use tokio::task::JoinHandle;

/// A lock's name, and the key that stands for it.
const NAMES: [(&str, &str); 2] = [("orders/42", "orders/42"), ("50% {off}", "50%25 %7Boff%7D")];

/// How often we look whether another tool has released, as the store's documentation says it.
const LOOK: Duration = Duration::from_millis(250);
/// What a busy machine may add: less than what any lease here would have left.
const SLACK: Duration = Duration::from_secs(5);

async fn redis_py(server: &Server, key: &str, timeout: &str) -> Foreign {
    let port = server.port().to_string();
    Foreign::start(
        env!("CARGO_MANIFEST_DIR"),
        "tests/it/interop/redis_py.py",
        &[&port, key, timeout],
    )
    .await
}

async fn store(server: &Server) -> Store {
    Store::new(client(server).await)
}

async fn who(store: &Store, name: &str) -> Contention {
    store
        .lock(name)
        .try_acquire()
        .await
        .unwrap_err()
        .into_contention()
        .unwrap()
}

fn wait(store: &Store, name: &str) -> JoinHandle<Guard> {
    let acquire = store.lock(name).ttl(TTL).acquire();
    tokio::spawn(async move { acquire.await.unwrap() })
}

/// Returns when so many of ours wait. Those of another tool are in no queue.
async fn until_waiting(store: &Store, name: &str, waiters: usize) {
    while store.lock(name).inspect().await.unwrap().waiters.len() != waiters {
        sleep(5).await;
    }
}

/// Returns when the lock was asked for by a plain `SET` twice more: a polling client has been refused once.
async fn until_refused(server: &Server) {
    let sets = async || {
        server
            .commandstats()
            .await
            .unwrap()
            .get("set")
            .copied()
            .unwrap_or_default()
    };
    let before = sets().await;
    while sets().await < before + 2 {
        sleep(5).await;
    }
}

#[tokio::test]
async fn what_redis_py_holds_is_busy_for_us_and_ours_after_its_release() {
    bounded(async {
        let server = server().await;
        let store = store(&server).await;
        // Without a timeout too, which is redis-py's default.
        for (timeout, (name, key)) in [("10", NAMES[0]), ("0", NAMES[0]), ("10", NAMES[1])] {
            let mut theirs = redis_py(&server, key, timeout).await;
            assert_eq!(theirs.ask("try").await, "held");
            let found = who(&store, name).await;
            assert!(
                found.foreign && found.label.is_none() && found.token.is_none(),
                "{found:?}"
            );
            let line = store.lock(name).inspect().await.unwrap();
            assert!(
                line.holders[0].foreign && line.waiters.is_empty(),
                "{line:?}"
            );
            let waiter = wait(&store, name);
            until_waiting(&store, name, 1).await;
            assert_eq!(theirs.ask("owned").await, "yes");
            assert!(!waiter.is_finished());
            let released = now();
            assert_eq!(theirs.ask("release").await, "released");
            let guard = waiter.await.unwrap();
            let gap = now() - released;
            assert!(gap < LOOK + SLACK, "{gap:?}");
            assert_eq!(theirs.ask("try").await, "busy");
            guard.release().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn what_redis_py_extends_stays_its_own() {
    bounded(async {
        let server = server().await;
        let store = store(&server).await;
        let mut theirs = redis_py(&server, "a", "3").await;
        assert_eq!(theirs.ask("try").await, "held");
        let waiter = wait(&store, "a");
        until_waiting(&store, "a", 1).await;
        assert_eq!(theirs.ask("extend 9").await, "extended");
        sleep(3500).await; // past the end it had when we began to wait
        assert!(!waiter.is_finished());
        assert_eq!(theirs.ask("release").await, "released");
        waiter.await.unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_we_hold_is_busy_for_redis_py_and_its_own_after_our_release() {
    bounded(async {
        let server = server().await;
        let store = store(&server).await;
        for (name, key) in NAMES {
            let mut theirs = redis_py(&server, key, "10").await;
            let guard = store.lock(name).ttl(TTL).acquire().await.unwrap();
            assert_eq!(theirs.ask("try").await, "busy");
            theirs.tell("acquire").await;
            until_refused(&server).await;
            // A waiter of ours gets it in the same step: no polling client finds it free between.
            let waiter = wait(&store, name);
            until_waiting(&store, name, 1).await;
            guard.release().await.unwrap();
            let next = waiter.await.unwrap();
            until_refused(&server).await;
            assert!(theirs.waits().await && next.is_valid());
            next.release().await.unwrap();
            assert_eq!(theirs.hear().await, "held");
            assert!(who(&store, name).await.foreign);
            assert_eq!(theirs.ask("release").await, "released");
        }
    })
    .await;
}

#[tokio::test]
async fn neither_side_s_late_release_frees_the_other() {
    bounded(async {
        let server = server().await;
        let (store, raw) = (store(&server).await, client(&server).await);
        // Their lease runs out, we get it, and they release.
        let mut theirs = redis_py(&server, "a", "0.3").await;
        assert_eq!(theirs.ask("try").await, "held");
        let guard = wait(&store, "a").await.unwrap();
        assert_eq!(theirs.ask("owned").await, "no");
        assert_eq!(theirs.ask("release").await, "not owned");
        guard.confirm().await.unwrap();
        guard.release().await.unwrap();
        // A lease of ours that nobody renews runs out, they get it, and we release: with its place, without, and again.
        let mut theirs = redis_py(&server, "a", "10").await;
        let dead = claim("a", WaitPolicy::Fair, Duration::from_millis(500), "dead");
        let grant = granted(&raw, &dead).await;
        theirs.tell("acquire").await;
        assert_eq!(theirs.hear().await, "held");
        assert!(
            now() > since(&grant) + grant.validity.ttl(),
            "they got it while it was ours"
        );
        for place in [Some(&grant.place), None, Some(&grant.place)] {
            raw.release(&dead, place).await.unwrap();
        }
        assert_eq!(theirs.ask("owned").await, "yes");
        assert!(
            busy(&raw, &claim("a", WaitPolicy::Try, TTL, "me"))
                .await
                .foreign
        );
        assert_eq!(theirs.ask("release").await, "released");
    })
    .await;
}

#[tokio::test]
async fn a_redis_py_that_is_killed_is_replaced_after_its_timeout() {
    bounded(async {
        let server = server().await;
        let store = store(&server).await;
        let mut theirs = redis_py(&server, "a", "4").await;
        let asked = now();
        assert_eq!(theirs.ask("try").await, "held");
        let held = now();
        let waiter = wait(&store, "a");
        until_waiting(&store, "a", 1).await;
        theirs.kill().await;
        assert!(!waiter.is_finished());
        let guard = waiter.await.unwrap();
        let got = now();
        let (least, most) = (got - asked, got - held);
        let timeout = Duration::from_secs(4);
        assert!(
            least >= timeout && most < timeout + SLACK,
            "{least:?} {most:?}"
        );
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn one_counter_is_right_whoever_adds_to_it() {
    bounded(async {
        let server = server().await;
        let (mut locks, mut processes) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            locks.push(store(&server).await.lock("a").ttl(TTL));
        }
        for _ in 0..3 {
            processes.push(redis_py(&server, "a", "10").await);
        }
        count_together(&locks, &mut processes, server.data()).await;
    })
    .await;
}
