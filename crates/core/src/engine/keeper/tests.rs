//! Tests of the plans of the keeper's registry.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Keeper;
use super::batch::RenewalBatch;
use super::kept::{Batch, BatchItem};
use super::registry::{Ended, Planned, Registry};
use super::takeover::STALL;
use crate::backend::claim::{Claim, LeaseRef, Mode, Place, WaitPolicy};
use crate::backend::clock::{Clock, VirtualClock};
use crate::backend::contract::Backend;
use crate::backend::error::Result;
use crate::backend::grant::{Claimed, Grant, Renewal};
use crate::backend::guarantees::Guarantees;
use crate::backend::loss::Loss;
use crate::backend::name::Name;
use crate::backend::notifier::Notifier;
use crate::backend::queue::LockQueue;
use crate::backend::token::FencingToken;
use crate::engine::claim_state::{Bounds, ClaimState};
use crate::support::locked;

mod plans;

const TTL: Duration = Duration::from_secs(6);

fn state(clock: &Clock, ttl: Duration) -> Arc<ClaimState> {
    let claim = Claim::new("a", Mode::Shared, WaitPolicy::Fair, ttl, "me");
    Arc::new(ClaimState::new(claim, clock.clone(), Bounds::default()))
}

fn held(clock: &Clock, ttl: Duration) -> Arc<ClaimState> {
    let state = state(clock, ttl);
    state.grant(
        Grant::new(Place::new("p"), FencingToken::new(1), ttl),
        clock.now(),
    );
    state.take_grant(clock.now());
    state
}

/// Between the plan and the request a hold may be lost, by a notification or by time. It is not renewed, nor forgotten.
#[test]
fn what_is_lost_while_a_batch_is_made_comes_up_again() {
    let clock = VirtualClock::new().clock();
    let state = held(&clock, TTL);
    let due = clock.now();
    let mut registry = Registry::default();
    registry.keep(&state, clock.now(), due);
    assert!(registry.collect_due(due).is_empty());
    state.lose(Loss::Evicted);
    assert!(registry.take_batches(due, 0.0, 9, 16).is_empty());
    assert_eq!(
        registry
            .collect_due(due)
            .into_iter()
            .map(|(_, loss)| loss)
            .collect::<Vec<_>>(),
        [Ended::Lost(Loss::Evicted)]
    );
}

#[test]
fn holds_are_watched_over_and_places_in_the_queue_are_not() {
    let clock = VirtualClock::new().clock();
    let mut registry = Registry::default();
    let [one, two, three] = [(); 3].map(|()| {
        let state = state(&clock, TTL);
        registry.keep(&state, clock.now(), clock.now());
        state
    });
    registry.runner = Some(Arc::default());
    registry.next_wake = Some(clock.now());
    assert!(
        !registry.must_wake(clock.now()),
        "without a hold coarse sleeps do"
    );
    for state in [&one, &two] {
        state.grant(
            Grant::new(Place::new("p"), FencingToken::new(1), TTL),
            clock.now(),
        );
        state.take_grant(clock.now());
        registry.schedule(state.kept_as());
    }
    assert!(
        registry.must_wake(clock.now()),
        "a hold began during a coarse sleep"
    );
    registry.watching = true;
    assert!(!registry.must_wake(clock.now()));
    let holds = [one, three, two].map(|state| {
        assert!(registry.remove(state.kept_as()).is_some());
        registry.agenda.holds
    });
    assert_eq!(holds, [1, 1, 0]);
}

/// Leases that end first go first, a bounded number of requests is under way, and a lease in danger
/// does not wait for them.
#[test]
fn batches_go_by_need() {
    let time = VirtualClock::new();
    let clock = time.clock();
    let start = time.clock().now();
    let mut registry = Registry::default();
    let mut kept = Vec::new();
    for i in 0..40 {
        // The later ones end first.
        let ttl = TTL + Duration::from_millis(40 - i);
        kept.push(held(&clock, ttl));
    }
    let renew_at = start + TTL / 3;
    for state in &kept {
        registry.keep(state, start, renew_at);
    }
    time.advance(TTL / 3);
    let now = clock.now();
    assert!(registry.collect_due(now).is_empty());
    let batches = registry.take_batches(now, 0.0, 2, 16);
    let order: Vec<_> = batches
        .iter()
        .flat_map(|batch| &batch.items)
        .map(|item| item.state.ttl())
        .collect();
    assert_eq!((batches.len(), order.len()), (16, 32));
    assert!(order.is_sorted(), "{order:?}");
    assert!(
        registry.take_batches(now, 0.0, 2, 0).is_empty(),
        "the others wait"
    );
    assert_eq!(registry.take_batches(now, 0.0, 2, 1).len(), 1);
    // Renewals in flight are not sent again. The six that wait go out as soon as a third of their
    // leases is left, unless the store answers others meanwhile.
    let wakes = registry.agenda.first().map(|at| at.since(start));
    assert!(
        wakes.is_some_and(|at| (TTL * 3 / 5..TTL * 2 / 3).contains(&at)),
        "{wakes:?}"
    );
    time.advance(TTL / 3 - Duration::from_millis(100));
    let now = clock.now();
    assert!(registry.collect_due(now).is_empty());
    assert!(registry.take_batches(now, 0.0, 9, 0).is_empty());
    registry.agenda.moved = Some(now);
    time.advance(Duration::from_millis(90));
    let now = clock.now();
    assert!(registry.collect_due(now).is_empty());
    assert!(registry.take_batches(now, 0.0, 9, 0).is_empty());
    time.advance(TTL / 6);
    let now = clock.now();
    assert!(registry.collect_due(now).is_empty());
    assert_eq!(
        registry
            .take_batches(now, 0.0, 50, 0)
            .iter()
            .flat_map(|batch| &batch.items)
            .count(),
        40
    );
}

/// Nothing is kept, and the runtime of the running task is not driven any more. A task that stands
/// by takes over: otherwise it would find the plan overdue for ever.
#[test]
fn a_runner_that_stands_still_is_replaced_even_if_there_is_nothing_to_do() {
    let time = VirtualClock::new();
    let keeper = Arc::new(Keeper::new(
        Arc::new(Unasked(time.clone())),
        Notifier::new(),
        fastrand::Rng::with_seed(1),
    ));
    {
        let mut registry = locked(&keeper.registry);
        registry.runner = Some(Arc::default());
        registry.next_wake = Some(time.clock().now());
    }
    assert!(keeper.take_over().is_none(), "it is not late yet");
    time.advance(STALL);
    assert!(keeper.take_over().is_some());
    assert_eq!(locked(&keeper.registry).stalls_at(STALL), None);
}

/// One request renews a long lease, for which nothing is late, and a short one that was due later.
#[test]
fn each_lease_is_late_by_its_own_length() {
    let time = VirtualClock::new();
    let clock = time.clock();
    let backend = Arc::new(Unasked(time.clone()));
    let keeper = Keeper::new(
        backend.clone(),
        Notifier::new(),
        fastrand::Rng::with_seed(1),
    );
    let backend: Arc<dyn Backend> = backend;
    let due_since = clock.now();
    let items = [(TTL * 10, due_since), (TTL, due_since + TTL / 10)].map(|(ttl, due_since)| {
        let state = held(&clock, ttl);
        keeper.keep(&state, clock.now());
        BatchItem {
            token: state.to_renew(clock.now()).2.unwrap().token,
            state,
            ttl,
            due_since,
        }
    });
    let batch = Batch {
        leases: Vec::new(),
        items: items.into(),
    };
    time.advance(TTL / 2);
    let renewed = [TTL * 10, TTL].map(|ttl| Renewal::Renewed(ttl.into()));
    let batch = RenewalBatch::new(
        &backend,
        &clock,
        batch,
        Planned {
            at: clock.now(),
            early: 0.0,
        },
    );
    assert!(
        keeper
            .take_result((batch, Some(Ok(renewed.into()))), false)
            .is_none()
    );
    assert!(keeper.is_behind(clock.now(), TTL) && keeper.is_behind(clock.now(), TTL / 2));
    assert!(
        !keeper.is_behind(clock.now(), TTL * 10),
        "it is renewed after the others, and seldom"
    );
    time.advance(TTL / 3);
    assert!(
        !keeper.is_behind(clock.now(), TTL),
        "each was renewed since"
    );
}

/// A store that is never asked.
#[derive(Debug)]
struct Unasked(VirtualClock);

#[async_trait::async_trait]
impl Backend for Unasked {
    async fn claim(&self, _: &Claim) -> Result<Claimed> {
        unreachable!()
    }
    async fn renew(&self, _: &[LeaseRef]) -> Result<Vec<Renewal>> {
        unreachable!()
    }
    async fn release(&self, _: &Claim, _: Option<&Place>) -> Result<()> {
        unreachable!()
    }
    async fn inspect(&self, _: &Name) -> Result<LockQueue> {
        unreachable!()
    }
    async fn list(&self, _: &str, _: Option<&Name>, _: usize) -> Result<Vec<Name>> {
        unreachable!()
    }
    async fn evict(&self, _: &Name, _: FencingToken) -> Result<bool> {
        unreachable!()
    }
    fn renew_batch(&self) -> usize {
        1
    }
    fn guarantees(&self) -> Guarantees {
        Guarantees::none("unasked")
    }
    fn clock(&self) -> Clock {
        self.0.clock()
    }
}

async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// A lock that is taken and given back again and again wakes neither the keeper nor the tasks that
/// stand by, whether they run while it is held or find nothing to do each time.
#[tokio::test]
async fn a_cycle_wakes_no_task() {
    for others_run in [false, true] {
        let time = VirtualClock::new();
        let clock = time.clock();
        let random = fastrand::Rng::with_seed(1);
        let keeper = Arc::new(Keeper::new(
            Arc::new(Unasked(time.clone())),
            Notifier::new(),
            random,
        ));
        let cycle = async || {
            let state = held(&clock, TTL);
            let must_wake = keeper.keep(&state, clock.now());
            if must_wake {
                keeper.register_runtime(&Handle::current());
                keeper.wake();
            }
            if others_run {
                settle().await;
            }
            // A turn that passes to another task, with another end.
            let bounds = Bounds {
                max_hold: Some(TTL * 2),
                deadline: None,
            };
            state.next_turn(clock.now(), &bounds);
            assert!(state.take_turn());
            keeper.reschedule(&state);
            keeper.forget(&state);
            settle().await;
            must_wake
        };
        assert!(cycle().await, "no task runs yet");
        let standby = keeper.standby.called.notified();
        tokio::pin!(standby);
        standby.as_mut().enable();
        for n in 0..100 {
            assert!(!cycle().await, "cycle {n} wakes the keeper");
            time.advance(Duration::from_millis(1));
            settle().await;
        }
        assert!(
            futures_util::poll!(standby).is_pending(),
            "a task that stands by was woken"
        );
        assert_eq!(
            locked(&keeper.registry).called,
            None,
            "the keeper was woken"
        );
        // Once nothing was kept for a while no timer runs.
        time.pass(Duration::from_secs(3)).await;
        assert_eq!(locked(&keeper.registry).next_wake, None);
    }
}
