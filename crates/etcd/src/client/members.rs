//! The members of a cluster, beside the endpoints that the program names.

use etcd_client::{Client, GetOptions};
use leasehold_core::ErrorKind::Unavailable;
use leasehold_core::{Error, Result};

use crate::client::cluster::Cluster;
use crate::config::Config;
use crate::error::Failure;

impl Config {
    /// Whether the cluster is asked for its members, once, when the store connects: they are used beside the endpoints.
    ///
    /// They are reached where they say by `--advertise-client-urls`, over TLS if the endpoints are. As shipped that is `localhost`, where a
    /// server of another cluster may be: such a one is never used, and is [`Unavailable`]. Over plain text, whoever answers in the place
    /// of an endpoint names the others.
    #[must_use]
    pub fn discover(mut self, discover: bool) -> Config {
        self.discover = discover;
        self
    }

    /// The same with the members that the cluster names, if they are to be asked for. From then on no endpoint is used that belongs to
    /// another cluster: two clusters would both grant.
    pub(crate) async fn discovered(mut self) -> Result<Config> {
        if !self.discover {
            return Ok(self);
        }
        let cluster = Cluster::new(self.clone());
        Box::pin(cluster.connect()).await?;
        let asked = cluster.ask(self.timeout, |client| async move { client.cluster_client().member_list().await });
        let answer = asked.await.outcome.map_err(|failure| Error::from(failure.of_a_read()))?;
        self.cluster = answer.header().map(|header| header.cluster_id());
        let scheme = if self.endpoints.iter().all(|at| at.starts_with("https://")) { "https://" } else { "http://" };
        // Who has not started yet has no name and no address.
        for url in answer.members().iter().flat_map(|member| member.client_urls()) {
            let url = url.trim_end_matches('/');
            if url.starts_with(scheme) && !self.endpoints.iter().any(|known| known == url) {
                self.endpoints.push(url.to_owned());
            }
        }
        Ok(self)
    }

    /// Whether this client leads to the cluster that is known.
    pub(crate) async fn check_cluster(&self, client: &Client) -> Result<(), Failure> {
        let Some(known) = self.cluster else { return Ok(()) };
        // What every user of this store may read.
        let (key, count) = (format!("{}%session/0", self.root), GetOptions::new().with_count_only());
        let answer = client.kv_client().get(key, Some(count)).await?;
        match answer.header().map(|header| header.cluster_id()) {
            Some(id) if id != known => {
                let what = "it belongs to another etcd cluster: are the members' --advertise-client-urls right?";
                Err(Failure::new(Unavailable, what))
            }
            _ => Ok(()),
        }
    }
}
