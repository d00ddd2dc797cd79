//! Claim, renew, release, one clause after another, against a private server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::time::Duration;

use leasehold_core::Loss;
use leasehold_core::seam::{Backend, Renewal, WaitPolicy};
use support::*;

#[tokio::test]
async fn an_uncontended_cycle_is_two_requests_and_leaves_one_key_that_expires() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let warm = fair("warm");
        granted(&store, &warm).await;
        store.release(&warm, None).await.unwrap();
        let count = Count::from_here(&server).await;
        for n in 0..50 {
            let claim = fair(&format!("job/{n}"));
            assert_eq!(granted(&store, &claim).await.turns, 1);
            store.release(&claim, None).await.unwrap();
        }
        assert_eq!((count.requests().await, count.of("evalsha").await, count.of("publish").await), (100, 100, 100));
        assert_eq!(traces(&server).await, [""; 0]);
        for key in server.keys("*").await.unwrap() {
            let left = number(&server, &["PTTL", &key]).await;
            assert!((1..=7_201_000).contains(&left), "{key}: {left}");
        }
        assert_eq!(server.dbsize().await.unwrap(), 51);
    })
    .await;
}

#[tokio::test]
async fn the_lock_is_a_plain_string_with_the_lease_as_its_ttl() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let claim = fair("orders/42");
        granted(&store, &claim).await;
        assert_eq!(held_by(&server, "orders/42").await, claim.id.to_string());
        assert_eq!(text(&server, &["TYPE", "orders/42"]).await.unwrap(), "string");
        assert!((9_000..=10_000).contains(&number(&server, &["PTTL", "orders/42"]).await));
        assert_eq!(text(&server, &["SET", "orders/42", "other", "NX", "PX", "1000"]).await, None);
    })
    .await;
}

#[tokio::test]
async fn a_hand_over_is_two_requests_and_one_publish_whatever_the_number_of_waiters() {
    bounded(async {
        for waiters in [1, 40] {
            let server = server().await;
            let store = client(&server).await;
            store.release(&fair("warm"), None).await.unwrap();
            let all: Vec<_> = (0..=waiters).map(|_| fair("busy")).collect();
            granted(&store, &all[0]).await;
            for (n, claim) in all[1..].iter().enumerate() {
                assert_eq!(waiting(&store, claim).await.who.waiters, Some(n));
            }
            let count = Count::from_here(&server).await;
            store.release(&all[0], None).await.unwrap();
            assert_eq!((count.requests().await, count.of("publish").await), (1, 2), "{waiters} waiters");
            // The next one holds already: the ring told it, and the store agrees.
            assert_eq!(held_by(&server, "busy").await, all[1].id.to_string());
        }
    })
    .await;
}

#[tokio::test]
async fn claiming_again_is_the_same_grant_counted_from_the_new_request() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let claim = claim("a", WaitPolicy::Fair, Duration::from_millis(600), "one");
        let before = now();
        let first = granted(&store, &claim).await;
        assert!(since(&first) >= before && since(&first) <= now());
        sleep(400).await;
        let between = now();
        let again = granted(&store, &claim.clone().with_label("two")).await;
        assert_eq!(again.token, first.token);
        assert!(since(&again) >= between && again.validity.ttl() == claim.ttl);
        // The repeat did extend, and did proclaim.
        sleep(400).await;
        assert_eq!(held_by(&server, "a").await, claim.id.to_string());
        let holder = store.inspect(&"a".into()).await.unwrap().holders.remove(0);
        assert_eq!((holder.label.as_deref(), holder.token), (Some("two"), Some(first.token)));
    })
    .await;
}

#[tokio::test]
async fn a_try_says_who_holds_and_leaves_nothing() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let holder = claim("a", WaitPolicy::Fair, TTL, "web 1");
        let token = granted(&store, &holder).await.token;
        waiting(&store, &fair("a")).await;
        sleep(20).await;
        let before = server.keys("*").await.unwrap();
        let who = busy(&store, &claim("a", WaitPolicy::Try, TTL, "me")).await;
        assert_eq!((who.label.as_deref(), who.token, who.waiters), (Some("web 1"), Some(token), Some(1)));
        assert!(who.held_for.unwrap() >= Duration::from_millis(20) && !who.foreign);
        assert_eq!(server.keys("*").await.unwrap(), before);
        assert_eq!(number(&server, &["ZCARD", "{a}:q"]).await, 1);
    })
    .await;
}

#[tokio::test]
async fn two_claims_of_one_client_exclude_each_other_and_are_served_in_order() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let [a, b, c] = [fair("x"), fair("x"), claim("x", WaitPolicy::Fast, TTL, "fast")];
        let first = granted(&store, &a).await;
        waiting(&store, &b).await;
        waiting(&store, &c).await;
        // Asking again keeps the place.
        waiting(&store, &b).await;
        store.release(&a, None).await.unwrap();
        let second = granted(&store, &b).await;
        assert_eq!(waiting(&store, &c).await.who.waiters, Some(0));
        store.release(&b, None).await.unwrap();
        let third = granted(&store, &c).await;
        assert!(first.token < second.token && second.token < third.token);
        assert_eq!((second.turns, third.turns), (1, 64));
        store.release(&c, None).await.unwrap();
        // The whole block was taken.
        assert!(granted(&store, &fair("x")).await.token.get() >= third.token.get() + 64);
    })
    .await;
}

#[tokio::test]
async fn a_release_is_idempotent_and_frees_nobody_else() {
    bounded(async {
        let server = server().await;
        let (one, two) = (client(&server).await, client(&server).await);
        let [a, b] = [fair("x"), fair("x")];
        granted(&one, &a).await;
        one.release(&a, None).await.unwrap();
        let token = granted(&two, &b).await.token;
        one.release(&a, None).await.unwrap();
        two.release(&a, None).await.unwrap();
        assert_eq!(granted(&two, &b).await.token, token);
        // A waiter that leaves is no more in line.
        waiting(&one, &a).await;
        one.release(&a, None).await.unwrap();
        assert_eq!(traces(&server).await, ["x"]);
        two.release(&b, None).await.unwrap();
        assert_eq!(traces(&server).await, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn dead_waiters_are_skipped_wherever_they_stand() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let short = |label| claim("x", WaitPolicy::Fair, Duration::from_millis(150), label);
        let [holder, dead_head, dead_middle] = [fair("x"), short("head"), short("middle")];
        let [live, last] = [fair("x"), fair("x")];
        granted(&store, &holder).await;
        for claim in [&dead_head, &live, &dead_middle, &last] {
            waiting(&store, claim).await;
        }
        sleep(200).await;
        store.release(&holder, None).await.unwrap();
        assert_eq!(held_by(&server, "x").await, live.id.to_string());
        // A place whose lease ran out is gone, and claiming again takes a new one, behind.
        assert!(matches!(renewed(&store, &dead_head, None).await, Renewal::Lost(Loss::Gone)));
        assert_eq!(waiting(&store, &dead_middle).await.who.waiters, Some(1));
        store.release(&live, None).await.unwrap();
        assert_eq!(held_by(&server, "x").await, last.id.to_string());
    })
    .await;
}

#[tokio::test]
async fn a_handed_over_lock_ends_with_the_lease_of_its_place() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let [holder, next] = [fair("x"), claim("x", WaitPolicy::Fair, Duration::from_millis(1000), "")];
        granted(&store, &holder).await;
        waiting(&store, &next).await;
        sleep(500).await;
        store.release(&holder, None).await.unwrap();
        let left = number(&server, &["PTTL", "x"]).await;
        assert!((1..=500).contains(&left), "{left}");
        let Renewal::Granted(grant) = renewed(&store, &next, None).await else { panic!("not granted") };
        assert!(number(&server, &["PTTL", "x"]).await > 500);
        assert!(matches!(renewed(&store, &next, Some(grant.token)).await, Renewal::Renewed(_)));
    })
    .await;
}

#[tokio::test]
async fn a_dead_holder_is_succeeded_by_the_head_whoever_notices() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for notice in ["try", "claim behind", "renewal behind", "own renewal", "release of a stranger"] {
            let name = format!("dead/{notice}");
            let holder = claim(&name, WaitPolicy::Fair, Duration::from_millis(150), "");
            let [head, behind] = [fair(&name), fair(&name)];
            let old = granted(&store, &holder).await.token;
            let nap = waiting(&store, &head).await.retry_after.unwrap();
            assert!(nap <= Duration::from_millis(151), "{nap:?}");
            waiting(&store, &behind).await;
            sleep(200).await;
            match notice {
                "try" => drop(busy(&store, &claim(&name, WaitPolicy::Try, TTL, "")).await),
                "claim behind" => drop(waiting(&store, &behind).await),
                "renewal behind" => assert!(matches!(renewed(&store, &behind, None).await, Renewal::Renewed(_))),
                "own renewal" => assert!(matches!(renewed(&store, &head, None).await, Renewal::Granted(_))),
                _ => store.release(&fair(&name), None).await.unwrap(),
            }
            assert_eq!(held_by(&server, &name).await, head.id.to_string(), "{notice}");
            assert!(granted(&store, &head).await.token > old);
            // What has run out stays lost, and cannot come back over another's hold.
            assert!(matches!(renewed(&store, &holder, Some(old)).await, Renewal::Lost(Loss::Gone)));
        }
    })
    .await;
}

#[tokio::test]
async fn renewals_of_many_names_are_one_flight_and_know_each_fate() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let (held, gone) = (fair("held"), fair("gone"));
        let (token, lost) = (granted(&store, &held).await.token, granted(&store, &gone).await.token);
        let queued = fair("held");
        waiting(&store, &queued).await;
        server.command(&["DEL", "gone"]).await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        let all = [lease(&held, Some(token)), lease(&gone, Some(lost)), lease(&queued, None)];
        for cold in [true, false] {
            let count = Count::from_here(&server).await;
            let answers = store.renew(&all).await.unwrap();
            assert!(
                matches!(answers[..], [Renewal::Renewed(_), Renewal::Lost(Loss::Gone), Renewal::Renewed(_)]),
                "{answers:?}"
            );
            // The script for many, and the one for what it leaves open.
            assert_eq!(count.of("eval").await, if cold { 2 } else { 0 });
        }
        assert!(store.renew(&[]).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn two_thousand_five_hundred_renewals_come_back_in_order() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let mut leases = Vec::new();
        for n in 0..2500 {
            let claim = fair(&format!("many/{n}"));
            // Every third is not there.
            let token = if n % 3 == 0 { 1.to_string().parse().unwrap() } else { granted(&store, &claim).await.token };
            leases.push(lease(&claim, Some(token)));
        }
        let answers = store.renew(&leases).await.unwrap();
        assert_eq!(answers.len(), 2500);
        for (n, answer) in answers.iter().enumerate() {
            assert_eq!(matches!(answer, Renewal::Lost(Loss::Gone)), n % 3 == 0, "{n}: {answer:?}");
        }
    })
    .await;
}
