//! Are several names taken together, or none?

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Moment, WaitPolicy};
use leasehold_core::{ErrorKind, Loss, Name};

use crate::cases::protected::Protected;
use crate::context::{LONG, TestContext, expect_kind, give_back, told_of_eviction, within};
use crate::harness::Need;

/// Tasks that want the same names in opposite orders never deadlock, and a task that holds all
/// names is alone.
pub(crate) async fn opposite_orders_do_not_deadlock(ctx: TestContext) {
    let protected = Arc::new(Protected::default());
    let mut tasks = Vec::new();
    for (i, names) in [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"]]
        .into_iter()
        .enumerate()
    {
        let multi = ctx.store().await.multi_lock(names);
        let protected = protected.clone();
        let faulty = ctx.is_faulty();
        tasks.push(tokio::spawn(async move {
            for _ in 0..6 {
                let guard = loop {
                    match multi.acquire().await {
                        Ok(guard) => break guard,
                        // A name that the task held was lost on a faulty network while it waited
                        // for the next one.
                        Err(e) if faulty && e.kind() == ErrorKind::Lost => {}
                        Err(e) => panic!("{i}: {e:?}"),
                    }
                };
                protected
                    .write(guard.get("a").unwrap().fencing_token().get())
                    .await;
                assert!(guard.is_valid());
                drop(guard.release().await);
            }
        }));
    }
    for task in tasks {
        within(
            Duration::from_secs(90),
            "those who want the same names",
            task,
        )
        .await
        .unwrap();
    }
    ctx.become_empty(&["a", "b", "c"]).await;
}

/// A guard of several names has each name in order with its token, and the lock of each name is
/// held.
pub(crate) async fn holds_each_of_them(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let guard = one.multi_lock(["c", "a", "b"]).acquire().await.unwrap();
    let tokens: Vec<_> = guard
        .tokens()
        .map(|(name, token)| (name.clone(), token))
        .collect();
    assert_eq!(
        tokens
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    assert!(guard.is_valid() && guard.remaining() > Duration::ZERO && guard.check().is_ok());
    for (name, token) in &tokens {
        assert_eq!(
            guard.get(name).map(|guard| guard.fencing_token()),
            Some(*token)
        );
        let who = expect_kind(two.lock(name).try_acquire().await, ErrorKind::Contended)
            .into_contention()
            .unwrap();
        assert_eq!(who.token, Some(*token), "the token in a refusal");
        let queue = two.lock(name).inspect().await.unwrap();
        assert_eq!(
            queue.holders[0].token,
            Some(*token),
            "the token in the queue"
        );
    }
    assert!(guard.get("d").is_none());
    drop(guard.release().await);
    for (name, _) in &tokens {
        ctx.becomes_empty(name.as_str()).await;
    }
    // Each name's tokens rise from one holder to the next, also across primitives.
    let after = two.lock("b").acquire().await.unwrap();
    assert!(after.fencing_token() > tokens[1].1);
    give_back(after).await;
}

/// All or nothing: one name is held by another client, so none is kept, and the error names that
/// one.
pub(crate) async fn takes_all_or_nothing(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let taken = one.lock("b").label("the holder").acquire().await.unwrap();
    let multi = two.multi_lock(["a", "b", "c"]);
    let error = expect_kind(multi.try_acquire().await, ErrorKind::Contended);
    assert_eq!(error.name(), Some(&Name::new("b")));
    assert_eq!(
        error.into_contention().unwrap().label.as_deref(),
        Some("the holder")
    );
    ctx.become_empty(&["a", "c"]).await;
    let error = multi
        .acquire_timeout(Duration::from_millis(300))
        .await
        .unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    ctx.become_empty(&["a", "c"]).await;
    // A waiter that gives up midway leaves nothing, and a waiter that waits for all names gets
    // them.
    let leaver = tokio::spawn(multi.acquire());
    ctx.queue_is(&one, "b", 1, 1).await;
    leaver.abort();
    ctx.become_empty(&["a", "c"]).await;
    let all = tokio::spawn(multi.acquire());
    ctx.queue_is(&one, "b", 1, 1).await;
    give_back(taken).await;
    let all = ctx.served("all of them", all).await;
    assert!(all.is_valid());
    drop(all);
    ctx.become_empty(&["a", "b", "c"]).await;
}

/// All names share one deadline: the time that the first one took is missing for the others.
pub(crate) async fn has_one_deadline(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let first = one.lock("a").acquire().await.unwrap();
    let _second = one.lock("b").acquire().await.unwrap();
    let start = Moment::now();
    let wait = Duration::from_millis(900);
    let bounded = tokio::spawn(two.multi_lock(["b", "a"]).acquire_timeout(wait));
    ctx.queue_is(&one, "a", 1, 1).await;
    tokio::time::sleep(wait / 2).await;
    first.release().await.unwrap();
    let error = bounded.await.unwrap().unwrap_err();
    // A busy store may not answer the last question in time, and the caller is told so.
    assert!(
        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Ambiguous),
        "{error}"
    );
    let took = Moment::now().since(start);
    assert!(
        took >= wait && took < wait + Duration::from_millis(700),
        "took {took:?} for {wait:?}"
    );
    assert_eq!(error.name(), Some(&Name::new("b")));
    ctx.becomes_empty("a").await;
}

/// An empty list, and a list with one name twice, are refused before anything is sent.
pub(crate) async fn refuses_none_and_twice(ctx: TestContext) {
    let store = ctx.store().await;
    let none: [&str; 0] = [];
    expect_kind(store.multi_lock(none).acquire().await, ErrorKind::Invalid);
    expect_kind(
        store.multi_lock(none).try_acquire().await,
        ErrorKind::Invalid,
    );
    let error = expect_kind(
        store.multi_lock(["b", "a", "b"]).acquire().await,
        ErrorKind::Invalid,
    );
    assert_eq!(error.name(), Some(&Name::new("b")));
    // A bad name among good ones, first or last: none of them is kept.
    for bad in ["", "a\0b"] {
        expect_kind(
            store.multi_lock(["x", bad]).acquire().await,
            ErrorKind::Invalid,
        );
        expect_kind(
            store.multi_lock(["b", bad]).try_acquire().await,
            ErrorKind::Invalid,
        );
    }
    expect_kind(
        store
            .multi_lock(["a", "b"])
            .ttl(Duration::ZERO)
            .acquire()
            .await,
        ErrorKind::Invalid,
    );
    ctx.become_empty(&["a", "b", "x"]).await;
}

/// The store and its test agree on whether several names are taken in one step.
pub(crate) async fn says_whether_it_is_one_step(ctx: TestContext) {
    let backend = ctx.backend().await;
    let lacks = ctx
        .harness()
        .capabilities()
        .lack(&[Need::AtomicMulti])
        .is_some();
    assert_eq!(
        backend.guarantees().atomic_multi() < 2,
        lacks,
        "{:?}",
        backend.guarantees()
    );
    if lacks {
        let claims = ["a", "b"].map(|name| ctx.claim(name, WaitPolicy::Try));
        expect_kind(backend.claim_all(&claims).await, ErrorKind::Unsupported);
    }
}

/// One of the names is lost: the guard of all of them reports it at once, names it, and gives the
/// others back.
pub(crate) async fn is_lost_with_one_of_them(ctx: TestContext) {
    let one = ctx.store().await;
    let operator = ctx.store().await;
    let guard = one
        .multi_lock(["a", "b", "c"])
        .ttl(LONG)
        .acquire()
        .await
        .unwrap();
    let token = guard.get("b").unwrap().fencing_token();
    let lost = guard.lost();
    assert!(operator.evict("b", token).await.unwrap());
    told_of_eviction(Duration::from_secs(8), lost).await;
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(
        expect_kind(guard.check(), ErrorKind::Lost).name(),
        Some(&Name::new("b"))
    );
    assert!(guard.get("a").unwrap().is_valid());
    assert_eq!(
        expect_kind(guard.release().await, ErrorKind::Lost).name(),
        Some(&Name::new("b"))
    );
    ctx.become_empty(&["a", "b", "c"]).await;
}

/// `max_hold` and `run`: the body sees each hold, is dropped on loss, and all are given back.
pub(crate) async fn ends_and_runs_as_any_lock(ctx: TestContext) {
    let store = ctx.store().await;
    let multi = store.multi_lock(["b", "a"]);
    let guard = multi
        .clone()
        .max_hold(ctx.ttl() / 2)
        .acquire()
        .await
        .unwrap();
    assert_eq!(
        within(ctx.ttl() * 2, "max_hold", guard.lost()).await,
        Loss::MaxHold
    );
    expect_kind(guard.release().await, ErrorKind::Lost);
    ctx.become_empty(&["a", "b"]).await;
    let names = multi.run(|held| async move {
        held.iter()
            .map(|held| held.name().clone())
            .collect::<Vec<_>>()
    });
    assert_eq!(names.await.unwrap(), [Name::new("a"), Name::new("b")]);
    let lost = multi
        .clone()
        .max_hold(ctx.ttl() / 3)
        .run(|_| std::future::pending::<()>());
    assert_eq!(
        expect_kind(lost.await, ErrorKind::Lost).loss(),
        Some(Loss::MaxHold)
    );
    ctx.become_empty(&["a", "b"]).await;
    let cancelled = tokio::spawn(multi.run(|_| std::future::pending::<()>()));
    ctx.queue_is(&store, "b", 1, 0).await;
    cancelled.abort();
    ctx.become_empty(&["a", "b"]).await;
}
