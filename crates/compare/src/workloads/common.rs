//! What the workloads share: the options of their locks, and the yardstick.

use std::time::Duration;

use leasehold::seam::Moment;
use leasehold::{Options, Result, Store};

use crate::distribution::Latency;
use crate::report::Order;

/// A lease so long that no renewal falls into a measurement.
const CALM: Duration = Duration::from_secs(20);
/// So many round trips are measured each time.
const LOOKS: usize = 200;

/// The options of a lock in this order.
pub(super) fn options(order: Order) -> Options {
    let options = Options::default().ttl(CALM);
    match order {
        Order::Fair => options.fair(),
        Order::Fast => options.fast(),
    }
}

/// The yardstick: so many looks at a name that is not in use.
pub(crate) async fn round_trips(store: &Store) -> Result<Vec<Duration>> {
    let unused = store.lock("unused");
    for _ in 0..20 {
        unused.inspect().await?;
    }
    let mut looks = Vec::with_capacity(LOOKS);
    for _ in 0..LOOKS {
        let begin = Moment::now();
        unused.inspect().await?;
        looks.push(Moment::now().since(begin));
    }
    Ok(looks)
}

/// The median round trip of now.
pub(super) async fn round_trip_us(store: &Store) -> Result<f64> {
    Ok(Latency::of(round_trips(store).await?).map_or(f64::NAN, |latency| latency.p50_us))
}

/// A workload that measured nothing.
pub(super) fn nothing_measured() -> leasehold::Error {
    leasehold::Error::new(leasehold::ErrorKind::Unavailable, "nothing could be measured in this time")
}
