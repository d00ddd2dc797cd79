//! Tries that are refused: what it costs to hear that somebody else has it.

use std::sync::Arc;

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::{Result, Tries};
use crate::subjects::{
    CreateAndDelete, Ours, PutAndDelete, RAW_SENDS, SENDS, SetAndDelete, TokioMutex, Transactions,
    Updates,
};
#[cfg(feature = "peers")]
use crate::subjects::{DistributedLockRedis, PEER_SENDS};
use crate::work::refused;

const TASKS: usize = 64;

pub struct Refused;

fn tries<S: Tries>(label: &str, holder: S, client: S, plan: &Plan) -> Contender {
    let window = plan.window();
    Contender::new(label, move |meter| {
        refused(
            holder.clone(),
            client.clone(),
            "refused",
            TASKS,
            meter,
            window,
        )
    })
}

#[async_trait]
impl Row for Refused {
    fn name(&self) -> &'static str {
        "refused"
    }

    fn title(&self, _: &Plan) -> String {
        format!("{TASKS} tasks of one client that try to take what another has: for each try")
    }

    fn stores(&self) -> &'static [Store] {
        Store::SINGLE
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Time, Metric::Requests]
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
        let raw = match &**server {
            Server::Memory => {
                let mutex = TokioMutex::default();
                tries("tokio's Mutex", mutex.clone(), mutex, plan)
            }
            Server::File(_) => tries(
                "a transaction",
                Transactions::open(server)?,
                Transactions::open(server)?,
                plan,
            ),
            Server::Redis(_) => {
                let [holder, client] = [
                    SetAndDelete::connect(server).await?,
                    SetAndDelete::connect(server).await?,
                ];
                tries("SET NX", holder, client, plan).sends(RAW_SENDS)
            }
            Server::Etcd(_) => tries(
                "Txn",
                PutAndDelete::connect(server).await?,
                PutAndDelete::connect(server).await?,
                plan,
            ),
            Server::ZooKeeper(_) => tries(
                "create",
                CreateAndDelete::connect(server).await?,
                CreateAndDelete::connect(server).await?,
                plan,
            ),
            Server::Postgres(_) => tries(
                "UPDATE",
                Updates::connect(server).await?,
                Updates::connect(server).await?,
                plan,
            ),
        };
        let holder = Ours::plain(server).await?;
        let client = match &**server {
            // Each client has its own.
            Server::Memory => holder.clone(),
            _ => Ours::plain(server).await?,
        };
        let ours = tries("leasehold", holder, client, plan).sends(SENDS);
        #[allow(unused_mut, reason = "without the feature there is nothing to add")]
        let mut contenders = vec![raw, ours];
        #[cfg(feature = "peers")]
        if let (true, Server::Redis(_)) = (plan.peers, &**server) {
            let [holder, client] = [
                DistributedLockRedis::connect(server).await?,
                DistributedLockRedis::connect(server).await?,
            ];
            contenders
                .push(tries("distributed-lock-redis", holder, client, plan).sends(PEER_SENDS));
        }
        Ok(contenders)
    }
}
