//! The identity of an ensemble: the transaction and the time at which the node `.leasehold` below the
//! root was created. All servers of an ensemble have it, and it survives restarts and changes of
//! servers. A server that was set up anew has no such node, or another one.

use leasehold_core::{Result, StoreId};
use zookeeper_client::Stat;

use crate::client::connection::Client;
use crate::config::Config;
use crate::names;

impl Config {
    /// Fails if this connection leads to another ensemble than the known one. One request.
    ///
    /// Before the store was ever used there is no such node, and nothing to compare.
    pub(crate) async fn check_identity(&self, client: &Client) -> Result<()> {
        let node = client.check_stat(&names::sessions(&self.root)).await;
        match node.map_err(|e| self.reading(e))? {
            Some(stat) => self.identity.check(&store_id(&stat)),
            None if self.identity.id().is_none() => Ok(()),
            None => self.identity.check(&StoreId::of("zookeeper", "empty")),
        }
    }
}

fn store_id(stat: &Stat) -> StoreId {
    StoreId::of(
        "zookeeper",
        format_args!("{:x}.{:x}", stat.czxid, stat.ctime),
    )
}
