//! `fast`: tasks of one client that pass a lock among themselves.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::{Result, Subject};
use crate::subjects::{Ours, SENDS};
#[cfg(feature = "peers")]
use crate::subjects::{PEER_SENDS, Rslock};
use crate::work::contended;

const TASKS: usize = 64;

pub struct Fast;

fn crowd<S: Subject>(label: &str, subject: S, plan: &Plan) -> Contender {
    let (client, window): (Arc<[S]>, _) = ([subject].into(), plan.window());
    Contender::new(label, move |meter| {
        contended(client.clone(), "fast", TASKS, Duration::ZERO, meter, window)
    })
}

#[async_trait]
impl Row for Fast {
    fn name(&self) -> &'static str {
        "fast"
    }

    fn title(&self, _: &Plan) -> String {
        format!("{TASKS} tasks of one client on one lock, with nothing to do in it: for each turn")
    }

    fn stores(&self) -> &'static [Store] {
        Store::SINGLE
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Time, Metric::Turn]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[
            Time,
            Turn,
            ClientCpu,
            ServerCpu,
            Requests,
            Allocations,
            Jain,
            LongestWait,
        ]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let mut contenders = Vec::new();
        #[cfg(feature = "peers")]
        if let (true, Server::Redis(_)) = (plan.peers, &**server) {
            contenders.push(crowd("rslock", Rslock::new(server)?, plan).sends(PEER_SENDS));
        }
        contenders.push(crowd("leasehold, fair", Ours::fair(server).await?, plan).sends(SENDS));
        contenders.push(crowd("leasehold, fast", Ours::fast(server).await?, plan).sends(SENDS));
        Ok(contenders)
    }
}
