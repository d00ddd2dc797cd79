//! Several names in one step: one request, all or nothing, whatever happens to the request and to its caller.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{Claim, ClaimId, Claimed, ClaimedAll, WaitPolicy};
use leasehold_core::{Contention, ErrorKind, Loss, Name};
use tokio::sync::Notify;

use crate::script::{
    AT_ONCE, Call, Log, Script, TTL, all_granted, driven, error, granted, granted_since, in_time,
    ms, pass, settle, waiting,
};

type Claims = Arc<Mutex<Vec<Claim>>>;

/// A script that grants all that is asked for at once, and keeps the claims.
fn generous(script: Script, seen: &Claims) -> Script {
    let seen = seen.clone();
    script.claims_of_all(move |claims, _| {
        let answer = all_granted(&claims, 7);
        seen.lock().unwrap().extend(claims);
        async { Ok(answer) }
    })
}

/// Which claims were withdrawn, and where each was said to stand.
fn released(log: &Log) -> Vec<(ClaimId, Option<String>)> {
    let release = |call| match call {
        Call::Release(id, place) => Some((id, place.map(|place| place.as_str().to_owned()))),
        _ => None,
    };
    log.calls().into_iter().filter_map(release).collect()
}

fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort();
    all
}

#[tokio::test]
async fn one_request_takes_them_all() {
    let (script, time, log) = Script::new();
    let seen = Claims::default();
    let store = generous(script, &seen).store().namespace("n");
    let multi = store
        .multi_lock(["c", "a", "b"])
        .label("me")
        .max_hold(TTL / 2)
        .fast();
    for acquire in [
        multi.try_acquire(),
        multi.acquire(),
        multi.acquire_timeout(ms(10)),
    ] {
        seen.lock().unwrap().clear();
        let guard = in_time(acquire).await.unwrap();
        let claims = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(
            claims
                .iter()
                .map(|claim| claim.name.as_str())
                .collect::<Vec<_>>(),
            ["n/a", "n/b", "n/c"]
        );
        assert!(
            claims
                .iter()
                .all(|claim| (claim.policy, claim.ttl, &*claim.label)
                    == (WaitPolicy::Try, TTL, "me"))
        );
        let tokens: Vec<_> = guard
            .tokens()
            .map(|(name, token)| (name.to_string(), token.get()))
            .collect();
        assert_eq!(
            tokens,
            [
                ("a".to_owned(), 7),
                ("b".to_owned(), 8),
                ("c".to_owned(), 9)
            ]
        );
        assert_eq!(guard.remaining(), TTL / 2);
        guard.release().await.unwrap();
    }
    assert_eq!(
        (log.claims(), log.joint_claims().len(), log.releases()),
        (0, 3, 9)
    );
    // They are kept and lost like any other.
    let guard = multi.acquire().await.unwrap();
    let lost = guard.lost();
    pass(&time, TTL / 2, ms(100)).await;
    assert_eq!(in_time(lost).await, Loss::MaxHold);
    assert!(log.renewals() > 0);
}

#[tokio::test]
async fn each_is_held_for_min_hold() {
    let (script, time, log) = Script::new();
    let store = generous(script, &Claims::default()).store();
    store
        .multi_lock(["a", "b"])
        .min_hold(ms(500))
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    pass(&time, ms(490), ms(10)).await;
    assert_eq!(log.releases(), 0);
    pass(&time, ms(20), ms(10)).await;
    assert_eq!(log.releases(), 2);
}

#[tokio::test]
async fn a_try_that_is_refused_says_by_whom_and_withdraws_nothing() {
    let (script, time, log) = Script::new();
    let store = script
        .claims_of_all(|_, _| async { Ok(ClaimedAll::Busy(1, Contention::by("the holder"))) })
        .store();
    let refused = store
        .multi_lock(["a", "b", "c"])
        .try_acquire()
        .await
        .unwrap_err();
    assert_eq!(
        (refused.kind(), refused.name()),
        (ErrorKind::Contended, Some(&Name::new("b")))
    );
    assert_eq!(
        refused.contention().unwrap().label.as_deref(),
        Some("the holder")
    );
    pass(&time, TTL, ms(500)).await;
    assert_eq!(
        (log.joint_claims().len(), log.claims(), log.releases()),
        (1, 0, 0)
    );
}

#[tokio::test]
async fn a_caller_that_waits_queues_name_by_name() {
    let (script, time, log) = Script::new();
    let policies = Arc::new(Mutex::new(Vec::new()));
    let asked = policies.clone();
    let store = script
        .claims_of_all(|_, _| async { Ok(ClaimedAll::Busy(0, Contention::unknown())) })
        .claims(move |claim, n| {
            asked
                .lock()
                .unwrap()
                .push((claim.name.to_string(), claim.policy));
            let answer = if claim.name.as_str() == "b" {
                waiting(&claim)
            } else {
                granted(&claim, n as u64 + 1)
            };
            async { Ok(answer) }
        })
        .store();
    let began = time.clock().now();
    let late = in_time(driven(
        &time,
        store.multi_lock(["b", "a"]).acquire_timeout(ms(500)),
    ))
    .await
    .unwrap_err();
    assert_eq!(
        (late.kind(), late.name()),
        (ErrorKind::TimedOut, Some(&Name::new("b")))
    );
    assert!(time.clock().now().since(began) <= ms(560));
    assert_eq!(
        policies.lock().unwrap()[..2],
        [
            ("a".to_owned(), WaitPolicy::Fair),
            ("b".to_owned(), WaitPolicy::Fair)
        ]
    );
    in_time(driven(&time, log.until_released(2))).await;
    assert_eq!(log.joint_claims().len(), 1);
}

#[tokio::test]
async fn one_name_and_too_many_names_are_taken_one_by_one() {
    let (script, _time, log) = Script::new();
    let store = generous(script, &Claims::default()).store();
    let guard = store.multi_lock(["a"]).acquire().await.unwrap();
    let many = store
        .multi_lock((0..=AT_ONCE as u64).map(|i| ("many", i)))
        .acquire()
        .await
        .unwrap();
    assert_eq!((log.joint_claims().len(), log.claims()), (0, AT_ONCE + 2));
    let most = store
        .multi_lock((0..AT_ONCE as u64).map(|i| ("most", i)))
        .acquire()
        .await
        .unwrap();
    assert_eq!((log.joint_claims().len(), log.claims()), (1, AT_ONCE + 2));
    drop((guard, many, most));
}

/// P4: the caller has gone while the request is in flight; the withdrawals wait for it to land, and name the places.
#[tokio::test]
async fn withdrawals_never_overtake_the_request() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let land = Arc::new(Notify::new());
        let landing = land.clone();
        let script = script.claims_of_all(move |claims, _| {
            let landing = landing.clone();
            async move {
                landing.notified().await;
                Ok(all_granted(&claims, 1))
            }
        });
        let acquire = tokio::spawn(script.store().multi_lock(["b", "a"]).acquire());
        log.until(1, |call| matches!(call, Call::ClaimAll(_))).await;
        acquire.abort();
        settle().await;
        assert_eq!(log.releases(), 0);
        land.notify_one();
        log.until_released(2).await;
        let ids = &log.joint_claims()[0];
        assert_eq!(
            released(&log),
            [
                (ids[0], Some("at a".to_owned())),
                (ids[1], Some("at b".to_owned()))
            ]
        );
        assert_eq!(log.calls()[1], Call::AnsweredAll);
    })
    .await;
}

#[tokio::test]
async fn a_lost_reply_is_asked_for_again_by_the_same_ids() {
    let (script, time, log) = Script::new();
    let store = script
        .claims_of_all(|claims, n| async move {
            if n == 0 {
                error(ErrorKind::Ambiguous)
            } else {
                Ok(all_granted(&claims, 1))
            }
        })
        .store();
    let guard = in_time(driven(&time, store.multi_lock(["a", "b"]).acquire()))
        .await
        .unwrap();
    let joint_claims = log.joint_claims();
    assert_eq!(
        (joint_claims.len(), &joint_claims[0]),
        (2, &joint_claims[1])
    );
    assert!(guard.is_valid());
    assert_eq!(log.releases(), 0);
}

/// A refusal after an attempt of which nothing is known, or that was granted too late, does not say that nothing is left.
#[tokio::test]
async fn a_refusal_after_doubt_withdraws_every_one() {
    for late in [false, true] {
        let (script, time, log) = Script::new();
        let clock = time.clock();
        let store = script
            .claims_of_all(move |claims, n| {
                let clock = clock.clone();
                async move {
                    match (n, late) {
                        (0, false) => error(ErrorKind::Ambiguous),
                        (0, true) => {
                            clock.sleep(ms(599)).await;
                            Ok(all_granted(&claims, 1))
                        }
                        _ => Ok(ClaimedAll::Busy(1, Contention::unknown())),
                    }
                }
            })
            .store();
        // A try waits for two seconds: only a shorter lease is over by then.
        let multi = store.multi_lock(["a", "b"]).ttl(ms(600));
        let refused = in_time(driven(&time, multi.try_acquire()))
            .await
            .unwrap_err();
        assert_eq!(
            (refused.kind(), refused.name()),
            (ErrorKind::Contended, Some(&Name::new("b")))
        );
        in_time(driven(&time, log.until_released(2))).await;
        let ids = released(&log).into_iter().map(|(id, _)| id).collect();
        assert_eq!(sorted(ids), sorted(log.joint_claims()[0].clone()));
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_asked_is_given_up_in_time() {
    for (kind, sent) in [(ErrorKind::Unavailable, 0), (ErrorKind::Ambiguous, 2)] {
        let (script, time, log) = Script::new();
        let store = script
            .claims_of_all(move |_, _| async move { error(kind) })
            .store();
        let began = time.clock().now();
        let multi = store.multi_lock(["a", "b"]);
        let failed = in_time(driven(&time, multi.acquire_timeout(ms(500))))
            .await
            .unwrap_err();
        assert_eq!(failed.kind(), kind);
        assert!(time.clock().now().since(began) <= ms(560));
        let failed = in_time(driven(&time, multi.try_acquire()))
            .await
            .unwrap_err();
        assert_eq!(failed.kind(), kind);
        assert!(time.clock().now().since(began) <= ms(560) + TTL / 2);
        // What may be there is withdrawn, and nothing was taken in another way.
        in_time(driven(&time, log.until_released(sent * 2))).await;
        assert_eq!(log.claims(), 0);
    }
}

#[tokio::test]
async fn an_answer_for_a_part_of_them_is_none() {
    let (script, time, log) = Script::new();
    let store = script
        .claims_of_all(|claims, _| async move { Ok(all_granted(&claims[..1], 1)) })
        .store();
    let failed = store.multi_lock(["a", "b"]).acquire().await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Internal);
    in_time(driven(&time, log.until_released(2))).await;
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_sent() {
    let (script, _time, log) = Script::new();
    let store = generous(script, &Claims::default()).store();
    for (names, bad) in [(["", "a"], ""), (["a", "b\0"], "b\0")] {
        let invalid = store.multi_lock(names).acquire().await.unwrap_err();
        assert_eq!(
            (invalid.kind(), invalid.name()),
            (ErrorKind::Invalid, Some(&Name::new(bad)))
        );
    }
    let invalid = store
        .multi_lock(["a", "b"])
        .ttl(Duration::ZERO)
        .try_acquire()
        .await
        .unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::Invalid);
    store.close(TTL).await.unwrap();
    assert_eq!(
        store
            .multi_lock(["a", "b"])
            .acquire()
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Closed
    );
    assert!(log.joint_claims().is_empty());
}

/// A notification may tell of some of them what a reply did not.
#[tokio::test]
async fn they_are_granted_when_each_of_them_is() {
    for told in 1..=2 {
        let (script, time, log) = Script::new();
        let (notifier, clock) = (script.notifier(), time.clock());
        let store = script
            .claims_of_all(move |claims, n| {
                let tell = |claim: &Claim| match granted_since(claim, 1, clock.now()) {
                    Claimed::Granted(grant) => notifier.granted(claim.id, grant),
                    other => panic!("{other:?}"),
                };
                claims.iter().take(told).for_each(tell);
                async move {
                    if n == 0 {
                        error(ErrorKind::Ambiguous)
                    } else {
                        Ok(all_granted(&claims, 1))
                    }
                }
            })
            .store();
        let guard = in_time(driven(&time, store.multi_lock(["a", "b"]).acquire()))
            .await
            .unwrap();
        assert!(guard.is_valid());
        assert_eq!((log.joint_claims().len(), log.releases()), (3 - told, 0));
    }
}

#[tokio::test]
async fn one_that_is_evicted_ends_the_whole() {
    let (script, _time, log) = Script::new();
    let notifier = script.notifier();
    let store = generous(script, &Claims::default()).store();
    let guard = store.multi_lock(["a", "b"]).acquire().await.unwrap();
    let lost = guard.lost();
    notifier.lost(log.joint_claims()[0][1], Loss::Evicted);
    assert_eq!(in_time(lost).await, Loss::Evicted);
    assert_eq!(guard.check().unwrap_err().name(), Some(&Name::new("b")));
}

#[tokio::test]
async fn one_whose_lease_was_over_when_it_came_is_named() {
    let (script, time, log) = Script::new();
    let long_ago = time.clock().now();
    time.advance(TTL);
    let store = script.claims_of_all(move |claims, _| {
        let all = [
            granted(&claims[0], 1),
            granted(&claims[1], 2),
            granted_since(&claims[2], 3, long_ago),
        ];
        std::future::ready(Ok(all.into_iter().collect()))
    });
    let late = in_time(store.store().multi_lock(["a", "b", "c"]).try_acquire())
        .await
        .unwrap_err();
    assert_eq!(
        (late.kind(), late.name()),
        (ErrorKind::Unavailable, Some(&Name::new("c")))
    );
    in_time(driven(&time, log.until_released(3))).await;
}
