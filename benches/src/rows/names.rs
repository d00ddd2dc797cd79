//! Many names at once: the client pipelines, and the server is what is busy.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::{Result, Subject};
use crate::subjects::{self, Workload};
use crate::work::names;

const NAMES: usize = 1000;
const TASKS: usize = 64;

pub struct Names;

struct Parallel(Duration);

impl Workload for Parallel {
    fn of<S: Subject>(&self, label: &str, subject: S) -> Contender {
        let window = self.0;
        Contender::new(label, move |meter| {
            names(subject.clone(), NAMES, TASKS, meter, window)
        })
    }
}

#[async_trait]
impl Row for Names {
    fn name(&self) -> &'static str {
        "names"
    }

    fn title(&self, _: &Plan) -> String {
        format!("{TASKS} tasks of one client on {NAMES} names: for each cycle")
    }

    fn stores(&self) -> &'static [Store] {
        Store::SERVED
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Time, Metric::ServerCpu]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[Time, ServerCpu, ClientCpu, Requests, Calls, Bytes]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        subjects::all(server, plan.peers, &Parallel(plan.long_window())).await
    }
}
