//! `fast` in several processes: whether it is still fast, and whether each gets its share.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::Result;
#[cfg(feature = "peers")]
use crate::subjects::PEER_SENDS;
use crate::subjects::SENDS;
use crate::work::share;
use crate::worker;

const PROCESSES: usize = 4;
/// Of each.
const TASKS: usize = 16;

pub struct Processes;

async fn crowd(subject: &str, server: &Server, plan: &Plan) -> Result<Contender> {
    let mut drivers = Vec::new();
    for _ in 0..PROCESSES {
        drivers.push(worker::start(subject, &server.url()).await?);
    }
    let question: Arc<str> = format!(
        "turns processes {TASKS} 0 {}",
        plan.window().as_millis() * 3
    )
    .into();
    let drivers = Arc::new(Mutex::new(drivers));
    Ok(Contender::new(subject, move |meter| {
        let (drivers, question) = (drivers.clone(), question.clone());
        async move { share(&mut drivers.lock().await, &question, meter).await }
    }))
}

#[async_trait]
impl Row for Processes {
    fn name(&self) -> &'static str {
        "processes"
    }

    fn title(&self, _: &Plan) -> String {
        format!(
            "{PROCESSES} processes of {TASKS} tasks each on one lock, with nothing to do in it: for each turn"
        )
    }

    fn stores(&self) -> &'static [Store] {
        Store::SHARED
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Time, Metric::Turn, Metric::LeastShare]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[
            Time,
            Turn,
            LeastShare,
            Jain,
            LongestWait,
            ClientCpu,
            ServerCpu,
            Requests,
        ]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let mut contenders = Vec::new();
        #[cfg(feature = "peers")]
        if let (true, Server::Redis(_)) = (plan.peers, &**server) {
            contenders.push(crowd(worker::RSLOCK, server, plan).await?.sends(PEER_SENDS));
        }
        contenders.push(crowd(worker::FAST, server, plan).await?.sends(SENDS));
        Ok(contenders)
    }
}
