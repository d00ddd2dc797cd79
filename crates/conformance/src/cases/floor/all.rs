//! The mark of the tokens of all names, and the raise of all of them.

use std::sync::Arc;

use leasehold_core::backend::{Backend, LeaseRef, Place, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken};

use super::{SOON, behind, far, floor_of, for_long, number, tokens, with_floor};
use crate::cases::token::{next, next_turn};
use crate::context::{
    TestContext, expect_kind, given_back, granted, renewed, taken, waiting, within,
};

fn limit(client: &dyn Backend) -> FencingToken {
    floor_of(client).raises().limit()
}

/// S16, S17: a number beyond the limit is refused, and changes nothing: no hold, no place, no later token.
pub(crate) async fn has_a_limit(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let held = taken(&*one, for_long(ctx.claim("a", WaitPolicy::Fair))).await;
    for beyond in [limit(&*one).get() + 1, u64::MAX] {
        expect_kind(
            floor_of(&*one).raise(number(beyond)).await,
            ErrorKind::Invalid,
        );
        expect_kind(
            one.claim(&with_floor((*held.claim).clone(), beyond)).await,
            ErrorKind::Invalid,
        );
        for name in ["a", "b"] {
            let claim = with_floor(ctx.claim(name, WaitPolicy::Fair), beyond);
            expect_kind(two.claim(&claim).await, ErrorKind::Invalid);
        }
    }
    assert_eq!(tokens(&ctx, &*two).await, [held.token.unwrap()]);
    assert!(
        matches!(renewed(&*one, &held).await, Ok(Renewal::Renewed(_))),
        "the hold is as it was"
    );
    given_back(&*one, &held).await;
    ctx.become_empty(&["a", "b"]).await;
    let after = taken(&*one, ctx.claim("b", WaitPolicy::Fair)).await;
    assert!(after.token < Some(limit(&*one)), "{:?}", after.token);
    given_back(&*one, &after).await;
}

/// S16: tokens at the limit and behind it are still told apart, by all that knows a hold by them.
pub(crate) async fn may_be_the_limit(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let mut least = limit(&*one).get();
    let claim = for_long(ctx.claim("a", WaitPolicy::Fast));
    granted(one.claim(&claim).await);
    let mut grant = granted(one.claim(&with_floor(claim.clone(), least)).await);
    let mut lease = LeaseRef::new(Arc::new(claim), grant.place.clone(), Some(grant.token));
    assert_eq!(grant.token.get(), least, "raised to the limit");
    for _ in 0..3 {
        assert!(
            grant.token.get() >= least,
            "{:?} after all before {least}",
            grant.token
        );
        least = behind(&grant);
        assert!(
            floor_of(&*two).mark().await.unwrap().get() >= least - 1,
            "the mark is before the last turn"
        );
        assert!(
            matches!(renewed(&*one, &lease).await, Ok(Renewal::Renewed(_))),
            "renewed by {:?}",
            grant.token
        );
        assert_eq!(tokens(&ctx, &*two).await, [grant.token], "what others see");
        for other in [grant.token.get() - 1, least] {
            assert!(
                !two.evict(&lease.claim.name, number(other)).await.unwrap(),
                "{other} is none of {grant:?}"
            );
        }
        assert!(two.evict(&lease.claim.name, grant.token).await.unwrap());
        let next = for_long(ctx.claim("a", WaitPolicy::Fast));
        grant = granted(one.claim(&next).await);
        lease = LeaseRef::new(Arc::new(next), grant.place.clone(), Some(grant.token));
    }
    given_back(&*one, &lease).await;
}

/// S17: after a raise the tokens of all names are greater than the number: of used and free names,
/// of held ones, and of new ones. A smaller number changes nothing.
pub(crate) async fn is_raised_for_all_names(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    given_back(&*one, &taken(&*one, ctx.claim("a", WaitPolicy::Fair)).await).await;
    let held = taken(&*one, for_long(ctx.claim("b", WaitPolicy::Fast))).await;
    let raised = far(&*two).await;
    for asked in [raised, raised - 1, 0, raised] {
        floor_of(&*two).raise(number(asked)).await.unwrap();
    }
    assert!(
        floor_of(&*two).mark().await.unwrap().get() >= raised,
        "the mark says what was raised"
    );
    assert!(
        matches!(renewed(&*one, &held).await, Ok(Renewal::Renewed(_))),
        "who held goes on"
    );
    given_back(&*one, &held).await;
    for client in [&one, &two, &ctx.backend().await] {
        for name in ["a", "b", "never heard of"] {
            let lease = taken(&**client, ctx.claim(name, WaitPolicy::Fair)).await;
            assert!(
                lease.token > Some(number(raised)),
                "{:?} of {name:?} after {raised}",
                lease.token
            );
            given_back(&**client, &lease).await;
        }
    }
}

/// S17: if a hold is numbered when it is granted, the raise also affects claims that wait in the
/// queue already.
pub(crate) async fn is_raised_for_those_who_wait(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let holder = taken(&*one, for_long(ctx.claim("a", WaitPolicy::Fair))).await;
    let waiter = for_long(ctx.claim("a", WaitPolicy::Fair));
    waiting(two.claim(&waiter).await);
    let raised = far(&*one).await;
    floor_of(&*one).raise(number(raised)).await.unwrap();
    given_back(&*one, &holder).await;
    let grant = within(SOON, "the turn of who waits", next_turn(&*two, &waiter)).await;
    assert!(
        grant.token.get() > raised,
        "{:?} of who waited, after {raised}",
        grant.token
    );
    two.release(&waiter, Some(&grant.place)).await.unwrap();
}

/// S17: a raise lasts as long as the order of tokens does, also across a restart.
pub(crate) async fn is_raised_across_a_restart(ctx: TestContext) {
    let ctx = ctx.private().await;
    let before = next(&ctx).await;
    let client = ctx.backend().await;
    let raised = far(&*client).await;
    floor_of(&*client).raise(number(raised)).await.unwrap();
    ctx.harness().restart().await;
    let after = next(&ctx).await;
    assert!(
        after > number(raised),
        "{after:?} after {before:?}, and {raised} was raised"
    );
}

/// S17: no token of any turn of any name that was granted before the mark was asked for exceeds it.
pub(crate) async fn is_marked(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let mut leases = Vec::new();
    for (name, policy) in [
        ("a", WaitPolicy::Fast),
        ("b", WaitPolicy::Fair),
        ("c", WaitPolicy::Fast),
    ] {
        let claim = ctx.claim(name, policy);
        let grant = granted(one.claim(&claim).await);
        let mark = floor_of(&*two).mark().await.unwrap().get();
        assert!(
            mark + 1 >= behind(&grant),
            "{mark} is before the last of {grant:?}"
        );
        leases.push((claim, grant.place));
    }
    for (claim, place) in leases {
        let place: Option<&Place> = Some(&place);
        one.release(&claim, place).await.unwrap();
    }
}
