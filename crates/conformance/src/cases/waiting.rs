//! Does every waiter get the lock, in order and in time?

use std::time::Duration;

use leasehold_core::ErrorKind;
use leasehold_core::backend::{Claimed, Moment, Renewal, WaitPolicy};

use crate::context::{
    TestContext, answered, expect_kind, given_back, granted, renewed, taken, until, waiting, within,
};
use crate::faulty::Faults;
pub(crate) use order::{
    fast_never_passes_fair, is_in_order, is_in_order_after_a_death,
    is_not_starved_by_refused_tries, keeps_its_place, turns_do_not_starve_others,
};

mod order;

/// A clean release wakes the next waiter at once, not at its next poll.
pub(crate) async fn is_woken_by_a_release(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    // A lease so long that neither a poll nor a renewal can do the work of the notification.
    let ttl = Duration::from_secs(30);
    let guard = one.lock("a").ttl(ttl).acquire().await.unwrap();
    let waiter = tokio::spawn(two.lock("a").ttl(ttl).acquire());
    ctx.queue_reaches(&one, "a", 1).await;
    guard.release().await.unwrap();
    let guard = within(Duration::from_secs(10), "the push of a release", waiter)
        .await
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
}

/// The waiters at the head and in the middle give up; the next is woken by the release, not by its next poll.
pub(crate) async fn is_woken_behind_one_that_gave_up(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let ttl = Duration::from_secs(60);
    let guard = one.lock("a").ttl(ttl).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for n in 0..4 {
        waiters.push(tokio::spawn(
            [&two, &one][n % 2].lock("a").ttl(ttl).acquire(),
        ));
        ctx.queue_is(&one, "a", 1, n + 1).await;
    }
    for leaves in [0, 1] {
        waiters.remove(leaves).abort();
        ctx.queue_is(&one, "a", 1, waiters.len()).await;
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        let guard = within(Duration::from_secs(10), "the push of a release", waiter)
            .await
            .unwrap()
            .unwrap();
        guard.release().await.unwrap();
    }
}

/// A waiter that gets no notification gets the lock by its poll, once per lease.
pub(crate) async fn gets_it_without_a_notification(ctx: TestContext) {
    let faults = Faults::default();
    faults.lose_notifications();
    let one = ctx.store().await;
    let deaf = ctx.store_with(&faults).await;
    let guard = one.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(deaf.lock("a").acquire());
    ctx.queue_reaches(&one, "a", 1).await;
    guard.release().await.unwrap();
    let limit = ctx.ttl() + Duration::from_secs(2);
    let guard = within(limit, "the poll of a waiter without notifications", waiter)
        .await
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
}

/// The head and a middle waiter die; the living one behind them is served once their places have run out, and no other is
/// granted in their stead before. (Redisson's fair lock stalls behind dead waiters: redisson#1104, redisson#2099.)
pub(crate) async fn skips_the_dead(ctx: TestContext) {
    let holder = ctx.store().await;
    let dead = ctx.backend().await;
    let alive = ctx.store().await;
    let guard = holder.lock("a").acquire().await.unwrap();
    for _ in 0..2 {
        waiting(dead.claim(&ctx.claim("a", WaitPolicy::Fair)).await);
    }
    let waiter = tokio::spawn(alive.lock("a").acquire());
    ctx.queue_reaches(&holder, "a", 3).await;
    waiting(dead.claim(&ctx.claim("a", WaitPolicy::Fair)).await);
    guard.release().await.unwrap();
    // Both dead ones may be granted in turn before their leases end; no longer than a lease and the store's lateness.
    let limit = ctx.ttl() * 2 + holder.guarantees().recovery() * 2 + Duration::from_secs(1);
    within(limit, "the living waiter behind dead ones", waiter)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    ctx.becomes_empty("a").await;
}

/// P5 (etcd's and Go's mutex do not re-check their own lease): a waiter's place ends while the
/// holder lives on. When the holder leaves, the lock goes to a live waiter, and the waiter that
/// comes back stands behind it.
pub(crate) async fn a_dead_place_is_not_granted(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let three = ctx.backend().await;
    let holder = taken(&*one, ctx.claim("a", WaitPolicy::Fair)).await;
    let sleeper = ctx.claim("a", WaitPolicy::Fair);
    let heir = ctx.claim("a", WaitPolicy::Fair);
    waiting(two.claim(&sleeper).await);
    // The holder keeps its own lease by claiming again and by renewing, until the sleeper's place has run out.
    let limit = ctx.ttl() * 4 + one.guarantees().recovery() * 2 + Duration::from_secs(2);
    until(limit, "the place of a sleeper to end", || async {
        granted(one.claim(&holder.claim).await);
        renewed(&*one, &holder).await.unwrap();
        one.inspect(&holder.claim.name)
            .await
            .unwrap()
            .waiters
            .is_empty()
    })
    .await;
    waiting(three.claim(&heir).await);
    given_back(&*one, &holder).await;
    // A client that slept past its session needs a moment for a new one.
    let limit = ctx.ttl() * 2 + Duration::from_secs(5);
    let answer = answered(limit, "a client that slept to be answered", || {
        two.claim(&sleeper)
    })
    .await;
    let place = waiting(Ok(answer)).place;
    let heir = taken(&*three, heir).await;
    assert!(heir.token > holder.token);
    two.release(&sleeper, Some(&place)).await.unwrap();
    given_back(&*three, &heir).await;
}

/// S4: a place that its client neither claims again nor renews ends after its lease, although the
/// client lives on and renews another place. A release that was given up, or a waiter without a
/// client, therefore blocks no queue.
pub(crate) async fn outlives_what_its_client_forgot(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let kept = taken(&*one, ctx.claim("kept", WaitPolicy::Fair)).await;
    let forgotten = ctx.claim("a", WaitPolicy::Fair);
    let heir = ctx.claim("a", WaitPolicy::Fair);
    let before = Moment::now();
    let old = granted(one.claim(&forgotten).await);
    let limit = ctx.ttl() * 4 + one.guarantees().recovery() * 2 + Duration::from_secs(2);
    until(limit, "a forgotten place to end", || async {
        let answer = renewed(&*one, &kept).await.unwrap();
        assert!(!matches!(answer, Renewal::Lost(_)), "{answer:?}");
        matches!(two.claim(&heir).await.unwrap(), Claimed::Granted(_))
    })
    .await;
    assert!(
        Moment::now() >= old.validity.until(before),
        "granted while its holder could still say valid"
    );
    let new = taken(&*two, heir).await;
    assert!(new.token > Some(old.token));
    given_back(&*two, &new).await;
    given_back(&*one, &kept).await;
    ctx.becomes_empty("a").await;
}

/// P5: the holder dies without a release; the waiter gets the lock after the holder's lease, not
/// long after, and not before.
pub(crate) async fn survives_a_dead_holder(ctx: TestContext) {
    let dead = ctx.backend().await;
    let alive = ctx.store().await;
    let before = Moment::now();
    let validity = granted(dead.claim(&ctx.claim("a", WaitPolicy::Fair)).await).validity;
    let waiter = tokio::spawn(alive.lock("a").acquire());
    let limit = ctx.ttl() + alive.guarantees().recovery() + Duration::from_secs(2);
    let guard = within(limit, "a dead holder's lock", waiter)
        .await
        .unwrap()
        .unwrap();
    assert!(
        Moment::now() >= validity.until(before),
        "granted while the dead holder could still say valid"
    );
    guard.release().await.unwrap();
}

/// A bounded wait ends in time, not before, and names the holder.
pub(crate) async fn ends_at_its_deadline(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let _guard = one.lock("a").label("the holder").acquire().await.unwrap();
    let start = Moment::now();
    let wait = Duration::from_millis(700);
    let late = Duration::from_millis(500);
    let answer = within(
        wait + late,
        "a bounded wait",
        two.lock("a").acquire_timeout(wait),
    )
    .await;
    let took = Moment::now().since(start);
    assert!(took >= wait, "took {took:?} for {wait:?}");
    match answer {
        // Under faults an error of the store may be the honest reason.
        Err(e) if e.kind() == ErrorKind::TimedOut => {
            assert_eq!(
                e.into_contention().unwrap().label.as_deref(),
                Some("the holder")
            );
        }
        Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous) => {}
        other => panic!("{other:?}"),
    }
}

/// The lock changes hands during a bounded wait: the error names the holder at the end of the wait,
/// not the one at its beginning.
pub(crate) async fn names_the_holder_at_its_deadline(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let three = ctx.store().await;
    // A lease so long that no waiter asks again before the deadline.
    let ttl = Duration::from_secs(30);
    let lock = |store: &leasehold_core::Store, label: &str| store.lock("a").ttl(ttl).label(label);
    let mut told = String::from("nothing");
    // On a busy machine the lock may change hands too late, or the last look may not be answered in time.
    for wait in [1, 1, 1, 2, 4, 8, 16].map(Duration::from_secs) {
        let first = lock(&one, "the first").acquire().await.unwrap();
        let second = tokio::spawn(lock(&two, "the second").acquire());
        ctx.queue_is(&one, "a", 1, 1).await;
        let third = tokio::spawn(lock(&three, "the third").acquire_timeout(wait));
        ctx.queue_is(&one, "a", 1, 2).await;
        first.release().await.unwrap();
        let limit = Duration::from_secs(10);
        let second = within(limit, "the release", second).await.unwrap().unwrap();
        let late = expect_kind(third.await.unwrap(), ErrorKind::TimedOut);
        second.release().await.unwrap();
        let contention = late.into_contention().unwrap();
        if contention.label.as_deref() == Some("the second") {
            return;
        }
        told = contention.to_string();
    }
    panic!("at each deadline the second holds, and the time-out says: {told}");
}

/// The error at a deadline says how many others wait. A store that counts none says so by `None`.
pub(crate) async fn does_not_count_itself(ctx: TestContext) {
    let store = ctx.store().await;
    // A lease so long that no waiter asks again before the deadline.
    let lock = store.lock("a").ttl(Duration::from_secs(30));
    let held = lock.acquire().await.unwrap();
    for wait in [0, 200, 1000, 4000].map(Duration::from_millis) {
        // A server that lags behind the others may still count the waiter before it, and a busy one
        // answers nothing within so short a wait.
        let mut late = Vec::new();
        while late.len() < 5 {
            ctx.queue_reaches(&store, "a", 0).await;
            let e = lock.acquire_timeout(wait).await.unwrap_err();
            late.push((e.kind(), e.into_contention().map(|by| by.waiters).ok()));
            if matches!(
                late.last(),
                Some((ErrorKind::TimedOut, Some(None | Some(0))))
            ) {
                break;
            }
        }
        assert!(
            matches!(
                late.last(),
                Some((ErrorKind::TimedOut, Some(None | Some(0))))
            ),
            "{late:?} for {wait:?}"
        );
    }
    held.release().await.unwrap();
}

/// A waiter in the middle gives up; those behind it are served as if it had never been there.
pub(crate) async fn that_gives_up_harms_no_other(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let three = ctx.store().await;
    let guard = one.lock("a").acquire().await.unwrap();
    let middle = tokio::spawn(two.lock("a").acquire());
    ctx.queue_reaches(&one, "a", 1).await;
    let last = tokio::spawn(three.lock("a").acquire());
    ctx.queue_reaches(&one, "a", 2).await;
    middle.abort();
    ctx.queue_reaches(&one, "a", 1).await;
    drop(guard);
    drop(
        within(ctx.ttl() * 3, "the waiter behind", last)
            .await
            .unwrap()
            .unwrap(),
    );
    ctx.becomes_empty("a").await;
    // By calls of `Backend`, a place that is given back is gone.
    let here = ctx.backend().await;
    let there = ctx.backend().await;
    let first = taken(&*here, ctx.claim("b", WaitPolicy::Fair)).await;
    let second = ctx.claim("b", WaitPolicy::Fair);
    let place = waiting(there.claim(&second).await).place;
    there.release(&second, Some(&place)).await.unwrap();
    given_back(&*here, &first).await;
    granted(here.claim(&ctx.claim("b", WaitPolicy::Try)).await);
    expect_kind(two.lock("b").try_acquire().await, ErrorKind::Contended);
}
