//! One client and very many holds: none is lost that the store has time for, and a client near the ceiling is warned.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::seam::{Clock, LeaseRef, Renewal};
use leasehold_core::{ErrorKind, Guard, Result, Store};
use tokio::sync::{Semaphore, watch};

use crate::script::{Call, Script, TTL, driven, error, in_time, ms, pass, settle};

/// Takes so many locks.
async fn hold(store: &Store, n: usize) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(n);
    for i in 0..n {
        guards.push(store.lock(("held", i)).acquire().await.unwrap());
    }
    guards
}

fn renewed(all: &[LeaseRef]) -> Vec<Renewal> {
    all.iter().map(|lease| Renewal::Renewed(lease.claim.ttl.into())).collect()
}

/// A store of one thread that needs so long for each renewal, behind a link of so much delay.
fn slow(clock: Clock, each: Duration, delay: Duration) -> impl Fn(Vec<LeaseRef>, usize) -> Answer + Send + Sync {
    let thread = Arc::new(Semaphore::new(1));
    move |all, _| {
        let (clock, thread) = (clock.clone(), thread.clone());
        Box::pin(async move {
            clock.sleep(delay).await;
            let turn = thread.acquire().await.unwrap();
            clock.sleep(each * all.len() as u32).await;
            drop(turn);
            clock.sleep(delay).await;
            Ok(renewed(&all))
        })
    }
}

type Answer = futures_util::future::BoxFuture<'static, Result<Vec<Renewal>>>;

/// 10,000 holds of 6 s, 0.2 ms of the store's time for each, 100 ms there and 100 ms back: a third of the lease is spent on
/// working, and none is lost. One request for all of them would be given up after a sixth of a lease, and begun anew.
#[tokio::test]
async fn ten_thousand_holds_live_on_a_slow_store() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script.renews_by(256).renewals(slow(time.clock(), ms(1) / 5, ms(100))).store();
        let guards = hold(&store, 10_000).await;
        pass(&time, TTL * 4, ms(10)).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "lost, after {} requests", log.renewals());
        assert!(log.batches().iter().all(|(_, ids)| ids.len() <= 256));
        // Once a third of a lease, and no more because of how long it takes.
        let mut asked = HashMap::new();
        log.batches().iter().flat_map(|(_, ids)| ids).for_each(|id| *asked.entry(*id).or_insert(0) += 1);
        let most = asked.values().max().copied().unwrap_or(0);
        assert!(most <= 13, "one was asked for {most} times in four leases");
    })
    .await;
}

/// A client that stood still finds all its requests late at once. That is one sign of a slow store, not sixteen: what waited
/// meanwhile is not sent one by one through a slow link, also when the link is cut then.
#[tokio::test]
async fn a_client_that_stood_still_catches_up() {
    in_time(async {
        let (script, time, log) = Script::new();
        let (notifier, clock, cut) = (script.notifier(), time.clock(), watch::Sender::new(false));
        let script = script.renews_by(256).renewals({
            let cut = cut.clone();
            move |all, _| {
                let (clock, mut cut) = (clock.clone(), cut.subscribe());
                async move {
                    // Another task reads the answer, and hands it over.
                    let answer = async {
                        clock.sleep(ms(250)).await;
                        tokio::task::yield_now().await;
                    };
                    tokio::select! {
                        biased;
                        _ = cut.wait_for(|cut| *cut) => error(ErrorKind::Unavailable),
                        () = answer => Ok(renewed(&all)),
                    }
                }
            }
        });
        let store = script.store().ttl(TTL / 2);
        let guards = hold(&store, 10_000).await;
        while log.renewals() < 16 {
            pass(&time, ms(10), ms(10)).await;
        }
        pass(&time, ms(900), ms(900)).await;
        pass(&time, TTL, ms(10)).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "lost after a pause, {} requests", log.renewals());
        // With requests in flight it stops for longer than they may take, and then the link breaks.
        let before = log.renewals();
        while log.renewals() == before {
            pass(&time, ms(10), ms(10)).await;
        }
        pass(&time, ms(600), ms(600)).await;
        cut.send_replace(true);
        pass(&time, ms(20), ms(10)).await;
        cut.send_replace(false);
        notifier.notify_all();
        pass(&time, TTL, ms(10)).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "lost after a cut, {} requests", log.renewals());
    })
    .await;
}

/// Requests that never come back delay nobody else, and what was in them goes with others in time.
#[tokio::test]
async fn a_flight_that_never_lands_costs_nobody_anything() {
    in_time(async {
        let (script, time, log) = Script::new();
        let hung = Arc::new(Mutex::new(HashSet::new()));
        let script = script.renews_by(10).renewals(move |all, n| {
            // Every fourth, but nobody's twice in a row.
            let mut hung = hung.lock().unwrap();
            let again = all.iter().filter(|lease| hung.remove(&lease.claim.id)).count() > 0;
            let hangs = n % 4 == 1 && !again;
            hung.extend(all.iter().filter(|_| hangs).map(|lease| lease.claim.id));
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Ok(renewed(&all))
            }
        });
        let store = script.store();
        let guards = hold(&store, 400).await;
        pass(&time, TTL * 5, ms(100)).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "lost, after {} requests", log.renewals());
    })
    .await;
}

/// An answer that comes after the request was passed by extends the lease all the same, from when it was sent.
#[tokio::test]
async fn a_late_answer_counts() {
    in_time(async {
        let (script, time, _) = Script::new();
        let clock = time.clock();
        let script = script.renewals(move |all, n| {
            let clock = clock.clone();
            async move {
                if n > 0 {
                    std::future::pending::<()>().await;
                }
                clock.sleep(TTL / 2).await;
                Ok(renewed(&all))
            }
        });
        let guard = script.store().lock("a").acquire().await.unwrap();
        let start = time.clock().now();
        // Sent after a third, answered after five sixths: good until four thirds.
        pass(&time, TTL * 5 / 6 + ms(100), ms(100)).await;
        let ends = time.clock().now() + guard.remaining();
        assert!(ends.since(start) > TTL * 13 / 10, "{:?}", guard.remaining());
        pass(&time, TTL / 3, ms(100)).await;
        assert!(guard.is_valid());
        pass(&time, TTL / 4, ms(100)).await;
        assert!(!guard.is_valid(), "it counts from when it was sent");
    })
    .await;
}

/// Short leases do not stand behind requests for long ones that hang.
#[tokio::test]
async fn a_short_lease_does_not_wait_for_long_ones() {
    in_time(async {
        let (script, time, _) = Script::new();
        let script = script.renews_by(1).renewals(async |all, _| {
            if all[0].claim.ttl > TTL {
                std::future::pending::<()>().await;
            }
            Ok(renewed(&all))
        });
        let store = script.store();
        let mut long = Vec::new();
        for i in 0..100 {
            long.push(store.lock(("long", i)).ttl(TTL * 10).acquire().await.unwrap());
        }
        pass(&time, TTL * 10 / 3 - ms(200), ms(100)).await;
        let short = store.lock("short").ttl(TTL / 6).acquire().await.unwrap();
        pass(&time, TTL * 2, ms(20)).await;
        assert!(short.is_valid(), "{:?}", short.check());
    })
    .await;
}

/// A client that ends with requests in the air leaves nothing behind.
#[tokio::test]
async fn a_client_ends_while_flights_are_in_the_air() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.renews_by(7).renewals(async |_, _| std::future::pending().await);
        let store = script.store();
        let guards = hold(&store, 100).await;
        pass(&time, TTL / 2, ms(100)).await;
        assert!(log.renewals() >= 15);
        drop((store, guards));
        log.until(1, |call| *call == Call::Dropped).await;
        assert_eq!(log.releases(), 100);
    })
    .await;
}

/// Many waiters for one name: a bounded number of claims is in flight, in their order, and the holder is renewed and released
/// meanwhile as if it were alone.
#[tokio::test]
async fn a_crowd_waits_in_the_client() {
    in_time(async {
        let (script, time, log) = Script::new();
        let (clock, at_once, most) = (time.clock(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let order = Arc::new(Mutex::new(Vec::new()));
        let script = script.claims({
            let (most, order) = (most.clone(), order.clone());
            move |claim, n| {
                let (clock, at_once, most, order) = (clock.clone(), at_once.clone(), most.clone(), order.clone());
                async move {
                    if n == 0 {
                        return Ok(crate::script::granted(&claim, 1));
                    }
                    order.lock().unwrap().push(claim.label.clone());
                    most.fetch_max(at_once.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    clock.sleep(ms(100)).await;
                    at_once.fetch_sub(1, Ordering::Relaxed);
                    Ok(crate::script::waiting(&claim))
                }
            }
        });
        let store = script.store().ttl(TTL);
        let holder = store.lock("a").acquire().await.unwrap();
        let waiters: Vec<_> =
            (0..3000).map(|i| tokio::spawn(store.lock("a").label(format!("{i}")).acquire())).collect();
        settle().await;
        let first = order.lock().unwrap().len();
        assert!((64..=128).contains(&first), "{first} at once");
        holder.release().await.unwrap();
        assert_eq!(log.claims(), 1 + first, "the release stood behind claims");
        driven(&time, log.until_claimed(3001)).await;
        let mut seen = HashSet::new();
        let asked: Vec<String> = order.lock().unwrap().iter().map(ToString::to_string).collect();
        let firsts = asked.iter().filter(|label| seen.insert(label.as_str()));
        for (position, label) in firsts.enumerate() {
            let came: usize = label.parse().unwrap();
            assert!(came.abs_diff(position) < 128, "{came} was served as number {position}");
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
        let clock = time.clock();
        let store = script
            .claims(move |claim, n| {
                let clock = clock.clone();
                async move {
                    clock.sleep(ms(10)).await;
                    Ok(crate::script::granted(&claim, n as u64 + 1))
                }
            })
            .store();
        let mut unpolled: Vec<_> = (0..200).map(|i| Box::pin(store.lock(("unpolled", i)).acquire())).collect();
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
        assert_eq!(log.count(|call| matches!(call, Call::Claim(_))), 129, "the abandoned one was never sent");
        drop((unpolled, guard));
    })
    .await;
}

/// A store that answers no claim is reported to all waiting tasks after about a lease.
#[tokio::test]
async fn a_crowd_hears_that_the_store_is_silent() {
    in_time(async {
        let (script, time, _) = Script::new();
        let store = script.claims(async |_, _| std::future::pending().await).store();
        let waiters: Vec<_> = (0..2000).map(|i| tokio::spawn(store.lock(("a", i)).acquire())).collect();
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
        let clock = time.clock();
        let script = script.claims(move |claim, _| {
            let clock = clock.clone();
            async move {
                clock.sleep(ms(500)).await;
                Ok(crate::script::waiting(&claim))
            }
        });
        let store = script.store().ttl(TTL);
        let waiters: Vec<_> = (0..2000).map(|_| tokio::spawn(store.lock("a").acquire())).collect();
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
        let store = script.claims(async |_, _| std::future::pending().await).store();
        let waiters: Vec<_> = (0..200).map(|i| tokio::spawn(store.lock(("a", i)).acquire())).collect();
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
