//! Waiters of one client behind a hold that does not end.

use std::time::Duration;

use leasehold::Store;
use leasehold::backend::Moment;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::meter::{Done, Meter, Sample, live_heap};
use crate::metric::Metric;
use crate::subject::Result;

/// Between looks at how many stand in line.
const GLANCE: Duration = Duration::from_millis(50);

/// What they cost while nothing happens, in each second of the window: in a third of their lease each place is renewed once.
pub async fn idle(
    store: Store,
    waiters: usize,
    (ttl, window): (Duration, Duration),
    meter: Meter,
) -> Result<Sample> {
    let lock = store.lock("idle").ttl(ttl);
    let guard = lock.acquire().await?;
    let (heap, begin, mut tasks) = (live_heap(), Moment::now(), JoinSet::new());
    for _ in 0..waiters {
        tasks.spawn(lock.acquire());
    }
    // Very many take long to list.
    let glance = GLANCE * (1 + waiters as u32 / 1000);
    while lock.inspect().await?.waiters.len() < waiters {
        if let Some(ended) = tasks.try_join_next() {
            return Err(ended?.map_or_else(Into::into, |_| "two hold at once".into()));
        }
        sleep(glance).await;
    }
    let mut figures = Sample::from([(Metric::SetUp, Moment::now().since(begin).as_nanos() as f64)]);
    // What else comes and goes is more than a few have.
    if waiters >= 100 {
        figures.insert(Metric::Heap, (live_heap() - heap) / waiters as f64);
    }
    let sample = meter
        .around(async {
            sleep(window).await;
            Ok(Done {
                operations: window.as_secs_f64(),
                figures,
                elsewhere: false,
            })
        })
        .await;
    // They leave the line before the next round begins.
    tasks.shutdown().await;
    guard.release().await?;
    while !lock.inspect().await?.waiters.is_empty() {
        sleep(glance).await;
    }
    sample
}
