//! The run: ask the server, try its leases, judge the cases, leave nothing behind.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Moment};
use leasehold::{Guarantees, Name, Result, Store};
use leasehold_conformance::verdicts;

use crate::verify::harness::{Clients, ExistingServer, lacking};
use crate::verify::report::{Granted, Verification, broken, promises};
use crate::verify::servers;

/// The number of cases side by side: they mostly wait for leases.
const AT_ONCE: usize = 6;
/// The number of cases side by side where all clients write one file in turn.
const AT_ONCE_IN_A_FILE: usize = 2;
/// The time in which requests of aborted cases may still arrive.
const SETTLED: Duration = Duration::from_secs(1);
/// The time limit for the removal of the namespace.
const REMOVAL: Duration = Duration::from_secs(20);

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The number of finished cases.
    pub done: usize,
    /// The number of all cases.
    pub of: usize,
    /// The case that was done last.
    pub case: &'a str,
}

/// Judges the server of this URL, which has the form that [`leasehold::connect`] accepts. If `stop` resolves first, it returns `None`; the
/// namespace is removed in either case. `address` is the URL without credentials, for the report.
///
/// Needs a runtime with timers and I/O; with two threads or more, cases that block none of them do not wait for each other.
/// Takes a minute or two, longer where leases are long.
///
/// # Errors
/// The store's error if it cannot be connected. Later failures are part of the result.
///
/// # Cancel safety
/// Dropped midway, cases are aborted, and what they held ends with its lease.
pub async fn verify(
    url: &str,
    address: &str,
    mut progress: impl FnMut(Progress<'_>),
    stop: impl Future<Output = ()>,
) -> Result<Option<Verification>> {
    let begin = Moment::now();
    let url = url.trim();
    let clients = Clients::of(url);
    let client = clients.another().await?;
    let guarantees = client.guarantees();
    let root = format!("leasehold-verify-{:016x}", fastrand::u64(..));
    let store = Store::new(client.clone()).namespace(&root);

    let judging = Box::pin(async {
        let server = servers::inspect(url, &guarantees, store.identity().as_ref()).await;
        let leases = leases(&store, &guarantees).await;
        // A lease shorter than the store's own lateness would judge the load of the machine.
        let comfortable = guarantees
            .min_ttl()
            .max(guarantees.recovery())
            .max(Duration::from_secs(2));
        let ttl = granted(&store, comfortable)
            .await
            .map_or(comfortable, |granted| granted.max(comfortable));
        let lacking = lacking(&*client, &store).await;
        let guest = ExistingServer {
            clients,
            guarantees: guarantees.clone(),
            prefix: format!("{root}/"),
            ttl,
            lacking,
        };
        let mut done = 0;
        let at_once = if servers::scheme(url) == "sqlite" {
            AT_ONCE_IN_A_FILE
        } else {
            AT_ONCE
        };
        let verdicts = verdicts(Arc::new(guest), at_once, |verdict, of| {
            done += 1;
            progress(Progress {
                done,
                of,
                case: verdict.case.name,
            });
        })
        .await;
        (server, leases, verdicts)
    });
    let judged = tokio::select! {
        judged = judging => Some(judged),
        () = stop => None,
    };
    if judged.is_none() {
        // Requests of aborted cases arrive, or are given up.
        tokio::time::sleep(SETTLED).await;
    }
    let left_behind = remove(url, &*client, &store, &root).await;
    let _ = client.close().await;
    let Some((server, leases, verdicts)) = judged else {
        return Ok(None);
    };
    Ok(Some(Verification {
        address: address.to_owned(),
        store: guarantees.store().to_owned(),
        store_id: store.identity().map(|id| id.to_string()),
        version: server.version,
        findings: server.findings,
        promises: promises(&verdicts),
        broken: broken(&verdicts),
        leases,
        notes: guarantees.notes().to_owned(),
        left_behind,
        seconds: Moment::now().since(begin).as_secs_f64(),
    }))
}

/// Checks the servers of this URL without the suite: their versions and settings, and whether they are servers of one store. It takes
/// less than half a minute, also if servers are silent, and holds no lock. `address` is the URL without credentials, for the report.
///
/// # Errors
/// The store's error if it cannot be connected.
pub async fn check_servers(url: &str, address: &str) -> Result<Verification> {
    let begin = Moment::now();
    let url = url.trim();
    let client = leasehold::connect(url).backend().await?;
    let guarantees = client.guarantees();
    let id = client.identity();
    let server = servers::inspect(url, &guarantees, id.as_ref()).await;
    let _ = client.close().await;
    Ok(Verification {
        address: address.to_owned(),
        store: guarantees.store().to_owned(),
        store_id: id.map(|id| id.to_string()),
        version: server.version,
        findings: server.findings,
        promises: Vec::new(),
        broken: Vec::new(),
        leases: Vec::new(),
        notes: guarantees.notes().to_owned(),
        left_behind: 0,
        seconds: Moment::now().since(begin).as_secs_f64(),
    })
}

/// Measures which leases the server grants when short and long ones are asked for: some round up, some have limits.
async fn leases(store: &Store, guarantees: &Guarantees) -> Vec<Granted> {
    let mut all = Vec::new();
    let mut asked = vec![
        guarantees.min_ttl(),
        Duration::from_secs(10),
        Duration::from_secs(300),
    ];
    asked.dedup();
    for asked in asked {
        let granted_ms = granted(store, asked)
            .await
            .map(|granted| granted.as_millis() as u64);
        all.push(Granted {
            asked_ms: asked.as_millis() as u64,
            granted_ms,
        });
    }
    all
}

/// The lease that is granted, about: a guard is valid for a little less.
async fn granted(store: &Store, asked: Duration) -> Option<Duration> {
    let guard = store
        .lock("lease")
        .ttl(asked)
        .acquire_timeout(Duration::from_secs(5))
        .await
        .ok()?;
    let valid = guard.remaining();
    let _ = guard.release().await;
    // A grant is a little shorter than asked for: by the margin, and by the time since the store last proved the lease.
    let least = asked
        .mul_f64(0.9)
        .min(asked.saturating_sub(Duration::from_millis(300)));
    let most = asked.mul_f64(1.02);
    if (least..=most).contains(&valid) {
        return Some(asked);
    }
    let seconds = valid.as_secs_f64();
    Some(Duration::from_secs_f64(if seconds > 2.0 {
        seconds.ceil()
    } else {
        (seconds * 10.0).ceil() / 10.0
    }))
}

/// Ends what is still held in the namespace, and removes what the store keeps of it; says how many names stay in use.
async fn remove(url: &str, client: &dyn Backend, store: &Store, root: &str) -> usize {
    let begin = Moment::now();
    let left = loop {
        let Ok(names) = store.list("", None, 1000).await else {
            break 0;
        };
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
    // Records that stay for each name for a while (two hours on Redis; the last token on Redlock) have no use here.
    match &*servers::scheme(url) {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => crate::verify::postgres::sweep(url, root).await,
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+socket" | "redlock" | "redlocks" => {
            crate::verify::redis::sweep(url, root).await;
        }
        _ => {}
    }
    left
}
