//! What one client of thousands of locks costs its runtime: one task, and after the last lock none.

use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::backend::VirtualClock;
use leasehold_core::{ErrorKind, Guard, Store};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::script::{
    Call, Log, Script, TTL, driven, granted, in_time, ms, pass, renewed, settle, waiting,
};

/// Tasks of this runtime. The test itself is none.
fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Holds, waiters and releases are all of one task, however many they are.
#[tokio::test]
async fn one_task_keeps_all_of_a_client() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.renews_by(256).claims(async |claim, n| {
            Ok(if claim.name.as_str() == "busy" {
                waiting(&claim)
            } else {
                granted(&claim, n as u64 + 1)
            })
        });
        let store = script.store();
        assert_eq!(tasks(), 0);
        let mut guards: Vec<Guard> = Vec::new();
        for i in 0..2_000 {
            guards.push(store.lock(("held", i)).acquire().await.unwrap());
            assert_eq!(tasks(), 1, "with {i} holds");
        }
        let mut waiters: FuturesUnordered<_> =
            (0..500).map(|_| store.lock("busy").acquire()).collect();
        tokio::select! {
            biased;
            one = waiters.next() => panic!("{one:?}"),
            () = pass(&time, TTL * 2, ms(100)) => {}
        }
        assert_eq!(tasks(), 1, "with 500 waiters");
        assert!(guards.iter().all(Guard::is_valid));
        drop((guards, waiters));
        let mut most = 0;
        let mut released = pin!(log.until_released(2_500));
        while futures_util::poll!(&mut released).is_pending() {
            most = most.max(tasks());
            tokio::task::yield_now().await;
        }
        assert!(most <= 1, "{most} tasks while all of them are released");
        drop(store);
        log.until(1, |call| *call == Call::Dropped).await;
        settle().await;
        assert_eq!(tasks(), 0, "when the client has gone");
    })
    .await;
}

/// A store of one thread, which renews 20 leases in a second, four in a request.
fn of_one_thread() -> (Store, VirtualClock, Log) {
    let (script, time, log) = Script::new();
    let (clock, thread) = (time.clock(), Arc::new(Semaphore::new(1)));
    let script = script.renews_by(4).renewals(move |all, _| {
        let (clock, thread) = (clock.clone(), thread.clone());
        async move {
            let _turn = thread.acquire().await.unwrap();
            clock.sleep(ms(50) * all.len() as u32).await;
            Ok(renewed(&all))
        }
    });
    (script.store(), time, log)
}

fn lost(guards: &[Guard]) -> usize {
    guards.iter().filter(|guard| !guard.is_valid()).count()
}

/// Requests that wait in the store's line are late, and are sent again: that must not become more and more. A client keeps as many
/// locks as its store renews in less than half a lease.
#[tokio::test]
async fn a_busy_store_is_not_asked_more_and_more() {
    in_time(async {
        let (store, time, log) = of_one_thread();
        let mut guards = Vec::new();
        for i in 0..50 {
            guards.push(store.lock(("held", i)).acquire().await.unwrap());
        }
        pass(&time, TTL * 8, ms(10)).await;
        assert_eq!(lost(&guards), 0);
        // It can answer five in each second.
        let asked = log
            .calls()
            .iter()
            .filter(|call| matches!(call, Call::Renew(_)))
            .count();
        assert!(asked <= 6 * 5 * 8 * 3 / 2, "{asked} requests to renew");
    })
    .await;
}

/// A client that slowly takes more and more hears of an error before it loses anything: nothing more is taken while renewals are late.
/// When it has given some back, it takes more.
#[tokio::test]
async fn the_ceiling_is_an_error_before_anything_is_lost() {
    in_time(async {
        let (store, time, log) = of_one_thread();
        let claims = || {
            log.calls()
                .iter()
                .filter(|call| matches!(call, Call::Claim(_)))
                .count()
        };
        let (mut guards, mut refused) = (Vec::new(), 0);
        while refused < 5 {
            let before = claims();
            match driven(&time, store.lock(("held", guards.len())).try_acquire()).await {
                Ok(guard) => guards.push(guard),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}");
                    assert!(
                        e.to_string().contains("more locks than its store renews"),
                        "{e}"
                    );
                    assert_eq!(claims(), before, "one that is refused here was sent");
                    refused += 1;
                }
            }
            pass(&time, ms(200), ms(10)).await;
            assert_eq!(
                lost(&guards),
                0,
                "of {} that are held, with {refused} refused",
                guards.len()
            );
            assert!(guards.len() < 200, "nothing was refused");
        }
        assert!(guards.len() >= 25, "{} are held", guards.len());
        pass(&time, TTL * 3, ms(10)).await;
        assert_eq!(lost(&guards), 0, "of {} that are held", guards.len());
        guards.truncate(10);
        pass(&time, TTL * 2, ms(10)).await;
        guards.push(
            driven(&time, store.lock("one more").try_acquire())
                .await
                .unwrap(),
        );
        assert_eq!(lost(&guards), 0);
    })
    .await;
}
