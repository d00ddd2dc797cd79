//! What a piece of work costs: in time, on both sides, by what both sides count.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Moment;
use leasehold_lab::measure::processor_time;
use serde::{Deserialize, Serialize};
use stats_alloc::{INSTRUMENTED_SYSTEM, Stats};
use tokio::runtime::Handle;

use crate::metric::Metric;
use crate::processes;
use crate::servers::{Counts, Server};
use crate::subject::Result;

/// What one round of one contender has shown, for each operation.
pub type Sample = BTreeMap<Metric, f64>;

/// What a piece of work did. It is also what another process answers that was made to work.
#[derive(Default, Serialize, Deserialize)]
pub struct Done {
    /// By so many is what it cost divided.
    pub operations: f64,
    /// What it has measured itself.
    pub figures: Sample,
    /// Another process did it: what this one has used is not what it cost.
    #[serde(default)]
    pub elsewhere: bool,
}

/// Measures what is done on one server.
#[derive(Clone)]
pub struct Meter {
    server: Arc<Server>,
    /// The commands that the contender sends itself, where the server also counts those inside of scripts.
    sends: &'static [&'static str],
}

/// Everything that is counted, at one instant.
struct Reading {
    at: Moment,
    client: Duration,
    server: Duration,
    heap: Stats,
    /// How often a thread of the runtime fell asleep.
    parks: u64,
}

impl Reading {
    fn now(server: &Server) -> Result<Reading> {
        let mut cpu = Duration::ZERO;
        for process in server.processes() {
            // A child of the server's may have ended.
            cpu += processes::cpu(process).unwrap_or_default();
        }
        let runtime = Handle::current().metrics();
        Ok(Reading {
            parks: (0..runtime.num_workers())
                .map(|worker| runtime.worker_park_count(worker))
                .sum(),
            server: cpu,
            client: processor_time(),
            heap: INSTRUMENTED_SYSTEM.stats(),
            at: Moment::now(),
        })
    }
}

impl Meter {
    /// `sends`: the commands that are requests, where the server counts those inside of scripts, too.
    pub fn new(server: &Arc<Server>, sends: &'static [&'static str]) -> Meter {
        Meter {
            server: server.clone(),
            sends,
        }
    }

    /// Whom it asks.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Does it, and says what it cost. A figure that the work has measured itself is kept.
    pub async fn around(&self, work: impl Future<Output = Result<Done>>) -> Result<Sample> {
        // What the second question costs is in the third: that of the first is taken off.
        let asked = self.server.counts().await?;
        let counted = self.server.counts().await?;
        let before = Reading::now(&self.server)?;
        let done = work.await?;
        let after = Reading::now(&self.server)?;
        let counts = self.server.counts().await?;

        let each = |total: f64| total / done.operations;
        let nanos = |span: Duration| each(span.as_nanos() as f64);
        let heap = after.heap - before.heap;
        let mut sample = Sample::new();
        sample.insert(Metric::Time, nanos(after.at.since(before.at)));
        if !done.elsewhere {
            sample.insert(
                Metric::ClientCpu,
                nanos(after.client.saturating_sub(before.client)),
            );
            sample.insert(Metric::Parks, each((after.parks - before.parks) as f64));
            sample.insert(
                Metric::Allocations,
                each((heap.allocations + heap.reallocations) as f64),
            );
            sample.insert(Metric::Allocated, each(heap.bytes_allocated as f64));
        }
        if let (Some(asked), Some(counted), Some(counts)) = (asked, counted, counts) {
            sample.insert(
                Metric::ServerCpu,
                nanos(after.server.saturating_sub(before.server)),
            );
            let spent = |of: &dyn Fn(&Counts) -> u64| {
                let (asking, all) = (of(&counted) - of(&asked), of(&counts) - of(&counted));
                each(all.saturating_sub(asking) as f64)
            };
            let calls = spent(&|counts| counts.requests.values().sum());
            let sent = |counts: &Counts| {
                self.sends
                    .iter()
                    .filter_map(|command| counts.requests.get(*command))
                    .sum()
            };
            // Redis alone counts what scripts call, too.
            if let Server::Redis(_) = &*self.server {
                sample.insert(Metric::Requests, spent(&sent));
                sample.insert(Metric::Calls, calls);
            } else {
                sample.insert(Metric::Requests, calls);
            }
            sample.insert(Metric::Bytes, spent(&|counts| counts.bytes));
        }
        sample.extend(done.figures);
        Ok(sample)
    }
}

/// What is live on this process's heap.
pub fn live_heap() -> f64 {
    let heap = INSTRUMENTED_SYSTEM.stats();
    heap.bytes_allocated as f64 - heap.bytes_deallocated as f64
}

/// The same, once what earlier rows have left behind is gone.
pub async fn settled_heap() -> f64 {
    let (mut least, mut since) = (live_heap(), Moment::now());
    while Moment::now().since(since) < Duration::from_millis(500) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        // What comes and goes is not what goes.
        if live_heap() < least * 0.999 {
            (least, since) = (live_heap(), Moment::now());
        }
    }
    live_heap()
}
