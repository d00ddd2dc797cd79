//! The nodes of a Cluster and the slots that they serve, as far as this client knows. One task asks
//! for the slots on behalf of all callers when a node disagrees with the map or does not answer,
//! and never twice within a moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{join_all, select_ok};
use futures_util::stream::FuturesUnordered;
use leasehold_core::support::{Signal, locked};
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Host;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::link::cluster::identity::{ClusterIdentity, more_telling};
use crate::link::cluster::seeds::{AddressMap, Seeds, map_over};
use crate::link::cluster::slots::{Range, SLOTS, SlotMap};
use crate::link::connection::Connection;
use crate::link::inbox::Inbox;
use crate::link::mark::StoreMark;
use crate::link::server::Server;

/// The shortest and the longest pause between two questions for the slots, while they change nothing.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// The interval at which the task looks for a connection that is down; looking takes no request.
const GLANCE: Duration = Duration::from_millis(250);
/// The number of nodes that are asked at once: one of them may hang.
const ASKED: usize = 2;
/// The index of no node.
const NOBODY: u16 = u16::MAX;

/// A node, and the one connection to it.
pub(super) struct Node {
    pub(super) host: Host,
    pub(super) connection: Arc<Connection>,
}

/// The nodes, and the node of each slot.
struct Map {
    nodes: Vec<Arc<Node>>,
    /// The index of each slot's node.
    owners: Vec<u16>,
    replicas: Vec<Host>,
}

/// The state that callers share with the task that asks for the slots.
pub(super) struct Members {
    seeds: Arc<Seeds>,
    identity: Arc<ClusterIdentity>,
    inbox: Inbox,
    map: RwLock<Map>,
    /// Nodes that serve no slot so far and are to get some.
    strangers: Mutex<Vec<Arc<Node>>>,
    /// Nodes that may belong to the Cluster no longer.
    suspects: Mutex<Vec<Arc<Node>>>,
    /// A slot was found at another node than the map said.
    patched: AtomicBool,
    closed: AtomicBool,
    due: Signal,
    /// The number of times that the slots were asked for.
    rounds: watch::Sender<u64>,
}

impl Members {
    pub(super) fn new(
        seeds: Vec<Server>,
        timeout: Duration,
        inbox: &Inbox,
        reach: Option<AddressMap>,
        mark: &Arc<StoreMark>,
    ) -> Result<Members> {
        let seeds = Arc::new(Seeds::new(seeds, timeout, reach)?);
        Ok(Members {
            identity: Arc::new(ClusterIdentity::new(&seeds, mark)),
            seeds,
            inbox: inbox.clone(),
            map: RwLock::new(Map {
                nodes: Vec::new(),
                owners: vec![NOBODY; SLOTS],
                replicas: Vec::new(),
            }),
            strangers: Mutex::default(),
            suspects: Mutex::default(),
            patched: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            due: Signal::default(),
            rounds: watch::Sender::new(0),
        })
    }

    /// Finds the Cluster, and connects to its nodes. Returns warnings for people.
    pub(super) async fn connect(&self) -> Result<Vec<String>> {
        let (map, warnings) = self.identity.find().await?;
        self.adopt(&map).await?;
        Ok(warnings)
    }

    /// The nodes that serve slots.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.map().nodes.clone()
    }

    /// The number of slots that no node serves.
    pub(super) fn unserved(&self) -> usize {
        self.map()
            .owners
            .iter()
            .filter(|owner| **owner == NOBODY)
            .count()
    }

    /// The node that serves this slot, as far as is known.
    pub(super) fn owner(&self, slot: u16) -> Result<Arc<Node>> {
        let map = self.map();
        let owner = map
            .nodes
            .get(usize::from(map.owners[usize::from(slot) % SLOTS]))
            .cloned();
        owner.ok_or_else(|| {
            let what = format!(
                "slot {slot} of this Redis Cluster is served by no node: see redis-cli --cluster check {}",
                self.seeds.name()
            );
            Error::new(ErrorKind::Unavailable, what)
        })
    }

    /// Has the slots asked for soon, since something differed from the map.
    pub(super) fn doubt(&self) {
        self.due.notify();
    }

    /// Has this node asked soon whether it still belongs to the Cluster.
    pub(super) fn suspect(&self, node: &Arc<Node>) {
        let mut suspects = locked(&self.suspects);
        if !suspects.iter().any(|known| Arc::ptr_eq(known, node)) {
            suspects.push(node.clone());
        }
        drop(suspects);
        self.doubt();
    }

    /// Asks the suspects. One that belongs to another Cluster is used no more. One that belongs to
    /// none is asked again: it may be set up anew just now.
    async fn examine(&self) {
        let suspects = std::mem::take(&mut *locked(&self.suspects));
        let examined = suspects
            .iter()
            .map(async |node| (node, self.map_of(node).await));
        for (node, map) in join_all(examined).await {
            let serves = || self.nodes().iter().any(|known| Arc::ptr_eq(known, node));
            if map.is_err() && node.connection.nth().is_ok() && serves() {
                self.suspect(node);
            }
        }
    }

    /// Notes a node's answer that this slot is at another one. Returns once the map may know that
    /// node.
    pub(super) async fn moved(&self, slot: u16, to: &Host) -> Result<()> {
        let stranger = locked(&self.strangers)
            .iter()
            .find(|node| node.host == *to)
            .cloned();
        let known = {
            let mut map = self.map_mut();
            let mut at = map.nodes.iter().position(|node| node.host == *to);
            if let (None, Some(stranger)) = (at, stranger) {
                map.nodes.push(stranger);
                at = Some(map.nodes.len() - 1);
            }
            if let Some(at) = at {
                map.owners[usize::from(slot) % SLOTS] = at as u16;
            }
            at.is_some()
        };
        let mut rounds = self.rounds.subscribe();
        self.patched.store(true, Ordering::Relaxed);
        self.doubt();
        if known {
            return Ok(());
        }
        match timeout(self.seeds.timeout, rounds.changed()).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Unavailable,
                format!("{to}: a new node of the Redis Cluster, not reached yet"),
            )),
        }
    }

    /// Returns the node at this address, which need not serve a slot yet; a new one is connected to
    /// first.
    pub(super) async fn at(&self, host: &Host) -> Result<Arc<Node>> {
        let mut known = self.nodes();
        known.extend(locked(&self.strangers).iter().cloned());
        if let Some(node) = known.into_iter().find(|node| node.host == *host) {
            return Ok(node);
        }
        let node = Arc::new(self.node(host)?);
        node.connection.connect().await?;
        locked(&self.strangers).push(node.clone());
        Ok(node)
    }

    /// A node that is not connected yet.
    fn node(&self, host: &Host) -> Result<Node> {
        let server = Server {
            mark: Some(self.identity.mark.clone()),
            admission: Some(self.identity.admission(host)),
            ..self.seeds.server(host)
        };
        let connection = Connection::new(server, self.seeds.timeout, Duration::ZERO, &self.inbox)?;
        Ok(Node {
            host: host.clone(),
            connection: Arc::new(connection),
        })
    }

    /// Asks which nodes serve which slots, and connects to new nodes. Returns whether something has
    /// changed.
    pub(super) async fn refresh(&self) -> Result<bool> {
        let map = self.ask().await?;
        self.adopt(&map).await
    }

    /// The map that a node knows. If it belongs to another Cluster, its connection is not used any
    /// more.
    async fn map_of(&self, node: &Node) -> Result<SlotMap> {
        let nth = node.connection.nth()?;
        let map = map_over(&node.connection, &node.host).await?;
        self.identity.check(&map).await.inspect_err(|e| {
            if e.kind() == ErrorKind::OtherStore {
                node.connection.refuse(nth, e);
            }
        })?;
        Ok(map)
    }

    /// Returns the map of the first node of the Cluster that answers. Known nodes are asked first,
    /// then replicas and the servers of the URL.
    async fn ask(&self) -> Result<SlotMap> {
        let mut nodes = self.nodes();
        fastrand::shuffle(&mut nodes);
        for some in nodes.chunks(ASKED) {
            let asked = some.iter().map(|node| Box::pin(self.map_of(node)));
            if let Ok((map, _)) = select_ok(asked).await {
                return Ok(map);
            }
        }
        let replicas = self.map().replicas.clone();
        let replicas = replicas.into_iter().map(|host| {
            let server = self.seeds.server(&host);
            (host, server)
        });
        let mut asked: FuturesUnordered<_> = replicas
            .chain(self.seeds.each())
            .map(|(host, server)| async move {
                let map = self.seeds.map_of(&host, server).await?;
                self.identity.check(&map).await.map(|()| map)
            })
            .collect();
        let mut why = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(map) => return Ok(map),
                Err(e) => why = more_telling(why, e),
            }
        }
        Err(why.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no node was asked")))
    }

    /// Uses this map from now on. `Err`: all of its nodes are new and none can be reached, or a new
    /// one refuses this client.
    async fn adopt(&self, map: &SlotMap) -> Result<bool> {
        // Its nodes are compared with it as they are connected to.
        self.identity.learn(map);
        let ranges = &map.ranges;
        let known = self.nodes();
        let mut nodes = Vec::<Arc<Node>>::new();
        let mut owners = vec![NOBODY; SLOTS];
        for Range {
            first,
            last,
            primary,
            ..
        } in ranges
        {
            let at = match nodes.iter().position(|node| node.host == *primary) {
                Some(at) => at,
                None => {
                    let known = known
                        .iter()
                        .chain(locked(&self.strangers).iter())
                        .find(|node| node.host == *primary)
                        .cloned();
                    nodes.push(known.map_or_else(|| self.node(primary).map(Arc::new), Ok)?);
                    nodes.len() - 1
                }
            };
            owners[usize::from(*first)..=usize::from(*last)].fill(at as u16);
        }
        let is_new = |node: &&Arc<Node>| !known.iter().any(|known| Arc::ptr_eq(known, node));
        let new: Vec<_> = nodes.iter().filter(is_new).collect();
        let connecting = new
            .iter()
            .filter(|node| node.connection.nth().is_err())
            .map(|node| node.connection.connect());
        let made = join_all(connecting).await;
        let is_larger = !new.is_empty();
        let replicas = ranges
            .iter()
            .flat_map(|range| range.replicas.iter().cloned())
            .collect();
        let changed = {
            let mut map = self.map_mut();
            let before = |slot: usize| {
                map.nodes
                    .get(usize::from(map.owners[slot]))
                    .map(|node| &node.host)
            };
            let now = |slot: usize| nodes.get(usize::from(owners[slot])).map(|node| &node.host);
            let changed = (0..SLOTS).any(|slot| before(slot) != now(slot));
            *map = Map {
                nodes,
                owners,
                replicas,
            };
            changed
        };
        locked(&self.strangers).clear();
        if is_larger {
            // Messages that a node published before this client listened to it were missed. A slot
            // that moves among known nodes loses nothing.
            self.inbox.notifier.notify_all();
        }
        let all =
            !made.is_empty() && made.iter().all(Result::is_err) && made.len() == self.nodes().len();
        match made
            .into_iter()
            .filter_map(Result::err)
            .find(|e| all || !matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::OtherStore))
        {
            Some(e) => Err(e),
            None => Ok(self.patched.swap(false, Ordering::Relaxed) || changed),
        }
    }

    fn map(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_mut(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all connections for good.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let nodes = self.nodes();
        nodes
            .iter()
            .chain(locked(&self.strangers).iter())
            .for_each(|node| node.connection.close());
    }

    /// Returns whether a connection is down: a replica may have been promoted meanwhile.
    fn is_broken(&self) -> bool {
        self.map()
            .nodes
            .iter()
            .any(|node| node.connection.nth().is_err())
    }
}

/// Asks for the slots whenever that is due, for ever. Calls `changed` when slots may have moved.
pub(super) async fn keep(members: Arc<Members>, changed: impl Fn()) {
    let mut pause = PAUSES.0;
    let mut due = members.due.listen();
    loop {
        tokio::select! {
            biased;
            _ = due.changed() => {}
            () = async { while !members.is_broken() { sleep(GLANCE).await } } => {}
        }
        let news = members.refresh().await;
        pause = if matches!(news, Ok(true)) {
            PAUSES.0
        } else {
            (pause * 2).min(PAUSES.1)
        };
        // Called also after a refusal by one of the nodes: the map is new then, too.
        changed();
        members.inbox.replaced.notify();
        members.rounds.send_modify(|rounds| *rounds += 1);
        members.examine().await;
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    }
}
