//! The run: ask the server, try its leases, judge the cases, leave nothing behind.

use std::sync::Arc;
use std::time::Duration;

use leasehold::seam::{Backend, Moment};
use leasehold::{Guarantees, Name, Result, Store};
use leasehold_conformance::verdicts;

use crate::harness::{Clients, ExistingServer, lacking};
use crate::report::{Granted, Verification, broken, promises};
use crate::servers;

/// So many cases at once: they mostly wait for leases.
const AT_ONCE: usize = 6;
/// The same where all clients write one file, one after the other.
const AT_ONCE_IN_A_FILE: usize = 2;
/// How long requests of aborted cases may still be on their way.
const SETTLED: Duration = Duration::from_secs(1);
/// How long the removal of the namespace may take.
const REMOVAL: Duration = Duration::from_secs(20);

/// How far a run is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// How many cases are done.
    pub done: usize,
    /// Of how many.
    pub of: usize,
    /// The case that was done last.
    pub case: &'a str,
}

/// Judges the server of this URL, as [`leasehold::connect`] reads it, until `stop` resolves: then `None`, and what the cases had
/// in the namespace is removed all the same. `address` is what is shown of the URL: without credentials.
///
/// Needs a runtime with timers and I/O; with two threads or more, cases that block none of them do not wait for each other.
/// Takes a minute or two, longer where leases are long.
///
/// # Errors
/// What the store says if it cannot be connected. Whatever fails later is part of the result.
///
/// # Cancel safety
/// Dropped midway, cases are aborted, and what they held ends with its lease.
pub async fn verify(
    url: &str,
    address: &str,
    mut progress: impl FnMut(Progress<'_>),
    stop: impl Future<Output = ()>,
) -> Result<Option<Verification>> {
    let (begin, url) = (Moment::now(), url.trim());
    let clients = Clients::of(url);
    let client = clients.another().await?;
    let guarantees = client.guarantees();
    let root = format!("leasehold-verify-{:016x}", fastrand::u64(..));
    let store = Store::new(client.clone()).namespace(&root);

    let judging = Box::pin(async {
        let mut server = servers::inspect(url, &guarantees).await;
        server.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let leases = leases(&store, &guarantees).await;
        // A lease shorter than the store's own lateness would judge the load of the machine.
        let comfortable = guarantees.min_ttl.max(guarantees.recovery).max(Duration::from_secs(2));
        let ttl = granted(&store, comfortable).await.map_or(comfortable, |granted| granted.max(comfortable));
        let lacking = lacking(&store).await;
        let guest =
            ExistingServer { clients, guarantees: guarantees.clone(), prefix: format!("{root}/"), ttl, lacking };
        let mut done = 0;
        let at_once = if url.starts_with("sqlite:") { AT_ONCE_IN_A_FILE } else { AT_ONCE };
        let verdicts = verdicts(Arc::new(guest), at_once, |verdict, of| {
            done += 1;
            progress(Progress { done, of, case: verdict.case.name });
        })
        .await;
        (server, leases, verdicts)
    });
    let judged = tokio::select! {
        judged = judging => Some(judged),
        () = stop => None,
    };
    if judged.is_none() {
        // What was on its way when its case was aborted arrives, or has been given up.
        tokio::time::sleep(SETTLED).await;
    }
    let left_behind = remove(url, &*client, &store, &root).await;
    let _ = client.close().await;
    let Some((server, leases, verdicts)) = judged else { return Ok(None) };
    Ok(Some(Verification {
        address: address.to_owned(),
        store: guarantees.store.to_owned(),
        version: server.version,
        findings: server.findings,
        promises: promises(&verdicts),
        broken: broken(&verdicts),
        leases,
        notes: guarantees.notes.to_owned(),
        left_behind,
        seconds: Moment::now().since(begin).as_secs_f64(),
    }))
}

/// What the server makes of short and long leases: some round up, some have limits of their own.
async fn leases(store: &Store, guarantees: &Guarantees) -> Vec<Granted> {
    let mut all = Vec::new();
    let mut asked = vec![guarantees.min_ttl, Duration::from_secs(10), Duration::from_secs(300)];
    asked.dedup();
    for asked in asked {
        let granted_ms = granted(store, asked).await.map(|granted| granted.as_millis() as u64);
        all.push(Granted { asked_ms: asked.as_millis() as u64, granted_ms });
    }
    all
}

/// The lease that is granted, about: a guard is valid for a little less.
async fn granted(store: &Store, asked: Duration) -> Option<Duration> {
    let guard = store.lock("lease").ttl(asked).acquire_timeout(Duration::from_secs(5)).await.ok()?;
    let valid = guard.remaining();
    let _ = guard.release().await;
    // What is a little less than was asked for is the margin, and the time since the store last proved the lease.
    let (least, most) = (asked.mul_f64(0.9).min(asked.saturating_sub(Duration::from_millis(300))), asked.mul_f64(1.02));
    if (least..=most).contains(&valid) {
        return Some(asked);
    }
    let seconds = valid.as_secs_f64();
    Some(Duration::from_secs_f64(if seconds > 2.0 { seconds.ceil() } else { (seconds * 10.0).ceil() / 10.0 }))
}

/// Ends what is still held in the namespace, and removes what the store keeps of it; says how many names stay in use.
async fn remove(url: &str, client: &dyn Backend, store: &Store, root: &str) -> usize {
    let begin = Moment::now();
    let left = loop {
        let Ok(names) = store.list("", None, 1000).await else { break 0 };
        if names.is_empty() || Moment::now().since(begin) > REMOVAL {
            break names.len();
        }
        for name in &names {
            let full = Name::new(format!("{root}/{name}"));
            let queue = client.inspect(&full).await.unwrap_or_default();
            for token in queue.holders.iter().filter_map(|holder| holder.token) {
                let _ = client.evict(&full, token).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    // What stays of every name for a while (on Redis two hours; on Redlock, its last token) is of no use here.
    match url.split_once("://").map_or("", |(scheme, _)| scheme) {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => crate::postgres::sweep(url, root).await,
        #[cfg(feature = "redis")]
        "redis" | "rediss" => crate::redis::sweep(url, "redis", root).await,
        #[cfg(feature = "redis")]
        "redlock" | "redlocks" => crate::redis::sweep(url, "redlock", root).await,
        _ => {}
    }
    left
}
