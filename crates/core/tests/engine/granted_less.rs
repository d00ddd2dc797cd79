//! A store that grants less than was asked for: what is planned within a lease goes by what was granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Claim, Claimed, Grant, LeaseRef, Moment, Place, Renewal, Validity};
use leasehold_core::{FencingToken, Guard, Lease, MAX_TTL, Store};

use crate::script::{Log, Script, TTL, driven, in_time, ms, turns};

/// How a store grants: by which share of what is asked, with the nth renewal, and how long before the request its answer counts from, as
/// a share of what was granted.
#[derive(Clone, Copy, Debug)]
struct Terms {
    share: fn(usize) -> f64,
    /// In eighths.
    old: u32,
}

impl Terms {
    fn validity(self, n: usize, ttl: Duration, now: Moment) -> Validity {
        let granted = ttl.mul_f64((self.share)(n));
        let since = now.as_nanos() - (granted * self.old / 8).as_nanos() as u64;
        Validity::since(Moment::from_nanos(since), granted)
    }
}

/// Drives time in steps of a twentieth of the lease that is granted, and looks at the hold at each of them.
async fn stays_held(
    store: &Store,
    time: &leasehold_core::backend::VirtualClock,
    log: &Log,
    ttl: Duration,
    terms: Terms,
) {
    let guard: Guard = driven(time, store.lock("a").ttl(ttl).acquire())
        .await
        .unwrap();
    let what = format!("{ttl:?} {terms:?}");
    let began = time.clock().now();
    let least = (0..8).map(terms.share).fold(1.0, f64::min);
    // An hour, or so many leases: of a short one more would tell nothing else, of a long one fewer nothing at all.
    let leases = Duration::from_secs(3600).div_duration_f64(ttl.mul_f64(least));
    let leases = leases.clamp(20.0, 60.0);
    let mut passed = 0.0;
    while passed < leases {
        let granted = guard.granted_ttl();
        assert!(
            granted <= ttl && granted >= ttl.mul_f64(least * 0.999),
            "{what}"
        );
        assert_eq!(Lease::granted_ttl(&guard), granted);
        time.advance(granted / 20);
        passed += 0.05;
        // This store answers at once.
        for _ in 0..12 {
            tokio::task::yield_now().await;
        }
        let left = guard.remaining();
        assert!(guard.is_valid(), "{what}: lost after {passed} leases");
        // At least half of the lease is always left but for a step, and for the margin of the clocks' rates.
        let margin = granted / 20 + granted / 50 + ms(2);
        assert!(
            left + margin >= guard.granted_ttl().min(granted) / 2,
            "{what}: {left:?} of {granted:?} left after {passed} leases"
        );
    }
    let most = leases * 8.0 + 8.0;
    assert!(
        (log.renewals() as f64) < most,
        "{what}: {} renewals in {leases} leases, {:?}",
        log.renewals(),
        time.clock().now().since(began)
    );
    driven(time, guard.release()).await.unwrap();
}

/// An hour, with leases from the shortest to a day: no hold is lost, none is renewed late, and none more often than is useful.
#[tokio::test]
async fn a_healthy_store_that_grants_less_loses_no_hold() {
    let shares: [fn(usize) -> f64; 5] = [
        |_| 1.0,
        |_| 0.9,
        |_| 0.5,
        |_| 0.25,
        // Another server comes to other terms, again and again.
        |n| [1.0, 0.5, 0.25, 0.4, 0.25, 0.9, 0.3, 0.25][n % 8],
    ];
    for ttl in [ms(100), ms(1000), TTL, ms(60_000), MAX_TTL] {
        for share in shares {
            for old in [0, 3] {
                let terms = Terms { share, old };
                in_time(async {
                    let (script, time, log) = Script::new();
                    time.advance(MAX_TTL);
                    let (clock, n) = (time.clock(), Arc::new(AtomicUsize::new(0)));
                    let answer = move |claim: &Claim| {
                        let n = n.fetch_add(1, Ordering::Relaxed);
                        terms.validity(n, claim.ttl, clock.now())
                    };
                    let granted = answer.clone();
                    let script = script.claims(move |claim, _| {
                        let grant =
                            Grant::new(Place::new("a"), FencingToken::new(1), granted(&claim));
                        async move { Ok(Claimed::Granted(grant)) }
                    });
                    let script = script.renewals(move |all: Vec<LeaseRef>, _| {
                        let renewed = |lease: &LeaseRef| Renewal::Renewed(answer(&lease.claim));
                        let all = all.iter().map(renewed).collect();
                        async move { Ok(all) }
                    });
                    let store = script.store();
                    stays_held(&store, &time, &log, ttl, terms).await;
                })
                .await;
            }
        }
    }
}

/// Others are passed by the turns of a `fast` lock for one lease that was granted, not for one that was asked for.
#[tokio::test]
async fn turns_end_with_the_lease_that_was_granted() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.claims(async |claim, n| {
            let Claimed::Granted(grant) = turns(&claim, n) else {
                unreachable!()
            };
            let less = Grant::new(grant.place, grant.token, claim.ttl / 10);
            Ok(Claimed::Granted(less.turns(64)))
        });
        let script = script.renewals(async |all, _| {
            let less = |lease: &LeaseRef| Renewal::Renewed((lease.claim.ttl / 10).into());
            Ok(all.iter().map(less).collect())
        });
        let lock = script.store().lock("a").fast();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (lock, clock) = (lock.clone(), time.clock());
                tokio::spawn(async move {
                    let guard = lock.acquire().await.unwrap();
                    clock.sleep(TTL / 16).await;
                    guard.release().await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            driven(&time, task).await.unwrap();
        }
        // Two turns are longer than what was granted.
        assert_eq!((log.claims(), log.releases()), (2, 2));
    })
    .await;
}

/// A store that says what it grants at most is asked for no more: so is what core counts in leases before a grant.
#[tokio::test]
async fn no_more_is_asked_for_than_the_store_grants() {
    in_time(async {
        let (script, time, _log) = Script::new();
        let store = script.longest(TTL / 2).store();
        assert_eq!(store.guarantees().max_ttl(), Some(TTL / 2));
        for (ttl, granted) in [(TTL * 100, TTL / 2), (TTL / 4, TTL / 4)] {
            let guard = driven(&time, store.lock("a").ttl(ttl).acquire());
            assert_eq!(guard.await.unwrap().granted_ttl(), granted);
        }
    })
    .await;
}
