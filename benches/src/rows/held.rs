//! Many locks that are held and renewed: what that costs while nothing else happens.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::meter::Meter;
use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::Result;
use crate::subjects::SENDS;
use crate::work::{Holds, held};

pub struct Held;

/// Of the short run as short as every store allows: it has as many renewals in a second with a tenth of the locks.
fn ttl(plan: &Plan) -> Duration {
    Duration::from_secs(if plan.quick { 3 } else { 30 })
}

#[async_trait]
impl Row for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn title(&self, plan: &Plan) -> String {
        format!(
            "Locks of one client, with leases of {:?}: for each 30 s",
            ttl(plan)
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
        &[Metric::ClientCpu, Metric::Heap]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[
            ClientCpu, ServerCpu, RenewalCpu, Requests, Calls, Bytes, Heap, SetUp,
        ]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let (store, ttl) = (leasehold::connect(server.url()).await?, ttl(plan));
        // One crowd at a time: what the others cost would be in the figures.
        let standing = Arc::new(Mutex::new(None));
        let curve = plan.holders().iter().map(|&count| {
            let (store, standing) = (store.clone(), standing.clone());
            let work = move |meter: Meter| {
                let (store, standing) = (store.clone(), standing.clone());
                async move {
                    let mut standing = standing.lock().await;
                    Holds::stand(&mut standing, meter.server(), &store, count, ttl).await?;
                    held(standing.as_ref().ok_or("none")?, meter).await
                }
            };
            Contender::new(format!("leasehold: {count} locks"), work)
                .sends(SENDS)
                .size(count)
        });
        Ok(curve.collect())
    }
}
