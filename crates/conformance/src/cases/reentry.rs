//! Does an owner enter again, as reader or writer, with one token, and never wait for itself?

use std::time::Duration;

use leasehold_core::{ErrorKind, Owner};

use crate::context::{TestContext, expect_kind, give_back, within};

/// The model `ReentrantFencedMutex` of Jepsen's tests of Hazelcast: a writer may enter as writer and as reader, by `lock` and
/// `rw_lock` alike; one hold, one token, released by the last guard.
pub(crate) async fn a_writer_may_read_and_write(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let owner = Owner::new();
    let lock = one.rw_lock("a").owner(&owner);
    let outer = lock.write().acquire().await.unwrap();
    let token = outer.fencing_token();
    let inner = [
        lock.read().acquire().await.unwrap(),
        lock.write().try_acquire().await.unwrap(),
        one.lock("a").owner(&owner).acquire().await.unwrap(),
    ];
    assert!(inner.iter().all(|guard| guard.fencing_token() == token));
    ctx.queue_is(&two, "a", 1, 0).await;
    outer.release().await.unwrap();
    // The remaining hold is still exclusive, also if only a reader's guard is left.
    let [read, write, plain] = inner;
    drop((write, plain));
    assert!(read.is_valid());
    expect_kind(
        two.rw_lock("a").read().try_acquire().await,
        ErrorKind::Contended,
    );
    expect_kind(
        one.rw_lock("a")
            .owner(&Owner::new())
            .read()
            .try_acquire()
            .await,
        ErrorKind::Contended,
    );
    give_back(read).await;
    ctx.becomes_empty("a").await;
    let next = lock.write().acquire().await.unwrap();
    assert!(next.fencing_token() > token, "a new hold has a new token");
    give_back(next).await;
}

/// A reader that asks to write would wait for itself: it gets an error at once from each call, and
/// keeps reading.
pub(crate) async fn a_reader_that_asks_to_write_is_refused(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let owner = Owner::new();
    let lock = one.rw_lock("a").owner(&owner);
    let reading = lock.read().acquire().await.unwrap();
    let limit = Duration::from_secs(5);
    for write in [lock.write(), one.lock("a").owner(&owner)] {
        expect_kind(
            within(limit, "the refusal", write.acquire()).await,
            ErrorKind::Invalid,
        );
        expect_kind(
            within(limit, "the refusal", write.try_acquire()).await,
            ErrorKind::Invalid,
        );
        expect_kind(
            within(limit, "the refusal", write.acquire_timeout(limit)).await,
            ErrorKind::Invalid,
        );
    }
    assert!(reading.is_valid());
    let again = lock.read().acquire().await.unwrap();
    assert_eq!(again.fencing_token(), reading.fencing_token());
    ctx.queue_is(&two, "a", 1, 0).await;
    give_back(two.rw_lock("a").read().acquire().await.unwrap()).await;
    give_back(reading).await;
    give_back(again).await;
    ctx.becomes_empty("a").await;
    give_back(
        within(limit, "the writer", lock.write().acquire())
            .await
            .unwrap(),
    )
    .await;
}

/// Re-entry passes the queue: a holder does not wait behind those that wait for it.
pub(crate) async fn passes_those_who_wait(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let lock = one.rw_lock("a").owner(&Owner::new());
    let reading = lock.read().acquire().await.unwrap();
    let writer = tokio::spawn(two.rw_lock("a").write().acquire());
    ctx.queue_is(&one, "a", 1, 1).await;
    let again = within(Duration::from_secs(10), "re-entry", lock.read().acquire())
        .await
        .unwrap();
    give_back(reading).await;
    ctx.queue_is(&one, "a", 1, 1).await;
    give_back(again).await;
    give_back(ctx.served("the writer", writer).await).await;
    ctx.becomes_empty("a").await;
}

/// A lost hold cannot be entered again: the owner takes a new one, with a new token.
pub(crate) async fn ends_with_the_hold(ctx: TestContext) {
    let one = ctx.store().await;
    let operator = ctx.store().await;
    let lock = one.lock("a").owner(&Owner::new());
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    assert!(operator.evict("a", outer.fencing_token()).await.unwrap());
    within(
        Duration::from_secs(8) + ctx.ttl(),
        "the evicted to hear of it",
        inner.lost(),
    )
    .await;
    assert!(!outer.is_valid());
    let fresh = within(
        ctx.ttl() + Duration::from_secs(8),
        "a new hold",
        lock.acquire(),
    )
    .await
    .unwrap();
    assert!(fresh.fencing_token() > outer.fencing_token());
    expect_kind(outer.release().await, ErrorKind::Lost);
    expect_kind(inner.release().await, ErrorKind::Lost);
    assert!(fresh.is_valid());
    give_back(fresh).await;
    ctx.becomes_empty("a").await;
}
