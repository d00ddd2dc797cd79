//! Does a holder learn that it was evicted?

use std::time::Duration;

use leasehold_core::backend::WaitPolicy;
use leasehold_core::{ErrorKind, FencingToken, Guard, Result, Store};
use tokio::task::JoinSet;

use crate::context::{LONG, TestContext, expect_kind, granted, told_of_eviction, within};
use crate::faulty::Faults;

/// An operator evicts the holder: the next waiter gets the lock at once, and the evicted holder
/// hears of it.
pub(crate) async fn by_eviction_frees_the_next(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let operator = ctx.store().await;
    let guard = one.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(two.lock("a").ttl(LONG).acquire());
    ctx.queue_reaches(&operator, "a", 1).await;
    assert!(operator.evict("a", guard.fencing_token()).await.unwrap());
    let next = within(Duration::from_secs(4), "the next holder", waiter)
        .await
        .unwrap()
        .unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    told_of_eviction(Duration::from_secs(8), guard.lost()).await;
    expect_kind(guard.release().await, ErrorKind::Lost);
    assert!(next.confirm().await.is_ok());
}

/// An operator who is late evicts no holder: the token names a hold, not the name's next holder.
pub(crate) async fn eviction_by_an_old_token_ends_no_hold(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let operator = ctx.store().await;
    let old = one.lock("a").acquire().await.unwrap();
    let token = old.fencing_token();
    old.release().await.unwrap();
    let guard = two.lock("a").acquire().await.unwrap();
    assert!(
        !operator.evict("a", token).await.unwrap(),
        "another hold was evicted"
    );
    assert!(guard.confirm().await.is_ok(), "another hold was evicted");
    let waiter = tokio::spawn(one.lock("a").acquire());
    ctx.queue_reaches(&operator, "a", 1).await;
    assert!(
        !operator.evict("a", token).await.unwrap(),
        "another hold was evicted"
    );
    assert!(guard.confirm().await.is_ok(), "another hold was evicted");
    guard.release().await.unwrap();
    within(ctx.ttl() * 2, "the waiter", waiter)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Evicts the first holder; returns its token.
async fn evicts_as_soon_as_seen(operator: &Store, name: &str) -> FencingToken {
    loop {
        let queue = operator.lock(name).inspect().await.unwrap_or_default();
        if let Some(token) = queue.holders.first().and_then(|holder| holder.token)
            && operator.evict(name, token).await.unwrap()
        {
            return token;
        }
        tokio::task::yield_now().await;
    }
}

/// Fails if the guard of an evicted hold is not told by the store. One that was claimed again since then is another hold.
async fn hears_of_it(guard: Result<Guard>, evicted: FencingToken, limit: Duration) {
    let guard = guard.unwrap();
    if guard.fencing_token() == evicted {
        told_of_eviction(limit, guard.lost()).await;
    }
}

/// S14: an operator evicts holders in the very moment in which they get it, before they know of it themselves: each is told.
pub(crate) async fn by_eviction_at_any_moment_is_told(ctx: TestContext) {
    let one = ctx.store().await;
    let operator = ctx.store().await;
    let limit = ctx.ttl() * 3 + Duration::from_secs(10);
    let mut evicted = JoinSet::new();
    for i in 0..20 {
        let holder = one.clone();
        let operator = operator.clone();
        evicted.spawn(async move {
            let name = format!("{i}");
            let taking = tokio::spawn(holder.lock(&*name).acquire());
            let token = within(
                limit,
                "a holder to evict",
                evicts_as_soon_as_seen(&operator, &name),
            )
            .await;
            hears_of_it(taking.await.unwrap(), token, limit).await;
        });
    }
    while let Some(done) = evicted.join_next().await {
        done.unwrap();
    }
}

/// S14: the answer to a claim is held back, and the hold is evicted before the answer comes. No
/// notification is heard.
pub(crate) async fn by_eviction_before_the_answer_is_told(ctx: TestContext) {
    let faults = Faults::default();
    faults.lose_notifications();
    let one = ctx.store_with(&faults).await;
    let operator = ctx.store().await;
    let limit = ctx.ttl() * 3 + Duration::from_secs(10);
    for lock in [one.lock("a"), one.lock("a").fast()] {
        faults.hold_claim_replies(true);
        let taking = tokio::spawn(lock.acquire());
        let token = within(
            limit,
            "a holder to evict",
            evicts_as_soon_as_seen(&operator, "a"),
        )
        .await;
        faults.hold_claim_replies(false);
        hears_of_it(taking.await.unwrap(), token, limit).await;
        ctx.becomes_empty("a").await;
    }
}

/// An operator may use any of a hold's tokens: that of the turn that it saw, the first, or the last
/// reserved one. The token after that ends no hold.
pub(crate) async fn by_eviction_of_any_turn(ctx: TestContext) {
    let one = ctx.store().await;
    let operator = ctx.store().await;
    let lock = one.lock("a").ttl(LONG).fast();
    for evicts_the_first in [true, false] {
        let first = lock.acquire().await.unwrap();
        let token = first.fencing_token();
        let mut waiter = std::pin::pin!(lock.acquire());
        // It stands in the local line before the first leaves.
        assert!(
            tokio::time::timeout(Duration::from_millis(20), &mut waiter)
                .await
                .is_err()
        );
        first.release().await.unwrap();
        let second = within(LONG, "the second turn", waiter).await.unwrap();
        let said = if evicts_the_first {
            token
        } else {
            second.fencing_token()
        };
        assert!(
            operator.evict("a", said).await.unwrap(),
            "no hold was evicted by {said:?} of {token:?} and on"
        );
        told_of_eviction(LONG, second.lost()).await;
        drop(second);
        ctx.becomes_empty("a").await;
    }
    // The answer of `Backend::claim` shows the number of reserved tokens.
    let client = ctx.backend().await;
    for last in [true, false] {
        let claim = ctx.claim("b", WaitPolicy::Fast);
        let grant = granted(client.claim(&claim).await);
        let beyond = FencingToken::new(grant.token.get() + u64::from(grant.turns));
        assert!(
            !operator.evict("b", beyond).await.unwrap(),
            "{beyond:?} is no hold's"
        );
        let any = if last {
            FencingToken::new(beyond.get() - 1)
        } else {
            grant.token
        };
        assert!(
            operator.evict("b", any).await.unwrap(),
            "{any:?} is one of {grant:?}"
        );
        client.release(&claim, Some(&grant.place)).await.unwrap();
    }
}
