//! Claim, renew, release, one clause after another, against a private server.

use std::time::Duration;

use crate::support::*;
use leasehold_core::Loss;
use leasehold_core::backend::{Backend, Renewal, WaitPolicy};

#[tokio::test]
async fn an_uncontended_cycle_is_two_requests_and_leaves_one_key_for_all_names() {
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
        assert_eq!(
            (
                count.requests().await,
                count.of("evalsha").await,
                count.of("publish").await
            ),
            (100, 100, 0)
        );
        assert_eq!(traces(&server).await, [""; 0]);
        let mut keys = server.keys("*").await.unwrap();
        keys.sort();
        assert_eq!(keys, ["{}:f", "{}:store"]);
        let left = number(&server, &["PTTL", "{}:f"]).await;
        assert!((1..=7_201_000).contains(&left), "{left}");
    })
    .await;
}

#[tokio::test]
async fn an_uncontended_cycle_is_seven_calls_and_a_hand_over_seventeen_at_most() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let first = fair("first");
        granted(&store, &first).await;
        store.release(&first, None).await.unwrap();
        let count = Count::from_here(&server).await;
        for n in 0..3 {
            let claim = fair(&format!("job/{n}"));
            granted(&store, &claim).await;
            store.release(&claim, None).await.unwrap();
        }
        assert_eq!(count.inner().await, 21);
        for waiting_there in [1, 2, 64] {
            let name = format!("busy/{waiting_there}");
            let mut queue = vec![fair(&name)];
            granted(&store, &queue[0]).await;
            for _ in 0..waiting_there {
                queue.push(fair(&name));
                waiting(&store, &queue[queue.len() - 1]).await;
            }
            for _ in 0..10 {
                let count = Count::from_here(&server).await;
                store.release(&queue.remove(0), None).await.unwrap();
                queue.push(fair(&name));
                waiting(&store, &queue[waiting_there]).await;
                let calls = count.inner().await;
                assert!(calls <= 17, "{waiting_there} waiters: {calls} calls");
                assert_eq!(held_by(&server, &name).await, queue[0].id.to_string());
            }
        }
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
        assert_eq!(
            text(&server, &["TYPE", "orders/42"]).await.unwrap(),
            "string"
        );
        assert!((9_000..=10_000).contains(&number(&server, &["PTTL", "orders/42"]).await));
        assert_eq!(
            text(&server, &["SET", "orders/42", "other", "NX", "PX", "1000"]).await,
            None
        );
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
            assert_eq!(
                (count.requests().await, count.of("publish").await),
                (1, 1),
                "{waiters} waiters"
            );
            // The next one holds already: the notification told it, and the store agrees.
            assert_eq!(held_by(&server, "busy").await, all[1].id.to_string());
        }
    })
    .await;
}

#[tokio::test]
async fn a_handed_over_lock_ends_with_the_lease_of_its_place() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let [holder, next] = [
            fair("x"),
            claim("x", WaitPolicy::Fair, Duration::from_millis(4000), ""),
        ];
        granted(&store, &holder).await;
        waiting(&store, &next).await;
        sleep(1500).await;
        store.release(&holder, None).await.unwrap();
        let left = number(&server, &["PTTL", "x"]).await;
        assert!((1..=2500).contains(&left), "{left}");
        let Renewal::Granted(grant) = renewed(&store, &next, None).await else {
            panic!("not granted")
        };
        assert!(number(&server, &["PTTL", "x"]).await > left);
        assert!(matches!(
            renewed(&store, &next, Some(grant.token)).await,
            Renewal::Renewed(_)
        ));
    })
    .await;
}

#[tokio::test]
async fn a_dead_holder_is_succeeded_by_the_head_whoever_notices() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for notice in [
            "try",
            "claim behind",
            "renewal behind",
            "own renewal",
            "release of a stranger",
        ] {
            let name = format!("dead/{notice}");
            let holder = claim(&name, WaitPolicy::Fair, Duration::from_millis(800), "");
            let [head, behind] = [fair(&name), fair(&name)];
            let old = granted(&store, &holder).await.token;
            let after = waiting(&store, &head).await.retry_after.unwrap();
            assert!(after <= Duration::from_millis(801), "{after:?}");
            waiting(&store, &behind).await;
            sleep(850).await;
            match notice {
                "try" => drop(busy(&store, &claim(&name, WaitPolicy::Try, TTL, "")).await),
                "claim behind" => drop(waiting(&store, &behind).await),
                "renewal behind" => assert!(matches!(
                    renewed(&store, &behind, None).await,
                    Renewal::Renewed(_)
                )),
                "own renewal" => assert!(matches!(
                    renewed(&store, &head, None).await,
                    Renewal::Granted(_)
                )),
                _ => store.release(&fair(&name), None).await.unwrap(),
            }
            assert_eq!(
                held_by(&server, &name).await,
                head.id.to_string(),
                "{notice}"
            );
            assert!(granted(&store, &head).await.token > old);
            // What has run out stays lost, and cannot come back over another's hold.
            assert!(matches!(
                renewed(&store, &holder, Some(old)).await,
                Renewal::Lost(Loss::Gone)
            ));
        }
    })
    .await;
}

#[tokio::test]
async fn renewals_of_many_names_know_each_fate() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let (held, gone) = (fair("held"), fair("gone"));
        let (token, lost) = (
            granted(&store, &held).await.token,
            granted(&store, &gone).await.token,
        );
        let queued = fair("held");
        waiting(&store, &queued).await;
        server.command(&["DEL", "gone"]).await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        let all = [
            lease(&held, Some(token)),
            lease(&gone, Some(lost)),
            lease(&queued, None),
        ];
        for cold in [true, false] {
            let count = Count::from_here(&server).await;
            let answers = store.renew(&all).await.unwrap();
            assert!(
                matches!(
                    answers[..],
                    [
                        Renewal::Renewed(_),
                        Renewal::Lost(Loss::Gone),
                        Renewal::Renewed(_)
                    ]
                ),
                "{answers:?}"
            );
            // One for holds and one for places, and then one for the hold that is gone.
            assert_eq!(
                (count.of("eval").await, count.requests().await),
                if cold { (2, 5) } else { (0, 3) }
            );
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
            let token = if n % 3 == 0 {
                1.to_string().parse().unwrap()
            } else {
                granted(&store, &claim).await.token
            };
            leases.push(lease(&claim, Some(token)));
        }
        let answers = store.renew(&leases).await.unwrap();
        assert_eq!(answers.len(), 2500);
        for (n, answer) in answers.iter().enumerate() {
            assert_eq!(
                matches!(answer, Renewal::Lost(Loss::Gone)),
                n % 3 == 0,
                "{n}: {answer:?}"
            );
        }
    })
    .await;
}
