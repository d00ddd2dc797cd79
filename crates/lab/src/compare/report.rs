//! The measurements as data, from which the table, the JSON and the page are made.

use std::collections::BTreeSet;

use leasehold::{Error, Fairness, Guarantees};
use serde::Serialize;

use crate::compare::advice::{Advice, advise};
use crate::compare::distribution::Latency;
use crate::compare::settings::Settings;
use crate::compare::subject::Reach;

/// One run over all stores.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of Leasehold.
    pub version: &'static str,
    /// When it began, in seconds since 1970.
    pub unix_time: u64,
    /// The number of processors that this process could use.
    pub processors: usize,
    /// The settings of the run.
    pub settings: Settings,
    /// The stores, in the order in which they were given.
    pub stores: Vec<Measured>,
    /// The stores that could not be used, or not to the end. The others were measured all the same.
    pub unreachable: Vec<Unreachable>,
    /// Which store and which order suits which need.
    pub advice: Vec<Advice>,
}

/// A store that could not be used.
#[derive(Clone, Debug, Serialize, thiserror::Error)]
#[error("{address}: {error}")]
#[non_exhaustive]
pub struct Unreachable {
    /// The URL without credentials.
    pub address: String,
    /// Why.
    pub error: String,
}

impl Unreachable {
    pub(crate) fn of(address: &str, error: &Error) -> Unreachable {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(e) = cause {
            text.push_str(&format!(": {e}"));
            cause = e.source();
        }
        Unreachable {
            address: address.to_owned(),
            error: text,
        }
    }
}

/// The measurements of one store.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Measured {
    /// A short name, unique in the report: the store's kind, numbered if there are several.
    pub label: String,
    /// The URL without credentials.
    pub address: String,
    /// Which clients its locks exclude from each other.
    pub reach: Reach,
    /// The guarantees of the store.
    pub promises: Guarantees,
    /// The yardstick: `inspect` of a name that is not in use, which is the cheapest request of each store.
    pub round_trip: Latency,
    /// One client alone, in each order that the store offers.
    pub uncontended: Vec<Uncontended>,
    /// Several waiters, in each order.
    pub contended: Vec<Contended>,
    /// Many locks held at once.
    pub renewal: Option<Renewal>,
    /// Killed holders.
    pub recovery: Option<Recovery>,
    /// The workloads that failed.
    pub failures: Vec<Failure>,
}

/// In which order waiters are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Strictly in the order of arrival.
    Fair,
    /// As is fastest for the store.
    Fast,
}

impl Order {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Order::Fair => "fair",
            Order::Fast => "fast",
        }
    }

    /// The orders that a store offers.
    pub(crate) fn offered(guarantees: &Guarantees) -> &'static [Order] {
        match guarantees.fairness() {
            Fairness::None => &[Order::Fast],
            _ => &[Order::Fair, Order::Fast],
        }
    }
}

/// A lock that one client acquires and releases, without contention.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Uncontended {
    /// In which order it was asked for.
    pub order: Order,
    /// From the request to the hold.
    pub acquire: Latency,
    /// From the release to the store's answer.
    pub release: Latency,
    /// Both.
    pub cycle: Latency,
    /// Cycles in a second.
    pub per_second: f64,
    /// The median cycle in round trips of this store, measured just before.
    pub round_trips: f64,
}

/// Waiters that hold the lock in turn, with nothing to do inside.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Contended {
    /// In which order they were served.
    pub order: Order,
    /// The number of waiters.
    pub waiters: usize,
    /// Over how many clients they were spread.
    pub clients: usize,
    /// The number of acquires per second.
    pub per_second: f64,
    /// Which part of the turns went to another waiter than the last.
    pub switches: f64,
    /// From the begin of a release until the next waiter knows that it holds; `None` if no client ever had to wait.
    pub hand_over: Option<Latency>,
    /// The median hand-over in round trips of this store, measured just before.
    pub round_trips: Option<f64>,
    /// From the request to the hold.
    pub wait: Latency,
    /// Jain's index over the turns that each waiter got: 1 is the same for all.
    pub jain: f64,
    /// The time to serve each waiter once, in microseconds: the longest wait in a perfect queue.
    pub everybody_once_us: f64,
    /// The longest wait, as a multiple of that.
    pub longest_wait_shares: f64,
    /// The number of times that two were inside at once. It must be zero.
    pub overlaps: usize,
}

/// Many locks of one client, held and renewed.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Renewal {
    /// How many.
    pub locks: usize,
    /// The lease that was asked for, in milliseconds.
    pub lease_ms: u64,
    /// The time to acquire all of them, 32 at a time, in milliseconds.
    pub taken_ms: u64,
    /// The time to release all of them, 32 at a time, in milliseconds.
    pub given_back_ms: u64,
    /// For how long they were watched, in milliseconds.
    pub watched_ms: u64,
    /// Processor time of this process meanwhile, in milliseconds per second.
    pub cpu_ms_per_second: f64,
    /// The number of calls by which the client asked its store to renew, however many requests they were.
    pub batches: usize,
    /// The latency of one of these calls.
    pub batch: Option<Latency>,
    /// The mean number of locks in a batch.
    pub locks_per_batch: f64,
    /// The number of locks that were lost meanwhile. It should be zero.
    pub lost: usize,
}

/// The time that a waiter waits for the lock of a killed holder.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Recovery {
    /// The victim: a process, or a client inside of this one.
    pub killed: &'static str,
    /// The lease that was asked for, in milliseconds.
    pub asked_ms: u64,
    /// The lease that the store granted, about, in milliseconds.
    pub lease_ms: u64,
    /// From each kill to the next grant, shortest first, in milliseconds.
    pub waits_ms: Vec<u64>,
}

/// A workload that could not be measured, and why.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// Which one.
    pub workload: String,
    /// Why.
    pub error: String,
}

impl Report {
    pub(crate) fn new(
        settings: &Settings,
        unix_time: u64,
        stores: Vec<Measured>,
        unreachable: Vec<Unreachable>,
    ) -> Report {
        Report {
            version: env!("CARGO_PKG_VERSION"),
            unix_time,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            settings: settings.clone(),
            advice: advise(&stores),
            stores,
            unreachable,
        }
    }

    /// The whole report as JSON.
    ///
    /// # Errors
    /// None that a report of [`compare`](crate::compare::compare) could cause.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

impl Measured {
    /// The lock alone, in this order.
    pub fn alone(&self, order: Order) -> Option<&Uncontended> {
        self.uncontended.iter().find(|u| u.order == order)
    }

    /// The run with this number of waiters in this order.
    pub fn with(&self, order: Order, waiters: usize) -> Option<&Contended> {
        self.contended
            .iter()
            .find(|c| c.order == order && c.waiters == waiters)
    }

    /// The orders that were measured.
    pub fn orders(&self) -> impl Iterator<Item = Order> {
        [Order::Fair, Order::Fast]
            .into_iter()
            .filter(|order| self.alone(*order).is_some())
    }
}

/// The numbers of waiters that were measured, in their order.
pub(crate) fn sizes(stores: &[Measured]) -> BTreeSet<usize> {
    stores
        .iter()
        .flat_map(|m| &m.contended)
        .map(|c| c.waiters)
        .collect()
}
