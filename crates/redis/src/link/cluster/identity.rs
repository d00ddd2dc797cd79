//! Which Cluster a node belongs to: programs exclude each other only in one.
//!
//! A host of the URL may belong to another Cluster, an address may come to lead to one, and a node
//! that was emptied may be set up as a Cluster of its own. The same locks are free there. Each new map
//! and each new connection to a node is therefore compared with the newest map, by two things:
//!
//! - **The ids of nodes.** Slots move and nodes come and go one after the other, so a map that names
//!   more than half of the primaries of the known one shows the same Cluster. A failover needs a
//!   majority of them, too. One node that was set up alone has forgotten the others, even if it
//!   has kept its id.
//! - **The mark**, if most nodes are others: they may all have been replaced while a program slept.
//!   The key moves with its slot, so a Cluster that has the known mark is the same one. Nothing shows
//!   that one without it is.
//!
//! A mark that is missing or another one beside known nodes shows a loss of data, as on one server.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Host;
use redis::from_redis_value;
use tokio::time::timeout;

use crate::link::cluster::seeds::{Seeds, ask};
use crate::link::cluster::slots::{SlotMap, read, slot_of};
use crate::link::error::junk;
use crate::link::mark::StoreMark;
use crate::link::server::Admission;

/// The time for which the other hosts of the URL are waited for once one has answered.
const OTHERS: Duration = Duration::from_millis(300);

/// What a client knows of the identity of its Cluster.
pub(super) struct ClusterIdentity {
    seeds: Arc<Seeds>,
    pub(super) mark: Arc<StoreMark>,
    /// The ids of the nodes that serve slots in the newest map; none before the first.
    primaries: RwLock<BTreeSet<String>>,
}

impl ClusterIdentity {
    pub(super) fn new(seeds: &Arc<Seeds>, mark: &Arc<StoreMark>) -> ClusterIdentity {
        ClusterIdentity {
            seeds: seeds.clone(),
            mark: mark.clone(),
            primaries: RwLock::default(),
        }
    }

    /// Compares later maps with this one, which is of the right Cluster.
    pub(super) fn learn(&self, map: &SlotMap) {
        let mut primaries = self
            .primaries
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        primaries.clone_from(&map.primaries);
    }

    fn is_known(&self, map: &SlotMap) -> bool {
        let primaries = self
            .primaries
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        map.names_most_of(&primaries)
    }

    /// Fails if the map is of another Cluster, and as long as that is not known.
    pub(super) async fn check(&self, map: &SlotMap) -> Result<()> {
        if self.is_known(map) {
            return Ok(());
        }
        self.mark.confirm(self.mark_in(map).await?.as_deref())
    }

    /// The check of the node that the Cluster calls by this address, at each connection to it.
    pub(super) fn admission(self: &Arc<Self>, host: &Host) -> Admission {
        let identity = self.clone();
        let host = host.clone();
        Admission::new(move |answer| {
            let map = read(&answer, &host);
            let identity = identity.clone();
            async move { identity.check(&map?).await }
        })
    }

    /// The mark of the Cluster that this map shows.
    async fn mark_in(&self, map: &SlotMap) -> Result<Option<String>> {
        let unknown = |e: &Error| {
            let kind = match e.kind() {
                ErrorKind::Denied => ErrorKind::Denied,
                _ => ErrorKind::Unavailable,
            };
            let what = format!(
                "whether this is the right Redis Cluster is not known, since its mark cannot be read: {e}"
            );
            Error::new(kind, what)
        };
        let slot = slot_of(&self.mark.key);
        let Some(owner) = map.owner(slot) else {
            let what = format!("no node serves slot {slot}");
            return Err(unknown(&Error::new(ErrorKind::Unavailable, what)));
        };
        let reading = async {
            let connection = self.seeds.open(self.seeds.server(owner)).await?;
            let mut question = redis::cmd("GET");
            question.arg(&self.mark.key);
            let answer = ask(&connection, question)
                .await
                .map_err(|e| match e.kind() {
                    // `MOVED`, or `ASK` while the slot is moved.
                    ErrorKind::Unsupported => {
                        let what = format!("slot {slot} is at another node than {owner} by now");
                        Error::new(ErrorKind::Unavailable, what)
                    }
                    _ => e,
                })?;
            from_redis_value(answer).map_err(|_| junk(&self.mark.key))
        };
        reading.await.map_err(|e| unknown(&e))
    }

    /// Asks all hosts of the URL, until most of them belong to one Cluster or the others are silent.
    /// Returns the map of the right one, and a sentence for each host of another.
    pub(super) async fn find(&self) -> Result<(SlotMap, Vec<String>)> {
        let seeds = self.seeds.each();
        let count = seeds.len();
        let mut asked: FuturesUnordered<_> = seeds
            .map(|(host, server)| async move {
                let map = self.seeds.map_of(&host, server).await;
                (host, map)
            })
            .collect();
        let mut clusters: Vec<Vec<(Host, SlotMap)>> = Vec::new();
        let mut why = None;
        loop {
            let next = match clusters.is_empty() {
                true => asked.next().await,
                false => timeout(OTHERS, asked.next()).await.unwrap_or_default(),
            };
            match next {
                None => break,
                Some((_, Err(e))) => why = more_telling(why, e),
                Some((host, Ok(map))) => {
                    let same = clusters.iter_mut().find(|all| all[0].1.is_like(&map));
                    match same {
                        Some(all) => all.push((host, map)),
                        None => clusters.push(vec![(host, map)]),
                    }
                }
            }
            if clusters.iter().any(|all| all.len() > count / 2) {
                break;
            }
        }
        drop(asked);
        clusters.sort_by_key(|all| Reverse(all.len()));
        let right = match (&clusters[..], self.mark.is_pinned()) {
            ([], _) => return Err(why.unwrap_or_else(|| junk("CLUSTER SLOTS"))),
            (all, true) => self.pinned_of(all).await?,
            ([one, other, ..], false) if one.len() == other.len() => return Err(tie(&clusters)),
            _ => 0,
        };
        let (_, map) = clusters.swap_remove(right).swap_remove(0);
        let others = clusters.iter().flatten().map(|(host, other)| {
            format!(
                "{host} belongs to another Redis Cluster, that of {}, and is not used",
                other.addresses()
            )
        });
        let others = others.collect();
        Ok((map, others))
    }

    /// The one of these Clusters that has the mark which the URL names. One without a mark may be one
    /// that was just set up, of a node that was emptied.
    async fn pinned_of(&self, clusters: &[Vec<(Host, SlotMap)>]) -> Result<usize> {
        let mut why = None;
        for (nth, all) in clusters.iter().enumerate() {
            let mark = self.mark_in(&all[0].1).await;
            match mark.and_then(|mark| self.mark.confirm(mark.as_deref())) {
                Ok(()) => return Ok(nth),
                Err(e) => why = more_telling(why, e),
            }
        }
        Err(why.unwrap_or_else(|| junk("CLUSTER SLOTS")))
    }
}

/// The error to report of these two: a wrong password tells more than a server that is down.
pub(super) fn more_telling(known: Option<Error>, next: Error) -> Option<Error> {
    known
        .filter(|known| known.kind() != ErrorKind::Unavailable)
        .or(Some(next))
}

/// The error if no Cluster has most of the hosts.
fn tie(clusters: &[Vec<(Host, SlotMap)>]) -> Error {
    let each = clusters.iter().map(|all| {
        let hosts: Vec<String> = all.iter().map(|(host, _)| host.to_string()).collect();
        format!(
            "{} belongs to that of {}",
            hosts.join(", "),
            all[0].1.addresses()
        )
    });
    let what = format!(
        "the hosts belong to different Redis Clusters, whose locks are different ones: {}. \
         Name the nodes of one, or pin it by `store`",
        Vec::from_iter(each).join("; ")
    );
    Error::new(ErrorKind::OtherStore, what)
}
