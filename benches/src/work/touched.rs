//! Names that are used once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use leasehold::backend::Moment;
use tokio::time::sleep;

use crate::meter::{Done, Meter, Sample};
use crate::metric::Metric;
use crate::subject::{Result, Subject};
use crate::work::flat::some_may_fail;

/// So many at a time.
const AT_ONCE: usize = 64;
/// For how long what the store keeps is watched, and how often.
const LATER: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// Entries that come and go with the client itself.
const SLACK: f64 = 8.0;

/// No name is used in two rounds.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A cycle of each of `count` new names, and what the store still has of them: at once, and if it `waits`, until it has no more than
/// before, or for a minute.
pub async fn touched<S: Subject>(
    client: S,
    count: usize,
    waits: bool,
    meter: Meter,
) -> Result<Sample> {
    // What a client needs for itself is there.
    client.cycle("warm").await?;
    let before = meter.server().keys().await?;
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    let mut sample = meter
        .around(async {
            let failed = AtomicUsize::new(0);
            let names =
                stream::iter(first..first + count).map(|i| {
                    let client = client.clone();
                    let failed = &failed;
                    async move {
                        some_may_fail(client.cycle(&format!("touched {i}")).await, failed, count)
                    }
                });
            names.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
            Ok(Done {
                operations: count as f64,
                ..Done::default()
            })
        })
        .await?;
    let Some(before) = before else {
        return Ok(sample);
    };
    let ended = Moment::now();
    let mut left = more(&meter, before).await?;
    sample.insert(Metric::KeysLeft, left / count as f64);
    while waits && left > SLACK && Moment::now().since(ended) < LATER {
        sleep(LOOK).await;
        left = more(&meter, before).await?;
    }
    if waits {
        sample.insert(Metric::KeysLater, left / count as f64);
    }
    if left <= SLACK {
        sample.insert(
            Metric::AsBefore,
            Moment::now().since(ended).as_nanos() as f64,
        );
    }
    Ok(sample)
}

/// How many entries there are more than before.
async fn more(meter: &Meter, before: u64) -> Result<f64> {
    Ok(meter
        .server()
        .keys()
        .await?
        .map_or(0, |now| now.saturating_sub(before)) as f64)
}
