//! A hold is verified by its own key, in the term of the leader that renewed it: deletions, evictions, former leaders, fences.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test judges by panicking")]
#![allow(clippy::large_futures, reason = "a test is one future")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use etcd_client::{Compare, PutOptions, Txn, TxnOp};
use leasehold_core::seam::{Backend, Claim, Claimed, LeaseRef, Mode, Moment, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Loss, Name, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;

/// Nobody watches the line: only the renewal can tell.
#[tokio::test]
async fn a_hold_whose_key_is_deleted_by_hand_is_lost_within_one_renewal() {
    within(60, async {
        let server = server().await;
        let store = Store::new(client(server.addr()).await).ttl(Duration::from_secs(3));
        // More than one transaction compares.
        let mut guards = Vec::new();
        for i in 0..300 {
            guards.push(store.lock(("a", i)).acquire().await.unwrap());
        }
        let (gone, mut raw) = (guards.swap_remove(200), raw(&server).await);
        raw.delete(gone.view().place_in_the_store(), None).await.unwrap();
        assert_eq!(within(3, gone.lost()).await, Loss::Gone);
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(guards.iter().all(|guard| guard.is_valid()), "and only that one");
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

/// A renewal that is under way has not looked at what was claimed since: it proves nothing of it.
#[tokio::test]
async fn a_renewal_under_way_proves_nothing_of_a_later_claim() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let (etcd, mut raw) = (Arc::new(client(proxy.addr()).await), raw(&server).await);
        let early = Arc::new(fair("early"));
        let grant = granted(etcd.claim(&early).await);
        let early = LeaseRef::new(early, grant.place, Some(grant.token));
        // Its stream of keep-alives is open from here on.
        etcd.renew(std::slice::from_ref(&early)).await.unwrap();
        // A keep-alive and a look at the keys take twice as long as a claim.
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
        assert!(!matches!(answers[..], [Renewal::Renewed(_)]), "its key is gone: {answers:?}");
        assert!(matches!(renewing.await.unwrap().unwrap()[..], [Renewal::Renewed(_)]));
        while !matches!(etcd.renew(std::slice::from_ref(&late)).await.unwrap()[..], [Renewal::Lost(Loss::Gone)]) {}
    })
    .await;
}

/// A renewal that was begun in a runtime that nobody drives any more holds up no other.
#[test]
fn a_renewal_in_a_runtime_that_is_not_driven_is_passed_by() {
    let (first, second) = (
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
    );
    let (server, proxy, store) = second.block_on(within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let store = Store::new(client(proxy.addr()).await).ttl(Duration::from_secs(6));
        (server, proxy, store)
    }));
    // The keeper runs in the first.
    let early = first.block_on(within(60, async {
        let guard = store.lock("a").acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        guard
    }));
    let guard = second.block_on(within(60, store.lock("b").acquire())).unwrap();
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
        drop(server);
    }));
    drop(early);
}

/// A lease that was asked for in a runtime that nobody drives any more holds up no other.
#[test]
fn a_lease_asked_for_in_a_runtime_that_is_not_driven_is_passed_by() {
    let (first, second) = (
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
    );
    let (server, proxy, store) = second.block_on(within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let store = Store::new(client(proxy.addr()).await).ttl(Duration::from_secs(6));
        (server, proxy, store)
    }));
    proxy.delay(Duration::from_millis(300));
    let stuck = first.spawn(store.lock("a").acquire());
    first.block_on(async { tokio::time::sleep(Duration::from_millis(150)).await });
    second.block_on(within(60, async {
        proxy.delay(Duration::ZERO);
        let guard = store.lock("b").acquire_timeout(Duration::from_secs(20)).await.unwrap();
        guard.release().await.unwrap();
    }));
    // The late lease is used, or ends by itself.
    let late = first.block_on(within(60, stuck)).unwrap().unwrap();
    first.block_on(within(60, late.release())).unwrap();
    drop(server);
}

/// A snapshot that is restored can hold the lease, and under the same key an earlier hold.
#[tokio::test]
async fn another_key_of_the_same_name_under_the_same_lease_is_no_proof() {
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
        raw.put(key, "other", Some(PutOptions::new().with_lease(lease))).await.unwrap();
        let answers = etcd.renew(&all).await.unwrap();
        assert!(matches!(answers[..], [Renewal::Lost(Loss::Gone), Renewal::Renewed(_)]), "{answers:?}");
        // A waiting place, too.
        let waiter = Arc::new(fair("b"));
        let place = waiting(etcd.claim(&waiter).await).place;
        raw.delete(place.as_str(), None).await.unwrap();
        let waits = LeaseRef::new(waiter, place, None);
        assert!(matches!(etcd.renew(&[waits]).await.unwrap()[..], [Renewal::Lost(_)]));
    })
    .await;
}

/// The note of the eviction is heard before the claim's own answer is.
#[tokio::test]
async fn a_hold_evicted_before_its_claim_is_answered_is_not_granted() {
    within(60, async {
        let server = server().await;
        let (etcd, operator) = (Arc::new(client(server.addr()).await), client(server.addr()).await);
        let store = Store::new(etcd.clone());
        let mut told = 0;
        for round in 0.. {
            if told == 5 {
                break;
            }
            let (name, other) = (Name::from(format!("a{round}")), format!("b{round}"));
            let guard = store.lock(&*other).acquire().await.unwrap();
            let early = fair(name.as_str());
            let mut answer = etcd.claim(&early);
            let holder = loop {
                // Once it is sent, the claim hears nothing.
                if !keys(&server, &format!("test/{name}/")).await.is_empty() {
                    break Some(operator.inspect(&name).await.unwrap().holders[0].token.unwrap());
                }
                if futures_util::poll!(&mut answer).is_ready() {
                    break None;
                }
            };
            // It was answered between both looks: another round.
            let Some(holder) = holder else { continue };
            assert!(operator.evict(&name, holder).await.unwrap());
            // News comes in order: this one is heard later.
            assert!(operator.evict(&Name::from(&*other), guard.fencing_token()).await.unwrap());
            assert_eq!(within(5, guard.lost()).await, Loss::Evicted);
            let grant = granted(answer.await);
            assert!(grant.token > holder, "granted with the evicted token");
            let lease = LeaseRef::new(Arc::new(early), grant.place, Some(grant.token));
            assert!(matches!(etcd.renew(&[lease]).await.unwrap()[..], [Renewal::Renewed(_)]));
            told += 1;
        }
    })
    .await;
}

/// All names of one step have one create_revision: of each hold its own key is asked, and nobody else's.
#[tokio::test]
async fn a_condition_is_about_its_own_name_of_several() {
    within(60, async {
        let server = server().await;
        let (etcd, others) = (Arc::new(client(server.addr()).await), Arc::new(client(server.addr()).await));
        let (store, other) = (Store::new(etcd.clone()), Store::new(others.clone()));
        let mut raw = raw(&server).await;
        let writes = |condition: Compare| Txn::new().when([condition]).and_then([TxnOp::put("data", "x", None)]);
        // Suffixes of one another, in namespaces that hide that.
        let (names, one, other) = (["a", "one/a", "a/a"], store.namespace("one"), other.namespace("one"));
        let several = one.multi_lock(names).acquire().await.unwrap();
        let views = names.map(|name| several.get(name).unwrap().view());
        for (i, view) in views.iter().enumerate() {
            let condition = etcd.still_holds(view).unwrap();
            assert!(raw.txn(writes(condition.clone())).await.unwrap().succeeded());
            assert_eq!(others.still_holds(view).unwrap_err().kind(), ErrorKind::Lost);
            other.evict(view.name().clone(), view.fencing_token()).await.unwrap();
            assert!(!raw.txn(writes(condition)).await.unwrap().succeeded(), "evicted");
            assert_eq!(within(5, view.lost()).await, Loss::Evicted);
            assert_eq!(etcd.still_holds(view).unwrap_err().kind(), ErrorKind::Lost);
            for next in &views[i + 1..] {
                let condition = etcd.still_holds(next).unwrap();
                assert!(raw.txn(writes(condition)).await.unwrap().succeeded(), "{:?}", next.name());
            }
        }
    })
    .await;
}

/// Stops the leader while a keep-alive lies in its socket, wakes it for a moment, and lets a rival take the lock.
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
    let taken = tokio::spawn(rival.lock("a").acquire());
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
    let taken = taken.await.unwrap().unwrap();
    let by = guard.remaining();
    assert!(!(guard.is_valid() && taken.is_valid()), "two valid guards for {by:?} in round {round}");
    taken.release().await.unwrap();
    drop(guard);
    proxy.heal().await;
}

/// Some of the rounds of the campaign below.
#[tokio::test]
async fn a_former_leader_that_wakes_proves_nothing() {
    let cluster = testbed::Etcd::cluster(3).await.unwrap();
    let rounds = if std::env::var_os("LEASEHOLD_CAMPAIGN").is_some() { 34 } else { 2 };
    for round in 0..rounds {
        within(60, a_former_leader_wakes(&cluster, round)).await;
    }
}

/// The hold outlives its session, its client and its process, and ends in time.
#[tokio::test]
async fn a_hold_that_is_left_to_its_rest_ends_by_itself() {
    within(90, async {
        let server = server().await;
        let rival = Store::new(client(server.addr()).await);
        let (long, rest) = (Duration::from_secs(60), Duration::from_millis(3500));
        for closes in [true, false] {
            let etcd = client(server.addr()).await;
            let left = claim("a", WaitPolicy::Fair, long);
            let grant = granted(etcd.claim(&left).await);
            let began = Moment::now();
            etcd.release_after(&left, Some(&grant.place), rest).await.unwrap();
            // A repeat changes nothing but the lease that it stands under.
            etcd.release_after(&left, Some(&grant.place), rest).await.unwrap();
            let now = rival.lock("a").inspect().await.unwrap();
            assert_eq!(now.holders[0].token, Some(grant.token), "it is the same hold");
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
                assert!(took >= rest && took < rest + Duration::from_secs(4), "{took:?}");
                assert!(next.fencing_token() > grant.token);
                next.release().await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_release_ends_a_rest_before_its_time() {
    within(60, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let left = fair("a");
        let grant = granted(etcd.claim(&left).await);
        etcd.release_after(&left, Some(&grant.place), Duration::from_secs(600)).await.unwrap();
        let lease = LeaseRef::new(Arc::new(left.clone()), grant.place, Some(grant.token));
        let _ = etcd.renew(&[lease]).await.unwrap();
        waiting(rival.claim(&fair("a")).await);
        release(&etcd, &left).await;
        release(&etcd, &left).await;
        assert_eq!(keys(&server, "test/a/").await.len(), 1);
        etcd.close().await.unwrap();
    })
    .await;
}

/// A waiting reader that is claimed again as a writer stays a reader, and behind the writer before it.
#[tokio::test]
async fn claiming_again_as_exclusive_passes_no_writer() {
    within(30, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let reads = |name: &str| Claim::new(name, Mode::Shared, WaitPolicy::Fair, TTL, "test");
        granted(rival.claim(&reads("a")).await);
        waiting(rival.claim(&fair("a")).await);
        let reader = reads("a");
        waiting(etcd.claim(&reader).await);
        let mut again = reader.clone();
        again.mode = Mode::Exclusive;
        let answer = etcd.claim(&again).await.unwrap();
        assert!(matches!(answer, Claimed::Waiting(_)), "{answer:?}");
    })
    .await;
}

/// A server that stores nothing more still evicts and releases.
#[tokio::test]
async fn a_full_server_still_evicts_and_releases() {
    within(60, async {
        let options =
            testbed::EtcdOptions { extra: vec!["--quota-backend-bytes=2000000".into()], ..Default::default() };
        let server = testbed::Etcd::start_with(&options).await.unwrap();
        let (etcd, operator) = (client(server.addr()).await, client(server.addr()).await);
        let store = Store::new(etcd).ttl(Duration::from_secs(3));
        let (one, two) = (store.lock("a").acquire().await.unwrap(), store.lock("b").acquire().await.unwrap());
        let mut raw = raw(&server).await;
        while raw.put("junk", vec![0; 300_000], None).await.is_ok() {}
        while operator.claim(&fair("c")).await.is_ok() {}
        assert!(operator.evict(&"a".into(), one.fencing_token()).await.unwrap());
        assert_eq!(within(5, one.lost()).await, Loss::Gone, "there is no room for a note");
        assert!(two.is_valid());
        two.release().await.unwrap();
        assert!(keys(&server, "test/b/").await.is_empty());
    })
    .await;
}

/// Endpoints that are dead or silent do not hide the one that lives.
#[tokio::test]
async fn one_live_endpoint_is_found_among_dead_ones() {
    within(60, async {
        let server = server().await;
        let hole = testbed::Proxy::to(server.addr()).await.unwrap();
        hole.hold();
        for others in [["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], [hole.addr(), hole.addr(), "127.0.0.1:1"]] {
            for _ in 0..4 {
                let all = format!("{},{}", others.join(","), server.addr());
                let etcd = Etcd::connect(&format!("etcd://{all}/test")).await.unwrap();
                let claim = fair("a");
                becomes_granted(&etcd, &claim).await;
                while etcd.release(&claim, None).await.is_err() {}
            }
        }
    })
    .await;
}

/// Round trips of more than a second: the limits grow with them.
#[tokio::test]
async fn a_server_that_is_far_away_is_waited_for() {
    within(120, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let ttl = Duration::from_secs(9);
        let store = Store::new(client(proxy.addr()).await).ttl(ttl);
        proxy.delay(Duration::from_millis(550));
        let guard = store.lock("a").acquire().await.unwrap();
        tokio::time::sleep(ttl + Duration::from_millis(500)).await;
        assert!(guard.is_valid(), "{:?}", guard.check());
        guard.release().await.unwrap();
    })
    .await;
}
