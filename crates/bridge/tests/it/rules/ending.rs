//! When a hold ends, and who learns of it.

use super::*;

#[tokio::test]
async fn a_hold_ends_with_the_lease_that_ends_first() {
    for (longer_old, longer_new) in [(3, 1), (1, 3)] {
        let w = world_of(
            |old| old.granting(longer_old),
            |new| new.granting(longer_new),
        );
        let (mine, sent) = (fair("mine"), w.now());
        let grant = granted(&w.bridge, &mine).await;
        assert_eq!(grant.validity.ttl(), TTL, "it is renewed by the shorter");
        assert!(grant.validity.until(sent) <= sent + TTL);
        // Only the longer one is renewed, again and again.
        w.plan
            .away(if longer_old == 1 { "old" } else { "new" }, true);
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
    let Renewal::Unknown(e) = renewed(&w.bridge, &mine, &grant).await else {
        panic!("nothing was gained")
    };
    assert!(e.to_string().contains("old"), "{e}");
    w.time.advance(TTL / 4);
    w.plan.fault(1, Fault::LostReply);
    let Renewal::Renewed(validity) = renewed(&w.bridge, &mine, &grant).await else {
        panic!("half was gained")
    };
    let until = validity.until(w.now());
    assert!(
        until > sent + TTL && until <= sent + TTL / 4 + TTL,
        "{until:?}"
    );
}

#[tokio::test]
async fn lost_in_one_is_lost_and_told_at_once() {
    for in_new in [false, true] {
        let w = world();
        let mine = fair("mine");
        let grant = granted(&w.bridge, &mine).await;
        let store = if in_new { &w.new } else { &w.old };
        assert!(store.memory.delete("a"));
        assert!(matches!(
            renewed(&w.bridge, &mine, &grant).await,
            Renewal::Lost(Loss::Gone)
        ));
        release(&w.bridge, &mine).await;
        assert_eq!(w.left(), (0, 0));
        // And by a notification of one of them.
        let guard = Store::new(w.bridge)
            .lock("b")
            .ttl(TTL)
            .acquire()
            .await
            .unwrap();
        assert!(
            store
                .memory
                .evict(&"b".into(), guard.fencing_token())
                .await
                .unwrap()
        );
        assert_eq!(guard.lost().await, Loss::Evicted);
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
    assert!(
        granted(
            &Bridge::new(w.old.another(), w.new.another()).unwrap(),
            &reader
        )
        .await
        .token
            > grant.token
    );
}

/// A session may have begun long before the claim.
#[tokio::test]
async fn a_grant_counts_from_the_lease_that_began_first() {
    for in_new in [false, true] {
        let aged = |wire: Wire, is: bool| if is { wire.aged(TTL / 2) } else { wire };
        let w = world_of(
            |old| aged(old, !in_new).granting(1 + u32::from(in_new)),
            |new| aged(new, in_new),
        );
        let sent = w.now();
        let grant = granted(&w.bridge, &fair("mine")).await;
        assert!(
            grant.validity.until(sent) <= sent + TTL / 2,
            "{:?}",
            grant.validity
        );
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
    let _listens = w
        .bridge
        .notifier()
        .unwrap()
        .subscribe(mine.id, move |said| {
            let before = plan.ids("new", "release").is_empty();
            heard.fetch_or(
                before && matches!(said, Notification::Lost(_)),
                Ordering::Relaxed,
            );
        });
    let mut again = mine.clone();
    again.policy = WaitPolicy::Try;
    assert!(matches!(
        drive(w.bridge.claim(&again)).await,
        Some(Ok(Claimed::Busy(_)))
    ));
    assert!(told.load(Ordering::Relaxed));
    assert_eq!(w.left(), (1, 0));
}

/// Where nothing is notified, a renewal learns of the grant in one store. It is none of the bridge's before both know it.
#[tokio::test]
async fn a_renewal_that_learns_of_a_grant_in_one_store_claims_in_both() {
    let w = world_of(Wire::silent, |new| new);
    let (mine, other) = (fair("mine"), fair("stage 1"));
    granted(&w.old.memory, &other).await;
    let place = waits(&w.bridge, &mine).await;
    release(&w.old.memory, &other).await;
    let lease = LeaseRef::new(Arc::new(mine.clone()), place, None);
    let answer = drive(w.bridge.renew(&[lease]))
        .await
        .unwrap()
        .unwrap()
        .remove(0);
    let Renewal::Granted(grant) = answer else {
        panic!("it is free in both: {answer:?}")
    };
    assert_eq!(granted(&w.bridge, &mine).await.token, grant.token);
    for store in [&w.old.memory, &w.new.memory] {
        let holders = store.inspect(&mine.name).await.unwrap().holders;
        assert_eq!(
            holders
                .iter()
                .map(|holder| holder.token)
                .collect::<Vec<_>>(),
            [Some(grant.token)]
        );
    }
}

/// Old's lease is over when new answers: it is claimed again before there is a guard.
#[tokio::test]
async fn what_has_ended_before_the_guard_is_claimed_again() {
    let w = world_of(|old| old, |new| new.granting(3));
    // New has no reason to be asked by another token.
    w.old.memory.raise(FencingToken::new(1_000)).await.unwrap();
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
    let Some(Ok(Claimed::Granted(grant))) = drive(asking).await else {
        panic!("it is free")
    };
    assert!(grant.validity.until(sent) > w.now(), "both ends lie ahead");
    assert!(
        w.plan
            .sent()
            .iter()
            .filter(|sent| *sent == "old claim")
            .count()
            > 1
    );
}

/// The renewal that said so was dropped with its answer: the next one says it too.
#[tokio::test]
async fn a_waiter_that_holds_in_both_is_told_by_any_renewal() {
    let w = world_of(Wire::silent, Wire::silent);
    let mine = fair("mine");
    let grant = granted(&w.bridge, &mine).await;
    let lease = LeaseRef::new(Arc::new(mine.clone()), grant.place.clone(), None);
    let answer = drive(w.bridge.renew(&[lease]))
        .await
        .unwrap()
        .unwrap()
        .remove(0);
    assert!(
        matches!(&answer, Renewal::Granted(again) if again.token == grant.token),
        "{answer:?}"
    );
    assert!(
        matches!(renewed(&w.bridge, &mine, &grant).await, Renewal::Renewed(_)),
        "it is the same hold"
    );
}

/// What a renewal has claimed for a waiter and could not have in new is given back, and core is told that it stands nowhere: also while
/// it cannot be given back, and so is not forgotten.
#[tokio::test]
async fn a_waiter_that_stands_nowhere_is_not_renewed() {
    for is_given_back in [true, false] {
        let w = world_of(Wire::silent, Wire::silent);
        let (mine, other) = (fair("mine"), fair("stage 1"));
        granted(&w.old.memory, &other).await;
        let place = waits(&w.bridge, &mine).await;
        release(&w.old.memory, &other).await;
        w.plan.away("new", true);
        w.plan.sent();
        if !is_given_back {
            w.plan.fault(3, Fault::Refused);
        }
        let asked = [LeaseRef::new(Arc::new(mine.clone()), place, None)];
        assert!(matches!(
            drive(w.bridge.renew(&asked))
                .await
                .unwrap()
                .unwrap()
                .remove(0),
            Renewal::Unknown(_)
        ));
        assert_eq!(
            w.plan.sent(),
            ["old renew", "old claim", "new claim", "old release"]
        );
        assert_eq!(
            w.left(),
            (usize::from(!is_given_back), 0),
            "nobody is kept out of old for nothing"
        );
        assert!(matches!(
            drive(w.bridge.renew(&asked))
                .await
                .unwrap()
                .unwrap()
                .remove(0),
            Renewal::Lost(_)
        ));
        w.plan.away("new", false);
        granted(&w.bridge, &mine).await;
    }
}
