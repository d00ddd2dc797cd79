//! Does a writer become a reader in place: the same token, readers let in, no writer in between?

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Claim, Claimed, LeaseRef, Mode, Moment, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Guard, Owner};

use crate::cases::lease::not_granted_before;
use crate::context::{
    LONG, TestContext, answered, busy, counts, expect_kind, give_back, given_back, granted,
    renewed, taken, waiting, within,
};
use crate::faulty::Faults;

/// Downgrades; under faults the store's answer may be lost, and it is asked again.
async fn downgraded(guard: &Guard) {
    answered(LONG, "the downgrade", || guard.downgrade()).await;
}

/// Returns a copy of the claim in another mode.
fn in_mode(claim: &Claim, mode: Mode) -> Claim {
    let mut other = claim.clone();
    other.mode = mode;
    other
}

/// S11: the readers behind a writer get in beside it, the next writer and those behind it wait on.
pub(crate) async fn lets_readers_in_and_no_writer(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let here = one.rw_lock("a");
    let there = two.rw_lock("a");
    let guard = here.write().acquire().await.unwrap();
    let token = guard.fencing_token();
    let mut waiters = Vec::new();
    for (i, side) in [here.read(), there.read(), there.write(), here.read()]
        .into_iter()
        .enumerate()
    {
        waiters.push(tokio::spawn(side.acquire()));
        ctx.queue_is(&one, "a", 1, i + 1).await;
    }
    downgraded(&guard).await;
    let [first, second, writer, last] = <[_; 4]>::try_from(waiters).unwrap();
    let first = ctx
        .served(
            "the first reader behind a writer that became a reader",
            first,
        )
        .await;
    let second = ctx.served("the second reader", second).await;
    ctx.queue_is(&two, "a", 3, 2).await;
    assert!(guard.is_valid() && first.is_valid() && second.is_valid());
    assert_eq!(guard.fencing_token(), token);
    let queue = here.inspect().await.unwrap();
    assert!(
        queue.holders.iter().any(|e| e.token == Some(token)),
        "the downgrade changed the token: {queue:?}"
    );
    assert!(first.fencing_token() > token && second.fencing_token() > token);
    give_back(first).await;
    give_back(second).await;
    ctx.queue_is(&two, "a", 1, 2).await;
    give_back(guard).await;
    let writer = ctx.served("the writer", writer).await;
    assert!(writer.fencing_token() > token);
    give_back(writer).await;
    give_back(ctx.served("the last reader", last).await).await;
    ctx.becomes_empty("a").await;
}

/// S11: a waiter that a downgrade admits is notified at once, not at its next poll.
pub(crate) async fn wakes_readers_at_once(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    // A lease so long that neither a poll nor a renewal can do the work of the notification, also if this machine is busy.
    let ttl = Duration::from_secs(55);
    let guard = one.rw_lock("a").ttl(ttl).write().acquire().await.unwrap();
    let readers =
        [&two, &one].map(|store| tokio::spawn(store.rw_lock("a").ttl(ttl).read().acquire()));
    ctx.queue_is(&one, "a", 1, 2).await;
    downgraded(&guard).await;
    for reader in readers {
        let reader = within(Duration::from_secs(10), "the push of a downgrade", reader)
            .await
            .unwrap()
            .unwrap();
        reader.release().await.unwrap();
    }
    guard.release().await.unwrap();
}

/// S11: it stays shared, and renewals alone keep it beyond its lease; readers that come later get in, writers do not. Doing it twice
/// changes nothing.
pub(crate) async fn lasts(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let guard = one.rw_lock("a").write().acquire().await.unwrap();
    downgraded(&guard).await;
    downgraded(&guard).await;
    for _ in 0..4 {
        tokio::time::sleep(ctx.ttl() / 2).await;
        assert!(
            guard.is_valid(),
            "lost after a downgrade: {:?}",
            guard.check()
        );
        expect_kind(
            two.rw_lock("a").write().try_acquire().await,
            ErrorKind::Contended,
        );
        let reader = two
            .rw_lock("a")
            .read()
            .acquire_timeout(Duration::from_secs(5))
            .await
            .unwrap();
        give_back(reader).await;
    }
    // A confirmation claims again, and would extend it.
    answered(LONG, "a confirmation", || guard.confirm()).await;
    give_back(
        two.rw_lock("a")
            .read()
            .acquire_timeout(Duration::from_secs(5))
            .await
            .unwrap(),
    )
    .await;
    give_back(guard).await;
    ctx.becomes_empty("a").await;
}

/// S11, by calls of `Backend`: the same place and token; an exclusive claim that comes late (a confirmation that was on its way) leaves
/// it shared, and no other claim changes a mode.
pub(crate) async fn is_not_undone_by_a_late_claim(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let writer = ctx.claim("a", WaitPolicy::Fair);
    let grant = granted(one.claim(&writer).await);
    let shared = granted(one.claim(&in_mode(&writer, Mode::Shared)).await);
    assert_eq!(
        (shared.token, &shared.place),
        (grant.token, &grant.place),
        "a downgrade keeps token and place"
    );
    let beside = taken(&*two, ctx.claim_as("a", Mode::Shared, WaitPolicy::Try)).await;
    // With another label it must be written.
    let late = granted(one.claim(&writer.clone().with_label("late")).await);
    assert_eq!(
        late.token, grant.token,
        "an exclusive claim that came late changed the token"
    );
    let third = ctx.claim_as("a", Mode::Shared, WaitPolicy::Try);
    let answer = two.claim(&third).await;
    let Ok(Claimed::Granted(third_grant)) = answer else {
        panic!("an exclusive claim that came late made it exclusive again: {answer:?}")
    };
    // A reader does not become a writer by claiming so.
    let as_writer = in_mode(&beside.claim, Mode::Exclusive);
    assert_eq!(
        Some(granted(two.claim(&as_writer).await).token),
        beside.token
    );
    assert_eq!(counts(&two.inspect(&writer.name).await.unwrap()), (3, 0));
    busy(
        "a writer beside readers",
        two.claim(&ctx.claim("a", WaitPolicy::Try)).await,
    );
    // A reader does not become a writer later either: all are renewed and asked for once more, and
    // another reader comes.
    let now = LeaseRef::new(
        Arc::new(in_mode(&writer, Mode::Shared)),
        grant.place.clone(),
        Some(grant.token),
    );
    for (client, lease) in [(&one, &now), (&two, &beside)] {
        let answer = renewed(&**client, lease).await;
        assert!(
            matches!(answer, Ok(Renewal::Renewed(_))),
            "a reader is gone: {answer:?}"
        );
        assert_eq!(
            Some(granted(client.claim(&lease.claim).await).token),
            lease.token
        );
    }
    assert_eq!(granted(two.claim(&third).await).token, third_grant.token);
    let fourth = ctx.claim_as("a", Mode::Shared, WaitPolicy::Try);
    let answer = two.claim(&fourth).await;
    assert!(
        matches!(answer, Ok(Claimed::Granted(_))),
        "a renewal made it exclusive again: {answer:?}"
    );
    two.release(&fourth, None).await.unwrap();
    given_back(&*two, &beside).await;
    two.release(&third, Some(&third_grant.place)).await.unwrap();
    one.release(&writer, Some(&grant.place)).await.unwrap();
    ctx.becomes_empty("a").await;
}

/// S11: a waiting writer that claims as a reader stays a writer: only a granted one is downgraded.
pub(crate) async fn is_for_the_granted_only(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let first = taken(&*one, ctx.claim_as("a", Mode::Shared, WaitPolicy::Fair)).await;
    let writer = ctx.claim("a", WaitPolicy::Fair);
    waiting(two.claim(&writer).await);
    waiting(
        two.claim(&in_mode(&writer, Mode::Shared).with_label("late"))
            .await,
    );
    given_back(&*one, &first).await;
    let writer = taken(&*two, writer).await;
    let answer = one
        .claim(&ctx.claim_as("a", Mode::Shared, WaitPolicy::Try))
        .await;
    busy("a waiting writer became a reader", answer);
    given_back(&*two, &writer).await;
    ctx.becomes_empty("a").await;
}

/// The reply to a downgrade is lost: it may be asked again, and the readers that it admitted hold.
pub(crate) async fn may_be_asked_again(ctx: TestContext) {
    let faults = Faults::default();
    let one = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    let guard = one.rw_lock("a").write().acquire().await.unwrap();
    let reader = tokio::spawn(two.rw_lock("a").read().acquire());
    ctx.queue_is(&two, "a", 1, 1).await;
    faults.lose_claim_replies(1);
    expect_kind(guard.downgrade().await, ErrorKind::Ambiguous);
    let reader = ctx
        .served(
            "the reader let in by a downgrade whose reply was lost",
            reader,
        )
        .await;
    assert!(guard.is_valid() && reader.is_valid());
    guard.downgrade().await.unwrap();
    guard.confirm().await.unwrap();
    guard.release().await.unwrap();
    reader.release().await.unwrap();
    ctx.becomes_empty("a").await;
}

/// A holder that cannot downgrade gets an error, and keeps its hold.
pub(crate) async fn is_refused_where_others_count_on_it(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let lock = one.rw_lock("a").owner(&Owner::new());
    let outer = lock.write().acquire().await.unwrap();
    let inner = lock.write().acquire().await.unwrap();
    expect_kind(outer.downgrade().await, ErrorKind::Invalid);
    expect_kind(inner.downgrade().await, ErrorKind::Invalid);
    expect_kind(
        two.rw_lock("a").read().try_acquire().await,
        ErrorKind::Contended,
    );
    assert!(outer.is_valid() && inner.is_valid());
    drop(inner);
    outer.downgrade().await.unwrap();
    // The hold of the former writer is a reader's now, for its owner too.
    expect_kind(lock.write().try_acquire().await, ErrorKind::Invalid);
    let again = lock.read().acquire().await.unwrap();
    assert_eq!(again.fencing_token(), outer.fencing_token());
    drop(two.rw_lock("a").read().try_acquire().await.unwrap());
    drop((outer, again));
    ctx.becomes_empty("a").await;
    // A holder that has lost the lock gets the loss as the error.
    let guard = one.rw_lock("a").write().acquire().await.unwrap();
    assert!(two.evict("a", guard.fencing_token()).await.unwrap());
    within(
        Duration::from_secs(8),
        "the evicted to hear of it",
        guard.lost(),
    )
    .await;
    expect_kind(guard.downgrade().await, ErrorKind::Lost);
    drop(guard);
    ctx.becomes_empty("a").await;
}

/// S2, S11: a downgrade that is answered *granted* either extended the lease or does not count from itself.
pub(crate) async fn counts_from_what_extended(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let writer = ctx.claim("a", WaitPolicy::Fair);
    granted(one.claim(&writer).await);
    tokio::time::sleep(ctx.ttl() * 3 / 5).await;
    let stamp = Moment::now();
    let shared = granted(one.claim(&in_mode(&writer, Mode::Shared)).await);
    not_granted_before(&ctx, &*two, "a", shared.validity.until(stamp)).await;
}

/// S14: a renewal carries the hold as it is now: shared since its downgrade, and with the latest
/// value. If the store restores a lost entry, it restores exactly this state.
pub(crate) async fn is_renewed_as_it_is_now(ctx: TestContext) {
    let faults = Faults::default();
    let store = ctx.store_with(&faults).await;
    let guard = store.rw_lock("a").write().acquire().await.unwrap();
    downgraded(&guard).await;
    for lease in ctx.renewed(&faults, "a downgraded hold").await {
        assert_eq!(
            lease.claim.mode,
            Mode::Shared,
            "a downgraded hold is renewed as {:?}",
            lease.claim.mode
        );
        assert_eq!(lease.token, Some(guard.fencing_token()));
    }
    guard.release().await.unwrap();
}
