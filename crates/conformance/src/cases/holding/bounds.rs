//! The combinations of `min_hold`, `max_hold` and re-entry with one another, with several names,
//! and with the turns of one claim.

use std::pin::pin;
use std::time::Duration;

use leasehold_core::backend::Moment;
use leasehold_core::{ErrorKind, Guard, Loss, Owner, Result, Store};

use crate::context::{TestContext, expect_kind, within};
use crate::harness::Need;

const SOON: Duration = Duration::from_secs(20);

/// Fails if the name comes free before `min_hold` is over, or much later.
async fn is_free_at(ctx: &TestContext, other: &Store, name: &str, until: Moment) {
    let limit =
        until.since(Moment::now()) + Duration::from_secs(10) + other.guarantees().recovery();
    let next = ctx.soon(other, name, limit).await;
    assert!(
        Moment::now() >= until,
        "{name}: free {:?} before min_hold was over",
        until.since(Moment::now())
    );
    next.release().await.unwrap();
}

/// A hold whose `min_hold` equals its `max_hold`: if it is given back, it stays taken until then;
/// if it is kept, it is lost then.
pub(crate) async fn may_last_exactly(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let bound = ctx.ttl() * 3 / 2;
    let lock = one.lock("a").min_hold(bound).max_hold(bound);
    let begin = Moment::now();
    lock.acquire().await.unwrap().release().await.unwrap();
    is_free_at(&ctx, &two, "a", begin + bound).await;
    let begin = Moment::now();
    let kept = lock.acquire().await.unwrap();
    assert_eq!(
        within(bound * 2, "max_hold", kept.lost()).await,
        Loss::MaxHold
    );
    assert!(Moment::now() >= begin + bound);
    is_free_at(&ctx, &two, "a", begin + bound).await;
    expect_kind(kept.release().await, ErrorKind::Lost);
}

/// Each of several names stays taken until `min_hold` is over, also after its program has ended, if
/// the store can do that.
pub(crate) async fn min_hold_keeps_several_names(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let bound = ctx.ttl() * 3 / 2;
    let begin = Moment::now();
    one.multi_lock(["a", "b"])
        .min_hold(bound)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    if ctx
        .harness()
        .capabilities()
        .lack(&[Need::MinHold])
        .is_none()
    {
        one.close(Duration::ZERO).await.ok();
    }
    tokio::join!(
        is_free_at(&ctx, &two, "a", begin + bound),
        is_free_at(&ctx, &two, "b", begin + bound)
    );
}

/// The next task of the process stands in the local queue; then the guard is given back.
async fn then_next(guard: Guard, next: impl Future<Output = Result<Guard>>) -> Guard {
    let mut next = pin!(next);
    assert!(
        tokio::time::timeout(Duration::from_millis(20), &mut next)
            .await
            .is_err(),
        "two have it"
    );
    guard.release().await.unwrap();
    within(SOON, "the next turn", next).await.unwrap()
}

/// Each turn has the bounds of its own task: `max_hold` counts from its own beginning, and a turn that is given back within its
/// `min_hold` is followed by no other before.
pub(crate) async fn bound_each_turn(ctx: TestContext) {
    let store = ctx.store().await;
    let lock = store.lock("a").fast().ttl(SOON);
    let max = Duration::from_millis(700);
    let min = Duration::from_millis(900);
    let brief = lock.clone().max_hold(max).acquire().await.unwrap();
    let token = brief.fencing_token().get();
    let second = then_next(brief, lock.acquire()).await;
    assert_eq!(second.fencing_token().get(), token + 1, "the same claim");
    tokio::time::sleep(max).await;
    assert!(
        second.is_valid(),
        "ended by the max_hold of another turn: {:?}",
        second.check()
    );
    let begin = Moment::now();
    let third = then_next(second, lock.clone().min_hold(min).acquire()).await;
    let token = third.fencing_token();
    let fourth = then_next(third, lock.clone().max_hold(max).acquire()).await;
    assert!(
        Moment::now() >= begin + min,
        "a turn began before the min_hold of the one before was over"
    );
    assert!(fourth.fencing_token() > token);
    assert_eq!(within(SOON, "max_hold", fourth.lost()).await, Loss::MaxHold);
    within(SOON, "the lock behind a turn that was lost", lock.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// The guards of one owner are one turn: the next task has it after the last of them.
pub(crate) async fn turn_is_one_for_its_owner(ctx: TestContext) {
    let store = ctx.store().await;
    let lock = store.lock("a").fast().ttl(SOON);
    let own = lock.clone().owner(&Owner::new());
    let outer = own.acquire().await.unwrap();
    let inner = own.try_acquire().await.unwrap();
    let token = outer.fencing_token();
    let mut next = pin!(lock.acquire());
    assert!(
        tokio::time::timeout(Duration::from_millis(20), &mut next)
            .await
            .is_err(),
        "two have it"
    );
    outer.release().await.unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(200), &mut next)
            .await
            .is_err(),
        "its owner still has it"
    );
    assert!(inner.is_valid() && inner.fencing_token() == token);
    inner.release().await.unwrap();
    let next = within(SOON, "the next turn", next).await.unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
}
