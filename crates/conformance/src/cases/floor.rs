//! Are tokens as great as requested: of a grant, of a hold, of a waiter, and of all names?

mod all;

use leasehold_core::backend::TokenFloor;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::FencingToken;
use leasehold_core::backend::Raises;
use leasehold_core::backend::{
    Backend, Claim, Claimed, ClaimedAll, Grant, LeaseRef, Mode, Notification, Renewal, WaitPolicy,
};
use tokio::sync::mpsc;

use crate::cases::token::next_turn;
use crate::context::{
    LONG, TestContext, busy, given_back, granted, renewed, taken, waiting, within,
};
use crate::harness::Need;

pub(crate) use all::{
    has_a_limit, is_marked, is_raised_across_a_restart, is_raised_for_all_names,
    is_raised_for_those_who_wait, may_be_the_limit,
};

/// The distance of the requested tokens ahead of all others: one day, if tokens follow a clock in
/// microseconds.
const FAR: u64 = 86_400_000_000;
const SOON: Duration = Duration::from_secs(8);

async fn far(client: &dyn Backend) -> u64 {
    floor_of(client).mark().await.unwrap().get() + FAR
}

/// The client as one whose tokens can be raised: a case that asks for it needs `Raise`.
pub(crate) fn floor_of(client: &dyn Backend) -> &dyn TokenFloor {
    client.token_floor().unwrap()
}

fn number(number: u64) -> FencingToken {
    FencingToken::new(number)
}

fn with_floor(mut claim: Claim, floor: u64) -> Claim {
    claim.floor = Some(number(floor));
    claim
}

fn for_long(mut claim: Claim) -> Claim {
    claim.ttl = LONG;
    claim
}

/// The first number behind all turns of a grant.
fn behind(grant: &Grant) -> u64 {
    grant.token.get() + u64::from(grant.turns)
}

/// The tokens of the holders of `a`, as another client sees them.
async fn tokens(ctx: &TestContext, client: &dyn Backend) -> Vec<FencingToken> {
    let holders = client.inspect(&ctx.full("a")).await.unwrap().holders;
    holders.iter().map(|holder| holder.token.unwrap()).collect()
}

/// S16, S17: the store agrees with its test, and one that cannot raise its tokens ignores a floor.
pub(crate) async fn says_whether_it_raises(ctx: TestContext) {
    let client = ctx.backend().await;
    let lacks = |need| ctx.harness().capabilities().lack(&[need]).is_some();
    let raises = client.token_floor().map(|floor| floor.raises());
    let expected = (raises.is_none(), !matches!(raises, Some(Raises::Holds(_))));
    assert_eq!(
        (lacks(Need::Raise), lacks(Need::Floor)),
        expected,
        "{raises:?}"
    );
    if raises.is_none() {
        let lease = taken(
            &*client,
            with_floor(ctx.claim("a", WaitPolicy::Fair), 1 << 60),
        )
        .await;
        assert!(
            lease.token < Some(number(1 << 60)),
            "raised all the same: {:?}",
            lease.token
        );
        given_back(&*client, &lease).await;
    }
}

/// S16: a grant has at least the token that was asked for, whatever the policy; each later one is greater than all its turns.
pub(crate) async fn is_the_least_token(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    for policy in [WaitPolicy::Try, WaitPolicy::Fast, WaitPolicy::Fair] {
        given_back(&*one, &taken(&*one, ctx.claim("a", policy)).await).await;
        let floor = far(&*two).await;
        let claim = with_floor(ctx.claim("a", policy), floor);
        let grant = granted(one.claim(&claim).await);
        assert!(
            grant.token.get() >= floor,
            "{:?} is below the floor {floor}",
            grant.token
        );
        assert_eq!(tokens(&ctx, &*two).await, [grant.token], "what others see");
        one.release(&claim, Some(&grant.place)).await.unwrap();
        let mut least = behind(&grant);
        for late in [None, Some(number(floor))] {
            let mut claim = ctx.claim("a", policy);
            claim.floor = late;
            let grant = granted(two.claim(&claim).await);
            assert!(
                grant.token.get() >= least,
                "{:?} after all before {least}",
                grant.token
            );
            least = behind(&grant);
            two.release(&claim, Some(&grant.place)).await.unwrap();
        }
    }
}

/// S16: a hold is raised to exactly the floor, with its turns, and known by it. It is never
/// lowered, and the next holder's token is greater.
pub(crate) async fn raises_a_hold(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    for policy in [WaitPolicy::Fair, WaitPolicy::Fast] {
        let claim = for_long(ctx.claim("a", policy));
        let waiter = for_long(ctx.claim("a", policy));
        let before = granted(one.claim(&claim).await);
        waiting(two.claim(&waiter).await);
        let floor = far(&*two).await;
        let mut raised = granted(one.claim(&with_floor(claim.clone(), floor)).await);
        assert_eq!(
            (raised.token, raised.turns),
            (number(floor), before.turns),
            "the floor, and as many turns"
        );
        // By a part of its turns, where it has some.
        let floor = floor + u64::from(raised.turns / 2);
        raised = granted(one.claim(&with_floor(claim.clone(), floor)).await);
        assert_eq!(
            (raised.token, raised.turns),
            (number(floor), before.turns),
            "the floor, and as many turns"
        );
        for late in [
            None,
            Some(before.token),
            Some(number(floor - 1)),
            Some(number(floor)),
        ] {
            let mut claim = claim.clone();
            claim.floor = late;
            assert_eq!(
                granted(one.claim(&claim).await).token,
                raised.token,
                "changed by {late:?}"
            );
        }
        assert_eq!(tokens(&ctx, &*two).await, [raised.token], "what others see");
        let refused = busy(
            "a second holder",
            two.claim(&ctx.claim("a", WaitPolicy::Try)).await,
        );
        assert_eq!(refused.token, Some(raised.token), "what a refusal says");
        assert!(
            !two.evict(&claim.name, before.token).await.unwrap(),
            "evicted by the token from before"
        );
        assert!(
            two.evict(&claim.name, number(behind(&raised) - 1))
                .await
                .unwrap(),
            "its last turn is one of it"
        );
        let after = within(SOON, "the turn of who waits", next_turn(&*two, &waiter)).await;
        assert!(
            after.token.get() >= behind(&raised),
            "{:?} after {raised:?}",
            after.token
        );
        two.release(&waiter, Some(&after.place)).await.unwrap();
    }
}

/// S16, S7: a raised hold is renewed by its new token. A renewal with the old token, which was
/// already on its way, is answered with the new token or not at all, and never with a loss.
pub(crate) async fn is_renewed_when_raised(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let before = taken(&*one, ctx.claim_as("a", mode, WaitPolicy::Fair)).await;
        let floor = far(&*two).await;
        let lease = taken(&*one, with_floor((*before.claim).clone(), floor)).await;
        for _ in 0..6 {
            tokio::time::sleep(ctx.ttl() / 3).await;
            let by_the_old = renewed(&*one, &before).await.unwrap();
            let is_told = match &by_the_old {
                Renewal::Granted(grant) => Some(grant.token) == lease.token,
                other => matches!(other, Renewal::Renewed(_)),
            };
            assert!(is_told, "by the old token: {by_the_old:?}");
            let by_the_new = renewed(&*one, &lease).await.unwrap();
            assert!(
                matches!(by_the_new, Renewal::Renewed(_)),
                "by the new token: {by_the_new:?}"
            );
        }
        assert_eq!(
            tokens(&ctx, &*two).await,
            [lease.token.unwrap()],
            "what others see"
        );
        given_back(&*one, &lease).await;
    }
}

/// Makes a holder, and behind it a waiter whose requests had several floors: the greatest one is
/// neither the first nor the last.
async fn with_a_waiter(
    ctx: &TestContext,
    one: &dyn Backend,
    two: &dyn Backend,
) -> (LeaseRef, LeaseRef, u64) {
    let holder = taken(one, for_long(ctx.claim("a", WaitPolicy::Fast))).await;
    let waiter = for_long(ctx.claim("a", WaitPolicy::Fast));
    let floor = far(one).await;
    let mut place = None;
    for asked in [None, Some(floor - 2), Some(floor), Some(floor - 1), None] {
        let mut claim = waiter.clone();
        claim.floor = asked.map(number);
        place = Some(waiting(two.claim(&claim).await).place);
    }
    (
        holder,
        LeaseRef::new(Arc::new(waiter), place.unwrap(), None),
        floor,
    )
}

/// Checks that a granted waiter has at least its floor, and that the next holder's token is
/// greater.
async fn has_its_floor(
    ctx: &TestContext,
    two: &dyn Backend,
    waiter: &LeaseRef,
    grant: &Grant,
    floor: u64,
) {
    assert!(
        grant.token.get() >= floor,
        "{:?} is below the floor {floor}",
        grant.token
    );
    assert_eq!(
        granted(two.claim(&waiter.claim).await).token,
        grant.token,
        "claimed again"
    );
    assert_eq!(tokens(ctx, two).await, [grant.token], "what others see");
    two.release(&waiter.claim, Some(&waiter.place))
        .await
        .unwrap();
    let after = taken(two, ctx.claim("a", WaitPolicy::Fair)).await;
    assert!(
        after.token >= Some(number(behind(grant))),
        "{:?} after {grant:?}",
        after.token
    );
    given_back(two, &after).await;
}

/// S16: a waiter keeps the greatest floor of its requests, and is granted with it: as a claim or a renewal says.
pub(crate) async fn is_that_of_a_waiter(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    for by_renewal in [false, true] {
        let (holder, waiter, floor) = with_a_waiter(&ctx, &*one, &*two).await;
        given_back(&*one, &holder).await;
        let told = async {
            loop {
                match renewed(&*two, &waiter).await.unwrap() {
                    Renewal::Granted(grant) => return grant,
                    Renewal::Renewed(_) => crate::context::pause().await,
                    other => panic!("{other:?} for who waits"),
                }
            }
        };
        let grant = if by_renewal {
            within(SOON, "the renewal of who waits", told).await
        } else {
            within(
                SOON,
                "the turn of who waits",
                next_turn(&*two, &waiter.claim),
            )
            .await
        };
        has_its_floor(&ctx, &*two, &waiter, &grant, floor).await;
    }
}

/// S16: a waiter that is granted by a push has the greatest floor of its requests too.
pub(crate) async fn is_that_of_a_push(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let (holder, waiter, floor) = with_a_waiter(&ctx, &*one, &*two).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let notifier = two.notifier().expect("who pushes has a notifier");
    let _heard = notifier.subscribe(waiter.claim.id, move |said| drop(tell.send(said)));
    given_back(&*one, &holder).await;
    let pushed = async {
        loop {
            match told.recv().await {
                Some(Notification::Granted(grant)) => return grant,
                // A push may be no more than a hint.
                Some(Notification::ClaimAgain) => {
                    if let Ok(Claimed::Granted(grant)) = two.claim(&waiter.claim).await {
                        return grant;
                    }
                }
                other => panic!("{other:?} for who waits"),
            }
        }
    };
    let grant = within(LONG / 2, "the push of a release", pushed).await;
    has_its_floor(&ctx, &*two, &waiter, &grant, floor).await;
}

/// S16: several claims hold together, and each is raised by itself, to a token of its own by which
/// only it is known.
pub(crate) async fn raises_one_of_several(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    for mode in [Mode::Shared, Mode::Permits { n: 1, of: 3 }] {
        let claims = [(); 3].map(|()| for_long(ctx.claim_as("a", mode, WaitPolicy::Fast)));
        let mut before = Vec::new();
        for claim in &claims {
            before.push(granted(one.claim(claim).await));
        }
        let floor = far(&*two).await;
        let mut raised = Vec::new();
        for claim in &claims[..2] {
            let grant = granted(one.claim(&with_floor(claim.clone(), floor)).await);
            assert!(
                grant.token.get() >= floor,
                "{:?} is below the floor {floor}",
                grant.token
            );
            let late = granted(one.claim(&with_floor(claim.clone(), floor - 1)).await);
            assert_eq!(late.token, grant.token, "lowered by a late request");
            raised.push(grant);
        }
        assert_ne!(raised[0].token, raised[1].token, "raised to one token");
        assert!(
            behind(&raised[0]) <= raised[1].token.get()
                || behind(&raised[1]) <= raised[0].token.get(),
            "{raised:?}"
        );
        let seen = tokens(&ctx, &*two).await;
        assert_eq!(seen.len(), 3);
        assert!(
            [&before[2], &raised[0], &raised[1]]
                .iter()
                .all(|grant| seen.contains(&grant.token)),
            "{seen:?}"
        );
        for old in &before[..2] {
            assert!(
                !two.evict(&claims[0].name, old.token).await.unwrap(),
                "evicted by the token from before"
            );
        }
        assert!(two.evict(&claims[0].name, raised[0].token).await.unwrap());
        let left = tokens(&ctx, &*two).await;
        assert!(
            left.len() == 2 && !left.contains(&raised[0].token),
            "another one was evicted: {left:?}"
        );
        for (claim, grant) in claims.iter().zip(&before) {
            one.release(claim, Some(&grant.place)).await.unwrap();
        }
        let writer = taken(&*two, ctx.claim("a", WaitPolicy::Fair)).await;
        assert!(
            writer.token
                >= raised
                    .iter()
                    .map(|grant| Some(number(behind(grant))))
                    .max()
                    .unwrap(),
            "{writer:?}"
        );
        given_back(&*two, &writer).await;
    }
}

/// S16, S11: a writer that becomes a reader is raised in the same request.
pub(crate) async fn raises_a_downgrade(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let writer = for_long(ctx.claim("a", WaitPolicy::Fair));
    let reader = ctx.claim_as("a", Mode::Shared, WaitPolicy::Fair);
    granted(one.claim(&writer).await);
    waiting(two.claim(&for_long(reader.clone())).await);
    let floor = far(&*two).await;
    let mut downgraded = with_floor(writer.clone(), floor);
    downgraded.mode = Mode::Shared;
    let grant = granted(one.claim(&downgraded).await);
    assert!(
        grant.token.get() >= floor,
        "{:?} is below the floor {floor}",
        grant.token
    );
    let beside = within(
        SOON,
        "the reader",
        next_turn(&*two, &for_long(reader.clone())),
    )
    .await;
    let mut seen = tokens(&ctx, &*two).await;
    seen.sort_unstable();
    let mut expected = [grant.token, beside.token];
    expected.sort_unstable();
    assert_eq!(seen, expected, "what others see");
    assert!(two.evict(&writer.name, grant.token).await.unwrap());
    two.release(&reader, Some(&beside.place)).await.unwrap();
    let after = taken(&*two, ctx.claim("a", WaitPolicy::Fair)).await;
    assert!(
        after.token.map(FencingToken::get) >= Some(behind(&grant).max(behind(&beside))),
        "{:?}",
        after.token
    );
    given_back(&*two, &after).await;
}

/// S16, S12: several names in one step, each with a floor of its own: granted with it, and raised to it.
pub(crate) async fn is_each_ones_own(ctx: TestContext) {
    let ctx = ctx.private().await;
    let client = ctx.backend().await;
    let floor = far(&*client).await;
    let plain = ["a", "b", "c"].map(|name| for_long(ctx.claim(name, WaitPolicy::Try)));
    let mut asked = plain.clone();
    (asked[0].floor, asked[2].floor) = (Some(number(floor)), Some(number(floor + FAR)));
    let all = |answer| match answer {
        Ok(ClaimedAll::Granted(grants)) => grants,
        other => panic!("expected grants, got {other:?}"),
    };
    let grants: Vec<Grant> = all(client.claim_all(&asked).await);
    assert!(
        grants[0].token.get() >= floor && grants[2].token.get() >= floor + FAR,
        "{grants:?}"
    );
    let again = all(client.claim_all(&plain).await);
    assert!(
        again
            .iter()
            .zip(&grants)
            .all(|(again, first)| again.token == first.token),
        "{again:?}"
    );
    let floor = far(&*client).await;
    asked[1].floor = Some(number(floor));
    let raised = all(client.claim_all(&asked).await);
    assert_eq!(raised[1].token.get(), floor, "raised");
    assert_eq!(
        (raised[0].token, raised[2].token),
        (grants[0].token, grants[2].token),
        "those beside it"
    );
    for (claim, grant) in plain.iter().zip(&raised) {
        client.release(claim, Some(&grant.place)).await.unwrap();
    }
}
