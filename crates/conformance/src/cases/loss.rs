//! Does a holder learn of its loss before another client can hold the lock?

use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claimed, LeaseRef, Mode, Moment, Renewal, Validity, WaitPolicy,
};
use leasehold_core::{ErrorKind, Guard, Loss, Store};

use crate::cases::lease::not_granted_before;
use crate::context::{
    TestContext, counts, expect_kind, given_back, granted, pause, renewed, taken, within,
};
use crate::faulty::Faults;
pub(crate) use eviction::{
    by_eviction_at_any_moment_is_told, by_eviction_before_the_answer_is_told,
    by_eviction_frees_the_next, by_eviction_of_any_turn, eviction_by_an_old_token_ends_no_hold,
};

mod eviction;

/// The time within which a waiting task must hear of a loss: some tens of the scheduler's turns.
const SOON: Duration = Duration::from_millis(500);

/// Fails if `rival` gets the lock before the guard has said that it lost it; returns the rival's guard.
async fn lost_before_granted(ctx: &TestContext, guard: &Guard, rival: &Store) -> Guard {
    let limit = ctx.ttl() * 2 + rival.guarantees().recovery() + Duration::from_secs(2);
    let mut lost = guard.lost();
    let waiting = rival.lock("a").acquire();
    tokio::pin!(waiting);
    let next = within(limit, "the loss", async {
        tokio::select! {
            biased;
            _ = &mut lost => None,
            next = &mut waiting => {
                // The guard may have ended between the two polls: then it reports the loss before
                // anything is awaited.
                let left = guard.remaining();
                assert!(left.is_zero(), "granted {next:?} while {guard:?} said valid for another {left:?}");
                Some(next)
            }
        }
    })
    .await;
    assert_eq!(within(limit, "the loss", guard.lost()).await, Loss::Expired);
    assert!(!guard.is_valid());
    match next {
        Some(next) => next.unwrap(),
        None => within(limit, "the next holder", waiting).await.unwrap(),
    }
}

/// Renewals hang for ever; `lost()` fires at the end of validity, before the next is granted.
pub(crate) async fn comes_before_another_grant_when_renewals_hang(ctx: TestContext) {
    let faults = Faults::default();
    let one = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    faults.hang_renewals(true);
    let guard = one.lock("a").acquire().await.unwrap();
    let next = lost_before_granted(&ctx, &guard, &two).await;
    assert!(next.fencing_token() > guard.fencing_token());
}

/// A grant that grows from a place in the queue counts from the last attempt of that place, not from the push:
/// the place is two thirds through its lease when its turn comes, and nothing renews it.
pub(crate) async fn of_a_pushed_grant_comes_before_another_grant(ctx: TestContext) {
    let faults = Faults::default();
    let holder = ctx.store().await;
    let one = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    faults.hang_renewals(true);
    let before = holder.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(one.lock("a").acquire());
    ctx.queue_reaches(&holder, "a", 1).await;
    tokio::time::sleep(ctx.ttl() * 2 / 3).await;
    before.release().await.unwrap();
    let guard = within(ctx.ttl() * 3, "the waiter's turn", waiter)
        .await
        .unwrap()
        .unwrap();
    let next = lost_before_granted(&ctx, &guard, &two).await;
    assert!(next.fencing_token() > guard.fencing_token());
}

/// The network swallows everything, without a word.
pub(crate) async fn comes_before_another_grant_behind_a_black_hole(ctx: TestContext) {
    let (client, link) = ctx.harness().linked_client().await;
    let one = ctx.over(client);
    let two = ctx.store().await;
    let guard = one.lock("a").acquire().await.unwrap();
    link.black_hole().await;
    let next = lost_before_granted(&ctx, &guard, &two).await;
    link.heal().await;
    // The old guard's release cannot free the successor.
    expect_kind(guard.release().await, ErrorKind::Lost);
    tokio::time::sleep(ctx.ttl()).await;
    assert!(next.is_valid(), "{:?}", next.check());
}

/// Requests arrive, so the store goes on renewing, but no reply arrives: an unknown answer is not a
/// renewal. At no moment does the guard promise more than one lease from the last reply that could
/// have come. A task that only waits for `lost()` hears of the end too. A check of a guard's
/// validity would itself end it, so the second guard is not checked.
pub(crate) async fn comes_when_only_replies_are_lost(ctx: TestContext) {
    let (client, link) = ctx.harness().linked_client().await;
    let one = ctx.over(client);
    let unasked = one.lock("b").acquire().await.unwrap();
    let guard = one.lock("a").acquire().await.unwrap();
    let told = tokio::spawn(unasked.lost());
    link.lose_replies().await;
    let began = Moment::now();
    while guard.is_valid() {
        let most = ctx.ttl().saturating_sub(Moment::now().since(began));
        let left = guard.remaining();
        assert!(left <= most, "{left:?} left where {most:?} are known");
        pause().await;
    }
    // The reason is known from here on, and the other guard ends with its lease too.
    assert_eq!(
        within(Duration::ZERO, "the reason", guard.lost()).await,
        Loss::Expired
    );
    tokio::time::sleep(ctx.ttl().saturating_sub(Moment::now().since(began))).await;
    assert_eq!(
        within(SOON, "the loss of a guard that is not asked", told)
            .await
            .unwrap(),
        Loss::Expired
    );
    link.heal().await;
}

/// Errors are not loss; renewals go on (redisson#2515).
pub(crate) async fn does_not_come_from_one_failed_renewal(ctx: TestContext) {
    let faults = Faults::default();
    let one = ctx.store_with(&faults).await;
    let guard = one.lock("a").acquire().await.unwrap();
    for _ in 0..3 {
        faults.fail_renewals(1);
        tokio::time::sleep(ctx.ttl()).await;
        assert!(guard.is_valid(), "{:?}", guard.check());
    }
}

/// The entry is deleted without any client's doing; the holder learns it at the latest when it asks.
pub(crate) async fn by_deletion_is_noticed(ctx: TestContext) {
    let store = ctx.store().await;
    let guard = store.lock("a").acquire().await.unwrap();
    ctx.harness().delete_holder(ctx.full("a").as_str()).await;
    expect_kind(guard.confirm().await, ErrorKind::Lost);
    assert!(!guard.is_valid());
    drop(guard);
    ctx.becomes_empty("a").await;
}

/// S7: a renewal that comes after the hold was ended extends nothing and takes nothing anew.
pub(crate) async fn is_not_undone_by_a_renewal(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let lease = taken(&*one, ctx.claim("a", WaitPolicy::Fair)).await;
    assert!(
        two.evict(&lease.claim.name, lease.token.unwrap())
            .await
            .unwrap()
    );
    // The answer depends on the way in which the store hears of evictions; the effect is equal on
    // all stores.
    drop(renewed(&*one, &lease).await);
    let queue = two.inspect(&lease.claim.name).await.unwrap();
    assert_eq!(counts(&queue), (0, 0), "the evicted came back: {queue:?}");
    given_back(&*one, &lease).await;
}

/// The release of a lost guard cannot free the successor, also within one client. (etcd's `Unlock` frees by key, ShedLock by
/// host name: ShedLock#74.)
pub(crate) async fn leaves_the_successor_alone(ctx: TestContext) {
    let faults = Faults::default();
    let one = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    faults.hang_renewals(true);
    let guard = one.lock("a").acquire().await.unwrap();
    let next = lost_before_granted(&ctx, &guard, &two).await;
    drop(guard);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(next.confirm().await.is_ok());
    next.release().await.unwrap();
    // By calls of `Backend`, within one client, the release of an old claim frees no other claim.
    let client = ctx.backend().await;
    let first = taken(&*client, ctx.claim("b", WaitPolicy::Fair)).await;
    given_back(&*client, &first).await;
    let second = taken(&*client, ctx.claim("b", WaitPolicy::Fair)).await;
    given_back(&*client, &first).await;
    client.release(&first.claim, None).await.unwrap();
    assert_eq!(
        Some(granted(client.claim(&second.claim).await).token),
        second.token
    );
    given_back(&*client, &second).await;
}

/// After a loss the client acquires again, and renews (redisson#3712).
pub(crate) async fn is_followed_by_a_new_hold(ctx: TestContext) {
    let faults = Faults::default();
    let store = ctx.store_with(&faults).await;
    faults.hang_renewals(true);
    let guard = store.lock("a").acquire().await.unwrap();
    assert_eq!(
        within(ctx.ttl() * 2, "the loss", guard.lost()).await,
        Loss::Expired
    );
    faults.hang_renewals(false);
    drop(guard);
    let limit = ctx.ttl() * 2 + store.guarantees().recovery() + Duration::from_secs(2);
    let again = ctx.soon(&store, "a", limit).await;
    tokio::time::sleep(ctx.ttl() * 2).await;
    assert!(again.is_valid(), "{:?}", again.check());
}

/// A grant under a session that was last renewed a while ago does not count from the claim.
pub(crate) async fn grant_under_an_aged_session(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    granted(one.claim(&ctx.claim("first", WaitPolicy::Fair)).await);
    tokio::time::sleep(ctx.ttl() * 2 / 5).await;
    let stamp = Moment::now();
    let grant = granted(one.claim(&ctx.claim("second", WaitPolicy::Fair)).await);
    not_granted_before(&ctx, &*two, "second", grant.validity.until(stamp)).await;
}

/// A repeated claim that is answered *granted* either extended the lease or does not count from the repeat.
pub(crate) async fn repeated_claim_counts_from_what_extended(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let claim = ctx.claim("a", WaitPolicy::Fair);
    granted(one.claim(&claim).await);
    tokio::time::sleep(ctx.ttl() * 3 / 5).await;
    let stamp = Moment::now();
    let again = granted(one.claim(&claim).await);
    not_granted_before(&ctx, &*two, "a", again.validity.until(stamp)).await;
}

/// S14: a hold was ended without its client's knowledge. The first renewal after that reports the
/// loss, and no later one contradicts it. One of several servers that has not heard of the end may
/// still answer a validity that counts from before the end.
async fn is_told_by_the_first_renewal(
    client: &dyn Backend,
    lease: &LeaseRef,
    ended: Moment,
    of: &str,
) {
    let is_of_before = |validity: &Validity| validity.until(Moment::now()) == validity.until(ended);
    within(Duration::from_secs(20), "an answer to a renewal", async {
        loop {
            match renewed(client, lease).await {
                Ok(Renewal::Lost(_)) => return,
                Ok(Renewal::Unknown(_)) | Err(_) => pause().await,
                Ok(Renewal::Renewed(validity)) if is_of_before(&validity) => pause().await,
                other => panic!("{of} has no entry any more, and a renewal says {other:?}"),
            }
        }
    })
    .await;
}

/// S14: one entry after the other is ended behind its holder's back, also one that was renewed meanwhile, and while another
/// hold of the same client lives on.
pub(crate) async fn is_told_by_the_next_renewal(ctx: TestContext) {
    told_in(&ctx, &[Mode::Exclusive]).await;
}

/// S14: readers and permits are ended one after the other without their holder's knowledge, and the
/// next renewal reports it.
pub(crate) async fn is_told_by_the_next_renewal_in_every_mode(ctx: TestContext) {
    told_in(&ctx, &[Mode::Shared, Mode::Permits { n: 2, of: 3 }]).await;
}

async fn told_in(ctx: &TestContext, modes: &[Mode]) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let other = taken(&*one, ctx.claim("other", WaitPolicy::Fair)).await;
    for mode in modes {
        for (end, renews) in [
            ("evicted", false),
            ("evicted", true),
            ("deleted", false),
            ("deleted", true),
        ] {
            let deletes = end == "deleted";
            let lease = taken(&*one, ctx.claim_as("a", *mode, WaitPolicy::Fair)).await;
            if renews {
                let answers = one.renew(&[lease.clone(), other.clone()]).await.unwrap();
                assert!(matches!(answers[0], Renewal::Renewed(_)), "{answers:?}");
            }
            let before = Moment::now();
            match deletes {
                true => ctx.harness().delete_holder(lease.claim.name.as_str()).await,
                false => assert!(
                    two.evict(&lease.claim.name, lease.token.unwrap())
                        .await
                        .unwrap()
                ),
            }
            is_told_by_the_first_renewal(
                &*one,
                &lease,
                before,
                &format!("a {mode:?} that was {end}"),
            )
            .await;
            let left = renewed(&*one, &other).await.unwrap();
            assert!(
                matches!(left, Renewal::Renewed(_)),
                "the other hold: {left:?}"
            );
            given_back(&*one, &lease).await;
        }
    }
    given_back(&*one, &other).await;
}

/// S14: a hold is lost if its claim only waits now: a late request of the same id took a place
/// behind the next holder.
pub(crate) async fn is_told_though_the_claim_waits_again(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let next = ctx.claim("a", WaitPolicy::Fair);
    let lease = taken(&*one, ctx.claim("a", WaitPolicy::Fair)).await;
    assert!(matches!(
        two.claim(&next).await.unwrap(),
        Claimed::Waiting(_)
    ));
    let before = Moment::now();
    assert!(two.evict(&next.name, lease.token.unwrap()).await.unwrap());
    granted(two.claim(&next).await);
    assert!(!matches!(
        one.claim(&lease.claim).await,
        Ok(Claimed::Granted(_))
    ));
    is_told_by_the_first_renewal(&*one, &lease, before, "a hold whose claim waits").await;
    given_back(&*one, &lease).await;
    two.release(&next, None).await.unwrap();
}
