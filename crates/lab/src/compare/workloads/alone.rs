//! A lock that one client acquires and releases, without contention.

use std::time::Duration;

use leasehold::backend::Moment;
use leasehold::{Result, Store};

use super::common::{distribution, options, round_trip_us};
use crate::compare::report::{Order, Uncontended};

/// The greatest number of cycles: a store in memory does millions.
const CYCLES: usize = 200_000;

pub(crate) async fn alone(store: &Store, order: Order, window: Duration) -> Result<Uncontended> {
    let lock = store.lock(("alone", order.word())).with(&options(order));
    for _ in 0..10 {
        lock.acquire().await?.release().await?; // sessions, scripts and parents are made once
    }
    let round_trip = round_trip_us(store).await?;
    let mut acquires = Vec::new();
    let mut releases = Vec::new();
    let mut cycles = Vec::new();
    let begin = Moment::now();
    while Moment::now().since(begin) < window && cycles.len() < CYCLES {
        let asked = Moment::now();
        let guard = lock.acquire().await?;
        let held = Moment::now();
        guard.release().await?;
        let free = Moment::now();
        acquires.push(held.since(asked));
        releases.push(free.since(held));
        cycles.push(free.since(asked));
    }
    let elapsed = Moment::now().since(begin);
    let per_second = cycles.len() as f64 / elapsed.as_secs_f64();
    let acquire = distribution(acquires)?;
    let release = distribution(releases)?;
    let cycle = distribution(cycles)?;
    Ok(Uncontended {
        order,
        acquire,
        release,
        round_trips: cycle.p50_us / round_trip,
        cycle,
        per_second,
    })
}
