//! Bad days: nodes that are killed, stopped, cut off or forgetful; minorities that must not matter, majorities that must
//! be missed in time.

mod flushed;
mod late;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::redlock::common::*;
use leasehold_core::backend::{Backend, Claimed, Renewal};
use leasehold_core::{ErrorKind, Loss, Store};
use leasehold_redis::redlock::Redlock;
use leasehold_testbed::{Proxy, Redis};

#[derive(Clone, Copy, Debug)]
enum Harm {
    Kill,
    Pause,
    Cut,
    BlackHole,
}

const HARMS: [Harm; 4] = [Harm::Kill, Harm::Pause, Harm::Cut, Harm::BlackHole];

async fn harm(how: Harm, nodes: &[Redis], proxies: &[Proxy]) {
    for (node, proxy) in nodes.iter().zip(proxies) {
        match how {
            Harm::Kill => node.kill().await.unwrap(),
            Harm::Pause => node.pause().await.unwrap(),
            Harm::Cut => proxy.cut().await,
            Harm::BlackHole => proxy.hold(),
        }
    }
}

async fn heal(how: Harm, nodes: &[Redis], proxies: &[Proxy]) {
    for (node, proxy) in nodes.iter().zip(proxies) {
        match how {
            Harm::Kill => node.start_again().await.unwrap(),
            Harm::Pause => node.resume().unwrap(),
            Harm::Cut | Harm::BlackHole => proxy.heal().await,
        }
    }
}

#[allow(clippy::disallowed_methods)]
fn clock() -> Instant {
    Instant::now()
}

/// Whether a client has a connection to each of its nodes, by what it says of itself.
fn all_connected(store: &Redlock) -> bool {
    !format!("{store:?}").contains("not connected")
}

/// Two of five fail before the claim, while it is held, or just before the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_do_not_matter() {
    within(240, async {
        let whole = nodes(5).await;
        // As usual: those that are silent are not waited for for long.
        let ((store, proxies), (other, _ways)) =
            (linked(&whole, "").await, linked(&whole, "").await);
        let mut last = 0;
        for how in HARMS {
            for step in 0..3 {
                let at = [0, 2, 3][step];
                let (nodes, proxies) = (&whole[at..at + 2], &proxies[at..at + 2]);
                let (claim, next) = (fast("x"), fast("x"));
                if step == 0 {
                    harm(how, nodes, proxies).await;
                }
                let token = soon(&store, &claim).await.token;
                assert!(token.get() > last, "{how:?} {step}");
                if step == 1 {
                    harm(how, nodes, proxies).await;
                }
                for _ in 0..3 {
                    let renewal = renewed(&store, &claim, token).await;
                    assert!(
                        matches!(renewal, Renewal::Renewed(_)),
                        "{how:?} {step}: {renewal:?}"
                    );
                }
                assert!(
                    !matches!(other.claim(&attempt("x")).await, Ok(Claimed::Granted(_))),
                    "{how:?} {step}"
                );
                if step == 2 {
                    harm(how, nodes, proxies).await;
                }
                given_back(&store, &claim).await;
                last = soon(&store, &next).await.token.get();
                assert!(last > token.get(), "{how:?} {step}");
                given_back(&store, &next).await;
                heal(how, nodes, proxies).await;
                until_whole(&store, &whole).await;
                until_whole(&other, &whole).await;
            }
        }
    })
    .await;
}

/// The address of a node leads to another node of the list, under a running program. That server does
/// not vote twice, so with a third node away nobody is granted anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_leads_to_another_node_has_no_second_vote() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, proxies) = through(&nodes).await;
        let claim = fast("x");
        soon(&store, &claim).await;
        given_back(&store, &claim).await;
        proxies[2].cut().await;
        proxies[1].cut().await;
        proxies[1].lead_to(nodes[0].addr());
        proxies[1].heal().await;
        let began = clock();
        let mut last = String::new();
        while !last.contains("has only one vote") || began.elapsed() < TTL {
            let claim = attempt("y");
            match store.claim(&claim).await {
                Ok(answer) => panic!("{answer:?}"),
                Err(e) => last = e.to_string(),
            }
            let _ = store.release(&claim, None).await;
            sleep(20).await;
        }
        proxies[1].cut().await;
        proxies[1].lead_to(nodes[1].addr());
        proxies[1].heal().await;
        soon(&store, &fast("y")).await;
    })
    .await;
}

/// The same server stands behind two addresses, of which one is silent while the program connects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_was_silent_at_first_has_no_second_vote() {
    bounded(async {
        let nodes = nodes(3).await;
        drop(client(&nodes).await);
        let mut proxies = Vec::new();
        for node in &nodes {
            proxies.push(Proxy::to(node.addr()).await.unwrap());
        }
        proxies[1].lead_to(nodes[0].addr());
        proxies[1].hold();
        let url = format!("{}?timeout=1000", url(proxies.iter().map(Proxy::addr)));
        let store = connected(|| Redlock::connect(&url)).await;
        proxies[2].cut().await;
        proxies[1].heal().await;
        let began = clock();
        let mut last = String::new();
        while !last.contains("has only one vote") || began.elapsed() < TTL {
            let claim = attempt("y");
            match store.claim(&claim).await {
                Ok(answer) => panic!("{answer:?}"),
                Err(e) => last = e.to_string(),
            }
            let _ = store.release(&claim, None).await;
            sleep(20).await;
        }
    })
    .await;
}

/// An operator is not sent after rights that nobody lacks.
#[tokio::test]
async fn a_node_that_does_not_answer_is_said_to_be_silent() {
    bounded(async {
        let nodes = nodes(3).await;
        nodes[2].pause().await.unwrap();
        let url = format!("{}?timeout=1000", url(nodes.iter().map(|node| node.addr())));
        let store = connected(|| Redlock::connect(&url)).await;
        let guarantees = store.guarantees();
        let told = guarantees.warnings();
        assert!(
            told.iter().all(|it| !it.contains("may not ask")),
            "{told:?}"
        );
        let silent = format!(
            "{}: it did not answer when the store connected, so its settings are not known",
            nodes[2].addr()
        );
        assert!(told.contains(&silent), "{told:?}");
        nodes[2].resume().unwrap();
    })
    .await;
}

/// A replica of a node has no vote of its own.
#[tokio::test]
async fn a_replica_of_a_node_is_no_node() {
    bounded(async {
        let nodes = nodes(3).await;
        drop(client(&nodes).await);
        let [host, port] = nodes[0].addr().split(':').collect::<Vec<_>>()[..] else {
            panic!("an address");
        };
        nodes[2].command(&["REPLICAOF", host, port]).await.unwrap();
        until(async || {
            let theirs = nodes[2].command(&["GET", "{}:store"]).await.unwrap().text();
            theirs == nodes[0].command(&["GET", "{}:store"]).await.unwrap().text()
        })
        .await;
        let url = url(nodes.iter().map(|node| node.addr()));
        let error = Redlock::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("a copy of it"), "{error}");
    })
    .await;
}

/// Three clients count while two random nodes after another fail at any moment: holds are exclusive, valid to their end,
/// and their tokens rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_while_two_random_nodes_fail_at_any_moment() {
    bounded(async {
        let nodes = nodes(5).await;
        let (inside, last, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicU64::new(0)),
        );
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        let (mut links, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (store, proxies) = linked(&nodes, "").await;
            let store = Arc::new(store);
            links.push(proxies);
            clients.push(store.clone());
            let lock = Store::new(store).lock("x").ttl(Duration::from_secs(3));
            let (inside, last, done, stop) =
                (inside.clone(), last.clone(), done.clone(), stop.clone());
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = match lock.acquire().await {
                        Ok(guard) => guard,
                        Err(e) if e.is_retryable() => continue,
                        Err(e) => panic!("{e:?}"),
                    };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    let token = guard.fencing_token().get();
                    assert!(last.swap(token, Ordering::SeqCst) < token);
                    sleep(5).await;
                    assert!(guard.is_valid(), "{:?}", guard.check());
                    inside.store(false, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    drop(guard.release().await);
                }
            }));
        }
        for round in 0..12 {
            let how = HARMS[round % HARMS.len()];
            let first = fastrand::usize(..5);
            let pair = [first, (first + fastrand::usize(1..5)) % 5];
            // A server is harmed once, a link once for each client.
            let links_of_it = if matches!(how, Harm::Cut | Harm::BlackHole) {
                &links[..]
            } else {
                &links[..1]
            };
            for (nth, proxies) in pair
                .iter()
                .flat_map(|nth| links_of_it.iter().map(move |proxies| (*nth, proxies)))
            {
                harm(how, &nodes[nth..=nth], &proxies[nth..=nth]).await;
            }
            // Goes on while they are away: several grants.
            let before = done.load(Ordering::SeqCst);
            while done.load(Ordering::SeqCst) < before + 6 {
                assert!(
                    !tasks.iter().any(tokio::task::JoinHandle::is_finished),
                    "a task failed"
                );
                sleep(5).await;
            }
            for (nth, proxies) in pair
                .iter()
                .flat_map(|nth| links_of_it.iter().map(move |proxies| (*nth, proxies)))
            {
                heal(how, &nodes[nth..=nth], &proxies[nth..=nth]).await;
            }
            // All clients have all five again before two others go, or a majority would be missed.
            let goal = done.load(Ordering::SeqCst) + 6;
            while done.load(Ordering::SeqCst) < goal
                || clients.iter().any(|store| !all_connected(store))
            {
                sleep(10).await;
            }
        }
        stop.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
        println!(
            "{} grants while pairs of nodes failed 12 times",
            done.load(Ordering::SeqCst)
        );
    })
    .await;
}

/// Three of five are gone: the caller hears of it within its own limit, and the two that live keep nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_majority_is_an_error_in_time_and_leaves_no_key() {
    bounded(async {
        let nodes = nodes(5).await;
        for how in HARMS {
            let (backend, proxies) = linked(&nodes, "").await;
            let store = Store::new(backend).ttl(Duration::from_secs(4));
            // What is not answered is released in the background.
            drop(store.lock("x").acquire().await.unwrap().release().await);
            until_clean(&nodes.iter().collect::<Vec<_>>()).await;
            let held = store.lock("held").acquire().await.unwrap();
            harm(how, &nodes[..3], &proxies[..3]).await;
            for _ in 0..3 {
                let (start, limit) = (clock(), Duration::from_millis(700));
                let error = store.lock("x").acquire_timeout(limit).await.unwrap_err();
                assert!(
                    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous),
                    "{how:?}: {error:?}"
                );
                // On a busy machine too, long before a lease of failures is over.
                assert!(
                    start.elapsed() < limit + Duration::from_secs(2),
                    "{how:?}: {:?}",
                    start.elapsed()
                );
                let start = clock();
                let error = store.lock("y").try_acquire().await.unwrap_err();
                assert!(
                    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous),
                    "{how:?}: {error:?}"
                );
                assert!(
                    start.elapsed() < Duration::from_secs(5),
                    "{how:?}: {:?}",
                    start.elapsed()
                );
            }
            // Sooner than a lease could have ended it.
            let clean = async {
                for node in &nodes[3..] {
                    while traces(node).await.iter().any(|key| !key.contains("held")) {
                        sleep(10).await;
                    }
                }
            };
            let cleaned = tokio::time::timeout(Duration::from_secs(3), clean).await;
            let mut left = Vec::new();
            for node in &nodes[3..] {
                left.extend(traces(node).await);
            }
            assert!(
                cleaned.is_ok(),
                "{how:?}: keys stay on live nodes: {left:?}"
            );
            // And what was held is lost on time.
            assert_eq!(held.lost().await, Loss::Expired);
            drop(held);
            heal(how, &nodes[..3], &proxies[..3]).await;
            let fresh = client(&nodes).await;
            let claim = fast("x");
            soon(&fresh, &claim).await;
            given_back(&fresh, &claim).await;
            until_clean(&nodes.iter().collect::<Vec<_>>()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_node_that_forgot_is_topped_up_while_a_majority_remembers() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let claim = fast("x");
        let token = granted(&store, &claim).await.token;
        until_held_on(&nodes, &claim, 3).await;
        for node in &nodes {
            node.command(&["FLUSHALL"]).await.unwrap();
            assert!(matches!(
                renewed(&store, &claim, token).await,
                Renewal::Renewed(_)
            ));
            until_held_on(&nodes, &claim, 3).await;
            assert!(
                bound(node).await >= token.get() + 63,
                "the token comes with the key"
            );
        }
        // No majority remembers: lost, and nothing is put back.
        for node in &nodes[..2] {
            node.command(&["FLUSHALL"]).await.unwrap();
        }
        assert!(matches!(
            renewed(&store, &claim, token).await,
            Renewal::Lost(Loss::Gone)
        ));
        sleep(100).await;
        assert_eq!(held_on(&nodes, &claim).await, 1);
        store.release(&claim, None).await.unwrap();
        assert_eq!(held_on(&nodes, &claim).await, 0);
    })
    .await;
}

/// A node that somebody else has is not taken from it, and not counted.
#[tokio::test]
async fn unknown_is_not_lost() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, proxies) = through(&nodes).await;
        let claim = fast("x");
        let token = granted(&store, &claim).await.token;
        until_held_on(&nodes, &claim, 3).await;
        nodes[0]
            .command(&["SET", "x", "other", "PX", "60000"])
            .await
            .unwrap();
        proxies[1].hold();
        // One has it, one has another's, one is silent: neither renewed nor lost.
        let said = store.renew(&[lease(&claim, token)]).await.unwrap();
        assert!(matches!(said[..], [Renewal::Unknown(_)]), "{said:?}");
        proxies[1].heal().await;
        while !matches!(renewed(&store, &claim, token).await, Renewal::Renewed(_)) {
            sleep(10).await;
        }
        assert_eq!(value(&nodes[0], "x").await.as_deref(), Some("other"));
    })
    .await;
}
