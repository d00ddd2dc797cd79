//! Many locks that are held and renewed: what that costs while nothing else happens.

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
use crate::work::{Holds, held};

pub struct Held;

/// How many locks of which lease. Both have as many renewals in a second.
fn crowd(plan: &Plan) -> (usize, Duration) {
    if plan.quick { (1000, Duration::from_secs(3)) } else { (10_000, Duration::from_secs(30)) }
}

#[async_trait]
impl Row for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn title(&self, plan: &Plan) -> String {
        let (count, ttl) = crowd(plan);
        format!("{count} locks of one client, with leases of {ttl:?}: for each 30 s")
    }

    fn stores(&self) -> &'static [Store] {
        &[Store::Sqlite, Store::Redis, Store::Etcd, Store::ZooKeeper]
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::ClientCpu, Metric::Heap]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[ClientCpu, ServerCpu, Requests, Calls, Bytes, Heap, SetUp]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let (count, ttl) = crowd(plan);
        let holds = Holds::take(&leasehold::connect(server.url()).await?, count, ttl).await?;
        Ok(vec![Contender::new("leasehold", move |meter| held(holds.clone(), meter)).sends(SENDS)])
    }
}
