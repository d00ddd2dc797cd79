//! What a claim's state makes of grants, losses and time.

use super::*;
use crate::seam::claim::{Mode, WaitPolicy};
use crate::seam::clock::VirtualClock;

const TTL: Duration = Duration::from_secs(10);

fn state() -> (VirtualClock, ClaimState) {
    let time = VirtualClock::new();
    let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "me");
    let state = ClaimState::new(claim, time.clock());
    (time, state)
}

fn grant(token: u64, since: Moment) -> Grant {
    Grant::new(Place::new("p"), FencingToken::new(token), Validity::since(since, TTL))
}

#[test]
fn loss_is_terminal_even_when_a_renewal_comes_after_all() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    assert!(s.take_grant(time.clock().now(), None).is_some());
    time.advance(TTL);
    s.extend(Validity::from(TTL), time.clock().now());
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
            0 => s.extend(Validity::from(TTL), time.clock().now()),
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
    s.extend(Validity::from(TTL), time.clock().now());
    assert_eq!(s.loss(), Some(Loss::MaxHold));
}
