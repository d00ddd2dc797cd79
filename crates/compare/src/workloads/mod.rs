//! The workloads, one file each: what they do to a store, and what is measured.

mod alone;
mod contended;
mod counting;
mod recovery;
mod renewal;

use std::time::Duration;

use leasehold::seam::Moment;
use leasehold::{Options, Result, Store};

pub(crate) use alone::alone;
pub(crate) use contended::contended;
pub(crate) use recovery::recovery;
pub(crate) use renewal::renewal;

use crate::distribution::Latency;
use crate::report::Order;

/// A lease so long that no renewal falls into a measurement.
const CALM: Duration = Duration::from_secs(20);
/// So many round trips are measured each time.
const LOOKS: usize = 200;

/// The words for a lock in this order.
fn words(order: Order) -> Options {
    let options = Options::default().ttl(CALM);
    match order {
        Order::Fair => options.fair(),
        Order::Fast => options.fast(),
    }
}

/// The yardstick: so many looks at a name that nobody uses.
pub(crate) async fn round_trips(store: &Store) -> Result<Vec<Duration>> {
    let nobody = store.lock("nobody");
    for _ in 0..20 {
        nobody.inspect().await?;
    }
    let mut looks = Vec::with_capacity(LOOKS);
    for _ in 0..LOOKS {
        let begin = Moment::now();
        nobody.inspect().await?;
        looks.push(Moment::now().since(begin));
    }
    Ok(looks)
}

/// The median round trip of now.
async fn round_trip_us(store: &Store) -> Result<f64> {
    Ok(Latency::of(round_trips(store).await?).map_or(f64::NAN, |latency| latency.p50_us))
}

/// A workload that measured nothing.
fn nothing_measured() -> leasehold::Error {
    leasehold::Error::new(leasehold::ErrorKind::Unavailable, "nothing could be measured in this time")
}
