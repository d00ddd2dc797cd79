//! The nodes of a server, and their changes.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_sim_zookeeper_client::Stat;
use leasehold_sim_zookeeper_client::wire::code;

/// The event of a node, in ZooKeeper's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Created = 1,
    Deleted = 2,
    Changed = 3,
    ChildrenChanged = 4,
}

/// One change. A transaction has several.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Create {
        path: String,
        data: Vec<u8>,
        kind: Kind,
    },
    Delete {
        path: String,
    },
    Set {
        path: String,
        data: Vec<u8>,
    },
    /// A session is over.
    End {
        session: i64,
    },
}

/// The lifetime of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Persistent,
    Container,
    /// It ends with this session.
    Ephemeral(i64),
}

/// A transaction: its id, and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) zxid: i64,
    /// In milliseconds.
    pub(crate) time: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) data: Vec<u8>,
    pub(crate) kind: Kind,
    created: At,
    changed: At,
    /// The transaction that changed its children last.
    pzxid: i64,
    version: i32,
    /// The number of children that it has ever had.
    pub(crate) creates: i32,
    pub(crate) children: BTreeSet<String>,
}

/// All nodes, by their paths.
#[derive(Clone, Debug)]
pub(crate) struct Tree(BTreeMap<String, Node>);

impl Default for Tree {
    fn default() -> Tree {
        let at = At { zxid: 0, time: 0 };
        Tree(BTreeMap::from([(
            "/".to_owned(),
            Node::new(Vec::new(), Kind::Persistent, at),
        )]))
    }
}

/// Splits a path into the parent's path and the name.
pub(crate) fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(parts) => parts,
        None => ("", path),
    }
}

impl Node {
    fn new(data: Vec<u8>, kind: Kind, at: At) -> Node {
        let (version, creates, children) = Default::default();
        Node {
            data,
            kind,
            created: at,
            changed: at,
            pzxid: at.zxid,
            version,
            creates,
            children,
        }
    }

    pub(crate) fn stat(&self) -> Stat {
        let children = self.children.len() as i32;
        Stat {
            czxid: self.created.zxid,
            mzxid: self.changed.zxid,
            pzxid: self.pzxid,
            ctime: self.created.time,
            mtime: self.changed.time,
            version: self.version,
            // The number of creations and deletions of children.
            cversion: self.creates.wrapping_mul(2).wrapping_sub(children),
            aversion: 0,
            ephemeral_owner: if let Kind::Ephemeral(session) = self.kind {
                session
            } else {
                0
            },
            data_length: self.data.len() as i32,
            num_children: children,
        }
    }

    pub(crate) fn is_version(&self, version: i32) -> Result<(), i32> {
        if version == -1 || version == self.version {
            Ok(())
        } else {
            Err(code::BAD_VERSION)
        }
    }
}

impl Tree {
    pub(crate) fn get(&self, path: &str) -> Result<&Node, i32> {
        self.0.get(path).ok_or(code::NO_NODE)
    }

    /// The paths of a session's nodes.
    pub(crate) fn of_session(&self, session: i64) -> Vec<String> {
        let theirs = self
            .0
            .iter()
            .filter(|(_, node)| node.kind == Kind::Ephemeral(session));
        theirs.map(|(path, _)| path.clone()).collect()
    }

    /// Containers that have had children and have none.
    pub(crate) fn unused(&self) -> Vec<String> {
        let unused = |node: &Node| {
            node.kind == Kind::Container && node.creates > 0 && node.children.is_empty()
        };
        self.0
            .iter()
            .filter(|(_, node)| unused(node))
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// The number of nodes that end with their sessions.
    pub(crate) fn ephemerals(&self) -> usize {
        self.0
            .values()
            .filter(|node| matches!(node.kind, Kind::Ephemeral(_)))
            .count()
    }

    /// The paths of all nodes.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Makes a change that is possible. Returns its events for watches.
    pub(crate) fn apply(&mut self, change: &Change, at: At) -> Vec<(Event, String)> {
        match change {
            Change::Create { path, data, kind } => {
                let (above, name) = split(path);
                if let Some(parent) = self.0.get_mut(above) {
                    parent.children.insert(name.to_owned());
                    parent.creates = parent.creates.wrapping_add(1);
                    parent.pzxid = at.zxid;
                }
                self.0
                    .insert(path.clone(), Node::new(data.clone(), *kind, at));
                vec![
                    (Event::Created, path.clone()),
                    (Event::ChildrenChanged, above.to_owned()),
                ]
            }
            Change::Delete { path } => {
                let (above, name) = split(path);
                self.0.remove(path);
                if let Some(parent) = self.0.get_mut(above) {
                    parent.children.remove(name);
                    parent.pzxid = at.zxid;
                }
                vec![
                    (Event::Deleted, path.clone()),
                    (Event::ChildrenChanged, above.to_owned()),
                ]
            }
            Change::Set { path, data } => {
                if let Some(node) = self.0.get_mut(path) {
                    (node.data, node.changed, node.version) =
                        (data.clone(), at, node.version.wrapping_add(1));
                }
                vec![(Event::Changed, path.clone())]
            }
            Change::End { .. } => Vec::new(),
        }
    }
}
