//! Are several names taken in one step, if the store says so?

use std::time::Duration;

use leasehold_core::backend::{Backend, Claim, ClaimedAll, Grant, Mode, Moment, WaitPolicy};
use leasehold_core::{Contention, ErrorKind, Name, Result, Store};
use tokio::task::JoinSet;

use crate::cases::cancel::{at_every_await, leaves_at};
use crate::cases::lease::not_granted_before;
use crate::context::{
    LONG, TestContext, answered, counts, expect_kind, given_back, taken, until, waiting, within,
};
use crate::faulty::Faults;

const NAMES: [&str; 3] = ["a", "b", "c"];

fn claims(ctx: &TestContext) -> [Claim; 3] {
    NAMES.map(|name| ctx.claim(name, WaitPolicy::Try))
}

fn all_granted(answer: Result<ClaimedAll>) -> Vec<Grant> {
    match answer {
        Ok(ClaimedAll::Granted(grants)) => grants,
        other => panic!("expected all to be granted, got {other:?}"),
    }
}

fn refused(answer: Result<ClaimedAll>) -> (usize, Contention) {
    match answer {
        Ok(ClaimedAll::Busy(at, who)) => (at, who),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Returns the numbers of holders and of waiters of each name.
async fn lines(ctx: &TestContext, backend: &dyn Backend) -> [(usize, usize); 3] {
    let mut queues = [(0, 0); 3];
    for (queue, name) in queues.iter_mut().zip(NAMES) {
        *queue = counts(&backend.inspect(&ctx.full(name)).await.unwrap());
    }
    queues
}

async fn who_holds(store: &Store, name: &Name) -> Option<String> {
    store
        .lock(name)
        .inspect()
        .await
        .unwrap()
        .holders
        .first()
        .and_then(|holder| holder.label.clone())
}

/// S12: many tasks want several names, and another client holds the last one. No client sees the
/// other names held, not even for a moment.
pub(crate) async fn is_not_seen_while_refused(ctx: TestContext) {
    let onlooker = ctx.store().await;
    let holder = ctx
        .store()
        .await
        .lock("c")
        .ttl(LONG)
        .acquire()
        .await
        .unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let multi = ctx.store().await.multi_lock(NAMES).ttl(LONG);
        tasks.spawn(async move {
            for _ in 0..25 {
                let error = expect_kind(multi.try_acquire().await, ErrorKind::Contended);
                assert_eq!(error.name(), Some(&Name::new("c")), "who stood in the way");
            }
        });
    }
    let mut looks = 0;
    while !tasks.is_empty() {
        for name in ["a", "b"] {
            let queue = onlooker.lock(name).inspect().await.unwrap();
            assert_eq!(
                counts(&queue),
                (0, 0),
                "a part of them was seen: {name:?} {queue:?}"
            );
        }
        looks += 1;
        // A store in memory never makes its caller wait.
        tokio::task::yield_now().await;
        while let Some(done) = tasks.try_join_next() {
            done.unwrap();
        }
    }
    ctx.harness()
        .tell(&format!("100 refused tries were looked at {looks} times"));
    assert!(holder.is_valid());
}

/// S12: a client that is seen to hold the first of them holds the last one too.
pub(crate) async fn is_not_seen_while_granted(ctx: TestContext) {
    let onlooker = ctx.store().await;
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(ctx.store().await);
    }
    for round in 0..12_u64 {
        let names: Vec<Name> = NAMES
            .iter()
            .map(|name| Name::from((*name, round)))
            .collect();
        let mut tasks = JoinSet::new();
        for (i, store) in stores.iter().enumerate() {
            let multi = store
                .multi_lock(&names)
                .ttl(LONG)
                .label(format!("contender {i}"));
            tasks.spawn(async move { multi.try_acquire().await });
        }
        let mut outcomes = Vec::new();
        while !tasks.is_empty() {
            if let Some(label) = who_holds(&onlooker, &names[0]).await {
                assert_eq!(
                    who_holds(&onlooker, &names[2]).await,
                    Some(label),
                    "a part of them was seen"
                );
            }
            tokio::task::yield_now().await;
            while let Some(done) = tasks.try_join_next() {
                outcomes.push(done.unwrap());
            }
        }
        let held = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(
            held, 1,
            "one of those who want the same names: {outcomes:?}"
        );
    }
}

/// S12: a name with any holder or waiter is busy; the answer says which and by whom, and nothing is left.
pub(crate) async fn passes_no_waiter(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let three = ctx.backend().await;
    let all = claims(&ctx);
    let held = taken(
        &*one,
        ctx.claim("b", WaitPolicy::Fair).with_label("the holder"),
    )
    .await;
    let (at, who) = refused(three.claim_all(&all).await);
    assert_eq!(
        (at, who.label.as_deref(), who.token),
        (1, Some("the holder"), held.token)
    );
    assert_eq!(
        lines(&ctx, &*two).await,
        [(0, 0), (1, 0), (0, 0)],
        "a part was left"
    );
    // Behind a waiter, and when that one is granted.
    let waiter = ctx.claim("b", WaitPolicy::Fair).with_label("the waiter");
    let place = waiting(two.claim(&waiter).await).place;
    let (at, who) = refused(three.claim_all(&all).await);
    assert_eq!((at, who.label.as_deref()), (1, Some("the holder")));
    assert_eq!(
        lines(&ctx, &*two).await,
        [(0, 0), (1, 1), (0, 0)],
        "a part was left"
    );
    given_back(&*one, &held).await;
    let (at, who) = refused(three.claim_all(&all).await);
    assert_eq!((at, who.label.as_deref()), (1, Some("the waiter")));
    assert_eq!(
        lines(&ctx, &*two).await,
        [(0, 0), (1, 0), (0, 0)],
        "a part was left"
    );
    two.release(&waiter, Some(&place)).await.unwrap();
    // All names are free: they are granted, each in a queue of its own.
    let grants = all_granted(three.claim_all(&all).await);
    assert!(
        Some(grants[1].token) > held.token,
        "{:?} came after {:?}",
        grants[1].token,
        held.token
    );
    assert_eq!(lines(&ctx, &*two).await, [(1, 0); 3]);
    let (at, _) = refused(one.claim_all(&claims(&ctx)).await);
    assert_eq!(at, 0);
    for claim in &all {
        three.release(claim, None).await.unwrap();
    }
    assert_eq!(lines(&ctx, &*two).await, [(0, 0); 3]);
}

/// S12: readers and permits are in the way too.
pub(crate) async fn is_refused_by_every_mode(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    for mode in [Mode::Shared, Mode::Permits { n: 1, of: 3 }] {
        let other = taken(&*one, ctx.claim_as("c", mode, WaitPolicy::Fair)).await;
        assert_eq!(refused(two.claim_all(&claims(&ctx)).await).0, 2, "{mode:?}");
        assert_eq!(
            lines(&ctx, &*one).await,
            [(0, 0), (0, 0), (1, 0)],
            "a part was left"
        );
        given_back(&*one, &other).await;
    }
}

/// S12, S3: claimed again by the same ids, each has the same grant, also with a waiter behind it; new ones have greater tokens.
pub(crate) async fn is_idempotent(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let all = claims(&ctx);
    let first = all_granted(one.claim_all(&all).await);
    let waiter = ctx.claim("b", WaitPolicy::Fair);
    waiting(two.claim(&waiter).await);
    let again = all_granted(one.claim_all(&all).await);
    for (first, again) in first.iter().zip(&again) {
        assert_eq!(
            (first.token, &first.place),
            (again.token, &again.place),
            "the same grant"
        );
    }
    assert_eq!(lines(&ctx, &*two).await, [(1, 0), (1, 1), (1, 0)]);
    two.release(&waiter, None).await.unwrap();
    for (claim, grant) in all.iter().zip(&again) {
        one.release(claim, Some(&grant.place)).await.unwrap();
    }
    let others = claims(&ctx);
    for (before, after) in first.iter().zip(all_granted(two.claim_all(&others).await)) {
        assert!(
            after.token > before.token,
            "{:?} came after {:?}",
            after.token,
            before.token
        );
    }
    for claim in &others {
        two.release(claim, None).await.unwrap();
    }
}

/// S2, S12: a repeated claim of several either extended each lease or does not count from the repeat.
pub(crate) async fn repeated_counts_from_what_extended(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let all = claims(&ctx);
    all_granted(one.claim_all(&all).await);
    tokio::time::sleep(ctx.ttl() * 3 / 5).await;
    let stamp = Moment::now();
    let again = all_granted(one.claim_all(&all).await);
    let [a, b, c] = [0, 1, 2]
        .map(|i| not_granted_before(&ctx, &*two, NAMES[i], again[i].validity.until(stamp)));
    tokio::join!(a, b, c);
}

/// P4, S12: the reply is lost after the store has acted: the next claim finds the names held, and a
/// caller that never gets a reply leaves nothing.
pub(crate) async fn after_a_lost_reply(ctx: TestContext) {
    let faults = Faults::default();
    let store = ctx.store_with(&faults).await;
    let other = ctx.store().await;
    faults.lose_claim_replies(2);
    let guard = within(
        ctx.ttl() * 2,
        "the claims to find themselves",
        store.multi_lock(NAMES).acquire(),
    )
    .await
    .unwrap();
    for (name, token) in guard.tokens() {
        let queue = other.lock(name).inspect().await.unwrap();
        assert_eq!(
            (counts(&queue), queue.holders[0].token),
            ((1, 0), Some(token))
        );
    }
    guard.release().await.unwrap();
    let silence = Faults::default();
    silence.lose_notifications();
    let store = ctx.store_with(&silence).await;
    silence.lose_claim_replies(1000);
    let multi = store.multi_lock(NAMES).ttl(LONG);
    expect_kind(
        multi.acquire_timeout(Duration::from_millis(200)).await,
        ErrorKind::Ambiguous,
    );
    ctx.become_empty(&NAMES).await;
}

/// P3, S7: each of them is renewed.
pub(crate) async fn each_is_renewed(ctx: TestContext) {
    let store = ctx.store().await;
    let other = ctx.store().await;
    let ttl = ctx.ttl().max(Duration::from_secs(2));
    let guard = store.multi_lock(NAMES).ttl(ttl).acquire().await.unwrap();
    tokio::time::sleep(ttl + ttl / 2).await;
    assert!(guard.is_valid(), "lost: {:?}", guard.check());
    for (name, token) in guard.tokens() {
        assert_eq!(
            other.lock(name).inspect().await.unwrap().holders[0].token,
            Some(token)
        );
    }
    drop(guard.release().await);
    ctx.become_empty(&NAMES).await;
}

/// P4: a try is dropped at every await, free and refused.
pub(crate) async fn is_dropped_at_every_await(ctx: TestContext) {
    at_every_await(&ctx, &NAMES, |store| store.multi_lock(NAMES).try_acquire()).await;
    let store = ctx.store().await;
    let holder = store.lock("c").acquire().await.unwrap();
    for polls in 0..6 {
        let _ = within(
            ctx.ttl() * 3,
            "a try",
            leaves_at(store.multi_lock(NAMES).try_acquire(), polls),
        )
        .await;
        ctx.become_empty(&["a", "b"]).await;
    }
    drop(holder.release().await);
}

/// As many names as the store says are taken in one step, and more names are taken too.
pub(crate) async fn takes_as_many_as_it_says(ctx: TestContext) {
    const MANY: usize = 500;
    let store = ctx.store().await.ttl(Duration::from_secs(30));
    let other = ctx.backend().await;
    let most = store.guarantees().atomic_multi();
    let names = |n: usize| (0..n as u64).map(|i| ("many", i));
    let lengths = if most < MANY {
        vec![most, most + 1]
    } else {
        vec![MANY]
    };
    for n in lengths {
        // So many names take a busy store long, and one that did not answer in time may have taken them.
        let guard = answered(LONG, "all names", || {
            store.multi_lock(names(n)).acquire_timeout(LONG)
        })
        .await;
        assert!(guard.is_valid());
        assert_eq!(guard.tokens().count(), n);
        let refused = store.multi_lock(names(n)).try_acquire().await;
        assert_eq!(
            expect_kind(refused, ErrorKind::Contended).name(),
            Some(&Name::from(("many", 0)))
        );
        if let Err(e) = guard.release().await {
            assert!(e.is_retryable(), "{e:?}");
        }
    }
    until(LONG, "the release of all names", || async {
        let queue = other.inspect(&ctx.full("many/1")).await;
        queue.is_ok_and(|queue| counts(&queue) == (0, 0))
    })
    .await;
}
