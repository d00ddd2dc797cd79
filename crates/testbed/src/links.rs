//! The connections between servers that are one store, led through proxies.

use std::net::SocketAddr;

use crate::{background::Task, error::Result, proxy::Proxy};

/// The connections from one member to another.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    proxy: Proxy,
}

/// A proxy from each member to each other one.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    /// Tasks that have to run as long as the proxies do.
    pub(crate) tasks: Vec<Task>,
}

impl Links {
    /// Makes proxies to the addresses at which the members listen for each other.
    pub(crate) async fn between(peers: &[SocketAddr]) -> Result<Self> {
        let mut links = Vec::new();
        for from in 0..peers.len() {
            for (to, peer) in peers.iter().enumerate().filter(|(to, _)| *to != from) {
                links.push(Link {
                    from,
                    to,
                    proxy: Proxy::to(peer.to_string()).await?,
                });
            }
        }
        Ok(Self {
            links,
            tasks: Vec::new(),
        })
    }

    pub(crate) fn proxy(&self, from: usize, to: usize) -> Option<&Proxy> {
        self.links
            .iter()
            .find(|link| link.from == from && link.to == to)
            .map(|link| &link.proxy)
    }

    /// The proxies of the connections that a member makes.
    pub(crate) fn from(&self, member: usize) -> impl Iterator<Item = &Proxy> {
        self.links
            .iter()
            .filter(move |link| link.from == member)
            .map(|link| &link.proxy)
    }

    /// The proxies that begin or end at a member.
    pub(crate) fn of(&self, member: usize) -> impl Iterator<Item = &Proxy> {
        self.from(member).chain(
            self.links
                .iter()
                .filter(move |link| link.to == member)
                .map(|link| &link.proxy),
        )
    }
}
