//! Is the store as it was?

use std::time::Duration;

use leasehold_core::ErrorKind;

use crate::context::{TestContext, expect_kind, until};

/// The number of names that a case uses: enough that one leftover per name would show.
const NAMES: u64 = 60;
/// The number of entries that may be there in addition to those before: a session, an epoch, a
/// heartbeat.
const SLACK: u64 = 8;

async fn falls_to(ctx: &TestContext, baseline: u64, what: &str) {
    let limit = ctx.ttl() * 3 + Duration::from_secs(10);
    until(limit, what, || async {
        ctx.harness().footprint().await <= baseline + SLACK
    })
    .await;
}

/// M names locked and released leave the store as it was (redisson#6510, Netflix/curator#29).
pub(crate) async fn after_many_names(ctx: TestContext) {
    let ctx = ctx.private().await;
    let store = ctx.store().await;
    let baseline = ctx.harness().footprint().await;
    for i in 0..NAMES {
        let guard = store.lock(("name", i)).acquire().await.unwrap();
        if i % 2 == 0 {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
    }
    store.close(Duration::from_secs(10)).await.unwrap();
    falls_to(&ctx, baseline, "what 60 released locks left").await;
}

/// M failed tries leave the store as it was. (OpenStack's Tooz leaks an etcd lease per failed try.)
pub(crate) async fn after_many_failed_tries(ctx: TestContext) {
    let ctx = ctx.private().await;
    let one = ctx.store().await;
    let two = ctx.store().await;
    let _guard = one.lock("a").acquire().await.unwrap();
    let baseline = ctx.harness().footprint().await;
    for _ in 0..NAMES {
        expect_kind(two.lock("a").try_acquire().await, ErrorKind::Contended);
    }
    falls_to(&ctx, baseline, "what 60 failed tries left").await;
}
