//! What the keeper's registry plans.

use std::sync::Arc;
use std::time::Duration;

use super::registry::Registry;
use crate::engine::claim_state::ClaimState;
use crate::seam::claim::{Claim, Mode, Place, WaitPolicy};
use crate::seam::clock::{Clock, VirtualClock};
use crate::seam::grant::Grant;
use crate::seam::loss::Loss;
use crate::seam::token::FencingToken;

const TTL: Duration = Duration::from_secs(6);

fn state(clock: &Clock, ttl: Duration) -> Arc<ClaimState> {
    let claim = Claim::new("a", Mode::Shared, WaitPolicy::Fair, ttl, "me");
    Arc::new(ClaimState::new(Arc::new(claim), clock.clone()))
}

fn held(clock: &Clock, ttl: Duration) -> Arc<ClaimState> {
    let state = state(clock, ttl);
    state.grant(Grant::new(Place::new("p"), FencingToken::new(1), ttl), clock.now());
    state.take_grant(None);
    state
}

/// Between the plan and the request a hold may be lost, by a notification or by time. It is not renewed, nor forgotten.
#[test]
fn what_is_lost_while_a_batch_is_made_comes_up_again() {
    let clock = VirtualClock::new().clock();
    let (state, due) = (held(&clock, TTL), clock.now());
    let mut registry = Registry::default();
    registry.keep(&state, due);
    assert!(registry.collect_due(due).is_empty());
    state.lose(Loss::Evicted);
    assert!(registry.take_batches(due, 0.0, 9, 16).is_empty());
    assert_eq!(registry.collect_due(due).into_iter().map(|(_, loss)| loss).collect::<Vec<_>>(), [Loss::Evicted]);
}

#[test]
fn holds_are_watched_over_and_places_in_the_queue_are_not() {
    let clock = VirtualClock::new().clock();
    let mut registry = Registry::default();
    let [one, two, three] = [(); 3].map(|()| {
        let state = state(&clock, TTL);
        registry.keep(&state, clock.now());
        state
    });
    registry.next_wake = Some(clock.now());
    assert!(!registry.sleeps_past(clock.now()), "without a hold coarse sleeps do");
    for state in [&one, &two] {
        state.grant(Grant::new(Place::new("p"), FencingToken::new(1), TTL), clock.now());
        state.take_grant(None);
        registry.schedule(state.claim.id);
    }
    assert!(registry.sleeps_past(clock.now()), "a hold began during a coarse sleep");
    registry.watching = true;
    assert!(!registry.sleeps_past(clock.now()));
    let holds = [one, three, two].map(|state| {
        assert!(registry.remove(state.claim.id).is_some());
        registry.holds
    });
    assert_eq!(holds, [1, 1, 0]);
}

/// Those that end first go first, a bounded number of requests is under way, and a lease in danger waits for none.
#[test]
fn batches_go_by_need() {
    let time = VirtualClock::new();
    let (clock, start) = (time.clock(), time.clock().now());
    let mut registry = Registry::default();
    let mut kept = Vec::new();
    for i in 0..40 {
        // The later ones have been held for longer.
        let ttl = TTL + Duration::from_millis(40 - i);
        kept.push(held(&clock, ttl));
    }
    let renew_at = start + TTL / 3;
    for state in &kept {
        registry.keep(state, renew_at);
    }
    time.advance(TTL / 3);
    let now = clock.now();
    assert!(registry.collect_due(now).is_empty());
    let batches = registry.take_batches(now, 0.0, 2, 16);
    let order: Vec<_> = batches.iter().flatten().map(|item| item.state.ttl()).collect();
    assert_eq!((batches.len(), order.len()), (16, 32));
    assert!(order.is_sorted(), "{order:?}");
    assert!(registry.take_batches(now, 0.0, 2, 0).is_empty(), "the others wait");
    assert_eq!(registry.take_batches(now, 0.0, 2, 1).len(), 1);
    // What is in flight is not sent again, and the six that wait go as soon as a third of their leases is left, unless others
    // come and go.
    let wakes = registry.agenda.first().map(|(at, _)| at.since(start));
    assert!(wakes.is_some_and(|at| (TTL * 3 / 5..TTL * 2 / 3).contains(&at)), "{wakes:?}");
    time.advance(TTL / 3 - Duration::from_millis(100));
    let now = clock.now();
    assert!(registry.collect_due(now).is_empty());
    assert!(registry.take_batches(now, 0.0, 9, 0).is_empty());
    registry.moved = Some(now);
    time.advance(Duration::from_millis(90));
    let now = clock.now();
    assert!(registry.collect_due(now).is_empty());
    assert!(registry.take_batches(now, 0.0, 9, 0).is_empty());
    time.advance(TTL / 6);
    let now = clock.now();
    assert!(registry.collect_due(now).is_empty());
    assert_eq!(registry.take_batches(now, 0.0, 50, 0).iter().flatten().count(), 40);
}
