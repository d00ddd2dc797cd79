//! What the memory store promises beyond the suite: virtual time, and clients that are cut off.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use leasehold_core::backend::{Backend, Claim, LeaseRef, Mode, Place, WaitPolicy};
use leasehold_core::{Contention, FencingToken, Name, Store};
use leasehold_memory::Memory;

const TTL: Duration = Duration::from_secs(10);

/// The dead are not listed and not counted, also when nobody has asked for their name since.
#[tokio::test]
async fn the_dead_are_gone_unasked() {
    let work = async {
        let (memory, time) = Memory::with_virtual_time();
        let store = Store::new(memory.another_client()).ttl(TTL);
        let guard = store.lock("dead").acquire().await.unwrap();
        assert_eq!(store.list("", None, 10).await.unwrap(), [Name::new("dead")]);
        let dead = memory.another_client();
        let dying = Store::new(dead.clone()).ttl(TTL);
        let other = dying.lock("dead too").acquire().await.unwrap();
        dead.cut_off();
        guard.release().await.unwrap();
        assert_eq!(memory.entries(), 1);
        time.advance(TTL);
        assert_eq!(memory.entries(), 0);
        assert_eq!(store.list("", None, 10).await.unwrap(), []);
        assert!(!other.is_valid());
    };
    tokio::time::timeout(Duration::from_secs(10), work)
        .await
        .unwrap();
}

/// Between the check of a turn and the write the next task may have the turn, of which the store knows nothing.
#[tokio::test]
async fn no_write_depends_on_a_fast_lock() {
    let memory = Memory::new();
    let store = Store::new(memory.clone());
    let guard = store.lock("a").acquire().await.unwrap();
    assert_eq!(memory.while_held(&guard, || 1), Some(1));
    let guard = store.lock("b").fast().acquire().await.unwrap();
    assert_eq!(memory.while_held(&guard, || 1), None);
}

/// No notification reaches a client that is cut off; it learns by asking, when it can ask again.
#[tokio::test]
async fn no_notification_reaches_a_client_that_is_cut_off() {
    let (memory, _time) = Memory::with_virtual_time();
    let (here, there) = (memory.another_client(), memory.another_client());
    let (one, two) = (
        Store::new(here).ttl(TTL),
        Store::new(there.clone()).ttl(TTL),
    );
    let guard = one.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(two.lock("a").acquire());
    let work = async {
        while memory.entries() < 2 {
            tokio::task::yield_now().await;
        }
        there.cut_off();
        guard.release().await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!waiter.is_finished());
        there.reconnect();
        waiter.await.unwrap().unwrap()
    };
    let guard = tokio::time::timeout(Duration::from_secs(10), work)
        .await
        .unwrap();
    assert!(guard.is_valid());
}

#[tokio::test]
async fn a_fast_try_says_which_neighbour_holds_it() {
    let store = Store::new(Memory::new());
    let lock = store.lock("a").fast();
    let first = lock.clone().label("first").acquire().await.unwrap();
    let second = lock.clone().label("second").acquire();
    let second = tokio::spawn(second);
    tokio::task::yield_now().await;
    let who = lock
        .try_acquire()
        .await
        .unwrap_err()
        .into_contention()
        .unwrap();
    assert_eq!(
        who,
        Contention::by("first")
            .token(first.fencing_token())
            .waiters(1)
    );
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    let who = lock
        .acquire_timeout(Duration::ZERO)
        .await
        .unwrap_err()
        .into_contention()
        .unwrap();
    assert_eq!(
        who,
        Contention::by("second")
            .token(second.fencing_token())
            .waiters(0)
    );
}

/// A task that asks in a loop leaves the others of its thread room to run: each request may yield.
#[test]
fn no_verb_starves_the_other_tasks_of_its_thread() {
    let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Try, TTL, "");
    let lease = LeaseRef::new(Arc::new(claim.clone()), Place::new("a"), None);
    for verb in [
        "claim",
        "claim_all",
        "renew",
        "release",
        "release_after",
        "inspect",
        "list",
        "evict",
    ] {
        let (claim, lease, (tell, told)) = (claim.clone(), lease.clone(), mpsc::channel());
        let busy = async move {
            let memory = Memory::new();
            loop {
                match verb {
                    "claim" => drop(memory.claim(&claim).await),
                    "claim_all" => drop(memory.claim_all(std::slice::from_ref(&claim)).await),
                    "renew" => drop(memory.renew(std::slice::from_ref(&lease)).await),
                    "release" => drop(memory.release(&claim, None).await),
                    "release_after" => drop(memory.release_after(&claim, None, TTL).await),
                    "inspect" => drop(memory.inspect(&claim.name).await),
                    "list" => drop(memory.list("", None, 1).await),
                    _ => drop(memory.evict(&claim.name, FencingToken::new(1)).await),
                }
            }
        };
        // A thread of its own, which may be lost.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::spawn(busy);
                tokio::task::yield_now().await;
                tell.send(()).unwrap();
            });
        });
        told.recv_timeout(Duration::from_secs(30))
            .unwrap_or_else(|_| panic!("{verb} starves its thread"));
    }
}
