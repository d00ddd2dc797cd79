//! Many locks of one client, held and renewed: what that costs this process, and whether any is lost.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::backend::Moment;
use leasehold::{ErrorKind, Guard, Result, Store};
use tokio::task::JoinSet;

use super::common::all;
use super::counting::{Batches, Counting};
use crate::compare::distribution::Latency;
use crate::compare::report::Renewal;
use crate::compare::subject::Subject;
use crate::measure::processor_time;
use crate::measure::units::millis;

/// The number of requests under way while locks are acquired and released.
const AT_ONCE: usize = 32;

pub(crate) async fn renewal(
    subject: &Subject,
    namespace: &str,
    locks: usize,
    lease: Duration,
) -> Result<Renewal> {
    let batches = Batches::default();
    let backend = Counting {
        inner: subject.backend().await?,
        batches: batches.clone(),
    };
    let store = Store::new(backend).namespace(namespace);
    let lease = lease.max(store.guarantees().min_ttl());
    store
        .lock("warm")
        .ttl(lease)
        .acquire()
        .await?
        .release()
        .await?;

    let begin = Moment::now();
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE.min(locks) {
        let store = store.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for i in (first..locks).step_by(AT_ONCE) {
                guards.push(store.lock(("held", i)).ttl(lease).acquire().await?);
            }
            Ok(guards)
        });
    }
    let chunks: Vec<Vec<Guard>> = all(tasks).await?;
    let taken = Moment::now().since(begin);

    // Whole leases, so that each lock is renewed as often as any other.
    let watch = chunks
        .iter()
        .flatten()
        .map(Guard::remaining)
        .max()
        .unwrap_or(lease)
        .max(lease)
        * 2;
    take_all(&batches);
    let begin = Moment::now();
    let cpu = processor_time();
    tokio::time::sleep(watch).await;
    let watched = Moment::now().since(begin);
    let cpu = processor_time().saturating_sub(cpu);
    let seen = take_all(&batches);
    let lost = chunks
        .iter()
        .flatten()
        .filter(|guard| !guard.is_valid())
        .count();

    let begin = Moment::now();
    let mut tasks = JoinSet::new();
    for guards in chunks {
        tasks.spawn(async move {
            for guard in guards {
                // One that was lost is counted already.
                guard.release().await.or_else(|e| {
                    if e.kind() == ErrorKind::Lost {
                        Ok(())
                    } else {
                        Err(e)
                    }
                })?;
            }
            Ok(())
        });
    }
    all(tasks).await?;
    let given_back = Moment::now().since(begin);
    let _ = store.close(Duration::from_secs(5)).await;

    let renewed: usize = seen.iter().map(|(_, places)| places).sum();
    Ok(Renewal {
        locks,
        lease_ms: millis(lease),
        taken_ms: millis(taken),
        given_back_ms: millis(given_back),
        watched_ms: millis(watched),
        cpu_ms_per_second: cpu.as_secs_f64() * 1000.0 / watched.as_secs_f64(),
        batches: seen.len(),
        locks_per_batch: renewed as f64 / seen.len().max(1) as f64,
        batch: Latency::of(seen.into_iter().map(|(took, _)| took)),
        lost,
    })
}

fn take_all(batches: &Mutex<Vec<(Duration, usize)>>) -> Vec<(Duration, usize)> {
    std::mem::take(&mut *batches.lock().unwrap_or_else(PoisonError::into_inner))
}
