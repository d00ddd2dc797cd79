//! Leaders that are killed while some hold and others wait: service goes on, and no hold is lost.
//!
//! `LEASEHOLD_FAILOVERS=50` makes more of them, and prints how long each kept everybody waiting.

use std::time::Duration;

use crate::common::*;
use leasehold_core::Store;
use leasehold_testbed::ZooKeeper as Server;
use leasehold_testbed::seen::{Turns, clock, told};

/// Longer than an election takes on a busy machine.
const LEASE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn leaders_that_are_killed_lose_no_hold() {
    let ensemble = Server::ensemble(3).await.unwrap();
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(Store::new(at(&ensemble.connect_string()).await).ttl(LEASE));
    }
    let faults = std::env::var("LEASEHOLD_FAILOVERS").map_or(2, |n| n.parse().unwrap());
    let (turns, mut held, mut killed) = (
        Turns::of(&stores),
        hold(&stores[0], "held", LEASE).await,
        Vec::new(),
    );
    for _ in 0..faults {
        turns.go_on(20).await;
        let (leader, began) = (ensemble.leader().await, clock());
        ensemble.members()[leader].kill().await.unwrap();
        turns.go_on(20).await;
        killed.push(turns.seen.longest_wait(began));
        ensemble.members()[leader].start_again().await.unwrap();
        held = turns.check(held, &stores[0], LEASE).await;
    }
    told("the leader is killed", killed);
    println!("{faults} leaders: {} grants", turns.end().await);
    let _ = held.release().await;
}
