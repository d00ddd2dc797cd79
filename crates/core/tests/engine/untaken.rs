//! A grant that nobody takes: an acquire that was neither polled nor dropped keeps nobody out for longer than about a lease.

use std::future::{Future as _, IntoFuture as _};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold_core::backend::{Claimed, Notifier, VirtualClock};
use leasehold_core::{Acquire, ErrorKind, Lock};

use crate::script::{
    Call, Log, Script, TTL, driven, granted_since, in_time, ms, pass, settle, turns, waiting,
};

/// A store in which the first claim waits, and the others are granted; and what grants the first.
fn store() -> (Lock, VirtualClock, Log, impl Fn()) {
    let (script, time, log) = Script::new();
    let (notifier, clock) = (script.notifier(), time.clock());
    let first = std::sync::Arc::new(std::sync::Mutex::new(None));
    let claim = first.clone();
    let lock = script
        .claims(move |new, n| {
            let answer = if n == 0 {
                *claim.lock().unwrap() = Some(new.clone());
                waiting(&new)
            } else {
                granted_since(&new, n as u64 + 1, clock.now())
            };
            async move { Ok(answer) }
        })
        .store()
        .lock("a");
    let clock = time.clock();
    let grants = move || {
        let claim = first.lock().unwrap().clone().unwrap();
        grant(&notifier, granted_since(&claim, 1, clock.now()), &claim);
    };
    (lock, time, log, grants)
}

fn grant(notifier: &Notifier, answer: Claimed, claim: &leasehold_core::backend::Claim) {
    let Claimed::Granted(grant) = answer else {
        unreachable!()
    };
    notifier.granted(claim.id, grant);
}

/// Polls it once, as a `select!` does that goes on with another branch.
async fn poll_once(acquire: &mut Acquire) {
    let mut acquire = pin!(acquire);
    let mut context = Context::from_waker(Waker::noop());
    assert!(acquire.as_mut().poll(&mut context).is_pending());
    settle().await;
}

fn ids(log: &Log) -> Vec<leasehold_core::backend::ClaimId> {
    let id = |call| match call {
        Call::Claim(id) => Some(id),
        _ => None,
    };
    log.calls().into_iter().filter_map(id).collect()
}

/// It is renewed for about a lease, and then given back. Polled again, the acquire makes another claim.
#[tokio::test]
async fn a_grant_that_nobody_takes_is_given_back_after_a_lease() {
    in_time(async {
        let (lock, time, log, grants) = store();
        let mut acquire = lock.acquire();
        poll_once(&mut acquire).await;
        grants();
        pass(&time, TTL - ms(100), ms(10)).await;
        assert_eq!(log.releases(), 0);
        pass(&time, TTL / 2, ms(10)).await;
        assert_eq!(log.releases(), 1, "others are kept out");
        let renewals = log.renewals();
        pass(&time, TTL * 3, ms(100)).await;
        assert_eq!(log.renewals(), renewals);

        let guard = driven(&time, acquire).await.unwrap();
        assert_eq!(guard.fencing_token().get(), 2);
        let [first, second] = ids(&log)[..] else {
            panic!("{:?}", log.calls())
        };
        assert_ne!(first, second, "what was released is not claimed again");
        pass(&time, TTL * 3, ms(100)).await;
        assert!(guard.is_valid());
        driven(&time, guard.release()).await.unwrap();
    })
    .await;
}

/// An acquire that is polled in time has its guard; `max_hold` counts from the grant.
#[tokio::test]
async fn max_hold_counts_from_the_grant() {
    in_time(async {
        let (lock, time, log, grants) = store();
        let mut acquire = lock.max_hold(TTL / 2).acquire();
        poll_once(&mut acquire).await;
        grants();
        pass(&time, TTL / 4, ms(10)).await;
        let guard = driven(&time, acquire).await.unwrap();
        assert!(guard.remaining() <= TTL / 4, "{:?}", guard.remaining());
        pass(&time, TTL / 4, ms(10)).await;
        assert!(!guard.is_valid());
        assert_eq!((log.releases(), log.claims()), (1, 1));
    })
    .await;
}

/// An acquire that is not polled holds no longer than `max_hold`.
#[tokio::test]
async fn max_hold_bounds_what_nobody_takes() {
    in_time(async {
        let (lock, time, log, grants) = store();
        let mut acquire = lock.max_hold(TTL / 2).acquire();
        poll_once(&mut acquire).await;
        // Its place is renewed before, so the keeper looks at it then, and next when the renewal of the grant is due.
        grants();
        pass(&time, TTL, ms(10)).await;
        assert_eq!(log.releases(), 1);
        drop(acquire);
    })
    .await;
}

/// A bounded acquire that is polled long after its deadline says that it was late, and the lock is free meanwhile.
#[tokio::test]
async fn a_bounded_acquire_that_is_polled_too_late_has_timed_out() {
    for later in [TTL / 2, TTL * 8 / 3] {
        in_time(async {
            let (lock, time, log, grants) = store();
            let mut acquire = lock.acquire_timeout(ms(500));
            poll_once(&mut acquire).await;
            grants();
            pass(&time, later, ms(10)).await;
            let late = driven(&time, acquire).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::TimedOut);
            assert!(late.to_string().contains("not polled"), "{late}");
            driven(&time, log.until_released(1)).await;
            assert_eq!(log.claims(), 1);
        })
        .await;
    }
}

/// The claim is granted while its last look is on its way, and the caller does not come for it.
#[tokio::test]
async fn a_last_look_that_is_given_back_has_timed_out() {
    in_time(async {
        let (script, time, log) = Script::new();
        let (notifier, clock) = (script.notifier(), time.clock());
        let sent = std::sync::Arc::new(std::sync::Mutex::new(None));
        let claim = sent.clone();
        let answer_after = clock.clone();
        let lock = script
            .claims(move |new, n| {
                *claim.lock().unwrap() = Some(new.clone());
                let clock = answer_after.clone();
                async move {
                    if n == 0 {
                        return Ok(waiting(&new));
                    }
                    clock.sleep(ms(10)).await;
                    Ok(granted_since(&new, 1, clock.now()))
                }
            })
            .store()
            .lock("a");
        let mut acquire = lock.acquire_timeout(ms(500));
        poll_once(&mut acquire).await;
        time.advance(ms(500));
        poll_once(&mut acquire).await;
        assert_eq!(log.claims(), 2);
        let claim = sent.lock().unwrap().clone().unwrap();
        grant(&notifier, granted_since(&claim, 1, clock.now()), &claim);
        pass(&time, TTL * 8 / 3, ms(10)).await;
        let late = driven(&time, acquire).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert!(late.to_string().contains("not polled"), "{late}");
        driven(&time, log.until_released(1)).await;
    })
    .await;
}

/// A clock that jumps over it all: nobody looked before the acquire is polled.
#[tokio::test]
async fn a_grant_is_not_taken_after_its_time_though_the_keeper_did_not_look() {
    in_time(async {
        let (lock, time, log, grants) = store();
        let mut acquire = lock.acquire_timeout(ms(500));
        poll_once(&mut acquire).await;
        grants();
        time.advance(TTL * 2 / 3);
        let late = driven(&time, acquire).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        driven(&time, log.until_released(1)).await;
    })
    .await;
}

/// A turn of a `fast` lock is passed to a task that does not come for it: the next one gets the lock, and the task, should it come, waits again.
#[tokio::test]
async fn a_turn_that_nobody_takes_goes_on() {
    for (wait, late) in [(None, false), (Some(ms(500)), true)] {
        in_time(async {
            let (script, time, log) = Script::new();
            let lock = script
                .claims(async |claim, n| Ok(turns(&claim, n)))
                .store()
                .lock("a")
                .fast();
            let first = lock.acquire().await.unwrap();
            let mut idle = match wait {
                Some(wait) => lock.acquire_timeout(wait),
                None => lock.acquire(),
            };
            poll_once(&mut idle).await;
            let next = tokio::spawn(lock.acquire().into_future());
            settle().await;
            first.release().await.unwrap();
            let start = time.clock().now();
            let next = driven(&time, next).await.unwrap().unwrap();
            let took = time.clock().now().since(start);
            assert!(took > Duration::ZERO && took <= TTL * 3 / 2, "{took:?}");
            assert_eq!((log.releases(), log.claims()), (1, 2));
            if late {
                let late = driven(&time, idle).await.unwrap_err();
                assert!(late.to_string().contains("not polled"), "{late}");
                return;
            }
            driven(&time, next.release()).await.unwrap();
            let guard = driven(&time, idle).await.unwrap();
            assert!(guard.is_valid());
        })
        .await;
    }
}

/// The task that claims for all tasks of its process is not polled: when what it was granted is given back, the next task claims.
#[tokio::test]
async fn a_claimant_that_is_not_polled_keeps_no_task_behind_it() {
    in_time(async {
        let (lock, time, log, grants) = store();
        let lock = lock.fast();
        let mut idle = lock.acquire();
        poll_once(&mut idle).await;
        let next = tokio::spawn(lock.acquire().into_future());
        settle().await;
        grants();
        let start = time.clock().now();
        let next = driven(&time, next).await.unwrap().unwrap();
        let took = time.clock().now().since(start);
        assert!(took <= TTL * 2, "{took:?}");
        assert_eq!((log.releases(), log.claims()), (1, 2));
        driven(&time, next.release()).await.unwrap();
        let guard = driven(&time, idle).await.unwrap();
        assert!(guard.is_valid());
    })
    .await;
}

/// A task that is to claim for the others, and is not polled.
#[tokio::test]
async fn a_right_to_claim_that_nobody_takes_goes_on() {
    in_time(async {
        let (script, time, log) = Script::new();
        let lock = script
            .claims(async |claim, n| Ok(turns(&claim, n)))
            .store()
            .lock("a")
            .fast();
        let first = lock.acquire().await.unwrap();
        let mut idle = lock.acquire();
        poll_once(&mut idle).await;
        let next = tokio::spawn(lock.acquire().into_future());
        settle().await;
        // Its claim is lost: there is no turn to pass.
        time.advance(TTL * 2);
        drop(first);
        let start = time.clock().now();
        let next = driven(&time, next).await.unwrap().unwrap();
        let took = time.clock().now().since(start);
        assert!(took <= TTL * 2, "{took:?}");
        driven(&time, next.release()).await.unwrap();
        let guard = driven(&time, idle).await.unwrap();
        assert!(guard.is_valid());
        assert_eq!(log.claims(), 3);
    })
    .await;
}

/// The store has granted to the task that claims for the others, and it does not come for the answer.
#[tokio::test]
async fn a_claim_whose_answer_nobody_takes_keeps_no_task_behind_it() {
    in_time(async {
        let (script, time, log) = Script::new();
        let lock = script
            .claims_after(|_| ms(10), turns)
            .store()
            .lock("a")
            .fast();
        let mut idle = lock.acquire();
        poll_once(&mut idle).await;
        // A try is refused as long as the other may come.
        let refused = lock.try_acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Contended);
        let next = tokio::spawn(lock.acquire().into_future());
        let start = time.clock().now();
        let next = driven(&time, next).await.unwrap().unwrap();
        let took = time.clock().now().since(start);
        assert!(took <= TTL * 3, "{took:?}");
        driven(&time, next.release()).await.unwrap();
        drop(idle);
        driven(&time, log.until_released(2)).await;
        assert_eq!(log.claims(), 2);
    })
    .await;
}

/// A task that gives the lock back, and is not polled until the store has answered.
#[tokio::test]
async fn a_release_that_is_not_polled_keeps_no_task_behind_it() {
    in_time(async {
        let (script, time, _log) = Script::new();
        let lock = script
            .claims(async |claim, n| Ok(turns(&claim, n)))
            .releases(|_, _| std::future::pending())
            .store()
            .lock("a")
            .fast();
        let first = lock.acquire().await.unwrap();
        let mut leaves = Box::pin(first.release());
        assert!(futures_util::poll!(&mut leaves).is_pending());
        let next = tokio::spawn(lock.acquire().into_future());
        let start = time.clock().now();
        let next = driven(&time, next).await.unwrap().unwrap();
        let took = time.clock().now().since(start);
        assert!(took <= TTL * 3, "{took:?}");
        drop(next);
    })
    .await;
}

/// One that waits for another client is polled rarely, and keeps its right: the others of its process claim nothing.
#[tokio::test]
async fn a_claimant_that_waits_for_another_client_keeps_its_right() {
    in_time(async {
        let (script, time, log) = Script::new();
        let lock = script
            .claims(async |claim, _| Ok(waiting(&claim)))
            .store()
            .lock("a")
            .fast();
        let all = [(); 3].map(|()| tokio::spawn(lock.acquire().into_future()));
        pass(&time, TTL * 8, ms(50)).await;
        let ids = ids(&log);
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        all.iter().for_each(|task| task.abort());
    })
    .await;
}
