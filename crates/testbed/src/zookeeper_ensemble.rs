//! Several ZooKeeper servers that are one store.
//!
//! Every member's `zoo.cfg` lists itself by the ports on which it really listens, and the others by
//! proxies of its own. Each proxy therefore carries the connections of one member to one port of
//! one other, and a member is isolated by stopping the proxies that begin or end there.
//!
//! One connection escapes that. The member with the higher id of two makes the election connection.
//! If the lower one dials first, it only tells the address at which it listens, and is dialled back
//! there. On the way that address is replaced by the one of the proxy that stands for it. Ports of
//! the testbed all have five digits, so the length stays.

use std::{net::SocketAddr, time::Duration};

use crate::{
    certificates::TlsPort,
    cluster::Cluster,
    error::Result,
    links::Links,
    ports,
    proxy::Proxy,
    server,
    zookeeper::{ZooKeeper, ZooKeeperOptions},
    zookeeper_java::Java,
};

/// A private ZooKeeper ensemble.
pub type ZooKeeperEnsemble = Cluster<ZooKeeper>;

impl ZooKeeper {
    /// Starts an ensemble of this many members and waits until all of them serve.
    pub async fn ensemble(members: usize) -> Result<ZooKeeperEnsemble> {
        Self::ensemble_with(members, &ZooKeeperOptions::default()).await
    }

    /// Starts an ensemble whose members share the options.
    pub async fn ensemble_with(
        members: usize,
        options: &ZooKeeperOptions,
    ) -> Result<ZooKeeperEnsemble> {
        server::started(|| ZooKeeperEnsemble::start(members, options)).await
    }
}

impl ZooKeeperEnsemble {
    /// The addresses of all members, for clients: `host:port,host:port,…`.
    #[must_use]
    pub fn connect_string(&self) -> String {
        let addrs: Vec<&str> = self.members().iter().map(|member| member.addr()).collect();
        addrs.join(",")
    }

    /// Lets one member hear its leader later by this time, so that its answers to reads are out of
    /// date. Without [`ZooKeeperOptions::peer_proxies`] this does nothing and returns `false`.
    pub fn lag(&self, member: usize, by: Duration) -> bool {
        let to_leader = self
            .links
            .first()
            .into_iter()
            .flat_map(|quorum| quorum.from(member));
        to_leader.map(|link| link.delay_replies(by)).count() > 0
    }

    async fn start(count: usize, options: &ZooKeeperOptions) -> Result<Self> {
        // Followers dial their leader at the first port; each member dials each other one at the
        // second.
        let ports = [addrs(count)?, addrs(count)?];
        let mut links = Vec::new();
        if options.peer_proxies {
            let [quorum, election] = [
                Links::between(&ports[0]).await?,
                Links::between(&ports[1]).await?,
            ];
            for (from, addr) in ports[1].iter().enumerate() {
                for to in 0..count {
                    if let (Some(link), Some(back)) =
                        (election.proxy(from, to), election.proxy(to, from))
                    {
                        link.rewrite_requests(addr.to_string(), back.addr());
                    }
                }
            }
            links = vec![quorum, election];
        }
        let java = Java::of_tests().await?;
        let mut members = Vec::with_capacity(count);
        for index in 0..count {
            let [port] = ports::free()?;
            let view: Vec<String> = (0..count)
                .map(|to| line(&links, &ports, index, to))
                .collect();
            let tls = options
                .tls
                .as_ref()
                .map(TlsPort::at_another_port)
                .transpose()?;
            let options = ZooKeeperOptions {
                tls,
                ..options.clone()
            };
            members.push(ZooKeeper::launch(
                &java,
                &options,
                port,
                Some((index + 1, &view)),
            )?);
        }
        let ensemble = Self::new(members, links);
        ensemble.until_ready().await.map(|()| ensemble)
    }
}

fn addrs(count: usize) -> Result<Vec<SocketAddr>> {
    (0..count)
        .map(|_| ports::free().map(|[port]| ports::addr(port)))
        .collect()
}

/// The line of one member's `zoo.cfg` about another.
fn line(links: &[Links], ports: &[Vec<SocketAddr>; 2], member: usize, to: usize) -> String {
    let dials = |nth: usize| {
        links
            .get(nth)
            .and_then(|links| links.proxy(member, to))
            .map_or(ports[nth][to].port(), Proxy::port)
    };
    format!("server.{}=127.0.0.1:{}:{}", to + 1, dials(0), dials(1))
}
