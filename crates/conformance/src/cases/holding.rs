//! Does a hold last as long as it should, and no longer?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Backend, Claimed, LeaseRef, Mode, Moment, WaitPolicy};
use leasehold_core::{DistributedLock, ErrorKind, Lock, Loss, Owner, Result, RunOutcome};
use tokio::time::{Instant, sleep_until};

use crate::context::{
    LONG, TestContext, answered, expect_kind, give_back, given_back, renewed, taken, until, within,
};
use crate::harness::Need;
pub(crate) use bounds::{
    bound_each_turn, may_last_exactly, min_hold_keeps_several_names, turn_is_one_for_its_owner,
};

mod bounds;

/// A guard renews itself: after three leases its client still holds the lock, and no other client
/// does.
pub(crate) async fn outlives_its_ttl(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let guard = one.lock("a").acquire().await.unwrap();
    for _ in 0..6 {
        tokio::time::sleep(ctx.ttl() / 2).await;
        assert!(guard.is_valid(), "lost: {:?}", guard.check());
        assert!(guard.remaining() > Duration::ZERO && guard.remaining() <= ctx.ttl());
        assert!(two.lock("a").try_acquire().await.is_err());
    }
    guard.release().await.ok();
}

/// The store itself confirms the hold.
pub(crate) async fn is_confirmed_by_the_store(ctx: TestContext) {
    let store = ctx.store().await;
    let guard = store.lock("a").acquire().await.unwrap();
    answered(LONG, "a confirmation", || guard.confirm()).await;
    assert!(guard.is_valid());
}

/// `max_hold` ends a hold that is renewed, and the lock goes to the next.
pub(crate) async fn ends_at_max_hold(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let guard = one
        .lock("a")
        .max_hold(ctx.ttl() / 2)
        .acquire()
        .await
        .unwrap();
    let lost = within(ctx.ttl(), "max_hold", guard.lost()).await;
    assert_eq!(lost, Loss::MaxHold);
    drop(
        ctx.soon(&two, "a", ctx.ttl() + Duration::from_secs(5))
            .await,
    );
    assert_eq!(
        expect_kind(guard.release().await, ErrorKind::Lost).loss(),
        Some(Loss::MaxHold)
    );
}

/// `min_hold` keeps the lock after the guard is gone, renewed, and then gives it back.
pub(crate) async fn lasts_for_min_hold(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let min = ctx.ttl() * 3 / 2;
    let before = Instant::now();
    let guard = one.lock("a").min_hold(min).acquire().await.unwrap();
    let view = guard.view();
    give_back(guard).await;
    assert_eq!(view.lost().await, Loss::Released);
    sleep_until(before + min - ctx.ttl() / 3).await;
    let free = two.lock("a").try_acquire().await.is_ok();
    // `min_hold` counts from the grant, so an answer that comes later than this on a busy machine
    // proves nothing.
    assert!(
        !free || before.elapsed() >= min,
        "free before min_hold was over"
    );
    drop(
        ctx.soon(&two, "a", ctx.ttl() * 2 + Duration::from_secs(2))
            .await,
    );
}

/// Re-entry by one owner shares the hold; the last guard releases it; another owner waits.
pub(crate) async fn is_shared_by_its_owner(ctx: TestContext) {
    let store = ctx.store().await;
    let owner = Owner::new();
    let other = Owner::new();
    let lock = store.lock("a").owner(&owner);
    let outer = lock.acquire().await.unwrap();
    let inner = lock.try_acquire().await.unwrap();
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    assert!(store.lock("a").owner(&other).try_acquire().await.is_err());
    outer.release().await.unwrap();
    assert!(inner.is_valid());
    assert!(store.lock("a").try_acquire().await.is_err());
    inner.release().await.ok();
    let next = ctx
        .soon(&store, "a", ctx.ttl() + Duration::from_secs(2))
        .await;
    drop(next);
    drop(lock.acquire().await.unwrap());
}

/// `run` holds for the body, drops it when the lock is lost, and gives the lock back when it is cancelled.
pub(crate) async fn runs_a_body(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let lock: Arc<dyn DistributedLock> = Arc::new(one.lock("a"));
    let token = lock
        .run(|held| async move { held.fencing_token() })
        .await
        .unwrap();
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
    let run = one.lock("a").max_hold(ctx.ttl() / 3).run(|_| async move {
        let _inside = inside;
        std::future::pending::<()>().await;
    });
    let error = within(ctx.ttl() * 3, "the loss in a body", run).await;
    assert_eq!(
        expect_kind(error, ErrorKind::Lost).loss(),
        Some(Loss::MaxHold)
    );
    assert!(dropped.load(Ordering::SeqCst));
    // Cancelled.
    let body = tokio::spawn(one.lock("a").run(|_| std::future::pending::<()>()));
    ctx.queue_is(&two, "a", 1, 0).await;
    body.abort();
    drop(
        ctx.soon(&two, "a", ctx.ttl() + Duration::from_secs(5))
            .await,
    );
}

/// `max_hold` ends any lock's hold, also that of a body, and `run` gives back what its body held.
pub(super) async fn ends_and_runs(ctx: &TestContext, lock: Lock) {
    let guard = lock
        .clone()
        .max_hold(ctx.ttl() / 2)
        .acquire()
        .await
        .unwrap();
    assert_eq!(
        within(ctx.ttl() * 2, "max_hold", guard.lost()).await,
        Loss::MaxHold
    );
    expect_kind(guard.release().await, ErrorKind::Lost);
    ctx.becomes_empty("a").await;
    assert!(
        lock.run(|held| async move { held.fencing_token() })
            .await
            .unwrap()
            .get()
            > 0
    );
    let lost = lock
        .max_hold(ctx.ttl() / 3)
        .run(|_| std::future::pending::<()>());
    assert_eq!(
        expect_kind(lost.await, ErrorKind::Lost).loss(),
        Some(Loss::MaxHold)
    );
    ctx.becomes_empty("a").await;
}

/// `try_run` reports that it skipped the body, and the reason.
pub(crate) async fn skips_a_body(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let guard = one.lock("a").label("first").acquire().await.unwrap();
    match two.lock("a").try_run(|_| async { 7 }).await.unwrap() {
        RunOutcome::Skipped(who) => assert_eq!(who.label.as_deref(), Some("first")),
        RunOutcome::Done(n) => panic!("ran and returned {n}"),
    }
    drop(guard);
    until(ctx.ttl() * 2, "the lock to come free", || async {
        two.lock("a").try_run(|_| async { 7 }).await.unwrap() == RunOutcome::Done(7)
    })
    .await;
}

/// The store and its test agree on whether a `min_hold` outlives its process.
pub(crate) async fn says_whether_min_hold_outlives_its_client(ctx: TestContext) {
    let backend = ctx.backend().await;
    let lacks = ctx
        .harness()
        .capabilities()
        .lack(&[Need::MinHold])
        .is_some();
    assert_eq!(
        !backend.guarantees().min_hold_outlives_process(),
        lacks,
        "{:?}",
        backend.guarantees()
    );
    if lacks {
        let lease = taken(&*backend, ctx.claim("a", WaitPolicy::Fair)).await;
        expect_kind(
            lapses_after(&*backend, &lease, Duration::from_secs(1)).await,
            ErrorKind::Unsupported,
        );
        given_back(&*backend, &lease).await;
    }
}

/// S15: a hold that was given back for a later moment ends at that moment, not sooner and not with
/// its lease, although its client has gone, and however often the request was sent. A late renewal
/// does not postpone the end.
pub(crate) async fn lapses_without_its_client(ctx: TestContext) {
    let long = Duration::from_secs(60);
    tokio::join!(
        // The lease would have ended before, and after.
        lapses(&ctx, "longer than its lease", ctx.ttl(), ctx.ttl() * 3 / 2),
        lapses(&ctx, "shorter than its lease", long, ctx.ttl() / 2),
    );
}

/// Gives the hold back with effect after `rest`.
async fn lapses_after(client: &dyn Backend, lease: &LeaseRef, rest: Duration) -> Result<()> {
    client
        .release_after(&lease.claim, Some(&lease.place), rest)
        .await
}

async fn lapses(ctx: &TestContext, name: &str, ttl: Duration, rest: Duration) {
    let client = ctx.backend().await;
    let rival = ctx.backend().await;
    let mut claim = ctx.claim(name, WaitPolicy::Fair);
    claim.ttl = ttl;
    let lease = taken(&*client, claim).await;
    let begin = Moment::now();
    lapses_after(&*client, &lease, rest).await.unwrap();
    let left = rest.saturating_sub(Moment::now().since(begin));
    lapses_after(&*client, &lease, left).await.unwrap();
    drop(renewed(&*client, &lease).await);
    client.close().await.unwrap();
    drop(client);
    // A waiter is granted neither sooner nor later.
    let next = ctx.claim(name, WaitPolicy::Fair);
    let late = Duration::from_secs(10) + ctx.recovery().await;
    until(
        rest + late,
        &format!("a hold that lapses, {name}"),
        || async { matches!(rival.claim(&next).await.unwrap(), Claimed::Granted(_)) },
    )
    .await;
    let held = Moment::now().since(begin);
    assert!(held >= rest, "{name}: free after {held:?} of {rest:?}");
    rival.release(&next, None).await.unwrap();
}

/// S15: a waiter behind a hold that lapses is granted when it does, not when its lease would have ended; and a release, or an
/// operator, ends such a hold before.
pub(crate) async fn lapses_for_those_who_wait(ctx: TestContext) {
    let client = ctx.backend().await;
    let store = ctx.store().await;
    // The leases are so long that no renewal of a place can bring the grant.
    let long = Duration::from_secs(180);
    let mut claim = ctx.claim("a", WaitPolicy::Fair);
    claim.ttl = long;
    let lease = taken(&*client, claim).await;
    let waiter = tokio::spawn(store.lock("a").ttl(long).acquire());
    ctx.queue_reaches(&store, "a", 1).await;
    lapses_after(&*client, &lease, Duration::from_secs(1))
        .await
        .unwrap();
    let guard = within(LONG, "the waiter behind a hold that lapses", waiter)
        .await
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
    // A release ends the hold before.
    let lease = taken(&*client, ctx.claim("b", WaitPolicy::Fair)).await;
    lapses_after(&*client, &lease, long).await.unwrap();
    expect_kind(store.lock("b").try_acquire().await, ErrorKind::Contended);
    given_back(&*client, &lease).await;
    store
        .lock("b")
        .try_acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    // An operator ends the hold before. A store may remember the eviction until the hold would have
    // lapsed.
    let lease = taken(&*client, ctx.claim("c", WaitPolicy::Fair)).await;
    lapses_after(&*client, &lease, LONG).await.unwrap();
    assert!(store.evict("c", lease.token.unwrap()).await.unwrap());
    store
        .lock("c")
        .try_acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// S15: several claims hold together; one of them lapses, and the others hold on.
pub(crate) async fn lapses_beside_others(ctx: TestContext) {
    let client = ctx.backend().await;
    let other = ctx.backend().await;
    for mode in [Mode::Shared, Mode::Permits { n: 1, of: 2 }] {
        let claim = || ctx.claim_as("a", mode, WaitPolicy::Fair);
        let lapses = taken(&*client, claim()).await;
        let stays = taken(&*client, claim()).await;
        lapses_after(&*client, &lapses, ctx.ttl() / 4)
            .await
            .unwrap();
        until(
            ctx.ttl() * 2 + Duration::from_secs(10),
            "one of two to lapse",
            || async {
                renewed(&*client, &stays).await.unwrap();
                other
                    .inspect(&stays.claim.name)
                    .await
                    .unwrap()
                    .holders
                    .len()
                    == 1
            },
        )
        .await;
        let queue = other.inspect(&stays.claim.name).await.unwrap();
        assert_eq!(queue.holders[0].token, stays.token);
        given_back(&*client, &stays).await;
        ctx.becomes_empty("a").await;
    }
}

/// A lock that is given back within its `min_hold` by a program that ends at once stays taken until
/// then, and is free soon after, whether `min_hold` or the lease is longer.
pub(crate) async fn min_hold_outlives_its_client(ctx: TestContext) {
    tokio::join!(
        is_kept_without(&ctx, "longer than its lease", ctx.ttl(), ctx.ttl() * 3 / 2),
        is_kept_without(
            &ctx,
            "shorter than its lease",
            Duration::from_secs(30),
            ctx.ttl() / 2
        ),
    );
}

async fn is_kept_without(ctx: &TestContext, name: &str, ttl: Duration, min: Duration) {
    let store = ctx.store().await;
    let other = ctx.store().await;
    let begin = Moment::now();
    let guard = store
        .lock(name)
        .ttl(ttl)
        .min_hold(min)
        .acquire()
        .await
        .unwrap();
    guard.release().await.unwrap();
    // The program ends: nothing of it waits for anything.
    store.close(Duration::ZERO).await.ok();
    drop(store);
    let limit = min + Duration::from_secs(10) + ctx.recovery().await;
    let next = ctx.soon(&other, name, limit).await;
    let held = Moment::now().since(begin);
    assert!(held >= min, "{name}: free after {held:?} of {min:?}");
    next.release().await.unwrap();
}
