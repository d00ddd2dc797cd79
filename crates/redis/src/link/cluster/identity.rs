//! Which Cluster a node belongs to: programs exclude each other only in one.
//!
//! A host of the URL may belong to another Cluster, an address may come to lead to one, and a node
//! that was emptied may be set up as a Cluster of its own. The same locks are free there. So each new
//! map of slots, and that of each node at a new connection to it, is compared with the newest map:
//!
//! - **By the ids of the primaries.** Slots move, and nodes come and go one after the other, so each
//!   of two maps of one Cluster has more than half of the primaries of the other one. A node that
//!   was set up alone has forgotten the others, even if it has kept its id. The ids of replicas do
//!   not count: a node may have become a replica in another Cluster.
//! - **By the mark**, if the primaries are others: a replica may have taken over for the only one,
//!   or all may have been replaced while a program slept. The key of the mark moves with its slot,
//!   so a Cluster that has the known mark is the same one, and one that has not is refused.
//!
//! A client whose user may not read or write the mark knows none. It was warned when it connected.
//! A takeover must not lock it out, so for it a map also counts if most of the known shards are
//! served by nodes that they had. It refuses any other map: it can be restarted, and two holders of
//! one lock cannot be undone.
//!
//! If the primaries are known, a missing or different mark means that data were lost, as on one
//! server.

use std::cmp::Reverse;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Host;
use redis::from_redis_value;
use tokio::time::timeout;

use crate::link::cluster::seeds::{Seeds, ask};
use crate::link::cluster::slots::{Shards, SlotMap, read, slot_of};
use crate::link::error::junk;
use crate::link::mark::StoreMark;
use crate::link::server::Admission;

/// The time for which the other hosts of the URL are waited for once one has answered.
const OTHERS: Duration = Duration::from_millis(300);

/// The hosts of one Cluster, and the map that each of them knows.
type Found = Vec<(Host, SlotMap)>;

/// What a client knows of the identity of its Cluster.
pub(super) struct ClusterIdentity {
    seeds: Arc<Seeds>,
    pub(super) mark: Arc<StoreMark>,
    /// The nodes of the newest map; none before the first.
    known: RwLock<Shards>,
}

impl ClusterIdentity {
    pub(super) fn new(seeds: &Arc<Seeds>, mark: &Arc<StoreMark>) -> ClusterIdentity {
        ClusterIdentity {
            seeds: seeds.clone(),
            mark: mark.clone(),
            known: RwLock::default(),
        }
    }

    /// Compares later maps with this one, which is of the right Cluster.
    pub(super) fn learn(&self, map: &SlotMap) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.clone_from(&map.shards);
    }

    /// Returns whether the ids of the nodes suffice to show that the map is of the right Cluster.
    fn is_known(&self, map: &SlotMap) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() || known.is_like(&map.shards) {
            return true;
        }
        let has_mark = self.mark.id().is_some();
        !has_mark && map.shards.continues(&known)
    }

    /// Fails if the map is of another Cluster, or if that cannot be known now.
    pub(super) async fn check(&self, map: &SlotMap) -> Result<()> {
        if self.is_known(map) {
            return Ok(());
        }
        let mark = match self.mark.id() {
            Some(_) => self.mark_in(map).await?,
            // There is nothing to compare it with.
            None => None,
        };
        self.mark.confirm(mark.as_deref())
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
        let mut clusters: Vec<Found> = Vec::new();
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
                    let is_like = |all: &&mut Found| all[0].1.shards.is_like(&map.shards);
                    let same = clusters.iter_mut().find(is_like);
                    match same {
                        Some(all) => all.push((host, map)),
                        None => clusters.push(vec![(host, map)]),
                    }
                }
            }
            // The one that a URL names by its mark may be that of few hosts.
            let is_most = |all: &Found| all.len() > count / 2;
            if !self.mark.is_pinned() && clusters.iter().any(is_most) {
                break;
            }
        }
        drop(asked);
        if clusters.is_empty() {
            return Err(why.unwrap_or_else(|| junk("CLUSTER SLOTS")));
        }
        clusters.sort_by_key(|all| Reverse(all.len()));
        let (mut right, warnings) = match self.mark.is_pinned() {
            true => self.pinned_of(clusters).await?,
            false => self.most_of(clusters).await?,
        };
        let (_, map) = right.swap_remove(0);
        Ok((map, warnings))
    }

    /// Returns the hosts of the Cluster to which most belong, the first of these unless the marks
    /// say otherwise, and a sentence for each other host.
    async fn most_of(&self, mut clusters: Vec<Found>) -> Result<(Found, Vec<String>)> {
        if is_tie(&clusters) {
            let marks = join_all(clusters.iter().map(|all| self.mark_in(&all[0].1))).await;
            let marks = marks.into_iter().map(Result::ok).map(Option::flatten);
            clusters = united(clusters.into_iter().zip(marks));
        }
        if is_tie(&clusters) {
            return Err(tie(&clusters));
        }
        let right = clusters.remove(0);
        let warnings = clusters.iter().flatten().map(of_another).collect();
        Ok((right, warnings))
    }

    /// Returns the hosts of the Cluster that has the mark which the URL names, and a sentence for
    /// each other host. A Cluster without a mark is refused: it may be a node that was emptied and
    /// set up alone.
    async fn pinned_of(&self, clusters: Vec<Found>) -> Result<(Found, Vec<String>)> {
        let marks = join_all(clusters.iter().map(|all| self.mark_in(&all[0].1))).await;
        let mut right = Vec::new();
        let mut warnings = Vec::new();
        let mut why = None;
        for (all, mark) in clusters.into_iter().zip(marks) {
            match mark.and_then(|mark| self.mark.confirm(mark.as_deref())) {
                Ok(()) => right.extend(all),
                Err(e) => {
                    let is_other = e.kind() == ErrorKind::OtherStore;
                    warnings.extend(all.iter().map(|found| match is_other {
                        true => of_another(found),
                        false => format!("{}: {e}", found.0),
                    }));
                    why = more_telling(why, e);
                }
            }
        }
        match why {
            Some(e) if right.is_empty() => Err(e),
            _ => Ok((right, warnings)),
        }
    }
}

/// The sentence for a host of another Cluster, with the map that it knows.
fn of_another((host, map): &(Host, SlotMap)) -> String {
    let others = map.addresses();
    format!("{host} belongs to another Redis Cluster, that of {others}, and is not used")
}

/// The error to report of these two: a wrong password tells more than a server that is down.
pub(super) fn more_telling(known: Option<Error>, next: Error) -> Option<Error> {
    known
        .filter(|known| known.kind() != ErrorKind::Unavailable)
        .or(Some(next))
}

/// Returns whether no Cluster has more hosts than each other one. Those with more come first.
fn is_tie(clusters: &[Found]) -> bool {
    matches!(clusters, [one, other, ..] if one.len() == other.len())
}

/// Joins those that have one mark: a host may know an old map of its Cluster.
fn united(clusters: impl Iterator<Item = (Found, Option<String>)>) -> Vec<Found> {
    let mut marked: Vec<(Found, Option<String>)> = Vec::new();
    for (found, mark) in clusters {
        let is_same = |(_, other): &&mut (Found, _)| mark.is_some() && *other == mark;
        match marked.iter_mut().find(is_same) {
            Some((all, _)) => all.extend(found),
            None => marked.push((found, mark)),
        }
    }
    marked.sort_by_key(|(all, _)| Reverse(all.len()));
    marked.into_iter().map(|(all, _)| all).collect()
}

/// The error if no Cluster has most of the hosts.
fn tie(clusters: &[Found]) -> Error {
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

#[cfg(test)]
mod tests {
    use redis::{IntoConnectionInfo, Value};

    use super::*;
    use crate::link::server::Server;

    fn host(name: &str) -> Host {
        Host {
            name: name.to_owned(),
            port: 1,
        }
    }

    /// The map of shards whose nodes have ids of one letter, the primary first. Nobody serves the
    /// slot of the mark.
    fn map(shards: &[&str]) -> SlotMap {
        let text = |text: String| Value::BulkString(text.into_bytes());
        let node = |id: char| Value::Array(vec![text("h".into()), Value::Int(1), text(id.into())]);
        let shard = |nodes: &&str| {
            let nodes = nodes.chars().map(node);
            Value::Array(
                [Value::Int(0), Value::Int(0)]
                    .into_iter()
                    .chain(nodes)
                    .collect(),
            )
        };
        let answer = Value::Array(shards.iter().map(shard).collect());
        read(&answer, &host("h")).unwrap()
    }

    #[tokio::test]
    async fn the_mark_decides_where_the_primaries_do_not_and_the_shards_where_none_is_known() {
        let server = Server::from("redis://h:1".into_connection_info().unwrap());
        let seeds = Seeds::new(vec![server], Duration::from_secs(1), None).unwrap();
        let seeds = Arc::new(seeds);
        let three = &["ax", "by", "cz"][..];
        // Nobody has the mark here, so a client that is to compare it cannot know.
        let unknown = Some(ErrorKind::Unavailable);
        let other = Some(ErrorKind::OtherStore);
        for (known, now, marked, unmarked) in [
            (three, &["x", "by", "cz"][..], None, None),
            (&["ax"], &["a"], None, None),
            (&["ax"], &["x"], unknown, None),
            (&["ax", "by"], &["xa", "by"], unknown, None),
            (three, &["xa", "yb", "zc"], unknown, None),
            (&["ax"], &["fa"], unknown, other),
            (three, &["fa", "gb", "cz"], unknown, other),
            (three, &["b"], unknown, other),
            (&[], &["f"], None, None),
        ] {
            for (mark, expected) in [(Some("redis-1"), marked), (None, unmarked)] {
                let store = Arc::new(StoreMark::pinned(None, "{}:store".into()));
                mark.map_or(Ok(()), |mark| store.check(mark)).unwrap();
                let identity = ClusterIdentity::new(&seeds, &store);
                identity.learn(&map(known));
                let said = identity.check(&map(now)).await.err();
                let said = said.map(|e| e.kind());
                assert_eq!(said, expected, "{known:?} {now:?} {mark:?}");
            }
        }
    }

    #[test]
    fn hosts_whose_maps_differ_are_of_one_cluster_if_their_marks_are_equal() {
        let united = |all: &[(&[&str], Option<&str>)]| {
            let each = all.iter().map(|(hosts, mark)| {
                let found: Found = hosts.iter().map(|name| (host(name), map(&["a"]))).collect();
                (found, mark.map(str::to_owned))
            });
            let all = united(each);
            let names = all.iter().map(|found| {
                let names = found.iter().map(|(host, _)| host.name.as_str());
                names.collect::<Vec<_>>().join(" ")
            });
            (names.collect::<Vec<_>>(), is_tie(&all))
        };
        let of = |names: &[&str], is_tie| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            (names, is_tie)
        };
        let one = Some("redis-1");
        let two = Some("redis-2");
        assert_eq!(united(&[(&["p"], one), (&["r"], one)]), of(&["p r"], false));
        assert_eq!(
            united(&[(&["p"], one), (&["f"], two)]),
            of(&["p", "f"], true)
        );
        // A mark that is missing or cannot be read shows nothing.
        assert_eq!(
            united(&[(&["p"], None), (&["r"], None)]),
            of(&["p", "r"], true)
        );
        let three: [(&[&str], _); 3] = [(&["f"], two), (&["p"], one), (&["r"], one)];
        assert_eq!(united(&three), of(&["p r", "f"], false));
    }
}
