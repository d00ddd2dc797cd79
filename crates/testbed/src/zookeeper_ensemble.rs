//! Several ZooKeeper servers that are one store.

use std::time::Duration;

use crate::{
    error::Result,
    ports, server,
    zookeeper::{ZooKeeper, ZooKeeperOptions},
    zookeeper_links::{Links, Peer},
};

const GLANCE: Duration = Duration::from_millis(10);

/// A private ZooKeeper ensemble. Its members are ordinary [`ZooKeeper`] servers: kill, pause or restart any of them.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    members: Vec<ZooKeeper>,
    links: Links,
}

impl ZooKeeper {
    /// Starts an ensemble of so many members and waits until all of them serve.
    pub async fn ensemble(members: usize) -> Result<ZooKeeperEnsemble> {
        Self::ensemble_with(members, &ZooKeeperOptions::default()).await
    }

    /// Starts an ensemble whose members share the options.
    pub async fn ensemble_with(members: usize, options: &ZooKeeperOptions) -> Result<ZooKeeperEnsemble> {
        let mut attempt = 1;
        loop {
            let ensemble = ZooKeeperEnsemble::launch(members, options).await?;
            match ensemble.until_ready().await {
                Err(error) if error.is_port_taken() && attempt < server::ATTEMPTS => attempt += 1,
                outcome => return outcome.map(|()| ensemble),
            }
        }
    }
}

impl ZooKeeperEnsemble {
    /// The members, in the order of their indices. The index is one less than the server's id.
    #[must_use]
    pub fn members(&self) -> &[ZooKeeper] {
        &self.members
    }

    /// The addresses of all members, as clients take them: `host:port,host:port,…`.
    #[must_use]
    pub fn connect_string(&self) -> String {
        let addrs: Vec<&str> = self.members.iter().map(|member| member.addr()).collect();
        addrs.join(",")
    }

    /// The index of the member that leads; waits until one says so.
    ///
    /// A leader that was isolated or paused can believe it for a while beside its successor: the answer is from the first
    /// that does.
    pub async fn leader(&self) -> usize {
        loop {
            for (index, member) in self.members.iter().enumerate() {
                let asked = tokio::time::timeout(Duration::from_millis(500), member.mode()).await;
                if matches!(asked, Ok(Ok(mode)) if mode == "leader") {
                    return index;
                }
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Silently stops everything between one member and the others, both ways. Clients still reach the member, and it goes
    /// on answering reads until it notices: [`ZooKeeperOptions::sync_limit`] ticks.
    ///
    /// Without [`ZooKeeperOptions::peer_proxies`] this does nothing and says so by returning `false`.
    pub fn isolate(&self, member: usize) -> bool {
        self.links.of(member).map(|link| link.hold()).count() > 0
    }

    /// Lets one member hear its leader so much later, so that it answers reads from the past. Without
    /// [`ZooKeeperOptions::peer_proxies`] this does nothing and says so by returning `false`.
    pub fn lag(&self, member: usize, by: Duration) -> bool {
        self.links.to_leader(member).map(|link| link.delay_replies(by)).count() > 0
    }

    /// Joins an isolated member to the others again. The connections of before are closed, and the members make new ones.
    pub async fn rejoin(&self, member: usize) {
        for link in self.links.of(member) {
            link.cut().await;
            link.heal().await;
        }
    }

    async fn launch(count: usize, options: &ZooKeeperOptions) -> Result<Self> {
        let peers: Vec<Peer> = (0..count).map(|_| Peer::plan()).collect::<Result<_>>()?;
        let links = if options.peer_proxies { Links::between(&peers).await? } else { Links::none() };
        let mut members = Vec::with_capacity(count);
        for index in 0..count {
            let [port] = ports::free()?;
            members.push(ZooKeeper::launch(options, port, Some((index + 1, &links.view(&peers, index))))?);
        }
        Ok(Self { members, links })
    }

    async fn until_ready(&self) -> Result<()> {
        for member in &self.members {
            member.until_ready().await?;
        }
        Ok(())
    }
}
