//! Holders that are killed, one after the other, each with a waiter: how soon does the waiter hold?

use std::time::Duration;

use leasehold::seam::Moment;
use leasehold::{Error, ErrorKind, Result, Store};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::holder::Holder;
use crate::report::{Recovery, millis};
use crate::subject::Subject;

/// How much longer than the lease and the store's own lateness a waiter waits before this workload gives up.
const TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) async fn recovery(
    subject: &Subject,
    store: &Store,
    namespace: &str,
    kills: usize,
    asked: Duration,
) -> Result<Recovery> {
    let guarantees = store.guarantees();
    let asked = asked.max(guarantees.min_ttl);
    // What the store makes of it; a guard's validity is a little shorter than its lease.
    let sample = store.lock("lease").ttl(asked).acquire().await?;
    let lease = sample.remaining();
    sample.release().await?;
    let mut tasks = JoinSet::new();
    for i in 0..kills {
        let (subject, store, namespace) = (subject.clone(), store.clone(), namespace.to_owned());
        // Each holder dies at another point between two of its renewals.
        let life = lease / 3 * u32::try_from(i).unwrap_or_default() / u32::try_from(kills).unwrap_or(1);
        tasks
            .spawn(async move { one(&subject, &store, &namespace, i, asked, life, lease + guarantees.recovery).await });
    }
    let mut waits = Vec::new();
    while let Some(done) = tasks.join_next().await {
        waits.push(done.map_err(|e| Error::new(ErrorKind::Internal, format!("a waiter failed: {e}")))??);
    }
    waits.sort();
    Ok(Recovery {
        killed: if subject.holder("", asked).is_some() { "process" } else { "client" },
        asked_ms: millis(asked),
        lease_ms: millis(lease).max(millis(asked)),
        waits_ms: waits.into_iter().map(millis).collect(),
    })
}

/// One holder, one waiter: the time from the kill to the grant.
async fn one(
    subject: &Subject,
    store: &Store,
    namespace: &str,
    i: usize,
    lease: Duration,
    life: Duration,
    bound: Duration,
) -> Result<Duration> {
    let name = format!("killed {i}");
    let holder = Holder::start(subject, &format!("{namespace}/{name}"), lease).await?;
    let lock = store.lock(name.as_str()).ttl(lease);
    let (granted, grant) = oneshot::channel();
    let waiting = lock.acquire_timeout(life + bound + TIMEOUT);
    let waiter = tokio::spawn(async move {
        let guard = waiting.await;
        let _ = granted.send(Moment::now());
        guard
    });
    in_line(&lock).await?;
    tokio::time::sleep(life).await;
    let killed = Moment::now();
    holder.kill().await;
    let at = grant.await.unwrap_or(killed);
    waiter.await.map_err(|e| Error::new(ErrorKind::Internal, format!("a waiter failed: {e}")))??.release().await?;
    Ok(at.since(killed))
}

/// Waits until somebody stands in line, where the store keeps a line; for a moment, where it does not.
async fn in_line(lock: &leasehold::Lock) -> Result<()> {
    for _ in 0..50 {
        if !lock.inspect().await?.waiters.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
