//! Deterministic simulation: the real code of core, in simulated time and over a simulated network, all of it decided by a seed.
//!
//! A *world* is a server, or some, a network, some processes and a fenced resource. A process is the real library in one or two tokio runtimes,
//! which are driven turn by turn: they can be paused, blocked, ended and killed, and nothing else happens meanwhile. What the processes
//! see is a history, which the checker of `leasehold-chaos` judges. One seed is one history, byte for byte.
//!
//! - `plan` is what a seed decides; `world` runs it; `shrink` makes one that fails small.
//! - `machine` is the time and the random numbers; `process` the runtimes; `network` what arrives when, `stream` connections over it.
//! - `work` with `both` and `history` is what processes do and see.
//! - `stage` is servers and clients without a world, for other tests: the conformance suite.
//! - `kind` says which stores there are, `store` what is so of each, `servers` what a world asks of theirs: `simple`, `redis`, `etcd`, `zookeeper`.

mod both;
pub mod etcd;
mod history;
mod kind;
mod machine;
mod meanwhile;
mod network;
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

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The history.
    pub events: Vec<Event>,
    /// What must not have happened, for people.
    pub wrong: Vec<String>,
    /// What happened, counted.
    pub figures: Figures,
}

impl Outcome {
    /// The history as lines of JSON.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.events.iter().filter_map(|event| serde_json::to_string(event).ok()).collect()
    }
}

/// Runs the world of a store and a seed, or a part of it, and judges what was seen there.
#[must_use]
pub fn run(kind: Kind, seed: u64, part: &Part) -> Outcome {
    let seen = world::run(kind, seed, part);
    let mut checker = Checker::default();
    seen.events.iter().for_each(|event| checker.event(event));
    let report = checker.finish();
    let mut wrong: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    wrong.extend(seen.unexpected);
    // What a lost message has left in the store is in the way of others for a lease: nobody's operation explains it.
    if report.figures.faults.is_empty() {
        wrong.extend(order(&seen.events).err().map(|disorder| disorder.to_string()));
    }
    Outcome { events: seen.events, wrong, figures: report.figures }
}
