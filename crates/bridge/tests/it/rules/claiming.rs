//! What is asked of which store and in which order, and by which token both know a hold.

use super::*;

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
    assert_eq!(
        w.plan.sent(),
        ["old claim", "new claim"],
        "two requests, as both stores agree at once"
    );
    release(&w.bridge, &mine).await;
    assert_eq!(w.plan.sent(), ["new release", "old release"]);
    assert_eq!(w.left(), (0, 0));
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
            assert_eq!(
                queue.holders[0].token,
                Some(grant.token),
                "{store:?} with {old} and {new}"
            );
        }
        let last = FencingToken::new(grant.token.get() + u64::from(grant.turns) - 1);
        release(&w.bridge, &mine).await;
        for store in [&w.old, &w.new] {
            assert!(
                granted(&store.memory, &fair("next")).await.token > last,
                "{store:?} with {old} and {new}"
            );
        }
    }
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
    let answer = drive(w.bridge.renew(&[lease]))
        .await
        .unwrap()
        .unwrap()
        .remove(0);
    assert!(matches!(answer, Renewal::Lost(_)), "{answer:?}");
    waits(&other, &b).await;
    waits(&w.bridge, &a).await;
    assert_eq!(
        w.left(),
        (2, 2),
        "b holds old, a stands behind it; in new are the leftover and b"
    );
    release(&w.new.memory, &leftover).await;
    granted(&other, &b).await;
    release(&other, &b).await;
    granted(&w.bridge, &a).await;
}

/// A place that was numbered below old's tokens is left, and taken anew above them.
#[tokio::test]
async fn a_store_that_numbers_places_is_raised_and_stood_in_anew() {
    let w = world_of(|old| old, Wire::numbering_places);
    w.old
        .memory
        .raise(FencingToken::new(1_000_000))
        .await
        .unwrap();
    let mine = claim(WaitPolicy::Fast, "mine");
    let grant = granted(&w.bridge, &mine).await;
    assert_eq!(
        w.plan.sent(),
        [
            "old claim",
            "new claim",
            "new raise",
            "new release",
            "new claim",
            "old claim"
        ],
        "and old learns the number of its place there"
    );
    assert!(grant.token.get() > 1_000_000);
    let last = grant.token.get() + u64::from(grant.turns) - 1;
    release(&w.bridge, &mine).await;
    assert!(granted(&w.new, &fair("stage 3")).await.token.get() > last);
    assert!(granted(&w.old, &fair("stage 1")).await.token.get() > last);
    // The way back: from new's counts to a store of places.
    let back = world_of(Wire::numbering_places, |new| new);
    back.new
        .memory
        .raise(FencingToken::new(1_000_000))
        .await
        .unwrap();
    let grant = granted(&back.bridge, &mine).await;
    assert_eq!(
        back.plan.sent()[..4],
        ["old claim", "new claim", "old raise", "new release"],
        "from new first"
    );
    let last = grant.token.get() + u64::from(grant.turns) - 1;
    release(&back.bridge, &mine).await;
    assert!(granted(&back.old, &fair("stage 1")).await.token.get() > last);
    assert!(granted(&back.new, &fair("stage 3")).await.token.get() > last);
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
    let stiff = wire("old", &memory).raising(None);
    assert!(refused(stiff, wire("new", &beside)).contains("the old store"));
    let low = wire("new", &beside).raising(Some(Raises::Holds(FencingToken::new(7))));
    memory.raise(FencingToken::new(9)).await.unwrap();
    let bridge = Bridge::new(wire("old", &memory), low).unwrap();
    let e = bridge.check().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
}

#[tokio::test]
async fn it_gives_the_weaker_of_both() {
    let w = world_of(|old| old, Wire::numbering_places);
    let gives = w.bridge.guarantees();
    assert_eq!(
        (gives.fairness(), gives.atomic_multi()),
        (Fairness::Bounded, 1)
    );
    // A part is raised by itself.
    assert!(w.bridge.token_floor().is_none() && !gives.min_hold_outlives_process());
    let mine = fair("mine");
    granted(&w.bridge, &mine).await;
    assert_eq!(w.bridge.list("", None, 9).await.unwrap(), ["a".into()]);
    let others = [
        fair("x"),
        Claim::new("b", Mode::Exclusive, WaitPolicy::Try, TTL, "y"),
    ];
    granted(&w.new.memory, &others[1]).await;
    waits(&w.old.memory, &others[0]).await;
    assert_eq!(
        w.bridge.list("", None, 9).await.unwrap(),
        ["a".into(), "b".into()]
    );
    assert_eq!(
        w.bridge.list("", Some(&"a".into()), 9).await.unwrap(),
        ["b".into()]
    );
    let shown = w.bridge.inspect(&"a".into()).await.unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 1));
}
