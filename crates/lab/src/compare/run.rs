//! The run: every workload on every store, one store after the other, with progress for a bar.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, SystemTime};

use leasehold::{Error, ErrorKind, Result, Store};

use crate::compare::report::{Failure, Measured, Order, Report, Unreachable};
use crate::compare::settings::Settings;
use crate::compare::subject::Subject;
use crate::compare::workloads;

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The part of the whole run that is done, 0 to 1, by expected time.
    pub done: f64,
    /// The store that is worked on.
    pub store: &'a str,
    /// The current workload.
    pub workload: &'a str,
}

/// Measures every subject with every workload, and reports.
///
/// A workload that fails is reported as a [`Failure`], and the run goes on. Names are used in a namespace of the run's own;
/// what is left of them ends with its lease (on Redis and Redlock, last tokens of two hours stay behind, as always).
///
/// Run it on a runtime with as many threads as your programs have: the client's share of a round trip is in every number.
///
/// If a store cannot be used, or goes away, the others are measured all the same: [`Report::unreachable`] names it.
///
/// # Errors
/// Before anything is measured: `Invalid` for no subjects or a bad URL, and what the first says if no store can be used.
/// The text names the store.
///
/// # Cancel safety
/// Dropped midway, locks are given back in the background, and killed holders end.
pub async fn compare(
    subjects: &[Subject],
    settings: &Settings,
    progress: impl Fn(Progress<'_>),
) -> Result<Report> {
    if subjects.is_empty() {
        return Err(Error::new(
            ErrorKind::Invalid,
            "nothing to compare: name at least one store",
        ));
    }
    #[allow(clippy::disallowed_methods, reason = "a date for people")]
    let unix_time = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let namespace = format!("leasehold-compare-{:016x}", fastrand::u64(..));
    let mut reached = Vec::new();
    let mut failed = Vec::new();
    for subject in subjects {
        match clients(subject, settings, &namespace).await {
            Ok(clients) => reached.push((subject, clients)),
            Err(e) => failed.push((e.kind(), Unreachable::of(subject.address(), &e))),
        }
        if let Some((kind @ ErrorKind::Invalid, bad)) = failed.last() {
            return Err(Error::new(*kind, bad.to_string()));
        }
    }
    let labels = labels(&reached);
    let plan = |clients: &[Store]| expected(&clients[0], settings);
    let mut bar = Bar {
        progress: &progress,
        done: Duration::ZERO,
        total: Duration::ZERO,
    };
    bar.total = reached.iter().map(|(_, clients)| plan(clients)).sum();
    let mut stores = Vec::new();
    for ((subject, clients), label) in reached.into_iter().zip(labels) {
        let end = bar.done + plan(&clients);
        match measure(subject, &clients, settings, &namespace, label, &mut bar).await {
            Ok(measured) => stores.push(measured),
            Err(e) => failed.push((e.kind(), Unreachable::of(subject.address(), &e))),
        }
        bar.done = end;
        for client in clients {
            let _ = client.close(Duration::from_secs(5)).await;
        }
    }
    bar.show("", "done");
    match failed.first() {
        Some((kind, first)) if stores.is_empty() => Err(Error::new(*kind, first.to_string())),
        _ => Ok(Report::new(
            settings,
            unix_time,
            stores,
            failed.into_iter().map(|(_, store)| store).collect(),
        )),
    }
}

async fn clients(subject: &Subject, settings: &Settings, namespace: &str) -> Result<Vec<Store>> {
    let mut clients = Vec::new();
    for _ in 0..settings.clients.max(1) {
        clients.push(subject.store().await?.namespace(namespace));
    }
    Ok(clients)
}

/// The kinds of the stores, numbered where one kind is there more than once.
fn labels(reached: &[(&Subject, Vec<Store>)]) -> Vec<String> {
    let kinds: Vec<&str> = reached
        .iter()
        .map(|(_, clients)| clients[0].guarantees().store())
        .collect();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let label = |kind: &&'static str| {
        let number = seen.entry(kind).and_modify(|n| *n += 1).or_insert(1);
        let several = kinds.iter().filter(|other| *other == kind).count() > 1;
        if several {
            format!("{kind} {number}")
        } else {
            (*kind).to_owned()
        }
    };
    kinds.iter().map(label).collect()
}

/// The approximate time for one store.
fn expected(store: &Store, settings: &Settings) -> Duration {
    let guarantees = store.guarantees();
    let orders = u32::try_from(Order::offered(&guarantees).len()).unwrap_or(1);
    let sizes = u32::try_from(settings.waiters.len()).unwrap_or(1);
    let lease = settings.lease.max(guarantees.min_ttl());
    (settings.alone + settings.contended * sizes) * orders + lease * 5 + guarantees.recovery()
}

/// The progress of the whole run.
struct Bar<'a> {
    progress: &'a dyn Fn(Progress<'_>),
    done: Duration,
    total: Duration,
}

impl Bar<'_> {
    fn show(&self, store: &str, workload: &str) {
        let done = self.done.as_secs_f64() / self.total.as_secs_f64().max(1e-3);
        (self.progress)(Progress {
            done: done.min(1.0),
            store,
            workload,
        });
    }
}

/// Every workload on one store.
async fn measure(
    subject: &Subject,
    clients: &[Store],
    settings: &Settings,
    namespace: &str,
    label: String,
    bar: &mut Bar<'_>,
) -> Result<Measured> {
    let store = &clients[0];
    let guarantees = store.guarantees();
    let orders = Order::offered(&guarantees);
    bar.show(&label, "round trip");
    let mut round_trips = workloads::round_trips(store).await?;
    let mut steps = Steps {
        label: &label,
        bar,
        failures: Vec::new(),
    };
    let mut uncontended = Vec::new();
    for &order in orders {
        let work = workloads::alone(store, order, settings.alone);
        uncontended.extend(
            steps
                .take(format!("alone, {}", order.word()), settings.alone, work)
                .await,
        );
    }
    let mut contended = Vec::new();
    for &order in orders {
        for &waiters in settings.waiters.iter().filter(|waiters| **waiters > 0) {
            let work = workloads::contended(clients, order, waiters, settings.contended);
            let what = format!("{waiters} waiters, {}", order.word());
            contended.extend(steps.take(what, settings.contended, work).await);
        }
    }
    let lease = settings.lease.max(guarantees.min_ttl());
    let mut renewal = None;
    if settings.locks > 0 {
        let work = workloads::renewal(subject, namespace, settings.locks, settings.lease);
        renewal = steps
            .take(format!("{} locks renewed", settings.locks), lease * 3, work)
            .await;
    }
    let mut recovery = None;
    if settings.kills > 0 {
        let work = workloads::recovery(subject, store, namespace, settings.kills, settings.lease);
        recovery = steps
            .take(
                "killed holders".into(),
                lease * 2 + guarantees.recovery(),
                work,
            )
            .await;
    }
    let failures = steps.failures;
    round_trips.extend(workloads::round_trips(store).await.unwrap_or_default());
    Ok(Measured {
        label,
        address: subject.address().to_owned(),
        reach: subject.reach(),
        promises: guarantees,
        round_trip: workloads::distribution(round_trips)?,
        uncontended,
        contended,
        renewal,
        recovery,
        failures,
    })
}

/// The workloads of one store, one after the other.
struct Steps<'a, 'b> {
    label: &'a str,
    bar: &'a mut Bar<'b>,
    failures: Vec<Failure>,
}

impl Steps<'_, '_> {
    /// The outcome of one workload, or a note that there is none: of an error, or because it takes longer than anything should.
    async fn take<T>(
        &mut self,
        workload: String,
        expected: Duration,
        work: impl Future<Output = std::result::Result<T, impl Display>>,
    ) -> Option<T> {
        self.bar.show(self.label, &workload);
        let limit = expected * 2 + Duration::from_secs(40);
        let outcome = tokio::time::timeout(limit, Box::pin(work)).await;
        self.bar.done += expected;
        let error = match outcome {
            Ok(Ok(outcome)) => return Some(outcome),
            Ok(Err(e)) => e.to_string(),
            Err(_) => format!("not done within {} s", limit.as_secs()),
        };
        self.failures.push(Failure { workload, error });
        None
    }
}
