//! Do names stay apart, and can they be listed and inspected?

use std::time::{Duration, SystemTime};

use leasehold_core::support::wall;
use leasehold_core::{MAX_NAME_BYTES, Name};

use crate::context::{TestContext, counts};

/// Names that would collide under a careless encoding.
const ODD: &[&str] = &[
    "a",
    "a/",
    "/a",
    "a/b",
    "a/b/c",
    "a%2Fb",
    "a%252Fb",
    "A",
    "{a}",
    "{a",
    "a}",
    "a{b}c",
    "{}",
    "a:q",
    "a:f",
    "{a}:q",
    "a b",
    " a",
    "a\n",
    "a\"b",
    "a'b",
    "a\\b",
    "]]",
    "lock-a",
    "block-a",
    "job",
    "job-2",
    "..",
    ".",
    "é",
    "e\u{301}",
    "漢字",
    "\u{1F512}",
    "*",
    "?",
    "[a]",
    "a\u{1}b",
    "%",
    "%%",
    "_c_",
    "a-lock-0000000000",
    "zookeeper",
];

/// Names that would collide under a careless encoding are all held at once, and all free again.
pub(crate) async fn do_not_interact(ctx: TestContext) {
    let store = ctx.store().await;
    let longest = "x".repeat(400);
    let odd = [ODD, &[&longest]].concat();
    let mut guards = Vec::new();
    for name in &odd {
        let guard = store
            .lock(*name)
            .acquire_timeout(Duration::from_secs(5))
            .await;
        guards.push(guard.unwrap_or_else(|e| panic!("{name:?}: {e:?}")));
    }
    for name in &odd {
        assert!(
            store.lock(*name).try_acquire().await.is_err(),
            "{name:?} is not excluded"
        );
        let queue = store.lock(*name).inspect().await.unwrap();
        assert_eq!(counts(&queue), (1, 0), "{name:?}");
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// Lists are in byte order, by prefix, in pages, and decode what was encoded.
pub(crate) async fn are_listed(ctx: TestContext) {
    let store = ctx.store().await;
    let mut names: Vec<Name> = ["l/b", "l/a", "l/ü", "l/a/x", "l/a%2Fx", "l/{z}", "m/a"]
        .map(Name::new)
        .to_vec();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(store.lock(name).acquire().await.unwrap());
    }
    names.sort();
    let below: Vec<Name> = names
        .iter()
        .filter(|name| name.as_str().starts_with("l/"))
        .cloned()
        .collect();
    assert_eq!(store.list("l/", None, 100).await.unwrap(), below);
    assert_eq!(store.list("", None, 100).await.unwrap(), names);
    let mut pages = Vec::new();
    loop {
        let page = store.list("l/", pages.last(), 2).await.unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 2);
        pages.extend(page);
    }
    assert_eq!(pages, below);
    drop(guards);
}

/// One name in two namespaces is two locks.
pub(crate) async fn nest_in_namespaces(ctx: TestContext) {
    let store = ctx.store().await;
    let one = store.clone().namespace("one");
    let two = store.clone().namespace("two");
    let first = one.lock("a").acquire().await.unwrap();
    let second = two
        .lock("a")
        .acquire_timeout(Duration::from_secs(5))
        .await
        .unwrap();
    assert!(one.lock("a").try_acquire().await.is_err());
    assert_eq!(one.list("", None, 10).await.unwrap(), [Name::new("a")]);
    assert_eq!(first.name().as_str(), "a");
    assert_eq!(second.name().as_str(), "a");
}

/// P8: an inspection shows the labels, tokens and times of the holder and of the waiters, in order.
pub(crate) async fn show_who_holds_and_waits(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let three = ctx.store().await;
    let lock = one.lock("a");
    assert_eq!(counts(&lock.inspect().await.unwrap()), (0, 0));
    let guard = one.lock("a").label("holder é").acquire().await.unwrap();
    let mut waiters = Vec::new();
    for (i, (store, label)) in [(&two, "first"), (&three, "second")]
        .into_iter()
        .enumerate()
    {
        waiters.push(tokio::spawn(store.lock("a").label(label).acquire()));
        ctx.queue_reaches(&one, "a", i + 1).await;
    }
    let queue = lock.inspect().await.unwrap();
    let labels: Vec<_> = queue
        .holders
        .iter()
        .chain(&queue.waiters)
        .map(|e| e.label.clone().unwrap_or_default())
        .collect();
    assert_eq!(labels, ["holder é", "first", "second"]);
    assert_eq!(queue.holders[0].token, Some(guard.fencing_token()));
    let since = queue.holders[0].since.expect("since when it is held");
    // By the machine's clock, which may be a simulated one.
    let now = SystemTime::UNIX_EPOCH + Duration::from_micros(wall());
    let age = now.duration_since(since).unwrap_or_default();
    assert!(age < Duration::from_secs(30), "{age:?}");
    assert!(
        queue
            .waiters
            .iter()
            .all(|e| e.token.is_none() && !e.foreign)
    );
    waiters.iter().for_each(|waiter| waiter.abort());
}

/// Names of the greatest length that differ in their last byte only are two locks, and are listed as they are. No store's own
/// limit of a key, a node or a row cuts them.
pub(crate) async fn are_long(ctx: TestContext) {
    let store = ctx.store().await;
    let room = MAX_NAME_BYTES - ctx.full("").as_str().len();
    let names = [("x", "a"), ("x", "b"), ("/", "a"), ("/", "b")]
        .map(|(fill, end)| fill.repeat(room - 1) + end);
    let mut guards = Vec::new();
    for name in &names {
        guards.push(
            store
                .lock(&**name)
                .try_acquire()
                .await
                .unwrap_or_else(|e| panic!("one is taken for another: {e:?}")),
        );
    }
    let mut listed = names.clone().map(Name::new).to_vec();
    listed.sort();
    assert_eq!(store.list("", None, 10).await.unwrap(), listed);
    for (name, guard) in names.iter().zip(guards) {
        let queue = store.lock(&**name).inspect().await.unwrap();
        assert_eq!(
            queue.holders.first().and_then(|holder| holder.token),
            Some(guard.fencing_token())
        );
        guard.release().await.unwrap();
    }
}
