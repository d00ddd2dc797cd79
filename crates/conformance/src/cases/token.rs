//! Do tokens rise, whatever happens in between?

use std::time::Duration;

use leasehold_core::backend::{Backend, Claim, Claimed, Grant, WaitPolicy};
use leasehold_core::{Fencing, FencingToken, Owner};

use crate::context::{TestContext, given_back, granted, pause, taken, until, waiting, within};

/// Returns the token of the next holder.
pub(crate) async fn next(ctx: &TestContext) -> FencingToken {
    let store = ctx.store().await;
    let guard = ctx.soon(&store, "a", Duration::from_secs(30)).await;
    let token = guard.fencing_token();
    drop(guard.release().await);
    token
}

/// Tokens rise across release and eviction, and with fast claims between.
pub(crate) async fn rises_across_release_and_eviction(ctx: TestContext) {
    let mut last = next(&ctx).await;
    let store = ctx.store().await;
    for round in 0..4 {
        let lock = if round % 2 == 0 {
            store.lock("a")
        } else {
            store.lock("a").fast()
        };
        let guard = lock.acquire().await.unwrap();
        assert!(guard.fencing_token() > last);
        last = guard.fencing_token();
        assert!(
            store.evict("a", last).await.unwrap(),
            "the holder is evicted by its token"
        );
        assert!(
            !store.evict("a", last).await.unwrap(),
            "no client holds it by that token any more"
        );
    }
    assert!(next(&ctx).await > last);
}

/// Tokens rise across the death of a holder.
pub(crate) async fn rises_across_expiry(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let dead = ctx.claim("a", WaitPolicy::Fair);
    let heir = ctx.claim("a", WaitPolicy::Fair);
    let first = granted(one.claim(&dead).await);
    let limit = ctx.ttl() * 2 + two.guarantees().recovery() + Duration::from_secs(1);
    waiting(two.claim(&heir).await);
    until(limit, "the lease of a dead holder to end", || async {
        matches!(two.claim(&heir).await.unwrap(), Claimed::Granted(_))
    })
    .await;
    let second = taken(&*two, heir).await;
    assert!(second.token > Some(first.token));
    given_back(&*two, &second).await;
}

/// Tokens rise across a restart of the server that keeps its data.
pub(crate) async fn rises_across_restart(ctx: TestContext) {
    let ctx = ctx.private().await;
    let before = next(&ctx).await;
    ctx.harness().restart().await;
    assert!(next(&ctx).await > before);
}

/// Tokens rise across the loss of all data, for stores that promise it: a counter that restarts
/// would make the fence refuse new holders.
pub(crate) async fn rises_across_data_loss(ctx: TestContext) {
    let ctx = ctx.private().await;
    assert_eq!(
        ctx.store().await.guarantees().fencing(),
        Fencing::SurvivesDataLoss
    );
    let mut last = next(&ctx).await;
    for _ in 0..5 {
        ctx.harness().wipe().await;
        let token = next(&ctx).await;
        assert!(token > last);
        last = token;
    }
}

/// Renewal, confirmation and re-entry keep the token.
pub(crate) async fn is_equal_within_a_hold(ctx: TestContext) {
    let store = ctx.store().await;
    let owner = Owner::new();
    let lock = store.lock("a").owner(&owner);
    let guard = lock.acquire().await.unwrap();
    let token = guard.fencing_token();
    for _ in 0..3 {
        tokio::time::sleep(ctx.ttl() / 3).await;
        let _ = guard.confirm().await;
        assert_eq!(lock.acquire().await.unwrap().fencing_token(), token);
        assert_eq!(
            store.lock("a").inspect().await.unwrap().holders[0].token,
            Some(token)
        );
    }
    drop(guard.release().await);
}

/// S3: a grant owns as many tokens as it says: the next holder's tokens are greater, whether it
/// waited or came later, and whether or not it takes turns too.
pub(crate) async fn is_reserved_for_each_turn(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let mut next = 0;
    for (waits, policy) in [
        (true, WaitPolicy::Fast),
        (false, WaitPolicy::Fast),
        (true, WaitPolicy::Fair),
        (false, WaitPolicy::Fair),
    ] {
        for claim in [ctx.claim("a", policy), ctx.claim("a", WaitPolicy::Fast)] {
            let waiter = ctx.claim("a", policy);
            let grant = granted(one.claim(&claim).await);
            assert!(
                grant.token.get() >= next,
                "{:?} was reserved for the one before",
                grant.token
            );
            next = grant.token.get() + u64::from(grant.turns);
            if waits {
                waiting(two.claim(&waiter).await);
            }
            one.release(&claim, Some(&grant.place)).await.unwrap();
            let after = within(
                Duration::from_secs(8),
                "the turn of who waits",
                next_turn(&*two, &waiter),
            )
            .await;
            assert!(
                after.token.get() >= next,
                "{:?} was reserved for the one before",
                after.token
            );
            next = after.token.get() + u64::from(after.turns);
            two.release(&waiter, Some(&after.place)).await.unwrap();
        }
    }
}

/// Claims until it is granted: a server that lags behind others may not know yet that the holder
/// before is gone.
pub(crate) async fn next_turn(client: &dyn Backend, waiter: &Claim) -> Grant {
    loop {
        match client.claim(waiter).await.unwrap() {
            Claimed::Granted(grant) => return grant,
            _ => pause().await,
        }
    }
}
