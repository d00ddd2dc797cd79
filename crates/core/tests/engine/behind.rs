//! When a client takes no more locks: when its store does not renew in time what it keeps, and for no other reason.

use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::backend::{Clock, LeaseRef, Renewal, VirtualClock};
use leasehold_core::{ErrorKind, Guard, Result, Store};
use tokio::sync::watch;

use crate::script::{Log, Script, TTL, error, in_time, ms, pass, renewed};

/// Takes it, unless the client refuses that at first: the store grants everything at once.
fn takes(store: &Store, name: &'static str, n: usize, ttl: Duration) -> Option<Guard> {
    store
        .lock((name, n))
        .ttl(ttl)
        .try_acquire()
        .into_future()
        .now_or_never()
        .map(|taken| taken.unwrap())
}

/// So many, within the same instant.
fn hold(store: &Store, n: usize) -> Vec<Guard> {
    (0..n)
        .map(|i| takes(store, "held", i, TTL).expect("nothing is late yet"))
        .collect()
}

fn lost(guards: &[Guard]) -> usize {
    guards.iter().filter(|guard| !guard.is_valid()).count()
}

/// A store that renews ten in a request, and whose answers are so long on their way.
fn distant(delay: Duration) -> (Store, VirtualClock, Log) {
    let (script, time, log) = Script::new();
    let clock = time.clock();
    let renew = move |all: Vec<LeaseRef>, _| answered(clock.clone(), delay, all);
    (script.renews_by(10).renewals(renew).store(), time, log)
}

async fn answered(clock: Clock, delay: Duration, all: Vec<LeaseRef>) -> Result<Vec<Renewal>> {
    clock.sleep(delay).await;
    Ok(renewed(&all))
}

/// Its answers are late, and always will be, but no lease is in danger: whether the client takes all of them together or one by one.
#[tokio::test]
async fn a_long_way_to_the_store_is_no_reason() {
    in_time(async {
        for (delay, between) in [(TTL / 4, ms(0)), (TTL / 4, ms(70)), (TTL * 2 / 5, ms(70))] {
            let (store, time, log) = distant(delay);
            let mut guards = Vec::new();
            for i in 0..60 {
                guards.extend(takes(&store, "held", i, TTL));
                pass(&time, between, ms(10)).await;
            }
            for i in 0..30 {
                pass(&time, TTL / 10, ms(10)).await;
                let one = takes(&store, "more", i, TTL)
                    .unwrap_or_else(|| panic!("{i}: refused, {delay:?} away"));
                guards.push(one);
            }
            assert_eq!(lost(&guards), 0, "after {} requests", log.renewals());
            assert_eq!(guards.len(), 90);
        }
    })
    .await;
}

/// It catches up as soon as it goes on, and takes more: whether it stood still before its requests were sent, or while they were under
/// way.
#[tokio::test]
async fn a_client_that_stood_still_takes_more() {
    in_time(async {
        for under_way in [false, true] {
            let (store, time, log) = distant(ms(20));
            let mut guards = hold(&store, 100);
            pass(&time, TTL / 3 - ms(100), ms(10)).await;
            while under_way && log.renewals() == 0 {
                pass(&time, ms(5), ms(5)).await;
            }
            time.advance(TTL * 2 / 5);
            for i in 0..20 {
                pass(&time, ms(50), ms(5)).await;
                let one = takes(&store, "more", i, TTL)
                    .unwrap_or_else(|| panic!("{i}: refused, {under_way}"));
                guards.push(one);
            }
            assert_eq!(lost(&guards), 0, "of {}, {under_way}", guards.len());
        }
    })
    .await;
}

/// The same if the store was silent, or answered errors, for a part of a lease.
#[tokio::test]
async fn a_store_that_stood_still_is_no_reason() {
    in_time(async {
        for fails in [false, true] {
            let (script, time, log) = Script::new();
            let (stands, clock) = (watch::Sender::new(true), time.clock());
            let script = script.renews_by(4).renewals({
                let stands = stands.clone();
                move |all, _| {
                    let (clock, mut stands) = (clock.clone(), stands.subscribe());
                    async move {
                        if fails && *stands.borrow() {
                            return error(ErrorKind::Unavailable);
                        }
                        let _ = stands.wait_for(|stands| !stands).await;
                        answered(clock, ms(20), all).await
                    }
                }
            });
            let store = script.store();
            let mut guards = hold(&store, 100);
            pass(&time, TTL / 3 + TTL / 5, ms(10)).await;
            assert!(log.renewals() > 0);
            stands.send_replace(false);
            pass(&time, ms(100), ms(10)).await;
            for i in 0..40 {
                pass(&time, ms(50), ms(10)).await;
                let one = takes(&store, "more", i, TTL)
                    .unwrap_or_else(|| panic!("{i}: refused, fails: {fails}"));
                guards.push(one);
            }
            assert_eq!(lost(&guards), 0, "of {}", guards.len());
        }
    })
    .await;
}

/// The short ones are more than the store renews in time: no more of them are taken, and long ones are.
#[tokio::test]
async fn short_leases_that_are_late_refuse_no_long_ones() {
    in_time(async {
        let (script, time, _) = Script::new();
        let (clock, thread) = (
            time.clock(),
            std::sync::Arc::new(tokio::sync::Semaphore::new(1)),
        );
        let script = script.renews_by(4).renewals(move |all, _| {
            let (clock, thread) = (clock.clone(), thread.clone());
            async move {
                let _turn = thread.acquire().await.unwrap();
                answered(clock, ms(50) * all.len() as u32, all).await
            }
        });
        let store = script.store();
        let mut guards = hold(&store, 50);
        pass(&time, TTL, ms(10)).await;
        let (mut long, mut refused) = (0, 0);
        for i in 0..30 {
            refused += usize::from(takes(&store, "short", i, TTL).is_none());
            if i % 5 == 0 {
                let one = takes(&store, "long", i, TTL * 10)
                    .unwrap_or_else(|| panic!("{i}: a long one is refused"));
                guards.push(one);
                long += 1;
            }
            pass(&time, ms(100), ms(10)).await;
        }
        assert_eq!(long, 6);
        assert!(refused >= 15, "{refused} of 30 short ones are refused");
        assert_eq!(lost(&guards), 0, "of {}", guards.len());
    })
    .await;
}
