//! Is the store as it was?

use std::time::Duration;

use leasehold_core::ErrorKind;

use crate::arena::{Arena, expect_kind, within};

/// How many names a case uses: enough that one leftover per name would show.
const NAMES: u64 = 60;
/// What may be there beside what was there before: a session, an epoch, a heartbeat.
const SLACK: u64 = 8;

async fn falls_to(arena: &Arena, baseline: u64, what: &str) {
    let limit = arena.ttl() * 3 + Duration::from_secs(10);
    within(limit, what, async {
        while arena.harness().footprint().await > baseline + SLACK {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

/// M names locked and released leave the store as it was (redisson#6510, Netflix/curator#29).
pub(crate) async fn after_many_names(arena: Arena) {
    let arena = arena.private().await;
    let store = arena.store().await;
    let baseline = arena.harness().footprint().await;
    for i in 0..NAMES {
        let guard = store.lock(("name", i)).acquire().await.unwrap();
        if i % 2 == 0 { guard.release().await.unwrap() } else { drop(guard) }
    }
    store.close(Duration::from_secs(10)).await.unwrap();
    falls_to(&arena, baseline, "what 60 released locks left").await;
}

/// M failed tries leave the store as it was. (OpenStack's Tooz leaks an etcd lease per failed try.)
pub(crate) async fn after_many_failed_tries(arena: Arena) {
    let arena = arena.private().await;
    let (one, two) = (arena.store().await, arena.store().await);
    let _guard = one.lock("a").acquire().await.unwrap();
    let baseline = arena.harness().footprint().await;
    for _ in 0..NAMES {
        expect_kind(two.lock("a").try_acquire().await, ErrorKind::Contended);
    }
    falls_to(&arena, baseline, "what 60 failed tries left").await;
}
