//! The connections between the members of an etcd cluster, led through proxies.
//!
//! All members of a cluster must name each other by the same addresses, so a member's address cannot tell who dials it.
//! Behind each address therefore stands a gate: it reads who asks (`X-Server-From`, which raft's requests carry) and leads
//! the connection through the proxy between those two. What nobody signs (probes, questions for a version) goes straight
//! through, and its connection ends with the answer, so that no signed request can follow on it.

use std::{net::SocketAddr, net::TcpListener as StdListener, sync::Arc};

use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinSet},
};

use crate::{background, error::Result, ports, proxy::Proxy};

/// No request head of etcd's is longer.
const HEAD: usize = 16 * 1024;

/// What one member sends to another.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    proxy: Proxy,
}

/// The proxies between all members; none when the members talk directly.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: Vec<Link>,
    gates: Vec<AbortHandle>,
    addrs: Vec<SocketAddr>,
    /// How the members sign, by index; empty until they have told.
    signatures: watch::Sender<Vec<String>>,
}

impl Links {
    /// Gates and proxies in front of the addresses where the members listen for each other.
    pub(crate) async fn between(peers: &[SocketAddr]) -> Result<Self> {
        let mut links = Self::default();
        for (to, &peer) in peers.iter().enumerate() {
            let mut routes = vec![peer; peers.len()];
            for from in (0..peers.len()).filter(|from| *from != to) {
                let proxy = Proxy::to(peer.to_string()).await?;
                routes[from].set_port(proxy.port());
                links.links.push(Link { from, to, proxy });
            }
            let (listener, addr) = ports::listen()?;
            let gate = Arc::new(Gate { routes, direct: peer, signatures: links.signatures.subscribe() });
            links.gates.push(background::handle()?.spawn(gate.accept(listener)).abort_handle());
            links.addrs.push(addr);
        }
        Ok(links)
    }

    /// Where a member is found by the others, when that is not where it listens.
    pub(crate) fn advertised(&self, member: usize) -> Option<SocketAddr> {
        self.addrs.get(member).copied()
    }

    /// Learns how the members sign. Connections of before are closed, and the members make new ones.
    pub(crate) fn learn(&self, signatures: Vec<String>) {
        self.signatures.send_replace(signatures);
    }

    /// The proxies that begin or end at a member.
    pub(crate) fn of(&self, member: usize) -> impl Iterator<Item = &Proxy> {
        let links = self.links.iter().filter(move |link| link.from == member || link.to == member);
        links.map(|link| &link.proxy)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.gates.iter().for_each(AbortHandle::abort);
    }
}

/// The address of one member.
#[derive(Debug)]
struct Gate {
    /// Where what comes from each member goes.
    routes: Vec<SocketAddr>,
    direct: SocketAddr,
    signatures: watch::Receiver<Vec<String>>,
}

impl Gate {
    async fn accept(self: Arc<Self>, listener: StdListener) {
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        let mut signatures = self.signatures.clone();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                changed = signatures.changed() => match changed {
                    Ok(()) => connections.abort_all(),
                    Err(_) => return,
                },
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => {
                    if let Ok((client, _)) = accepted {
                        connections.spawn(Arc::clone(&self).carry(client));
                    }
                }
            }
        }
    }

    async fn carry(self: Arc<Self>, mut client: TcpStream) -> io::Result<()> {
        let mut head = Vec::new();
        while head.len() < HEAD && !contains(&head, "\r\n\r\n") {
            if client.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let mut server = TcpStream::connect(self.way(&mut head)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        server.write_all(&head).await?;
        io::copy_bidirectional(&mut client, &mut server).await.map(drop)
    }

    /// Where a request goes. An unsigned one becomes HTTP/1.0, which ends its connection with the answer.
    fn way(&self, head: &mut [u8]) -> SocketAddr {
        let signatures = self.signatures.borrow();
        let signed = |id: &String| contains(head, &format!("\r\nX-Server-From: {id}\r\n"));
        if let Some(from) = signatures.iter().position(signed) {
            return self.routes[from];
        }
        if !contains(head, "\r\nX-Server-From: ")
            && let Some(version) = position(head, " HTTP/1.1\r\n")
        {
            head[version + " HTTP/1.".len()] = b'0';
        }
        self.direct
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    position(bytes, text).is_some()
}

fn position(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text.as_bytes())
}
