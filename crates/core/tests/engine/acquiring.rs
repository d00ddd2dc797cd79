//! The acquire loop against stores that fail, hang and answer too late.

use std::sync::Arc;

use futures_util::FutureExt as _;
use leasehold_core::backend::{Claimed, Clock, Moment, Place, Waiting};
use leasehold_core::{Contention, Error, ErrorKind, FencingToken, Guard, Owner};
use tokio::sync::Notify;

use crate::script::{
    Call, GOOD, Script, TTL, driven, error, granted, granted_since, in_time, ms, pass, settle,
    waiting,
};

fn ids(calls: &[Call]) -> std::collections::HashSet<leasehold_core::backend::ClaimId> {
    calls
        .iter()
        .filter_map(|c| {
            if let Call::Claim(id) = c {
                Some(*id)
            } else {
                None
            }
        })
        .collect()
}

fn failed(answer: Result<Guard, Error>) -> Error {
    answer.map(|guard| panic!("{guard:?}")).unwrap_err()
}

#[tokio::test]
async fn is_lazy() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.store();
        let (acquire, held) = (store.lock("a").acquire(), store.lock("a").run(|_| async {}));
        settle().await;
        drop((acquire, held, store));
        settle().await;
        assert_eq!(log.calls(), [Call::Dropped]);
    })
    .await;
}

/// Five failures of either kind and then an answer: every attempt carries one id, and the guard counts from the last.
#[tokio::test]
async fn asks_again_after_failures() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Ambiguous] {
        in_time(async {
            let (script, time, log) = Script::new();
            let script = script.claims(move |claim, n| async move {
                if n < 5 {
                    error(kind)
                } else {
                    Ok(granted(&claim, 1))
                }
            });
            let store = script.store();
            let guard = driven(&time, store.lock("a").acquire()).await.unwrap();
            assert_eq!((log.claims(), ids(&log.calls()).len()), (6, 1));
            assert!(guard.is_valid());
            guard.release().await.unwrap();
            assert_eq!(log.releases(), 1);
        })
        .await;
    }
}

/// A store that only fails is asked for one lease (by a *try*: for a quarter of a second, however long the lease is), then its own error
/// is the answer. What may have been executed is withdrawn, what was not is not.
#[tokio::test]
async fn a_retry_budget_ends() {
    for (kind, releases) in [(ErrorKind::Unavailable, 0), (ErrorKind::Ambiguous, 1)] {
        in_time(async {
            let (script, time, log) = Script::new();
            let store = script
                .claims(move |_, _| async move { error(kind) })
                .store();
            let start = time.clock().now();
            let answer = failed(driven(&time, store.lock("a").acquire()).await);
            let took = time.clock().now().since(start);
            assert_eq!(answer.kind(), kind);
            assert!(took >= TTL && took < TTL + ms(1100), "{took:?}");
            assert!(log.claims() < 30, "{} claims in one lease", log.claims());
            settle().await;
            assert_eq!(log.releases(), releases);

            let start = time.clock().now();
            assert_eq!(
                failed(driven(&time, store.lock("a").try_acquire()).await).kind(),
                kind
            );
            let took = time.clock().now().since(start);
            assert!(took >= ms(250) && took < ms(600), "{took:?}");
        })
        .await;
    }
}

/// The look at the deadline tells the store that it is the last one. No other request does.
#[tokio::test]
async fn the_last_look_says_that_it_is_the_last() {
    in_time(async {
        let (script, time, _log) = Script::new();
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let claims = seen.clone();
        let store = script
            .claims(move |claim, _| {
                claims.lock().unwrap().push(claim.is_last);
                async move { Ok(waiting(&claim)) }
            })
            .store();
        let wait = TTL * 3;
        let late = failed(driven(&time, store.lock("a").acquire_timeout(wait)).await);
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        let (last, before) = seen.split_last().unwrap();
        assert!(*last && before.len() > 2, "{seen:?}");
        assert!(before.iter().all(|is_last| !is_last), "{seen:?}");
    })
    .await;
}

/// A try ends with the refusal of a server that answers. Whoever waits asks again.
#[tokio::test]
async fn a_try_ends_with_the_answer() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Ambiguous] {
        in_time(async {
            let (script, time, log) = Script::new();
            let refuses = move || error::<Claimed>(kind).map_err(Error::answered);
            let store = script.claims(move |_, _| async move { refuses() }).store();
            let start = time.clock().now();
            let answer = failed(store.lock("a").try_acquire().await);
            assert_eq!((answer.kind(), log.claims()), (kind, 1));
            assert_eq!(time.clock().now(), start);
            failed(driven(&time, store.lock("a").acquire_timeout(ms(700))).await);
            assert!(log.claims() > 3, "{} claims", log.claims());
        })
        .await;
    }
}

#[tokio::test]
async fn a_final_error_is_final() {
    for kind in [
        ErrorKind::Denied,
        ErrorKind::Unsupported,
        ErrorKind::Internal,
    ] {
        in_time(async {
            let (script, _time, log) = Script::new();
            let store = script
                .claims(move |_, _| async move { error(kind) })
                .store();
            let error = failed(store.lock("a").acquire().await);
            assert_eq!((error.kind(), log.claims()), (kind, 1));
            assert_eq!(error.name().map(|name| name.as_str()), Some("a"));
        })
        .await;
    }
}

/// In virtual time: the store never answers, or answers once and never again.
#[tokio::test]
async fn a_bounded_wait_ends_in_time() {
    for answers in 0..2 {
        in_time(async {
            let (script, time, _log) = Script::new();
            let store = script
                .claims(move |claim, n| async move {
                    if n >= answers {
                        std::future::pending::<()>().await;
                    }
                    Ok(waiting(&claim))
                })
                .store();
            let start = time.clock().now();
            let error = failed(driven(&time, store.lock("a").acquire_timeout(ms(700))).await);
            let took = time.clock().now().since(start);
            assert!(took >= ms(700) && took <= ms(750), "{took:?}");
            // A claim without any answer may have been executed.
            let kind = if answers == 0 {
                ErrorKind::Ambiguous
            } else {
                ErrorKind::TimedOut
            };
            assert_eq!(error.kind(), kind);
            assert_eq!(
                error
                    .contention()
                    .and_then(|who| who.label.as_deref())
                    .is_some(),
                answers == 1
            );
        })
        .await;
    }
}

/// The same once on the machine's own clock, which virtual time cannot stand in for.
#[tokio::test]
async fn a_bounded_wait_ends_in_time_on_the_real_clock() {
    in_time(async {
        let store = Script::on(Clock::boot())
            .claims(async |_, _| std::future::pending().await)
            .store();
        let start = Moment::now();
        failed(store.lock("a").acquire_timeout(ms(300)).await);
        let took = Moment::now().since(start);
        // 50 ms are the promise; the rest is for a machine that is busy with other tests.
        assert!(took >= ms(300) && took < ms(550), "{took:?}");
    })
    .await;
}

/// A lock that comes free just before the deadline is not missed.
#[tokio::test]
async fn claims_a_last_time_at_the_deadline() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .claims(async |claim, n| {
                Ok(if n == 0 {
                    waiting(&claim)
                } else {
                    granted(&claim, 1)
                })
            })
            .store();
        let guard = driven(&time, store.lock("a").acquire_timeout(ms(700)))
            .await
            .unwrap();
        assert_eq!(log.claims(), 2);
        drop(guard);
    })
    .await;
}

/// Who is in the way at the deadline is who was told last, with all that was told: not the holder of before.
#[tokio::test]
async fn a_time_out_tells_the_last_answer() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .claims(async |_, n| {
                let who = match n {
                    0 => Contention::by("the first").held_for(ms(400)).waiters(1),
                    _ => Contention::by("the second").held_for(ms(50)),
                };
                Ok(Claimed::Waiting(Waiting::new(Place::new("p"), who)))
            })
            .store();
        let error = failed(driven(&time, store.lock("a").acquire_timeout(ms(700))).await);
        assert_eq!((error.kind(), log.claims()), (ErrorKind::TimedOut, 2));
        let last = Contention::by("the second").held_for(ms(50));
        assert_eq!(error.into_contention().unwrap(), last);
    })
    .await;
}

/// A last look that the store fails is told as what it is: the holder of before may have gone with the server.
#[tokio::test]
async fn a_time_out_tells_that_the_last_look_failed() {
    for kind in [
        ErrorKind::Unavailable,
        ErrorKind::Ambiguous,
        ErrorKind::Denied,
    ] {
        in_time(async {
            let (script, time, _log) = Script::new();
            let store = script
                .claims(move |claim, n| async move {
                    if n == 0 {
                        Ok(waiting(&claim))
                    } else {
                        error(kind)
                    }
                })
                .store();
            let told = failed(driven(&time, store.lock("a").acquire_timeout(ms(700))).await);
            assert_eq!(told.kind(), kind);
        })
        .await;
    }
}

/// A try waits for a silent store for two seconds, however long the lease is; what it has sent is withdrawn when it lands.
#[tokio::test]
async fn a_try_waits_two_seconds_for_a_silent_store() {
    for ttl in [ms(600), TTL, TTL * 10_000] {
        in_time(async {
            let (script, time, log) = Script::new();
            let landing = Arc::new(Notify::new());
            let lock = script.claims_on(&landing).store().lock("a").ttl(ttl);
            let start = time.clock().now();
            let answer = failed(driven(&time, lock.try_acquire()).await);
            let took = time.clock().now().since(start);
            let limit = ms(2000);
            assert!(took >= limit.min(ttl) && took <= limit + ms(50), "{took:?}");
            assert_eq!(answer.kind(), ErrorKind::Ambiguous);
            landing.notify_one();
            driven(&time, log.until_released(1)).await;
        })
        .await;
    }
}

/// The last attempt is over 40 ms after the deadline, also if the answer to the attempt before it
/// comes at that very moment.
#[tokio::test]
async fn is_late_by_one_last_claim_at_most() {
    for answered_after in [ms(730), ms(740)] {
        in_time(async {
            let (script, time, _log) = Script::new();
            let store = script
                .claims_after(
                    move |n| if n == 0 { answered_after } else { TTL },
                    |claim, _| waiting(claim),
                )
                .store();
            let start = time.clock().now();
            let error = failed(driven(&time, store.lock("a").acquire_timeout(ms(700))).await);
            let took = time.clock().now().since(start);
            assert!(took >= ms(700) && took <= ms(740), "{took:?}");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
        })
        .await;
    }
}

/// A caller that polls only long after the deadline still has the full time for the last attempt.
#[tokio::test]
async fn a_caller_that_polls_late_has_the_full_time_for_the_last_claim() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .claims_after(
                |n| ms(if n == 0 { 100 } else { 10 }),
                |claim, n| match n {
                    0 => waiting(claim),
                    _ => granted(claim, 1),
                },
            )
            .store();
        let mut acquire = store.lock("a").acquire_timeout(ms(700));
        assert!((&mut acquire).now_or_never().is_none());
        time.advance(ms(1000));
        let guard = driven(&time, acquire).await.unwrap();
        assert_eq!(log.claims(), 2);
        drop(guard);
    })
    .await;
}

/// A grant that is pushed during the last attempt, and ends during it, is none.
#[tokio::test]
async fn a_grant_that_ends_during_the_last_attempt_is_none() {
    in_time(async {
        let (script, time, log) = Script::new();
        let (notifier, clock) = (script.notifier(), time.clock());
        let store = script
            .claims(move |claim, n| {
                let (notifier, clock) = (notifier.clone(), clock.clone());
                async move {
                    if n == 0 {
                        return Ok(waiting(&claim));
                    }
                    // It is good for 10 ms.
                    let before = Moment::from_nanos(
                        (clock.now().as_nanos() - GOOD.as_nanos() as u64) + 10_000_000,
                    );
                    if let Claimed::Granted(grant) = granted_since(&claim, 1, before) {
                        notifier.granted(claim.id, grant);
                    }
                    clock.sleep(ms(20)).await;
                    error(ErrorKind::Unavailable)
                }
            })
            .store();
        let error = failed(driven(&time, store.lock("a").acquire_timeout(ms(700))).await);
        assert_eq!((error.kind(), log.claims()), (ErrorKind::Unavailable, 2));
    })
    .await;
}

/// A grant is pushed during the last attempt, which is not answered in time: it may be executed after a release of that grant, so
/// the claim is withdrawn when it has been answered.
#[tokio::test]
async fn a_last_attempt_that_is_not_answered_is_not_forgotten() {
    in_time(async {
        let (script, time, log) = Script::new();
        let (notifier, landing) = (script.notifier(), Arc::new(Notify::new()));
        let (land, clock) = (landing.clone(), time.clock());
        let store = script
            .claims(move |claim, n| {
                let (notifier, clock, land) = (notifier.clone(), clock.clone(), land.clone());
                async move {
                    if n == 0 {
                        return Ok(waiting(&claim));
                    }
                    if let Claimed::Granted(grant) = granted_since(&claim, 1, clock.now()) {
                        notifier.granted(claim.id, grant);
                    }
                    land.notified().await;
                    Ok(granted(&claim, 1))
                }
            })
            .store();
        let answer = driven(&time, store.lock("a").acquire_timeout(ms(700))).await;
        if let Ok(guard) = answer {
            guard.release().await.unwrap();
        }
        settle().await;
        assert_eq!(
            (log.claims(), log.releases()),
            (2, 0),
            "a release has overtaken its claim"
        );
        landing.notify_one();
        log.until_released(1).await;
    })
    .await;
}

/// A task that waits for another one of its owner times out as any waiter.
#[tokio::test]
async fn an_owners_wait_ends_as_any_other() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script.busy().store();
        let lock = store.lock("a").owner(&Owner::new());
        let first = tokio::spawn(lock.acquire());
        log.until_claimed(1).await;
        let late = failed(driven(&time, lock.acquire_timeout(ms(700))).await);
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert!(late.contention().is_some());
        assert_eq!(
            failed(lock.try_acquire().await).kind(),
            ErrorKind::Contended
        );
        first.abort();
    })
    .await;
}

/// A namespace is a part of the name that the store sees.
#[tokio::test]
async fn of_a_bad_namespace_nothing_is_sent() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.store().namespace("a\0b");
        assert_eq!(
            failed(store.lock("c").acquire().await).kind(),
            ErrorKind::Invalid
        );
        assert_eq!(
            failed(store.lock("c").owner(&Owner::new()).acquire().await).kind(),
            ErrorKind::Invalid
        );
        let kind = |e: Error| e.kind();
        assert_eq!(
            store.lock("c").inspect().await.map_err(kind),
            Err(ErrorKind::Invalid)
        );
        assert_eq!(
            store.election("c").observe().await.map(drop).map_err(kind),
            Err(ErrorKind::Invalid)
        );
        assert_eq!(
            store.evict("c", FencingToken::new(1)).await.map_err(kind),
            Err(ErrorKind::Invalid)
        );
        assert_eq!(
            store.list("", None, 1).await.map_err(kind),
            Err(ErrorKind::Invalid)
        );
        assert_eq!(log.calls(), []);
    })
    .await;
}

/// A grant that ends before its answer comes never becomes a guard, and requests do not grow in number.
#[tokio::test]
async fn a_grant_that_is_over_is_none() {
    in_time(async {
        let (script, time, log) = Script::new();
        let clock = time.clock();
        let store = script
            .claims(move |claim, n| {
                let long_ago = Moment::from_nanos(clock.now().as_nanos() - TTL.as_nanos() as u64);
                async move {
                    tokio::task::yield_now().await;
                    Ok(granted_since(&claim, n as u64 + 1, long_ago))
                }
            })
            .store();
        let start = time.clock().now();
        let error = failed(driven(&time, store.lock("a").acquire()).await);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(time.clock().now().since(start) < TTL + ms(1100));
        assert!(log.claims() < 50, "{} claims in one lease", log.claims());
        log.until_released(1).await;

        let start = time.clock().now();
        failed(driven(&time, store.lock("a").acquire_timeout(ms(700))).await);
        let took = time.clock().now().since(start);
        assert!(took >= ms(700) && took <= ms(750), "{took:?}");
        log.until_released(2).await;

        let start = time.clock().now();
        failed(driven(&time, store.lock("a").try_acquire()).await);
        assert!(time.clock().now().since(start) < ms(600));
        log.until_released(3).await;
    })
    .await;
}

/// A store whose answer takes longer than the lease is asked again, under the same id, and nothing of it is believed.
#[tokio::test]
async fn an_answer_after_the_lease_is_none() {
    in_time(async {
        let (script, time, log) = Script::new();
        let late = |n| if n == 0 { TTL * 2 } else { ms(0) };
        let store = script
            .claims_after(late, |claim, n| granted(claim, n as u64 + 1))
            .store();
        let guard = driven(&time, store.lock("a").acquire()).await.unwrap();
        assert_eq!(
            (guard.fencing_token().get(), ids(&log.calls()).len()),
            (2, 1)
        );
    })
    .await;
}

/// No notification and no `retry_after`: a waiter polls at least once per lease.
#[tokio::test]
async fn claims_again_once_per_lease() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script.busy().store();
        let waiter = tokio::spawn(store.lock("a").acquire());
        pass(&time, TTL * 10, ms(100)).await;
        assert!(
            (11..=21).contains(&log.claims()),
            "{} claims in ten leases",
            log.claims()
        );
        waiter.abort();
    })
    .await;
}
