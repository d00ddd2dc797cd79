//! The fencing token rises: over every end of a hold, over few common nodes, over nodes that forget.

mod clock;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::redlock::common::*;
use leasehold_core::Store;
use leasehold_core::backend::{Backend, Mode, Renewal, WaitPolicy};
use leasehold_redis::redlock::Redlock;
use leasehold_testbed::Redis;
use tokio::sync::RwLock;

async fn hold(store: &Redlock) -> u64 {
    let claim = fast("x");
    let token = granted(store, &claim).await.token.get();
    given_back(store, &claim).await;
    token
}

/// The last token of a name that a node has in the hash of now.
async fn last(node: &Redis, name: &str) -> u64 {
    node.command(&["HGET", "{}:rt", name])
        .await
        .unwrap()
        .text()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn a_grant_reserves_a_block_and_repeats_its_token() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let claim = fast("x");
        let first = granted(&store, &claim).await;
        assert_eq!(first.turns, 64);
        assert_eq!(granted(&store, &claim).await.token, first.token);
        store.release(&claim, None).await.unwrap();
        assert!(hold(&store).await > first.token.get() + 63);
    })
    .await;
}

/// A try takes one turn, so it reserves one token; and a hold keeps the turns that it was granted with, however it is claimed again.
#[tokio::test]
async fn a_try_reserves_one_token() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let claim = attempt("x");
        let first = granted(&store, &claim).await;
        let mut again = claim.clone();
        again.policy = WaitPolicy::Fast;
        let second = granted(&store, &again).await;
        assert_eq!(
            (first.turns, second.turns, second.token),
            (1, 1, first.token)
        );
    })
    .await;
}

/// Two grants whose majorities share only one node, which answered the first with the smaller number.
#[tokio::test]
async fn a_token_is_written_back_to_a_majority() {
    bounded(async {
        let nodes = nodes(3).await;
        let (one, links) = through(&nodes).await;
        let (two, others) = through(&nodes).await;
        // The middle node has seen a far greater token.
        let far = hold(&one).await + 10_000_000;
        has_given(&nodes[1], "x", far).await;
        // The first grant is on the nodes 0 and 1, and node 0 answers with less.
        links[2].cut().await;
        let claim = fast("x");
        let first = soon(&one, &claim).await.token.get();
        assert_eq!(first, far + 1);
        assert_eq!(
            last(&nodes[0], "x").await,
            far + 64,
            "written back to the block's end"
        );
        given_back(&one, &claim).await;
        // The second is on the nodes 0 and 2: only node 0 knows.
        others[1].cut().await;
        let second = soon(&two, &fast("x")).await.token.get();
        assert!(second > first + 63, "{second} after {first}");
    })
    .await;
}

/// A node that granted late says another token than the majority that knows the hold's; without such a majority none is shown.
#[tokio::test]
async fn a_token_is_seen_only_if_a_majority_says_it() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let claim = fast("x");
        let token = granted(&store, &claim).await.token;
        agree(&store, &nodes, &claim, token).await;
        let id = claim.id.to_string();
        let entry = entry(&nodes[0], &claim).await;
        let seen = async || store.inspect(&claim.name).await.unwrap().holders[0].token;
        for (nth, expected) in [(0, Some(token)), (1, None)] {
            let own = (token.get() - 1000 - nth as u64).to_string();
            nodes[nth]
                .command(&[
                    "HSET",
                    "{x}:rh",
                    &id,
                    &entry.replace(&token.to_string(), &own),
                ])
                .await
                .unwrap();
            assert_eq!(seen().await, expected);
        }
        assert!(matches!(
            renewed(&store, &claim, token).await,
            Renewal::Renewed(_)
        ));
        assert_eq!(seen().await, Some(token));
    })
    .await;
}

#[tokio::test]
async fn one_clock_far_ahead_does_not_drive_the_tokens() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let before = hold(&store).await;
        let call = |proposal: u64| proposal.to_string();
        // What a client whose clock is a year ahead would send: cut to a minute ahead of the node's own clock.
        let year = call(before + 365 * 86_400_000_000);
        let script = [BEGINNING, include_str!("../../../src/redlock/node.lua")].concat();
        let id = "0123456789abcdef0123456789abcdef";
        let keys = keys_of("x");
        let args = [
            "claim", id, "500", "x", "1", "nobody", "", "1", "0", &year, "0",
        ];
        let words = eval(&script, &keys, &args);
        let answer = nodes[0].command(&words).await.unwrap().text().unwrap();
        let token: u64 = answer.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(token > before && token < before + 120_000_000, "{answer}");
    })
    .await;
}

/// What a node knows of tokens lives longer than these are ahead: once it has expired, the node's clock is above them.
#[tokio::test]
async fn last_tokens_outlive_their_own_values() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let before = hold(&store).await;
        for node in &nodes {
            node.command(&["DEL", "{}:rt", "{}:ro", "{}:rb"])
                .await
                .unwrap();
        }
        assert!(hold(&store).await > before + 63);
        has_given(&nodes[0], "x", before + 50_000_000).await;
        let claim = fast("x");
        granted(&store, &claim).await;
        until_held_on(&nodes, &claim, 3).await;
        let left = async |key| {
            nodes[0]
                .command(&["PTTL", key])
                .await
                .unwrap()
                .integer()
                .unwrap()
        };
        assert!(left("{}:rb").await > 7_200_000 + 40_000);
        assert!(left("{}:rt").await > 40_000);
    })
    .await;
}

/// Whatever names were used, a node has three keys of its own afterwards, of which the bound alone stays for longer than seconds.
#[tokio::test]
async fn no_name_leaves_a_key() {
    const SECONDS: i64 = 6;
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        for n in 0..100 {
            let claim = fast(&format!("x/{n}"));
            granted(&store, &claim).await;
            store.release(&claim, None).await.unwrap();
        }
        until_clean(&nodes.iter().collect::<Vec<_>>()).await;
        for node in &nodes {
            for (key, most) in [
                ("{}:rt", SECONDS),
                ("{}:ro", SECONDS),
                ("{}:rb", 7200 + SECONDS),
            ] {
                let left = node
                    .command(&["PTTL", key])
                    .await
                    .unwrap()
                    .integer()
                    .unwrap();
                // -2: it has gone already. It never stays for ever, which is -1.
                assert!(left != -1 && left <= most * 1000, "{key}: {left}");
            }
            assert!(bound(node).await > 0);
        }
    })
    .await;
}

/// Long idle names, as after a step back of all clocks by an hour: the nodes have forgotten their last tokens, but not how great
/// they were.
#[tokio::test]
async fn tokens_of_idle_names_rise_when_clocks_have_stepped_back() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let later = hold(&store).await + 3_600_000_000;
        for node in &nodes {
            node.command(&["DEL", "{}:rt", "{}:ro"]).await.unwrap();
            node.command(&["SET", "{}:rb", &later.to_string(), "EX", "10800"])
                .await
                .unwrap();
        }
        let mut before = later;
        for _ in 0..3 {
            let token = hold(&store).await;
            assert!(token > before, "{token} after {before}");
            before = token + 63;
        }
        // Another name is no slower to get there: it may have been the one that had the greatest token.
        let claim = fast("y");
        assert!(granted(&store, &claim).await.token.get() > later);
    })
    .await;
}

/// What was changed by hand is none of what a node knows of tokens; it stops no claim, and no token falls by it.
#[tokio::test]
async fn junk_in_the_place_of_last_tokens_is_replaced() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let mut before = hold(&store).await + 63;
        let kinds: [&[&str]; 4] = [
            &["SET", "{}:rt", "junk"],
            &["SET", "{}:ro", "junk"],
            &["HSET", "{}:rt", "", "junk", "x", "junk"],
            &["RPUSH", "{}:rb", "junk"],
        ];
        for junk in kinds {
            for node in &nodes {
                // A key of another type in its place; else what there is has this besides.
                if junk[0] != "HSET" {
                    node.command(&["DEL", junk[1]]).await.unwrap();
                }
                node.command(junk).await.unwrap();
            }
            let token = hold(&store).await;
            assert!(token > before, "{junk:?}: {token} after {before}");
            before = token + 63;
        }
    })
    .await;
}

#[tokio::test]
async fn readers_have_tokens_of_their_own_below_the_next_writers() {
    bounded(async {
        let nodes = nodes(3).await;
        let store = client(&nodes).await;
        let before = hold(&store).await;
        let readers = [0; 3].map(|_| claim("x", Mode::Shared, WaitPolicy::Fast, TTL));
        let mut tokens = Vec::new();
        for reader in &readers {
            tokens.push(granted(&store, reader).await.token.get());
        }
        assert!(tokens.iter().all(|token| *token > before));
        for reader in &readers {
            store.release(reader, None).await.unwrap();
        }
        assert!(hold(&store).await > *tokens.iter().max().unwrap());
    })
    .await;
}

/// A thousand grants to four clients, while one random node after another loses all it knows: between holds, as a loss during
/// a hold may let two hold at once, of whom nobody can say who came later. All clients and nodes run by one clock here: with
/// clocks that differ by more than the time between two grants, this could not be promised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_a_thousand_grants_while_single_nodes_forget() {
    const GRANTS: u64 = 1000;
    bounded(async {
        let nodes = Arc::new(Redis::start_many(5).await.unwrap());
        let (greatest, grants) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let inside = Arc::new(AtomicBool::new(false));
        // Clients of the lock read; the task that makes a node forget writes. It is fair, so neither starves.
        let quiet = Arc::new(RwLock::new(()));
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let lock = Store::new(client(&nodes).await).lock("x").ttl(TTL);
            let (greatest, grants, inside, quiet) = (
                greatest.clone(),
                grants.clone(),
                inside.clone(),
                quiet.clone(),
            );
            tasks.push(tokio::spawn(async move {
                while grants.load(Ordering::SeqCst) < GRANTS {
                    let _busy = quiet.read().await;
                    let guard = lock.acquire().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    let token = guard.fencing_token().get();
                    let before = greatest.swap(token, Ordering::SeqCst);
                    assert!(token > before, "{token} after {before}");
                    grants.fetch_add(1, Ordering::SeqCst);
                    inside.store(false, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }));
        }
        let mut wipes = 0;
        while grants.load(Ordering::SeqCst) < GRANTS
            && !tasks.iter().any(tokio::task::JoinHandle::is_finished)
        {
            let _quiet = quiet.write().await;
            nodes[fastrand::usize(..nodes.len())]
                .command(&["FLUSHALL"])
                .await
                .unwrap();
            wipes += 1;
        }
        for task in tasks {
            task.await.unwrap();
        }
        println!(
            "{} grants, {wipes} losses of a node's data",
            grants.load(Ordering::SeqCst)
        );
    })
    .await;
}
