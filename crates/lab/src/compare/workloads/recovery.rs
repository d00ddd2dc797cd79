//! Holders that are killed, one after the other, each with a waiter: how soon does the waiter hold?

use std::time::Duration;

use leasehold::backend::Moment;
use leasehold::{Error, Lock, Result, Store};
use tokio::task::JoinSet;

use super::common::all;
use crate::compare::holder::Holder;
use crate::compare::report::Recovery;
use crate::compare::subject::Subject;
use crate::measure::units::millis;

/// The time beyond the lease and the store's own delay after which this workload gives up.
const TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) async fn recovery(
    subject: &Subject,
    store: &Store,
    namespace: &str,
    kills: usize,
    asked: Duration,
) -> Result<Recovery> {
    let guarantees = store.guarantees();
    let asked = asked.max(guarantees.min_ttl());
    // The granted lease: a guard's validity is a little shorter.
    let sample = store.lock("lease").ttl(asked).acquire().await?;
    let lease = sample.remaining();
    sample.release().await?;
    let mut tasks = JoinSet::new();
    for i in 0..kills {
        let subject = subject.clone();
        let store = store.clone();
        let name = format!("killed {i}");
        let full_name = format!("{namespace}/killed {i}");
        // Each holder dies at another point between two of its renewals.
        let life =
            lease / 3 * u32::try_from(i).unwrap_or_default() / u32::try_from(kills).unwrap_or(1);
        let limit = life + lease + guarantees.recovery() + TIMEOUT;
        tasks.spawn(async move {
            let holder = Holder::start(&subject, &full_name, asked).await?;
            let lock = store.lock(name.as_str()).ttl(asked);
            let waiter = async {
                let guard = lock.acquire_timeout(limit).await?;
                let granted = Moment::now();
                guard.release().await?;
                Ok::<_, Error>(granted)
            };
            let killer = async {
                until_queued(&lock).await?;
                tokio::time::sleep(life).await;
                let killed = Moment::now();
                holder.kill().await;
                Ok(killed)
            };
            let (granted, killed) = tokio::try_join!(waiter, killer)?;
            Ok(granted.since(killed))
        });
    }
    let mut waits = all(tasks).await?;
    waits.sort();
    Ok(Recovery {
        killed: if subject.holder("", asked).is_some() {
            "process"
        } else {
            "client"
        },
        asked_ms: millis(asked),
        lease_ms: millis(lease).max(millis(asked)),
        waits_ms: waits.into_iter().map(millis).collect(),
    })
}

/// Waits until there is a waiter, where the store has a queue; for a moment, where it has none.
async fn until_queued(lock: &Lock) -> Result<()> {
    for _ in 0..50 {
        if !lock.inspect().await?.waiters.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
