//! Many claims of one client at once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use leasehold_core::ErrorKind;

use crate::script::{Call, Script, TTL, driven, granted, in_time, ms, pass, settle, waiting};

/// Many waiters for one name: a bounded number of claims is in flight, in their order, and the holder is renewed and released
/// meanwhile as if it were alone.
#[tokio::test]
async fn a_crowd_waits_in_the_client() {
    in_time(async {
        let (script, time, log) = Script::new();
        let (clock, at_once, most) = (
            time.clock(),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
        );
        let order = Arc::new(Mutex::new(Vec::new()));
        let script = script.claims({
            let (most, order) = (most.clone(), order.clone());
            move |claim, n| {
                let (clock, at_once, most, order) =
                    (clock.clone(), at_once.clone(), most.clone(), order.clone());
                async move {
                    if n == 0 {
                        return Ok(granted(&claim, 1));
                    }
                    order.lock().unwrap().push(claim.label.clone());
                    most.fetch_max(
                        at_once.fetch_add(1, Ordering::Relaxed) + 1,
                        Ordering::Relaxed,
                    );
                    clock.sleep(ms(100)).await;
                    at_once.fetch_sub(1, Ordering::Relaxed);
                    Ok(waiting(&claim))
                }
            }
        });
        let store = script.store().ttl(TTL);
        let holder = store.lock("a").acquire().await.unwrap();
        let waiters: Vec<_> = (0..3000)
            .map(|i| tokio::spawn(store.lock("a").label(format!("{i}")).acquire()))
            .collect();
        settle().await;
        let first = order.lock().unwrap().len();
        assert!((64..=128).contains(&first), "{first} at once");
        holder.release().await.unwrap();
        assert_eq!(log.claims(), 1 + first, "the release stood behind claims");
        driven(&time, log.until_claimed(3001)).await;
        let mut seen = HashSet::new();
        let asked: Vec<String> = order
            .lock()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        let firsts = asked.iter().filter(|label| seen.insert(label.as_str()));
        for (position, label) in firsts.enumerate() {
            let came: usize = label.parse().unwrap();
            assert!(
                came.abs_diff(position) < 128,
                "{came} was served as number {position}"
            );
        }
        assert!(most.load(Ordering::Relaxed) <= 256, "{most:?} at once");
        waiters.iter().for_each(|waiter| waiter.abort());
    })
    .await;
}

/// A task that stops waiting makes room; one that sent a claim and does not poll it holds up no other for long.
#[tokio::test]
async fn unpolled_claims_do_not_stop_a_client() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .claims_after(|_| ms(10), |claim, n| granted(claim, n as u64 + 1))
            .store();
        let mut unpolled: Vec<_> = (0..200)
            .map(|i| Box::pin(store.lock(("unpolled", i)).acquire()))
            .collect();
        tokio::task::unconstrained(async {
            for acquire in &mut unpolled {
                assert!(futures_util::poll!(acquire.as_mut()).is_pending());
            }
        })
        .await;
        let left = tokio::spawn(store.lock("left").acquire());
        settle().await;
        left.abort();
        let began = time.clock().now();
        let guard = driven(&time, store.lock("a").acquire()).await.unwrap();
        let took = time.clock().now().since(began);
        assert!(took < ms(1500), "{took:?}");
        assert_eq!(
            log.count(|call| matches!(call, Call::Claim(_))),
            129,
            "the abandoned one was never sent"
        );
        drop((unpolled, guard));
    })
    .await;
}

/// A store that answers no claim is reported to all waiting tasks after about a lease.
#[tokio::test]
async fn a_crowd_hears_that_the_store_is_silent() {
    in_time(async {
        let (script, time, _) = Script::new();
        let store = script
            .claims(async |_, _| std::future::pending().await)
            .store();
        let waiters: Vec<_> = (0..2000)
            .map(|i| tokio::spawn(store.lock(("a", i)).acquire()))
            .collect();
        let bounded = tokio::spawn(store.lock("b").acquire_timeout(TTL / 3));
        settle().await;
        pass(&time, TTL / 3 + ms(100), ms(50)).await;
        let e = bounded.await.unwrap().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        pass(&time, TTL * 4, ms(250)).await;
        for waiter in waiters {
            assert!(waiter.is_finished());
            let e = waiter.await.unwrap().unwrap_err();
            assert!(e.is_retryable(), "{e}");
        }
    })
    .await;
}

/// A deadline that ends before the claim is sent is not blamed on a store that answers.
#[tokio::test]
async fn a_deadline_in_a_crowd_is_no_fault_of_the_store() {
    in_time(async {
        let (script, time, _) = Script::new();
        let store = script
            .claims_after(|_| ms(500), |claim, _| waiting(claim))
            .store();
        let waiters: Vec<_> = (0..2000)
            .map(|_| tokio::spawn(store.lock("a").acquire()))
            .collect();
        settle().await;
        let bounded = tokio::spawn(store.lock("b").acquire_timeout(ms(2000)));
        pass(&time, ms(2100), ms(50)).await;
        let e = bounded.await.unwrap().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TimedOut, "{e}");
        waiters.iter().for_each(|waiter| waiter.abort());
    })
    .await;
}

/// After `close` nobody waits for a turn.
#[tokio::test]
async fn a_crowd_hears_of_close() {
    in_time(async {
        let (script, time, _) = Script::new();
        let store = script
            .claims(async |_, _| std::future::pending().await)
            .store();
        let waiters: Vec<_> = (0..200)
            .map(|i| tokio::spawn(store.lock(("a", i)).acquire()))
            .collect();
        settle().await;
        driven(&time, store.close(TTL)).await.unwrap();
        settle().await;
        for waiter in &waiters[128..] {
            assert!(waiter.is_finished());
        }
        for waiter in waiters.into_iter().skip(128) {
            assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        }
    })
    .await;
}
