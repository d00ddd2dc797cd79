//! Several names at once: in which order, under which deadline, and what happens to those taken when one is not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::Claim;
use leasehold_core::{ErrorKind, Lease, Loss, Name};

use crate::script::{
    Call, Script, TTL, driven, error, granted, in_time, ms, pass, settle, waiting,
};

type Names = Arc<Mutex<Vec<String>>>;

/// A script that writes down whose claims, and whose releases, it sees.
fn named(script: Script, claims: &Names, releases: &Names) -> Script {
    let (claims, releases) = (claims.clone(), releases.clone());
    script
        .claims(move |claim, n| {
            claims.lock().unwrap().push(claim.name.to_string());
            async move { Ok(granted(&claim, n as u64 + 1)) }
        })
        .releases(move |claim, _| {
            releases.lock().unwrap().push(claim.name.to_string());
            async { Ok(()) }
        })
}

fn is(claim: &Claim, name: &str) -> bool {
    claim.name.as_str() == name
}

#[tokio::test]
async fn taken_in_the_order_of_names_and_given_back_in_reverse() {
    let (claims, releases) = (Names::default(), Names::default());
    let (script, _time, _log) = Script::new();
    let store = named(script, &claims, &releases).store();
    let guard = store
        .multi_lock(["c", "a", "b/x", "b"])
        .acquire()
        .await
        .unwrap();
    assert_eq!(*claims.lock().unwrap(), ["a", "b", "b/x", "c"]);
    guard.release().await.unwrap();
    assert_eq!(*releases.lock().unwrap(), ["c", "b/x", "b", "a"]);
}

#[tokio::test]
async fn one_deadline_for_all_and_nothing_kept() {
    let (script, time, log) = Script::new();
    let clock = time.clock();
    // The first takes 200 ms to be had, the second is never free.
    let store = script.claims(move |claim, n| {
        let clock = clock.clone();
        async move {
            if is(&claim, "a") {
                clock.sleep(ms(200)).await;
                return Ok(granted(&claim, n as u64 + 1));
            }
            Ok(waiting(&claim))
        }
    });
    let began = time.clock().now();
    let multi = store.store().multi_lock(["b", "a"]);
    let error = in_time(driven(&time, multi.acquire_timeout(ms(500))))
        .await
        .unwrap_err();
    let took = time.clock().now().since(began);
    assert_eq!(
        (error.kind(), error.name()),
        (ErrorKind::TimedOut, Some(&Name::new("b")))
    );
    assert!(took >= ms(500) && took <= ms(560), "{took:?}");
    in_time(driven(&time, log.until_released(2))).await;
}

#[tokio::test]
async fn the_first_may_be_lost_while_the_last_is_waited_for() {
    let (script, time, log) = Script::new();
    let notifier = script.notifier();
    let free = Arc::new(AtomicBool::new(false));
    let is_free = free.clone();
    let script = script
        .claims(move |claim, n| {
            let busy = is(&claim, "b") && !is_free.load(Ordering::SeqCst);
            async move {
                Ok(if busy {
                    waiting(&claim)
                } else {
                    granted(&claim, n as u64 + 1)
                })
            }
        })
        .renewals(|_, _| async { error(ErrorKind::Unavailable) });
    let multi = script.store().multi_lock(["a", "b"]);
    let taking = tokio::spawn(async move { multi.acquire().await });
    log.until_claimed(2).await;
    pass(&time, TTL, ms(100)).await;
    free.store(true, Ordering::SeqCst);
    notifier.notify_all();
    let error = in_time(driven(&time, taking)).await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.loss(), error.name()),
        (ErrorKind::Lost, Some(Loss::Expired), Some(&Name::new("a")))
    );
    in_time(driven(&time, log.until_released(2))).await;
}

#[tokio::test]
async fn a_release_that_is_dropped_midway_goes_on() {
    let (script, time, log) = Script::new();
    let store = script
        .releases(|_, n| async move {
            if n == 0 {
                std::future::pending().await
            } else {
                Ok(())
            }
        })
        .store();
    let guard = store.multi_lock(["a", "b", "c"]).acquire().await.unwrap();
    let releasing = tokio::spawn(guard.release());
    log.until_released(1).await;
    releasing.abort();
    assert!(releasing.await.unwrap_err().is_cancelled());
    in_time(driven(&time, log.until_released(4))).await;
    let ids = |call: &Call| {
        if let Call::Release(id, _) = call {
            Some(*id)
        } else {
            None
        }
    };
    let mut released: Vec<_> = log.calls().iter().filter_map(ids).collect();
    released.sort();
    released.dedup();
    assert_eq!(released.len(), 3);
}

#[tokio::test]
async fn a_loss_says_more_than_a_failed_release() {
    let (script, time, _log) = Script::new();
    let notifier = script.notifier();
    let lost = Arc::new(Mutex::new(None));
    let first = lost.clone();
    let store = script
        .claims(move |claim, n| {
            if is(&claim, "a") {
                *first.lock().unwrap() = Some(claim.id);
            }
            async move { Ok(granted(&claim, n as u64 + 1)) }
        })
        .releases(|_, _| async { error(ErrorKind::Ambiguous) })
        .store();
    let guard = store.multi_lock(["a", "b"]).acquire().await.unwrap();
    let watch = guard.lost();
    let id = lost.lock().unwrap().unwrap();
    notifier.lost(id, Loss::Evicted);
    assert_eq!(in_time(watch).await, Loss::Evicted);
    assert!(guard.remaining() == Duration::ZERO && guard.get("b").unwrap().is_valid());
    settle().await;
    let error = driven(&time, guard.release()).await.unwrap_err();
    assert_eq!(
        (error.loss(), error.name()),
        (Some(Loss::Evicted), Some(&Name::new("a")))
    );
}

/// Whichever of them was lost: the last name is the first to be given back.
#[tokio::test]
async fn a_later_failure_does_not_hide_a_loss() {
    for (lost, kind) in [(Some("b"), ErrorKind::Lost), (None, ErrorKind::Ambiguous)] {
        let (script, time, _log) = Script::new();
        let notifier = script.notifier();
        let ids = Arc::new(Mutex::new(Vec::new()));
        let kept = ids.clone();
        let store = script
            .claims(move |claim, n| {
                kept.lock()
                    .unwrap()
                    .push((claim.name.to_string(), claim.id));
                async move { Ok(granted(&claim, n as u64 + 1)) }
            })
            .releases(|_, _| async { error(ErrorKind::Ambiguous) })
            .store();
        let guard = store.multi_lock(["a", "b"]).acquire().await.unwrap();
        let ids = ids.lock().unwrap().clone();
        for (_, id) in ids
            .into_iter()
            .filter(|(name, _)| Some(name.as_str()) == lost)
        {
            notifier.lost(id, Loss::Evicted);
        }
        let failed = in_time(driven(&time, guard.release())).await.unwrap_err();
        assert_eq!(failed.kind(), kind);
    }
}

#[tokio::test]
async fn it_is_valid_as_long_as_each_of_its_guards() {
    let (script, time, _log) = Script::new();
    let guard = script
        .store()
        .multi_lock(["a", "b"])
        .acquire()
        .await
        .unwrap();
    let lease: &dyn Lease = &guard;
    assert!(guard.is_valid() && lease.is_valid() && lease.remaining() > TTL / 2);
    assert_eq!(lease.loss(), None);
    time.advance(TTL);
    assert!(!guard.is_valid() && !lease.is_valid());
    assert_eq!(
        (lease.loss(), lease.remaining()),
        (Some(Loss::Expired), Duration::ZERO)
    );
}
