//! `renew`.

use leasehold_core::Loss;
use leasehold_core::backend::{LeaseRef, Moment, Renewal};

use crate::claim::Queue;

impl Queue {
    pub(crate) fn renew(&mut self, lease: &LeaseRef, now: Moment) -> Renewal {
        let Some(entry) = self
            .entries
            .iter_mut()
            .find(|entry| entry.claim.id == lease.claim.id)
        else {
            return Renewal::Lost(Loss::Gone);
        };
        if lease.token.is_some() && entry.grant().is_none() {
            return Renewal::Lost(Loss::Gone);
        }
        entry.extend(now);
        match entry.grant() {
            Some(grant) if lease.token != Some(grant.token) => Renewal::Granted(grant),
            _ => Renewal::Renewed(entry.validity()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold_core::FencingToken;
    use leasehold_core::backend::{Claim, Claimed, Mode, Place, WaitPolicy};

    use super::*;
    use crate::client::Link;
    use crate::entry::Tokens;

    const TTL: Duration = Duration::from_secs(10);

    fn at(secs: u64) -> Moment {
        Moment::from_nanos(1_000_000_000) + Duration::from_secs(secs)
    }

    fn link() -> Link {
        Link::to(Place::new("here"))
    }

    /// A queue with one holder since the tenth second.
    fn held() -> (Queue, Tokens, Claim) {
        let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "test");
        let mut queue = Queue::default();
        let mut tokens = Tokens::default();
        assert!(matches!(
            queue.claim(&claim, &link(), at(10), &mut tokens),
            Ok(Claimed::Granted(_))
        ));
        (queue, tokens, claim)
    }

    fn lease(claim: &Claim) -> LeaseRef {
        LeaseRef::new(
            Arc::new(claim.clone()),
            Place::new("here"),
            Some(FencingToken::new(1)),
        )
    }

    /// S13: a renewal that was overtaken by a confirmation shortens nothing, and what it answers is true.
    #[test]
    fn a_lease_never_gets_shorter_by_an_older_request() {
        let (mut queue, mut tokens, claim) = held();
        let Renewal::Renewed(validity) = queue.renew(&lease(&claim), at(7)) else {
            panic!("it is there")
        };
        assert_eq!(queue.entries[0].deadline(), at(20));
        assert!(validity.until(at(30)) <= at(20));
        assert!(matches!(
            queue.claim(&claim, &link(), at(9), &mut tokens),
            Ok(Claimed::Granted(_))
        ));
        assert_eq!(queue.entries[0].deadline(), at(20));
        queue.admit_waiters(at(19), &mut tokens, None);
        assert_eq!(queue.entries.len(), 1);
    }

    /// S15: a hold that was released after a while is neither renewed nor put off, and what is answered about it is true.
    #[test]
    fn what_is_released_after_a_while_is_not_renewed() {
        let (mut queue, mut tokens, claim) = held();
        queue.release_after(claim.id, at(13));
        queue.release_after(claim.id, at(15));
        let Renewal::Renewed(validity) = queue.renew(&lease(&claim), at(12)) else {
            panic!("it is there")
        };
        assert!(validity.until(at(30)) <= at(13));
        assert_eq!(queue.entries[0].deadline(), at(13));
        queue.admit_waiters(at(13), &mut tokens, None);
        assert_eq!(queue.entries.len(), 0);
    }
}
