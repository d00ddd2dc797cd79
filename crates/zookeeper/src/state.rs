//! What is known of a session: whether it lives and since when that is proven, which claims have an entry, and which entries are
//! on their way out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId, Grant, Mode, Moment, Place};
use tokio::task::JoinSet;
use zookeeper_client::Client;

use crate::line::Child;
use crate::names;
use crate::proof::Proof;

/// A session that nobody has used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

pub(crate) struct State {
    /// `None` once the session has ended.
    pub(crate) client: Option<Client>,
    pub(crate) proof: Proof,
    /// When it was last used.
    pub(crate) used: Moment,
    pub(crate) kept: HashMap<ClaimId, Kept>,
    /// What nobody wants any more, until ZooKeeper has said that it is gone.
    pub(crate) leaving: Vec<Entry>,
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

impl Entry {
    pub(crate) fn new(id: ClaimId, parent: &str) -> Entry {
        Entry { id, parent: parent.into(), prefix: names::fresh().into(), node: None }
    }

    /// Whether this child of the lock's node is its own.
    pub(crate) fn is(&self, child: &Child) -> bool {
        child.node.starts_with(&*self.prefix)
    }
}

impl State {
    pub(crate) fn new(client: Option<Client>, proof: Proof, now: Moment) -> State {
        State { client, proof, used: now, kept: HashMap::new(), leaving: Vec::new() }
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

    /// It is this entry's turn; it has this mode and this label. `None` if nobody wants it any more.
    pub(crate) fn hold(&mut self, entry: &Entry, stored: (Mode, Arc<str>)) -> Option<Grant> {
        let kept = self.at(entry)?;
        (kept.held, kept.stored) = (true, stored);
        self.kept.get(&entry.id)?.grant(&self.proof)
    }

    /// What all that hold have, as is proven now.
    pub(crate) fn grants(&self) -> Vec<(ClaimId, Grant)> {
        let held = self.kept.iter().filter(|(_, kept)| kept.held);
        held.filter_map(|(id, kept)| Some((*id, kept.grant(&self.proof)?))).collect()
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
    pub(crate) fn is_idle(&self, now: Moment) -> bool {
        self.kept.is_empty() && self.leaving.is_empty() && self.used + IDLE <= now
    }
}

impl Kept {
    fn grant(&self, proof: &Proof) -> Option<Grant> {
        let node = self.entry.node.as_ref()?;
        Some(Grant::of_place(Place::new(node.path.clone()), node.czxid, proof.validity(self.seen)))
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::seam::Queue;

    use super::*;

    fn at(s: u64) -> Moment {
        Moment::from_nanos(s * 1_000_000_000)
    }

    fn state(now: Moment) -> State {
        State::new(None, Proof::new(now, IDLE), now)
    }

    fn claimed(state: &mut State, s: u64) -> Entry {
        let claim = Claim::new("a", Mode::Exclusive, Queue::Fair, IDLE, "");
        let entry = Entry::new(claim.id, "/a");
        state.keep(&entry, &claim, at(s));
        entry
    }

    #[test]
    fn a_session_is_idle_once_nobody_needs_it() {
        let mut state = state(at(10));
        assert!(!state.is_idle(at(69)));
        let entry = claimed(&mut state, 30);
        assert!(!state.is_idle(at(500)));
        state.leave(entry.id);
        assert!(!state.is_idle(at(500)));
        state.leaving.clear();
        assert!(state.is_idle(at(500)));
        state.used = at(490);
        assert!(!state.is_idle(at(549)));
    }

    #[test]
    fn a_claim_lapses_unless_it_is_renewed() {
        let mut state = state(at(0));
        let entry = claimed(&mut state, 30);
        state.lapse(IDLE, at(89));
        assert!(state.renew(entry.id, at(40)).is_some());
        state.lapse(IDLE, at(99));
        assert!(state.at(&entry).is_some());
        state.lapse(IDLE, at(100));
        assert!(state.at(&entry).is_none());
        assert_eq!(state.leaving[0].prefix, entry.prefix);
    }

    #[test]
    fn a_claim_that_comes_back_has_another_entry() {
        let mut state = state(at(0));
        let first = claimed(&mut state, 30);
        state.leave(first.id);
        let second = Entry::new(first.id, "/a");
        state.keep(&second, &Claim::new("a", Mode::Shared, Queue::Fair, IDLE, ""), at(31));
        assert!(state.at(&first).is_none() && first.prefix != second.prefix);
    }
}
