//! Private Redis Clusters: primaries with slots, their replicas, and slots that move.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    certificates::TlsPort,
    error::{Error, Result},
    ports,
    redis::{Redis, RedisOptions},
    resp::Reply,
};

const GLANCE: Duration = Duration::from_millis(20);
/// The time within which nodes have to agree: on a busy machine gossip takes seconds.
const AGREED_WITHIN: Duration = Duration::from_secs(60);
/// The time within which a node that is not paused answers.
const PATIENCE: Duration = Duration::from_secs(1);
const SLOTS: usize = 16_384;

/// The options of a private Redis Cluster.
#[derive(Clone, Debug)]
pub struct RedisClusterOptions {
    /// The number of nodes with slots.
    pub primaries: usize,
    /// The number of replicas of each of them.
    pub replicas: usize,
    /// The time after which a silent node counts as dead.
    pub node_timeout: Duration,
    /// The options of each node.
    pub node: RedisOptions,
    /// If set, nodes serve clients and each other over TLS with these files, each on a port of its
    /// own. The testbed uses plain ports.
    pub tls: Option<TlsPort>,
}

impl Default for RedisClusterOptions {
    /// Three primaries with a replica each, and patience with a busy machine.
    fn default() -> Self {
        let node = RedisOptions::default();
        Self {
            primaries: 3,
            replicas: 1,
            node_timeout: Duration::from_secs(10),
            node,
            tls: None,
        }
    }
}

/// A private Redis Cluster. Its nodes are ordinary servers: kill, pause or restart any of them.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Arc<Redis>>,
    /// The ports at which nodes serve clients and each other.
    ports: Vec<u16>,
    scheme: &'static str,
}

impl RedisCluster {
    /// Starts the nodes, the primaries first, and waits until all of them serve.
    pub async fn start(options: &RedisClusterOptions) -> Result<Self> {
        let mut nodes = Vec::new();
        let mut ports = Vec::new();
        for _ in 0..options.primaries * (1 + options.replicas) {
            let [bus] = ports::free()?;
            let bus = bus.to_string();
            let patience = options.node_timeout.as_millis().to_string();
            let mut node = options.node.clone();
            for (key, value) in [
                ("enabled", "yes"),
                ("announce-ip", "127.0.0.1"),
                ("port", &bus),
                ("node-timeout", &patience),
                ("replica-validity-factor", "0"),
            ] {
                node.extra
                    .extend([format!("--cluster-{key}"), value.to_owned()]);
            }
            node.extra
                .extend(["--repl-diskless-sync-delay".to_owned(), "0".to_owned()]);
            let mut port = None;
            if let Some(tls) = &options.tls {
                let [free] = ports::free()?;
                port = Some(free);
                node.extra.extend(
                    TlsPort {
                        port: free,
                        ..tls.clone()
                    }
                    .redis(),
                );
                node.extra.extend(
                    ["--tls-cluster", "yes", "--tls-replication", "yes"].map(str::to_owned),
                );
            }
            let node = Redis::start_with(&node).await?;
            ports.push(port.unwrap_or(node.port()));
            nodes.push((Arc::new(node), bus));
        }
        let first = nodes[0].0.clone();
        for (i, (node, bus)) in nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])
                .await?;
            if i < options.primaries {
                let at = |i: usize| i * SLOTS / options.primaries;
                let from = at(i).to_string();
                let to = (at(i + 1) - 1).to_string();
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &from, &to])
                    .await?;
            }
            if i > 0 {
                first
                    .command(&["CLUSTER", "MEET", "127.0.0.1", &ports[i].to_string(), bus])
                    .await?;
            }
        }
        let scheme = if options.tls.is_some() {
            "rediss+cluster"
        } else {
            "redis+cluster"
        };
        let cluster = Self {
            nodes: nodes.into_iter().map(|(node, _)| node).collect(),
            ports,
            scheme,
        };
        for replica in options.primaries..cluster.nodes.len() {
            let primary = cluster.id(replica % options.primaries).await?;
            let replica = &cluster.nodes[replica];
            let begun = Instant::now();
            while replica
                .command(&["CLUSTER", "REPLICATE", &primary])
                .await
                .is_err()
            {
                wait(begun).await?;
            }
        }
        cluster.until_ok().await?;
        Ok(cluster)
    }

    /// The nodes, with the initial primaries first.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Redis>] {
        &self.nodes
    }

    /// The URL for clients, with all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let addrs: Vec<String> = self
            .ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let credentials = self.nodes[0].url();
        let credentials = credentials
            .trim_start_matches("redis://")
            .split_once('@')
            .map(|(password, _)| password);
        let credentials = credentials
            .map(|password| format!("{password}@"))
            .unwrap_or_default();
        format!("{}://{credentials}{}", self.scheme, addrs.join(","))
    }

    /// Waits until all running nodes report that the Cluster is well, and each replica has its
    /// primary's data.
    pub async fn until_ok(&self) -> Result<()> {
        let begun = Instant::now();
        while !self.is_ok().await {
            wait(begun).await?;
        }
        Ok(())
    }

    async fn is_ok(&self) -> bool {
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            let state = node
                .command(&["CLUSTER", "INFO"])
                .await
                .ok()
                .and_then(|reply| reply.text());
            let nodes = node
                .command(&["CLUSTER", "NODES"])
                .await
                .ok()
                .and_then(|reply| reply.text());
            let role = node.info("replication").await.unwrap_or_default();
            let all = nodes
                .unwrap_or_default()
                .lines()
                .filter(|line| !line.contains("handshake"))
                .count();
            // A node that does not require full coverage reports `ok` before it has heard of all
            // slots.
            let state = state.unwrap_or_default();
            if !["cluster_state:ok", "cluster_slots_ok:16384"]
                .iter()
                .all(|word| state.contains(word))
                || all < self.nodes.len()
                || role.contains("master_link_status:down")
            {
                return false;
            }
        }
        true
    }

    /// The slot of a key.
    pub async fn slot(&self, key: &str) -> Result<u16> {
        let slot = self
            .any()
            .await?
            .command(&["CLUSTER", "KEYSLOT", key])
            .await?
            .integer()
            .unwrap_or_default();
        Ok(u16::try_from(slot).unwrap_or_default())
    }

    /// The index of the node that serves a slot, according to most of the running nodes. It fails
    /// if no node is named.
    pub async fn owner(&self, slot: u16) -> Result<usize> {
        let mut votes = vec![0; self.nodes.len()];
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            let Ok(Ok(Reply::Array(ranges))) =
                tokio::time::timeout(PATIENCE, node.command(&["CLUSTER", "SLOTS"])).await
            else {
                continue;
            };
            let port = ranges.iter().find_map(|range| match range {
                Reply::Array(parts) => match &parts[..] {
                    [first, last, Reply::Array(primary), ..] => {
                        let first = first.integer()?;
                        let last = last.integer()?;
                        (first..=last)
                            .contains(&i64::from(slot))
                            .then(|| primary.get(1)?.integer())?
                    }
                    _ => None,
                },
                _ => None,
            });
            if let Some(at) = self
                .nodes
                .iter()
                .position(|node| Some(i64::from(node.port())) == port)
            {
                votes[at] += 1;
            }
        }
        let most = (0..votes.len())
            .max_by_key(|at| votes[*at])
            .filter(|at| votes[*at] > 0);
        most.ok_or_else(|| {
            Error::answer(
                "redis CLUSTER SLOTS",
                format!("slot {slot} is served by no node"),
            )
        })
    }

    /// Sends a command to the node that serves this key.
    pub async fn command(&self, key: &str, words: &[&str]) -> Result<Reply> {
        let owner = self.owner(self.slot(key).await?).await?;
        self.nodes[owner].command(words).await
    }

    /// Sends a command to each running primary, one after the other.
    pub async fn on_primaries(&self, words: &[&str]) -> Result<Vec<Reply>> {
        let mut replies = Vec::new();
        for node in self.primaries().await? {
            replies.push(self.nodes[node].command(words).await?);
        }
        Ok(replies)
    }

    /// The indices of the running nodes that are not replicas.
    pub async fn primaries(&self) -> Result<Vec<usize>> {
        let mut primaries = Vec::new();
        for (at, node) in self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.is_running())
        {
            if node.info("replication").await?.contains("role:master") {
                primaries.push(at);
            }
        }
        Ok(primaries)
    }

    /// Begins to move a slot to the node of this index. From now on both nodes know of the move.
    pub async fn open_slot(&self, slot: u16, to: usize) -> Result<()> {
        let from = self.owner(slot).await?;
        let number = slot.to_string();
        let ids = [self.id(from).await?, self.id(to).await?];
        self.nodes[to]
            .command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &ids[0]])
            .await?;
        self.nodes[from]
            .command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &ids[1]])
            .await
            .map(drop)
    }

    /// Moves up to `most` keys of an opened slot. Returns the number of keys that it moved.
    pub async fn move_keys(&self, slot: u16, to: usize, most: usize) -> Result<usize> {
        let from = &self.nodes[self.owner(slot).await?];
        let listed = from
            .command(&[
                "CLUSTER",
                "GETKEYSINSLOT",
                &slot.to_string(),
                &most.to_string(),
            ])
            .await?;
        let Reply::Array(keys) = listed else {
            return Ok(0);
        };
        let keys: Vec<String> = keys.iter().filter_map(Reply::text).collect();
        let port = self.ports[to].to_string();
        for key in &keys {
            // It waits for the disk of the other node. A move that was cut off may have left the
            // key on both nodes.
            from.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "60000", "REPLACE"])
                .await?;
        }
        Ok(keys.len())
    }

    /// Waits until every node that answers knows the greatest epoch. A node that takes a slot
    /// over chooses the epoch that it believes to be the greatest: if another node had a greater
    /// one, the slot would go back to it by gossip, and its keys would be deleted.
    async fn until_epochs_are_known(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let mut known = Vec::new();
            for node in self.nodes.iter().filter(|node| node.is_running()) {
                let info = tokio::time::timeout(PATIENCE, node.command(&["CLUSTER", "INFO"])).await;
                let text = info.ok().and_then(|info| info.ok()?.text());
                known.extend(text.and_then(|text| {
                    let mut lines = text.lines().map(str::to_owned);
                    lines.find(|line| line.starts_with("cluster_current_epoch:"))
                }));
            }
            known.dedup();
            if known.len() <= 1 {
                return Ok(());
            }
            wait(begun).await?;
        }
    }

    /// Ends a move: the slot belongs to the new node.
    pub async fn close_slot(&self, slot: u16, to: usize) -> Result<()> {
        self.until_epochs_are_known().await?;
        let from = self.owner(slot).await?;
        let id = self.id(to).await?;
        let number = slot.to_string();
        for node in [to, from] {
            self.nodes[node]
                .command(&["CLUSTER", "SETSLOT", &number, "NODE", &id])
                .await?;
        }
        for node in self
            .primaries()
            .await?
            .into_iter()
            .filter(|node| *node != to && *node != from)
        {
            self.nodes[node]
                .command(&["CLUSTER", "SETSLOT", &number, "NODE", &id])
                .await?;
        }
        Ok(())
    }

    /// Moves a slot with all its keys.
    pub async fn move_slot(&self, slot: u16, to: usize) -> Result<()> {
        self.open_slot(slot, to).await?;
        // A key may come back while others are moved: it expires and is made anew.
        while self.move_keys(slot, to, 100).await? > 0 {}
        self.close_slot(slot, to).await
    }

    async fn id(&self, node: usize) -> Result<String> {
        let id = self.nodes[node].command(&["CLUSTER", "MYID"]).await?;
        Ok(id.text().unwrap_or_default())
    }

    async fn any(&self) -> Result<&Redis> {
        let running = self.nodes.iter().find(|node| node.is_running());
        running
            .map(|node| &**node)
            .ok_or_else(|| Error::answer("redis cluster", "no node runs"))
    }
}

/// Waits for a moment, or fails if the nodes have taken too long.
async fn wait(begun: Instant) -> Result<()> {
    if begun.elapsed() > AGREED_WITHIN {
        return Err(Error::answer(
            "redis cluster",
            "the nodes did not agree in time",
        ));
    }
    tokio::time::sleep(GLANCE).await;
    Ok(())
}
