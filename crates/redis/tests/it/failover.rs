//! Failovers by sentinels, while some hold and others wait: service goes on without a restart, tokens rise, stale writes are refused.
//!
//! `LEASEHOLD_FAILOVERS=20` makes more of them, and prints how long each kept everybody waiting.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{bounded, clock, sleep};
use leasehold_core::{Guard, Store};
use leasehold_redis::Redis;
use leasehold_testbed::seen::{PATIENCE, Turns, acquired, told};
use leasehold_testbed::{RedisSentinel, SentinelOptions};

/// Longer than it takes to notice a dead master, to put another in its place, and to connect to that.
const LEASE: Duration = Duration::from_secs(8);

/// Gives the lock back. What the old master does not answer is released in the background, and what the new one lacks is lost.
async fn give_back(guard: Guard) {
    if let Err(e) = guard.release().await {
        assert!(e.is_retryable() || e.loss().is_some(), "{e:?}");
    }
}

async fn client(all: &RedisSentinel, words: &str) -> Store {
    loop {
        match Redis::connect(&format!("{}{words}", all.url())).await {
            Ok(store) => return Store::new(store).ttl(LEASE),
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// An operator orders it: for some seconds there are two masters.
    Ordered,
    Killed,
    Paused,
}

/// Has another server become the master, and waits until everything is as before, with the old one as a replica.
async fn fail_over(all: &RedisSentinel, fault: Fault) {
    let old = all.master().await.unwrap();
    match fault {
        Fault::Ordered => {}
        Fault::Killed => all.servers()[old].kill().await.unwrap(),
        Fault::Paused => all.servers()[old].pause().await.unwrap(),
    }
    while all.master().await.is_none_or(|master| master == old) {
        if let Fault::Ordered = fault {
            // Refused while one is under way, which a busy machine may have brought about.
            let _ = all.fail_over().await;
        }
        sleep(20).await;
    }
    // It comes back as the master that it was, with all that it knew then.
    match fault {
        Fault::Ordered => {}
        Fault::Killed => all.servers()[old].start_again().await.unwrap(),
        Fault::Paused => all.servers()[old].resume().unwrap(),
    }
    while !all.is_ready().await {
        sleep(100).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_is_followed_while_some_hold_and_others_wait() {
    let options = SentinelOptions {
        down_after: Duration::from_secs(1),
        ..SentinelOptions::default()
    };
    let all = RedisSentinel::start_with(&options).await.unwrap();
    let stores = [
        client(&all, "").await,
        client(&all, "").await,
        client(&all, "?min_replicas=1").await,
    ];
    let turns = Turns::of(&stores);
    let failovers = std::env::var("LEASEHOLD_FAILOVERS").map_or(3, |n| n.parse().unwrap());
    let mut waits = Vec::new();
    for n in 0..failovers {
        let fault = [Fault::Ordered, Fault::Killed, Fault::Paused][n % 3];
        // It is held all the while, by a hold that is replicated: it is kept, or its holder is told.
        let held = acquired(&stores[0], "held").await;
        sleep(200).await;
        let began = clock();
        fail_over(&all, fault).await;
        check_hold(&stores[1], held).await;
        turns.go_on(20).await;
        let wait = turns.seen.longest_wait(began);
        println!(
            "{fault:?}: nobody was granted the lock for {} ms",
            wait.as_millis()
        );
        waits.push((fault, wait));
    }
    let seen = turns.finish().await;
    for fault in [Fault::Ordered, Fault::Killed, Fault::Paused] {
        told(
            &format!("{fault:?}"),
            waits
                .iter()
                .filter(|(of, _)| *of == fault)
                .map(|(_, wait)| *wait)
                .collect(),
        );
    }
    let [overlaps, refused] =
        [&seen.overlaps, &seen.refused].map(|number| number.load(Ordering::SeqCst));
    println!(
        "{failovers} failovers: {} grants, {overlaps} overlaps of guards, {refused} stale writes refused",
        seen.grants()
    );
}

#[tokio::test]
async fn a_master_that_was_replaced_is_left_although_it_goes_on() {
    bounded(async {
        let all = RedisSentinel::start_with(&SentinelOptions::default())
            .await
            .unwrap();
        let store = client(&all, "").await;
        give_back(acquired(&store, "x").await).await;
        // Nobody makes a replica of it: it answers as the master that it was.
        let [old, ..] = all.servers() else {
            panic!("a master")
        };
        old.command(&["ACL", "SETUSER", "default", "-replicaof", "-slaveof"])
            .await
            .unwrap();
        let new = loop {
            let _ = all.fail_over().await;
            match all.master().await {
                Some(new) if new != 0 => break &all.servers()[new],
                _ => sleep(20).await,
            }
        };
        loop {
            let guard = acquired(&store, "x").await;
            let there = new.command(&["EXISTS", "x"]).await.unwrap().integer();
            give_back(guard).await;
            if there == Some(1) {
                break;
            }
            sleep(20).await;
        }
        assert!(
            old.info("replication")
                .await
                .unwrap()
                .contains("role:master")
        );
    })
    .await;
}

/// A hold after a failover: either it is there, or it is lost and its token is below that of the next one.
async fn check_hold(other: &Store, held: Guard) {
    let confirmed = loop {
        match held.confirm().await {
            Ok(()) => break true,
            Err(e) if e.loss().is_some() => break false,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    };
    let token = held.fencing_token();
    if confirmed {
        // Unless another failover came between, which a busy machine may bring about.
        let beside = other.lock("held").try_acquire().await;
        assert!(
            beside.is_err() || held.confirm().await.is_err(),
            "beside a hold that was confirmed"
        );
        drop(beside);
        give_back(held).await;
    }
    let next = tokio::time::timeout(PATIENCE, acquired(other, "held"))
        .await
        .unwrap();
    assert!(next.fencing_token() > token);
    give_back(next).await;
}
