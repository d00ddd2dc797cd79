//! Each rule of the bridge by itself: what it asks of which store and in which order, while answers are lost, requests are late, leases
//! end between two steps, and one store is away.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_bridge::Bridge;
use leasehold_core::seam::{
    Backend, Claim, Claimed, Grant, LeaseRef, Mode, Moment, Notification, Place, Renewal, VirtualClock, WaitPolicy,
};
use leasehold_core::{ErrorKind, Fairness, FencingToken, Loss, Raises, Store};
use leasehold_memory::Memory;
use support::{Fault, Plan, TTL, Wire, drive};

/// A bridge, both its stores, and what is sent to them.
struct World {
    bridge: Bridge,
    old: Wire,
    new: Wire,
    plan: Plan,
    time: VirtualClock,
}

fn world() -> World {
    world_of(|old| old, |new| new)
}

fn world_of(old: impl FnOnce(Wire) -> Wire, new: impl FnOnce(Wire) -> Wire) -> World {
    let (memory, time) = Memory::with_virtual_time();
    let plan = Plan::default();
    let (old, new) = (old(Wire::to("old", &memory, &plan)), new(Wire::to("new", &memory.another_store(), &plan)));
    let bridge = Bridge::new(old.clone(), new.clone()).unwrap();
    World { bridge, old, new, plan, time }
}

fn claim(policy: WaitPolicy, label: &str) -> Claim {
    Claim::new("a", Mode::Exclusive, policy, TTL, label)
}

fn fair(label: &str) -> Claim {
    claim(WaitPolicy::Fair, label)
}

async fn granted(backend: &impl Backend, claim: &Claim) -> Grant {
    match drive(backend.claim(claim)).await {
        Some(Ok(Claimed::Granted(grant))) => grant,
        other => panic!("{}: {other:?}", claim.label),
    }
}

async fn waits(backend: &impl Backend, claim: &Claim) -> Place {
    match drive(backend.claim(claim)).await {
        Some(Ok(Claimed::Waiting(waiting))) => waiting.place,
        other => panic!("{}: {other:?}", claim.label),
    }
}

async fn failed(backend: &impl Backend, claim: &Claim) -> ErrorKind {
    match drive(backend.claim(claim)).await {
        Some(Err(e)) => e.kind(),
        other => panic!("{}: {other:?}", claim.label),
    }
}

async fn release(backend: &impl Backend, claim: &Claim) {
    drive(backend.release(claim, None)).await.unwrap().unwrap();
}

async fn renewed(backend: &impl Backend, claim: &Claim, grant: &Grant) -> Renewal {
    let lease = LeaseRef::new(Arc::new(claim.clone()), grant.place.clone(), Some(grant.token));
    drive(backend.renew(&[lease])).await.unwrap().unwrap().remove(0)
}

impl World {
    fn now(&self) -> Moment {
        self.time.clock().now()
    }

    fn left(&self) -> (usize, usize) {
        (self.old.memory.entries(), self.new.memory.entries())
    }
}

#[tokio::test]
async fn old_is_asked_first_and_who_waits_there_has_nothing_in_new() {
    let w = world();
    let other = fair("stage 1");
    granted(&w.old.memory, &other).await;
    let mine = fair("mine");
    waits(&w.bridge, &mine).await;
    assert_eq!(w.plan.sent(), ["old claim"]);
    assert_eq!(w.left(), (2, 0));
    release(&w.old.memory, &other).await;
    granted(&w.bridge, &mine).await;
    assert_eq!(w.plan.sent(), ["old claim", "new claim"], "two requests, as both stores agree at once");
    release(&w.bridge, &mine).await;
    assert_eq!(w.plan.sent(), ["new release", "old release"]);
    assert_eq!(w.left(), (0, 0));
}

#[tokio::test]
async fn a_try_that_is_refused_in_new_gives_old_back() {
    let w = world();
    let other = fair("stage 3");
    granted(&w.new.memory, &other).await;
    let mine = claim(WaitPolicy::Try, "mine");
    assert!(matches!(drive(w.bridge.claim(&mine)).await, Some(Ok(Claimed::Busy(_)))));
    assert_eq!(w.left(), (0, 1));
    // Nor if that is not answered: then the error says that something may be left, and the release finds it.
    w.plan.fault(2, Fault::Refused);
    assert_eq!(failed(&w.bridge, &mine).await, ErrorKind::Ambiguous);
    release(&w.bridge, &mine).await;
    assert_eq!(w.left(), (0, 1));
}

#[tokio::test]
async fn a_hold_ends_with_the_lease_that_ends_first() {
    for (longer_old, longer_new) in [(3, 1), (1, 3)] {
        let w = world_of(|old| old.granting(longer_old), |new| new.granting(longer_new));
        let (mine, sent) = (fair("mine"), w.now());
        let grant = granted(&w.bridge, &mine).await;
        assert_eq!(grant.validity.ttl(), TTL, "it is renewed by the shorter");
        assert!(grant.validity.until(sent) <= sent + TTL);
        // Only the longer one is renewed, again and again.
        w.plan.away(if longer_old == 1 { "old" } else { "new" }, true);
        for _ in 0..3 {
            w.time.advance(TTL / 4);
            if let Renewal::Renewed(validity) = renewed(&w.bridge, &mine, &grant).await {
                assert!(validity.until(w.now()) <= sent + TTL);
            }
        }
    }
}

/// The first renewal reaches only new, so old's end stays; the second only old.
#[tokio::test]
async fn a_renewal_of_one_store_extends_no_more_than_the_other_allows() {
    let w = world();
    let (mine, sent) = (fair("mine"), w.now());
    let grant = granted(&w.bridge, &mine).await;
    w.time.advance(TTL / 4);
    w.plan.fault(0, Fault::Refused);
    let Renewal::Unknown(e) = renewed(&w.bridge, &mine, &grant).await else { panic!("nothing was gained") };
    assert!(e.to_string().contains("old"), "{e}");
    w.time.advance(TTL / 4);
    w.plan.fault(1, Fault::LostReply);
    let Renewal::Renewed(validity) = renewed(&w.bridge, &mine, &grant).await else { panic!("half was gained") };
    let until = validity.until(w.now());
    assert!(until > sent + TTL && until <= sent + TTL / 4 + TTL, "{until:?}");
}

#[tokio::test]
async fn lost_in_one_is_lost_and_told_at_once() {
    for in_new in [false, true] {
        let w = world();
        let mine = fair("mine");
        let grant = granted(&w.bridge, &mine).await;
        let store = if in_new { &w.new } else { &w.old };
        assert!(store.memory.delete("a"));
        assert!(matches!(renewed(&w.bridge, &mine, &grant).await, Renewal::Lost(Loss::Gone)));
        release(&w.bridge, &mine).await;
        assert_eq!(w.left(), (0, 0));
        // And by a notification of one of them.
        let guard = Store::new(w.bridge).lock("b").ttl(TTL).acquire().await.unwrap();
        assert!(store.memory.evict(&"b".into(), guard.fencing_token()).await.unwrap());
        assert_eq!(guard.lost().await, Loss::Evicted);
    }
}

#[tokio::test]
async fn both_know_a_hold_by_the_greater_token_and_all_its_turns() {
    for (old, new) in [(40, 0), (0, 40), (0, 0), (1000, 1000)] {
        let w = world();
        w.old.memory.raise(FencingToken::new(old)).await.unwrap();
        w.new.memory.raise(FencingToken::new(new)).await.unwrap();
        let mine = claim(WaitPolicy::Fast, "mine");
        let grant = granted(&w.bridge, &mine).await;
        assert!(grant.token.get() > old.max(new));
        for store in [&w.old, &w.new] {
            let queue = store.memory.inspect(&"a".into()).await.unwrap();
            assert_eq!(queue.holders[0].token, Some(grant.token), "{store:?} with {old} and {new}");
        }
        let last = FencingToken::new(grant.token.get() + u64::from(grant.turns) - 1);
        release(&w.bridge, &mine).await;
        for store in [&w.old, &w.new] {
            assert!(granted(&store.memory, &fair("next")).await.token > last, "{store:?} with {old} and {new}");
        }
    }
}

#[tokio::test]
async fn eviction_ends_it_in_both_by_any_of_its_turns() {
    let w = world();
    let mine = claim(WaitPolicy::Fast, "mine");
    let grant = granted(&w.bridge, &mine).await;
    let turn = FencingToken::new(grant.token.get() + u64::from(grant.turns) - 1);
    assert!(w.bridge.evict(&"a".into(), turn).await.unwrap());
    assert_eq!(w.left(), (0, 0));
    assert!(!w.bridge.evict(&"a".into(), turn).await.unwrap());
}

/// A's old lease ends while it waits in new; B takes old and waits behind A in new. A lets B pass, or both wait for ever.
#[tokio::test]
async fn who_does_not_hold_old_any_more_leaves_new() {
    let w = world();
    let leftover = fair("stage 3");
    granted(&w.new.memory, &leftover).await;
    let (a, b) = (fair("a"), fair("b"));
    let place = waits(&w.bridge, &a).await;
    let other = Bridge::new(w.old.another(), w.new.another()).unwrap();
    waits(&other, &b).await;
    assert!(w.old.memory.delete("a"), "as if the lease had ended");
    let lease = LeaseRef::new(Arc::new(a.clone()), place, None);
    let answer = drive(w.bridge.renew(&[lease])).await.unwrap().unwrap().remove(0);
    assert!(matches!(answer, Renewal::Lost(_)), "{answer:?}");
    waits(&other, &b).await;
    waits(&w.bridge, &a).await;
    assert_eq!(w.left(), (2, 2), "b holds old, a stands behind it; in new are the leftover and b");
    release(&w.new.memory, &leftover).await;
    granted(&other, &b).await;
    release(&other, &b).await;
    granted(&w.bridge, &a).await;
}

/// The withdrawal from new comes late, when A stands there anew.
#[tokio::test]
async fn a_late_withdrawal_does_not_end_what_was_taken_later() {
    let w = world();
    let (mine, other) = (fair("mine"), fair("stage 1"));
    let leftover = fair("stage 3");
    granted(&w.new.memory, &leftover).await;
    waits(&w.bridge, &mine).await;
    assert!(w.old.memory.delete("a"));
    granted(&w.old.memory, &other).await;
    w.plan.sent();
    w.plan.fault(1, Fault::HeldBack);
    waits(&w.bridge, &mine).await;
    assert_eq!(w.plan.ids("new", "release").len(), 1);
    release(&w.old.memory, &other).await;
    release(&w.new.memory, &leftover).await;
    w.time.advance(TTL);
    let grant = granted(&w.bridge, &mine).await;
    w.new.deliver().await;
    w.old.deliver().await;
    assert!(matches!(renewed(&w.bridge, &mine, &grant).await, Renewal::Renewed(_)));
    assert_eq!(w.left(), (1, 1));
}

#[tokio::test]
async fn new_that_does_not_answer_keeps_nobody_out_of_old() {
    let w = world();
    let mine = fair("mine");
    w.plan.away("new", true);
    assert_eq!(failed(&w.bridge, &mine).await, ErrorKind::Unavailable, "nothing of it is anywhere");
    assert_eq!(
        (w.plan.sent(), w.left()),
        (["old claim", "new claim", "old release"].map(String::from).to_vec(), (0, 0))
    );
    assert_eq!(failed(&w.bridge, &mine).await, ErrorKind::Unavailable);
    assert_eq!(w.plan.sent(), ["new inspect"], "old is not claimed as long as new is away");
    // A waiter in old that is granted it meanwhile gives it back.
    let other = fair("stage 1");
    granted(&w.old.memory, &other).await;
    w.plan.away("new", false);
    waits(&w.bridge, &mine).await;
    release(&w.old.memory, &other).await;
    w.plan.away("new", true);
    failed(&w.bridge, &mine).await;
    assert_eq!(w.left(), (0, 0));
    w.plan.away("new", false);
    granted(&w.bridge, &mine).await;
}

#[tokio::test]
async fn old_that_does_not_answer_keeps_nobody_out_of_new() {
    let w = world();
    let (mine, leftover) = (fair("mine"), fair("stage 3"));
    w.plan.away("old", true);
    assert_eq!(failed(&w.bridge, &mine).await, ErrorKind::Unavailable);
    w.plan.away("old", false);
    granted(&w.new.memory, &leftover).await;
    waits(&w.bridge, &mine).await;
    w.plan.away("old", true);
    failed(&w.bridge, &mine).await;
    assert_eq!(w.new.memory.entries(), 1, "only the leftover");
}

#[tokio::test]
async fn a_store_away_ends_no_hold_before_its_end_and_a_release_says_so() {
    for (away, left) in [("old", (1, 0)), ("new", (0, 1))] {
        let w = world();
        let mine = fair("mine");
        let grant = granted(&w.bridge, &mine).await;
        w.plan.away(away, true);
        let mut again = mine.clone();
        again.policy = WaitPolicy::Try;
        failed(&w.bridge, &again).await;
        assert_eq!(w.left(), (1, 1), "a guard is still good");
        assert!(matches!(renewed(&w.bridge, &mine, &grant).await, Renewal::Unknown(_)));
        let e = drive(w.bridge.release(&mine, None)).await.unwrap().unwrap_err();
        assert!(e.to_string().contains(away), "{e}");
        assert_eq!(w.left(), left, "the other is free");
        w.plan.away(away, false);
        release(&w.bridge, &mine).await;
        assert_eq!(w.left(), (0, 0));
    }
}

/// Old is given back although new hangs.
#[tokio::test]
async fn a_release_does_not_wait_for_new_for_long() {
    let w = world();
    let mine = fair("mine");
    granted(&w.bridge, &mine).await;
    w.plan.fault(0, Fault::Hangs);
    let mut released = std::pin::pin!(w.bridge.release(&mine, None));
    assert!(futures_util::poll!(&mut released).is_pending());
    w.time.advance(Duration::from_secs(1));
    assert!(drive(&mut released).await.is_none(), "new hangs");
    assert_eq!(w.left(), (0, 1));
}

/// One answer to a downgrade is lost: old is shared by then.
#[tokio::test]
async fn a_downgrade_of_which_one_answer_is_lost_is_ambiguous() {
    let w = world();
    let mine = fair("mine");
    let grant = granted(&w.bridge, &mine).await;
    let mut shared = mine.clone();
    (shared.mode, shared.policy) = (Mode::Shared, WaitPolicy::Try);
    w.plan.sent();
    w.plan.fault(1, Fault::Refused);
    assert_eq!(failed(&w.bridge, &shared).await, ErrorKind::Ambiguous);
    assert_eq!(w.left(), (1, 1));
    assert_eq!(granted(&w.bridge, &shared).await.token, grant.token);
    let reader = Claim::new("a", Mode::Shared, WaitPolicy::Try, TTL, "reader");
    assert!(granted(&Bridge::new(w.old.another(), w.new.another()).unwrap(), &reader).await.token > grant.token);
}

/// A session may have begun long before the claim.
#[tokio::test]
async fn a_grant_counts_from_the_lease_that_began_first() {
    for in_new in [false, true] {
        let aged = |wire: Wire, is: bool| if is { wire.aged(TTL / 2) } else { wire };
        let w = world_of(|old| aged(old, !in_new).granting(1 + u32::from(in_new)), |new| aged(new, in_new));
        let sent = w.now();
        let grant = granted(&w.bridge, &fair("mine")).await;
        assert!(grant.validity.until(sent) <= sent + TTL / 2, "{:?}", grant.validity);
    }
}

/// The guard is over before new is free: another client may hold there from then on.
#[tokio::test]
async fn a_hold_that_is_gone_in_old_is_lost_before_new_is_given_back() {
    let w = world();
    let mine = fair("mine");
    granted(&w.bridge, &mine).await;
    assert!(w.old.memory.delete("a"));
    granted(&w.old.memory, &fair("stage 1")).await;
    let (plan, told) = (w.plan.clone(), Arc::new(AtomicBool::new(false)));
    let heard = told.clone();
    let _listens = w.bridge.notifier().unwrap().subscribe(mine.id, move |said| {
        let before = plan.ids("new", "release").is_empty();
        heard.fetch_or(before && matches!(said, Notification::Lost(_)), Ordering::Relaxed);
    });
    let mut again = mine.clone();
    again.policy = WaitPolicy::Try;
    assert!(matches!(drive(w.bridge.claim(&again)).await, Some(Ok(Claimed::Busy(_)))));
    assert!(told.load(Ordering::Relaxed));
    assert_eq!(w.left(), (1, 0));
}

/// Where nothing is notified, a renewal learns of the grant.
#[tokio::test]
async fn a_renewal_that_learns_of_a_grant_in_one_store_has_it_claimed_again() {
    let w = world_of(Wire::silent, |new| new);
    let (mine, other) = (fair("mine"), fair("stage 1"));
    granted(&w.old.memory, &other).await;
    let place = waits(&w.bridge, &mine).await;
    release(&w.old.memory, &other).await;
    let (told, lease) = (Arc::new(AtomicBool::new(false)), LeaseRef::new(Arc::new(mine.clone()), place, None));
    let heard = told.clone();
    let _listens = w.bridge.notifier().unwrap().subscribe(mine.id, move |said| {
        heard.fetch_or(matches!(said, Notification::ClaimAgain), Ordering::Relaxed);
    });
    let answer = drive(w.bridge.renew(&[lease])).await.unwrap().unwrap().remove(0);
    assert!(matches!(answer, Renewal::Renewed(_)), "a grant of one store is no grant: {answer:?}");
    assert!(told.load(Ordering::Relaxed));
    granted(&w.bridge, &mine).await;
}

/// Old's lease is over when new answers: it is claimed again before there is a guard.
#[tokio::test]
async fn what_has_ended_before_the_guard_is_claimed_again() {
    let w = world_of(|old| old, |new| new.granting(3));
    let (mine, leftover) = (fair("mine"), fair("stage 3"));
    granted(&w.new.memory, &leftover).await;
    waits(&w.bridge, &mine).await;
    let mut asking = Box::pin(w.bridge.claim(&mine));
    w.plan.sent();
    // New's answer is on its way while the lease in old runs out.
    release(&w.new.memory, &leftover).await;
    let slow = w.new.clone();
    slow.delay_next();
    assert!(futures_util::poll!(&mut asking).is_pending());
    w.time.advance(TTL);
    slow.answer_delayed();
    let sent = w.now();
    let Some(Ok(Claimed::Granted(grant))) = drive(asking).await else { panic!("it is free") };
    assert!(grant.validity.until(sent) > w.now(), "both ends lie ahead");
    assert!(w.plan.sent().iter().filter(|sent| *sent == "old claim").count() > 1);
}

/// A place that was numbered below old's tokens is left, and taken anew above them.
#[tokio::test]
async fn a_store_that_numbers_places_is_raised_and_stood_in_anew() {
    let w = world_of(|old| old, Wire::numbering_places);
    w.old.memory.raise(FencingToken::new(1_000_000)).await.unwrap();
    let mine = claim(WaitPolicy::Fast, "mine");
    let grant = granted(&w.bridge, &mine).await;
    assert_eq!(
        w.plan.sent(),
        ["old claim", "new claim", "new raise", "new release", "new claim", "old claim"],
        "and old learns the number of its place there"
    );
    assert!(grant.token.get() > 1_000_000);
    let last = grant.token.get() + u64::from(grant.turns) - 1;
    release(&w.bridge, &mine).await;
    assert!(granted(&w.new, &fair("stage 3")).await.token.get() > last);
    assert!(granted(&w.old, &fair("stage 1")).await.token.get() > last);
    // The way back: from new's counts to a store of places.
    let back = world_of(Wire::numbering_places, |new| new);
    back.new.memory.raise(FencingToken::new(1_000_000)).await.unwrap();
    let grant = granted(&back.bridge, &mine).await;
    assert_eq!(back.plan.sent()[..4], ["old claim", "new claim", "old raise", "new release"], "from new first");
    let last = grant.token.get() + u64::from(grant.turns) - 1;
    release(&back.bridge, &mine).await;
    assert!(granted(&back.old, &fair("stage 1")).await.token.get() > last);
    assert!(granted(&back.new, &fair("stage 3")).await.token.get() > last);
}

/// Whatever becomes of any one request, and wherever the caller leaves: a release finds all that there is.
#[tokio::test]
async fn nothing_is_left_whichever_request_fails_or_is_dropped() {
    let places: [fn(Wire) -> Wire; 2] = [|wire| wire, Wire::numbering_places];
    for fault in [Fault::Refused, Fault::LostReply, Fault::HeldBack, Fault::Hangs, Fault::HangsAfter] {
        for (n, numbered) in (0..9).flat_map(|n| places.map(|numbered| (n, numbered))) {
            let w = world_of(|old| old, numbered);
            w.old.memory.raise(FencingToken::new(100_000)).await.unwrap();
            let mine = fair("mine");
            w.plan.fault(n, fault);
            let mut grants = Vec::new();
            for _ in 0..3 {
                if let Some(Ok(Claimed::Granted(grant))) = drive(w.bridge.claim(&mine)).await {
                    grants.push(grant.token);
                }
            }
            assert!(!grants.is_empty(), "{fault:?} of request {n}: one fault does no more than that");
            assert!(grants.iter().all(|token| *token == grants[0]), "{fault:?} of request {n}: {grants:?}");
            for _ in 0..3 {
                drop(drive(w.bridge.release(&mine, None)).await);
            }
            assert_eq!(w.left(), (0, 0), "{fault:?} of request {n}");
            w.plan.calm();
            w.old.deliver().await;
            w.new.deliver().await;
            w.time.advance(TTL);
            assert_eq!(w.left(), (0, 0), "{fault:?} of request {n}, later");
            for store in [&w.old, &w.new] {
                assert!(granted(store, &fair("next")).await.token > grants[0], "{fault:?} of request {n}");
            }
        }
    }
}

/// A claim that goes on after its release takes nothing.
#[tokio::test]
async fn a_claim_that_is_still_out_takes_nothing_after_its_release() {
    let w = world_of(Wire::slow, Wire::slow);
    let mine = fair("mine");
    let mut asking = Box::pin(w.bridge.claim(&mine));
    assert!(futures_util::poll!(&mut asking).is_pending());
    release(&w.bridge, &mine).await;
    assert!(matches!(drive(asking).await, Some(Err(_))));
    assert_eq!(w.left(), (0, 0));
}

#[tokio::test]
async fn a_grant_of_one_store_is_no_grant_of_the_bridge() {
    let w = world();
    let leftover = fair("stage 3");
    granted(&w.new.memory, &leftover).await;
    let store = Store::new(w.bridge);
    let lock = store.lock("a").ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    while w.new.memory.entries() < 2 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    release(&w.new.memory, &leftover).await; // this is notified, and the bridge asks
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn pairs_that_cannot_keep_the_promises_are_refused() {
    let (memory, _) = Memory::with_virtual_time();
    let plan = Plan::default();
    let wire = |name, memory: &Memory| Wire::to(name, memory, &plan);
    let refused = |old: Wire, new: Wire| {
        let e = Bridge::new(old, new).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        e.to_string()
    };
    assert!(refused(wire("old", &memory), wire("new", &Memory::new())).contains("clock"));
    let beside = memory.another_store();
    let numbered = |name| wire(name, &beside).numbering_places();
    assert!(refused(numbered("old"), numbered("new")).contains("number"));
    let stiff = wire("old", &memory).raising(Raises::No);
    assert!(refused(stiff, wire("new", &beside)).contains("the old store"));
    let low = wire("new", &beside).raising(Raises::Holds(FencingToken::new(7)));
    memory.raise(FencingToken::new(9)).await.unwrap();
    let bridge = Bridge::new(wire("old", &memory), low).unwrap();
    let e = bridge.check().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
}

#[tokio::test]
async fn it_gives_the_weaker_of_both() {
    let w = world_of(|old| old, Wire::numbering_places);
    let gives = w.bridge.guarantees();
    assert_eq!((gives.fairness, gives.atomic_multi), (Fairness::Bounded, 1));
    assert!(matches!(gives.raises, Raises::Places(_)) && !gives.min_hold_outlives_process);
    let mine = fair("mine");
    granted(&w.bridge, &mine).await;
    assert_eq!(w.bridge.list("", None, 9).await.unwrap(), ["a".into()]);
    let others = [fair("x"), Claim::new("b", Mode::Exclusive, WaitPolicy::Try, TTL, "y")];
    granted(&w.new.memory, &others[1]).await;
    waits(&w.old.memory, &others[0]).await;
    assert_eq!(w.bridge.list("", None, 9).await.unwrap(), ["a".into(), "b".into()]);
    assert_eq!(w.bridge.list("", Some(&"a".into()), 9).await.unwrap(), ["b".into()]);
    let shown = w.bridge.inspect(&"a".into()).await.unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 1));
}
