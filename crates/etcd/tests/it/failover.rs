//! Members that are killed, and tokens that run out, while some hold and others wait: service goes
//! on, and no hold is lost.
//!
//! `LEASEHOLD_FAILOVERS=50` makes more of each, and prints how long each kept everybody waiting.

use std::time::Duration;

use crate::common::*;
use leasehold_core::Store;
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use leasehold_testbed::seen::{Turns, clock, told};

const PASSWORD: &str = "s3cret";
/// Longer than an election takes on a busy machine.
const LEASE: Duration = Duration::from_secs(10);
/// For how long a signed token is good.
const TOKENS: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn leaders_that_are_killed_and_tokens_that_run_out_lose_no_hold() {
    let options = testbed::EtcdOptions {
        jwt: Some(TOKENS),
        ..Default::default()
    };
    let cluster = testbed::Etcd::cluster_with(3, &options).await.unwrap();
    cluster.add_users(PASSWORD).await.unwrap();
    let hosts = cluster
        .members()
        .iter()
        .map(|member| member.addr())
        .collect::<Vec<_>>()
        .join(",");
    let url = format!("etcd://me:{PASSWORD}@{hosts}/test");
    let mut stores = Vec::new();
    while stores.len() < 3 {
        match Etcd::connect(&url).await {
            Ok(etcd) => stores.push(Store::new(etcd).ttl(LEASE)),
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
    let faults = std::env::var("LEASEHOLD_FAILOVERS").map_or(2, |n| n.parse().unwrap());
    let (turns, mut held) = (
        Turns::of(&stores),
        stores[0].lock("held").acquire().await.unwrap(),
    );
    let [mut killed, mut expired] = [const { Vec::new() }; 2];
    for _ in 0..faults {
        turns.go_on(20).await;
        let (leader, began) = (cluster.leader().await, clock());
        cluster.members()[leader].kill().await.unwrap();
        turns.go_on(20).await;
        killed.push(turns.seen.longest_wait(began));
        cluster.members()[leader].start_again().await.unwrap();
        turns.go_on(20).await;
        let began = clock();
        tokio::time::sleep(TOKENS * 2).await;
        expired.push(turns.seen.longest_wait(began));
        held = turns.check(held, &stores[0], LEASE).await;
    }
    told("the leader is killed", killed);
    told("tokens run out", expired);
    println!("{faults} of each: {} grants", turns.end().await);
    give_back(held).await;
}
