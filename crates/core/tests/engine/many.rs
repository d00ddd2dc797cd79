//! One client and very many holds: none is lost that the store has time for, and a client near the ceiling is warned.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{Clock, LeaseRef, Renewal};
use leasehold_core::{ErrorKind, Guard, Result, Store};
use tokio::sync::{Semaphore, watch};

use crate::script::{Call, Script, TTL, error, in_time, ms, pass, renewed};

/// Takes so many locks.
async fn hold(store: &Store, n: usize) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(n);
    for i in 0..n {
        guards.push(store.lock(("held", i)).acquire().await.unwrap());
    }
    guards
}

/// A store of one thread that needs so long for each renewal, behind a link of so much delay.
fn slow(
    clock: Clock,
    each: Duration,
    delay: Duration,
) -> impl Fn(Vec<LeaseRef>, usize) -> Answer + Send + Sync {
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
        let store = script
            .renews_by(256)
            .renewals(slow(time.clock(), ms(1) / 5, ms(100)))
            .store();
        let guards = hold(&store, 10_000).await;
        pass(&time, TTL * 4, ms(10)).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "lost, after {} requests", log.renewals());
        assert!(log.batches().iter().all(|(_, ids)| ids.len() <= 256));
        // Once a third of a lease, and no more because of how long it takes.
        let mut asked = HashMap::new();
        log.batches()
            .iter()
            .flat_map(|(_, ids)| ids)
            .for_each(|id| *asked.entry(*id).or_insert(0) += 1);
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
async fn a_batch_that_is_never_answered_costs_no_hold() {
    in_time(async {
        let (script, time, log) = Script::new();
        let hung = Arc::new(Mutex::new(HashSet::new()));
        let script = script.renews_by(10).renewals(move |all, n| {
            // Every fourth, but nobody's twice in a row.
            let mut hung = hung.lock().unwrap();
            let again = all
                .iter()
                .filter(|lease| hung.remove(&lease.claim.id))
                .count()
                > 0;
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
            long.push(
                store
                    .lock(("long", i))
                    .ttl(TTL * 10)
                    .acquire()
                    .await
                    .unwrap(),
            );
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
async fn a_client_ends_while_renewals_are_in_flight() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script
            .renews_by(7)
            .renewals(async |_, _| std::future::pending().await);
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
