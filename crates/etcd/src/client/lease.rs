//! Leases that are not renewed: for keys that end by themselves, whatever becomes of their client.

use etcd_client::{Client, LeaseGrantOptions};
use leasehold_core::ErrorKind::Lost;

use crate::client::cluster::Cluster;
use crate::client::keep_alive::KeepAlives;
use crate::error::{Failure, is_lease_there};

impl Cluster {
    /// Gets a lease with this number, for so many seconds. The caller has chosen a number that
    /// nobody else uses, so a lease whose grant was not answered can be ended.
    pub(crate) async fn grant(&self, lease: i64, seconds: u64) -> Result<(), Failure> {
        let request = |client: Client| async move {
            let options = LeaseGrantOptions::new().with_id(lease);
            let seconds = seconds.cast_signed();
            match client.lease_client().grant(seconds, Some(options)).await {
                Ok(granted) => Ok(((), granted.header().map_or(0, |header| header.cluster_id()))),
                // An attempt before it was carried out.
                Err(error) if is_lease_there(&error) => Ok(((), 0)),
                Err(error) => Err(error),
            }
        };
        self.ask(self.config.timeout, request)
            .await
            .outcome
            .map(|_| ())
    }

    /// Begins the time of the lease anew.
    pub(crate) async fn begin_anew(&self, lease: i64) -> Result<(), Failure> {
        let request = |client: Client| async move {
            let mut stream = KeepAlives::open(&client, 0, None, lease).await?;
            stream.send().await
        };
        self.ask(self.config.timeout, request)
            .await
            .outcome
            .map(|_| ())
    }

    /// Ends the lease and all keys under it, unless it has ended.
    pub(crate) async fn end_lease(&self, lease: i64) -> Result<(), Failure> {
        let request = |client: Client| async move { client.lease_client().revoke(lease).await };
        match self.ask(self.config.timeout, request).await.outcome {
            Err(failure) if failure.kind != Lost => Err(failure),
            _ => Ok(()),
        }
    }
}
