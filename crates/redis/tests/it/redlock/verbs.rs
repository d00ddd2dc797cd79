//! The verbs on nodes that are well: majorities, modes, refusals, the plain layout, and what others see.

use std::sync::Arc;
use std::time::Duration;

use crate::redlock::common::*;
use leasehold_core::backend::{Backend, Claimed, LeaseRef, Mode, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Fairness, Loss, Store};
use leasehold_redis::redlock::Redlock;
use leasehold_testbed::Redis;

#[tokio::test]
async fn what_a_majority_cannot_do_is_refused_with_the_reason() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = Store::new(client(&nodes).await);
        assert_eq!(store.guarantees().fairness(), Fairness::None);
        let refused = store.lock("x").fair().try_acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("no order"), "{refused}");
        // Without a word it is fast.
        store
            .lock("x")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let backend = client(&nodes).await;
        let fair = claim("x", Mode::Exclusive, WaitPolicy::Fair, TTL);
        assert_eq!(kind(backend.claim(&fair).await), ErrorKind::Unsupported);
        let permits = backend
            .claim(&claim(
                "x",
                Mode::Permits { n: 1, of: 2 },
                WaitPolicy::Fast,
                TTL,
            ))
            .await
            .unwrap_err();
        assert_eq!(permits.kind(), ErrorKind::Unsupported);
        assert!(permits.to_string().contains("count permits"), "{permits}");
        until_clean(&nodes.iter().collect::<Vec<_>>()).await;
    })
    .await;
}

#[tokio::test]
async fn one_server_has_one_vote() {
    bounded(async {
        let nodes = nodes(2).await;
        let twice = format!(
            "redlock://127.0.0.1:{0},localhost:{0},127.0.0.1:{1}",
            nodes[0].port(),
            nodes[1].port()
        );
        let error = Redlock::connect(&twice).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("the same server"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_minority_grants_nothing_and_keeps_nothing() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        // Another Redlock client has two of three.
        for node in &nodes[..2] {
            node.command(&["SET", "x", "other", "NX", "PX", "60000"])
                .await
                .unwrap();
        }
        let waits = fast("x");
        let Claimed::Waiting(waiting) = store.claim(&waits).await.unwrap() else {
            panic!("granted by a minority")
        };
        assert!(waiting.who.foreign && waiting.retry_after.is_some_and(|after| after <= TTL / 3));
        // Given back before the answer: the third node is free, for others as well.
        assert_eq!(value(&nodes[2], "x").await, None);
        assert!(matches!(
            store.claim(&attempt("x")).await.unwrap(),
            Claimed::Busy(_)
        ));
        assert_eq!(value(&nodes[2], "x").await, None);
        // A waiter has nothing to lose.
        let place = LeaseRef::new(Arc::new(waits.clone()), waiting.place, None);
        assert!(matches!(
            store.renew(&[place]).await.unwrap()[..],
            [Renewal::Renewed(_)]
        ));
        store.release(&waits, None).await.unwrap();
        assert_eq!(traces(&nodes[2]).await, [""; 0]);
        nodes[0].command(&["DEL", "x"]).await.unwrap();
        granted(&store, &fast("x")).await;
        assert_eq!(value(&nodes[1], "x").await.as_deref(), Some("other"));
    })
    .await;
}

/// The layout of the Redlock family: what `SET name value NX PX ttl` makes, on each node.
#[tokio::test]
async fn other_redlock_clients_exclude_us_and_we_them() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let ours = fast("orders/42");
        granted(&store, &ours).await;
        until_held_on(&nodes, &ours, 3).await;
        for node in &nodes {
            let set = node.command(&["SET", "orders/42", "other", "NX", "PX", "1000"]).await.unwrap();
            assert_eq!(set.text(), None);
            let left = node.command(&["PTTL", "orders/42"]).await.unwrap().integer().unwrap();
            assert!(left > 0 && left <= 10_000, "{left}");
        }
        store.release(&ours, None).await.unwrap();
        for node in &nodes {
            while node.command(&["SET", "orders/42", "other", "NX", "PX", "60000"]).await.unwrap().text().is_none() {
                sleep(5).await;
            }
        }
        assert!(matches!(store.claim(&attempt("orders/42")).await.unwrap(), Claimed::Busy(who) if who.foreign));
    })
    .await;
}

#[tokio::test]
async fn readers_share_and_others_are_excluded() {
    bounded(async {
        let nodes = nodes(3).await;
        let (one, two) = (client(&nodes).await, client(&nodes).await);
        let shared = || claim("x", Mode::Shared, WaitPolicy::Try, TTL);
        let (a, b) = (shared(), shared());
        granted(&one, &a).await;
        let token = granted(&two, &b).await.token;
        assert!(matches!(
            two.claim(&attempt("x")).await.unwrap(),
            Claimed::Busy(_)
        ));
        let set = nodes[0]
            .command(&["SET", "x", "other", "NX", "PX", "1000"])
            .await
            .unwrap();
        assert_eq!(set.text(), None);
        assert_eq!(one.inspect(&"x".into()).await.unwrap().holders.len(), 2);
        one.release(&a, None).await.unwrap();
        assert!(matches!(
            renewed(&two, &b, token).await,
            Renewal::Renewed(_)
        ));
        assert!(two.evict(&"x".into(), token).await.unwrap());
        assert!(matches!(
            renewed(&two, &b, token).await,
            Renewal::Lost(Loss::Gone)
        ));
        granted(&one, &attempt("x")).await;
    })
    .await;
}

/// What a release has left on a minority is no hold any more: an operator who is late is told so, also if it goes.
#[tokio::test]
async fn an_eviction_of_what_was_released_ends_no_hold() {
    bounded(async {
        let nodes = nodes(3).await;
        let ((one, links), two) = (through(&nodes).await, client(&nodes).await);
        let old = fast("x");
        let token = granted(&one, &old).await.token;
        until_held_on(&nodes, &old, 3).await;
        let late = links[2].hold_matching("\r\nrelease\r\n");
        one.release(&old, None).await.unwrap();
        late.sprung().await;
        assert_eq!(held_on(&nodes, &old).await, 1);
        let new = fast("x");
        granted(&two, &new).await;
        assert!(
            !two.evict(&new.name, token).await.unwrap(),
            "it was released"
        );
        assert_eq!(
            (held_on(&nodes, &old).await, held_on(&nodes, &new).await),
            (0, 2)
        );
    })
    .await;
}

#[tokio::test]
async fn only_what_a_majority_says_is_seen() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        nodes[0]
            .command(&["SET", "x", "other", "NX", "PX", "60000"])
            .await
            .unwrap();
        assert_eq!(store.inspect(&"x".into()).await.unwrap().holders.len(), 0);
        let ours = fast("x");
        let token = granted(&store, &ours).await.token;
        let line = store.inspect(&"x".into()).await.unwrap();
        assert_eq!(line.holders.len(), 1);
        assert_eq!(
            (line.holders[0].token, line.holders[0].label.as_deref()),
            (Some(token), Some("label of mine"))
        );
        assert!(!format!("{line:?} {store:?}").contains(&ours.id.to_string()));
        // Names in pages, each from a majority.
        for i in 0..25 {
            granted(&store, &fast(&format!("list/{i:02}"))).await;
            // What only one node has is on no list.
            let stray = format!("list/stray {i}");
            nodes[i % 3]
                .command(&["SET", &stray, "other", "PX", "60000"])
                .await
                .unwrap();
            nodes[i % 3]
                .command(&["SET", &format!("{{{stray}}}:re"), "1", "PX", "60000"])
                .await
                .unwrap();
        }
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.list("list/", after.as_ref(), 4).await.unwrap();
            let Some(last) = page.last() else { break };
            assert!(page.len() <= 4);
            after = Some(last.clone());
            seen.extend(page.iter().map(|name| name.as_str().to_owned()));
        }
        assert_eq!(
            seen,
            (0..25).map(|i| format!("list/{i:02}")).collect::<Vec<_>>()
        );
        assert!(
            !store
                .evict(&"x".into(), leasehold_core::FencingToken::new(7))
                .await
                .unwrap()
        );
        let turn = leasehold_core::FencingToken::new(token.get() + 63);
        assert!(store.evict(&"x".into(), turn).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn observers_are_rung_by_the_nodes() {
    bounded(async {
        let nodes = nodes(3).await;
        let (one, two) = (
            Store::new(client(&nodes).await),
            Store::new(client(&nodes).await),
        );
        let mut observer = two.election("x").observe().await.unwrap();
        assert_eq!(observer.current(), None);
        let leader = one.election("x").campaign("first").await.unwrap();
        observer.changed().await.unwrap();
        assert_eq!(
            observer.current().map(|leader| leader.value.as_str()),
            Some("first")
        );
        leader.proclaim("second").await.unwrap();
        observer.changed().await.unwrap();
        assert_eq!(
            observer.current().map(|leader| leader.value.as_str()),
            Some("second")
        );
        let told = nodes[0]
            .command(&["PUBSUB", "NUMSUB", "leasehold:name:x"])
            .await
            .unwrap();
        assert!(format!("{told:?}").contains("Integer(1)"), "{told:?}");
        leader.resign().await.unwrap();
        observer.changed().await.unwrap();
        assert_eq!(observer.current(), None);
    })
    .await;
}

/// Many who want it at once split the nodes among them; all get it all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn split_votes_end() {
    bounded(async {
        let nodes = nodes(5).await;
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let lock = Store::new(client(&nodes).await)
                .lock("x")
                .ttl(Duration::from_secs(20));
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        until_clean(&nodes.iter().collect::<Vec<_>>()).await;
    })
    .await;
}

/// A node's tokens are further than all clocks, so that nodes agree however late they get a claim; and no hash of them is full. In each quarter of
/// a lease two more calls note when the last lease ends.
#[tokio::test]
async fn an_uncontended_cycle_is_fifteen_calls_on_each_node() {
    const CYCLES: u64 = 20;
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        let store = client(&nodes).await;
        for node in &nodes {
            has_given(node, "x", 7_000_000_000_000_000).await;
            node.command(&["HSET", "{}:rt", "", "8000000000000000 0 0"])
                .await
                .unwrap();
        }
        let mut counted = 0;
        let mut others = Vec::new();
        while counted < CYCLES {
            nodes[0].reset_commandstats().await.unwrap();
            let claim = fast("x");
            let is_granted = matches!(store.claim(&claim).await, Ok(Claimed::Granted(_)));
            let is_released = store.release(&claim, None).await.is_ok();
            let (scripts, inner) = calls(&nodes[0], 2).await;
            if is_granted && is_released && scripts == 2 && matches!(inner, 15 | 17) {
                counted += 1;
            } else {
                others.push((scripts, inner));
                assert!(others.len() < 10, "scripts and calls: {others:?}");
                // A node was away for a moment. What is late of this cycle is not of the next one.
                sleep(300).await;
            }
        }
    })
    .await;
}

/// Nodes that are as far away as those of another data centre get a claim later than the others, and take its proposal all the same.
#[tokio::test]
async fn a_claim_takes_one_round_trip_also_where_nodes_get_it_later() {
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        let (store, links) = through(&nodes).await;
        links[1..]
            .iter()
            .for_each(|link| link.delay(Duration::from_millis(20)));
        for n in 0.. {
            let (claim, written_back) = (
                fast(&format!("x/{n}")),
                links[0].hold_matching("\r\nrenew\r\n"),
            );
            granted(&store, &claim).await;
            if !written_back.has_sprung() {
                break;
            }
            assert!(n < 20, "each token is written back");
            links[0].disarm();
        }
    })
    .await;
}

/// A lock is reserved for the waiter that was notified. That one comes when this is over: what was noted of it goes, too.
#[tokio::test]
async fn a_waiter_that_comes_late_leaves_nothing() {
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        let (store, other) = (client(&nodes).await, client(&nodes).await);
        let (holder, waiter) = (
            fast("x"),
            claim("x", Mode::Exclusive, WaitPolicy::Fast, 10 * TTL),
        );
        granted(&store, &holder).await;
        until_held_on(&nodes, &holder, 3).await;
        assert!(matches!(
            other.claim(&waiter).await.unwrap(),
            Claimed::Waiting(_)
        ));
        given_back(&store, &holder).await;
        for node in &nodes {
            while node
                .command(&["HGET", "{x}:rw", "next"])
                .await
                .unwrap()
                .text()
                .is_none()
            {
                sleep(10).await;
            }
        }
        // Longer than the lock is reserved.
        sleep(80).await;
        granted(&other, &waiter).await;
        given_back(&other, &waiter).await;
        within(5, until_clean(&nodes.iter().collect::<Vec<_>>())).await;
    })
    .await;
}
