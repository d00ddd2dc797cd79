//! Claims in flight whose runtime ends, or is not driven.

use std::future::IntoFuture as _;

use leasehold_core::seam::VirtualClock;
use leasehold_core::{Guard, Store};
use tokio::runtime::Runtime;

use crate::runtimes::pass;
use crate::script::{Log, Script, TTL, granted, ms, runtime, settle};

const HOURS: std::time::Duration = std::time::Duration::from_secs(10_000);

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
    Scene { store, time, log, first, second, guard }
}

/// A claim that is still in flight may have timers of the runtime in which it was sent. When that ends, the keeper, which is in
/// another one, withdraws the claim without it, and keeps what is held there.
#[test]
fn a_claim_in_flight_whose_runtime_ends_costs_no_hold_elsewhere() {
    let Scene { store, time, log, first, second, guard } = scene();
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
    assert!(guard.is_valid(), "{:?} after {} renewals", guard.check(), log.renewals());
    assert_eq!(log.releases(), 1, "the claim is withdrawn");
}

/// The same if that runtime had ended before the keeper came to it.
#[test]
fn a_claim_in_flight_whose_runtime_has_ended_costs_no_hold_elsewhere() {
    let Scene { store, time, log, first, second, guard } = scene();
    first.block_on(async {
        drop(tokio::spawn(store.lock("a").acquire()));
        settle().await;
    });
    drop(first); // the task is dropped with it
    let runtimes = [None, Some(second)];
    pass(&time, &runtimes, TTL * 3);
    assert!(guard.is_valid(), "{:?} after {} renewals", guard.check(), log.renewals());
    assert_eq!(log.releases(), 1, "the claim is withdrawn");
}

/// And if that runtime lives and nobody drives it, the lock is given back all the same, and not only after a lease.
#[test]
fn a_claim_in_flight_whose_runtime_is_not_driven_is_withdrawn_soon() {
    let Scene { store, time, log, first, second, guard } = scene();
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
