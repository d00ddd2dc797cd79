//! Parts that the workloads share: the options of their locks, the yardstick, and the end of their tasks.

use std::time::Duration;

use leasehold::backend::Moment;
use leasehold::{Error, ErrorKind, Options, Result, Store};
use tokio::task::JoinSet;

use crate::compare::distribution::Latency;
use crate::compare::report::Order;

/// A lease so long that no renewal falls into a measurement.
const CALM: Duration = Duration::from_secs(20);
/// The number of round trips in each measurement.
const ROUND_TRIPS: usize = 200;

/// The options of a lock in this order.
pub(super) fn options(order: Order) -> Options {
    let options = Options::default().ttl(CALM);
    match order {
        Order::Fair => options.fair(),
        Order::Fast => options.fast(),
    }
}

/// The yardstick: an `inspect` of a name that is not in use, several times.
pub(crate) async fn round_trips(store: &Store) -> Result<Vec<Duration>> {
    let unused = store.lock("unused");
    for _ in 0..20 {
        unused.inspect().await?;
    }
    let mut all = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begin = Moment::now();
        unused.inspect().await?;
        all.push(Moment::now().since(begin));
    }
    Ok(all)
}

/// The median round trip of now.
pub(super) async fn round_trip_us(store: &Store) -> Result<f64> {
    Ok(distribution(round_trips(store).await?)?.p50_us)
}

/// Collects the results of all tasks, in the order in which they end.
pub(super) async fn all<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut done = Vec::new();
    while let Some(task) = tasks.join_next().await {
        done.push(
            task.map_err(|e| Error::new(ErrorKind::Internal, format!("a task failed: {e}")))??,
        );
    }
    Ok(done)
}

/// The distribution of these; it is an error if there are none.
pub(crate) fn distribution(samples: impl IntoIterator<Item = Duration>) -> Result<Latency> {
    let none = || {
        Error::new(
            ErrorKind::Unavailable,
            "nothing could be measured in this time",
        )
    };
    Latency::of(samples).ok_or_else(none)
}
