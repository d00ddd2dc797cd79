//! The identity of an ensemble: the transaction and the time at which the node `.leasehold/store`
//! below the root was created. All servers of an ensemble have it, and it survives restarts and
//! changes of servers. A server that was set up anew has no such node, or another one.

use leasehold_core::{Result, StoreId};
use zookeeper_client::{CreateMode, Error as ZkError, Stat};

use crate::client::connection::Client;
use crate::client::request::mkdir;
use crate::config::Config;
use crate::error::Answer;
use crate::names;

impl Config {
    /// Fails if this connection leads to another ensemble than the known one. One request.
    pub(crate) async fn check_identity(&self, client: &Client) -> Result<()> {
        let node = client.check_stat(&names::store(&self.root)).await;
        match node.map_err(|e| self.reading(e))? {
            Some(stat) => self.identity.check(&store_id(&stat)),
            None if self.identity.id().is_none() => Ok(()),
            None => self.identity.check(&StoreId::of("zookeeper", "empty")),
        }
    }

    /// Learns the identity of the ensemble, and creates its node if this is the first use. A user
    /// without the right to create it leaves that to others.
    pub(crate) async fn learn_identity(&self, client: &Client) -> Answer<()> {
        let path = names::store(&self.root);
        loop {
            if let Some(stat) = client.check_stat(&path).await? {
                // The first one is kept, and this client has no other yet.
                let _ = self.identity.check(&store_id(&stat));
                return Ok(());
            }
            let options = self.create_options(CreateMode::Persistent);
            match client.create(&path, b"", &options).await {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(ZkError::NoNode) => mkdir(client, self, &names::sessions(&self.root)).await?,
                Err(ZkError::NoAuth) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }
}

fn store_id(stat: &Stat) -> StoreId {
    StoreId::of(
        "zookeeper",
        format_args!("{:x}.{:x}", stat.czxid, stat.ctime),
    )
}
