//! Does bad input get a clear error, and leave nothing?

use std::time::Duration;

use leasehold_core::{ErrorKind, MAX_TTL, Options};

use crate::context::{TestContext, expect_kind, within};
use crate::harness::Need;

/// Bad names and words are refused at once, with a helpful text.
pub(crate) async fn bad_names_and_words(ctx: TestContext) {
    let store = ctx.store().await;
    let long = "x".repeat(513);
    for bad in ["", "a\0b", &long] {
        expect_kind(store.lock(bad).acquire().await, ErrorKind::Invalid);
        expect_kind(store.lock(bad).try_acquire().await, ErrorKind::Invalid);
    }
    for bad in ["", "a\0b"] {
        expect_kind(store.lock(bad).inspect().await, ErrorKind::Invalid);
    }
    // Seen from outside of its namespace, a name may be longer than one that is taken.
    let queue = store.lock(&*long).inspect().await.unwrap();
    assert!(
        queue.holders.is_empty() && queue.waiters.is_empty(),
        "{queue:?}"
    );
    let long = "x".repeat(400);
    let inner = ctx.store().await.namespace(&long);
    let guard = inner.lock(&*long).acquire().await.unwrap();
    let full = format!("{long}/{long}");
    assert_eq!(
        store.list(&long, None, 2).await.unwrap(),
        [full.as_str().into()]
    );
    let queue = store.lock(full.as_str()).inspect().await.unwrap();
    assert_eq!(queue.holders.len(), 1, "{queue:?}");
    guard.release().await.unwrap();
    let words = Options::default();
    for bad in [
        words.clone().ttl(Duration::ZERO),
        words.clone().ttl(Duration::from_nanos(1)),
        words.clone().ttl(MAX_TTL + Duration::from_nanos(1)),
        words.clone().ttl(Duration::MAX),
        words.clone().max_hold(Duration::ZERO),
        words.clone().label("x".repeat(257)),
    ] {
        let error = expect_kind(
            store.lock("a").with(&bad).acquire().await,
            ErrorKind::Invalid,
        );
        assert!(error.to_string().len() > 20, "{error}");
    }
    ctx.becomes_empty("a").await;
    // Absurd waits neither panic nor overflow, and short ones are short.
    let _guard = store.lock("a").acquire().await.unwrap();
    expect_kind(
        store
            .lock("a")
            .acquire_timeout(Duration::from_secs(1))
            .await,
        ErrorKind::TimedOut,
    );
    let forever = tokio::time::timeout(
        Duration::from_millis(200),
        store.lock("a").acquire_timeout(Duration::MAX),
    )
    .await;
    assert!(forever.is_err());
}

/// A key of another kind at the lock's place: a typed error, no endless wait.
pub(crate) async fn junk_in_the_store(ctx: TestContext) {
    let store = ctx.store().await;
    ctx.harness().put_junk(ctx.full("a").as_str()).await;
    let limit = Duration::from_secs(5);
    let error = expect_kind(
        within(limit, "an error", store.lock("a").acquire()).await,
        ErrorKind::Corrupt,
    );
    assert!(error.to_string().contains("\"a\""), "{error}");
    expect_kind(
        within(limit, "an error", store.lock("a").try_acquire()).await,
        ErrorKind::Corrupt,
    );
}

/// A closed store returns an error that says so.
pub(crate) async fn a_closed_store(ctx: TestContext) {
    let store = ctx.store().await;
    let guard = store.lock("a").acquire().await.unwrap();
    drop(guard);
    store.close(Duration::from_secs(5)).await.unwrap();
    expect_kind(store.lock("a").acquire().await, ErrorKind::Closed);
    expect_kind(store.lock("a").try_acquire().await, ErrorKind::Closed);
    ctx.becomes_empty("a").await;
}

/// A store states whether it can do work once, and one that cannot refuses it before it sends anything.
pub(crate) async fn says_whether_it_does_work_once(ctx: TestContext) {
    let client = ctx.backend().await;
    let can = ctx.harness().capabilities().lack(&[Need::Once]).is_none();
    assert_eq!(client.guarantees().once(), can, "what it guarantees");
    assert_eq!(client.completions().is_some(), can, "what it implements");
    if !can {
        let store = ctx.over(client);
        let once = store.once("a").keep_forever();
        expect_kind(
            once.run(async |_| Ok::<_, ()>(())).await,
            ErrorKind::Unsupported,
        );
        expect_kind(once.done().await, ErrorKind::Unsupported);
        expect_kind(store.list_done("", None, 1).await, ErrorKind::Unsupported);
    }
}
