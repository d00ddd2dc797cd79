//! More and more names of one client: what a cycle costs, and how that grows.

use std::sync::Arc;

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::Result;
use crate::subjects::{Ours, SENDS};
use crate::work::names;

const TASKS: usize = 64;

pub struct Many;

#[async_trait]
impl Row for Many {
    fn name(&self) -> &'static str {
        "many"
    }

    fn title(&self, _: &Plan) -> String {
        format!("Names of one client, and a task for each, but {TASKS} at most: for each cycle")
    }

    fn stores(&self) -> &'static [Store] {
        Store::SINGLE
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Time]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[
            Time,
            ClientCpu,
            ServerCpu,
            Requests,
            Calls,
            Bytes,
            Allocations,
        ]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let (client, window) = (Ours::plain(server).await?, plan.window());
        let curve = plan.names().iter().map(|&count| {
            let client = client.clone();
            let work = move |meter| names(client.clone(), count, TASKS.min(count), meter, window);
            Contender::new(format!("{count} names"), work)
                .sends(SENDS)
                .size(count)
        });
        Ok(curve.collect())
    }
}
