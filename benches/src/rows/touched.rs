//! Names that are used once: what the store keeps of them.

use std::sync::Arc;

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::Result;
use crate::subjects::{Ours, SENDS};
use crate::work::touched;

pub struct Touched;

fn count(plan: &Plan) -> usize {
    if plan.quick { 1000 } else { 100_000 }
}

#[async_trait]
impl Row for Touched {
    fn name(&self) -> &'static str {
        "touched"
    }

    fn title(&self, plan: &Plan) -> String {
        format!(
            "A cycle of each of {} names that were never used before: for each",
            count(plan)
        )
    }

    fn stores(&self) -> &'static [Store] {
        &[
            Store::Sqlite,
            Store::Redis,
            Store::Redlock,
            Store::Etcd,
            Store::ZooKeeper,
            Store::Postgres,
        ]
    }

    /// The long one waits in each.
    fn rounds(&self, plan: &Plan) -> (usize, bool) {
        if plan.quick {
            (plan.rounds(), false)
        } else {
            (1, false)
        }
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::KeysLeft]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[KeysLeft, KeysLater, AsBefore, Time, Requests]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let (client, count, waits) = (Ours::plain(server).await?, count(plan), !plan.quick);
        let work = move |meter| touched(client.clone(), count, waits, meter);
        Ok(vec![Contender::new("leasehold", work).sends(SENDS)])
    }
}
