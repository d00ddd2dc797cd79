//! A million cycles of one client: whether its memory stays what it is.

use std::sync::Arc;

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::Result;
use crate::subjects::Ours;
use crate::work::flat;

pub struct Flat;

/// How many cycles there are in each of how many rounds.
fn rounds(plan: &Plan) -> (usize, usize) {
    if plan.quick { (1000, plan.rounds()) } else { (200_000, 5) }
}

#[async_trait]
impl Row for Flat {
    fn name(&self) -> &'static str {
        "flat"
    }

    fn title(&self, plan: &Plan) -> String {
        let (cycles, rounds) = rounds(plan);
        format!("{rounds} times {cycles} cycles of one client: time for each cycle, growth for all of a round")
    }

    /// Cycles of the others take a millisecond.
    fn stores(&self) -> &'static [Store] {
        &[Store::Memory, Store::Sqlite, Store::Redis]
    }

    fn rounds(&self, plan: &Plan) -> (usize, bool) {
        (rounds(plan).1, true)
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::HeapGrowth, Metric::MemoryGrowth]
    }

    fn shows(&self) -> &'static [Metric] {
        &[Metric::HeapGrowth, Metric::MemoryGrowth, Metric::Time]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let (client, (cycles, _)) = (Ours::plain(server).await?, rounds(plan));
        let kinds = [("leasehold: one name", false), ("leasehold: a new name each", true)];
        let kinds = kinds.map(|(label, new_names)| {
            let client = client.clone();
            Contender::new(label, move |meter| flat(client.clone(), cycles, new_names, meter))
        });
        Ok(kinds.into())
    }
}
