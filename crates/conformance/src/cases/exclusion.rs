//! Do two holders ever both say *valid*?

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::WaitPolicy;
use leasehold_core::{DistributedLock, ErrorKind, Guard, Store};

use crate::cases::protected::Protected;
use crate::context::{
    LONG, TestContext, busy, counts, expect_kind, given_back, granted, is_glance, pause, taken,
    until, waiting, within,
};

/// Each of `locks` increments the counter `each` times; the sum must be exact and tokens must rise.
/// Each increment is a step of the case.
async fn count(ctx: &TestContext, locks: Vec<Arc<dyn DistributedLock>>, each: u64) {
    let counter = Arc::new(Protected::default());
    let total = locks.len() as u64 * each;
    let tasks: Vec<_> = locks
        .into_iter()
        .map(|lock| {
            let counter = counter.clone();
            let ctx = ctx.clone();
            tokio::spawn(async move {
                for _ in 0..each {
                    let guard = acquired(&ctx, &*lock).await;
                    counter.write(guard.fencing_token().get()).await;
                    assert!(guard.is_valid());
                    drop(guard.release().await);
                    ctx.step();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.writes(), total);
}

/// Acquires the lock, with up to five attempts. With many clients on a small machine the servers
/// may be out of reach for longer than an acquire tries. A lock that a failed attempt may have got
/// is withdrawn before the next attempt gets it. The errors are reported; a store that fails again
/// and again is broken.
async fn acquired(ctx: &TestContext, lock: &dyn DistributedLock) -> Guard {
    for _ in 0..5 {
        match lock.acquire().await {
            Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous) => {
                ctx.harness()
                    .tell(&format!("asked again after a lease of failures: {e}"));
                pause().await;
            }
            other => return other.unwrap(),
        }
    }
    lock.acquire().await.unwrap()
}

fn dynamic(store: &Store) -> Arc<dyn DistributedLock> {
    Arc::new(store.lock("counter"))
}

/// Tasks of four clients increment an unprotected counter; the sum is exact and each token greater.
pub(crate) async fn contenders(ctx: TestContext) {
    let mut locks = Vec::new();
    for _ in 0..4 {
        let store = ctx.store().await;
        locks.extend([dynamic(&store), dynamic(&store)]);
    }
    count(&ctx, locks, 10).await;
}

/// The articles' test: N tasks, each with its own client, increment an unprotected counter under
/// the lock. `LEASEHOLD_INCREMENTS` sets the number of increments of each task; the default is as
/// many as a suite has time for, and fewer of both for a glance.
pub(crate) async fn counter(ctx: TestContext) {
    let most_tasks = if is_glance() { 50 } else { usize::MAX };
    let total = if is_glance() { 250 } else { 1_000 };
    let tasks = ctx.harness().counters().min(most_tasks);
    let said = std::env::var("LEASEHOLD_INCREMENTS")
        .ok()
        .and_then(|text| text.parse().ok());
    let each = said.unwrap_or(total / tasks as u64);
    let mut locks = Vec::new();
    for _ in 0..tasks {
        // Many clients on a small machine: this counts, it does not time leases.
        locks.push(dynamic(&ctx.store().await.ttl(LONG)));
    }
    let started = tokio::time::Instant::now();
    count(&ctx, locks, each).await;
    let total = tasks as u64 * each;
    let took = started.elapsed();
    ctx.harness()
        .tell(&format!("{tasks} clients counted to {total} in {took:.1?}"));
}

/// Two handles of one client exclude each other. (etcd's `concurrency.Mutex` takes two of one session for the same owner.)
pub(crate) async fn two_of_one_client(ctx: TestContext) {
    let store = ctx.store().await;
    let first = store.lock("a").acquire().await.unwrap();
    expect_kind(store.lock("a").try_acquire().await, ErrorKind::Contended);
    drop(first.release().await);
    drop(ctx.soon(&store, "a", Duration::from_secs(10)).await);
}

/// A failed try names the holder.
pub(crate) async fn try_says_who(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let guard = one.lock("a").label("the holder").acquire().await.unwrap();
    let token = Some(guard.fencing_token());
    until(ctx.ttl(), "a refusal with the holder's token", || async {
        let error = expect_kind(two.lock("a").try_acquire().await, ErrorKind::Contended);
        assert_eq!(error.name().map(|name| name.as_str()), Some("a"));
        let who = error.into_contention().unwrap();
        assert_eq!(who.label.as_deref(), Some("the holder"));
        // One of several servers may have granted late, with a token of its own that is not written over yet.
        who.token == token
    })
    .await;
}

/// S1: a repeated claim answers the same grant, and a repeated wait the same place in the queue.
pub(crate) async fn claiming_again_is_idempotent(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let holder = ctx.claim("a", WaitPolicy::Fair);
    let waiter = ctx.claim("a", WaitPolicy::Fair);
    let first = granted(one.claim(&holder).await);
    let again = granted(one.claim(&holder.clone().with_label("another")).await);
    assert_eq!(first.token, again.token);
    let place = waiting(two.claim(&waiter).await).place;
    assert_eq!(place, waiting(two.claim(&waiter).await).place);
    let queue = two.inspect(&ctx.full("a")).await.unwrap();
    assert_eq!(counts(&queue), (1, 1));
    assert_eq!(queue.holders[0].label.as_deref(), Some("another"));
    one.release(&holder, Some(&again.place)).await.unwrap();
    two.release(&waiter, Some(&place)).await.unwrap();
    ctx.becomes_empty("a").await;
}

/// S5: a try that failed is nowhere in the queue, at once and not only after a lease, and delays no other claim.
pub(crate) async fn a_failed_try_leaves_nothing(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let holder = taken(&*one, ctx.claim("a", WaitPolicy::Fair)).await;
    for _ in 0..3 {
        busy(
            "it is held",
            two.claim(&ctx.claim("a", WaitPolicy::Try)).await,
        );
    }
    let queue = one.inspect(&ctx.full("a")).await.unwrap();
    assert!(
        queue.waiters.is_empty(),
        "a failed try left a place: {queue:?}"
    );
    given_back(&*one, &holder).await;
    let next = taken(&*two, ctx.claim("a", WaitPolicy::Try)).await;
    given_back(&*two, &next).await;
}

/// Fair and fast claims share one queue, and tokens rise across both.
pub(crate) async fn fast_and_fair_together(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let locks: Vec<Arc<dyn DistributedLock>> = vec![
        Arc::new(one.lock("counter").fast()),
        Arc::new(one.lock("counter").fast()),
        Arc::new(one.lock("counter").fair()),
        Arc::new(two.lock("counter").fast()),
        Arc::new(two.lock("counter").fast()),
        Arc::new(two.lock("counter").fair()),
    ];
    count(&ctx, locks, 10).await;
}

/// Another tool's entry in the plain layout is waited for, and reported as such.
pub(crate) async fn another_tool_is_waited_for(ctx: TestContext) {
    let store = ctx.store().await;
    let foreign = ctx
        .harness()
        .hold_as_another_tool(ctx.full("a").as_str())
        .await;
    let who = expect_kind(store.lock("a").try_acquire().await, ErrorKind::Contended)
        .into_contention()
        .unwrap();
    assert!(who.foreign, "{who:?}");
    let waiter = tokio::spawn(store.lock("a").acquire());
    ctx.queue_reaches(&store, "a", 1).await;
    foreign.release().await;
    let guard = within(ctx.ttl() * 2, "the lock after the other tool", waiter)
        .await
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
}
