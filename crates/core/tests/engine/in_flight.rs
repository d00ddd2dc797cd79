//! Requests in flight whose runtime ends, or is not driven.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::VirtualClock;
use leasehold_core::{Guard, Store};
use tokio::runtime::Runtime;

use crate::runtimes::pass;
use crate::script::{Log, Script, TTL, granted, ms, renewed, runtime, settle};

const HOURS: Duration = Duration::from_secs(10_000);

/// Two runtimes of one client: a claim of `a` takes hours in the first, `b` is held in the second.
struct Scene {
    store: Store,
    time: VirtualClock,
    log: Log,
    first: Runtime,
    second: Runtime,
    guard: Guard,
}

fn scene() -> Scene {
    let (script, time, log) = Script::new();
    let store = script
        .claims(async |claim, n| {
            if claim.name.as_str() == "a" {
                tokio::time::sleep(HOURS).await;
            }
            Ok(granted(&claim, n as u64 + 1))
        })
        .store();
    let (first, second) = (runtime(), runtime());
    let guard = second.block_on(store.lock("b").acquire()).unwrap();
    Scene {
        store,
        time,
        log,
        first,
        second,
        guard,
    }
}

/// A claim that is still in flight may have timers of the runtime in which it was sent. When that ends, the keeper, which is in
/// another one, withdraws the claim without it, and keeps what is held there.
#[test]
fn a_claim_in_flight_whose_runtime_ends_costs_no_hold_elsewhere() {
    let Scene {
        store,
        time,
        log,
        first,
        second,
        guard,
    } = scene();
    first.block_on(async {
        let acquiring = tokio::spawn(store.lock("a").acquire());
        settle().await;
        acquiring.abort();
        settle().await;
    });
    // The keeper of the second has taken it over, and lets it land where it was sent.
    second.block_on(settle());
    assert_eq!(log.releases(), 0);
    drop(first);
    let runtimes = [None, Some(second)];
    pass(&time, &runtimes, TTL * 3);
    assert!(
        guard.is_valid(),
        "{:?} after {} renewals",
        guard.check(),
        log.renewals()
    );
    assert_eq!(log.releases(), 1, "the claim is withdrawn");
}

/// The same if that runtime had ended before the keeper came to it.
#[test]
fn a_claim_in_flight_whose_runtime_has_ended_costs_no_hold_elsewhere() {
    let Scene {
        store,
        time,
        log,
        first,
        second,
        guard,
    } = scene();
    first.block_on(async {
        drop(tokio::spawn(store.lock("a").acquire()));
        settle().await;
    });
    drop(first); // the task is dropped with it
    let runtimes = [None, Some(second)];
    pass(&time, &runtimes, TTL * 3);
    assert!(
        guard.is_valid(),
        "{:?} after {} renewals",
        guard.check(),
        log.renewals()
    );
    assert_eq!(log.releases(), 1, "the claim is withdrawn");
}

/// And if that runtime lives and nobody drives it, the lock is given back all the same, and not only after a lease.
#[test]
fn a_claim_in_flight_whose_runtime_is_not_driven_is_withdrawn_soon() {
    let Scene {
        store,
        time,
        log,
        first,
        second,
        guard,
    } = scene();
    let mut acquiring = Box::pin(store.lock("a").acquire().into_future());
    first.block_on(async {
        tokio::select! {
            biased;
            _ = &mut acquiring => unreachable!("it takes hours"),
            () = settle() => {}
        }
    });
    drop(acquiring);
    let runtimes = [None, Some(second)];
    pass(&time, &runtimes, ms(1000));
    assert_eq!((log.releases(), guard.is_valid()), (1, true));
    drop(first);
}

/// A runtime that was passed by waits for what it had sent; the one that went on ends, or is driven no more, meanwhile.
#[test]
fn a_runtime_that_waits_for_old_answers_goes_on_again() {
    for ends in [true, false] {
        let (script, time, log) = Script::new();
        let hung = Arc::new(AtomicBool::new(false));
        let hangs = hung.clone();
        let script = script.renewals(move |all, _| {
            let hangs = all.len() > 1 && !hangs.swap(true, Ordering::Relaxed);
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Ok(renewed(&all))
            }
        });
        let store = script.store();
        let (first, second) = (runtime(), runtime());
        // An old answer is worth something for as long as the longest of its leases.
        let held = |ttl: Duration| {
            first
                .block_on(store.lock(("a", ttl.as_secs())).ttl(ttl).acquire())
                .unwrap()
        };
        let guards = [TTL, TTL * 100].map(held);
        second.block_on(store.list("", None, 1)).unwrap();
        let mut runtimes = [Some(first)];
        while !hung.load(Ordering::Relaxed) {
            pass(&time, &runtimes, ms(100));
        }
        let mut runtimes = [runtimes[0].take(), Some(second)];
        pass(&time, &runtimes[1..], TTL);
        let renewals = log.renewals();
        // The first one finds that it was passed by.
        pass(&time, &runtimes, ms(200));
        if ends {
            runtimes[1] = None;
        }
        pass(&time, &runtimes[..1], TTL * 2);
        assert!(
            guards.iter().all(Guard::is_valid),
            "{} renewals, then {}",
            renewals,
            log.renewals() - renewals
        );
    }
}
