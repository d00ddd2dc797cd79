//! Readers, writers and permits in one line, at the seam and as a user sees them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::*;
use leasehold_core::seam::{Backend, Claim, Claimed, Mode, WaitPolicy};
use leasehold_core::{ErrorKind, Store};
use leasehold_zookeeper::ZooKeeper;

const fn permits(n: u32, of: u32) -> Mode {
    Mode::Permits { n, of }
}

/// Which of these claims hold, when each claims again.
async fn who_holds(client: &ZooKeeper, claims: &[Claim]) -> Vec<usize> {
    let mut holding = Vec::new();
    for (i, claim) in claims.iter().enumerate() {
        if matches!(client.claim(claim).await.unwrap(), Claimed::Granted(_)) {
            holding.push(i);
        }
    }
    holding
}

#[tokio::test]
async fn one_line_for_all_modes_in_strict_order() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let modes = [
            Mode::Shared,
            Mode::Shared,
            Mode::Exclusive,
            Mode::Shared,
            permits(1, 3),
            permits(2, 3),
            permits(1, 3),
            Mode::Exclusive,
        ];
        let claims: Vec<Claim> = modes.iter().map(|mode| of_mode(*mode, "a")).collect();
        let mut left = claims.clone();
        // Each takes a place; a release admits exactly those whose turn it is.
        for expected in [&[0, 1][..], &[1], &[2], &[3], &[4, 5], &[5, 6], &[6], &[7]] {
            let first = claims.len() - left.len();
            let holding: Vec<usize> = who_holds(&client, &left).await.iter().map(|i| i + first).collect();
            assert_eq!(holding, expected);
            let line = client.inspect(&claims[0].name).await.unwrap();
            assert_eq!((line.holders.len(), line.waiters.len()), (holding.len(), left.len() - holding.len()));
            assert!(line.holders.is_sorted_by_key(|entry| entry.token));
            client.release(&left.remove(0), None).await.unwrap();
        }
        until_entries(&server, 0, 2).await;
    })
    .await;
}

#[tokio::test]
async fn a_try_of_each_mode_leaves_nothing_and_says_who() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let attempt = |mode| Claim::new("a", mode, WaitPolicy::Try, LONG, "trier");
        let all = [Mode::Exclusive, Mode::Shared, permits(1, 2)];
        for (held, lets_in) in all.into_iter().zip([None, Some(Mode::Shared), Some(permits(1, 2))]) {
            let claim = of_mode(held, "a");
            let grant = granted(&a, &claim).await;
            for mode in all.into_iter().filter(|mode| Some(*mode) != lets_in) {
                let who = busy(&b, &attempt(mode)).await;
                assert_eq!((who.label.as_deref(), who.token), (Some("label"), Some(grant.token)));
            }
            if let Some(mode) = lets_in {
                let beside = attempt(mode);
                granted(&b, &beside).await;
                b.release(&beside, None).await.unwrap();
            }
            until_entries(&server, 1, 4).await;
            release(&a, &claim, &grant.place).await;
        }
        until_entries(&server, 0, 4).await;
    })
    .await;
}

#[tokio::test]
async fn another_number_of_permits_is_refused() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let held = of_mode(permits(1, 3), "a");
        granted(&client, &held).await;
        for policy in [WaitPolicy::Fair, WaitPolicy::Try] {
            let other = Claim::new("a", permits(1, 2), policy, LONG, "");
            assert_eq!(client.claim(&other).await.unwrap_err().kind(), ErrorKind::Invalid);
            client.release(&other, None).await.unwrap();
            until_entries(&server, 1, 2).await;
        }
        let store = Store::new(client.clone());
        let e = store.semaphore("a", 4).acquire().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        until_entries(&server, 1, 2).await;
        // A line of other modes has no number.
        client.release(&held, None).await.unwrap();
        let writer = of_mode(Mode::Exclusive, "a");
        granted(&client, &writer).await;
        waiting(&client, &of_mode(permits(1, 2), "a")).await;
    })
    .await;
}

#[tokio::test]
async fn a_downgrade_keeps_place_and_token_and_lets_readers_in() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let writer = of_mode(Mode::Exclusive, "a");
        let grant = granted(&a, &writer).await;
        let (reader, second, last) =
            (of_mode(Mode::Shared, "a"), of_mode(Mode::Exclusive, "a"), of_mode(Mode::Shared, "a"));
        for claim in [&reader, &second, &last] {
            waiting(&b, claim).await;
        }
        // Another mode of one that waits, or of another that holds, changes nothing.
        let mut changed = second.clone();
        changed.mode = Mode::Shared;
        waiting(&b, &changed).await;
        let mut downgraded = writer.clone();
        downgraded.mode = Mode::Shared;
        for claim in [&downgraded, &writer, &downgraded] {
            let again = granted(&a, claim).await;
            assert_eq!((&again.place, again.token), (&grant.place, grant.token));
            granted(&b, &reader).await;
            waiting(&b, &second).await;
            waiting(&b, &last).await;
        }
        let line = b.inspect(&writer.name).await.unwrap();
        assert_eq!((line.holders.len(), line.waiters.len()), (2, 2));
        assert_eq!(line.holders[0].token, Some(grant.token));
        // Those behind a downgraded one can be evicted, and a try gets in beside it once nobody waits.
        let token = line.holders[1].token.unwrap();
        assert!(a.evict(&writer.name, token).await.unwrap());
        for claim in [&second, &last] {
            b.release(claim, None).await.unwrap();
        }
        let attempt = Claim::new("a", Mode::Shared, WaitPolicy::Try, LONG, "trier");
        granted(&b, &attempt).await;
        b.release(&attempt, None).await.unwrap();
        release(&a, &writer, &grant.place).await;
        until_entries(&server, 0, 4).await;
        until(|| async { server.watch_count().await.unwrap() == 4 }).await;
    })
    .await;
}

#[tokio::test]
async fn waiters_of_every_mode_are_woken() {
    limited(async {
        let server = server().await;
        let (one, two) = (store(&server).await, store(&server).await);
        let queued = |n: usize| {
            let one = &one;
            until(move || async move { one.lock("a").inspect().await.unwrap().waiters.len() == n })
        };
        // A downgrade wakes readers, their end the writer, its end the permits.
        let writer = one.rw_lock("a").ttl(LONG).write().acquire().await.unwrap();
        let reader = tokio::spawn(two.rw_lock("a").ttl(LONG).read().acquire());
        queued(1).await;
        let next = tokio::spawn(two.rw_lock("a").ttl(LONG).write().acquire());
        queued(2).await;
        let permits: Vec<_> = (1..=4).map(|_| tokio::spawn(two.semaphore("a", 2).ttl(LONG).acquire())).collect();
        queued(6).await;
        writer.downgrade().await.unwrap();
        let reader = reader.await.unwrap().unwrap();
        assert!(reader.fencing_token() > writer.fencing_token() && writer.is_valid());
        reader.release().await.unwrap();
        writer.release().await.unwrap();
        let next = next.await.unwrap().unwrap();
        next.release().await.unwrap();
        // The permits are given back in any order; nobody is forgotten.
        let mut holding = Vec::new();
        for permit in permits {
            let permit = permit.await;
            holding.push(permit.unwrap().unwrap());
            assert!(holding.len() <= 2);
            if holding.len() == 2 {
                holding.pop().unwrap().release().await.unwrap();
            }
        }
        drop(holding);
        until_entries(&server, 0, 4).await;
    })
    .await;
}

/// Semaphores of some sizes under way: never more permits out than there are, and none is lost.
#[tokio::test]
async fn permits_are_never_more_than_there_are_and_none_gets_lost() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    limited(async {
        let server = server().await;
        for of in [1, 3, 12] {
            let name = format!("s{of}");
            let out = Arc::new(AtomicU32::new(0));
            let mut tasks = Vec::new();
            for i in 0..16_u32 {
                let (store, out, name) = (store(&server).await, out.clone(), name.clone());
                let n = 1 + i % of.min(2);
                tasks.push(tokio::spawn(async move {
                    for _ in 0..4 {
                        let permit = store.semaphore(&*name, of).permits(n).ttl(LONG).acquire().await.unwrap();
                        assert!(out.fetch_add(n, Ordering::SeqCst) + n <= of);
                        tokio::time::sleep(Duration::from_millis(u64::from(i % 3))).await;
                        out.fetch_sub(n, Ordering::SeqCst);
                        permit.release().await.unwrap();
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
        }
    })
    .await;
}
