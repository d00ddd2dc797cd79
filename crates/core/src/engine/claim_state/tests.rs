//! What a claim's state makes of grants, losses and time.

use super::*;
use crate::seam::claim::{Mode, WaitPolicy};
use crate::seam::clock::VirtualClock;

const TTL: Duration = Duration::from_secs(10);

fn state() -> (VirtualClock, Arc<ClaimState>) {
    let time = VirtualClock::new();
    let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "me");
    let state = Arc::new(ClaimState::new(claim, time.clock()));
    (time, state)
}

fn grant(token: u64, since: Moment) -> Grant {
    Grant::new(Place::new("p"), FencingToken::new(token), Validity::since(since, TTL))
}

fn extend(state: &ClaimState, time: &VirtualClock, token: Option<FencingToken>) {
    let now = time.clock().now();
    state.extend_at(now, token, Validity::from(TTL), now);
}

#[test]
fn loss_is_terminal_even_when_a_renewal_comes_after_all() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    assert!(s.take_grant(time.clock().now(), None).is_some());
    time.advance(TTL);
    extend(&s, &time, Some(FencingToken::new(1)));
    assert_eq!(s.loss(), Some(Loss::Expired));
    s.grant(grant(1, time.clock().now()), time.clock().now());
    assert_eq!((s.loss(), s.remaining()), (Some(Loss::Expired), Duration::ZERO));
}

#[test]
fn other_terms_of_the_server_shorten_what_was_promised() {
    let (time, s) = state();
    let since = time.clock().now();
    s.grant(grant(1, since), since);
    assert!(s.take_grant(time.clock().now(), None).is_some());
    s.notify(Notification::Shortened(Validity::since(since, TTL * 2)));
    assert!(s.remaining() > TTL / 2);
    s.notify(Notification::Shortened(Validity::since(since, TTL / 2)));
    time.advance(TTL / 2);
    assert_eq!((s.loss(), s.remaining()), (Some(Loss::Expired), Duration::ZERO));
}

#[tokio::test]
async fn the_first_that_sees_the_end_notifies_the_others() {
    for late in 0..3 {
        let (time, s) = state();
        s.grant(grant(1, time.clock().now()), time.clock().now());
        s.take_grant(time.clock().now(), None);
        let notified = s.changed.notified();
        time.advance(TTL);
        match late {
            0 => extend(&s, &time, Some(FencingToken::new(1))),
            1 => s.grant(grant(1, time.clock().now()), time.clock().now()),
            _ => assert_eq!(s.loss(), Some(Loss::Expired)),
        }
        tokio::time::timeout(Duration::from_secs(5), notified).await.unwrap();
    }
}

#[test]
fn an_end_of_validity_before_the_grant_was_taken_is_no_loss() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    time.advance(TTL);
    assert!(s.take_grant(time.clock().now(), None).is_none());
    assert_eq!(s.loss(), None);
    s.grant(grant(2, time.clock().now()), time.clock().now());
    assert_eq!(s.take_grant(time.clock().now(), None).map(|g| g.token.get()), Some(2));
}

#[test]
fn another_token_under_a_guard_means_that_its_own_is_gone() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    s.take_grant(time.clock().now(), None);
    s.grant(grant(2, time.clock().now()), time.clock().now());
    assert_eq!(s.loss(), Some(Loss::Gone));
}

#[test]
fn a_late_push_of_an_older_grant_changes_nothing() {
    let (time, s) = state();
    s.grant(grant(5, time.clock().now()), time.clock().now());
    s.notify(Notification::Granted(grant(4, time.clock().now())));
    assert_eq!(s.take_grant(time.clock().now(), None).map(|g| g.token.get()), Some(5));
}

#[test]
fn a_renewal_extends_only_the_grant_that_it_named() {
    let (time, s) = state();
    let began = time.clock().now();
    s.grant(grant(5, began), began);
    time.advance(TTL / 2);
    for other in [None, Some(FencingToken::new(4))] {
        extend(&s, &time, other);
    }
    time.advance(TTL / 2);
    assert!(s.take_grant(time.clock().now(), None).is_none());
}

#[test]
fn a_grant_is_renewed_at_its_own_place() {
    let (time, s) = state();
    s.wait_at(Place::new("first"));
    s.grant(grant(1, time.clock().now()), time.clock().now());
    s.wait_at(Place::new("second"));
    let lease = s.to_renew(time.clock().now()).2.unwrap();
    assert_eq!((lease.place, lease.token), (Place::new("p"), Some(FencingToken::new(1))));
}

#[test]
fn a_push_without_an_instant_is_only_a_notification() {
    let (_time, s) = state();
    s.notify(Notification::Granted(Grant::new(Place::new("p"), FencingToken::new(1), TTL)));
    assert_eq!(s.take_change(), Some(Woken::Again));
    assert_eq!(s.take_change(), None);
}

#[test]
fn max_hold_ends_it_whatever_is_renewed() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    s.take_grant(time.clock().now(), Some(Duration::from_secs(3)));
    assert_eq!(s.remaining(), Duration::from_secs(3));
    time.advance(Duration::from_secs(3));
    extend(&s, &time, Some(FencingToken::new(1)));
    assert_eq!(s.loss(), Some(Loss::MaxHold));
}

/// Two holders of a token would be worse than none: what gives back a turn and what ends it by time is decided once.
#[test]
fn a_turn_was_given_back_or_lost_and_stays_so() {
    let one = FencingToken::new(1);
    for late in [false, true] {
        let (time, s) = state();
        s.grant(grant(1, time.clock().now()), time.clock().now());
        s.take_grant(time.clock().now(), None);
        if late {
            time.advance(TTL);
        }
        let end = s.leave(one);
        assert_eq!(end, Some(if late { Loss::Expired } else { Loss::Released }));
        time.advance(TTL);
        assert_eq!(s.loss_of(one), end);
        assert!(!s.share(one));
    }
}

#[test]
fn the_last_guard_ends_a_turn_and_no_other_turn_is_entered_in_its_place() {
    let (time, s) = state();
    let [one, two] = [1, 2].map(FencingToken::new);
    s.grant(grant(1, time.clock().now()), time.clock().now());
    s.take_grant(time.clock().now(), None);
    assert!(s.share(one));
    assert_eq!((s.leave(one), s.guards()), (None, 1));
    assert_eq!(s.leave(one), Some(Loss::Released));
    s.next_turn(time.clock().now(), None);
    assert!(!s.share(one), "its owner would share the turn of another task");
    assert!(s.share(two));
    s.lose(Loss::Evicted);
    assert!(!s.share(two));
    assert_eq!((s.loss_of(one), s.loss_of(two)), (Some(Loss::Released), Some(Loss::Evicted)));
}

#[test]
fn nobody_shares_a_grant_that_has_no_guard() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    assert!(!s.share(FencingToken::new(1)));
    assert_eq!(s.guards(), 0);
}

#[test]
fn a_loss_of_an_older_lease_is_not_one_of_the_grant() {
    let (time, s) = state();
    s.grant(grant(2, time.clock().now()), time.clock().now());
    assert!(s.take_grant(time.clock().now(), None).is_some());
    for older in [None, Some(FencingToken::new(1))] {
        s.lose_lease(older, Loss::Gone);
        assert_eq!(s.loss(), None);
    }
    s.lose_lease(Some(FencingToken::new(2)), Loss::Gone);
    assert_eq!(s.loss(), Some(Loss::Gone));
}

/// A grant that was asked for before the store said that the place is gone may be gone, too: it is claimed again.
#[test]
fn a_grant_from_before_the_loss_of_its_place_is_asked_for_again() {
    let (time, s) = state();
    let asked = time.clock().now();
    time.advance(Duration::from_secs(1));
    s.lose(Loss::Gone);
    assert_eq!(s.take_change(), Some(Woken::Again));
    s.grant(grant(1, asked), asked);
    assert_eq!(s.take_change(), Some(Woken::Again));
    assert!(s.take_grant(time.clock().now(), None).is_none());
    let now = time.clock().now();
    s.grant(grant(1, now), now);
    assert!(s.take_grant(now, None).is_some());
}

/// It may have been granted anew to the same claim before a guard had it.
#[test]
fn the_newest_grant_is_the_guards() {
    let (time, s) = state();
    let now = time.clock().now();
    s.grant(grant(1, now), now);
    s.grant(grant(2, now), now);
    assert_eq!((s.take_grant(now, None).map(|g| g.token.get()), s.loss()), (Some(2), None));
}

#[tokio::test]
async fn a_promise_that_gets_shorter_is_news() {
    let (time, s) = state();
    let since = time.clock().now();
    s.grant(grant(1, since), since);
    s.take_grant(since, None);
    let mut changed = Box::pin(s.changed.notified());
    assert!(futures_util::poll!(&mut changed).is_pending());
    s.notify(Notification::Shortened(Validity::since(since, TTL / 2)));
    assert!(futures_util::poll!(&mut changed).is_ready());
}

/// A place in the queue is renewed a little before half of its lease is over, so it has at least eleven twentieths; a third of the
/// lease before the end of these it is late. A grant says itself until when it is good.
#[test]
fn a_third_of_the_lease_is_kept_for_a_late_renewal() {
    let (time, s) = state();
    let asked = time.clock().now();
    assert_eq!(s.look().third_left_at(asked).since(asked), TTL * 11 / 20 - TTL / 3);
    s.grant(grant(1, asked), asked);
    let good = Validity::since(asked, TTL).until(asked).since(asked);
    assert_eq!(s.look().third_left_at(asked).since(asked), good - TTL / 3);
}
