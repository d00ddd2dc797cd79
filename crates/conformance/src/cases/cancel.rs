//! Does a caller that leaves at any moment leave anything behind?

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use leasehold_core::{Acquire, ErrorKind, Store};

use crate::context::{LONG, TestContext, counts, expect_kind, within};
use crate::faulty::Faults;

/// Drops an acquisition after `polls` polls; returns whether it was granted before.
pub(super) async fn leaves_at<G>(acquire: Acquire<G>, mut polls: usize) -> bool {
    let mut acquire = std::pin::pin!(acquire);
    poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(false);
        }
        polls -= 1;
        match acquire.as_mut().poll(cx) {
            Poll::Ready(guard) => Poll::Ready(guard.is_ok()),
            Poll::Pending if polls == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops an acquisition after 0, 1, 2, … polls, until it completes first. After each drop `names`
/// must be free soon.
pub(super) async fn at_every_await<G>(
    ctx: &TestContext,
    names: &[&str],
    make: impl Fn(&Store) -> Acquire<G>,
) {
    let store = ctx.store().await;
    for polls in 0..50 {
        let done = within(
            ctx.ttl() * 3,
            "an acquisition",
            leaves_at(make(&store), polls),
        )
        .await;
        ctx.become_empty(names).await;
        if done {
            assert!(polls > 0);
            return;
        }
    }
}

/// Drops an acquisition behind a holder of `name` after 0, 1, 2, … polls. The waiter behind it must
/// be served.
async fn at_every_await_behind<G: Send + 'static>(
    ctx: &TestContext,
    name: &str,
    make: impl Fn(&Store) -> Acquire<G>,
) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    for polls in [0, 1, 2, 3, 4, 6] {
        let guard = one.lock(name).acquire().await.unwrap();
        // A waiter that is never woken again is dropped where it waits.
        let _ = tokio::time::timeout(ctx.ttl() / 4, leaves_at(make(&two), polls)).await;
        let next = tokio::spawn(make(&two));
        drop(guard);
        let next = within(ctx.ttl() * 4, "the waiter behind", next)
            .await
            .unwrap();
        drop(next.unwrap_or_else(|e| panic!("{e:?}")));
        ctx.becomes_empty(name).await;
    }
}

/// The future is dropped at every await.
pub(crate) async fn at_every_await_when_free(ctx: TestContext) {
    at_every_await(&ctx, &["a"], |store| store.lock("a").acquire()).await;
}

/// P4: the future is dropped at every await behind a holder.
pub(crate) async fn at_every_await_when_held(ctx: TestContext) {
    at_every_await_behind(&ctx, "a", |store| store.lock("a").acquire()).await;
}

/// P4: the future of a reader is dropped at every await, alone and behind a writer.
pub(crate) async fn at_every_await_of_a_reader(ctx: TestContext) {
    at_every_await(&ctx, &["a"], |store| store.rw_lock("a").read().acquire()).await;
    at_every_await_behind(&ctx, "a", |store| store.rw_lock("a").read().acquire()).await;
}

/// P4: the future of a claim of permits is dropped at every await.
pub(crate) async fn at_every_await_of_permits(ctx: TestContext) {
    at_every_await(&ctx, &["a"], |store| {
        store.semaphore("a", 3).permits(2).acquire()
    })
    .await;
    at_every_await_behind(&ctx, "a", |store| {
        store.semaphore("a", 3).permits(2).acquire()
    })
    .await;
}

/// P4: the future for several names is dropped at every await. Some names may be held already when
/// it is dropped.
pub(crate) async fn at_every_await_of_several_names(ctx: TestContext) {
    at_every_await(&ctx, &["a", "b"], |store| {
        store.multi_lock(["b", "a"]).acquire()
    })
    .await;
    at_every_await_behind(&ctx, "b", |store| store.multi_lock(["b", "a"]).acquire()).await;
    ctx.becomes_empty("a").await;
}

/// The reply is lost after the store has acted; the claim adopts its own entry (go-zookeeper#229, kazoo#732).
pub(crate) async fn after_a_lost_reply(ctx: TestContext) {
    let faults = Faults::default();
    let store = ctx.store_with(&faults).await;
    faults.lose_claim_replies(2);
    let guard = within(
        ctx.ttl() * 2,
        "the claim to find itself",
        store.lock("a").acquire(),
    )
    .await
    .unwrap();
    let queue = store.lock("a").inspect().await.unwrap();
    assert_eq!(counts(&queue), (1, 0));
    guard.release().await.unwrap();
    ctx.becomes_empty("a").await;
    // A caller that leaves after a lost reply leaves nothing.
    faults.lose_claim_replies(1000);
    match store
        .lock("a")
        .acquire_timeout(Duration::from_millis(200))
        .await
    {
        Ok(guard) => drop(guard), // a notification may have told what the replies did not
        Err(e) => assert_eq!(e.kind(), ErrorKind::Ambiguous),
    }
    faults.lose_claim_replies(0);
    ctx.becomes_empty("a").await;
}

/// In the other modes, two replies are lost, and there is still one entry and one token.
pub(crate) async fn after_a_lost_reply_in_every_mode(ctx: TestContext) {
    let faults = Faults::default();
    let store = ctx.store_with(&faults).await;
    let other = ctx.store().await;
    for lock in [
        store.rw_lock("a").read(),
        store.semaphore("a", 2).permits(2),
    ] {
        faults.lose_claim_replies(2);
        let guard = within(ctx.ttl() * 2, "the claim to find itself", lock.acquire())
            .await
            .unwrap();
        let queue = other.lock("a").inspect().await.unwrap();
        assert_eq!(counts(&queue), (1, 0), "{lock:?}");
        assert_eq!(queue.holders[0].token, Some(guard.fencing_token()));
        guard.release().await.unwrap();
        ctx.becomes_empty("a").await;
    }
}

/// P4: neither a reply nor a notification shows that the claim has a place, and its lease is long:
/// it is withdrawn by its id at once.
pub(crate) async fn withdraws_what_it_was_never_told(ctx: TestContext) {
    let faults = Faults::default();
    faults.lose_notifications();
    let one = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    let wait = Duration::from_millis(200);
    faults.lose_claim_replies(1000);
    expect_kind(
        one.lock("free").ttl(LONG).acquire_timeout(wait).await,
        ErrorKind::Ambiguous,
    );
    let guard = two.lock("held").ttl(LONG).acquire().await.unwrap();
    expect_kind(
        one.lock("held").ttl(LONG).acquire_timeout(wait).await,
        ErrorKind::Ambiguous,
    );
    guard.release().await.unwrap();
    ctx.become_empty(&["free", "held"]).await;
}

/// The reply of a release is lost: the release is repeated, and frees no other hold (apache/curator#1193, etcd#22123). Its caller hears
/// of a failure only if no repetition is answered, and then it is repeated in the background.
pub(crate) async fn a_lost_release_reply(ctx: TestContext) {
    let faults = Faults::default();
    let one = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    faults.lose_release_replies(1);
    let guard = one.lock("a").acquire().await.unwrap();
    guard.release().await.unwrap();
    faults.lose_release_replies(u32::MAX);
    let guard = one.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(two.lock("a").acquire());
    ctx.queue_reaches(&two, "a", 1).await;
    expect_kind(guard.release().await, ErrorKind::Ambiguous);
    faults.lose_release_replies(0);
    let next = within(ctx.ttl(), "the next holder", waiter)
        .await
        .unwrap()
        .unwrap();
    one.close(Duration::from_secs(5)).await.unwrap();
    assert!(next.confirm().await.is_ok());
}

/// The store goes away; a bounded wait ends in time with the store's error, and nothing is left.
pub(crate) async fn behind_a_cut_link(ctx: TestContext) {
    let (client, link) = ctx.harness().linked_client().await;
    let one = ctx.over(client);
    let two = ctx.store().await;
    link.black_hole().await;
    let ends_in_time = async |name: &str| {
        let wait = Duration::from_millis(400);
        let answer = within(
            wait * 2,
            "a bounded wait",
            one.lock(name).acquire_timeout(wait),
        )
        .await;
        assert!(answer.is_err_and(|e| e.is_retryable()));
    };
    ends_in_time("a").await;
    link.heal().await;
    ctx.becomes_empty("a").await;
    link.cut().await;
    ends_in_time("b").await;
    link.heal().await;
    // The client recovers by itself.
    let guard = ctx
        .soon(&one, "b", ctx.ttl() * 3 + Duration::from_secs(10))
        .await;
    assert!(two.lock("b").try_acquire().await.is_err());
    drop(guard);
    ctx.becomes_empty("b").await;
}

/// A guard frees by drop, without a task that waits for it.
pub(crate) async fn a_guard_frees_by_drop(ctx: TestContext) {
    let store = ctx.store().await;
    for _ in 0..3 {
        drop(store.lock("a").acquire().await.unwrap());
        drop(ctx.soon(&store, "a", Duration::from_secs(10)).await);
    }
    ctx.becomes_empty("a").await;
}

/// Many guards dropped at once are all free soon (rlock's bug).
pub(crate) async fn many_guards_at_once(ctx: TestContext) {
    // The lease is so long that no guard is lost on a busy machine, and no lock becomes free by the
    // end of the lease.
    let store = ctx.store().await.ttl(LONG);
    let mut guards = Vec::new();
    for i in 0..200 {
        guards.push(store.lock(("many", i)).acquire().await.unwrap());
    }
    let lost: Vec<_> = guards
        .iter()
        .filter_map(|guard| guard.check().err())
        .collect();
    assert!(lost.is_empty(), "{} of 200 were lost: {lost:?}", lost.len());
    drop(guards);
    let names: Vec<String> = (0..200).map(|i| format!("many/{i}")).collect();
    within(
        ctx.ttl() + Duration::from_secs(20),
        "200 locks to come free",
        ctx.become_empty(&names),
    )
    .await;
}

/// A guard outlives its runtime: no panic, no hang; the lease ends it.
pub(crate) async fn outside_of_any_runtime(ctx: TestContext) {
    let store = ctx.store().await;
    let gone = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let guard = runtime.block_on(store.lock("a").acquire()).unwrap();
        runtime.shutdown_background();
        assert!(guard.is_valid());
        assert!(guard.remaining() > Duration::ZERO);
        drop(guard);
    });
    within(
        ctx.ttl(),
        "the other thread",
        tokio::task::spawn_blocking(move || gone.join().unwrap()),
    )
    .await
    .unwrap();
    ctx.becomes_empty("a").await;
}
