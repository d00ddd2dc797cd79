//! A lock that nobody else wants: what a cycle adds to the commands without which there is no lock.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::foreign;
use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::{Result, Subject};
use crate::subjects::{self, Workload};
use crate::work::cycles;

pub struct Alone;

struct Cycles(Duration);

impl Workload for Cycles {
    fn of<S: Subject>(&self, label: &str, subject: S) -> Contender {
        let window = self.0;
        Contender::new(label, move |meter| {
            cycles(subject.clone(), "alone", meter, window)
        })
    }
}

#[async_trait]
impl Row for Alone {
    fn name(&self) -> &'static str {
        "alone"
    }

    fn title(&self, _: &Plan) -> String {
        "One task, one name, nobody else: for each cycle of acquire and release".into()
    }

    fn stores(&self) -> &'static [Store] {
        &Store::ALL
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Median, Metric::Allocations]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[
            Median,
            ClientCpu,
            ServerCpu,
            Requests,
            Calls,
            Bytes,
            Parks,
            Allocations,
            Allocated,
        ]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let mut contenders = subjects::all(server, plan.peers, &Cycles(plan.window())).await?;
        if plan.peers {
            let question = format!("cycles alone {}", plan.window().as_millis());
            contenders.extend(foreign::contenders(server, &question).await?);
        }
        Ok(contenders)
    }
}
