//! Private ZooKeeper servers and ensembles: start, stop, restart, pause, counters, isolation.

use std::time::Duration;

use leasehold_testbed::{ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions};
use tokio::time::{sleep, timeout};

const NEVER: Duration = Duration::from_millis(150);
const GLANCE: Duration = Duration::from_millis(20);
const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn answers_and_counts() {
    let zookeeper = ZooKeeper::start().await.unwrap();
    assert_eq!(zookeeper.mode().await.unwrap(), "standalone");
    assert_eq!(zookeeper.ephemerals_count().await.unwrap(), 0);
    assert_eq!(
        (
            zookeeper.watch_count().await.unwrap(),
            zookeeper.connection_count().await.unwrap()
        ),
        (0, 0)
    );
    let first = zookeeper.packets_received().await.unwrap();
    assert_eq!(zookeeper.packets_received().await.unwrap(), first + 1);
}

#[tokio::test]
async fn restarts_pauses_and_stops() {
    let zookeeper = ZooKeeper::start().await.unwrap();
    zookeeper.restart_with_data().await.unwrap();
    zookeeper.restart_without_data().await.unwrap();
    zookeeper.pause().await.unwrap();
    assert!(timeout(NEVER, zookeeper.mode()).await.is_err());
    zookeeper.resume().unwrap();
    zookeeper.mode().await.unwrap();
    zookeeper.stop().await.unwrap();
    assert!(!zookeeper.is_running());
}

#[tokio::test]
async fn has_other_limits_after_a_restart() {
    let zookeeper = ZooKeeper::start().await.unwrap();
    zookeeper
        .set_sessions(Duration::from_secs(1), Duration::from_secs(2))
        .unwrap();
    zookeeper.restart_with_data().await.unwrap();
    let conf = zookeeper.four_letter_word("conf").await.unwrap();
    assert!(
        conf.contains("minSessionTimeout=1000") && conf.contains("maxSessionTimeout=2000"),
        "{conf}"
    );
}

#[tokio::test]
async fn a_follower_is_isolated_from_the_others_and_not_from_clients() {
    let options = ZooKeeperOptions {
        peer_proxies: true,
        ..ZooKeeperOptions::default()
    };
    let ensemble = ZooKeeper::ensemble_with(3, &options).await.unwrap();
    let leader = timeout(SOON, ensemble.leader()).await.unwrap();
    for follower in (0..3).filter(|member| *member != leader) {
        assert!(ensemble.isolate(follower));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(
            mode(&ensemble, follower).await,
            "follower",
            "it has not noticed, and answers"
        );
        until(&ensemble, follower, "").await;
        assert_eq!(
            mode(&ensemble, leader).await,
            "leader",
            "the majority goes on"
        );
        sleep(Duration::from_secs(1)).await;
        assert_eq!(
            mode(&ensemble, follower).await,
            "",
            "no way around the proxies"
        );
        ensemble.rejoin(follower).await;
        until(&ensemble, follower, "follower").await;
    }
}

#[tokio::test]
async fn an_isolated_leader_is_replaced() {
    let options = ZooKeeperOptions {
        peer_proxies: true,
        ..ZooKeeperOptions::default()
    };
    let ensemble = ZooKeeper::ensemble_with(3, &options).await.unwrap();
    let old = timeout(SOON, ensemble.leader()).await.unwrap();
    ensemble.isolate(old);
    until(&ensemble, old, "").await;
    let new = timeout(SOON, ensemble.leader()).await.unwrap();
    assert_ne!(old, new);
    ensemble.rejoin(old).await;
    until(&ensemble, old, "follower").await;
    assert_eq!(ensemble.connect_string().split(',').count(), 3);
}

#[tokio::test]
async fn an_ensemble_without_proxies_elects_again() {
    let ensemble = ZooKeeper::ensemble(3).await.unwrap();
    assert!(!ensemble.isolate(0));
    let old = timeout(SOON, ensemble.leader()).await.unwrap();
    ensemble.members()[old].kill().await.unwrap();
    let new = timeout(SOON, ensemble.leader()).await.unwrap();
    assert_ne!(old, new);
    ensemble.members()[old]
        .restart_without_data()
        .await
        .unwrap();
    until(&ensemble, old, "follower").await;
}

/// What a member says it is; empty when it serves no client.
async fn mode(ensemble: &ZooKeeperEnsemble, member: usize) -> String {
    timeout(SOON, ensemble.members()[member].mode())
        .await
        .unwrap()
        .unwrap_or_default()
}

async fn until(ensemble: &ZooKeeperEnsemble, member: usize, wanted: &str) {
    let becomes = async {
        while mode(ensemble, member).await != wanted {
            sleep(GLANCE).await;
        }
    };
    timeout(SOON, becomes)
        .await
        .unwrap_or_else(|_| panic!("member {member} never became {wanted:?}"));
}
