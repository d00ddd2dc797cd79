//! The blocking facade, over the memory store: what it waits for, and where it refuses to.

use std::time::Duration;

use leasehold::blocking::Store;
use leasehold::{ErrorKind, Loss};

fn open() -> Store {
    Store::open(leasehold::connect("memory://")).unwrap()
}

#[test]
fn a_lock_is_taken_renewed_and_given_back() {
    let store = open();
    let lock = store.lock("a").ttl(Duration::from_secs(1)).label("me");
    let guard = lock.acquire().unwrap();
    let other = lock.try_acquire().unwrap_err();
    assert_eq!(other.contention().unwrap().label.as_deref(), Some("me"));
    assert_eq!(
        lock.acquire_timeout(Duration::from_secs(3))
            .unwrap_err()
            .kind(),
        ErrorKind::TimedOut
    );
    guard.check().unwrap(); // three leases later: it was renewed while this thread was blocked
    let first = guard.fencing_token();
    guard.release().unwrap();
    assert!(lock.acquire().unwrap().fencing_token() > first);
}

#[test]
fn threads_count_without_a_mutex() {
    let store = open();
    let counter = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..25 {
                    let guard = store.lock("counter").acquire().unwrap();
                    let seen = counter.load(std::sync::atomic::Ordering::Relaxed);
                    std::thread::yield_now();
                    counter.store(seen + 1, std::sync::atomic::Ordering::Relaxed);
                    guard.release().unwrap();
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 100);
}

#[test]
fn another_thread_hears_of_the_end() {
    let store = open();
    let guard = store
        .lock("a")
        .max_hold(Duration::from_millis(100))
        .acquire()
        .unwrap();
    let held = guard.view();
    let loss = std::thread::scope(|threads| threads.spawn(|| guard.wait_lost()).join().unwrap());
    assert_eq!(loss.unwrap(), Loss::MaxHold);
    assert!(!held.is_valid());
    assert_eq!(guard.release().unwrap_err().loss(), Some(Loss::MaxHold));
}

#[test]
fn every_primitive_is_in_reach() {
    let store = open();
    let catalog = store.inner().rw_lock("catalog");
    let readers = [(); 2].map(|()| store.wrap(catalog.read()).try_acquire().unwrap());
    assert!(
        store
            .wrap(catalog.write())
            .try_acquire()
            .unwrap_err()
            .is_contended()
    );
    drop(readers);
    let both = store
        .wait(store.inner().multi_lock(["x", "y"]).acquire())
        .unwrap();
    assert!(store.lock("y").try_acquire().is_err());
    store.wait(both.release()).unwrap();
    let leadership = store
        .wait(store.inner().election("e").campaign("me"))
        .unwrap();
    assert!(leadership.is_valid());
}

#[tokio::test]
async fn inside_of_a_runtime_it_refuses_and_does_not_panic() {
    let store = std::thread::spawn(open).join().unwrap();
    let lock = store.lock("a");
    let refused = |e: leasehold::Error| assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    refused(lock.acquire().unwrap_err());
    refused(Store::open(leasehold::connect("memory://")).unwrap_err());
    let taking = lock.clone();
    let guard = std::thread::spawn(move || taking.acquire())
        .join()
        .unwrap()
        .unwrap();
    refused(guard.wait_lost().unwrap_err());
    refused(guard.release().unwrap_err());
    // It goes on in the background, also after the last handle has gone here.
    let waiting = lock.clone();
    drop((store, lock));
    let next = std::thread::spawn(move || waiting.acquire())
        .join()
        .unwrap()
        .unwrap();
    assert!(next.is_valid());
}

#[test]
fn work_that_panics_is_an_error_and_harms_nobody() {
    let store = open();
    let lock = store.inner().lock("a");
    let outcome = store.wait::<()>(async move {
        let _guard = lock.acquire().await?;
        panic!("in the middle of the work")
    });
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Internal);
    store.lock("a").acquire().unwrap().release().unwrap();
}

#[test]
fn a_guard_that_outlives_its_store_is_still_given_back() {
    let memory = leasehold::memory::Memory::new();
    let (one, other) = (
        leasehold::Store::new(memory.clone()),
        leasehold::Store::new(memory.another_client()),
    );
    let store = Store::open(async { Ok(one) }).unwrap();
    let guard = store
        .lock("a")
        .ttl(Duration::from_secs(60))
        .acquire()
        .unwrap();
    drop(store);
    assert!(guard.is_valid());
    drop(guard);
    let watcher = Store::open(async { Ok(other) }).unwrap();
    watcher
        .lock("a")
        .acquire_timeout(Duration::from_secs(20))
        .unwrap()
        .release()
        .unwrap();
}

#[test]
fn after_close_it_says_so() {
    let store = open();
    store.close(Duration::from_secs(1)).unwrap();
    assert_eq!(
        store.lock("a").acquire().unwrap_err().kind(),
        ErrorKind::Closed
    );
}
