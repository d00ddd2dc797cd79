//! What may become of a lease on the nodes: a node that was away brings nothing old back, readers cost the same however many they
//! are, a step of a clock lengthens nothing, and a hold that is given back early ends on time without its client.

use std::time::{Duration, Instant};

use crate::redlock::common::*;
use leasehold_core::backend::{Backend, Claim, Claimed, LeaseRef, Mode, Renewal, WaitPolicy};
use leasehold_core::{Loss, Store};
use leasehold_redis::redlock::Redlock;
use leasehold_testbed::Redis;

const SHARED: &str = "leasehold:shared";
const HOUR: u64 = 3_600_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn relabelled(claim: &Claim, mode: Mode, label: &str) -> Claim {
    let mut claim = claim.clone();
    (claim.mode, claim.label) = (mode, label.into());
    claim
}

#[tokio::test]
async fn a_node_that_was_away_brings_no_old_mode_and_no_old_label_back() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, proxies) = through(&nodes).await;
        let other = client(&nodes).await;
        for (n, forgets) in [false, true].into_iter().enumerate() {
            let writer = claim(&format!("x/{n}"), Mode::Exclusive, WaitPolicy::Fast, TTL);
            let token = granted(&store, &writer).await.token;
            until_held_on(&nodes, &writer, 3).await;
            // While a node is away, the writer becomes a reader with another label.
            proxies[2].cut().await;
            if forgets {
                nodes[2].command(&["FLUSHALL"]).await.unwrap();
            }
            let reader = relabelled(&writer, Mode::Shared, "newest");
            assert_eq!(granted(&store, &reader).await.token, token);
            proxies[2].heal().await;
            // The next renewal that reaches it.
            while value(&nodes[2], writer.name.as_str()).await.as_deref() != Some(SHARED) {
                assert!(matches!(
                    renewed(&store, &reader, token).await,
                    Renewal::Renewed(_)
                ));
                sleep(50).await;
            }
            while !entry(&nodes[2], &writer).await.ends_with(" newest") {
                assert!(matches!(
                    renewed(&store, &reader, token).await,
                    Renewal::Renewed(_)
                ));
                sleep(50).await;
            }
            // Late requests of the writer that it was change nothing.
            assert!(matches!(
                renewed(&store, &writer, token).await,
                Renewal::Renewed(_)
            ));
            granted(&store, &writer).await;
            for node in &nodes {
                assert_eq!(
                    value(node, writer.name.as_str()).await.as_deref(),
                    Some(SHARED),
                    "forgets: {forgets}"
                );
            }
            let second = claim(&format!("x/{n}"), Mode::Shared, WaitPolicy::Try, TTL);
            granted(&other, &second).await;
            assert!(matches!(
                renewed(&store, &reader, token).await,
                Renewal::Renewed(_)
            ));
        }
    })
    .await;
}

#[tokio::test]
async fn the_label_that_most_nodes_know_is_shown() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, proxies) = through(&nodes).await;
        let first = fast("x");
        granted(&store, &first).await;
        until_held_on(&nodes, &first, 3).await;
        proxies[0].cut().await;
        granted(&store, &relabelled(&first, Mode::Exclusive, "newest")).await;
        let line = client(&nodes).await.inspect(&first.name).await.unwrap();
        assert_eq!(line.holders[0].label.as_deref(), Some("newest"));
    })
    .await;
}

#[tokio::test]
async fn only_a_downgrade_that_happened_is_carried_by_renewals() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, _proxies) = through(&nodes).await;
        let writer = fast("x");
        let token = granted(&store, &writer).await.token;
        until_held_on(&nodes, &writer, 3).await;
        // Core counts it as shared before it asks, and takes that back where nobody was asked.
        let reader = relabelled(&writer, Mode::Shared, "mine");
        assert!(matches!(
            renewed(&store, &reader, token).await,
            Renewal::Renewed(_)
        ));
        assert_eq!(held_on(&nodes, &writer).await, 3);
    })
    .await;
}

fn readers(n: usize, ttl: Duration) -> Vec<Claim> {
    (0..n)
        .map(|_| claim("x", Mode::Shared, WaitPolicy::Fast, ttl))
        .collect()
}

#[tokio::test]
async fn a_request_costs_the_same_however_many_read() {
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        let store = client(&nodes).await;
        let mut each = Vec::new();
        for crowd in [5, 295] {
            let crowd = readers(crowd, TTL);
            let mut leases: Vec<LeaseRef> = Vec::new();
            for reader in &crowd {
                leases.push(lease(reader, granted(&store, reader).await.token));
            }
            all_renewed(&store, &leases).await;
            for node in &nodes {
                node.reset_commandstats().await.unwrap();
            }
            all_renewed(&store, &leases).await;
            granted(&store, &crowd[0]).await;
            store.release(&crowd[1], None).await.unwrap();
            // A majority's word is enough, and this node's may come later.
            let (scripts, inner) = calls(&nodes[0], crowd.len() as u64 + 2).await;
            assert!(scripts > 2, "the node was away");
            each.push(inner as f64 / scripts as f64);
        }
        assert!(
            each[1] < each[0] + 2.0 && each[1] < 20.0,
            "calls for each request: {each:?}"
        );
    })
    .await;
}

/// Renews until every answer has come: a busy machine answers late.
async fn all_renewed(store: &Redlock, leases: &[LeaseRef]) {
    loop {
        let answers = store.renew(leases).await.unwrap();
        assert!(
            !answers
                .iter()
                .any(|answer| matches!(answer, Renewal::Lost(_))),
            "{answers:?}"
        );
        if answers
            .iter()
            .all(|answer| matches!(answer, Renewal::Renewed(_)))
        {
            return;
        }
    }
}

#[tokio::test]
async fn three_hundred_readers_of_one_client_keep_their_lock() {
    bounded(async {
        let campaign = std::env::var_os("LEASEHOLD_CAMPAIGN").is_some();
        let (ttl, rounds) = if campaign {
            (Duration::from_secs(10), 3)
        } else {
            (Duration::from_secs(4), 1)
        };
        let nodes = Redis::start_many(3).await.unwrap();
        let store = Store::new(client(&nodes).await);
        let lock = store.rw_lock("x").read().ttl(ttl);
        let mut guards = Vec::new();
        for _ in 0..300 {
            guards.push(lock.acquire().await.unwrap());
        }
        tokio::time::sleep(ttl.mul_f64(1.5) * rounds).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "of {} readers", guards.len());
    })
    .await;
}

#[tokio::test]
async fn dead_readers_and_deleted_locks_leave_no_trace() {
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        let store = client(&nodes).await;
        // More dead than one request removes, beside one that lives.
        let dead = readers(250, ms(300));
        for reader in &dead {
            drop(store.claim(reader).await.unwrap());
        }
        let alive = &readers(1, TTL)[0];
        granted(&store, alive).await;
        sleep(400).await;
        for _ in 0..3 {
            granted(&store, alive).await;
        }
        let left = nodes[0]
            .command(&["HLEN", "{x}:rh"])
            .await
            .unwrap()
            .integer();
        assert_eq!(left, Some(1));
        store.release(alive, None).await.unwrap();
        granted(&store, &attempt("x")).await;
    })
    .await;
}

/// As after a step back of an hour on every node, of a hold with a lease of half a second.
async fn step_back(nodes: &[Redis], claim: &Claim) {
    let (lock, id) = (claim.name.as_str(), claim.id.to_string());
    let [hold, shares] = ["rh", "rs"].map(|key| format!("{{{lock}}}:{key}"));
    for node in nodes {
        let entry = entry(node, claim).await;
        let [deadline, _, rest] = entry.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            panic!("{entry:?}")
        };
        let later = (deadline.parse::<u64>().unwrap() + HOUR).to_string();
        node.command(&["HSET", &hold, &id, &format!("{later} 500 {rest}")])
            .await
            .unwrap();
        if claim.mode == Mode::Shared {
            node.command(&["ZADD", &shares, "XX", &later, &id])
                .await
                .unwrap();
        }
        for key in [lock, &hold, &shares] {
            node.command(&["PEXPIRE", key, &HOUR.to_string()])
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn a_clock_that_stepped_back_lengthens_no_lease() {
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        let store = client(&nodes).await;
        for mode in [Mode::Exclusive, Mode::Shared] {
            let name = format!("x/{mode:?}");
            let dead = [0; 2].map(|_| claim(&name, mode, WaitPolicy::Fast, TTL));
            let dead = &dead[..if mode == Mode::Shared { 2 } else { 1 }];
            for claim in dead {
                granted(&store, claim).await;
            }
            for claim in dead {
                // While its lease lasts on every node.
                until_known(&nodes, claim).await;
                step_back(&nodes, claim).await;
            }
            drop(soon(&store, &fast(&name)).await);
        }
    })
    .await;
}

/// Waits until every node has an entry of this hold.
async fn until_known(nodes: &[Redis], claim: &Claim) {
    for node in nodes {
        while entry(node, claim).await.is_empty() {
            sleep(5).await;
        }
    }
}

#[tokio::test]
async fn no_request_but_release_after_shortens_a_lease() {
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        let store = client(&nodes).await;
        for mode in [Mode::Exclusive, Mode::Shared] {
            let long = claim(&format!("x/{mode:?}"), mode, WaitPolicy::Fast, TTL);
            let token = granted(&store, &long).await.token;
            until_known(&nodes, &long).await;
            let mut short = long.clone();
            short.ttl = ms(300);
            assert!(matches!(
                renewed(&store, &short, token).await,
                Renewal::Renewed(_)
            ));
            granted(&store, &short).await;
            for node in &nodes {
                let left = node
                    .command(&["PTTL", long.name.as_str()])
                    .await
                    .unwrap()
                    .integer()
                    .unwrap();
                assert!(left > 5000, "{mode:?}: {left}");
            }
            assert!(matches!(
                renewed(&store, &long, token).await,
                Renewal::Renewed(_)
            ));
        }
    })
    .await;
}

#[tokio::test]
async fn release_after_ends_a_hold_on_time_without_its_client() {
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        for mode in [Mode::Exclusive, Mode::Shared] {
            for (ttl, rest) in [(TTL, ms(700)), (ms(400), ms(1500))] {
                let name = format!("x/{mode:?}/{}", rest.as_millis());
                let (store, other) = (client(&nodes).await, client(&nodes).await);
                let holder = claim(&name, mode, WaitPolicy::Fast, ttl);
                let token = granted(&store, &holder).await.token;
                until_known(&nodes, &holder).await;
                let given_back = clock();
                for _ in 0..2 {
                    store.release_after(&holder, None, rest).await.unwrap();
                }
                assert!(matches!(
                    renewed(&store, &holder, token).await,
                    Renewal::Lost(Loss::Gone)
                ));
                // A late request of it takes nothing.
                assert!(
                    !matches!(store.claim(&holder).await.unwrap(), Claimed::Granted(_)),
                    "{mode:?}"
                );
                drop(store);
                assert!(
                    matches!(
                        other.claim(&attempt(&name)).await.unwrap(),
                        Claimed::Busy(_)
                    ),
                    "{mode:?}"
                );
                drop(soon(&other, &fast(&name)).await);
                let took = given_back.elapsed();
                assert!(
                    took + ms(100) > rest && took < rest + ms(8000),
                    "{mode:?}: {took:?}"
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_another_tool_holds_is_ended_as_it_was_seen() {
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        let store = client(&nodes).await;
        for node in &nodes {
            node.command(&["SET", "x", "somebody else"]).await.unwrap();
        }
        let line = store.inspect(&"x".into()).await.unwrap();
        let seen = line.holders[0].clone();
        assert_eq!(
            (seen.foreign, seen.label.as_deref(), seen.ends_in),
            (true, Some("somebody else"), Some(Duration::MAX))
        );
        assert_eq!(store.list("", None, 9).await.unwrap(), ["x".into()]);
        let zero = leasehold_core::FencingToken::new(0);
        let error = store.evict(&"x".into(), zero).await.unwrap_err();
        assert_eq!(error.kind(), leasehold_core::ErrorKind::Invalid, "{error}");
        // Two of three have another value since.
        for node in &nodes[1..] {
            node.command(&["SET", "x", "another", "PX", "60000"])
                .await
                .unwrap();
        }
        let number = seen.evict_by.unwrap();
        assert!(!store.evict(&"x".into(), number).await.unwrap());
        let line = store.inspect(&"x".into()).await.unwrap();
        let seen = line.holders[0].clone();
        assert_eq!(seen.label.as_deref(), Some("another"));
        assert!(seen.ends_in.unwrap() <= Duration::from_secs(60));
        let number = seen.evict_by.unwrap();
        assert!(store.evict(&"x".into(), number).await.unwrap());
        assert!(!store.evict(&"x".into(), number).await.unwrap());
        let ours = granted(&store, &attempt("x")).await;
        assert!(!store.evict(&"x".into(), zero).await.unwrap());
        assert!(store.evict(&"x".into(), ours.token).await.unwrap());
    })
    .await;
}

#[allow(clippy::disallowed_methods)]
fn clock() -> Instant {
    Instant::now()
}
