//! The time between two holders when many wait, and what the hand-over costs.

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
use crate::subjects::{
    ClientLock, CreateAndDelete, LockService, Ours, Ping, PutAndDelete, RAW_SENDS, SENDS, Updates,
};
#[cfg(feature = "peers")]
use crate::subjects::{PEER_SENDS, Rslock};
use crate::work::{contended, releases};

/// So many clients, of one task each.
const CLIENTS: usize = 64;
/// For how long each of them holds it.
const SECTION: Duration = Duration::from_millis(5);

pub struct Gap;

impl Gap {
    fn release<S: Subject>(label: &str, subject: S, section: Duration, plan: &Plan) -> Contender {
        let window = plan.window();
        Contender::new(label, move |meter| {
            releases(subject.clone(), section, meter, window)
        })
        .sends(RAW_SENDS)
    }

    fn line<S: Subject>(label: &str, clients: Vec<S>, plan: &Plan) -> Contender {
        let (clients, window): (Arc<[S]>, _) = (clients.into(), plan.window() * 3);
        Contender::new(label, move |meter| {
            contended(clients.clone(), "gap", CLIENTS, SECTION, meter, window)
        })
    }
}

#[async_trait]
impl Row for Gap {
    fn name(&self) -> &'static str {
        "gap"
    }

    fn title(&self, _: &Plan) -> String {
        format!(
            "{CLIENTS} clients that hold one lock for {SECTION:?} each, in turn: for each hand-over"
        )
    }

    fn stores(&self) -> &'static [Store] {
        Store::SERVED
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Gap, Metric::Requests]
    }

    fn shows(&self) -> &'static [Metric] {
        use Metric::*;
        &[
            Gap,
            Requests,
            Calls,
            Bytes,
            ServerCpu,
            ClientCpu,
            Jain,
            LongestWait,
        ]
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let mut contenders = Vec::new();
        match &**server {
            Server::Redis(_) => {
                let raw = Ping::connect(server).await?;
                contenders.push(Gap::release("cold PING", raw.clone(), SECTION, plan));
                contenders.push(Gap::release("PING", raw, Duration::ZERO, plan));
            }
            Server::Etcd(_) => {
                let raw = PutAndDelete::connect(server).await?;
                contenders.push(Gap::release(
                    "DeleteRange",
                    raw.clone(),
                    Duration::ZERO,
                    plan,
                ));
                contenders.push(Gap::release("cold DeleteRange", raw, SECTION, plan));
            }
            Server::Postgres(_) => {
                let raw = Updates::connect(server).await?;
                contenders.push(Gap::release("UPDATE", raw.clone(), Duration::ZERO, plan));
                contenders.push(Gap::release("cold UPDATE", raw, SECTION, plan));
            }
            _ => {
                let raw = CreateAndDelete::connect(server).await?;
                contenders.push(Gap::release("delete", raw.clone(), Duration::ZERO, plan));
                contenders.push(Gap::release("cold delete", raw, SECTION, plan));
            }
        }
        let mut ours = Vec::new();
        for _ in 0..CLIENTS {
            ours.push(Ours::fair(server).await?);
        }
        contenders.push(Gap::line("leasehold", ours, plan).sends(SENDS));
        if plan.peers && !matches!(**server, Server::Postgres(_)) {
            contenders.push(peer(server, plan).await?);
            let (section, window) = (SECTION.as_micros(), (plan.window() * 3).as_millis());
            let question = format!("turns gap {CLIENTS} {section} {window}");
            contenders.extend(foreign::contenders(server, &question).await?);
        }
        Ok(contenders)
    }
}

async fn peer(server: &Server, plan: &Plan) -> Result<Contender> {
    Ok(match server {
        #[cfg(feature = "peers")]
        Server::Redis(_) => {
            let clients = (0..CLIENTS)
                .map(|_| Rslock::new(server))
                .collect::<Result<_>>()?;
            Gap::line("rslock", clients, plan).sends(PEER_SENDS)
        }
        Server::Etcd(_) => {
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                clients.push(LockService::connect(server).await?);
            }
            Gap::line("Lock RPC", clients, plan)
        }
        _ => {
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                clients.push(ClientLock::connect(server).await?);
            }
            Gap::line("zookeeper-client", clients, plan)
        }
    })
}
