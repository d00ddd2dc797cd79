//! Several etcd servers that are one store.

use std::{net::SocketAddr, time::Duration};

use crate::{
    error::Result,
    etcd::{Etcd, EtcdOptions, Member},
    etcd_links::Links,
    server,
};

const GLANCE: Duration = Duration::from_millis(10);

/// A private etcd cluster. Its members are ordinary [`Etcd`] servers: kill, pause or restart (with data) any of them.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Etcd>,
    links: Links,
}

impl Etcd {
    /// Starts a cluster of so many members and waits until all of them see a leader.
    pub async fn cluster(members: usize) -> Result<EtcdCluster> {
        Self::cluster_with(members, &EtcdOptions::default()).await
    }

    /// Starts a cluster whose members share the options.
    pub async fn cluster_with(members: usize, options: &EtcdOptions) -> Result<EtcdCluster> {
        let mut attempt = 1;
        loop {
            let cluster = EtcdCluster::launch(members, options).await?;
            match cluster.until_ready().await {
                Err(error) if error.is_port_taken() && attempt < server::ATTEMPTS => attempt += 1,
                outcome => return outcome.map(|()| cluster),
            }
        }
    }
}

impl EtcdCluster {
    /// The members, in the order of their indices.
    #[must_use]
    pub fn members(&self) -> &[Etcd] {
        &self.members
    }

    /// The URLs of all members, as clients take them.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.members.iter().map(Etcd::url).collect()
    }

    /// The index of the member that leads; waits until one says so.
    ///
    /// A paused or cut-off member says nothing, and two can believe it for a moment while leadership changes: the answer
    /// is from the first that does.
    pub async fn leader(&self) -> usize {
        loop {
            for (index, member) in self.members.iter().enumerate() {
                let asked = tokio::time::timeout(Duration::from_millis(500), member.is_leader()).await;
                if matches!(asked, Ok(Ok(true))) {
                    return index;
                }
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Silently stops everything between one member and the others, both ways. Clients still reach the member.
    ///
    /// Without [`EtcdOptions::peer_proxies`] this does nothing and says so by returning `false`.
    pub fn isolate(&self, member: usize) -> bool {
        self.links.of(member).map(|link| link.hold()).count() > 0
    }

    /// Joins an isolated member to the others again. The connections of before are closed, and the members make new ones.
    pub async fn rejoin(&self, member: usize) {
        for link in self.links.of(member) {
            link.cut().await;
            link.heal().await;
        }
    }

    async fn launch(count: usize, options: &EtcdOptions) -> Result<Self> {
        let mut plan: Vec<Member> = (0..count).map(|_| Member::plan()).collect::<Result<_>>()?;
        let mut links = Links::default();
        if options.peer_proxies {
            let peers: Vec<SocketAddr> = plan.iter().map(|member| member.peer).collect();
            links = Links::between(&peers).await?;
        }
        for (index, member) in plan.iter_mut().enumerate() {
            member.advertised = links.advertised(index).unwrap_or(member.peer);
        }
        let members = plan.iter().map(|member| member.launch(&plan, options)).collect::<Result<_>>()?;
        Ok(Self { members, links })
    }

    async fn until_ready(&self) -> Result<()> {
        self.all_ready().await?;
        let mut signatures = Vec::with_capacity(self.members.len());
        for member in &self.members {
            signatures.push(member.signature().await?);
        }
        self.links.learn(signatures);
        self.all_ready().await
    }

    async fn all_ready(&self) -> Result<()> {
        for member in &self.members {
            member.until_ready().await?;
        }
        Ok(())
    }
}
