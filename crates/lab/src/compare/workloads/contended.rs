//! Waiters that hold one lock in turn.

use std::time::Duration;

use leasehold::{Guard, Lock, Store};

use super::common::{distribution, options, round_trip_us};
use crate::compare::distribution::Latency;
use crate::compare::report::{Contended, Order};
use crate::measure::{Result, Seen, Subject, jain, turns};

impl Subject for Lock {
    type Held = Guard;

    async fn acquire(&self, _its_own: &str) -> Result<Guard> {
        Ok(Lock::acquire(self).await?)
    }

    async fn release(&self, guard: Guard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

pub(crate) async fn contended(
    clients: &[Store],
    order: Order,
    waiters: usize,
    window: Duration,
) -> Result<Contended> {
    let name = format!("contended {} {waiters}", order.word());
    let clients = &clients[..clients.len().min(waiters).max(1)];
    let locks: Vec<Lock> = clients
        .iter()
        .map(|client| client.lock(&name).with(&options(order)))
        .collect();
    for lock in &locks {
        lock.cycle(&name).await?;
    }
    let round_trip = round_trip_us(&clients[0]).await?;
    let seen = turns(&locks, &name, waiters, Duration::ZERO, window).await?;
    // Those that waited at the end of the window were still served, in order: so all turns count, and all of the time.
    let elapsed = seen.elapsed.as_secs_f64();
    let total: usize = seen.each.iter().map(|task| task.turns).sum();
    let share = elapsed / total.max(1) as f64 * waiters as f64;
    let times = |of: fn(&Seen) -> &[Duration]| seen.each.iter().flat_map(of).copied();
    let hand_over = Latency::of(times(|task| &task.hand_overs));
    let wait = distribution(times(|task| &task.waits))?;
    Ok(Contended {
        order,
        waiters,
        clients: clients.len(),
        per_second: total as f64 / elapsed,
        switches: seen.switches as f64 / total.max(1) as f64,
        round_trips: hand_over
            .as_ref()
            .map(|latency| latency.p50_us / round_trip),
        jain: jain(seen.each.iter().map(|task| task.turns as f64)),
        everybody_once_us: share * 1e6,
        longest_wait_shares: wait.max_us / 1e6 / share,
        hand_over,
        wait,
        overlaps: seen.overlaps,
    })
}
