//! Evictions: which hold they end, what its client learns, and what they leave.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::{Backend, LeaseRef, Renewal};
use leasehold_core::{FencingToken, Loss, Name, Store};
use leasehold_testbed as testbed;

#[tokio::test]
async fn an_eviction_ends_the_holder_and_no_other() {
    within(60, async {
        let server = server().await;
        let (etcd, operator) = (client(server.addr()).await, client(server.addr()).await);
        let (one, two) = (fair("a"), fair("a"));
        let first = granted(etcd.claim(&one).await);
        let _second = waiting(etcd.claim(&two).await);
        let name = Name::from("a");
        for other in [
            FencingToken::new(first.token.get() - 256),
            FencingToken::new(first.token.get() + 256),
        ] {
            assert!(!operator.evict(&name, other).await.unwrap());
        }
        // Any of its turns stands for the hold.
        assert!(
            operator
                .evict(&name, FencingToken::new(first.token.get() + 7))
                .await
                .unwrap()
        );
        assert!(!operator.evict(&name, first.token).await.unwrap());
        let next = becomes_granted(&etcd, &two).await;
        assert!(next.token > first.token);
        // The evicted one learns it from its next renewal, and a new claim of it is a new place.
        let lease = LeaseRef::new(Arc::new(one.clone()), first.place, Some(first.token));
        while !matches!(
            etcd.renew(std::slice::from_ref(&lease)).await.unwrap()[..],
            [Renewal::Lost(_)]
        ) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        waiting(etcd.claim(&one).await);
        release(&etcd, &two).await;
        assert!(becomes_granted(&etcd, &one).await.token > next.token);
        release(&etcd, &one).await;
    })
    .await;
}

#[tokio::test]
async fn a_guard_learns_that_it_was_evicted() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let holder = Store::new(client(proxy.addr()).await).ttl(Duration::from_secs(60));
        let operator = Store::new(client(server.addr()).await);
        let guard = holder.lock("a").acquire().await.unwrap();
        assert!(operator.evict("a", guard.fencing_token()).await.unwrap());
        assert_eq!(within(10, guard.lost()).await, Loss::Evicted);
        // The same while the name is watched, where the deletion is reported too.
        let mut guard = holder.lock("b").acquire().await.unwrap();
        for _ in 0..12 {
            let waiter = tokio::spawn(holder.lock("b").acquire());
            until_waiting(&operator, "b", 1).await;
            assert!(operator.evict("b", guard.fencing_token()).await.unwrap());
            assert_eq!(within(10, guard.lost()).await, Loss::Evicted);
            guard = within(10, waiter).await.unwrap().unwrap();
        }
        // An eviction while the watch is down is found when it stands again.
        proxy.cut().await;
        assert!(operator.evict("b", guard.fencing_token()).await.unwrap());
        proxy.heal().await;
        within(15, guard.lost()).await;
    })
    .await;
}

/// The client of a hold that lapses has released it: a note would stay until the hold would have
/// ended, and none reads it.
#[tokio::test]
async fn an_eviction_of_a_lapsing_hold_leaves_no_note() {
    within(30, async {
        let server = server().await;
        let (etcd, operator) = (client(server.addr()).await, client(server.addr()).await);
        for (name, lapses) in [("a", true), ("b", false)] {
            let claim = fair(name);
            let grant = granted(etcd.claim(&claim).await);
            if lapses {
                etcd.release_after(&claim, Some(&grant.place), Duration::from_secs(600))
                    .await
                    .unwrap();
            }
            assert!(operator.evict(&name.into(), grant.token).await.unwrap());
            assert!(keys(&server, &format!("test/{name}/")).await.is_empty());
            let notes = keys(&server, "test/%evicted/").await.len();
            assert_eq!(
                notes,
                usize::from(!lapses),
                "of a hold that lapses: {lapses}"
            );
        }
    })
    .await;
}

/// The note of the eviction is heard before the claim's own answer is.
#[tokio::test]
async fn a_hold_evicted_before_its_claim_is_answered_is_not_granted() {
    within(60, async {
        let server = server().await;
        let (etcd, operator) = (
            Arc::new(client(server.addr()).await),
            client(server.addr()).await,
        );
        let store = Store::new(etcd.clone());
        let mut evicted = 0;
        for round in 0.. {
            if evicted == 5 {
                break;
            }
            let (name, other) = (Name::from(format!("a{round}")), format!("b{round}"));
            let guard = store.lock(&*other).acquire().await.unwrap();
            let early = fair(name.as_str());
            let mut answer = etcd.claim(&early);
            let holder = loop {
                // Once it is sent, the claim hears nothing.
                if !keys(&server, &format!("test/{name}/")).await.is_empty() {
                    break Some(
                        operator.inspect(&name).await.unwrap().holders[0]
                            .token
                            .unwrap(),
                    );
                }
                if futures_util::poll!(&mut answer).is_ready() {
                    break None;
                }
            };
            // It was answered between both reads: another round.
            let Some(holder) = holder else { continue };
            assert!(operator.evict(&name, holder).await.unwrap());
            // News comes in order: this one is heard later.
            assert!(
                operator
                    .evict(&Name::from(&*other), guard.fencing_token())
                    .await
                    .unwrap()
            );
            assert_eq!(within(15, guard.lost()).await, Loss::Evicted);
            let grant = granted(answer.await);
            assert!(grant.token > holder, "granted with the evicted token");
            let lease = LeaseRef::new(Arc::new(early), grant.place, Some(grant.token));
            assert!(matches!(
                renewals(&etcd, &[lease]).await[..],
                [Renewal::Renewed(_)]
            ));
            evicted += 1;
        }
    })
    .await;
}

/// A server that stores nothing more still evicts and releases.
#[tokio::test]
async fn a_full_server_still_evicts_and_releases() {
    within(60, async {
        let options = testbed::EtcdOptions {
            extra: vec!["--quota-backend-bytes=2000000".into()],
            ..Default::default()
        };
        let server = testbed::Etcd::start_with(&options).await.unwrap();
        let (etcd, operator) = (client(server.addr()).await, client(server.addr()).await);
        let store = Store::new(etcd).ttl(Duration::from_secs(10));
        let (one, two) = (
            store.lock("a").acquire().await.unwrap(),
            store.lock("b").acquire().await.unwrap(),
        );
        let mut raw = raw(&server).await;
        while raw.put("junk", vec![0; 300_000], None).await.is_ok() {}
        while operator.claim(&fair("c")).await.is_ok() {}
        assert!(
            operator
                .evict(&"a".into(), one.fencing_token())
                .await
                .unwrap()
        );
        assert_eq!(
            within(15, one.lost()).await,
            Loss::Gone,
            "there is no room for a note"
        );
        assert!(two.is_valid());
        two.release().await.unwrap();
        assert!(keys(&server, "test/b/").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn any_of_several_holders_can_be_evicted_and_a_waiter_cannot() {
    within(60, async {
        let server = server().await;
        let (store, operator) = (store(&server).await, store(&server).await);
        let lock = store.rw_lock("a");
        let (first, second) = (
            lock.read().acquire().await.unwrap(),
            lock.read().acquire().await.unwrap(),
        );
        let etcd = client(server.addr()).await;
        let writer = fair("a");
        let place = waiting(etcd.claim(&writer).await).place;
        let key = raw(&server).await.get(place.as_str(), None).await.unwrap();
        let number = key.kvs()[0].create_revision().unsigned_abs() << 8;
        assert!(
            !operator
                .evict("a", FencingToken::new(number))
                .await
                .unwrap()
        );
        assert!(operator.evict("a", second.fencing_token()).await.unwrap());
        assert_eq!(within(15, second.lost()).await, Loss::Evicted);
        assert!(first.is_valid());
        first.release().await.unwrap();
        becomes_granted(&etcd, &writer).await;
    })
    .await;
}
