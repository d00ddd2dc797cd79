//! Waiters of one client behind a hold that does not end.

use std::time::Duration;

use leasehold::Store;
use tokio::task::JoinSet;

use crate::meter::{Done, Meter, Sample, live_heap};
use crate::metric::Metric;
use crate::subject::Result;

/// Between looks at how many stand in line.
const GLANCE: Duration = Duration::from_millis(50);

/// What they cost while nothing happens, in each second of a third of their lease: in that time each place is renewed once.
pub async fn idle(store: Store, waiters: usize, ttl: Duration, meter: Meter) -> Result<Sample> {
    let (lock, window) = (store.lock("idle").ttl(ttl), ttl / 3);
    let guard = lock.acquire().await?;
    let (heap, mut tasks) = (live_heap(), JoinSet::new());
    for _ in 0..waiters {
        tasks.spawn(lock.acquire());
    }
    while lock.inspect().await?.waiters.len() < waiters {
        tokio::time::sleep(GLANCE).await;
    }
    let each = (live_heap() - heap) / waiters as f64;
    let sample = meter
        .around(async {
            tokio::time::sleep(window).await;
            Ok(Done { operations: window.as_secs_f64(), figures: [(Metric::Heap, each)].into() })
        })
        .await;
    // They leave the line before the next round begins.
    tasks.shutdown().await;
    guard.release().await?;
    while !lock.inspect().await?.waiters.is_empty() {
        tokio::time::sleep(GLANCE).await;
    }
    sample
}
