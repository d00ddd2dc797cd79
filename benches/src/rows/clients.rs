//! More and more clients on one lock: what a hand-over costs, and how that grows.

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

pub struct Clients;

#[async_trait]
impl Row for Clients {
    fn name(&self) -> &'static str {
        "clients"
    }

    fn title(&self, _: &Plan) -> String {
        "Clients of one task each on one fair lock, with nothing to do in it: for each hand-over"
            .into()
    }

    fn stores(&self) -> &'static [Store] {
        Store::SHARED
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Time, Metric::Bytes]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[Time, ClientCpu, ServerCpu, Requests, Calls, Bytes]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let (mut clients, mut contenders) = (Vec::new(), Vec::new());
        // A client of PostgreSQL is three processes of the server.
        let most = if matches!(**server, Server::Postgres(_)) {
            100
        } else {
            usize::MAX
        };
        for &crowd in plan.clients().iter().filter(|crowd| **crowd <= most) {
            while clients.len() < crowd {
                clients.push(Ours::fair(server).await?);
            }
            let (own, window): (Arc<[Ours]>, _) = (clients.as_slice().into(), plan.window());
            // A name of its own: a client may go on watching one for which it has waited.
            let name: Arc<str> = format!("{crowd} clients").into();
            let label = name.to_string();
            let work = move |meter| {
                let (own, name) = (own.clone(), name.clone());
                async move { contended(own, &name, crowd, Duration::ZERO, meter, window).await }
            };
            contenders.push(Contender::new(label, work).sends(SENDS).size(crowd));
        }
        Ok(contenders)
    }
}
