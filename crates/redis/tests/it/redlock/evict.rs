//! Evictions: what an operator ends by a token, on nodes that do not agree on it, and what comes late.

use crate::redlock::common::*;
use leasehold_core::backend::{Backend, Mode, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken};
use leasehold_testbed::{Reply, Trap};

/// A node has granted with a token of its own, which the client has not written over yet, and requests come late.
#[tokio::test]
async fn an_eviction_counts_for_nodes_that_do_not_know_the_token_yet() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, operator) = (client(&nodes).await, client(&nodes).await);
        let claim = fast("x");
        let token = granted(&store, &claim).await.token;
        agree(&store, &nodes, &claim, token).await;
        let (id, own) = (claim.id.to_string(), (token.get() - 1000).to_string());
        let entry = entry(&nodes[0], &claim)
            .await
            .replace(&token.to_string(), &own);
        let put = async |nth: usize| {
            nodes[nth]
                .command(&["SET", "x", &id, "PX", "60000"])
                .await
                .unwrap();
            nodes[nth]
                .command(&["HSET", "{x}:rh", &id, &entry])
                .await
                .unwrap();
        };
        put(0).await;
        assert!(operator.evict(&claim.name, token).await.unwrap());
        assert_eq!(held_on(&nodes, &claim).await, 0, "it ended on every node");
        // A request to take the lock that comes late is of no use to its client, either.
        put(0).await;
        put(2).await;
        let renewal = renewed(&store, &claim, token).await;
        assert!(matches!(renewal, Renewal::Lost(_)), "{renewal:?}");
        assert_eq!(held_on(&nodes, &claim).await, 0);
        assert!(soon(&store, &claim).await.token > token);
    })
    .await;
}

/// A node that granted late has the token before the hold's in a block of its own. No hold is known by that.
#[tokio::test]
async fn an_eviction_by_a_token_that_only_a_late_node_says_ends_no_hold() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, operator) = (client(&nodes).await, client(&nodes).await);
        for mode in [Mode::Exclusive, Mode::Shared] {
            let claim = claim(&format!("{mode:?}"), mode, WaitPolicy::Fast, TTL);
            let token = granted(&store, &claim).await.token;
            agree(&store, &nodes, &claim, token).await;
            let (id, holders) = (claim.id.to_string(), format!("{{{}}}:rh", claim.name));
            let own = FencingToken::new(token.get() - 5);
            let entry = entry(&nodes[0], &claim)
                .await
                .replace(&token.to_string(), &own.to_string());
            nodes[0]
                .command(&["HSET", &holders, &id, &entry])
                .await
                .unwrap();
            for before in [FencingToken::new(token.get() - 1), own] {
                assert!(
                    !operator.evict(&claim.name, before).await.unwrap(),
                    "{mode:?}"
                );
            }
            let renewal = renewed(&store, &claim, token).await;
            assert!(
                matches!(renewal, Renewal::Renewed(_)),
                "{mode:?}: {renewal:?}"
            );
            assert!(operator.evict(&claim.name, token).await.unwrap());
            assert!(
                matches!(renewed(&store, &claim, token).await, Renewal::Lost(_)),
                "{mode:?}"
            );
        }
    })
    .await;
}

/// A node that gets an evicted hold only now gives it a greater token; and it remembers an eviction only as long as it matters.
#[tokio::test]
async fn an_eviction_raises_every_counter_and_outlives_its_use_nowhere() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, operator) = (client(&nodes).await, client(&nodes).await);
        let claim = fast("x");
        let token = granted(&store, &claim).await.token;
        agree(&store, &nodes, &claim, token).await;
        let far = u64::MAX.to_string();
        for node in &nodes {
            node.command(&["ZADD", "{x}:re", "1", "1", &far, "2"])
                .await
                .unwrap();
        }
        nodes[2]
            .command(&["DEL", "x", "{x}:rh", "{}:rt", "{}:ro", "{}:rb"])
            .await
            .unwrap();
        assert!(operator.evict(&claim.name, token).await.unwrap());
        for node in &nodes {
            assert!(bound(node).await >= token.get() + 63);
            let Reply::Array(known) = node
                .command(&["ZRANGE", "{x}:re", "0", "-1"])
                .await
                .unwrap()
            else {
                panic!("no list")
            };
            let mut known: Vec<_> = known.iter().filter_map(Reply::text).collect();
            known.sort();
            assert_eq!(known, [token.to_string(), "2".to_owned()]);
        }
    })
    .await;
}

/// A renewal from before comes late, over a connection that its client has given up: it changes nothing in the hold that the same
/// claim has by now, not even if it was evicted, and its own hold too.
#[tokio::test]
async fn a_late_renewal_changes_no_later_hold() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, operator) = (client(&nodes).await, client(&nodes).await);
        let claim = fast("x");
        let old = granted(&store, &claim).await.token;
        assert!(operator.evict(&claim.name, old).await.unwrap());
        assert!(matches!(
            renewed(&store, &claim, old).await,
            Renewal::Lost(_)
        ));
        let token = soon(&store, &claim).await.token;
        until_held_on(&nodes, &claim, 3).await;
        let script = [
            BEGINNING,
            include_str!("../../../src/redlock/node.lua"),
            include_str!("../../../src/redlock/operator.lua"),
        ]
        .concat();
        let (id, old) = (claim.id.to_string(), old.to_string());
        for node in &nodes {
            // As where the hold was not known by this token when it was evicted.
            node.command(&["ZADD", "{x}:re", &u32::MAX.to_string().repeat(2), &old])
                .await
                .unwrap();
            for what in ["renew", "top"] {
                for token in [&old, "7"] {
                    let args = [
                        "renew", &id, "500", "x", "64", "nobody", "", "1", "0", token, what,
                    ];
                    let keys = keys_of("x");
                    let words = eval(&script, &keys, &args);
                    assert_eq!(node.command(&words).await.unwrap().text().unwrap(), "gone");
                }
            }
        }
        assert_eq!(held_on(&nodes, &claim).await, 3, "a later hold was ended");
        assert_eq!(
            store.inspect(&claim.name).await.unwrap().holders[0].token,
            Some(token)
        );
        assert!(matches!(
            renewed(&store, &claim, token).await,
            Renewal::Renewed(_)
        ));
    })
    .await;
}

/// A majority does not learn that the hold was evicted: this is an error. Evicting it again ends it everywhere.
#[tokio::test]
async fn an_eviction_that_failed_half_way_may_be_repeated() {
    bounded(async {
        let nodes = nodes(3).await;
        let (store, (operator, links)) = (client(&nodes).await, through(&nodes).await);
        let claim = fast("x");
        let token = granted(&store, &claim).await.token;
        agree(&store, &nodes, &claim, token).await;
        let traps = [&links[0], &links[1]].map(|link| link.hold_matching("\r\nbar\r\n"));
        let error = operator.evict(&claim.name, token).await.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous),
            "{error}"
        );
        assert!(traps.iter().all(Trap::has_sprung));
        assert_eq!(
            held_on(&nodes, &claim).await,
            2,
            "it ended where it was asked for"
        );
        // What was held back never arrives.
        until_whole(&operator, &nodes).await;
        let late = links[0].hold_matching("\r\nbar\r\n");
        assert!(
            operator.evict(&claim.name, token).await.unwrap(),
            "a majority had it"
        );
        assert!(late.has_sprung());
        until_whole(&operator, &nodes).await;
        assert_eq!(held_on(&nodes, &claim).await, 1);
        assert!(
            !operator.evict(&claim.name, token).await.unwrap(),
            "without a majority it had ended"
        );
        assert_eq!(held_on(&nodes, &claim).await, 0);
        for node in &nodes {
            let until = node
                .command(&["ZSCORE", "{x}:re", &token.to_string()])
                .await
                .unwrap();
            assert!(until.text().is_some(), "{until:?}");
        }
        assert!(matches!(
            renewed(&store, &claim, token).await,
            Renewal::Lost(_)
        ));
        assert!(!operator.evict(&claim.name, token).await.unwrap());
        assert!(soon(&store, &claim).await.token > token);
    })
    .await;
}
