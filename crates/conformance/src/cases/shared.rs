//! Do readers share, and does a writer exclude them, in one queue with them?

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Mode, WaitPolicy};
use leasehold_core::{ErrorKind, Guard};

use crate::cases::holding::ends_and_runs;
use crate::cases::modes::together;
use crate::cases::protected::Protected;
use crate::context::{
    LONG, TestContext, answered, busy, expect_kind, give_back, given_back, granted, taken,
    told_of_eviction, waiting, within,
};

/// Tasks of four clients read and write one book; no page is lost, no task reads while another writes,
/// and tokens rise wherever two conflict.
pub(crate) async fn readers_and_writers(ctx: TestContext) {
    const EACH: u64 = 8;
    let book = Arc::new(Protected::default());
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let lock = ctx.store().await.rw_lock("book");
        for writes in [true, false] {
            let book = book.clone();
            let lock = lock.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..EACH {
                    let guard = if writes { lock.write() } else { lock.read() }
                        .acquire()
                        .await
                        .unwrap();
                    let token = guard.fencing_token().get();
                    if writes {
                        book.write(token).await;
                    } else {
                        book.read(token).await;
                    }
                    assert!(guard.is_valid());
                    drop(guard.release().await);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(book.writes(), 4 * EACH);
}

/// P1, S10: readers of several clients hold at once, each with its own token; one writer excludes them all.
pub(crate) async fn readers_share_and_a_writer_excludes(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let here = one.rw_lock("a");
    let there = two.rw_lock("a");
    let soon = Duration::from_secs(5);
    let readers = [
        here.read()
            .label("first")
            .acquire_timeout(soon)
            .await
            .unwrap(),
        there
            .read()
            .label("second")
            .acquire_timeout(soon)
            .await
            .expect("a second reader"),
        here.read()
            .label("third")
            .acquire_timeout(soon)
            .await
            .expect("a third reader"),
    ];
    assert!(readers.iter().all(Guard::is_valid));
    expect_kind(there.write().try_acquire().await, ErrorKind::Contended);
    expect_kind(two.lock("a").try_acquire().await, ErrorKind::Contended);
    let tokens = readers
        .each_ref()
        .map(|reader| Some(reader.fencing_token()));
    let shared = tokens[0] == tokens[1] || tokens[1] == tokens[2] || tokens[0] == tokens[2];
    assert!(!shared, "readers share a token: {tokens:?}");
    // P8: an inspection shows all of them.
    let queue = here.inspect().await.unwrap();
    let mut seen: Vec<_> = queue
        .holders
        .iter()
        .map(|e| (e.label.clone().unwrap_or_default(), e.token))
        .collect();
    seen.sort();
    let mut expected: Vec<_> = ["first", "second", "third"]
        .map(String::from)
        .into_iter()
        .zip(tokens)
        .collect();
    expected.sort();
    assert_eq!((seen, queue.waiters.len()), (expected, 0));
    for reader in readers {
        give_back(reader).await;
    }
    ctx.becomes_empty("a").await;
    let writer = there.write().acquire().await.unwrap();
    assert!(
        tokens
            .iter()
            .all(|token| *token < Some(writer.fencing_token()))
    );
    expect_kind(here.read().try_acquire().await, ErrorKind::Contended);
    expect_kind(there.read().try_acquire().await, ErrorKind::Contended);
    expect_kind(here.write().try_acquire().await, ErrorKind::Contended);
    give_back(writer).await;
    ctx.becomes_empty("a").await;
}

/// P6, S10: readers and writers are served in the order in which they came, all readers in front of
/// the next writer at once, so that neither starves the other. The tokens of a claim that waited
/// are greater than those of the claims it waited for.
pub(crate) async fn one_line_for_readers_and_writers(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let here = one.rw_lock("a");
    let there = two.rw_lock("a");
    let first = here.read().acquire().await.unwrap();
    let mut waits = Vec::new();
    for lock in [
        there.write(),
        here.read(),
        there.read(),
        here.write(),
        there.read(),
    ] {
        waits.push(tokio::spawn(lock.acquire()));
        ctx.queue_is(&one, "a", 1, waits.len()).await;
        // A reader that comes now waits behind the writer, also if it only tries.
        expect_kind(there.read().try_acquire().await, ErrorKind::Contended);
    }
    let mut waits = waits.into_iter();
    let mut last = first.fencing_token();
    give_back(first).await;
    // The writer, both readers behind it, the next writer, the last reader.
    for n in [1, 2, 1, 1] {
        last = together(&ctx, &mut waits, (n, 0), last).await;
    }
    ctx.becomes_empty("a").await;
}

/// S10, by calls of `Backend` and without any notification: a claim that is asked again is in as soon as it is admitted, and not before.
pub(crate) async fn claiming_again_follows_the_line(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let [reader, writer, late] = [Mode::Shared, Mode::Exclusive, Mode::Shared]
        .map(|mode| ctx.claim_as("a", mode, WaitPolicy::Fair));
    let first = taken(&*one, reader.clone()).await;
    assert_eq!(Some(granted(one.claim(&reader).await).token), first.token);
    waiting(two.claim(&writer).await);
    waiting(one.claim(&late).await);
    busy(
        "a reader passed a writer",
        two.claim(&ctx.claim_as("a", Mode::Shared, WaitPolicy::Try))
            .await,
    );
    waiting(one.claim(&late).await);
    given_back(&*one, &first).await;
    // Not before the writer.
    waiting(one.claim(&late).await);
    let second = taken(&*two, writer).await;
    assert!(second.token > first.token);
    given_back(&*two, &second).await;
    let third = taken(&*one, late).await;
    assert!(third.token > second.token);
    given_back(&*one, &third).await;
    ctx.becomes_empty("a").await;
}

/// P5: a writer that waits between two readers withdraws, and the reader behind it holds beside the
/// other at once.
pub(crate) async fn a_writer_that_gives_up_lets_readers_in(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let here = one.rw_lock("a").ttl(LONG);
    let there = two.rw_lock("a").ttl(LONG);
    let first = here.read().acquire().await.unwrap();
    let writer = tokio::spawn(there.write().acquire());
    ctx.queue_is(&one, "a", 1, 1).await;
    let second = tokio::spawn(there.read().acquire());
    ctx.queue_is(&one, "a", 1, 2).await;
    writer.abort();
    let second = within(
        Duration::from_secs(8),
        "the reader behind a writer that left",
        second,
    )
    .await
    .unwrap()
    .unwrap();
    assert!(first.is_valid() && second.is_valid());
    ctx.queue_is(&one, "a", 2, 0).await;
}

/// P5, S4: a dead writer in line, and a dead reader that holds, are skipped once their leases have run out, and the living
/// are served although another holder lives on.
pub(crate) async fn skips_the_dead(ctx: TestContext) {
    let dead = ctx.backend().await;
    let alive = ctx.store().await;
    let other = ctx.store().await;
    let first = alive.rw_lock("a").read().acquire().await.unwrap();
    waiting(
        dead.claim(&ctx.claim_as("a", Mode::Exclusive, WaitPolicy::Fair))
            .await,
    );
    let reader = tokio::spawn(other.rw_lock("a").read().acquire());
    let reader = ctx.served("the reader behind a dead writer", reader).await;
    assert!(first.is_valid(), "{:?}", first.check());
    granted(
        dead.claim(&ctx.claim_as("a", Mode::Shared, WaitPolicy::Fair))
            .await,
    );
    let writer = tokio::spawn(other.rw_lock("a").write().acquire());
    ctx.queue_is(&alive, "a", 3, 1).await;
    give_back(first).await;
    give_back(reader).await;
    give_back(ctx.served("the writer behind a dead reader", writer).await).await;
    ctx.becomes_empty("a").await;
}

/// S7: the renewals of one client keep each of its readers.
pub(crate) async fn each_reader_is_renewed(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let readers = [
        one.rw_lock("a").read().acquire().await.unwrap(),
        one.rw_lock("a").read().acquire().await.unwrap(),
    ];
    for _ in 0..4 {
        tokio::time::sleep(ctx.ttl() / 2).await;
        assert!(readers.iter().all(Guard::is_valid), "{readers:?}");
        expect_kind(
            two.rw_lock("a").write().try_acquire().await,
            ErrorKind::Contended,
        );
    }
    let [first, second] = readers;
    give_back(first).await;
    answered(LONG, "a confirmation", || second.confirm()).await;
    expect_kind(
        two.rw_lock("a").write().try_acquire().await,
        ErrorKind::Contended,
    );
    give_back(second).await;
    give_back(
        ctx.soon(&two, "a", ctx.ttl() + Duration::from_secs(5))
            .await,
    )
    .await;
}

/// An operator evicts one reader by its token: only that hold is gone, and the waiting writer waits
/// for the others.
pub(crate) async fn one_reader_is_evicted(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let operator = ctx.store().await;
    let here = one.rw_lock("a").ttl(LONG);
    let there = two.rw_lock("a").ttl(LONG);
    let first = here.read().acquire().await.unwrap();
    let second = here.read().acquire().await.unwrap();
    let third = there.read().acquire().await.unwrap();
    let writer = tokio::spawn(there.write().acquire());
    ctx.queue_is(&operator, "a", 3, 1).await;
    assert!(operator.evict("a", second.fencing_token()).await.unwrap());
    assert!(
        !operator.evict("a", second.fencing_token()).await.unwrap(),
        "another hold was evicted"
    );
    told_of_eviction(Duration::from_secs(8), second.lost()).await;
    let queue = operator.lock("a").inspect().await.unwrap();
    let mut left: Vec<_> = queue.holders.iter().filter_map(|e| e.token).collect();
    left.sort();
    let mut expected = vec![first.fencing_token(), third.fencing_token()];
    expected.sort();
    assert_eq!(
        left, expected,
        "other readers were evicted too, or the wrong one"
    );
    assert!(
        first.confirm().await.is_ok() && third.confirm().await.is_ok(),
        "another reader was evicted"
    );
    assert!(operator.evict("a", first.fencing_token()).await.unwrap());
    ctx.queue_is(&operator, "a", 1, 1).await;
    assert!(operator.evict("a", third.fencing_token()).await.unwrap());
    let writer = within(Duration::from_secs(8), "the writer", writer)
        .await
        .unwrap()
        .unwrap();
    assert!(writer.fencing_token() > third.fencing_token());
    writer.release().await.unwrap();
}

/// S7: one of two readers of one client is released; a renewal of both extends the other one and
/// does not bring the released one back.
pub(crate) async fn a_renewal_extends_only_who_is_there(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let reader = || ctx.claim_as("a", Mode::Shared, WaitPolicy::Fair);
    let leases = [taken(&*one, reader()).await, taken(&*one, reader()).await];
    given_back(&*one, &leases[0]).await;
    drop(one.renew(&leases).await);
    let queue = two.inspect(&leases[0].claim.name).await.unwrap();
    let tokens: Vec<_> = queue.holders.iter().map(|e| e.token).collect();
    assert_eq!((tokens, queue.waiters.len()), (vec![leases[1].token], 0));
    given_back(&*one, &leases[1]).await;
    ctx.becomes_empty("a").await;
}

/// `max_hold` and `run` on both sides.
pub(crate) async fn ends_and_runs_as_any_lock(ctx: TestContext) {
    let store = ctx.store().await;
    let lock = store.rw_lock("a");
    for side in [lock.read(), lock.write()] {
        ends_and_runs(&ctx, side).await;
    }
}
