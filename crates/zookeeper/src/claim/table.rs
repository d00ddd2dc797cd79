//! The claims that live in one session: which have an entry, and which entries are being removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Loss;
use leasehold_core::seam::{Claim, ClaimId, Grant, Mode, Moment, Place, Validity};
use tokio::task::JoinSet;

use crate::client::{self, Node};

pub(crate) type Session = client::Session<Claims>;

#[derive(Default)]
pub(crate) struct Claims {
    pub(crate) tracked: HashMap<ClaimId, Tracked>,
    /// What is no longer wanted, until ZooKeeper has answered that it is removed.
    pub(crate) abandoned: Vec<(ClaimId, Node)>,
}

/// A claim of which something may be in the store.
pub(crate) struct Tracked {
    /// Its place in the queue.
    pub(crate) entry: Node,
    /// When it was last claimed or renewed.
    last_used: Moment,
    /// At some moment after this one its entry surely existed: a hold is verified by its own entry, not by the session alone.
    verified: Moment,
    /// How long it lasts without being claimed or renewed.
    lease: Duration,
    /// The mode and the label that were last stored.
    pub(crate) stored: (Mode, Arc<str>),
    /// It is granted.
    pub(crate) held: bool,
    /// What notifies it while it waits.
    pub(crate) watches: JoinSet<()>,
}

impl Claims {
    /// A request that may create this entry is about to be sent.
    pub(crate) fn track(&mut self, entry: &Node, claim: &Claim, lease: Duration, now: Moment) {
        let (entry, stored, watches) = (entry.clone(), (claim.mode, claim.label.clone()), JoinSet::new());
        let tracked = Tracked { entry, last_used: now, verified: now, lease, stored, held: false, watches };
        self.tracked.insert(claim.id, tracked);
    }

    /// The claim is claimed again or renewed.
    pub(crate) fn mark_used(&mut self, id: ClaimId, now: Moment) -> Option<&Tracked> {
        let tracked = self.tracked.get_mut(&id)?;
        tracked.last_used = now;
        Some(tracked)
    }

    /// What is known of the claim, if it still has this entry.
    pub(crate) fn with_entry(&mut self, id: ClaimId, entry: &Node) -> Option<&mut Tracked> {
        self.tracked.get_mut(&id).filter(|tracked| tracked.entry.prefix == entry.prefix)
    }

    /// Whether a hold's node is at this path, created by this transaction.
    pub(crate) fn holds(&self, place: &Place, czxid: i64) -> bool {
        let is_it = |created: &(Arc<str>, i64)| *created.0 == *place.as_str() && created.1 == czxid;
        self.tracked.values().any(|tracked| tracked.held && tracked.entry.created.as_ref().is_some_and(is_it))
    }

    /// The claim is no longer wanted.
    pub(crate) fn abandon(&mut self, id: ClaimId) {
        self.abandoned.extend(self.tracked.remove(&id).map(|tracked| (id, tracked.entry)));
    }

    /// Abandons what was not claimed or renewed for a whole lease.
    pub(crate) fn abandon_unused(&mut self, now: Moment) {
        let unused = self.tracked.extract_if(|_, tracked| tracked.last_used + tracked.lease <= now);
        self.abandoned.extend(unused.map(|(id, tracked)| (id, tracked.entry)));
    }
}

impl Tracked {
    /// Its entry was found by a request that was sent at `asked`, and that no server answers from an older state.
    pub(crate) fn verified(&mut self, asked: Moment) {
        self.verified = self.verified.max(asked);
    }

    /// How long it lasts, as is verified now.
    pub(crate) fn validity(&self, session: &Session) -> Validity {
        session.state().liveness.validity(self.verified)
    }

    /// Its grant if it holds, as is verified now.
    pub(crate) fn grant(&self, session: &Session) -> Option<Grant> {
        let (path, czxid) = self.entry.created.as_ref().filter(|_| self.held)?;
        Some(Grant::of_place(Place::new(path.clone()), *czxid, self.validity(session)))
    }
}

/// The grants of all holds, as is verified now.
pub(crate) fn grants(session: &Session) -> Vec<(ClaimId, Grant)> {
    let grant = |(id, tracked): (&ClaimId, &Tracked)| Some((*id, tracked.grant(session)?));
    session.handler().tracked.iter().filter_map(grant).collect()
}

/// These claims have nothing in the store any more. Notifies them, and returns how many there were.
pub(crate) fn lose(session: &Session, loss: Loss, which: impl Fn(&Tracked) -> bool) -> usize {
    let lost = session.handler().tracked.extract_if(|_, tracked| which(tracked)).map(|(id, _)| id).collect::<Vec<_>>();
    lost.iter().for_each(|id| session.notifier.lost(*id, loss));
    lost.len()
}

#[cfg(test)]
mod tests {
    use leasehold_core::seam::WaitPolicy;

    use super::*;
    use crate::client::SessionHandler;

    const LEASE: Duration = Duration::from_secs(60);

    fn at(s: u64) -> Moment {
        Moment::from_nanos(s * 1_000_000_000)
    }

    fn claimed(claims: &mut Claims, s: u64) -> (ClaimId, Node) {
        let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, LEASE, "");
        let entry = Node::new("/a");
        claims.track(&entry, &claim, LEASE, at(s));
        (claim.id, entry)
    }

    #[test]
    fn a_session_is_needed_until_nothing_of_its_claims_can_be_left() {
        let mut claims = Claims::default();
        assert!(claims.is_idle());
        let (id, _) = claimed(&mut claims, 30);
        assert!(!claims.is_idle());
        claims.abandon(id);
        assert!(!claims.is_idle());
        claims.abandoned.clear();
        assert!(claims.is_idle());
    }

    #[test]
    fn a_claim_that_is_not_renewed_is_abandoned() {
        let mut claims = Claims::default();
        let (id, entry) = claimed(&mut claims, 30);
        claims.abandon_unused(at(89));
        assert!(claims.mark_used(id, at(40)).is_some());
        claims.abandon_unused(at(99));
        assert!(claims.with_entry(id, &entry).is_some());
        claims.abandon_unused(at(100));
        assert!(claims.with_entry(id, &entry).is_none());
        assert_eq!(claims.abandoned[0].1.prefix, entry.prefix);
    }

    #[test]
    fn a_claim_that_comes_back_has_another_entry() {
        let mut claims = Claims::default();
        let (id, first) = claimed(&mut claims, 30);
        claims.abandon(id);
        let second = Node::new("/a");
        let mut again = Claim::new("a", Mode::Shared, WaitPolicy::Fair, LEASE, "");
        again.id = id;
        claims.track(&second, &again, LEASE, at(31));
        assert!(claims.with_entry(id, &first).is_none() && claims.with_entry(id, &second).is_some());
    }
}
