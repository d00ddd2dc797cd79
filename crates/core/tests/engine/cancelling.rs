//! What happens when a caller leaves: withdrawals and releases in the background.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::ErrorKind;
use leasehold_core::backend::Place;
use tokio::sync::Notify;

use crate::script::{
    Call, Script, TTL, driven, error, granted, in_time, ms, pass, runtime, settle,
};

/// P4: the caller has gone while its claim is in flight; the release waits for the claim to land, and names its place.
#[tokio::test]
async fn a_release_never_overtakes_its_claim() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let land = Arc::new(Notify::new());
        let store = script.claims_on(&land).store();
        let acquire = tokio::spawn(store.lock("a").acquire());
        log.until_claimed(1).await;
        acquire.abort();
        settle().await;
        assert_eq!(log.releases(), 0);
        land.notify_one();
        log.until_released(1).await;
        let calls = log.calls();
        let Call::Claim(id) = calls[0] else {
            panic!("{calls:?}")
        };
        let there = Place::new("at a");
        assert_eq!(
            calls,
            [
                Call::Claim(id),
                Call::Answered(id),
                Call::Release(id, Some(there))
            ]
        );
    })
    .await;
}

/// A claim that never lands is withdrawn when its lease has run out: by then it is worth nothing.
#[tokio::test]
async fn a_claim_that_never_lands_is_withdrawn_after_its_lease() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .claims(async |_, _| std::future::pending().await)
            .store();
        let acquire = tokio::spawn(store.lock("a").acquire());
        log.until_claimed(1).await;
        acquire.abort();
        settle().await;
        pass(&time, TTL - ms(1), ms(100)).await;
        assert_eq!(log.releases(), 0);
        pass(&time, ms(1), ms(1)).await;
        assert_eq!(log.releases(), 1);
    })
    .await;
}

/// A deadline leaves the claim in flight too.
#[tokio::test]
async fn a_timeout_lets_its_claim_land() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .claims_after(|_| TTL / 2, |claim, _| granted(claim, 1))
            .store();
        driven(&time, store.lock("a").acquire_timeout(ms(500)))
            .await
            .unwrap_err();
        settle().await;
        assert_eq!(log.releases(), 0);
        pass(&time, TTL / 2, ms(100)).await;
        assert_eq!((log.claims(), log.releases()), (1, 1));
    })
    .await;
}

/// Retried until the store has said yes, and not once more.
#[tokio::test]
async fn a_release_is_retried_until_done() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Ambiguous] {
        in_time(async {
            let (script, time, log) = Script::new();
            let script = script
                .releases(move |_, n| async move { if n < 3 { error(kind) } else { Ok(()) } });
            let store = script.store();
            drop(store.lock("a").acquire().await.unwrap());
            driven(&time, log.until_released(4)).await;
            pass(&time, TTL * 2, ms(100)).await;
            assert_eq!(log.releases(), 4);

            // One that was waited for says what happened, and is retried too.
            let guard = store.lock("b").acquire().await.unwrap();
            assert!(guard.release().await.is_ok());
            assert_eq!(log.releases(), 5);
        })
        .await;
    }
}

#[tokio::test]
async fn a_release_that_failed_goes_on_in_the_background() {
    in_time(async {
        let (script, time, log) = Script::new();
        let clock = time.clock();
        let until = clock.now() + ms(2200);
        let script = script.releases(move |_, _| {
            let answers = until <= clock.now();
            async move {
                if answers {
                    Ok(())
                } else {
                    error(ErrorKind::Ambiguous)
                }
            }
        });
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        assert_eq!(
            driven(&time, guard.release()).await.unwrap_err().kind(),
            ErrorKind::Ambiguous
        );
        let releases = log.releases();
        driven(&time, store.close(TTL)).await.unwrap();
        assert!(log.releases() > releases && time.clock().now() >= until);
    })
    .await;
}

/// A connection breaks beside a release: it is sent again, and the caller hears of nothing. A shorter lease, a refusal or a store that
/// goes on failing are told in time; names that are released together share the time.
#[tokio::test]
async fn a_release_is_repeated_before_its_caller_hears_of_a_failure() {
    for (kind, failures, ttl, end) in [
        (ErrorKind::Unavailable, 3, TTL, None),
        (ErrorKind::Ambiguous, 3, TTL, None),
        (ErrorKind::Denied, 3, TTL, Some(ms(0))),
        (ErrorKind::Unavailable, usize::MAX, TTL, Some(ms(2000))),
        (ErrorKind::Unavailable, usize::MAX, ms(600), Some(ms(600))),
    ] {
        for several in [1, 3] {
            for min_hold in [ms(0), TTL * 2] {
                in_time(async {
                    let (script, time, log) = Script::new();
                    let answer =
                        move |n| async move { if n < failures { error(kind) } else { Ok(()) } };
                    let script = script.releases(move |_, n| answer(n));
                    let script = script.lapses(move |_, n| answer(n));
                    let names = (0..several).map(|i| ("a", i));
                    let multi = script.store().multi_lock(names).ttl(ttl);
                    let guard = multi.min_hold(min_hold).acquire().await.unwrap();
                    let start = time.clock().now();
                    let answer = driven(&time, guard.release()).await;
                    let took = time.clock().now().since(start);
                    let what = format!("{kind:?} {ttl:?} {min_hold:?}: {took:?}, {answer:?}");
                    let lapsing = min_hold > ms(0);
                    match end {
                        None => assert!(answer.is_ok() && took < ms(500), "{what}"),
                        // A store that cannot let it end by itself has it renewed until then.
                        Some(_) if lapsing && kind == ErrorKind::Denied => {
                            assert!(answer.is_ok(), "{what}");
                        }
                        Some(end) => {
                            assert_eq!(answer.map_err(|e| e.kind()), Err(kind), "{what}");
                            // Another name, or what is kept for its min_hold, is renewed meanwhile.
                            let alone = several == 1 && !lapsing;
                            let most = if alone { end } else { ms(2000) };
                            assert!(took <= most + ms(50), "{what}");
                            assert!(took + ms(1100) >= end, "{what}");
                        }
                    }
                    assert!(log.releases() + log.lapses().len() < 50, "{what}");
                })
                .await;
            }
        }
    }
}

/// Given up when the lease has run out, also if the store hangs; a refusal is final at once.
#[tokio::test]
async fn a_release_is_given_up_after_the_lease() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .releases(async |_, _| error(ErrorKind::Unavailable))
            .store();
        drop(store.lock("a").acquire().await.unwrap());
        pass(&time, TTL + ms(1000), ms(50)).await;
        let tries = log.releases();
        assert!((4..30).contains(&tries), "{tries} tries in one lease");
        pass(&time, TTL, ms(100)).await;
        assert_eq!(log.releases(), tries);
    })
    .await;
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .releases(async |_, _| std::future::pending().await)
            .store();
        drop(store.lock("a").acquire().await.unwrap());
        driven(&time, store.close(TTL * 2)).await.unwrap();
        assert_eq!(log.releases(), 1);
    })
    .await;
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .releases(async |_, _| error(ErrorKind::Denied))
            .store();
        drop(store.lock("a").acquire().await.unwrap());
        pass(&time, TTL, ms(100)).await;
        assert_eq!(log.releases(), 1);
    })
    .await;
}

/// Every jitter is drawn from the seed of the store: the same seed, the same instants.
#[tokio::test]
async fn the_same_seed_retries_at_the_same_instants() {
    let mut instants = Vec::new();
    for _ in 0..2 {
        let (script, time, log) = Script::new();
        let store = script
            .releases(async |_, n| {
                if n < 5 {
                    error(ErrorKind::Unavailable)
                } else {
                    Ok(())
                }
            })
            .store();
        drop(store.lock("a").acquire().await.unwrap());
        in_time(async { pass(&time, TTL, ms(10)).await }).await;
        assert_eq!(log.releases(), 6);
        instants.push(log.instants(|call| matches!(call, Call::Release(..))));
    }
    assert_eq!(instants[0], instants[1]);
}

/// `release()` dropped midway.
#[tokio::test]
async fn a_release_that_is_cancelled_goes_on() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.releases(async |_, n| {
            if n == 0 {
                std::future::pending().await
            } else {
                Ok(())
            }
        });
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        let release = tokio::spawn(guard.release());
        log.until_released(1).await;
        release.abort();
        log.until_released(2).await;
        pass(&time, TTL, ms(100)).await;
        assert_eq!((log.releases(), log.renewals()), (2, 0));
    })
    .await;
}

/// A guard is dropped on a thread of no runtime: the runtime of the latest acquire releases it.
#[tokio::test]
async fn a_drop_outside_of_a_runtime_releases_inside() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        std::thread::spawn(move || drop(guard)).join().unwrap();
        log.until_released(1).await;
    })
    .await;
}

/// No runtime is left at all: no panic, and nothing is kept alive by it.
#[test]
fn a_drop_after_every_runtime_neither_panics_nor_leaks() {
    let (script, _time, log) = Script::new();
    let store = script.store();
    let runtime = runtime();
    let guard = runtime.block_on(store.lock("a").acquire()).unwrap();
    let mut waiting = Box::pin(store.lock("a").acquire());
    drop(runtime);
    assert!(guard.is_valid());
    drop(guard);
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = Future::poll(waiting.as_mut(), context) else {
        panic!("no runtime here")
    };
    assert_eq!(error.kind(), ErrorKind::NoRuntime);
    drop((waiting, store));
    assert_eq!((log.releases(), log.dropped()), (0, 1));
}

/// A waiter that leaves gives its place back, named, and at once.
#[tokio::test]
async fn a_waiter_gives_its_place_back() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.busy().store();
        let waiter = tokio::spawn(store.lock("a").acquire());
        log.until_claimed(1).await;
        settle().await;
        waiter.abort();
        log.until_released(1).await;
        let Some(Call::Release(_, at)) = log.calls().pop() else {
            panic!("{:?}", log.calls())
        };
        assert_eq!(at, Some(Place::new("at a")));
    })
    .await;
}

/// `close` waits for what goes on in the background, no longer than it was told.
#[tokio::test]
async fn close_waits_for_the_background() {
    in_time(async {
        let (script, time, log) = Script::new();
        let clock = time.clock();
        let script = script.releases(move |_, _| {
            let clock = clock.clone();
            async move {
                clock.sleep(Duration::from_secs(1)).await;
                Ok(())
            }
        });
        let store = script.store();
        drop(store.lock("a").acquire().await.unwrap());
        let start = time.clock().now();
        driven(&time, store.close(TTL)).await.unwrap();
        assert!(time.clock().now().since(start) >= Duration::from_secs(1));
        assert_eq!(log.calls().pop(), Some(Call::Close));
        assert_eq!(
            store.lock("a").acquire().await.unwrap_err().kind(),
            ErrorKind::Closed
        );
    })
    .await;
}

/// A store that refused may have stored the claim before it saw what is wrong with it. One that surely did nothing is not asked.
#[tokio::test]
async fn what_a_refused_claim_may_have_left_is_withdrawn() {
    for (refusal, releases) in [
        (ErrorKind::Invalid, 1),
        (ErrorKind::Internal, 1),
        (ErrorKind::Corrupt, 1),
        (ErrorKind::NoRuntime, 0),
        (ErrorKind::Denied, 0),
        (ErrorKind::Unsupported, 0),
    ] {
        let (script, time, log) = Script::new();
        let store = script
            .claims(move |_, _| std::future::ready(error(refusal)))
            .store();
        assert_eq!(
            in_time(store.lock("a").acquire()).await.unwrap_err().kind(),
            refusal
        );
        pass(&time, TTL, ms(500)).await;
        assert_eq!(log.releases(), releases, "{refusal:?}");
    }
}

/// A store that does not answer delays the caller of `release` for as long as one that fails, however many names there are.
#[tokio::test]
async fn a_release_that_is_not_answered_ends_in_two_seconds() {
    for several in [1, 3] {
        in_time(async {
            let (script, time, _log) = Script::new();
            let script = script.releases(|_, _| std::future::pending());
            let names = (0..several).map(|i| ("a", i));
            let guard = script.store().multi_lock(names).acquire().await.unwrap();
            let start = time.clock().now();
            let answer = driven(&time, guard.release()).await;
            let took = time.clock().now().since(start);
            assert_eq!(answer.map_err(|e| e.kind()), Err(ErrorKind::Ambiguous));
            assert!(took >= ms(2000) && took <= ms(2050), "{took:?}");
        })
        .await;
    }
}

/// A store that refuses a claim for what is in it refuses the withdrawal, too. It is asked once, so `close` waits for nothing.
#[tokio::test]
async fn a_withdrawal_that_can_never_succeed_is_sent_once() {
    for refusal in [ErrorKind::Corrupt, ErrorKind::Internal, ErrorKind::Denied] {
        let (script, time, log) = Script::new();
        let store = script
            .claims(|_, _| std::future::ready(error(ErrorKind::Internal)))
            .releases(move |_, _| std::future::ready(error(refusal)))
            .store();
        let refused = in_time(store.lock("a").try_acquire()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Internal);
        let start = time.clock().now();
        driven(&time, store.close(TTL)).await.unwrap();
        let took = time.clock().now().since(start);
        assert!(took < ms(100), "{took:?}");
        assert_eq!(log.releases(), 1, "{refusal:?}");
    }
}
