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
        &[Store::Memory, Store::Sqlite, Store::Redis, Store::Etcd, Store::ZooKeeper]
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Time]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[Time, ClientCpu, ServerCpu, Requests, Calls, Bytes]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let client: Arc<[Ours]> = [Ours::fair(server).await?].into();
        let window = plan.window();
        let crowd = |&waiters: &usize| {
            let client = client.clone();
            // One of them holds.
            let tasks = waiters + 1;
            let work = move |meter| contended(client.clone(), "line", tasks, Duration::ZERO, meter, window);
            Contender::new(format!("{tasks} tasks"), work).sends(SENDS)
        };
        Ok(plan.waiters().iter().filter(|waiters| **waiters <= 1000).map(crowd).collect())
    }
}
