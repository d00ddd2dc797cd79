//! Names that are used once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::sleep;

use crate::meter::{Done, Meter, Sample};
use crate::metric::Metric;
use crate::subject::{Result, Subject};

/// So many at a time.
const AT_ONCE: usize = 64;
/// The length of the while after which is looked once more.
const LATER: Duration = Duration::from_secs(60);

/// No name is used in two rounds.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A cycle of each of `count` new names, and what the store still has of them: at once, and if it `waits`, later.
pub async fn touched<S: Subject>(client: S, count: usize, waits: bool, meter: Meter) -> Result<Sample> {
    // What a client needs for itself is there.
    client.cycle("warm").await?;
    let before = meter.server().keys().await?;
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    let mut sample = meter
        .around(async {
            let names = stream::iter(first..first + count).map(|i| {
                let client = client.clone();
                async move { client.cycle(&format!("touched {i}")).await }
            });
            names.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
            Ok(Done { operations: count as f64, ..Done::default() })
        })
        .await?;
    let more = |now: Option<u64>| Some(now?.saturating_sub(before?) as f64 / count as f64);
    sample.extend(more(meter.server().keys().await?).map(|left| (Metric::KeysLeft, left)));
    if waits {
        sleep(LATER).await;
        sample.extend(more(meter.server().keys().await?).map(|left| (Metric::KeysLater, left)));
    }
    Ok(sample)
}
