//! The servers of the URL, and the way to any other node: it has their credentials, at its own address.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Host;
use redis::{Cmd, ConnectionAddr, Value, pipe};

use crate::link::cluster::slots::{SlotMap, read};
use crate::link::connection::Connection;
use crate::link::error::junk;
use crate::link::inbox::Inbox;
use crate::link::server::Server;

/// Maps the address by which the Cluster calls a node to the one by which this client reaches it.
#[derive(Clone)]
pub(crate) struct AddressMap(Arc<dyn Fn(&Host) -> Host + Send + Sync>);

impl AddressMap {
    /// Maps addresses by this function.
    pub(crate) fn new(at: impl Fn(&Host) -> Host + Send + Sync + 'static) -> AddressMap {
        AddressMap(Arc::new(at))
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressMap")
    }
}

/// The servers of the URL.
pub(super) struct Seeds {
    /// The first one, whose credentials all nodes have.
    first: Server,
    each: Vec<(Host, Server)>,
    pub(super) timeout: Duration,
    reach: Option<AddressMap>,
}

impl Seeds {
    pub(super) fn new(
        servers: Vec<Server>,
        timeout: Duration,
        reach: Option<AddressMap>,
    ) -> Result<Seeds> {
        let host = |server: &Server| match server.info.addr() {
            ConnectionAddr::Tcp(name, port) => Some(Host {
                name: name.clone(),
                port: *port,
            }),
            _ => None,
        };
        let first = servers.first().cloned();
        let seeds = servers.into_iter();
        let each: Vec<_> = seeds
            .filter_map(|server| Some((host(&server)?, server)))
            .collect();
        match first {
            Some(first) if !each.is_empty() => Ok(Seeds {
                first,
                each,
                timeout,
                reach,
            }),
            _ => {
                let what = "a Redis Cluster is named by the host and the port of some of its nodes";
                Err(Error::new(ErrorKind::Invalid, what))
            }
        }
    }

    /// The servers of the URL, each with the address that it has there.
    pub(super) fn each(&self) -> impl ExactSizeIterator<Item = (Host, Server)> {
        self.each.iter().cloned()
    }

    /// The name of the Cluster for people: the first of its addresses in the URL.
    pub(super) fn name(&self) -> String {
        self.first.info.addr().to_string()
    }

    /// The node that the Cluster calls by this address.
    pub(super) fn server(&self, host: &Host) -> Server {
        let Host { name, port } = self
            .reach
            .as_ref()
            .map_or_else(|| host.clone(), |reach| reach.0(host));
        let mut server = self.first.clone();
        server.info = server.info.set_addr(ConnectionAddr::Tcp(name, port));
        server
    }

    /// Connects to a server for one question.
    pub(super) async fn open(&self, server: Server) -> Result<Connection> {
        let inbox = Inbox::new(false);
        let connection = Connection::new(server, self.timeout, Duration::ZERO, &inbox)?;
        connection.connect().await?;
        Ok(connection)
    }

    /// Asks a server for the map that it knows.
    pub(super) async fn map_of(&self, host: &Host, server: Server) -> Result<SlotMap> {
        map_over(&self.open(server).await?, host).await
    }
}

/// Asks one question.
pub(super) async fn ask(connection: &Connection, question: Cmd) -> Result<Value> {
    let mut request = pipe();
    request.add_command(question);
    let answer = connection.send(&request).await?.pop();
    connection.refusal(answer.ok_or_else(|| junk("an answer"))?)
}

/// Asks this node for the map that it knows. A node that belongs to no Cluster, not yet or not any
/// more, knows of no slot.
pub(super) async fn map_over(connection: &Connection, host: &Host) -> Result<SlotMap> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let map = read(&ask(connection, question).await?, host)?;
    if map.ranges.is_empty() {
        let what = format!(
            "{host}: no slot of this Redis Cluster is served: create it (redis-cli --cluster create)"
        );
        return Err(Error::new(ErrorKind::Unavailable, what));
    }
    Ok(map)
}
