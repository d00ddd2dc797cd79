//! Tests of a claim's state under grants, losses and time.

use super::*;
use crate::backend::claim::{Mode, WaitPolicy};
use crate::backend::clock::VirtualClock;

const TTL: Duration = Duration::from_secs(10);

fn state() -> (VirtualClock, Arc<ClaimState>) {
    state_within(Bounds::default())
}

fn state_within(bounds: Bounds) -> (VirtualClock, Arc<ClaimState>) {
    let time = VirtualClock::new();
    let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "me");
    let state = Arc::new(ClaimState::new(claim, time.clock(), bounds));
    (time, state)
}

fn grant(token: u64, since: Moment) -> Grant {
    Grant::new(
        Place::new("p"),
        FencingToken::new(token),
        Validity::since(since, TTL),
    )
}

fn extend(state: &ClaimState, time: &VirtualClock, token: Option<FencingToken>) {
    let now = time.clock().now();
    state.extend_at(now, token, Validity::from(TTL), now);
}

#[test]
fn loss_is_terminal_even_when_a_renewal_comes_after_all() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    assert!(s.take_grant(time.clock().now()).is_some());
    time.advance(TTL);
    extend(&s, &time, Some(FencingToken::new(1)));
    assert_eq!(s.loss(), Some(Loss::Expired));
    s.grant(grant(1, time.clock().now()), time.clock().now());
    assert_eq!(
        (s.loss(), s.remaining()),
        (Some(Loss::Expired), Duration::ZERO)
    );
}

#[test]
fn other_terms_of_the_server_shorten_what_was_promised() {
    let (time, s) = state();
    let since = time.clock().now();
    s.grant(grant(1, since), since);
    assert!(s.take_grant(time.clock().now()).is_some());
    s.notify(Notification::Shortened(Validity::since(since, TTL * 2)));
    assert!(s.remaining() > TTL / 2);
    s.notify(Notification::Shortened(Validity::since(since, TTL / 2)));
    time.advance(TTL / 2);
    assert_eq!(
        (s.loss(), s.remaining()),
        (Some(Loss::Expired), Duration::ZERO)
    );
}

#[tokio::test]
async fn the_first_that_sees_the_end_notifies_the_others() {
    for late in 0..3 {
        let (time, s) = state();
        s.grant(grant(1, time.clock().now()), time.clock().now());
        s.take_grant(time.clock().now());
        let notified = s.changed.notified();
        time.advance(TTL);
        match late {
            0 => extend(&s, &time, Some(FencingToken::new(1))),
            1 => s.grant(grant(1, time.clock().now()), time.clock().now()),
            _ => assert_eq!(s.loss(), Some(Loss::Expired)),
        }
        tokio::time::timeout(Duration::from_secs(5), notified)
            .await
            .unwrap();
    }
}

#[test]
fn an_end_of_validity_before_the_grant_was_taken_is_no_loss() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    time.advance(TTL);
    assert!(s.take_grant(time.clock().now()).is_none());
    assert_eq!(s.loss(), None);
    s.grant(grant(2, time.clock().now()), time.clock().now());
    assert_eq!(
        s.take_grant(time.clock().now()).map(|g| g.token.get()),
        Some(2)
    );
}

#[test]
fn another_token_under_a_guard_means_that_its_own_is_gone() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    s.take_grant(time.clock().now());
    s.grant(grant(2, time.clock().now()), time.clock().now());
    assert_eq!(s.loss(), Some(Loss::Gone));
}

#[test]
fn a_late_push_of_an_older_grant_changes_nothing() {
    let (time, s) = state();
    s.grant(grant(5, time.clock().now()), time.clock().now());
    s.notify(Notification::Granted(grant(4, time.clock().now())));
    assert_eq!(
        s.take_grant(time.clock().now()).map(|g| g.token.get()),
        Some(5)
    );
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
    assert!(s.take_grant(time.clock().now()).is_none());
}

#[test]
fn a_grant_is_renewed_at_its_own_place() {
    let (time, s) = state();
    s.wait_at(Place::new("first"));
    s.grant(grant(1, time.clock().now()), time.clock().now());
    s.wait_at(Place::new("second"));
    let lease = s.to_renew(time.clock().now()).2.unwrap();
    assert_eq!(
        (lease.place, lease.token),
        (Place::new("p"), Some(FencingToken::new(1)))
    );
}

#[test]
fn a_push_without_an_instant_is_only_a_notification() {
    let (_time, s) = state();
    s.notify(Notification::Granted(Grant::new(
        Place::new("p"),
        FencingToken::new(1),
        TTL,
    )));
    assert_eq!(s.take_change(), Some(Woken::Again));
    assert_eq!(s.take_change(), None);
}

#[test]
fn max_hold_ends_it_whatever_is_renewed() {
    let second = Duration::from_secs(1);
    let (time, s) = state_within(Bounds {
        max_hold: Some(second * 3),
        deadline: None,
    });
    s.grant(grant(1, time.clock().now()), time.clock().now());
    // `max_hold` counts from the grant, not from the moment when the caller took it.
    time.advance(second);
    s.take_grant(time.clock().now());
    assert_eq!(s.remaining(), second * 2);
    time.advance(second * 2);
    extend(&s, &time, Some(FencingToken::new(1)));
    assert_eq!(s.loss(), Some(Loss::MaxHold));
}

/// A grant that is not taken is given back: after a lease, after `max_hold`, or soon after the
/// deadline. A caller that comes later does not get it.
#[test]
fn a_grant_that_nobody_takes_is_given_back() {
    let second = Duration::from_secs(1);
    let began = VirtualClock::new().clock().now();
    for (max_hold, deadline, kept) in [
        (None, None, TTL),
        (Some(TTL * 2), None, TTL),
        (Some(second * 3), None, second * 3),
        (None, Some(began + second), second + TTL / 6),
        (None, Some(began), TTL / 6),
        (Some(second), Some(began + second * 2), second),
        (None, Some(began + TTL * 2), TTL),
    ] {
        for by_keeper in [false, true] {
            let (time, s) = state_within(Bounds { max_hold, deadline });
            s.grant(grant(1, time.clock().now()), time.clock().now());
            time.advance(kept / 2);
            extend(&s, &time, Some(FencingToken::new(1)));
            time.advance(kept / 2 - Duration::from_nanos(1));
            let before = time.clock().now();
            assert!(!s.give_back(before), "{max_hold:?} {deadline:?}");
            time.advance(Duration::from_nanos(1));
            // The keeper gives it back, and a caller may have read the clock just before.
            let then = if by_keeper {
                assert!(s.give_back(time.clock().now()));
                before
            } else {
                time.clock().now()
            };
            assert!(s.take_grant(then).is_none() && s.is_given_back());
            assert_eq!((s.take_change(), s.loss()), (Some(Woken::Again), None));
            s.grant(grant(2, time.clock().now()), time.clock().now());
            assert!(s.take_grant(time.clock().now()).is_none());
        }
    }
}

/// The length of the lease, by which renewals are planned, is that of the latest answer, also if
/// the server has changed its terms.
#[test]
fn the_latest_answer_says_how_long_a_lease_is() {
    let (time, s) = state();
    let began = time.clock().now();
    let answer = |ttl, since| {
        Grant::new(
            Place::new("p"),
            FencingToken::new(1),
            Validity::since(since, ttl),
        )
    };
    s.grant(answer(TTL / 2, began), began);
    s.take_grant(began);
    assert_eq!((s.ttl(), s.look().renew_every), (TTL / 2, TTL / 6));
    time.advance(TTL / 10);
    let now = time.clock().now();
    s.grant(answer(TTL / 4, now), now);
    assert_eq!(s.ttl(), TTL / 4);
    // An older answer comes late: its promise stays true, but it does not set the length of the
    // next lease.
    s.extend_at(now, Some(FencingToken::new(1)), Validity::from(TTL), began);
    assert_eq!(s.ttl(), TTL / 4);
    assert!(s.remaining() > TTL / 2);
    s.notify(Notification::Shortened(Validity::since(now, TTL / 8)));
    assert_eq!(s.ttl(), TTL / 8);
}

/// Two holders of one token would be worse than none: a turn ends either by its release or by time,
/// and that is decided once.
#[test]
fn a_turn_was_given_back_or_lost_and_stays_so() {
    let one = FencingToken::new(1);
    for late in [false, true] {
        let (time, s) = state();
        s.grant(grant(1, time.clock().now()), time.clock().now());
        s.take_grant(time.clock().now());
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
    s.take_grant(time.clock().now());
    assert!(s.share(one));
    assert_eq!((s.leave(one), s.guards()), (None, 1));
    assert_eq!(s.leave(one), Some(Loss::Released));
    s.next_turn(time.clock().now(), &Bounds::default());
    assert!(
        !s.share(one),
        "its owner would share the turn of another task"
    );
    assert!(s.share(two));
    s.lose(Loss::Evicted);
    assert!(!s.share(two));
    assert_eq!(
        (s.loss_of(one), s.loss_of(two)),
        (Some(Loss::Released), Some(Loss::Evicted))
    );
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
    assert!(s.take_grant(time.clock().now()).is_some());
    for older in [None, Some(FencingToken::new(1))] {
        s.lose_lease(older, Loss::Gone);
        assert_eq!(s.loss(), None);
    }
    s.lose_lease(Some(FencingToken::new(2)), Loss::Gone);
    assert_eq!(s.loss(), Some(Loss::Gone));
}

/// A grant that was asked for before the store answered that the place is gone may be gone too: the
/// claim is sent again.
#[test]
fn a_grant_from_before_the_loss_of_its_place_is_asked_for_again() {
    let (time, s) = state();
    let asked = time.clock().now();
    time.advance(Duration::from_secs(1));
    s.lose(Loss::Gone);
    assert_eq!(s.take_change(), Some(Woken::Again));
    s.grant(grant(1, asked), asked);
    assert_eq!(s.take_change(), Some(Woken::Again));
    assert!(s.take_grant(time.clock().now()).is_none());
    let now = time.clock().now();
    s.grant(grant(1, now), now);
    assert!(s.take_grant(now).is_some());
}

/// The lock may be granted anew to the same claim before a guard has it.
#[test]
fn the_newest_grant_is_the_guards() {
    let (time, s) = state();
    let now = time.clock().now();
    s.grant(grant(1, now), now);
    s.grant(grant(2, now), now);
    assert_eq!(
        (s.take_grant(now).map(|g| g.token.get()), s.loss()),
        (Some(2), None)
    );
}

#[tokio::test]
async fn a_promise_that_gets_shorter_is_news() {
    let (time, s) = state();
    let since = time.clock().now();
    s.grant(grant(1, since), since);
    s.take_grant(since);
    let mut changed = Box::pin(s.changed.notified());
    assert!(futures_util::poll!(&mut changed).is_pending());
    s.notify(Notification::Shortened(Validity::since(since, TTL / 2)));
    assert!(futures_util::poll!(&mut changed).is_ready());
}

/// A place in the queue is renewed a little before half of its lease is over, so at least eleven
/// twentieths are left then; it is late when a third of the lease is left. A grant states its own
/// end.
#[test]
fn a_third_of_the_lease_is_kept_for_a_late_renewal() {
    let (time, s) = state();
    let asked = time.clock().now();
    assert_eq!(
        s.look().third_left_at(asked).since(asked),
        TTL * 11 / 20 - TTL / 3
    );
    s.grant(grant(1, asked), asked);
    let good = Validity::since(asked, TTL).until(asked).since(asked);
    assert_eq!(s.look().third_left_at(asked).since(asked), good - TTL / 3);
}

/// A turn whose task has come for it in time is not given back by a keeper that looked at it before.
#[test]
fn a_turn_was_taken_or_given_back() {
    for taken in [true, false] {
        let (time, s) = state();
        s.grant(grant(1, time.clock().now()), time.clock().now());
        s.take_grant(time.clock().now());
        assert_eq!(s.leave(FencingToken::new(1)), Some(Loss::Released));
        time.advance(TTL / 2);
        extend(&s, &time, Some(FencingToken::new(1)));
        let deadline = Some(time.clock().now());
        s.next_turn(
            time.clock().now(),
            &Bounds {
                max_hold: None,
                deadline,
            },
        );
        time.advance(TTL / 6 - Duration::from_nanos(1));
        let late = time.clock().now() + Duration::from_nanos(1);
        let seen = s.look();
        assert_eq!(seen.loss_by(late), Some(Loss::Released));
        if taken {
            assert!(s.take_turn());
        }
        let end = (!taken).then_some(Loss::Released);
        assert_eq!(s.ended_by(late), end);
        assert_eq!(s.take_turn(), taken);
    }
}

/// Why a renewal failed before a request that confirmed the hold is not why it ended.
#[test]
fn what_was_confirmed_since_a_failure_did_not_end_by_it() {
    let (time, s) = state();
    s.grant(grant(1, time.clock().now()), time.clock().now());
    s.take_grant(time.clock().now());
    s.unrenewed(Arc::new(Error::closed()));
    assert!(s.cause_of(Loss::Expired).is_some());
    time.advance(TTL / 2);
    s.grant(grant(1, time.clock().now()), time.clock().now());
    assert!(s.cause_of(Loss::Expired).is_none());
}
