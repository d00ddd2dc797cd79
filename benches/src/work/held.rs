//! Many locks that one client holds and renews, and does nothing else.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use leasehold::seam::Moment;
use leasehold::{Guard, Store};

use crate::meter::{Done, Meter, Sample, settled_heap};
use crate::metric::Metric;
use crate::subject::Result;

/// So many requests at a time while they are taken.
const AT_ONCE: usize = 64;

/// What is held, and what taking it has shown.
pub struct Holds {
    guards: Vec<Guard>,
    ttl: Duration,
    figures: Sample,
}

impl Holds {
    pub async fn take(store: &Store, count: usize, ttl: Duration) -> Result<Arc<Holds>> {
        store.lock("warm").acquire().await?.release().await?;
        let (heap, begin) = (settled_heap().await, Moment::now());
        let taking =
            stream::iter(0..count).map(|i| store.lock(("held", i)).ttl(ttl).acquire()).buffer_unordered(AT_ONCE);
        let guards: Vec<Guard> = taking.collect::<Vec<_>>().await.into_iter().collect::<leasehold::Result<_>>()?;
        let took = Moment::now().since(begin).as_nanos() as f64;
        let figures = [(Metric::SetUp, took), (Metric::Heap, (settled_heap().await - heap) / count as f64)];
        Ok(Arc::new(Holds { guards, ttl, figures: figures.into() }))
    }
}

/// For a third of the lease, in which each is renewed once. The operation is 30 s.
pub async fn held(holds: Arc<Holds>, meter: Meter) -> Result<Sample> {
    let sample = meter
        .around(async {
            let begin = Moment::now();
            tokio::time::sleep(holds.ttl / 3).await;
            let watched = Moment::now().since(begin);
            Ok(Done { operations: watched.as_secs_f64() / 30.0, figures: holds.figures.clone() })
        })
        .await?;
    match holds.guards.iter().filter(|guard| !guard.is_valid()).count() {
        0 => Ok(sample),
        lost => Err(format!("{lost} of {} were lost", holds.guards.len()).into()),
    }
}
