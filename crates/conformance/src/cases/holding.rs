//! Does a hold last as long as it should, and no longer?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::{DistributedLock, ErrorKind, Loss, Owner, Ran};

use crate::arena::{Arena, expect_kind, within};

/// A guard renews itself: after three leases it is still ours, and nobody else's.
pub(crate) async fn outlives_its_ttl(arena: Arena) {
    let (one, two) = (arena.store().await, arena.store().await);
    let guard = one.lock("a").acquire().await.unwrap();
    for _ in 0..6 {
        tokio::time::sleep(arena.ttl() / 2).await;
        assert!(guard.is_valid(), "lost: {:?}", guard.check());
        assert!(guard.remaining() > Duration::ZERO && guard.remaining() <= arena.ttl());
        assert!(two.lock("a").try_acquire().await.is_err());
    }
    guard.release().await.ok();
}

/// The store itself says so.
pub(crate) async fn is_confirmed_by_the_store(arena: Arena) {
    let store = arena.store().await;
    let guard = store.lock("a").acquire().await.unwrap();
    within(Duration::from_secs(20), "a confirmation", async {
        // In bad weather the store may not say; it never says no.
        while let Err(e) = guard.confirm().await {
            assert!(e.is_retryable(), "{e:?}");
        }
    })
    .await;
    assert!(guard.is_valid());
}

/// `max_hold` ends a hold that is renewed, and the lock goes to the next.
pub(crate) async fn ends_at_max_hold(arena: Arena) {
    let (one, two) = (arena.store().await, arena.store().await);
    let guard = one.lock("a").max_hold(arena.ttl() / 2).acquire().await.unwrap();
    let lost = within(arena.ttl(), "max_hold", guard.lost()).await;
    assert_eq!(lost, Loss::MaxHold);
    drop(arena.soon(&two, "a", arena.ttl() + Duration::from_secs(5)).await);
    assert_eq!(expect_kind(guard.release().await, ErrorKind::Lost).loss(), Some(Loss::MaxHold));
}

/// `min_hold` keeps the lock after the guard is gone, renewed, and then gives it back.
pub(crate) async fn lasts_for_min_hold(arena: Arena) {
    let (one, two) = (arena.store().await, arena.store().await);
    let min = arena.ttl() * 3 / 2;
    let guard = one.lock("a").min_hold(min).acquire().await.unwrap();
    let view = guard.view();
    guard.release().await.unwrap();
    assert_eq!(view.lost().await, Loss::Released);
    tokio::time::sleep(min - arena.ttl() / 3).await;
    assert!(two.lock("a").try_acquire().await.is_err(), "free before min_hold was over");
    drop(arena.soon(&two, "a", arena.ttl() * 2 + Duration::from_secs(2)).await);
}

/// Re-entry by one owner shares the hold; the last guard releases it; another owner waits.
pub(crate) async fn is_shared_by_its_owner(arena: Arena) {
    let store = arena.store().await;
    let (owner, other) = (Owner::new(), Owner::new());
    let lock = store.lock("a").owner(&owner);
    let outer = lock.acquire().await.unwrap();
    let inner = lock.try_acquire().await.unwrap();
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    assert!(store.lock("a").owner(&other).try_acquire().await.is_err());
    outer.release().await.unwrap();
    assert!(inner.is_valid());
    assert!(store.lock("a").try_acquire().await.is_err());
    inner.release().await.ok();
    let next = arena.soon(&store, "a", arena.ttl() + Duration::from_secs(2)).await;
    drop(next);
    drop(lock.acquire().await.unwrap());
}

/// `run` holds for the body, drops it when the lock is lost, and gives the lock back when it is cancelled.
pub(crate) async fn runs_a_body(arena: Arena) {
    let (one, two) = (arena.store().await, arena.store().await);
    let lock: Arc<dyn DistributedLock> = Arc::new(one.lock("a"));
    let token = lock.run(|held| async move { held.fencing_token() }).await.unwrap();
    assert!(token.get() > 0);

    // Lost: the body is dropped, and before the lock goes on.
    let dropped = Arc::new(AtomicBool::new(false));
    struct OnDrop(Arc<AtomicBool>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let inside = OnDrop(dropped.clone());
    let run = one.lock("a").max_hold(arena.ttl() / 3).run(|_| async move {
        let _inside = inside;
        std::future::pending::<()>().await;
    });
    let error = within(arena.ttl() * 3, "the loss in a body", run).await;
    assert_eq!(expect_kind(error, ErrorKind::Lost).loss(), Some(Loss::MaxHold));
    assert!(dropped.load(Ordering::SeqCst));

    // Cancelled.
    let body = tokio::spawn(one.lock("a").run(|_| std::future::pending::<()>()));
    within(Duration::from_secs(10), "the body to hold", async {
        while two.lock("a").inspect().await.unwrap().holders.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    body.abort();
    drop(arena.soon(&two, "a", arena.ttl() + Duration::from_secs(5)).await);
}

/// `try_run` says that it skipped, and why.
pub(crate) async fn skips_a_body(arena: Arena) {
    let (one, two) = (arena.store().await, arena.store().await);
    let guard = one.lock("a").label("first").acquire().await.unwrap();
    match two.lock("a").try_run(|_| async { 7 }).await.unwrap() {
        Ran::Skipped(who) => assert_eq!(who.label.as_deref(), Some("first")),
        Ran::Done(n) => panic!("ran and returned {n}"),
    }
    drop(guard);
    within(arena.ttl() * 2, "the lock to come free", async {
        while two.lock("a").try_run(|_| async { 7 }).await.unwrap() != Ran::Done(7) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
