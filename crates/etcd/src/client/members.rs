//! The members of a cluster, beside the endpoints that the program names.

use etcd_client::{Client, Error as ClientError, GetOptions};
use leasehold_core::ErrorKind::Unsupported;
use leasehold_core::{Error, Result};

use crate::client::cluster::Cluster;
use crate::client::identity::Answered;
use crate::config::Config;
use crate::error::Failure;

impl Config {
    /// If `true`, the store asks the cluster for its members, once, when it connects, and uses them
    /// beside the endpoints.
    ///
    /// They are reached at their `--advertise-client-urls`, over TLS if the endpoints are. The
    /// default of that is `localhost`, where a server of another cluster may run: such a server is
    /// never used, like any other of another store. Over plain text, anyone who answers in the place of an
    /// endpoint can name the other members.
    #[must_use]
    pub fn discover(mut self, discover: bool) -> Config {
        self.discover = discover;
        self
    }

    /// Returns the configuration with the members that the cluster names, if they are to be asked
    /// for.
    pub(crate) async fn discovered(mut self) -> Result<Config> {
        if !self.discover {
            return Ok(self);
        }
        let cluster = Cluster::new(self.clone());
        Box::pin(cluster.connect()).await?;
        let asked = cluster.ask(self.timeout, |client| async move {
            client.cluster_client().member_list().await
        });
        let answer = asked
            .await
            .outcome
            .map_err(|failure| Error::from(failure.of_a_read()))?;
        self.discovered = cluster.identity.id();
        let scheme = if self.endpoints.iter().all(|at| at.starts_with("https://")) {
            "https://"
        } else {
            "http://"
        };
        // A member that has not started yet has no name and no address.
        for url in answer
            .members()
            .iter()
            .flat_map(|member| member.client_urls())
        {
            let url = url.trim_end_matches('/');
            if url.starts_with(scheme) && !self.endpoints.iter().any(|known| known == url) {
                self.endpoints.push(url.to_owned());
            }
        }
        Ok(self)
    }

    /// Fails if this client leads to an `etcd grpc-proxy` and not to a member.
    ///
    /// A proxy renews leases by itself, a third of their TTL after the latest renewal, and answers
    /// keep-alives with the answer that it got then. Its answers come late and prove nothing, and
    /// it would keep the lease of a client that stands still. It names itself in place of the
    /// members, without their ids (unless it is started with an empty `--advertise-client-url`).
    pub(crate) async fn check_member(&self, client: &Client) -> Result<(), Failure> {
        if self.is_simulated() {
            return Ok(());
        }
        // A user without the right to ask, and a server that does not know the question, are judged
        // by other requests.
        let Ok(answer) = client.cluster_client().member_list().await else {
            return Ok(());
        };
        let members = answer.members();
        if members.is_empty() || members.iter().any(|member| member.id() != 0) {
            return Ok(());
        }
        let what = "this is an etcd grpc-proxy, which answers renewals from what it heard before, so no hold could be proved to live: \
                    give the addresses of the members themselves";
        Err(Failure::new(Unsupported, what))
    }

    /// A cheap read, which every user of this store may do. Returns the id of the cluster.
    pub(crate) async fn probe(&self, client: Client) -> Result<u64, ClientError> {
        let key = format!("{}%session/0", self.root);
        let count = GetOptions::new().with_count_only();
        let answer = client.kv_client().get(key, Some(count)).await?;
        Ok(answer.cluster_id())
    }
}
