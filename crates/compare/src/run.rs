//! The run: every workload on every store, one store after the other, with progress for a bar.

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, SystemTime};

use leasehold::seam::Moment;
use leasehold::{Error, ErrorKind, Result, Store};

use crate::distribution::Latency;
use crate::report::{Failure, Measured, Order, Promises, Report, Unreachable};
use crate::settings::Settings;
use crate::subject::Subject;
use crate::workloads;

/// How far a run is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The part of the whole run that is done, 0 to 1, by expected time.
    pub done: f64,
    /// The store that is worked on.
    pub store: &'a str,
    /// What is measured now.
    pub workload: &'a str,
}

/// Measures every subject with every workload, and reports.
///
/// A workload that fails is reported as a [`Failure`], and the run goes on. Names are used in a namespace of the run's own;
/// what is left of them ends with its lease (on Redis, last tokens of two hours stay behind, as always).
///
/// Run it on a runtime with as many threads as your programs have: the client's share of a round trip is in every number.
///
/// A store that cannot be used, or goes away, keeps nobody from the others: [`Report::unreachable`] names it.
///
/// # Errors
/// Before anything is measured: `Invalid` for no subjects or a bad URL, and what the first says if no store can be used.
/// The text names the store.
///
/// # Cancel safety
/// Dropped midway, locks are given back in the background, and killed holders end.
pub async fn compare(subjects: &[Subject], settings: &Settings, progress: impl Fn(Progress<'_>)) -> Result<Report> {
    if subjects.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "nothing to compare: name at least one store"));
    }
    #[allow(clippy::disallowed_methods, reason = "a date for people")]
    let unix_time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let namespace = format!("leasehold-compare-{:016x}", fastrand::u64(..));
    let (mut connected, mut reached, mut unreachable) = (Vec::new(), Vec::new(), Vec::new());
    let mut first = None;
    for subject in subjects {
        match clients(subject, settings, &namespace).await {
            Ok(clients) => {
                connected.push(clients);
                reached.push(subject);
            }
            Err(e) if e.kind() == ErrorKind::Invalid => return Err(named(subject, &e)),
            Err(e) => {
                unreachable.push(Unreachable::of(subject.address(), &e));
                first.get_or_insert(named(subject, &e));
            }
        }
    }
    if let Some(e) = first.filter(|_| reached.is_empty()) {
        return Err(e);
    }
    let labels = labels(&connected);
    let mut bar = Bar { progress: &progress, done: Duration::ZERO, total: Duration::ZERO, store: "" };
    let plans: Vec<Duration> = connected.iter().map(|clients| expected(&clients[0], settings)).collect();
    bar.total = plans.iter().sum();
    let mut stores = Vec::new();
    let mut before = Duration::ZERO;
    for (((subject, clients), label), plan) in reached.into_iter().zip(connected).zip(labels).zip(plans) {
        bar.done = before;
        let run = One { subject, clients: &clients, settings, namespace: &namespace };
        match run.measure(label, &mut bar).await {
            Ok(measured) => stores.push(measured),
            Err(e) => unreachable.push(Unreachable::of(subject.address(), &e)),
        }
        before += plan;
        for client in clients {
            let _ = client.close(Duration::from_secs(5)).await;
        }
    }
    bar.finished();
    if let (true, Some(gone)) = (stores.is_empty(), unreachable.first()) {
        return Err(Error::new(ErrorKind::Unavailable, gone.to_string()));
    }
    Ok(Report::new(settings, unix_time, stores, unreachable))
}

/// The same error, with the store.
fn named(subject: &Subject, e: &Error) -> Error {
    Error::new(e.kind(), Unreachable::of(subject.address(), e).to_string())
}

async fn clients(subject: &Subject, settings: &Settings, namespace: &str) -> Result<Vec<Store>> {
    let mut clients = Vec::new();
    for _ in 0..settings.clients.max(1) {
        clients.push(subject.store().await?.namespace(namespace));
    }
    Ok(clients)
}

/// The kinds of the stores, numbered where one kind is there more than once.
fn labels(connected: &[Vec<Store>]) -> Vec<String> {
    let kinds: Vec<&str> = connected.iter().map(|clients| clients[0].guarantees().store).collect();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let label = |kind: &&'static str| {
        let number = seen.entry(kind).and_modify(|n| *n += 1).or_insert(1);
        let several = kinds.iter().filter(|other| *other == kind).count() > 1;
        if several { format!("{kind} {number}") } else { (*kind).to_owned() }
    };
    kinds.iter().map(label).collect()
}

/// How long one store will take, about.
fn expected(store: &Store, settings: &Settings) -> Duration {
    let guarantees = store.guarantees();
    let orders = u32::try_from(Order::offered(&guarantees).len()).unwrap_or(1);
    let sizes = u32::try_from(settings.waiters.len()).unwrap_or(1);
    let lease = settings.lease.max(guarantees.min_ttl);
    (settings.alone + (settings.contended + SMALL) * sizes) * orders + lease * 4 + guarantees.recovery
}

/// What surrounds a measurement.
const SMALL: Duration = Duration::from_millis(150);

struct Bar<'a, P> {
    progress: &'a P,
    done: Duration,
    total: Duration,
    store: &'a str,
}

impl<P: Fn(Progress<'_>)> Bar<'_, P> {
    fn show(&self, store: &str, workload: &str) {
        let done = self.done.as_secs_f64() / self.total.as_secs_f64().max(1e-3);
        (self.progress)(Progress { done: done.min(1.0), store, workload });
    }

    fn finished(&mut self) {
        self.done = self.total;
        self.show(self.store, "done");
    }
}

/// One store's run.
struct One<'a> {
    subject: &'a Subject,
    clients: &'a [Store],
    settings: &'a Settings,
    namespace: &'a str,
}

impl One<'_> {
    async fn measure<P: Fn(Progress<'_>)>(&self, label: String, bar: &mut Bar<'_, P>) -> Result<Measured> {
        let (settings, store) = (self.settings, &self.clients[0]);
        let guarantees = store.guarantees();
        let orders = Order::offered(&guarantees);
        let mut failures = Vec::new();
        bar.show(&label, "round trip");
        let mut looks = workloads::round_trips(store).await?;
        let mut uncontended = Vec::new();
        for &order in orders {
            let what = format!("alone, {}", order.word());
            bar.show(&label, &what);
            let work = workloads::alone(store, order, settings.alone);
            uncontended.extend(tried(&mut failures, &what, settings.alone, work).await);
            bar.done += settings.alone;
        }
        let mut contended = Vec::new();
        for &order in orders {
            for &waiters in settings.waiters.iter().filter(|waiters| **waiters > 0) {
                let what = format!("{waiters} waiters, {}", order.word());
                bar.show(&label, &what);
                let work = workloads::contended(self.clients, order, waiters, settings.contended);
                contended.extend(tried(&mut failures, &what, settings.contended, work).await);
                bar.done += settings.contended + SMALL;
            }
        }
        let lease = settings.lease.max(guarantees.min_ttl);
        let mut renewal = None;
        if settings.locks > 0 {
            let what = format!("{} locks renewed", settings.locks);
            bar.show(&label, &what);
            let work = workloads::renewal(self.subject, self.namespace, settings.locks, settings.lease);
            renewal = tried(&mut failures, &what, lease * 4, work).await;
            bar.done += lease * 3;
        }
        let mut recovery = None;
        if settings.kills > 0 {
            bar.show(&label, "killed holders");
            let work = workloads::recovery(self.subject, store, self.namespace, settings.kills, settings.lease);
            recovery = tried(&mut failures, "killed holders", lease * 4 + guarantees.recovery, work).await;
        }
        looks.extend(workloads::round_trips(store).await.unwrap_or_default());
        Ok(Measured {
            label,
            address: self.subject.address().to_owned(),
            reach: self.subject.reach(),
            promises: Promises::of(&guarantees),
            round_trip: Latency::of(looks)
                .ok_or_else(|| Error::new(ErrorKind::Internal, "no round trip was measured"))?,
            uncontended,
            contended,
            renewal,
            recovery,
            failures,
        })
    }
}

/// The outcome, or a note that there is none: of an error, or because it takes longer than anything should.
async fn tried<T>(
    failures: &mut Vec<Failure>,
    workload: &str,
    expected: Duration,
    work: impl Future<Output = Result<T>>,
) -> Option<T> {
    let limit = expected * 2 + Duration::from_secs(40);
    let begin = Moment::now();
    let error = match tokio::time::timeout(limit, Box::pin(work)).await {
        Ok(Ok(outcome)) => return Some(outcome),
        Ok(Err(e)) => e.to_string(),
        Err(_) => format!("not done within {:.0} s", Moment::now().since(begin).as_secs_f64()),
    };
    failures.push(Failure { workload: workload.to_owned(), error });
    None
}
