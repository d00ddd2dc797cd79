//! Answers that are lost, requests that are late, callers that leave, and a store that is away.

use super::*;

#[tokio::test]
async fn a_try_that_is_refused_in_new_gives_old_back() {
    let w = world();
    let other = fair("stage 3");
    granted(&w.new.memory, &other).await;
    let mine = claim(WaitPolicy::Try, "mine");
    assert!(matches!(
        drive(w.bridge.claim(&mine)).await,
        Some(Ok(Claimed::Busy(_)))
    ));
    assert_eq!(w.left(), (0, 1));
    // Nor if that is not answered: then the error says that something may be left, and the release finds it.
    w.plan.fault(2, Fault::Refused);
    assert_eq!(failed(&w.bridge, &mine).await, ErrorKind::Ambiguous);
    release(&w.bridge, &mine).await;
    assert_eq!(w.left(), (0, 1));
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
    assert!(matches!(
        renewed(&w.bridge, &mine, &grant).await,
        Renewal::Renewed(_)
    ));
    assert_eq!(w.left(), (1, 1));
}

#[tokio::test]
async fn new_that_does_not_answer_keeps_nobody_out_of_old() {
    let w = world();
    let mine = fair("mine");
    w.plan.away("new", true);
    assert_eq!(
        failed(&w.bridge, &mine).await,
        ErrorKind::Unavailable,
        "nothing of it is anywhere"
    );
    assert_eq!(
        (w.plan.sent(), w.left()),
        (
            ["old claim", "new claim", "old release"]
                .map(String::from)
                .to_vec(),
            (0, 0)
        )
    );
    assert_eq!(failed(&w.bridge, &mine).await, ErrorKind::Unavailable);
    assert_eq!(
        w.plan.sent(),
        ["new inspect"],
        "old is not claimed as long as new is away"
    );
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
        assert!(matches!(
            renewed(&w.bridge, &mine, &grant).await,
            Renewal::Unknown(_)
        ));
        let e = drive(w.bridge.release(&mine, None))
            .await
            .unwrap()
            .unwrap_err();
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

/// Whatever becomes of any one request, and wherever the caller leaves: a release finds all that there is.
#[tokio::test]
async fn nothing_is_left_whichever_request_fails_or_is_dropped() {
    let places: [fn(Wire) -> Wire; 2] = [|wire| wire, Wire::numbering_places];
    for fault in [
        Fault::Refused,
        Fault::LostReply,
        Fault::HeldBack,
        Fault::Hangs,
        Fault::HangsAfter,
    ] {
        for (n, numbered) in (0..9).flat_map(|n| places.map(|numbered| (n, numbered))) {
            let w = world_of(|old| old, numbered);
            w.old
                .memory
                .raise(FencingToken::new(100_000))
                .await
                .unwrap();
            let mine = fair("mine");
            w.plan.fault(n, fault);
            let mut grants = Vec::new();
            for _ in 0..3 {
                if let Some(Ok(Claimed::Granted(grant))) = drive(w.bridge.claim(&mine)).await {
                    grants.push(grant.token);
                }
            }
            assert!(
                !grants.is_empty(),
                "{fault:?} of request {n}: one fault does no more than that"
            );
            assert!(
                grants.iter().all(|token| *token == grants[0]),
                "{fault:?} of request {n}: {grants:?}"
            );
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
                assert!(
                    granted(store, &fair("next")).await.token > grants[0],
                    "{fault:?} of request {n}"
                );
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
