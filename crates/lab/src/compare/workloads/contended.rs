//! Waiters that hold one lock in turn: throughput, hand-over, fairness, and whether two were ever inside at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::backend::Moment;
use leasehold::{ErrorKind, Lock, Result, Store};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::common::{all, distribution, options, round_trip_us};
use crate::compare::distribution::{Latency, jain};
use crate::compare::report::{Contended, Order};

/// The longest wait; a waiter that reaches it is counted as having waited so long.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The state that all waiters use. Only the lock protects it.
#[derive(Debug, Default)]
struct Section {
    inside: AtomicBool,
    overlaps: AtomicUsize,
    switches: AtomicUsize,
    /// The waiter that was inside last, counted from 1.
    last: AtomicUsize,
    /// When the last release began, in nanoseconds; zero before the first.
    released: AtomicU64,
}

#[derive(Default)]
struct Seen {
    waits: Vec<Duration>,
    hand_overs: Vec<Duration>,
    turns: usize,
}

pub(crate) async fn contended(
    clients: &[Store],
    order: Order,
    waiters: usize,
    window: Duration,
) -> Result<Contended> {
    let clients = &clients[..clients.len().min(waiters).max(1)];
    let name = format!("contended {} {waiters}", order.word());
    let lock = |i: usize| clients[i % clients.len()].lock(&name).with(&options(order));
    for i in 0..clients.len() {
        lock(i).acquire().await?.release().await?;
    }
    let round_trip = round_trip_us(&clients[0]).await?;
    let section = Arc::new(Section::default());
    let start = Arc::new(Barrier::new(waiters));
    let begin = Moment::now();
    let mut tasks = JoinSet::new();
    for me in 1..=waiters {
        let section = section.clone();
        let start = start.clone();
        let lock = lock(me);
        tasks.spawn(async move {
            start.wait().await;
            section.compete(me, &lock, window).await
        });
    }
    let mut waits = Vec::new();
    let mut hand_overs = Vec::new();
    let mut turns = Vec::new();
    for seen in all(tasks).await? {
        waits.extend(seen.waits);
        hand_overs.extend(seen.hand_overs);
        turns.push(seen.turns);
    }
    // Those that waited at the end of the window were still served, in order: so all turns count, and all of the time.
    let elapsed = Moment::now().since(begin);
    let total: usize = turns.iter().sum();
    let share = elapsed.as_secs_f64() / total.max(1) as f64 * waiters as f64;
    let hand_over = Latency::of(hand_overs);
    let wait = distribution(waits)?;
    Ok(Contended {
        order,
        waiters,
        clients: clients.len(),
        per_second: total as f64 / elapsed.as_secs_f64(),
        switches: section.switches.load(Ordering::Relaxed) as f64 / total.max(1) as f64,
        round_trips: hand_over
            .as_ref()
            .map(|latency| latency.p50_us / round_trip),
        jain: jain(&turns),
        everybody_once_us: share * 1e6,
        longest_wait_shares: wait.max_us / 1e6 / share,
        hand_over,
        wait,
        overlaps: section.overlaps.load(Ordering::Relaxed),
    })
}

impl Section {
    async fn compete(&self, me: usize, lock: &Lock, window: Duration) -> Result<Seen> {
        let mut seen = Seen::default();
        let begin = Moment::now();
        while Moment::now().since(begin) < window {
            let asked = Moment::now();
            let guard = match lock.acquire_timeout(TIMEOUT).await {
                Ok(guard) => guard,
                Err(e) if e.kind() == ErrorKind::TimedOut => {
                    seen.waits.push(TIMEOUT);
                    continue;
                }
                Err(e) => return Err(e),
            };
            let held = Moment::now();
            if self.inside.swap(true, Ordering::SeqCst) {
                self.overlaps.fetch_add(1, Ordering::SeqCst);
            }
            if self.last.swap(me, Ordering::SeqCst) != me {
                self.switches.fetch_add(1, Ordering::SeqCst);
            }
            let released = Moment::from_nanos(self.released.load(Ordering::SeqCst));
            // A hand-over to a client that was waiting when the release began.
            if released > asked {
                seen.hand_overs.push(held.since(released));
            }
            seen.waits.push(held.since(asked));
            seen.turns += 1;
            self.inside.store(false, Ordering::SeqCst);
            self.released
                .store(Moment::now().as_nanos(), Ordering::SeqCst);
            guard.release().await?;
        }
        Ok(seen)
    }
}
