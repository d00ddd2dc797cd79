//! What a session knows of its claims: which of them have a node, and which are on their way out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Shared};
use leasehold_core::Name;
use leasehold_core::seam::{Claim, ClaimId, Moment};
use tokio::task::AbortHandle;

/// How a withdrawal ended.
pub(crate) type Withdrawn = Result<(), zookeeper_client::Error>;

/// A withdrawal that goes on whoever listens.
pub(crate) type Leaving = Shared<BoxFuture<'static, Withdrawn>>;

/// The claims of one session.
#[derive(Default)]
pub(crate) struct Places {
    kept: HashMap<ClaimId, Kept>,
    leaving: HashMap<ClaimId, Leaving>,
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
    waiter: Option<AbortHandle>,
    held: bool,
}

/// A claim's own node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    /// The whole path.
    pub(crate) path: Arc<str>,
    /// The transaction that made it: the number in its token.
    pub(crate) czxid: i64,
    /// The label that was last stored in it.
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
        let busy = !self.kept.is_empty() || !self.leaving.is_empty();
        if busy || self.used.is_some_and(|used| used + idle > now) {
            return false;
        }
        self.closed = true;
        true
    }

    /// A request that may make a node for this claim is about to be sent.
    pub(crate) fn unsure(&mut self, claim: &Claim, lease: Duration, now: Moment) {
        let kept = Kept { claim: claim.clone(), seen: now, lease, node: None, waiter: None, held: false };
        self.kept.insert(claim.id, kept);
    }

    /// The claim is still wanted.
    pub(crate) fn renew(&mut self, id: ClaimId, now: Moment) {
        if let Some(kept) = self.kept.get_mut(&id) {
            kept.seen = now;
        }
    }

    /// The claims that hold and were last claimed or renewed after `from` and not after `to`: their nodes, and when that was.
    pub(crate) fn held_since(&self, from: Moment, to: Moment) -> Vec<(ClaimId, Node, Moment)> {
        let within = self.kept.iter().filter(|(_, kept)| kept.held && from < kept.seen && kept.seen <= to);
        within.filter_map(|(id, kept)| Some((*id, kept.node.clone()?, kept.seen))).collect()
    }

    /// The claims that nobody wants any more.
    pub(crate) fn lapsed(&self, now: Moment) -> Vec<Claim> {
        self.kept.values().filter(|kept| kept.seen + kept.lease <= now).map(|kept| kept.claim.clone()).collect()
    }

    /// The claim's node is known.
    pub(crate) fn found(&mut self, id: ClaimId, node: Node) {
        if let Some(kept) = self.kept.get_mut(&id) {
            kept.node = Some(node);
        }
    }

    /// `None`: no request of this claim was ever sent. `Some(None)`: one was, and what it left is not known.
    pub(crate) fn find(&self, id: ClaimId) -> Option<Option<Node>> {
        self.kept.get(&id).map(|kept| kept.node.clone())
    }

    /// The claim's node, if it holds.
    pub(crate) fn held(&self, id: ClaimId) -> Option<Node> {
        self.kept.get(&id).filter(|kept| kept.held)?.node.clone()
    }

    /// The claim with this node holds: its node, when it was last claimed or renewed, and whether it is news. `None` if it
    /// is not known any more.
    pub(crate) fn hold(&mut self, id: ClaimId, path: &str) -> Option<(Node, Moment, bool)> {
        let kept = self.kept.get_mut(&id).filter(|kept| kept.is_at(path))?;
        kept.stop_waiting(None);
        let news = !std::mem::replace(&mut kept.held, true);
        Some((kept.node.clone()?, kept.seen, news))
    }

    /// Whether somebody waits in line for this claim.
    pub(crate) fn is_waiting(&self, id: ClaimId) -> bool {
        self.kept.get(&id).and_then(|kept| kept.waiter.as_ref()).is_some_and(|waiter| !waiter.is_finished())
    }

    /// From now on this task waits in line for the claim, and no earlier one does.
    pub(crate) fn wait(&mut self, id: ClaimId, waiter: AbortHandle) {
        match self.kept.get_mut(&id) {
            Some(kept) => kept.stop_waiting(Some(waiter)),
            None => waiter.abort(),
        }
    }

    /// Nothing of this claim is in the store (any more).
    pub(crate) fn forget(&mut self, id: ClaimId) -> Option<Kept> {
        self.kept.remove(&id)
    }

    /// The nodes that are known now.
    pub(crate) fn known(&self) -> Vec<(ClaimId, Arc<str>)> {
        let known = self.kept.iter().filter_map(|(id, kept)| Some((*id, kept.node.as_ref()?.path.clone())));
        known.collect()
    }

    /// Forgets those of `known` whose nodes are not among `alive`, and says which.
    pub(crate) fn forget_missing(
        &mut self,
        known: &[(ClaimId, Arc<str>)],
        alive: &HashSet<String>,
    ) -> Vec<(ClaimId, Name)> {
        let missing = known.iter().filter(|(_, path)| !alive.contains(&**path));
        let mut gone = Vec::new();
        for (id, path) in missing {
            if self.kept.get(id).is_some_and(|kept| kept.is_at(path)) {
                gone.extend(self.forget(*id).map(|kept| (*id, kept.claim.name.clone())));
            }
        }
        gone
    }

    /// Forgets everything: the session has ended.
    pub(crate) fn end(&mut self) -> Vec<(ClaimId, Name)> {
        self.closed = true;
        self.kept.drain().map(|(id, kept)| (id, kept.claim.name.clone())).collect()
    }

    /// The withdrawal of this claim that is under way.
    pub(crate) fn leaving(&self, id: ClaimId) -> Option<Leaving> {
        self.leaving.get(&id).cloned()
    }

    /// The withdrawal of this claim: the one that is under way, or a new one.
    pub(crate) fn leave(
        &mut self,
        id: ClaimId,
        withdraw: impl FnOnce(Option<Kept>) -> Option<Leaving>,
    ) -> Option<Leaving> {
        if let Some(leaving) = self.leaving.get(&id) {
            return Some(leaving.clone());
        }
        let leaving = withdraw(self.kept.remove(&id))?;
        self.leaving.insert(id, leaving.clone());
        Some(leaving)
    }

    /// The withdrawal of this claim is done.
    pub(crate) fn left(&mut self, id: ClaimId) {
        self.leaving.remove(&id);
    }
}

impl Kept {
    /// The path of its node, if it is known.
    pub(crate) fn path(&self) -> Option<&str> {
        self.node.as_ref().map(|node| &*node.path)
    }

    fn is_at(&self, path: &str) -> bool {
        self.path() == Some(path)
    }

    fn stop_waiting(&mut self, next: Option<AbortHandle>) {
        if let Some(waiter) = std::mem::replace(&mut self.waiter, next) {
            waiter.abort();
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop_waiting(None);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::seam::{Mode, Queue};

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
