//! Stores that grant less than `--ttl` asks for: what is ended, and when, goes by what was granted.

use std::fs;
use std::time::Duration;

use leasehold_testbed::{Redis, ZooKeeper, ZooKeeperOptions};

use crate::support::{self, Running, Stage, until};
use rustix::process::Signal;

/// Half of it is still a lease that a busy machine renews in time.
const LONGEST: Duration = Duration::from_secs(8);

/// A ZooKeeper that allows no longer session.
async fn short_zookeeper() -> ZooKeeper {
    let options = ZooKeeperOptions {
        max_session: LONGEST,
        ..ZooKeeperOptions::default()
    };
    ZooKeeper::start_with(&options).await.unwrap()
}

/// Each of these leases is asked for by a program that runs for longer than any that is granted, all at once.
fn all_end_by_themselves(stage: &Stage) {
    let leases = ["4s", "8s", "16s", "80s", "24h"];
    let runs: Vec<(&str, Running)> = leases
        .into_iter()
        .map(|ttl| {
            let mut run = stage.leasehold(["run", ttl, "--ttl", ttl, "--", "sh", "-c"]);
            (ttl, Running::start(run.arg("sleep 9; exit 7")))
        })
        .collect();
    for (ttl, mut run) in runs {
        assert_eq!(run.end().code(), Some(7), "--ttl {ttl}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_zookeeper_ends_no_program_whatever_lease_was_asked_for() {
    let zookeeper = short_zookeeper().await;
    let stage = support::on_url(format!("zookeeper://{}", zookeeper.addr()));
    all_end_by_themselves(&stage);
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_does_a_bridge_of_which_a_part_grants_less() {
    let (zookeeper, redis) = (short_zookeeper().await, Redis::start().await.unwrap());
    let stage = support::on_url(format!(
        "bridge+{} zookeeper://{}",
        redis.url(),
        zookeeper.addr()
    ));
    all_end_by_themselves(&stage);
}

/// Its one term lasts until a signal ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_stays_one_whatever_lease_was_asked_for() {
    let zookeeper = short_zookeeper().await;
    let stage = support::on_url(format!("zookeeper://{}", zookeeper.addr()));
    let folder = tempfile::tempdir().unwrap();
    let terms = folder.path().join("terms");
    let script = format!("echo >> {}; exec sleep 1000", terms.display());
    let mut elect = stage.leasehold(["elect", "boss", "--ttl", "24h", "--", "sh", "-c"]);
    let mut leader = Running::start(elect.arg(script));
    until("the first term", || terms.exists().then_some(()));
    std::thread::sleep(LONGEST);
    assert_eq!(fs::read_to_string(&terms).unwrap().lines().count(), 1);
    leader.signal(Signal::TERM);
    assert_eq!(leader.end().code(), Some(143));
}
