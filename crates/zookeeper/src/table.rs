//! Which claims of a session have an entry, and which entries are on their way out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId, Grant, Mode, Moment, Place, Validity};
use tokio::task::JoinSet;

use crate::names;

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) kept: HashMap<ClaimId, Kept>,
    /// What nobody wants any more, until ZooKeeper has said that it is gone.
    pub(crate) leaving: Vec<Entry>,
}

/// A claim of which something may be in the store.
pub(crate) struct Kept {
    pub(crate) entry: Entry,
    /// When it was last claimed or renewed.
    seen: Moment,
    /// How long it lasts if that is not done again.
    lease: Duration,
    /// The mode and the label that were last stored.
    pub(crate) stored: (Mode, Arc<str>),
    /// It was granted.
    pub(crate) held: bool,
    /// What rings for it while it waits.
    pub(crate) watches: JoinSet<()>,
}

/// One place in a line, from before its node is made until it is surely gone.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: ClaimId,
    /// The lock's node.
    pub(crate) parent: Arc<str>,
    /// How its own node's name begins, unlike any other's.
    pub(crate) prefix: Arc<str>,
    /// Its node; `None` until ZooKeeper has said that it was made.
    pub(crate) node: Option<Node>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The whole path.
    pub(crate) path: Arc<str>,
    /// The transaction that made it: the number in its token.
    pub(crate) czxid: i64,
}

impl Table {
    /// A request that may make this entry is about to be sent.
    pub(crate) fn keep(&mut self, entry: &Entry, claim: &Claim, lease: Duration, now: Moment) {
        let (entry, stored, watches) = (entry.clone(), (claim.mode, claim.label.clone()), JoinSet::new());
        self.kept.insert(claim.id, Kept { entry, seen: now, lease, stored, held: false, watches });
    }

    /// The claim is still wanted: its entry, if there may be one.
    pub(crate) fn renew(&mut self, id: ClaimId, now: Moment) -> Option<Entry> {
        let kept = self.kept.get_mut(&id)?;
        kept.seen = now;
        Some(kept.entry.clone())
    }

    /// What is known of the claim, if it still has this entry.
    pub(crate) fn at(&mut self, entry: &Entry) -> Option<&mut Kept> {
        self.kept.get_mut(&entry.id).filter(|kept| kept.entry.prefix == entry.prefix)
    }

    /// Nobody wants this claim any more.
    pub(crate) fn leave(&mut self, id: ClaimId) {
        self.leaving.extend(self.kept.remove(&id).map(|kept| kept.entry));
    }

    /// Nobody wants what was not claimed again or renewed for a whole lease.
    pub(crate) fn lapse(&mut self, now: Moment) {
        let lapsed = self.kept.extract_if(|_, kept| kept.seen + kept.lease <= now);
        self.leaving.extend(lapsed.map(|(_, kept)| kept.entry));
    }

    /// Forgets those claims: nothing of them is in the store.
    pub(crate) fn forget(&mut self, which: impl Fn(&Kept) -> bool) -> Vec<ClaimId> {
        self.kept.extract_if(|_, kept| which(kept)).map(|(id, _)| id).collect()
    }
}

impl Entry {
    pub(crate) fn new(id: ClaimId, parent: &str) -> Entry {
        Entry { id, parent: parent.into(), prefix: names::fresh().into(), node: None }
    }

    /// Whether this child of the lock's node is its own.
    pub(crate) fn is(&self, node: &str) -> bool {
        node.starts_with(&*self.prefix)
    }
}

impl Kept {
    /// The path of its node, once that is known.
    pub(crate) fn path(&self) -> Option<&Arc<str>> {
        self.entry.node.as_ref().map(|node| &node.path)
    }

    /// What it has if it holds, and is valid for so long since it was last wanted.
    pub(crate) fn grant(&self, validity: impl Fn(Moment) -> Validity) -> Option<Grant> {
        let node = self.entry.node.as_ref().filter(|_| self.held)?;
        Some(Grant::of_place(Place::new(node.path.clone()), node.czxid, validity(self.seen)))
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::seam::Queue;

    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    fn at(s: u64) -> Moment {
        Moment::from_nanos(s * 1_000_000_000)
    }

    fn claimed(table: &mut Table, s: u64) -> Entry {
        let claim = Claim::new("a", Mode::Exclusive, Queue::Fair, LEASE, "");
        let entry = Entry::new(claim.id, "/a");
        table.keep(&entry, &claim, LEASE, at(s));
        entry
    }

    #[test]
    fn a_claim_lapses_unless_it_is_renewed() {
        let mut table = Table::default();
        let entry = claimed(&mut table, 30);
        table.lapse(at(89));
        assert!(table.renew(entry.id, at(40)).is_some());
        table.lapse(at(99));
        assert!(table.at(&entry).is_some());
        table.lapse(at(100));
        assert!(table.at(&entry).is_none());
        assert_eq!(table.leaving[0].prefix, entry.prefix);
    }

    #[test]
    fn a_claim_that_comes_back_has_another_entry() {
        let mut table = Table::default();
        let first = claimed(&mut table, 30);
        table.leave(first.id);
        let second = Entry::new(first.id, "/a");
        table.keep(&second, &Claim::new("a", Mode::Shared, Queue::Fair, LEASE, ""), LEASE, at(31));
        assert!(table.at(&first).is_none() && first.prefix != second.prefix);
    }
}
