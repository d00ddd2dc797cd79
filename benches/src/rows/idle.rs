//! Waiters for whom nothing happens: what they cost, and how that grows.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::Result;
use crate::subjects::SENDS;
use crate::work::idle;

pub struct Idle;

/// Of the thousand in the short run: what is read once in a lease is in their window, which is one.
const THOUSANDS: Duration = Duration::from_secs(5);

/// As short as every store allows where time is short.
fn ttl(plan: &Plan) -> Duration {
    if plan.quick {
        Duration::from_secs(3)
    } else {
        leasehold::DEFAULT_TTL
    }
}

#[async_trait]
impl Row for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn title(&self, plan: &Plan) -> String {
        let ttl = ttl(plan);
        format!(
            "Waiters of one client behind a hold that does not end, with leases of {ttl:?} (1,000: {THOUSANDS:?}): for each second"
        )
    }

    fn stores(&self) -> &'static [Store] {
        Store::SHARED
    }

    /// Each is long.
    fn rounds(&self, plan: &Plan) -> (usize, bool) {
        (plan.few_rounds(), false)
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Requests, Metric::Bytes, Metric::ClientCpu]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[ClientCpu, ServerCpu, Requests, Calls, Bytes, Heap, SetUp]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let store = leasehold::connect(server.url()).await?;
        let crowd = |waiters: usize, ttl: Duration, window: Duration| {
            let store = store.clone();
            let work = move |meter| idle(store.clone(), waiters, (ttl, window), meter);
            Contender::new(format!("leasehold: {waiters} waiters"), work)
                .sends(SENDS)
                .size(waiters)
        };
        // What a goal is about, also in the short run, and there nothing else: it takes long.
        if plan.quick && matches!(**server, Server::ZooKeeper(_)) {
            return Ok(vec![crowd(1000, THOUSANDS, THOUSANDS)]);
        }
        Ok(plan
            .idlers()
            .iter()
            .map(|&waiters| crowd(waiters, ttl(plan), ttl(plan) / 3))
            .collect())
    }
}
