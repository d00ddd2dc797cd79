//! Deterministic simulation: the real code of core, in simulated time and over a simulated network.
//! A seed decides everything.
//!
//! A *world* is one or several servers, a network, some processes and a fenced resource. A process
//! is the real library in one or two tokio runtimes. They are driven turn by turn: they can be
//! paused, blocked, ended and killed, and nothing else happens meanwhile. The processes record a
//! history, which the checker of `leasehold-chaos` judges. One seed gives one history, byte for
//! byte.
//!
//! - `plan` is made from a seed; `world` runs it; `shrink` reduces a plan that fails.
//! - `machine` is the time and the random numbers; `process` is the runtimes; `network` decides
//!   which messages arrive and when, `stream` is connections over it.
//! - `work`, with `both` and `history`, is the work of processes and their records.
//! - `stage` is servers and clients without a world, for other tests: the conformance suite.
//! - `kind` lists the stores, `store` has the limits of each, `servers` is the interface between a
//!   world and its servers: `simple`, `redis`, `etcd`, `zookeeper`.

#![cfg(leasehold_lab)]

mod both;
pub mod etcd;
mod history;
mod kind;
mod machine;
mod meanwhile;
mod network;
mod once;
mod plan;
mod process;
mod redis;
mod servers;
mod shrink;
mod simple;
pub mod stage;
mod store;
mod stream;
mod work;
mod world;
pub mod zookeeper;

use leasehold_chaos::{Checker, Event, Figures, order};

pub use crate::redis::MiniRedis;
pub use kind::Kind;
pub use plan::Part;
pub use shrink::{Small, shrink};

/// The result of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The history.
    pub events: Vec<Event>,
    /// Errors that must not have happened, for people.
    pub wrong: Vec<String>,
    /// The numbers of events.
    pub figures: Figures,
}

impl Outcome {
    /// The history as lines of JSON.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.events
            .iter()
            .filter_map(|event| serde_json::to_string(event).ok())
            .collect()
    }
}

/// Runs the world of a store and a seed, or a part of it, and judges its history.
#[must_use]
pub fn run(kind: Kind, seed: u64, part: &Part) -> Outcome {
    let seen = world::run(kind, seed, part);
    let mut checker = Checker::default();
    seen.events.iter().for_each(|event| checker.event(event));
    let report = checker.finish();
    let mut wrong: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    wrong.extend(seen.unexpected);
    // A lost message may leave records in the store that are in the way of others for a lease. No
    // operation explains them, so the order is judged only without faults.
    if report.figures.faults.is_empty() {
        wrong.extend(
            order(&seen.events)
                .err()
                .map(|disorder| disorder.to_string()),
        );
    }
    Outcome {
        events: seen.events,
        wrong,
        figures: report.figures,
    }
}
