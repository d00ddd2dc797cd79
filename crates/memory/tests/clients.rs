//! What the memory store promises beyond the suite: virtual time, and clients that are cut off.

use std::time::Duration;

use leasehold_core::{Contention, Name, Store};
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
    tokio::time::timeout(Duration::from_secs(10), work).await.unwrap();
}

/// No notification reaches a client that is cut off; it learns by asking, when it can ask again.
#[tokio::test]
async fn no_notification_reaches_a_client_that_is_cut_off() {
    let (memory, _time) = Memory::with_virtual_time();
    let (here, there) = (memory.another_client(), memory.another_client());
    let (one, two) = (Store::new(here).ttl(TTL), Store::new(there.clone()).ttl(TTL));
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
    let guard = tokio::time::timeout(Duration::from_secs(10), work).await.unwrap();
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
    let who = lock.try_acquire().await.unwrap_err().into_contention().unwrap();
    assert_eq!(who, Contention::by("first").token(first.fencing_token()).waiters(1));
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    let who = lock.acquire_timeout(Duration::ZERO).await.unwrap_err().into_contention().unwrap();
    assert_eq!(who, Contention::by("second").token(second.fencing_token()).waiters(0));
}
