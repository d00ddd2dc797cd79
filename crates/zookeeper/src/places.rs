//! What a session knows of its claims: which of them have an entry, and which entries are on their way out. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId, Mode, Moment};
use tokio::task::JoinSet;

use crate::line::Child;
use crate::names;

/// A session that nobody has used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// The claims of one session.
pub(crate) struct Places {
    pub(crate) kept: HashMap<ClaimId, Kept>,
    /// What nobody wants any more, until ZooKeeper has said that it is gone.
    pub(crate) leaving: Vec<Entry>,
    /// When the session was last used.
    pub(crate) used: Moment,
}

/// A claim of which something may be in the store.
pub(crate) struct Kept {
    pub(crate) entry: Entry,
    /// When it was last claimed or renewed.
    pub(crate) seen: Moment,
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
    /// Its node; `None` until ZooKeeper has said that it is there.
    pub(crate) node: Option<Node>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The whole path.
    pub(crate) path: Arc<str>,
    /// The transaction that made it: the number in its token.
    pub(crate) czxid: i64,
}

impl Entry {
    pub(crate) fn new(id: ClaimId, parent: &str) -> Entry {
        Entry { id, parent: parent.into(), prefix: names::fresh().into(), node: None }
    }

    /// Whether this child of the lock's node is its own.
    pub(crate) fn is(&self, child: &Child) -> bool {
        child.node.starts_with(&*self.prefix)
    }
}

impl Places {
    pub(crate) fn new(now: Moment) -> Places {
        Places { kept: HashMap::new(), leaving: Vec::new(), used: now }
    }

    /// A request that may make this entry is about to be sent.
    pub(crate) fn keep(&mut self, entry: &Entry, claim: &Claim, now: Moment) {
        let (stored, watches) = ((claim.mode, claim.label.clone()), JoinSet::new());
        self.kept.insert(claim.id, Kept { entry: entry.clone(), seen: now, stored, held: false, watches });
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

    /// Where the entry's node is.
    pub(crate) fn found(&mut self, entry: &Entry) {
        if let Some(kept) = self.at(entry) {
            kept.entry.node = entry.node.clone();
        }
    }

    /// Nobody wants this claim any more.
    pub(crate) fn leave(&mut self, id: ClaimId) {
        self.leaving.extend(self.kept.remove(&id).map(|kept| kept.entry));
    }

    /// Nobody wants what was not claimed again or renewed for a whole lease.
    pub(crate) fn lapse(&mut self, lease: Duration, now: Moment) {
        let lapsed = self.kept.extract_if(|_, kept| kept.seen + lease <= now);
        self.leaving.extend(lapsed.map(|(_, kept)| kept.entry));
    }

    /// Whether nothing needs the session, and nothing did for a while.
    pub(crate) fn are_idle(&self, now: Moment) -> bool {
        self.kept.is_empty() && self.leaving.is_empty() && self.used + IDLE <= now
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::seam::Queue;

    use super::*;

    fn at(s: u64) -> Moment {
        Moment::from_nanos(s * 1_000_000_000)
    }

    fn claimed(places: &mut Places, s: u64) -> Entry {
        let claim = Claim::new("a", Mode::Exclusive, Queue::Fair, IDLE, "");
        let entry = Entry::new(claim.id, "/a");
        places.keep(&entry, &claim, at(s));
        entry
    }

    #[test]
    fn a_session_is_idle_once_nobody_needs_it() {
        let mut places = Places::new(at(10));
        assert!(!places.are_idle(at(69)));
        let entry = claimed(&mut places, 30);
        assert!(!places.are_idle(at(500)));
        places.leave(entry.id);
        assert!(!places.are_idle(at(500)));
        places.leaving.clear();
        assert!(places.are_idle(at(500)));
        places.used = at(490);
        assert!(!places.are_idle(at(549)));
    }

    #[test]
    fn a_claim_lapses_unless_it_is_renewed() {
        let mut places = Places::new(at(0));
        let entry = claimed(&mut places, 30);
        places.lapse(IDLE, at(89));
        assert!(places.renew(entry.id, at(40)).is_some());
        places.lapse(IDLE, at(99));
        assert!(places.at(&entry).is_some());
        places.lapse(IDLE, at(100));
        assert!(places.at(&entry).is_none());
        assert_eq!(places.leaving[0].prefix, entry.prefix);
    }

    #[test]
    fn a_claim_that_comes_back_has_another_entry() {
        let mut places = Places::new(at(0));
        let first = claimed(&mut places, 30);
        places.leave(first.id);
        let second = Entry::new(first.id, "/a");
        places.keep(&second, &Claim::new("a", Mode::Shared, Queue::Fair, IDLE, ""), at(31));
        assert!(places.at(&first).is_none() && first.prefix != second.prefix);
    }
}
