//! A longer and longer line of one client's tasks: what a hand-over costs, and how that grows.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::Result;
use crate::subjects::{Ours, SENDS};
use crate::work::contended;

pub struct Line;

#[async_trait]
impl Row for Line {
    fn name(&self) -> &'static str {
        "line"
    }

    fn title(&self, _: &Plan) -> String {
        "Tasks of one client on one fair lock, with nothing to do in it: for each hand-over".into()
    }

    fn stores(&self) -> &'static [Store] {
        Store::SINGLE
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Time]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[Time, ClientCpu, ServerCpu, Requests, Calls, Bytes]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let (window, mut contenders) = (plan.window(), Vec::new());
        for &waiters in plan.waiters() {
            // One of their own, and a name: one that is too long for a store leaves the others alone.
            let client: Arc<[Ours]> = [Ours::fair(server).await?].into();
            // One of them holds.
            let tasks = waiters + 1;
            let name: Arc<str> = format!("line of {waiters}").into();
            let work = move |meter| {
                let (client, name) = (client.clone(), name.clone());
                async move { contended(client, &name, tasks, Duration::ZERO, meter, window).await }
            };
            contenders.push(
                Contender::new(format!("{tasks} tasks"), work)
                    .sends(SENDS)
                    .size(waiters),
            );
        }
        Ok(contenders)
    }
}
