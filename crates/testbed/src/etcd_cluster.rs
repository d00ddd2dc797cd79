//! Several etcd servers that are one store.

use std::net::SocketAddr;

use crate::{
    cluster::Cluster,
    error::Result,
    etcd::{Etcd, EtcdOptions, Member},
    etcd_gates, server,
};

/// A private etcd cluster.
pub type EtcdCluster = Cluster<Etcd>;

impl Etcd {
    /// Starts a cluster of this many members and waits until all of them see a leader.
    pub async fn cluster(members: usize) -> Result<EtcdCluster> {
        Self::cluster_with(members, &EtcdOptions::default()).await
    }

    /// Starts a cluster whose members share the options.
    pub async fn cluster_with(members: usize, options: &EtcdOptions) -> Result<EtcdCluster> {
        server::started(|| EtcdCluster::start(members, options)).await
    }
}

impl EtcdCluster {
    /// The URLs of all members, for clients.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.members().iter().map(Etcd::url).collect()
    }

    async fn start(count: usize, options: &EtcdOptions) -> Result<Self> {
        let mut plan: Vec<Member> = (0..count).map(|_| Member::plan()).collect::<Result<_>>()?;
        if let Some(tls) = &options.tls {
            for member in &mut plan {
                member.tls = Some(tls.at_another_port()?);
            }
        }
        let launch = |plan: &[Member]| {
            plan.iter()
                .map(|member| member.launch(plan, options))
                .collect::<Result<_>>()
        };
        if !options.peer_proxies {
            let cluster = Self::new(launch(&plan)?, Vec::new());
            return cluster.until_ready().await.map(|()| cluster);
        }
        let peers: Vec<SocketAddr> = plan.iter().map(|member| member.peer).collect();
        let (links, gates, signatures) = etcd_gates::between(&peers).await?;
        for (member, gate) in plan.iter_mut().zip(gates) {
            member.advertised = gate;
        }
        let cluster = Self::new(launch(&plan)?, vec![links]);
        cluster.until_ready().await?;
        let mut signed = Vec::with_capacity(count);
        for member in cluster.members() {
            signed.push(member.signature().await?);
        }
        // Old connections are closed, and the members make new ones.
        signatures.send_replace(signed);
        cluster.until_ready().await.map(|()| cluster)
    }
}
