//! Servers with one log: the transactions that the leader has committed, and the progress of each
//! member.

use super::read::Watches;
use super::tree::{At, Change, Tree};
use crate::machine::wall_of;

/// The delays with which a member may follow the leader, in nanoseconds: mostly short.
const BEHIND: [u64; 4] = [0, 5_000_000, 50_000_000, 300_000_000];

/// A transaction, and the time of its commit.
#[derive(Clone, Debug)]
struct Entry {
    at: At,
    committed: u64,
    changes: Vec<Change>,
}

/// One server of an ensemble.
#[derive(Debug, Default)]
pub(crate) struct Member {
    pub(crate) tree: Tree,
    pub(crate) watches: Watches,
    /// The number of transactions that it has applied, and the id of the last one.
    applied: usize,
    pub(crate) zxid: i64,
    /// The delay with which it follows the leader now, in nanoseconds.
    behind: u64,
    /// The time since which it hears nothing of the leader.
    pub(crate) cut: Option<u64>,
    /// It answers nobody.
    pub(crate) is_down: bool,
}

/// Several servers, or one.
#[derive(Debug)]
pub(crate) struct Ensemble {
    /// The tree with all committed transactions.
    pub(crate) tree: Tree,
    zxid: i64,
    log: Vec<Entry>,
    pub(crate) members: Vec<Member>,
    pub(crate) leader: usize,
    random: fastrand::Rng,
}

/// A message of a member to its clients, after it has applied a transaction.
#[derive(Debug)]
pub(crate) enum Said {
    /// An event, to a connection.
    Event(u64, Vec<u8>),
    /// A session is over.
    Ended(i64),
}

impl Ensemble {
    pub(crate) fn new(seed: u64, members: usize) -> Ensemble {
        let random = fastrand::Rng::with_seed(seed);
        let members = (0..members).map(|_| Member::default()).collect();
        Ensemble {
            tree: Tree::default(),
            zxid: 0,
            log: Vec::new(),
            members,
            leader: 0,
            random,
        }
    }

    /// The next transaction, by the wall clock of this time. A request that fails has one as well.
    pub(crate) fn next(&mut self, now: u64) -> At {
        self.zxid += 1;
        At {
            zxid: self.zxid,
            time: (wall_of(now) / 1000) as i64,
        }
    }

    /// Commits a transaction that was applied to the tree.
    pub(crate) fn commit(&mut self, at: At, changes: Vec<Change>, now: u64) {
        self.log.push(Entry {
            at,
            committed: now,
            changes,
        });
        if self.members.len() > 1 {
            let member = self.random.usize(..self.members.len());
            self.members[member].behind = BEHIND[self.random.usize(..BEHIND.len())];
        }
    }

    /// Executes a transaction of the leader's own.
    pub(crate) fn execute(&mut self, changes: Vec<Change>, now: u64) {
        let at = self.next(now);
        changes
            .iter()
            .for_each(|change| drop(self.tree.apply(change, at)));
        self.commit(at, changes, now);
    }

    /// Lets a member apply the transactions that have reached it, or, if it has asked for that, all
    /// committed ones.
    pub(crate) fn catch_up(&mut self, member: usize, all: bool, now: u64) -> Vec<Said> {
        let is_leader = member == self.leader;
        let it = &mut self.members[member];
        let mut said = Vec::new();
        if it.cut.is_some() {
            return said;
        }
        while let Some(entry) = self.log.get(it.applied) {
            if !(all || is_leader || entry.committed + it.behind <= now) {
                break;
            }
            it.applied += 1;
            it.zxid = entry.at.zxid;
            for change in &entry.changes {
                for (event, path) in it.tree.apply(change, entry.at) {
                    said.extend(
                        it.watches
                            .tell(event, &path)
                            .into_iter()
                            .map(|(to, packet)| Said::Event(to, packet)),
                    );
                }
                if let Change::End { session } = change {
                    said.push(Said::Ended(*session));
                }
            }
        }
        said
    }

    /// The state that it will have again.
    pub(crate) fn kept(&self) -> (Tree, i64) {
        (self.tree.clone(), self.zxid)
    }

    /// Makes all members begin with this state.
    pub(crate) fn restore(&mut self, (tree, zxid): (Tree, i64)) {
        self.log.clear();
        for member in &mut self.members {
            (member.tree, member.zxid, member.applied, member.watches) =
                (tree.clone(), zxid, 0, Watches::default());
        }
        (self.tree, self.zxid) = (tree, zxid);
    }
}
