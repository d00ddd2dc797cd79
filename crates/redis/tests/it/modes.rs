//! Shared holds and permits: who is admitted with whom, what others see of it, and how each of several holds ends.

use std::time::Duration;

use crate::support::*;
use leasehold_core::Loss;
use leasehold_core::backend::{Backend, Claim, Mode, Renewal, WaitPolicy};

fn short(mode: Mode, ms: u64) -> Claim {
    Claim::new(
        "x",
        mode,
        WaitPolicy::Fair,
        Duration::from_millis(ms),
        "short",
    )
}

async fn labels(store: &leasehold_redis::Redis) -> Vec<String> {
    let line = store.inspect(&"x".into()).await.unwrap();
    line.holders.into_iter().filter_map(|e| e.label).collect()
}

#[tokio::test]
async fn readers_share_and_a_writers_release_admits_all_behind_it_in_one_request() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let [early, writer] = [moded(SHARED, "early"), moded(Mode::Exclusive, "writer")];
        granted(&store, &early).await;
        let with = moded(SHARED, "with");
        granted(&store, &with).await;
        let waits = waiting(&store, &writer).await;
        assert_eq!(waits.who.waiters, Some(0));
        let readers: Vec<_> = (0..30).map(|n| moded(SHARED, &n.to_string())).collect();
        for reader in &readers {
            waiting(&store, reader).await;
        }
        let last = moded(Mode::Exclusive, "last");
        waiting(&store, &last).await;
        store.release(&early, None).await.unwrap();
        waiting(&store, &writer).await;
        store.release(&with, None).await.unwrap();
        let writing = granted(&store, &writer).await;
        let count = Count::from_here(&server).await;
        store.release(&writer, None).await.unwrap();
        // Each is told.
        assert_eq!((count.requests().await, count.of("publish").await), (1, 30));
        let mut token = writing.token;
        for reader in &readers {
            let grant = granted(&store, reader).await;
            assert!(grant.token > token);
            token = grant.token;
        }
        waiting(&store, &last).await;
        for reader in &readers {
            store.release(reader, None).await.unwrap();
        }
        assert!(granted(&store, &last).await.token > token);
        store.release(&last, None).await.unwrap();
        assert_eq!(traces(&server).await, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn other_tools_are_excluded_until_the_last_sharer_has_gone() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for mode in [SHARED, permits(1, 2)] {
            let long = moded(mode, "long");
            granted(&store, &short(mode, 1000)).await;
            granted(&store, &long).await;
            let left = number(&server, &["PTTL", "x"]).await;
            assert!((9_000..=10_000).contains(&left), "{left}");
            assert_eq!(
                text(&server, &["SET", "x", "other", "NX", "PX", "1000"]).await,
                None
            );
            // The shorter lease alone is left.
            store.release(&long, None).await.unwrap();
            let left = number(&server, &["PTTL", "x"]).await;
            assert!((1..=1_000).contains(&left), "{left}");
            sleep(1050).await;
            assert_eq!(
                text(&server, &["SET", "x", "other", "NX", "PX", "60000"])
                    .await
                    .as_deref(),
                Some("OK")
            );
            assert!(busy(&store, &as_try(&long)).await.foreign);
            waiting(&store, &moded(mode, "waits")).await;
            server.command(&["FLUSHALL"]).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_dead_sharer_among_live_ones_is_gone_and_holds_nobody_up() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let [dead, live, writer] = [
            short(SHARED, 150),
            moded(SHARED, "live"),
            moded(Mode::Exclusive, "writer"),
        ];
        let lost = granted(&store, &dead).await.token;
        let token = granted(&store, &live).await.token;
        waiting(&store, &writer).await;
        sleep(200).await;
        assert!(matches!(
            renewed(&store, &dead, Some(lost)).await,
            Renewal::Lost(Loss::Gone)
        ));
        assert!(matches!(
            renewed(&store, &live, Some(token)).await,
            Renewal::Renewed(_)
        ));
        assert_eq!(labels(&store).await, ["live"]);
        // Permits come back, whichever client notices; the live ones hold on.
        store.release(&live, None).await.unwrap();
        store.release(&writer, None).await.unwrap();
        for notice in ["claim", "renewal", "stranger", "look"] {
            let [dead, live, next] = [
                short(permits(2, 3), 800),
                moded(permits(1, 3), "live"),
                moded(permits(1, 3), "next"),
            ];
            granted(&store, &dead).await;
            granted(&store, &live).await;
            let after = waiting(&store, &next).await.retry_after.unwrap();
            assert!(after <= Duration::from_millis(801), "{after:?}");
            sleep(850).await;
            match notice {
                "claim" => drop(granted(&store, &next).await),
                "renewal" => assert!(matches!(
                    renewed(&store, &next, None).await,
                    Renewal::Granted(_)
                )),
                "stranger" => store.release(&fair("x"), None).await.unwrap(),
                _ => drop(labels(&store).await),
            }
            assert_eq!(labels(&store).await, ["live", "next"], "{notice}");
            store.release(&live, None).await.unwrap();
            store.release(&next, None).await.unwrap();
            assert_eq!(traces(&server).await, [""; 0]);
        }
    })
    .await;
}

#[tokio::test]
async fn sharers_that_died_leave_nothing_while_others_always_wait() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for how in ["died", "deleted"] {
            let readers: Vec<_> = (0..5).map(|_| short(SHARED, 1500)).collect();
            for reader in &readers {
                granted(&store, reader).await;
            }
            let mut queue = vec![moded(Mode::Exclusive, "0"), moded(Mode::Exclusive, "1")];
            for writer in &queue {
                waiting(&store, writer).await;
            }
            match how {
                "died" => sleep(1550).await,
                _ => drop(server.command(&["DEL", "x"]).await.unwrap()),
            }
            granted(&store, &queue[0]).await;
            for n in 2..4 {
                queue.push(moded(Mode::Exclusive, &n.to_string()));
                waiting(&store, queue.last().unwrap()).await;
                store.release(&queue.remove(0), None).await.unwrap();
            }
            // Two fields of the one that waits, and four or five numbers.
            let fields = number(&server, &["HLEN", "{x}:l"]).await;
            assert!(fields <= 7, "{how}: {fields} fields");
            // The keys of sharers expire as the lock did.
            while traces(&server).await.len() != 2 {
                sleep(10).await;
            }
            for writer in &queue {
                store.release(writer, None).await.unwrap();
            }
            assert_eq!(traces(&server).await, [""; 0], "{how}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_number_of_permits_counts_while_one_is_there_that_says_it() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let writer = moded(Mode::Exclusive, "writer");
        granted(&store, &writer).await;
        let [three, dies, five, of_four] = [3, 4, 5, 4].map(|of| moded(permits(1, of), "permits"));
        waiting(&store, &three).await;
        assert_eq!(
            kind(store.claim(&dies).await),
            leasehold_core::ErrorKind::Invalid
        );
        let reader = moded(SHARED, "reader");
        waiting(&store, &reader).await;
        store.release(&three, None).await.unwrap();
        // Nobody says 3 any more, though others wait.
        waiting(&store, &dies).await;
        assert_eq!(
            kind(store.claim(&five).await),
            leasehold_core::ErrorKind::Invalid
        );
        // Nor 4, once that place has run out.
        let (ticket, entry) = place(&server, &dies).await.unwrap();
        let over = format!("1 {}", entry.split_once(' ').unwrap().1);
        server
            .command(&["HSET", "{x}:l", &ticket, &over])
            .await
            .unwrap();
        waiting(&store, &five).await;
        assert_eq!(
            kind(store.claim(&of_four).await),
            leasehold_core::ErrorKind::Invalid
        );
        store.release(&writer, None).await.unwrap();
        store.release(&reader, None).await.unwrap();
        granted(&store, &five).await;
        // The one that holds.
        assert_eq!(
            kind(store.claim(&of_four).await),
            leasehold_core::ErrorKind::Invalid
        );
        store.release(&five, None).await.unwrap();
        granted(&store, &of_four).await;
        store.release(&of_four, None).await.unwrap();
        assert_eq!(traces(&server).await, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn one_of_several_is_evicted_and_the_oldest_is_shown_first() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        // The leases end in another order than they began.
        let all = [("a", 9), ("b", 7), ("c", 8)].map(|(label, s)| {
            Claim::new("x", SHARED, WaitPolicy::Fair, Duration::from_secs(s), label)
        });
        let mut tokens = Vec::new();
        for claim in &all {
            tokens.push(granted(&store, claim).await.token);
        }
        waiting(&store, &moded(Mode::Exclusive, "writer")).await;
        let line = store.inspect(&"x".into()).await.unwrap();
        let shown: Vec<_> = line
            .holders
            .iter()
            .map(|e| (e.label.clone().unwrap(), e.token.unwrap()))
            .collect();
        assert_eq!(
            shown,
            ["a", "b", "c"]
                .map(String::from)
                .into_iter()
                .zip(tokens.clone())
                .collect::<Vec<_>>()
        );
        assert!(store.evict(&"x".into(), tokens[1]).await.unwrap());
        assert!(!store.evict(&"x".into(), tokens[1]).await.unwrap());
        assert_eq!(labels(&store).await, ["a", "c"]);
        assert!(matches!(
            renewed(&store, &all[1], Some(tokens[1])).await,
            Renewal::Lost(Loss::Gone)
        ));
        assert!(
            store.evict(&"x".into(), tokens[0]).await.unwrap()
                && store.evict(&"x".into(), tokens[2]).await.unwrap()
        );
        assert_eq!(labels(&store).await, ["writer"]);
    })
    .await;
}

#[tokio::test]
async fn what_is_deleted_by_hand_is_lost_for_all_and_blocks_nobody() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for keys in [
            &["x"][..],
            &["x", "{x}:l"],
            &["{x}:s", "{x}:l"],
            &["{x}:s"],
            &["x", "{x}:s"],
            &["{x}:l"],
            &["x", "{x}:r"],
            &["{x}:r"],
        ] {
            let readers = [short(SHARED, 1200), short(SHARED, 1200)];
            let mut tokens = Vec::new();
            for reader in &readers {
                tokens.push(granted(&store, reader).await.token);
            }
            let writer = short(Mode::Exclusive, 1200);
            waiting(&store, &writer).await;
            server.command(&[&["DEL"], keys].concat()).await.unwrap();
            if keys[0] == "x" {
                let token = granted(&store, &writer).await.token;
                assert!(token > tokens[1]);
                for (reader, token) in readers.iter().zip(tokens) {
                    assert!(
                        matches!(renewed(&store, reader, Some(token)).await, Renewal::Lost(_)),
                        "{keys:?}"
                    );
                }
            } else {
                // At the latest when their leases are over.
                while !matches!(
                    store.claim(&writer).await.unwrap(),
                    leasehold_core::backend::Claimed::Granted(_)
                ) {
                    sleep(20).await;
                }
            }
            store.release(&writer, None).await.unwrap();
            while !traces(&server).await.is_empty() {
                sleep(20).await;
            }
        }
    })
    .await;
}
