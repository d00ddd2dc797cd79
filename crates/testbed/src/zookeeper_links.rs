//! The connections between the members of an ensemble, led through proxies.
//!
//! Every member's `zoo.cfg` lists itself by the ports it really listens on and the others by proxies of its own, so each
//! proxy carries what one member sends to one port of one other, and a member is isolated by stopping the proxies that
//! begin or end there.
//!
//! One thing escapes that. Of two members, the one with the higher id makes the election connection; when the lower one
//! dials first, it only says where it listens, and is dialled back there. That address is replaced on the way by the
//! proxy that stands for it. Ports of the testbed all have five digits, so the length stays.

use crate::{error::Result, ports, proxy::Proxy};

/// Where a member listens for the others.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Followers dial their leader here.
    quorum: String,
    /// Everybody dials everybody here.
    election: String,
}

impl Peer {
    pub(crate) fn plan() -> Result<Self> {
        let [quorum, election] = ports::free()?;
        Ok(Self { quorum: format!("127.0.0.1:{quorum}"), election: format!("127.0.0.1:{election}") })
    }
}

/// What one member has in place of another.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    quorum: Proxy,
    election: Proxy,
}

/// The proxies between all members; none when the members talk directly.
#[derive(Debug)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    pub(crate) async fn between(peers: &[Peer]) -> Result<Self> {
        let mut links = Self::none();
        for from in 0..peers.len() {
            for (to, peer) in peers.iter().enumerate().filter(|(to, _)| *to != from) {
                let (quorum, election) = (Proxy::to(&*peer.quorum).await?, Proxy::to(&*peer.election).await?);
                links.0.push(Link { from, to, quorum, election });
            }
        }
        for link in &links.0 {
            if let Some(back) = links.link(link.to, link.from) {
                link.election.rewrite_requests(&peers[link.from].election, back.election.addr());
            }
        }
        Ok(links)
    }

    /// The proxies that begin or end at a member.
    pub(crate) fn of(&self, member: usize) -> impl Iterator<Item = &Proxy> {
        let links = self.0.iter().filter(move |link| link.from == member || link.to == member);
        links.flat_map(|link| [&link.quorum, &link.election])
    }

    /// The proxies by which a member dials its leader, whichever member that is.
    pub(crate) fn to_leader(&self, member: usize) -> impl Iterator<Item = &Proxy> {
        self.0.iter().filter(move |link| link.from == member).map(|link| &link.quorum)
    }

    /// The `server.N` lines of one member's `zoo.cfg`.
    pub(crate) fn view(&self, peers: &[Peer], member: usize) -> Vec<String> {
        let lines = peers.iter().enumerate().map(|(to, peer)| {
            let (quorum, election) = match self.link(member, to) {
                Some(link) => (link.quorum.addr(), link.election.addr()),
                None => (&*peer.quorum, &*peer.election),
            };
            let election = election.trim_start_matches("127.0.0.1:");
            format!("server.{}={quorum}:{election}", to + 1)
        });
        lines.collect()
    }

    fn link(&self, from: usize, to: usize) -> Option<&Link> {
        self.0.iter().find(|link| link.from == from && link.to == to)
    }
}
