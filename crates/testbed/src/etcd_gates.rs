//! Gates in front of the members of an etcd cluster, which lead connections through proxies.
//!
//! All members of a cluster have to name each other by common addresses, so the address that is
//! dialled does not tell which member dials. A gate therefore stands behind each address. It reads
//! the asking member (`X-Server-From`, in raft's requests) and leads the connection through the
//! proxy between the two members. A request without a signature (probes, questions for a version)
//! goes straight to the member, and its connection ends with the answer, so that no signed request
//! can follow on it.

use std::{net::SocketAddr, net::TcpListener as StdListener, sync::Arc};

use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::{background, error::Result, links::Links, ports, proxy::Proxy};

/// The greatest length of a request head of etcd.
const HEAD: usize = 16 * 1024;

/// The ids with which the members sign, by index; empty until they are known.
type Signatures = Vec<String>;

/// Makes proxies between the members that listen at these addresses. Returns them, for each member
/// the address at which the others find it, and the sender of the members' signatures. When the
/// signatures are sent, old connections are closed.
pub(crate) async fn between(
    peers: &[SocketAddr],
) -> Result<(Links, Vec<SocketAddr>, watch::Sender<Signatures>)> {
    let mut links = Links::between(peers).await?;
    let signatures = watch::Sender::new(Signatures::new());
    let mut gates = Vec::new();
    for (to, &direct) in peers.iter().enumerate() {
        let mut routes = vec![direct; peers.len()];
        for (from, route) in routes.iter_mut().enumerate() {
            route.set_port(links.proxy(from, to).map_or(direct.port(), Proxy::port));
        }
        let (listener, addr) = ports::listen()?;
        let gate = Arc::new(Gate {
            routes,
            direct,
            signatures: signatures.subscribe(),
        });
        links.tasks.push(background::spawn(gate.accept(listener))?);
        gates.push(addr);
    }
    Ok((links, gates, signatures))
}

/// The gate at the address of one member.
#[derive(Debug)]
struct Gate {
    /// The address to which a connection of each member is led.
    routes: Vec<SocketAddr>,
    direct: SocketAddr,
    signatures: watch::Receiver<Signatures>,
}

impl Gate {
    async fn accept(self: Arc<Self>, listener: StdListener) {
        let Ok(listener) = TcpListener::from_std(listener) else {
            return;
        };
        let mut signatures = self.signatures.clone();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Ok(()) = signatures.changed() => connections.abort_all(),
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
        io::copy_bidirectional(&mut client, &mut server)
            .await
            .map(drop)
    }

    /// The address to which a request is led. An unsigned request becomes HTTP/1.0, which ends its
    /// connection with the answer.
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
    bytes
        .windows(text.len())
        .position(|window| window == text.as_bytes())
}
