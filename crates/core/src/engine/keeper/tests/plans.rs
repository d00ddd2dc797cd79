//! Tests of the renewals that go out together, and of the moments when they come up again.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a registry that keeps one hold for each of these renewals, which are given as delays
/// after the start, and the states of the holds.
fn planned(time: &VirtualClock, renewals: &[Duration]) -> (Registry, Vec<Arc<ClaimState>>) {
    let clock = time.clock();
    let start = time.clock().now();
    let mut registry = Registry::default();
    let keep = |after: &Duration| {
        let state = held(&clock, TTL);
        registry.keep(&state, start, start + *after);
        state
    };
    let states = renewals.iter().map(keep).collect();
    (registry, states)
}

/// Returns the numbers of the renewals that are sent now; the next ones are planned `early`.
fn sent(registry: &mut Registry, time: &VirtualClock, early: f64) -> Vec<u64> {
    let now = time.clock().now();
    assert!(registry.collect_due(now).is_empty());
    let batches = registry.take_batches(now, early, usize::MAX, 16);
    let mut all: Vec<u64> = batches
        .iter()
        .flat_map(|batch| &batch.items)
        .map(|item| item.state.kept_as())
        .collect();
    all.sort_unstable();
    all
}

/// The time until the next renewal comes up.
fn next(registry: &Registry, time: &VirtualClock) -> Duration {
    registry
        .agenda
        .first()
        .map_or(Duration::MAX, |at| at.since(time.clock().now()))
}

#[test]
fn what_is_due_within_a_sixth_of_its_lease_joins_what_is_due() {
    let time = VirtualClock::new();
    let after = [
        2 * SECOND,
        2 * SECOND + SECOND * 9 / 10,
        2 * SECOND + SECOND * 11 / 10,
    ];
    let (mut registry, states) = planned(&time, &after);
    let number: Vec<u64> = states.iter().map(|state| state.kept_as()).collect();
    time.advance(2 * SECOND);
    assert_eq!(
        sent(&mut registry, &time, 0.0),
        number[..2],
        "the third is due later"
    );
    // Renewals in flight, which are due again a second later, join nothing.
    time.advance(SECOND * 11 / 10);
    assert_eq!(sent(&mut registry, &time, 0.0), number[2..]);
}

/// A sixth of its own lease, not of the longest.
#[test]
fn a_short_lease_joins_no_long_one_before_its_time() {
    let time = VirtualClock::new();
    let clock = time.clock();
    let start = time.clock().now();
    let mut registry = Registry::default();
    let long = held(&clock, TTL * 10);
    let short = held(&clock, TTL);
    registry.keep(&long, start, start + 2 * SECOND);
    registry.keep(&short, start, start + 4 * SECOND);
    time.advance(2 * SECOND);
    assert_eq!(sent(&mut registry, &time, 0.0), [long.kept_as()]);
}

/// The next renewal comes a third of a lease later, less a random share. A renewal that is not
/// answered by then is sent again soon.
#[test]
fn what_is_sent_comes_up_again() {
    for (early, again) in [(0.0, 2 * SECOND), (0.5, SECOND)] {
        let time = VirtualClock::new();
        let (mut registry, states) = planned(&time, &[Duration::ZERO]);
        assert_eq!(sent(&mut registry, &time, early).len(), 1);
        assert_eq!(next(&registry, &time), again);
        time.advance(again);
        assert_eq!(sent(&mut registry, &time, early), [states[0].kept_as()]);
        assert_eq!(
            next(&registry, &time),
            TTL / 6,
            "the first is not answered yet"
        );
    }
}

#[test]
fn what_is_late_is_asked_for_again_soon() {
    let time = VirtualClock::new();
    let (mut registry, states) = planned(&time, &[Duration::ZERO]);
    sent(&mut registry, &time, 0.0);
    registry.overdue(states[0].kept_as(), time.clock().now());
    assert_eq!(next(&registry, &time), TTL / 6);
}

/// Requests in flight are lost with their runtime: they are sent again at once, and no others are.
#[test]
fn what_was_in_flight_with_a_runtime_is_due_at_once() {
    let time = VirtualClock::new();
    let (mut registry, states) = planned(&time, &[Duration::ZERO, 2 * SECOND]);
    assert_eq!(sent(&mut registry, &time, 0.0), [states[0].kept_as()]);
    registry.crashed(time.clock().now());
    assert_eq!(next(&registry, &time), Duration::ZERO);
    assert_eq!(sent(&mut registry, &time, 0.0), [states[0].kept_as()]);
    let in_flight: Vec<u32> = states
        .iter()
        .map(|state| registry.kept[&state.kept_as()].in_flight)
        .collect();
    assert_eq!(in_flight, [1, 0]);
}

/// An answer plans the next renewal only if it is of the latest request, and a failure brings it forward.
#[test]
fn an_answer_says_when_to_ask_again() {
    let time = VirtualClock::new();
    let (mut registry, states) = planned(&time, &[Duration::ZERO]);
    let number = states[0].kept_as();
    let first = Planned {
        at: time.clock().now(),
        early: 0.0,
    };
    sent(&mut registry, &time, 0.0);
    time.advance(SECOND / 2);
    let seen = states[0].look();
    registry.answered(number, &first, time.clock().now(), &seen, true);
    assert_eq!(next(&registry, &time), SECOND * 3 / 2, "as it was planned");
    assert_eq!(registry.kept[&number].in_flight, 0);
    time.advance(SECOND * 3 / 2);
    sent(&mut registry, &time, 0.0);
    let now = time.clock().now();
    // An older request than the latest leaves it to that one, and one that failed is sent again within a sixth of the lease.
    registry.answered(number, &first, now, &seen, true);
    assert_eq!(next(&registry, &time), 2 * SECOND);
    registry.answered(
        number,
        &Planned {
            at: now,
            early: 0.0,
        },
        now,
        &seen,
        false,
    );
    assert_eq!(next(&registry, &time), TTL / 6);
    // A hold that is lost comes up at once, to be given up.
    states[0].lose(Loss::Evicted);
    registry.answered(
        number,
        &Planned {
            at: now,
            early: 0.0,
        },
        now,
        &states[0].look(),
        false,
    );
    assert_eq!(next(&registry, &time), Duration::ZERO);
}

/// A renewal that waits for a request needs none once the latest request was answered. Any other
/// answer leaves it waiting.
#[test]
fn an_answer_that_comes_after_all_saves_a_request() {
    for renewed in [false, true] {
        let time = VirtualClock::new();
        let (mut registry, states) = planned(&time, &[Duration::ZERO]);
        let planned = Planned {
            at: time.clock().now(),
            early: 0.0,
        };
        sent(&mut registry, &time, 0.0);
        time.advance(2 * SECOND);
        let now = time.clock().now();
        assert!(registry.collect_due(now).is_empty());
        registry.answered(
            states[0].kept_as(),
            &planned,
            now,
            &states[0].look(),
            renewed,
        );
        assert_eq!(
            registry.take_batches(now, 0.0, 9, 16).len(),
            usize::from(!renewed)
        );
    }
}

#[test]
fn a_task_without_work_is_idle_unless_more_is_likely_to_come() {
    let time = VirtualClock::new();
    assert!(Registry::default().is_idle());
    let (mut registry, states) = planned(&time, &[SECOND]);
    assert!(!registry.is_idle());
    assert!(registry.remove(states[0].kept_as()).is_some());
    assert!(!registry.is_idle(), "something was kept just now");
    registry.no_more_work = true;
    assert!(registry.is_idle());
}

/// A task sleeps coarsely unless it has holds to watch over, or a claim was kept just now and more
/// of its kind may come.
#[test]
fn holds_and_what_was_kept_just_now_are_watched() {
    let time = VirtualClock::new();
    let (mut registry, states) = planned(&time, &[2 * SECOND]);
    let now = time.clock().now();
    registry.plan_sleep(now);
    assert!(registry.watching);
    registry.plan_sleep(now);
    assert!(registry.watching, "there is a hold");
    assert!(registry.remove(states[0].kept_as()).is_some());
    registry.plan_sleep(now);
    assert_eq!((registry.watching, registry.next_wake), (false, None));
}
