//! `close`: no guard is valid when the store's client ends, nobody waits on, and what is not answered is not called done.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use leasehold_core::{ErrorKind, Held, Loss};
use tokio::sync::Notify;

use crate::script::{Call, Script, TTL, driven, in_time, ms, pass, runtime, settle, turns};

/// P1: a store may grant to others as soon as its client's session is closed.
#[tokio::test]
async fn no_guard_is_valid_when_the_store_closes() {
    in_time(async {
        let (script, time, log) = Script::new();
        let watched: Arc<Mutex<Option<Held>>> = Arc::default();
        let valid_at_close = Arc::new(Mutex::new(None));
        let script = script.closes({
            let (watched, valid_at_close) = (watched.clone(), valid_at_close.clone());
            move |(), _| {
                let valid = watched.lock().unwrap().as_ref().map(Held::is_valid);
                *valid_at_close.lock().unwrap() = valid;
                async { Ok(()) }
            }
        });
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        *watched.lock().unwrap() = Some(guard.view());
        let lost = tokio::spawn(guard.lost());
        store.close(TTL).await.unwrap();
        assert_eq!(*valid_at_close.lock().unwrap(), Some(false));
        assert_eq!(lost.await.unwrap(), Loss::Gone);
        // It was given back first, so that a waiter need not wait for the end of the lease.
        assert!(matches!(
            log.calls()[..],
            [
                Call::Claim(_),
                Call::Answered(_),
                Call::Release(..),
                Call::Close
            ]
        ));
        pass(&time, TTL, ms(100)).await;
        assert_eq!(log.renewals(), 0);
        assert_eq!(guard.release().await.unwrap_err().loss(), Some(Loss::Gone));
    })
    .await;
}

#[tokio::test]
async fn a_waiter_is_refused_and_its_place_given_back() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.busy().store();
        let waiter = tokio::spawn(store.lock("a").acquire());
        log.until_claimed(1).await;
        settle().await;
        store.close(TTL).await.unwrap();
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(log.claims(), 1, "a closed store is asked for nothing");
        let calls = log.calls();
        let release = calls
            .iter()
            .position(|call| matches!(call, Call::Release(..)));
        assert!(
            release < calls.iter().position(|call| *call == Call::Close),
            "{calls:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_lands_after_it_becomes_no_guard() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let land = Arc::new(Notify::new());
        let store = script.claims_on(&land).store();
        let acquire = tokio::spawn(store.lock("a").acquire());
        log.until_claimed(1).await;
        store.close(TTL).await.unwrap();
        land.notify_one();
        assert_eq!(
            acquire.await.unwrap().unwrap_err().kind(),
            ErrorKind::Closed
        );
        log.until_released(1).await;
    })
    .await;
}

/// The tasks that wait for a turn of a `fast` lock are told too.
#[tokio::test]
async fn a_task_that_waits_for_a_turn_is_refused() {
    in_time(async {
        let (script, _time, _log) = Script::new();
        let store = script.claims(async |claim, n| Ok(turns(&claim, n))).store();
        let lock = store.lock("a").fast();
        let guard = lock.acquire().await.unwrap();
        let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(lock.acquire())).collect();
        settle().await;
        store.close(TTL).await.unwrap();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        }
        assert!(!guard.is_valid());
    })
    .await;
}

/// What is within its `min_hold` is waited for, up to the limit.
#[tokio::test]
async fn min_hold_is_kept_as_long_as_the_limit_allows() {
    for (limit, outcome) in [(TTL * 3, Ok(())), (TTL, Err(ErrorKind::Ambiguous))] {
        in_time(async {
            let (script, time, log) = Script::new();
            let store = script.store();
            let start = time.clock().now();
            drop(store.lock("a").min_hold(TTL * 2).acquire().await.unwrap());
            let closed = driven(&time, store.close(limit)).await;
            assert_eq!(closed.map_err(|e| e.kind()), outcome);
            let took = time.clock().now().since(start);
            let expected = limit.min(TTL * 2);
            assert!(took >= expected && took < expected + ms(500), "{took:?}");
            let renewals = log.renewals();
            pass(&time, TTL, ms(100)).await;
            assert_eq!(log.renewals(), renewals);
        })
        .await;
    }
}

/// Releases that no runtime was left to send are sent by the task that closes the store.
#[test]
fn what_no_runtime_has_sent_is_sent() {
    let (script, time, log) = Script::new();
    let store = script.store();
    let first = runtime();
    let guard = first.block_on(store.lock("a").acquire()).unwrap();
    drop(first);
    drop(guard);
    assert_eq!(log.releases(), 0);
    runtime().block_on(in_time(async {
        driven(&time, store.close(TTL)).await.unwrap();
        assert_eq!(log.releases(), 1);
    }));
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_called_closed() {
    in_time(async {
        let (script, time, _log) = Script::new();
        let store = script
            .closes(async |(), _| std::future::pending().await)
            .store();
        assert_eq!(
            driven(&time, store.close(TTL)).await.unwrap_err().kind(),
            ErrorKind::Ambiguous
        );
    })
    .await;
}

/// It is behind another branch of a `select!`, say, or in a runtime that is not driven.
#[tokio::test]
async fn a_close_that_is_polled_no_more_holds_up_no_other() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.closes(async |(), n| {
            if n == 0 {
                std::future::pending().await
            } else {
                Ok(())
            }
        });
        let store = script.store();
        let mut first = Box::pin(store.close(TTL));
        assert!((&mut first).now_or_never().is_none());
        driven(&time, store.close(TTL)).await.unwrap();
        assert_eq!(log.count(|call| *call == Call::Close), 2);
        drop(first);
        store.close(TTL).await.unwrap();
    })
    .await;
}

/// Closing again is `Ok`: it waits for the first, or goes on where that was dropped or failed.
#[tokio::test]
async fn closing_again_is_fine() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.closes(async |(), n| match n {
            0 => std::future::pending().await,
            1 => Err(leasehold_core::Error::new(
                ErrorKind::Unavailable,
                "not now",
            )),
            _ => Ok(()),
        });
        let store = script.store();
        let first = tokio::spawn({
            let store = store.clone();
            async move { store.close(TTL).await }
        });
        settle().await;
        first.abort();
        settle().await;
        assert_eq!(
            driven(&time, store.close(TTL)).await.unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        let (second, third) = tokio::join!(store.close(TTL), store.close(TTL));
        second.unwrap();
        third.unwrap();
        store.close(TTL).await.unwrap();
        assert_eq!(log.count(|call| *call == Call::Close), 3);
        assert_eq!(
            store.lock("a").acquire().await.unwrap_err().kind(),
            ErrorKind::Closed
        );
    })
    .await;
}
