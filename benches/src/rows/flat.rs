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
use crate::work::{Cycles, flat};

pub struct Flat;

/// How many cycles there are in each round: a million in all, where a cycle is short.
fn cycles(plan: &Plan, server: &Server) -> usize {
    match (plan.quick, server) {
        (true, _) => 1000,
        (false, Server::Memory | Server::File(_)) => 20_000,
        (false, Server::Redis(nodes)) if nodes.len() == 1 => 20_000,
        (false, _) => 2000,
    }
}

/// Those that have a server are asked by so many tasks at once.
fn tasks(server: &Server) -> usize {
    if matches!(server, Server::Memory | Server::File(_)) {
        1
    } else {
        64
    }
}

#[async_trait]
impl Row for Flat {
    fn name(&self) -> &'static str {
        "flat"
    }

    fn title(&self, plan: &Plan) -> String {
        let cycles = match plan.quick {
            true => "1,000",
            false => "20,000 (Redlock, etcd, ZooKeeper and PostgreSQL: 2,000)",
        };
        let rounds = self.rounds(plan).0;
        format!(
            "{rounds} times {cycles} cycles of one client: time for each cycle, growth for all of a round"
        )
    }

    fn stores(&self) -> &'static [Store] {
        &Store::ALL
    }

    /// With `--rounds 500` there are a million of each.
    fn rounds(&self, plan: &Plan) -> (usize, bool) {
        (
            plan.rounds
                .unwrap_or(if plan.quick { plan.rounds() } else { 50 }),
            true,
        )
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::HeapGrowth, Metric::MemoryGrowth]
    }

    fn shows(&self) -> &'static [Metric] {
        &[Metric::HeapGrowth, Metric::MemoryGrowth, Metric::Time]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let (client, count, tasks) = (
            Ours::plain(server).await?,
            cycles(plan, server),
            tasks(server),
        );
        let kinds = [
            ("leasehold: the same names", false),
            ("leasehold: a new name each", true),
        ];
        let kinds = kinds.map(|(label, new_names)| {
            let client = client.clone();
            Contender::new(label, move |meter| {
                flat(
                    client.clone(),
                    Cycles {
                        count,
                        tasks,
                        new_names,
                    },
                    meter,
                )
            })
        });
        Ok(kinds.into())
    }
}
