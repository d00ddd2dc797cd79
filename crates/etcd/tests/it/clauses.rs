//! The clauses of `Backend` that the suite cannot see from outside: requests, keys and leases, late
//! requests, foreign tools.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::{Backend, Claimed, LeaseRef, Moment, Renewal, WaitPolicy};
use leasehold_core::{FencingToken, Loss, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;

#[tokio::test]
async fn an_uncontended_cycle_is_two_requests_and_a_busy_try_is_one() {
    within(30, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        for etcd in [&etcd, &rival] {
            let first = fair("warm");
            granted(etcd.claim(&first).await);
            release(etcd, &first).await;
        }
        let before = requests(&server).await;
        for i in 0..10 {
            let claim = fair(&format!("name {i}"));
            granted(etcd.claim(&claim).await);
            release(&etcd, &claim).await;
        }
        assert_eq!(
            requests_since(&server, &before).await,
            counts(&[("DeleteRange", 10), ("Txn", 10)])
        );

        let tried = claim("a", WaitPolicy::Try, TTL);
        granted(etcd.claim(&tried).await);
        let before = requests(&server).await;
        let busy = claim("a", WaitPolicy::Try, TTL);
        let Claimed::Busy(who) = rival.claim(&busy).await.unwrap() else {
            panic!("not busy")
        };
        assert_eq!(
            (who.label.as_deref(), who.waiters, who.foreign),
            (Some("test"), Some(0), false)
        );
        release(&rival, &busy).await;
        assert_eq!(
            requests_since(&server, &before).await,
            counts(&[("Txn", 1)])
        );
        assert_eq!(keys(&server, "test/a/").await.len(), 1);
        // Keys are used again, so that they leave one tombstone each and not one for every hold.
        let key = keys(&server, "test/a/").await;
        release(&etcd, &tried).await;
        granted(etcd.claim(&claim("a", WaitPolicy::Try, TTL)).await);
        assert_eq!(keys(&server, "test/a/").await, key);
    })
    .await;
}

#[tokio::test]
async fn one_request_renews_all_that_is_held_and_waited_for() {
    within(30, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let mut leases = Vec::new();
        for i in 0..100 {
            let claim = Arc::new(fair(&format!("{i}")));
            let grant = granted(etcd.claim(&claim).await);
            leases.push(LeaseRef::new(claim, grant.place, Some(grant.token)));
        }
        granted(rival.claim(&fair("other")).await);
        let waiter = Arc::new(fair("other"));
        leases.push(LeaseRef::new(
            waiter.clone(),
            waiting(etcd.claim(&waiter).await).place,
            None,
        ));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let before = requests(&server).await;
        let stamp = Moment::now();
        for renewal in renewals(&etcd, &leases).await {
            let Renewal::Renewed(validity) = renewal else {
                panic!("{renewal:?}")
            };
            assert!(validity.ttl() >= TTL);
            // It counts from the keep-alive that was just sent, not from the grant of the lease.
            assert!(validity.until(Moment::now()) >= validity.until(stamp));
            assert!(validity.until(Moment::now()).since(stamp) > TTL - Duration::from_millis(210));
        }
        // Beside the keep-alive, whose stream is counted when it ends: one read of the keys.
        assert_eq!(
            requests_since(&server, &before).await,
            counts(&[("Txn", 1)])
        );
        // What the store does not have is lost, and only that.
        let gone = LeaseRef::new(
            Arc::new(fair("gone")),
            leases[0].place.clone(),
            Some(FencingToken::new(1)),
        );
        let stale = LeaseRef::new(
            Arc::new((*leases[1].claim).clone()),
            leases[1].place.clone(),
            Some(FencingToken::new(256)),
        );
        let answers = renewals(&etcd, &[gone, stale, leases[0].clone()]).await;
        assert!(matches!(
            answers[..],
            [
                Renewal::Lost(Loss::Gone),
                Renewal::Lost(Loss::Gone),
                Renewal::Renewed(_)
            ]
        ));
    })
    .await;
}

/// A session with places is renewed by the claims that have them: a new claim goes on with an idle
/// one, and keeps nothing else alive.
#[tokio::test]
async fn what_is_abandoned_ends_although_others_come() {
    within(60, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let ttl = Duration::from_secs(10);
        let (first, abandoned) = (
            claim("a", WaitPolicy::Fair, ttl),
            claim("a", WaitPolicy::Fair, ttl),
        );
        granted(etcd.claim(&first).await);
        release(&etcd, &first).await;
        for (next, expected) in [
            (&abandoned, &[("Txn", 2)][..]),
            (
                &claim("b", WaitPolicy::Fair, ttl),
                &[("LeaseGrant", 1), ("Txn", 1)],
            ),
        ] {
            tokio::time::sleep(ttl * 6 / 10).await;
            let before = requests(&server).await;
            granted(etcd.claim(next).await);
            assert_eq!(requests_since(&server, &before).await, counts(expected));
        }
        assert_eq!(server.lease_count().await.unwrap(), 2);
        becomes_granted(&rival, &fair("a")).await;
    })
    .await;
}

/// Core renews a place when nearly half of a TTL has passed since its claim: the session may not be
/// half over when that begins.
#[tokio::test]
async fn a_place_in_a_session_that_is_half_over_has_a_lease_of_its_own_length() {
    within(60, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let ttl = Duration::from_secs(10);
        let first = claim("a", WaitPolicy::Fair, ttl);
        granted(etcd.claim(&first).await);
        release(&etcd, &first).await;
        granted(rival.claim(&fair("b")).await);
        tokio::time::sleep(ttl * 2 / 5).await;
        let waiter = claim("b", WaitPolicy::Fair, ttl);
        let place = waiting(etcd.claim(&waiter).await).place;
        let raw = raw(&server).await;
        let key = raw
            .kv_client()
            .get(place.as_str(), None)
            .await
            .unwrap()
            .kvs()[0]
            .clone();
        // What is left of it falls until it ends, unless it is renewed.
        loop {
            let lease = raw
                .lease_client()
                .time_to_live(key.lease(), None)
                .await
                .unwrap();
            assert!(lease.ttl() > 0, "the session ended before it was renewed");
            if lease.ttl() >= 8 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn claiming_again_keeps_the_token_and_stores_the_label() {
    within(30, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let first = fair("a");
        let grant = granted(etcd.claim(&first).await);
        assert_eq!(grant.turns, 256);
        assert_eq!(grant.token.get() % 256, 0);
        let again = granted(etcd.claim(&first.clone().with_label("löwe")).await);
        assert_eq!((again.token, again.place), (grant.token, grant.place));
        assert_eq!(
            again.validity.until(Moment::now()),
            grant.validity.until(Moment::now()),
            "a claim extends nothing"
        );
        let queue = rival.inspect(&"a".into()).await.unwrap();
        assert_eq!(queue.holders[0].label.as_deref(), Some("löwe"));
        let waiter = fair("a");
        let stood = waiting(rival.claim(&waiter).await);
        assert_eq!(
            (stood.who.label.as_deref(), stood.who.token),
            (Some("löwe"), Some(grant.token))
        );
        assert_eq!(waiting(rival.claim(&waiter).await).place, stood.place);
        assert_eq!(keys(&server, "test/a/").await.len(), 2);
        // A release frees no other claim, however often it comes.
        release(&etcd, &fair("a")).await;
        release(&rival, &first).await;
        assert_eq!(granted(etcd.claim(&first).await).token, grant.token);
        release(&etcd, &first).await;
        release(&etcd, &first).await;
        let next = becomes_granted(&rival, &waiter).await;
        assert!(next.token.get() >= grant.token.get() + 256);
        release(&rival, &waiter).await;
        assert!(keys(&server, "").await.is_empty());
    })
    .await;
}

/// Holds the put of a claim up in the network until after its withdrawal, if it is withdrawn. Says
/// whether a key is there in the end, and whether the session can go on.
async fn late_claim(server: &testbed::Etcd, policy: WaitPolicy, withdrawn: bool) -> bool {
    let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
    let etcd = Etcd::connect(&format!("etcd://{}/test?timeout=150", proxy.addr()))
        .await
        .unwrap();
    let warm = fair("warm");
    becomes_granted(&etcd, &warm).await;
    let trap = proxy.hold_matching("test/late/");
    let late = claim("late", policy, TTL);
    // Two silences, and the client takes the connection for dead. On a busy machine it may have
    // been late before, and the request with it.
    for claims in 1.. {
        match etcd.claim(&late).await {
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
            // It was taken for dead before.
            Ok(answer) => assert!(
                matches!(answer, Claimed::Granted(_)) && trap.has_sprung(),
                "{answer:?}"
            ),
        }
        if claims >= 2 && trap.has_sprung() {
            break;
        }
    }
    // The limit is so short that a busy machine may miss it.
    while withdrawn && etcd.release(&late, None).await.is_err() {}
    proxy.deliver_held();
    trap.done().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let landed = !keys(server, "test/late/").await.is_empty();
    if withdrawn {
        let next = fair("late");
        becomes_granted(&etcd, &next).await;
        while etcd.release(&next, None).await.is_err() {}
    }
    while etcd.close().await.is_err() {}
    landed
}

/// Case 36: a put that is held up in the network and arrives after the withdrawal of its claim.
#[tokio::test]
async fn a_late_claim_leaves_nothing() {
    within(60, async {
        let server = server().await;
        // The control: without a withdrawal it lands (if the server does not hear first that its
        // sender has left).
        let mut landed = false;
        for _ in 0..20 {
            landed |= late_claim(&server, WaitPolicy::Fair, false).await;
            if landed {
                break;
            }
        }
        assert!(landed, "the control shows nothing");
        for round in 0..12 {
            let policy = if round % 2 == 0 {
                WaitPolicy::Fair
            } else {
                WaitPolicy::Try
            };
            assert!(!late_claim(&server, policy, true).await, "{policy:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_is_dropped_anywhere_leaves_nothing_after_its_release() {
    within(60, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let holder = fair("held");
        granted(rival.claim(&holder).await);
        for (name, policy) in [
            ("a", WaitPolicy::Fair),
            ("a", WaitPolicy::Try),
            ("held", WaitPolicy::Fair),
            ("held", WaitPolicy::Try),
        ] {
            let mut done = false;
            let mut polls = 0;
            while !done {
                polls += 1;
                let claim = claim(name, policy, TTL);
                {
                    let mut future = etcd.claim(&claim);
                    for _ in 0..polls {
                        done = futures_util::poll!(&mut future).is_ready();
                        if done {
                            break;
                        }
                        tokio::time::sleep(Duration::from_micros(300)).await;
                    }
                }
                release(&etcd, &claim).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                let left = keys(&server, &format!("test/{name}/")).await.len();
                assert_eq!(
                    left,
                    usize::from(name == "held"),
                    "{name} {policy:?} after {polls} polls"
                );
            }
            assert!(polls > 1);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(keys(&server, "test/a/").await.is_empty());
        assert_eq!(keys(&server, "test/held/").await.len(), 1);
        release(&rival, &holder).await;
        assert!(keys(&server, "").await.is_empty());
        etcd.close().await.unwrap();
        rival.close().await.unwrap();
        assert_eq!(
            (
                server.key_count().await.unwrap(),
                server.lease_count().await.unwrap()
            ),
            (0, 0)
        );
    })
    .await;
}

/// A claim in doubt that is released twice at once, while another takes its slot: the second
/// release does no harm. Its session lets no claim in from then on, but what was held in it is
/// held.
#[tokio::test]
async fn a_doubtful_claim_released_twice_frees_no_other() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let held = Arc::new(fair("held"));
        let hold = granted(etcd.claim(&held).await);
        for round in 0..100 {
            let doubtful = fair("a");
            {
                let mut future = etcd.claim(&doubtful);
                assert!(futures_util::poll!(&mut future).is_pending());
            }
            let next = fair("a");
            let late = async {
                tokio::time::sleep(Duration::from_micros(round * 20)).await;
                etcd.release(&doubtful, None).await.unwrap();
            };
            let (token, ()) = tokio::join!(
                async {
                    etcd.release(&doubtful, None).await.unwrap();
                    becomes_granted(&etcd, &next).await.token
                },
                late
            );
            assert_eq!(
                granted(etcd.claim(&next).await).token,
                token,
                "round {round}"
            );
            release(&etcd, &next).await;
        }
        assert_eq!(keys(&server, "test/").await, [hold.place.as_str()]);
        assert_eq!(granted(etcd.claim(&held).await).token, hold.token);
        let answers = renewals(&etcd, &[LeaseRef::new(held, hold.place, Some(hold.token))]).await;
        assert!(matches!(answers[..], [Renewal::Renewed(_)]), "{answers:?}");
        etcd.close().await.unwrap();
        assert_eq!(
            server.lease_count().await.unwrap(),
            0,
            "all its sessions are closed with a client"
        );
    })
    .await;
}

#[tokio::test]
async fn a_waiter_in_a_long_queue_that_came_before_its_watch_is_notified() {
    within(90, async {
        let server = server().await;
        let (others, etcd) = (client(server.addr()).await, client(server.addr()).await);
        let mut before = Vec::new();
        for _ in 0..520 {
            let claim = fair("a");
            let _ = others.claim(&claim).await.unwrap();
            before.push(claim);
        }
        let last = Store::new(etcd).ttl(Duration::from_secs(60));
        let waiter = tokio::spawn(last.lock("a").acquire());
        let operator = client(server.addr()).await;
        while operator.inspect(&"a".into()).await.unwrap().waiters.len() < 520 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // From the head, and from the middle.
        for claim in before.iter().take(300).chain(before.iter().skip(300).rev()) {
            assert!(!waiter.is_finished());
            release(&others, claim).await;
        }
        drop(within(15, waiter).await.unwrap().unwrap());
    })
    .await;
}
