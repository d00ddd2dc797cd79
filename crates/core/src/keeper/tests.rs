//! What the keeper's registry plans.

use super::*;
use crate::claim::{Claim, Mode, Place, Queue};
use crate::clock::VirtualClock;
use crate::grant::Grant;

/// Between the look of `plan` and the batch a hold may be lost, by a bell or by time. It is not renewed, nor forgotten.
#[test]
fn what_is_lost_while_a_batch_is_made_comes_up_again() {
    let clock = VirtualClock::new().clock();
    let claim = Claim::new("a", Mode::Exclusive, Queue::Fair, Duration::from_secs(6), "me");
    let standing = Arc::new(Standing::new(Arc::new(claim), clock.clone()));
    let token = FencingToken::new(1);
    standing.grant(Grant::new(Place::new("p"), token, Duration::from_secs(6)), clock.now());
    standing.take(None);
    let (id, due) = (standing.claim.id, clock.now());
    let mut registry = Registry::default();
    registry
        .kept
        .insert(id, Kept { standing: standing.clone(), renew_at: due, release_at: None, at: None, is_hold: false });
    standing.lose(Loss::Evicted);
    assert!(registry.take_batch(clock.now(), 0.0).is_empty());
    assert_eq!(registry.agenda.first(), Some(&(clock.now(), id)));
}

#[test]
fn holds_are_watched_over_and_places_in_line_are_not() {
    let time = VirtualClock::new();
    let (clock, ttl) = (time.clock(), Duration::from_secs(6));
    let mut registry = Registry::default();
    let [one, two, three] = [(); 3].map(|()| {
        let claim = Claim::new("a", Mode::Shared, Queue::Fair, ttl, "me");
        let standing = Arc::new(Standing::new(Arc::new(claim), clock.clone()));
        let kept =
            Kept { standing: standing.clone(), renew_at: clock.now(), release_at: None, at: None, is_hold: false };
        registry.kept.insert(standing.claim.id, kept);
        registry.schedule(standing.claim.id);
        standing
    });
    registry.next_wake = Some(clock.now());
    assert!(!registry.sleeps_past(clock.now()), "nobody holds: naps do");
    for standing in [&one, &two] {
        standing.grant(Grant::new(Place::new("p"), FencingToken::new(1), ttl), clock.now());
        standing.take(None);
        registry.schedule(standing.claim.id);
    }
    assert!(registry.sleeps_past(clock.now()), "a hold began while the keeper napped");
    registry.watching = true;
    assert!(!registry.sleeps_past(clock.now()));
    let holds = [one, three, two].map(|standing| {
        registry.remove(standing.claim.id);
        registry.holds
    });
    assert_eq!(holds, [1, 1, 0]);
}
