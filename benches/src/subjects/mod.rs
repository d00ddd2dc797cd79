//! Those that are compared, by what they talk to. The raw ones send what a lock cannot do without, and do nothing else.

mod etcd;
mod memory;
mod ours;
#[cfg(feature = "peers")]
mod peers;
mod postgres;
mod redis;
mod sqlite;
mod zookeeper;

pub use etcd::{LockService, PutAndDelete};
pub use memory::TokioMutex;
pub use ours::{Ours, SENDS};
#[cfg(feature = "peers")]
pub use peers::{DistributedLockRedis, Rslock, SENDS as PEER_SENDS};
pub use postgres::Updates;
pub use redis::{EmptyScripts, Ping, SENDS as RAW_SENDS, SetAndDelete};
pub use sqlite::{Flock, Transactions};
pub use zookeeper::{ClientLock, CreateAndDelete};

use crate::rounds::Contender;
use crate::servers::Server;
use crate::subject::{Result, Subject};

/// What each subject of a store is made to do.
pub trait Workload {
    fn of<S: Subject>(&self, label: &str, subject: S) -> Contender;
}

/// One client of each subject of this store; the raw commands are first.
pub async fn all(server: &Server, peers: bool, work: &impl Workload) -> Result<Vec<Contender>> {
    let ours = Ours::plain(server).await?;
    let mut contenders = match server {
        Server::Memory => vec![work.of("tokio's Mutex", TokioMutex::default())],
        Server::File(_) => vec![work.of("two transactions", Transactions::open(server)?)],
        Server::Redis(_) => vec![
            work.of("SET, EVALSHA", SetAndDelete::connect(server).await?)
                .sends(RAW_SENDS),
        ],
        Server::Etcd(_) => vec![work.of("Txn, DeleteRange", PutAndDelete::connect(server).await?)],
        Server::ZooKeeper(_) => {
            vec![work.of("create, delete", CreateAndDelete::connect(server).await?)]
        }
        Server::Postgres(_) => vec![work.of("two UPDATEs", Updates::connect(server).await?)],
    };
    contenders.push(work.of("leasehold", ours).sends(SENDS));
    match server {
        Server::File(_) => contenders.push(work.of("flock", Flock::open(server)?)),
        Server::Redis(nodes) if nodes.len() == 1 => {
            contenders.push(
                work.of("two empty scripts", EmptyScripts::connect(server).await?)
                    .sends(RAW_SENDS),
            );
        }
        _ => {}
    }
    if peers {
        match server {
            #[cfg(feature = "peers")]
            Server::Redis(_) => {
                contenders.push(work.of("rslock", Rslock::new(server)?).sends(PEER_SENDS));
                let other = DistributedLockRedis::connect(server).await?;
                contenders.push(work.of("distributed-lock-redis", other).sends(PEER_SENDS));
            }
            Server::Etcd(_) => {
                contenders.push(work.of("Lock RPC", LockService::connect(server).await?))
            }
            Server::ZooKeeper(_) => {
                contenders.push(work.of("zookeeper-client", ClientLock::connect(server).await?))
            }
            _ => {}
        }
    }
    Ok(contenders)
}
