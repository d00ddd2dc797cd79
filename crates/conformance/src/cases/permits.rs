//! Are there never more permits in use than there are, and does no holder lose one?

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Mode, WaitPolicy};
use leasehold_core::{DistributedLock, ErrorKind, Guard};

use crate::cases::holding::ends_and_runs;
use crate::context::{
    LONG, TestContext, busy, expect_kind, give_back, given_back, granted, taken, told_of_eviction,
    waiting, within,
};

const fn permits(n: u32, of: u32) -> Mode {
    Mode::Permits { n, of }
}

/// The model `AcquiredPermits` of Jepsen's tests of Hazelcast: tasks of four clients take one or
/// two of three permits, and never more than three are in use.
pub(crate) async fn never_more_than_there_are(ctx: TestContext) {
    let out = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        // A machine that is too busy to renew in time ends no permit.
        let semaphore = ctx.store().await.ttl(LONG).semaphore("a", 3);
        for n in [1, 2] {
            let lock = semaphore.permits(n);
            let out = out.clone();
            let most = most.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..8 {
                    let guard = lock.acquire().await.unwrap();
                    let now = out.fetch_add(n, Ordering::SeqCst) + n;
                    assert!(now <= 3, "{now} of 3 permits are out");
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    out.fetch_sub(n, Ordering::SeqCst);
                    assert!(guard.is_valid());
                    drop(guard.release().await);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(
        most.load(Ordering::SeqCst) > 1,
        "permits were never out together"
    );
}

/// As many holders as there are permits hold at once, each with a token of its own, and one more
/// does not.
pub(crate) async fn are_held_together(ctx: TestContext) {
    let one = ctx.store().await.ttl(LONG);
    let two = ctx.store().await.ttl(LONG);
    let here = one.semaphore("a", 3);
    let there = two.semaphore("a", 3);
    let guards = [
        here.acquire().await.unwrap(),
        there.acquire().await.unwrap(),
        here.try_acquire().await.unwrap(),
    ];
    assert!(guards.iter().all(Guard::is_valid));
    let mut tokens: Vec<_> = guards.iter().map(Guard::fencing_token).collect();
    tokens.sort();
    let mut seen: Vec<_> = there
        .inspect()
        .await
        .unwrap()
        .holders
        .iter()
        .filter_map(|e| e.token)
        .collect();
    seen.sort();
    tokens.dedup();
    assert_eq!((tokens.len(), &seen), (3, &tokens));
    let dynamic: Arc<dyn DistributedLock> = Arc::new(there.clone());
    expect_kind(dynamic.try_acquire().await, ErrorKind::Contended);
    let wait = Duration::from_millis(200);
    let late = dynamic.acquire_timeout(wait).await;
    assert!(late.is_err_and(|e| e.is_retryable()));
    let [first, second, third] = guards;
    give_back(second).await;
    let fourth = within(
        ctx.ttl() * 3,
        "the permit that was given back",
        there.acquire(),
    )
    .await
    .unwrap();
    for guard in [first, third, fourth] {
        give_back(guard).await;
    }
    ctx.becomes_empty("a").await;
    let all = here.permits(3).acquire().await.unwrap();
    assert!(
        seen.iter().all(|token| *token < all.fencing_token()),
        "a token did not rise"
    );
    give_back(all).await;
}

/// P6, S10: a claim of many permits is not passed by claims of few, although a permit is free.
pub(crate) async fn many_are_not_passed_by_few(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let here = one.semaphore("a", 3);
    let there = two.semaphore("a", 3);
    let first = here.permits(2).acquire().await.unwrap();
    let all = tokio::spawn(there.permits(3).acquire());
    ctx.queue_is(&one, "a", 1, 1).await;
    expect_kind(here.try_acquire().await, ErrorKind::Contended);
    let few = tokio::spawn(here.acquire());
    ctx.queue_is(&one, "a", 1, 2).await;
    let pair = tokio::spawn(there.permits(2).acquire());
    ctx.queue_is(&one, "a", 1, 3).await;
    give_back(first).await;
    let all = ctx.served("who asks for all", all).await;
    ctx.queue_is(&one, "a", 1, 2).await;
    give_back(all).await;
    let few = ctx.served("who asks for one", few).await;
    let pair = ctx.served("who asks for two", pair).await;
    ctx.queue_is(&one, "a", 2, 0).await;
    give_back(few).await;
    give_back(pair).await;
    ctx.becomes_empty("a").await;
}

/// S10, by calls of `Backend`: any of the holders may give back the permit that the first in line lacks, the newest too.
pub(crate) async fn any_holder_may_make_room(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    for leaver in 0..3 {
        let permit = |policy| ctx.claim_as("a", permits(1, 3), policy);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(taken(&*one, permit(WaitPolicy::Fair)).await);
        }
        let next = permit(WaitPolicy::Fair);
        waiting(two.claim(&next).await);
        given_back(&*one, &held[leaver]).await;
        let next = taken(&*two, next).await;
        busy(
            "a fourth of 3 permits",
            two.claim(&permit(WaitPolicy::Try)).await,
        );
        given_back(&*two, &next).await;
        for lease in &held {
            given_back(&*one, lease).await;
        }
        ctx.becomes_empty("a").await;
    }
}

/// A crash gives permits back: those of a dead holder are free after its lease, and a dead waiter for many is skipped.
pub(crate) async fn come_back_from_the_dead(ctx: TestContext) {
    let dead = ctx.backend().await;
    let alive = ctx.store().await;
    let semaphore = alive.semaphore("a", 3);
    granted(
        dead.claim(&ctx.claim_as("a", permits(2, 3), WaitPolicy::Fair))
            .await,
    );
    let first = semaphore.acquire().await.unwrap();
    waiting(
        dead.claim(&ctx.claim_as("a", permits(3, 3), WaitPolicy::Fair))
            .await,
    );
    let pair = tokio::spawn(semaphore.permits(2).acquire());
    let pair = ctx.served("the permits of the dead", pair).await;
    assert!(first.is_valid(), "{:?}", first.check());
    give_back(pair).await;
    give_back(first).await;
    ctx.becomes_empty("a").await;
}

/// A count of permits that differs from the queue's is an error, leaves nothing and disturbs no other claim.
pub(crate) async fn of_another_count_are_refused(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let semaphore = one.semaphore("a", 3);
    let first = semaphore.acquire().await.unwrap();
    let limit = Duration::from_secs(5);
    for count in [1, 2, 4, u32::MAX] {
        let other = two.semaphore("a", count);
        let error = expect_kind(
            within(limit, "the refusal", other.acquire()).await,
            ErrorKind::Invalid,
        );
        assert!(
            error.to_string().contains(&count.to_string()) && error.to_string().contains('3'),
            "{error}"
        );
        expect_kind(
            within(limit, "the refusal", other.try_acquire()).await,
            ErrorKind::Invalid,
        );
        expect_kind(
            within(limit, "the refusal", other.acquire_timeout(limit)).await,
            ErrorKind::Invalid,
        );
    }
    ctx.queue_is(&two, "a", 1, 0).await;
    let pair = within(
        limit,
        "the rest",
        two.semaphore("a", 3).permits(2).acquire(),
    )
    .await
    .unwrap();
    // Also while others wait.
    let waiter = tokio::spawn(two.semaphore("a", 3).acquire());
    ctx.queue_is(&one, "a", 2, 1).await;
    expect_kind(
        within(limit, "the refusal", two.semaphore("a", 5).acquire()).await,
        ErrorKind::Invalid,
    );
    ctx.queue_is(&one, "a", 2, 1).await;
    give_back(pair).await;
    give_back(first).await;
    give_back(ctx.served("who waited", waiter).await).await;
    ctx.becomes_empty("a").await;
    // No claim is in the queue, so another count is accepted.
    give_back(two.semaphore("a", 2).permits(2).acquire().await.unwrap()).await;
}

/// Zero permits, and more than there are, are refused at once and leave nothing; the greatest count works.
pub(crate) async fn of_no_sense_are_refused(ctx: TestContext) {
    let store = ctx.store().await;
    for lock in [
        store.semaphore("a", 0).permits(1),
        store.semaphore("a", 0).permits(0),
        store.semaphore("a", 3).permits(0),
        store.semaphore("a", 3).permits(4),
        store.semaphore("a", 3).permits(u32::MAX),
        store.semaphore("", 3).permits(1),
    ] {
        expect_kind(lock.acquire().await, ErrorKind::Invalid);
        expect_kind(lock.try_acquire().await, ErrorKind::Invalid);
    }
    ctx.becomes_empty("a").await;
    let all = store.semaphore("a", u32::MAX);
    let most = all.permits(u32::MAX - 1).acquire().await.unwrap();
    let one = all.acquire().await.unwrap();
    expect_kind(all.try_acquire().await, ErrorKind::Contended);
    drop((most, one));
    ctx.becomes_empty("a").await;
}

/// An operator evicts one holder by its token: its permits alone are free, and the next gets them.
pub(crate) async fn of_one_holder_are_evicted(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let operator = ctx.store().await;
    let here = one.semaphore("a", 2).ttl(LONG);
    let there = two.semaphore("a", 2).ttl(LONG);
    let first = here.acquire().await.unwrap();
    let second = there.acquire().await.unwrap();
    let waiter = tokio::spawn(there.acquire());
    ctx.queue_is(&operator, "a", 2, 1).await;
    assert!(operator.evict("a", first.fencing_token()).await.unwrap());
    let third = within(Duration::from_secs(8), "the next", waiter)
        .await
        .unwrap()
        .unwrap();
    told_of_eviction(Duration::from_secs(8), first.lost()).await;
    assert!(second.confirm().await.is_ok(), "another holder was evicted");
    assert!(!operator.evict("a", first.fencing_token()).await.unwrap());
    expect_kind(first.release().await, ErrorKind::Lost);
    assert!(second.confirm().await.is_ok() && third.confirm().await.is_ok());
    second.release().await.unwrap();
    third.release().await.unwrap();
}

/// `max_hold`, `run`, and a refusal of what has no meaning for permits.
pub(crate) async fn end_and_run_as_any_lock(ctx: TestContext) {
    let store = ctx.store().await;
    let pair = store.semaphore("a", 2).permits(2);
    let guard = pair.acquire().await.unwrap();
    expect_kind(guard.downgrade().await, ErrorKind::Invalid);
    give_back(guard).await;
    ends_and_runs(&ctx, pair).await;
}

/// S10: the count of a queue is also set by claims that only wait: a claim with another count is
/// refused although no permit is in use.
pub(crate) async fn of_another_count_than_waiters_are_refused(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let writer = taken(&*one, ctx.claim("a", WaitPolicy::Fair)).await;
    let waiter = ctx.claim_as("a", permits(1, 3), WaitPolicy::Fair);
    waiting(one.claim(&waiter).await);
    for policy in [WaitPolicy::Fair, WaitPolicy::Try] {
        let other = ctx.claim_as("a", permits(1, 5), policy);
        expect_kind(two.claim(&other).await, ErrorKind::Invalid);
        two.release(&other, None).await.unwrap();
    }
    given_back(&*one, &writer).await;
    let waiter = taken(&*one, waiter).await;
    given_back(&*one, &waiter).await;
    ctx.becomes_empty("a").await;
}
