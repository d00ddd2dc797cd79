//! What a session knows of its claims: which of them have a node, and which are on their way out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId, Mode, Moment};
use tokio::task::AbortHandle;

/// The claims of one session.
#[derive(Default)]
pub(crate) struct Places {
    kept: HashMap<ClaimId, Kept>,
    used: Option<Moment>,
    closed: bool,
}

/// What is known of one claim.
pub(crate) struct Kept {
    claim: Claim,
    /// When it was last claimed or renewed, and how long that lasts.
    seen: Moment,
    lease: Duration,
    node: Option<Node>,
    held: bool,
    /// It is being withdrawn.
    leaves: bool,
    /// The entries that it watches, and who listens.
    watched: HashMap<String, AbortHandle>,
}

/// A claim's own node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    /// The whole path.
    pub(crate) path: Arc<str>,
    /// The transaction that made it: the number in its token.
    pub(crate) czxid: i64,
    /// The mode and the label that were last stored in it.
    pub(crate) mode: Mode,
    pub(crate) label: Arc<str>,
    /// Which connection of the session saw it last.
    pub(crate) seen: u64,
}

impl Places {
    /// Takes the session into use; `false` if it is closed.
    pub(crate) fn touch(&mut self, now: Moment) -> bool {
        self.used = Some(now);
        !self.closed
    }

    /// Closes the session for new use if nothing needed it for so long.
    pub(crate) fn retire(&mut self, idle: Duration, now: Moment) -> bool {
        self.closed |= self.kept.is_empty() && self.used.is_none_or(|used| used + idle <= now);
        self.closed
    }

    /// A request that may make a node for this claim is about to be sent.
    pub(crate) fn unsure(&mut self, claim: &Claim, lease: Duration, now: Moment) {
        let (claim, watched) = (claim.clone(), HashMap::new());
        self.kept.insert(claim.id, Kept { claim, seen: now, lease, node: None, held: false, leaves: false, watched });
    }

    /// The claim is still wanted. `None`: no request of it was ever sent. `Some(None)`: one was, and what it left is not known.
    pub(crate) fn renew(&mut self, id: ClaimId, now: Moment) -> Option<Option<Node>> {
        let kept = self.kept.get_mut(&id)?;
        kept.seen = now;
        Some(kept.node.clone())
    }

    /// The claims that hold and were last claimed or renewed after `from` and not after `to`: their nodes, and when that was.
    pub(crate) fn held_since(&self, from: Moment, to: Moment) -> Vec<(ClaimId, Node, Moment)> {
        let within = self.kept.iter().filter(|(_, kept)| kept.held && from < kept.seen && kept.seen <= to);
        within.filter_map(|(id, kept)| Some((*id, kept.node.clone()?, kept.seen))).collect()
    }

    /// The claims that nobody wants any more. They are named again a lease later, if they are still known then.
    pub(crate) fn lapsed(&mut self, now: Moment) -> Vec<Claim> {
        let lapsed = self.kept.values_mut().filter(|kept| kept.seen + kept.lease <= now);
        lapsed.map(|kept| (kept.seen = now, kept.claim.clone()).1).collect()
    }

    /// The claim's node is known.
    pub(crate) fn found(&mut self, id: ClaimId, node: Node) {
        if let Some(kept) = self.kept.get_mut(&id) {
            kept.node = Some(node);
        }
    }

    /// Whether the claim was granted.
    pub(crate) fn holds(&self, id: ClaimId) -> bool {
        self.kept.get(&id).is_some_and(|kept| kept.held)
    }

    /// The claim with this node holds: its node, and when it was last claimed or renewed. `None` if it is not known any more.
    pub(crate) fn hold(&mut self, id: ClaimId, path: &str) -> Option<(Node, Moment)> {
        let kept = self.kept.get_mut(&id).filter(|kept| kept.is_at(path))?;
        kept.held = true;
        // Watches that are left end with what they watch. To remove them would cost a request each.
        kept.watched.clear();
        Some((kept.node.clone()?, kept.seen))
    }

    /// The entries that are watched for this claim.
    pub(crate) fn watched(&self, id: ClaimId) -> HashSet<String> {
        self.kept.get(&id).map(|kept| kept.watched.keys().cloned().collect()).unwrap_or_default()
    }

    /// This entry is watched for this claim.
    pub(crate) fn watch(&mut self, id: ClaimId, node: String, watch: AbortHandle) {
        match self.kept.get_mut(&id) {
            Some(kept) => drop(kept.watched.insert(node, watch)),
            None => watch.abort(),
        }
    }

    /// This entry is not watched any more.
    pub(crate) fn unwatch(&mut self, id: ClaimId, node: &str) {
        if let Some(kept) = self.kept.get_mut(&id) {
            kept.watched.remove(node);
        }
    }

    /// Nothing of this claim is in the store (any more).
    pub(crate) fn forget(&mut self, id: ClaimId) {
        self.kept.remove(&id);
    }

    /// The nodes that are known now, and stay.
    pub(crate) fn known(&self) -> Vec<(ClaimId, Arc<str>)> {
        let kept = self.kept.iter().filter(|(_, kept)| !kept.leaves);
        kept.filter_map(|(id, kept)| Some((*id, kept.node.as_ref()?.path.clone()))).collect()
    }

    /// Forgets those of `known` whose nodes are not among `alive`, and says which.
    pub(crate) fn forget_missing(&mut self, known: &[(ClaimId, Arc<str>)], alive: &HashSet<String>) -> Vec<ClaimId> {
        let missing = known.iter().filter(|(_, path)| !alive.contains(&**path));
        let missing = missing.filter(|(id, path)| self.kept.get(id).is_some_and(|kept| kept.is_at(path)));
        let gone: Vec<ClaimId> = missing.map(|(id, _)| *id).collect();
        gone.iter().for_each(|id| drop(self.kept.remove(id)));
        gone
    }

    /// Forgets everything: the session has ended.
    pub(crate) fn end(&mut self) -> Vec<ClaimId> {
        self.closed = true;
        self.kept.drain().map(|(id, _)| id).collect()
    }

    /// Begins to withdraw this claim: the path of its node, as far as it is known. `None` if nothing of it was ever sent.
    pub(crate) fn leave(&mut self, id: ClaimId) -> Option<Option<Arc<str>>> {
        let kept = self.kept.get_mut(&id)?;
        (kept.leaves, kept.held) = (true, false);
        Some(kept.node.as_ref().map(|node| node.path.clone()))
    }

    /// Whether a withdrawal of this claim was begun and is not known to be done.
    pub(crate) fn leaves(&self, id: ClaimId) -> bool {
        self.kept.get(&id).is_some_and(|kept| kept.leaves)
    }
}

impl Kept {
    fn is_at(&self, path: &str) -> bool {
        self.node.as_ref().is_some_and(|node| *node.path == *path)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.watched.values().for_each(AbortHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::seam::Queue;

    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    fn at(s: u64) -> Moment {
        Moment::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn a_session_retires_once_nobody_needs_it() {
        let mut places = Places::default();
        let claim = Claim::new("a", Mode::Exclusive, Queue::Fair, IDLE, "");
        assert!(places.touch(at(10)));
        assert!(!places.retire(IDLE, at(69)));
        places.unsure(&claim, IDLE, at(30));
        assert!(!places.retire(IDLE, at(500)));
        places.forget(claim.id);
        assert!(places.touch(at(490)));
        assert!(!places.retire(IDLE, at(500)));
        assert!(places.retire(IDLE, at(550)));
        assert!(!places.touch(at(551)));
    }

    #[test]
    fn a_claim_lapses_unless_it_is_renewed() {
        let mut places = Places::default();
        let claim = Claim::new("a", Mode::Exclusive, Queue::Fair, IDLE, "");
        places.unsure(&claim, IDLE, at(30));
        assert!(places.lapsed(at(89)).is_empty());
        places.renew(claim.id, at(40));
        assert!(places.lapsed(at(90)).is_empty());
        assert_eq!(places.lapsed(at(100))[0].id, claim.id);
    }
}
