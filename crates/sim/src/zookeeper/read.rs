//! Requests that read, and the watches that they leave.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_sim_zookeeper_client::wire::{EVENT, Reader, Record, code, op};

use super::tree::{Event, Tree};

/// The watches: connections, by paths.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    nodes: BTreeMap<String, BTreeSet<u64>>,
    children: BTreeMap<String, BTreeSet<u64>>,
}

impl Watches {
    /// Returns the events for those that watch a node. Each watch is told once.
    pub(crate) fn tell(&mut self, event: Event, path: &str) -> Vec<(u64, Vec<u8>)> {
        let mut who = BTreeSet::new();
        if event != Event::ChildrenChanged {
            who.extend(self.nodes.remove(path).unwrap_or_default());
        }
        if matches!(event, Event::ChildrenChanged | Event::Deleted) {
            who.extend(self.children.remove(path).unwrap_or_default());
        }
        let packet = Record::default()
            .int(EVENT)
            .long(-1)
            .int(0)
            .int(event as i32)
            .int(3)
            .text(path)
            .packet();
        who.into_iter()
            .map(|connection| (connection, packet.clone()))
            .collect()
    }

    /// The number of watches.
    pub(crate) fn count(&self) -> usize {
        [&self.nodes, &self.children]
            .iter()
            .flat_map(|all| all.values())
            .map(BTreeSet::len)
            .sum()
    }

    /// Forgets a connection that is gone.
    pub(crate) fn forget(&mut self, connection: u64) {
        for all in [&mut self.nodes, &mut self.children] {
            all.values_mut()
                .for_each(|those| _ = those.remove(&connection));
            all.retain(|_, those| !those.is_empty());
        }
    }

    fn add(&mut self, op: i32, path: &str, connection: u64) {
        let all = if op == op::GET_CHILDREN {
            &mut self.children
        } else {
            &mut self.nodes
        };
        all.entry(path.to_owned()).or_default().insert(connection);
    }

    /// Removes the watches of children (1), of the node (2), or both (3).
    fn remove(&mut self, path: &str, which: i32, connection: u64) -> Result<(), i32> {
        let mut found = false;
        for (kind, all) in [(1, &mut self.children), (2, &mut self.nodes)] {
            if which & kind != 0 {
                found |= all
                    .get_mut(path)
                    .is_some_and(|those| those.remove(&connection));
            }
        }
        if found { Ok(()) } else { Err(code::NO_WATCHER) }
    }
}

/// The answer to a request that reads, from this session over this connection. An error is a number
/// of ZooKeeper's.
pub(crate) fn read(
    (tree, watches): (&Tree, &mut Watches),
    (session, connection): (i64, u64),
    op: i32,
    request: &[u8],
) -> Result<Record, i32> {
    let mut reader = Reader(request);
    let broken = code::BAD_ARGUMENTS;
    match op {
        op::EXISTS | op::GET_DATA | op::GET_CHILDREN => {
            let (path, watch) = reader.text().zip(reader.bool()).ok_or(broken)?;
            let found = get(tree, op, &path, Record::default());
            if watch && (found.is_ok() || op == op::EXISTS) {
                watches.add(op, &path, connection);
            }
            found
        }
        op::MULTI_READ => {
            let mut record = Record::default();
            while let Some(op) = reader.part() {
                let (path, _) = reader.text().zip(reader.bool()).ok_or(broken)?;
                record = match get(tree, op, &path, record.clone().part(op, 0)) {
                    Ok(record) => record,
                    Err(error) => record.part(op::ERROR, error).int(error),
                };
            }
            Ok(record.end())
        }
        op::GET_EPHEMERALS => {
            let below = reader.text().ok_or(broken)?;
            let mut paths = tree.of_session(session);
            paths.retain(|path| path.starts_with(&below));
            Ok(Record::default().texts(&paths))
        }
        op::REMOVE_WATCHES => {
            let (path, which) = reader.text().zip(reader.int()).ok_or(broken)?;
            watches
                .remove(&path, which, connection)
                .map(|()| Record::default())
        }
        _ => Err(code::UNIMPLEMENTED),
    }
}

fn get(tree: &Tree, op: i32, path: &str, record: Record) -> Result<Record, i32> {
    let node = tree.get(path)?;
    Ok(match op {
        op::EXISTS => record.stat(&node.stat()),
        op::GET_DATA => record.bytes(&node.data).stat(&node.stat()),
        _ => record.texts(&node.children.iter().cloned().collect::<Vec<_>>()),
    })
}
