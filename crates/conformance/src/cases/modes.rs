//! Do the primitives of one name stand in one queue?

use std::time::Duration;

use leasehold_core::backend::{Mode, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Guard, Result};
use tokio::task::JoinHandle;

use crate::context::{TestContext, counts, expect_kind, give_back, granted, within};

/// All primitives on one name: each claim waits for those before it, and compatible claims hold
/// together.
pub(crate) async fn stand_in_one_line(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let guard = one.lock("a").acquire().await.unwrap();
    expect_kind(
        two.rw_lock("a").read().try_acquire().await,
        ErrorKind::Contended,
    );
    expect_kind(
        two.semaphore("a", 2).try_acquire().await,
        ErrorKind::Contended,
    );
    expect_kind(
        two.election("a").try_campaign("x").await,
        ErrorKind::Contended,
    );
    expect_kind(
        two.multi_lock(["a", "b"]).try_acquire().await,
        ErrorKind::Contended,
    );
    let mut waits = Vec::new();
    for lock in [
        two.rw_lock("a").read(),
        one.rw_lock("a").read(),
        one.semaphore("a", 2).permits(1),
        two.semaphore("a", 2).permits(1),
        two.rw_lock("a").read(),
    ] {
        waits.push(tokio::spawn(lock.acquire()));
        ctx.queue_is(&one, "a", 1, waits.len()).await;
    }
    let campaign = tokio::spawn(one.election("a").campaign("me"));
    ctx.queue_is(&one, "a", 1, 6).await;
    let mut waits = waits.into_iter();
    let mut last = guard.fencing_token();
    give_back(guard).await;
    last = together(&ctx, &mut waits, (2, 1), last).await;
    last = together(&ctx, &mut waits, (2, 1), last).await;
    last = together(&ctx, &mut waits, (1, 1), last).await;
    let leadership = ctx.served("the candidate", campaign).await;
    assert!(leadership.fencing_token() > last);
    expect_kind(two.lock("a").try_acquire().await, ErrorKind::Contended);
    drop(leadership);
    ctx.becomes_empty("a").await;
}

/// Checks that the next `n` claims in the queue hold at once, and that no other does before the
/// last of them has left. Gives them back and returns the greatest of their tokens.
pub(super) async fn together(
    ctx: &TestContext,
    waits: &mut impl ExactSizeIterator<Item = JoinHandle<Result<Guard>>>,
    (n, behind): (usize, usize),
    last: FencingToken,
) -> FencingToken {
    let store = ctx.store().await;
    let mut guards = Vec::new();
    for wait in waits.take(n) {
        guards.push(ctx.served("whose turn it is", wait).await);
    }
    assert!(
        guards
            .iter()
            .all(|guard| guard.is_valid() && guard.fencing_token() > last),
        "{guards:?} after {last:?}"
    );
    let greatest = guards.iter().map(Guard::fencing_token).max().unwrap();
    while let Some(guard) = guards.pop() {
        ctx.queue_is(&store, "a", guards.len() + 1, waits.len() + behind)
            .await;
        give_back(guard).await;
    }
    greatest
}

/// The end of each mode wakes waiters of every other mode at once, not at their next poll.
pub(crate) async fn wake_one_another(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let ttl = Duration::from_secs(60);
    let lock = one.rw_lock("a").ttl(ttl);
    let semaphore = two.semaphore("a", 2).ttl(ttl);
    let first = lock.write().acquire().await.unwrap();
    // Permits wait for a writer, a reader for permits, a writer for a reader, and each also the
    // other way round.
    let claims = [
        semaphore.permits(2),
        lock.read(),
        lock.write(),
        lock.read(),
        semaphore.permits(2),
        lock.write(),
    ];
    let mut waiters = Vec::new();
    for claim in claims {
        waiters.push(tokio::spawn(claim.acquire()));
        ctx.queue_is(&two, "a", 1, waiters.len()).await;
    }
    first.release().await.unwrap();
    for (n, waiter) in waiters.into_iter().enumerate() {
        let what = format!("the push to waiter {n}");
        let guard = within(Duration::from_secs(10), &what, waiter)
            .await
            .unwrap()
            .unwrap();
        guard.release().await.unwrap();
    }
}

/// Tokens rise from each grant to the next conflicting one, for all modes and every way in which a
/// hold ends.
pub(crate) async fn raise_one_anothers_tokens(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let mut last = None;
    for round in 0..2 {
        let locks = [
            one.lock("a"),
            two.rw_lock("a").read(),
            one.rw_lock("a").write(),
            two.semaphore("a", 3).permits(2),
            one.rw_lock("a").read(),
            two.lock("a").fast(),
            one.semaphore("a", 1).permits(1),
        ];
        for (i, lock) in locks.iter().enumerate() {
            let guard = lock.acquire().await.unwrap();
            let token = guard.fencing_token();
            assert!(Some(token) > last, "{lock:?}: {token:?} after {last:?}");
            last = Some(token);
            match (round + i) % 2 {
                0 => give_back(guard).await,
                _ => assert!(two.evict("a", token).await.unwrap()),
            }
        }
    }
}

/// S1 in every mode: a repeated claim answers the same grant, and stores the new label.
pub(crate) async fn are_each_claimed_idempotently(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 2, of: 3 }] {
        let claim = ctx.claim_as("a", mode, WaitPolicy::Fair);
        let first = granted(one.claim(&claim).await);
        let again = granted(one.claim(&claim.clone().with_label("another")).await);
        assert_eq!(first.token, again.token, "{mode:?}");
        let queue = two.inspect(&claim.name).await.unwrap();
        assert_eq!(counts(&queue), (1, 0), "{mode:?}");
        assert_eq!(
            queue.holders[0].label.as_deref(),
            Some("another"),
            "{mode:?}"
        );
        one.release(&claim, Some(&again.place)).await.unwrap();
        one.release(&claim, None).await.unwrap();
        ctx.becomes_empty("a").await;
    }
}
