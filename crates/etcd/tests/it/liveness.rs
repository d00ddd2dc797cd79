//! A hold is verified by its own key, in the term of the member that renewed it: deletions, former
//! leaders, runtimes that stand still.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{usual as client, *};
use etcd_client::PutOptions;
use leasehold_core::backend::{Backend, LeaseRef, Moment, Renewal, WaitPolicy};
use leasehold_core::{Loss, Store};
use leasehold_testbed as testbed;
use leasehold_testbed::seen::acquired;
use tokio::runtime::{Builder, Runtime};

/// No client watches the name: only the renewal can find out.
#[tokio::test]
async fn a_hold_whose_key_is_deleted_by_hand_is_lost_within_one_renewal() {
    within(60, async {
        let server = server().await;
        let store = Store::new(client(server.addr()).await).ttl(Duration::from_secs(5));
        // More than one transaction compares.
        let mut guards = Vec::new();
        for i in 0..300 {
            guards.push(store.lock(("a", i)).acquire().await.unwrap());
        }
        let (gone, mut raw) = (guards.swap_remove(200), raw(&server).await);
        raw.delete(gone.view().place_in_the_store(), None)
            .await
            .unwrap();
        // Not by the end of its lease, which would be another loss.
        assert_eq!(within(20, gone.lost()).await, Loss::Gone);
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(
            guards.iter().all(|guard| guard.is_valid()),
            "and only that one"
        );
    })
    .await;
}

/// Where a hold stands.
trait At {
    fn place_in_the_store(&self) -> String;
}

impl<F: leasehold_core::Fenced> At for F {
    fn place_in_the_store(&self) -> String {
        self.place().expect("a place").as_str().to_owned()
    }
}

/// A renewal that is under way has not read what was claimed since: it verifies nothing of it.
#[tokio::test]
async fn a_renewal_under_way_verifies_no_later_claim() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        // A limit that a busy machine keeps, far away as well.
        let (etcd, mut raw) = (
            Arc::new(crate::common::client(proxy.addr()).await),
            raw(&server).await,
        );
        let early = Arc::new(fair("early"));
        let grant = granted(etcd.claim(&early).await);
        let early = LeaseRef::new(early, grant.place, Some(grant.token));
        // Its stream of keep-alives is open from here on.
        etcd.renew(std::slice::from_ref(&early)).await.unwrap();
        // A keep-alive and a read of the keys take twice as long as a claim.
        proxy.delay(Duration::from_millis(250));
        let renewing = tokio::spawn({
            let (etcd, early) = (etcd.clone(), early.clone());
            async move { etcd.renew(&[early]).await }
        });
        let late = Arc::new(fair("late"));
        let grant = granted(etcd.claim(&late).await);
        raw.delete(grant.place.as_str(), None).await.unwrap();
        let late = LeaseRef::new(late, grant.place, Some(grant.token));
        let answers = etcd.renew(std::slice::from_ref(&late)).await.unwrap();
        assert!(
            !matches!(answers[..], [Renewal::Renewed(_)]),
            "its key is gone: {answers:?}"
        );
        let early = renewing.await.unwrap().unwrap();
        assert!(!matches!(early[..], [Renewal::Lost(_)]), "{early:?}");
        while !matches!(
            etcd.renew(std::slice::from_ref(&late)).await.unwrap()[..],
            [Renewal::Lost(Loss::Gone)]
        ) {}
    })
    .await;
}

/// A client that two runtimes use, of which the first is driven only now and then; it was connected
/// in the second.
struct Runtimes {
    first: Runtime,
    second: Runtime,
    proxy: testbed::Proxy,
    store: Store,
    _server: testbed::Etcd,
}

impl Runtimes {
    fn start() -> Runtimes {
        let first = Builder::new_current_thread().enable_all().build().unwrap();
        let second = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (server, proxy, store) = second.block_on(within(60, async {
            let server = server().await;
            let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
            let store = Store::new(client(proxy.addr()).await).ttl(Duration::from_secs(6));
            (server, proxy, store)
        }));
        Runtimes {
            first,
            second,
            proxy,
            store,
            _server: server,
        }
    }
}

/// A renewal that was begun in a runtime that is driven no more holds up no other.
#[test]
fn a_renewal_in_a_runtime_that_is_not_driven_is_passed_by() {
    let Runtimes {
        first,
        second,
        proxy,
        store,
        _server,
    } = Runtimes::start();
    // The keeper runs in the first.
    let early = first.block_on(within(60, async {
        let guard = store.lock("a").acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        guard
    }));
    let guard = second
        .block_on(within(60, store.lock("b").acquire()))
        .unwrap();
    // It stops while a renewal is under way.
    proxy.delay(Duration::from_millis(300));
    first.block_on(within(60, async {
        while early.remaining() > Duration::from_millis(3400) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }));
    second.block_on(within(60, async {
        proxy.delay(Duration::ZERO);
        let until = Moment::now() + Duration::from_secs(12);
        while Moment::now() < until {
            guard.check().unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        guard.release().await.unwrap();
        drop(early);
    }));
}

/// A connection that was made anew in a runtime that ends is not the last one.
#[test]
fn a_connection_of_a_runtime_that_has_ended_is_made_anew() {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let (_server, store) = first.block_on(within(60, async {
        let server = server().await;
        let store = Store::new(client(server.addr()).await).ttl(Duration::from_secs(6));
        (server, store)
    }));
    // Nobody drives the first, with its connection, which is taken for dead.
    second.block_on(within(60, hold(&store)));
    drop(second);
    first.block_on(within(60, hold(&store)));
}

/// Holds it, as soon as it is granted, and gives it back.
async fn hold(store: &Store) {
    loop {
        match store.lock("a").acquire().await {
            Ok(guard) => return give_back(guard).await,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
}

/// A lease that was asked for in a runtime that is driven no more holds up no other.
#[test]
fn a_lease_asked_for_in_a_runtime_that_is_not_driven_is_passed_by() {
    let Runtimes {
        first,
        second,
        proxy,
        store,
        _server,
    } = Runtimes::start();
    proxy.delay(Duration::from_millis(300));
    let stuck = first.spawn(store.lock("a").acquire());
    first.block_on(async { tokio::time::sleep(Duration::from_millis(150)).await });
    second.block_on(within(60, async {
        proxy.delay(Duration::ZERO);
        let guard = store
            .lock("b")
            .acquire_timeout(Duration::from_secs(20))
            .await
            .unwrap();
        guard.release().await.unwrap();
    }));
    // The late lease is used, or ends by itself.
    let late = first.block_on(within(60, stuck)).unwrap().unwrap();
    first.block_on(within(60, late.release())).unwrap();
}

/// A snapshot that is restored can hold the lease, and under the same key an earlier hold.
#[tokio::test]
async fn another_key_of_the_same_name_under_the_same_lease_is_another_hold() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let mut all = Vec::new();
        for name in ["a", "b"] {
            let claim = Arc::new(fair(name));
            let grant = granted(etcd.claim(&claim).await);
            all.push(LeaseRef::new(claim, grant.place, Some(grant.token)));
        }
        let mut raw = raw(&server).await;
        let key = all[0].place.as_str();
        let lease = raw.get(key, None).await.unwrap().kvs()[0].lease();
        raw.delete(key, None).await.unwrap();
        raw.put(key, "other", Some(PutOptions::new().with_lease(lease)))
            .await
            .unwrap();
        let answers = renewals(&etcd, &all).await;
        assert!(
            matches!(
                answers[..],
                [Renewal::Lost(Loss::Gone), Renewal::Renewed(_)]
            ),
            "{answers:?}"
        );
        // A waiting place, too.
        let waiter = Arc::new(fair("b"));
        let place = waiting(etcd.claim(&waiter).await).place;
        raw.delete(place.as_str(), None).await.unwrap();
        let waits = LeaseRef::new(waiter, place, None);
        assert!(matches!(
            renewals(&etcd, &[waits]).await[..],
            [Renewal::Lost(_)]
        ));
    })
    .await;
}

/// Stops the leader while a keep-alive lies in its socket, wakes it for a moment, and lets a rival
/// take the lock.
async fn a_former_leader_wakes(cluster: &testbed::EtcdCluster, round: u64) {
    let ttl = Duration::from_secs(5);
    let leader = cluster.leader().await;
    let members = cluster.members();
    let beside: Vec<&str> = (1..3).map(|i| members[(leader + i) % 3].addr()).collect();
    let proxy = testbed::Proxy::to(members[leader].addr()).await.unwrap();
    let holder = Store::new(client(proxy.addr()).await).ttl(ttl);
    let rival = Store::new(client(&beside.join(",")).await).ttl(ttl);
    let guard = holder.lock("a").acquire().await.unwrap();
    // From the first renewal on its stream of keep-alives is open.
    let mut left = guard.remaining();
    while guard.remaining() <= left {
        left = guard.remaining();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    members[leader].pause().await.unwrap();
    let taken = tokio::spawn(async move { acquired(&rival, "a").await });
    let other = cluster.leader().await;
    assert_ne!(other, leader);
    // The next keep-alive is on its way, and not given up yet.
    while guard.remaining() > ttl * 2 / 3 - Duration::from_millis(150 + round * 37 % 300) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    members[leader].resume().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    // What it learns later does not help.
    proxy.hold();
    while !taken.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let taken = taken.await.unwrap();
    let by = guard.remaining();
    assert!(
        !(guard.is_valid() && taken.is_valid()),
        "two valid guards for {by:?} in round {round}"
    );
    give_back(taken).await;
    drop(guard);
    proxy.heal().await;
}

/// Some of the rounds of the campaign below.
#[tokio::test]
async fn a_former_leader_that_wakes_renews_nothing() {
    let cluster = testbed::Etcd::cluster(3).await.unwrap();
    let rounds = if std::env::var_os("LEASEHOLD_CAMPAIGN").is_some() {
        34
    } else {
        2
    };
    for round in 0..rounds {
        within(60, a_former_leader_wakes(&cluster, round)).await;
    }
}

/// The hold outlives its session, its client and its process, and ends in time.
#[tokio::test]
async fn a_hold_that_lapses_ends_by_itself() {
    within(90, async {
        let server = server().await;
        let rival = Store::new(client(server.addr()).await);
        let (long, rest) = (Duration::from_secs(60), Duration::from_millis(3500));
        for closes in [true, false] {
            let etcd = client(server.addr()).await;
            let left = claim("a", WaitPolicy::Fair, long);
            let grant = granted(etcd.claim(&left).await);
            let began = Moment::now();
            etcd.release_after(&left, Some(&grant.place), rest)
                .await
                .unwrap();
            // A repeat changes nothing but the lease that it stands under.
            etcd.release_after(&left, Some(&grant.place), rest)
                .await
                .unwrap();
            let now = rival.lock("a").inspect().await.unwrap();
            assert_eq!(
                now.holders[0].token,
                Some(grant.token),
                "it is the same hold"
            );
            if closes {
                etcd.close().await.unwrap();
            } else {
                // No later claim of this client meets its key.
                waiting(etcd.claim(&claim("a", WaitPolicy::Fair, long)).await);
                drop(etcd);
            }
            let next = rival.lock("a").acquire();
            if closes {
                let next = next.await.unwrap();
                let took = Moment::now().since(began);
                // Half a second to a whole one, for the server; and much less than what it was
                // claimed for.
                assert!(
                    took >= rest && took < rest + Duration::from_secs(15),
                    "{took:?}"
                );
                assert!(next.fencing_token() > grant.token);
                next.release().await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_hold_deleted_by_hand_is_reported_at_once_where_the_name_is_watched() {
    within(60, async {
        let server = server().await;
        let store = Store::new(client(server.addr()).await).ttl(Duration::from_secs(60));
        let guard = store.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(store.lock("a").acquire());
        until_waiting(&store, "a", 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut all = keys(&server, "test/a/").await;
        all.sort();
        raw(&server)
            .await
            .delete(all[0].as_str(), None)
            .await
            .unwrap();
        // By themselves they would find it out after twenty seconds.
        assert_eq!(within(10, guard.lost()).await, Loss::Gone);
        drop(within(10, waiter).await.unwrap().unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_revoked_lease_ends_all_under_it_and_a_new_session_begins() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let (held, other) = (Arc::new(fair("a")), fair("a"));
        let grant = granted(etcd.claim(&held).await);
        waiting(etcd.claim(&other).await);
        let mut raw = raw(&server).await;
        let leases = raw.leases().await.unwrap();
        raw.lease_revoke(leases.leases()[0].id()).await.unwrap();
        let lease = LeaseRef::new(held.clone(), grant.place, Some(grant.token));
        let answers = renewals(&etcd, &[lease]).await;
        assert!(
            matches!(answers[..], [Renewal::Lost(Loss::Gone)]),
            "{answers:?}"
        );
        let again = granted(etcd.claim(&other).await);
        assert!(again.token > grant.token);
        release(&etcd, &held).await;
        release(&etcd, &other).await;
    })
    .await;
}
