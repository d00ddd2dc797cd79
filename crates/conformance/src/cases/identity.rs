//! Is a server of another store ever used?

use std::time::Duration;

use leasehold_core::ErrorKind::{Ambiguous, Contended, OtherStore, TimedOut, Unavailable};
use leasehold_core::{Error, Store};

use crate::context::{TestContext, expect_kind, pause, within};

/// A lease so long that nothing in a case happens because one ended.
const LONG: Duration = Duration::from_secs(120);
/// The time for everything that takes connections anew.
const LIMIT: Duration = Duration::from_secs(60);

/// Clients of one store agree about its identity, if it has one.
pub(crate) async fn is_one_of_all_clients(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let known = one.identity();
    assert_eq!(known, two.identity());
    one.lock("a")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert!(known.is_none() || one.identity() == known);
}

/// Tries until the answer is that the server belongs to another store. It fails if that server grants.
async fn until_refused(store: &Store, name: &str) -> Error {
    within(LIMIT, "the refusal of another store", async {
        loop {
            let error = store.lock(name).ttl(LONG).try_acquire().await.unwrap_err();
            match error.kind() {
                OtherStore => return error,
                // The connections that were cut.
                Unavailable | Ambiguous => pause().await,
                _ => panic!("{error:?}"),
            }
        }
    })
    .await
}

/// The address of a server leads to another one, where the lock is free. Nobody is granted it there,
/// and those who wait go on when the address leads back.
pub(crate) async fn of_another_store_grants_nothing(ctx: TestContext) {
    let ctx = ctx.private().await;
    let (client, way) = ctx.harness().misled_client().await;
    let holder = ctx.store().await;
    let misled = ctx.over(client);
    let there = ctx.over(way.elsewhere().await);
    assert_ne!(holder.identity(), there.identity());
    assert_eq!(holder.identity(), misled.identity());
    let guard = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiter = tokio::spawn(misled.lock("a").ttl(LONG).acquire());
    ctx.queue_reaches(&holder, "a", 1).await;

    way.lead_away().await;
    let error = until_refused(&misled, "b").await;
    let shown = error.to_string();
    for store in [&holder, &there] {
        let id = store.identity().unwrap();
        assert!(shown.contains(id.as_str()), "{shown}: {id}");
    }
    let late = misled
        .lock("a")
        .ttl(LONG)
        .acquire_timeout(Duration::from_secs(2));
    let late = late.await.unwrap_err();
    assert!(
        matches!(late.kind(), OtherStore | TimedOut | Ambiguous | Unavailable),
        "{late:?}"
    );
    assert!(!waiter.is_finished());
    assert_eq!(misled.identity(), holder.identity());
    for name in ["a", "b"] {
        let seen = there.lock(name).inspect().await.unwrap();
        assert!(
            seen.holders.is_empty() && seen.waiters.is_empty(),
            "{seen:?}"
        );
    }

    way.lead_back().await;
    within(LIMIT, "the way back", async {
        while let Err(e) = misled.lock("b").ttl(LONG).try_acquire().await {
            assert!(e.is_retryable(), "{e:?}");
            pause().await;
        }
    })
    .await;
    expect_kind(misled.lock("a").try_acquire().await, Contended);
    guard.release().await.unwrap();
    drop(within(LIMIT, "the waiter", waiter).await.unwrap().unwrap());
}

/// A server of another store knows no hold of the first one. Its answers end none: a hold lasts until
/// its validity ends, or its own store says so.
pub(crate) async fn of_another_store_ends_no_hold(ctx: TestContext) {
    let ctx = ctx.private().await;
    let (client, way) = ctx.harness().misled_client().await;
    let misled = ctx.over(client);
    let guard = misled.lock("a").ttl(LONG).acquire().await.unwrap();
    way.lead_away().await;
    within(LIMIT, "the refusal of another store", async {
        loop {
            match guard.confirm().await {
                Err(e) if e.kind() == OtherStore => break,
                Err(e) if e.is_retryable() => pause().await,
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    assert!(guard.is_valid());
    way.lead_back().await;
    within(LIMIT, "the way back", async {
        while let Err(e) = guard.confirm().await {
            assert!(e.is_retryable(), "{e:?}");
            pause().await;
        }
    })
    .await;
    guard.release().await.unwrap();
}
