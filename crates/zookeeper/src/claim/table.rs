//! The claims that live in one session: which have an entry, and which entries are on their way out.

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
    pub(crate) kept: HashMap<ClaimId, Kept>,
    /// What nobody wants any more, until ZooKeeper has said that it is gone.
    pub(crate) leaving: Vec<(ClaimId, Node)>,
}

/// A claim of which something may be in the store.
pub(crate) struct Kept {
    /// Its place in line.
    pub(crate) entry: Node,
    /// When it was last claimed or renewed.
    asked: Moment,
    /// At some moment after this one its entry was surely there: a hold is proven by its own entry, and not by the session.
    there: Moment,
    /// How long it lasts if that is not done again.
    lease: Duration,
    /// The mode and the label that were last stored.
    pub(crate) stored: (Mode, Arc<str>),
    /// It was granted.
    pub(crate) held: bool,
    /// What rings for it while it waits.
    pub(crate) watches: JoinSet<()>,
}

impl Claims {
    /// A request that may make this entry is about to be sent.
    pub(crate) fn keep(&mut self, entry: &Node, claim: &Claim, lease: Duration, now: Moment) {
        let (entry, stored, watches) = (entry.clone(), (claim.mode, claim.label.clone()), JoinSet::new());
        self.kept.insert(claim.id, Kept { entry, asked: now, there: now, lease, stored, held: false, watches });
    }

    /// The claim is still wanted: what is known of it.
    pub(crate) fn renew(&mut self, id: ClaimId, now: Moment) -> Option<&Kept> {
        let kept = self.kept.get_mut(&id)?;
        kept.asked = now;
        Some(kept)
    }

    /// What is known of the claim, if it still has this entry.
    pub(crate) fn at(&mut self, id: ClaimId, entry: &Node) -> Option<&mut Kept> {
        self.kept.get_mut(&id).filter(|kept| kept.entry.prefix == entry.prefix)
    }

    /// Whether something is held by the node at this path, which this transaction made.
    pub(crate) fn holds(&self, place: &Place, made: i64) -> bool {
        let is_it = |(path, czxid): &(Arc<str>, i64)| **path == *place.as_str() && *czxid == made;
        self.kept.values().any(|kept| kept.held && kept.entry.made.as_ref().is_some_and(is_it))
    }

    /// Nobody wants this claim any more.
    pub(crate) fn leave(&mut self, id: ClaimId) {
        self.leaving.extend(self.kept.remove(&id).map(|kept| (id, kept.entry)));
    }

    /// Nobody wants what was not claimed again or renewed for a whole lease.
    pub(crate) fn lapse(&mut self, now: Moment) {
        let lapsed = self.kept.extract_if(|_, kept| kept.asked + kept.lease <= now);
        self.leaving.extend(lapsed.map(|(id, kept)| (id, kept.entry)));
    }
}

impl Kept {
    /// Its entry was seen by something that was asked for at `asked`, and that no server answers from an older state.
    pub(crate) fn seen(&mut self, asked: Moment) {
        self.there = self.there.max(asked);
    }

    /// How long it lasts, as is proven now.
    pub(crate) fn validity(&self, session: &Session) -> Validity {
        session.validity(self.there)
    }

    /// What it has if it holds, as is proven now.
    pub(crate) fn grant(&self, session: &Session) -> Option<Grant> {
        let (path, czxid) = self.entry.made.as_ref().filter(|_| self.held)?;
        Some(Grant::of_place(Place::new(path.clone()), *czxid, self.validity(session)))
    }
}

/// What all that is held has, as is proven now.
pub(crate) fn grants(session: &Session) -> Vec<(ClaimId, Grant)> {
    let grant = |(id, kept): (&ClaimId, &Kept)| Some((*id, kept.grant(session)?));
    session.tenant().kept.iter().filter_map(grant).collect()
}

/// These claims have nothing in the store any more. Rings for them, and says how many there were.
pub(crate) fn lose(session: &Session, loss: Loss, which: impl Fn(&Kept) -> bool) -> usize {
    let lost: Vec<ClaimId> = session.tenant().kept.extract_if(|_, kept| which(kept)).map(|(id, _)| id).collect();
    lost.iter().for_each(|id| session.notifier.lost(*id, loss));
    lost.len()
}

#[cfg(test)]
mod tests {
    use leasehold_core::seam::WaitPolicy;

    use super::*;
    use crate::client::Tenant;

    const LEASE: Duration = Duration::from_secs(60);

    fn at(s: u64) -> Moment {
        Moment::from_nanos(s * 1_000_000_000)
    }

    fn claimed(claims: &mut Claims, s: u64) -> (ClaimId, Node) {
        let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, LEASE, "");
        let entry = Node::new("/a");
        claims.keep(&entry, &claim, LEASE, at(s));
        (claim.id, entry)
    }

    #[test]
    fn a_session_is_needed_until_nothing_of_its_claims_can_be_left() {
        let mut claims = Claims::default();
        assert!(claims.is_idle());
        let (id, _) = claimed(&mut claims, 30);
        assert!(!claims.is_idle());
        claims.leave(id);
        assert!(!claims.is_idle());
        claims.leaving.clear();
        assert!(claims.is_idle());
    }

    #[test]
    fn a_claim_lapses_unless_it_is_renewed() {
        let mut claims = Claims::default();
        let (id, entry) = claimed(&mut claims, 30);
        claims.lapse(at(89));
        assert!(claims.renew(id, at(40)).is_some());
        claims.lapse(at(99));
        assert!(claims.at(id, &entry).is_some());
        claims.lapse(at(100));
        assert!(claims.at(id, &entry).is_none());
        assert_eq!(claims.leaving[0].1.prefix, entry.prefix);
    }

    #[test]
    fn a_claim_that_comes_back_has_another_entry() {
        let mut claims = Claims::default();
        let (id, first) = claimed(&mut claims, 30);
        claims.leave(id);
        let second = Node::new("/a");
        let mut again = Claim::new("a", Mode::Shared, WaitPolicy::Fair, LEASE, "");
        again.id = id;
        claims.keep(&second, &again, LEASE, at(31));
        assert!(claims.at(id, &first).is_none() && claims.at(id, &second).is_some());
    }
}
