//! The keeper: how many renewals, and when.

use std::collections::HashSet;

use leasehold_core::backend::{Grant, Place, Renewal, Validity};
use leasehold_core::{ErrorKind, FencingToken};

use crate::script::{
    Call, Script, TTL, driven, error, granted, in_time, ms, pass, renewed, runtime, settle, waiting,
};

/// A thousand locks and two hundred waiters of one client: one request for all of them every third of the lease, and no
/// waiter claims again in the meantime.
#[tokio::test]
async fn one_batch_renews_everything() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.claims(async |claim, n| {
            Ok(if claim.name.as_str().starts_with('w') {
                waiting(&claim)
            } else {
                granted(&claim, n as u64 + 1)
            })
        });
        let store = script.store();
        let mut guards = Vec::new();
        for i in 0..1000 {
            guards.push(store.lock(("held", i)).acquire().await.unwrap());
        }
        let waiters: Vec<_> = (0..200)
            .map(|i| tokio::spawn(store.lock(("waiting", i)).acquire()))
            .collect();
        log.until_claimed(1200).await;
        settle().await;
        assert_eq!(log.renewals(), 0);
        pass(&time, TTL / 3, TTL / 12).await;
        assert_eq!((log.renewals(), log.claims()), (1, 1200));
        let all: HashSet<_> = log.batches().remove(0).1.into_iter().collect();
        assert_eq!(all.len(), 1200);

        // A waiter asks again by itself once or twice a lease; that does not scatter the batches.
        pass(&time, TTL * 10, TTL / 60).await;
        let (batches, claims) = (log.renewals(), log.claims());
        assert!(
            (30..=32).contains(&batches),
            "{batches} batches in ten leases and a third"
        );
        assert!(claims <= 1200 + 200 * 2 * 11, "{claims} claims");
        assert!(guards.iter().all(|guard| guard.is_valid()));
        waiters.iter().for_each(|waiter| waiter.abort());
    })
    .await;
}

/// A client that only waits has less to lose: it renews a little before half of its lease is over.
#[tokio::test]
async fn a_client_that_only_waits_renews_less_often() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script.busy().store();
        let start = time.clock().now();
        let waiters: Vec<_> = (0..20)
            .map(|i| tokio::spawn(store.lock(("waiting", i)).acquire()))
            .collect();
        log.until_claimed(20).await;
        pass(&time, TTL * 9, TTL / 60).await;
        let batches = log.batches();
        assert!(
            (19..=22).contains(&batches.len()),
            "{} batches in nine leases",
            batches.len()
        );
        let mut last = start;
        for (at, ids) in batches {
            assert!(
                ids.len() == 20 && at.since(last) < TTL / 2,
                "{} after {:?}",
                ids.len(),
                at.since(last)
            );
            last = at;
        }
        waiters.iter().for_each(|waiter| waiter.abort());
    })
    .await;
}

/// The lease of a place counts from when it was asked for: an answer that takes long puts its first renewal off by nothing.
#[tokio::test]
async fn a_place_that_was_answered_late_is_renewed_in_time() {
    in_time(async {
        // After 0.2 and 0.6 of the lease: when 0.45 of it are over, and at once.
        for (answered, renewed) in [(ms(1200), ms(2700)), (ms(3600), ms(3600))] {
            let (script, time, log) = Script::new();
            let store = script
                .claims_after(move |_| answered, |claim, _| waiting(claim))
                .store();
            let start = time.clock().now();
            let waiter = tokio::spawn(store.lock("a").acquire());
            log.until_claimed(1).await;
            pass(&time, TTL * 2 / 3, ms(100)).await;
            let at: Vec<_> = log
                .batches()
                .iter()
                .map(|(at, _)| at.since(start))
                .collect();
            assert!(
                matches!(at[..], [at] if (renewed..=renewed + ms(100)).contains(&at)),
                "{at:?}"
            );
            waiter.abort();
        }
    })
    .await;
}

#[tokio::test]
async fn renewals_fall_at_a_third_and_after_a_failure_at_a_sixth() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.renewals(async |all, n| match n {
            1 => error(ErrorKind::Unavailable),
            3 => Ok(all
                .iter()
                .map(|_| Renewal::Unknown(error::<()>(ErrorKind::Ambiguous).unwrap_err()))
                .collect()),
            _ => Ok(renewed(&all)),
        });
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        let start = time.clock().now();
        pass(&time, TTL * 2, ms(100)).await;
        let at: Vec<_> = log
            .batches()
            .iter()
            .map(|(at, _)| at.since(start).as_millis() / 1000)
            .collect();
        // After 2 and 4 s; that one fails: 5 s; after 7 s; that one is unknown: 8 s; then as usual.
        assert_eq!(at, [2, 4, 5, 7, 8, 10, 12]);
        assert!(guard.is_valid());
    })
    .await;
}

/// A renewal that never answers is given up after a sixth of the lease, so that another one fits before the end.
#[tokio::test]
async fn a_hung_renewal_leaves_time_for_another() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.renewals(async |all, n| {
            if n == 0 {
                std::future::pending::<()>().await;
            }
            Ok(renewed(&all))
        });
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        let start = time.clock().now();
        pass(&time, TTL, ms(100)).await;
        let at: Vec<_> = log
            .batches()
            .iter()
            .map(|(at, _)| at.since(start).as_millis() / 1000)
            .collect();
        assert_eq!(at, [2, 4, 6]);
        assert!(guard.is_valid());
    })
    .await;
}

/// A lease of another length does not tear the batch apart, and gets its own cadence.
#[tokio::test]
async fn leases_of_two_lengths_are_both_renewed_in_time() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script.store();
        let short = store.lock("short").ttl(TTL / 2).acquire().await.unwrap();
        let long = store.lock("long").acquire().await.unwrap();
        pass(&time, TTL * 3, ms(100)).await;
        assert!(short.is_valid() && long.is_valid());
        assert_eq!(
            log.renewals(),
            18,
            "batches for 18 thirds of the short lease"
        );
        let both = log
            .batches()
            .iter()
            .filter(|(_, ids)| ids.len() == 2)
            .count();
        assert!(
            (9..=18).contains(&both),
            "the long one was renewed {both} times in nine thirds"
        );
    })
    .await;
}

/// A store that is too slow for a short lease is not too slow for a long one that is renewed with it.
#[tokio::test]
async fn a_short_lease_costs_a_long_one_nothing() {
    in_time(async {
        let (script, time, _log) = Script::new();
        let clock = time.clock();
        let script = script.renewals(move |all, _| {
            let clock = clock.clone();
            async move {
                clock.sleep(ms(400)).await;
                Ok(renewed(&all))
            }
        });
        let store = script.store();
        let long = store.lock("long").acquire().await.unwrap();
        let short = store.lock("short").ttl(TTL / 12);
        let losing = tokio::spawn(async move {
            loop {
                short.acquire().await.unwrap().lost().await;
            }
        });
        pass(&time, TTL * 3, ms(10)).await;
        assert!(long.is_valid(), "{:?}", long.check());
        losing.abort();
    })
    .await;
}

#[tokio::test]
async fn nothing_is_renewed_that_was_given_back() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.claims(async |claim, n| {
            Ok(if claim.name.as_str() == "busy" {
                waiting(&claim)
            } else {
                granted(&claim, n as u64 + 1)
            })
        });
        let store = script.store();
        store
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        drop(store.lock("b").acquire().await.unwrap());
        let waiter = tokio::spawn(store.lock("busy").acquire());
        log.until_claimed(3).await;
        waiter.abort();
        log.until_released(3).await;
        pass(&time, TTL, ms(100)).await;
        assert_eq!((log.renewals(), log.releases()), (0, 3));
    })
    .await;
}

/// After a loss no renewal is sent, also not in a batch that others are due for.
#[tokio::test]
async fn nothing_is_renewed_that_was_lost() {
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let store = script.store();
        let (first, second) = (store.lock("a").acquire().await.unwrap(), {
            time.advance(ms(500));
            store.lock("b").acquire().await.unwrap()
        });
        let claimed = |call| {
            if let Call::Claim(id) = call {
                Some(id)
            } else {
                None
            }
        };
        let last = log
            .calls()
            .into_iter()
            .filter_map(claimed)
            .next_back()
            .unwrap();
        notifier.lost(last, leasehold_core::Loss::Evicted);
        assert!(first.is_valid() && !second.is_valid());
        pass(&time, TTL, ms(100)).await;
        assert!(log.renewals() >= 2);
        assert!(
            log.batches()
                .iter()
                .all(|(_, batch)| !batch.contains(&last)),
            "a lost hold was renewed"
        );
    })
    .await;
}

/// A claim that was answered late has less than its lease left: the first renewal must fit into that.
#[tokio::test]
async fn a_grant_that_was_slow_is_renewed_in_time() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .claims_after(|_| TTL * 3 / 4, |claim, _| granted(claim, 1))
            .store();
        let guard = driven(&time, store.lock("a").acquire()).await.unwrap();
        pass(&time, TTL, ms(100)).await;
        assert!(
            guard.is_valid(),
            "{:?} after {} renewals",
            guard.check(),
            log.renewals()
        );
    })
    .await;
}

/// The keeper's task dies with its runtime. Where another one uses the client too, its guards must not die as well.
#[test]
fn renewals_go_on_where_the_client_is_still_used() {
    let (script, time, log) = Script::new();
    let store = script.store();
    let (first, second) = (runtime(), runtime());
    let early = first.block_on(store.lock("a").acquire()).unwrap();
    let guard = second.block_on(store.lock("b").acquire()).unwrap();
    drop(first);
    second.block_on(in_time(async {
        pass(&time, TTL * 2, ms(100)).await;
        assert!(
            early.is_valid() && guard.is_valid(),
            "{} renewals",
            log.renewals()
        );
    }));
    drop(second);
    assert!(guard.is_valid());
    time.advance(TTL);
    assert!(!guard.is_valid(), "no runtime is left");
}

/// Time that passes renews what is held; a leap is a pause of the process, and loses it.
#[tokio::test]
async fn time_passes_through_every_renewal() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script.store();
        let (guard, start) = (store.lock("a").acquire().await.unwrap(), time.clock().now());
        time.pass(TTL * 20).await;
        assert_eq!(time.clock().now(), start + TTL * 20);
        assert!(
            guard.is_valid() && (60..65).contains(&log.renewals()),
            "{} renewals",
            log.renewals()
        );
        time.advance(TTL * 2);
        assert!(!guard.is_valid());
    })
    .await;
}

/// A grant counts from the request that it goes back to, also for a claim that has waited: if little of its lease is left, it is renewed
/// before another half of that is over, and not when its place was to be.
#[tokio::test]
async fn a_grant_that_is_old_when_it_comes_is_renewed_soon() {
    in_time(async {
        let (script, time, log) = Script::new();
        let (notifier, asked) = (script.notifier(), time.clock().now());
        let waiter = tokio::spawn(script.busy().store().lock("a").acquire().into_future());
        pass(&time, TTL * 3 / 5, ms(10)).await;
        assert_eq!(log.renewals(), 1, "its place");
        let grant = Grant::new(
            Place::new("at a"),
            FencingToken::new(1),
            Validity::since(asked, TTL),
        );
        notifier.granted(log.first_id(), grant);
        let guard = waiter.await.unwrap().unwrap();
        pass(&time, guard.remaining() / 2 + ms(10), ms(10)).await;
        assert_eq!(log.renewals(), 2, "{:?} left", guard.remaining());
        assert!(guard.remaining() > TTL * 4 / 5);
    })
    .await;
}
