//! Private etcd servers and clusters: start, stop, restart, pause, counters.

use std::time::Duration;

use leasehold_testbed::Etcd;
use tokio::time::timeout;

const NEVER: Duration = Duration::from_millis(150);
const SOON: Duration = Duration::from_secs(30);
const PUT: &str = r#"{"key":"Zm9v","value":"YmFy"}"#;
const GET: &str = r#"{"key":"Zm9v"}"#;

#[tokio::test]
async fn answers_and_counts() {
    let etcd = Etcd::start().await.unwrap();
    assert_eq!((etcd.key_count().await.unwrap(), etcd.lease_count().await.unwrap()), (0, 0));
    let before = etcd.handled().await.unwrap();
    etcd.post("/v3/kv/put", PUT).await.unwrap();
    etcd.post("/v3/lease/grant", r#"{"TTL":60}"#).await.unwrap();
    assert!(etcd.post("/v3/kv/range", GET).await.unwrap().contains("YmFy"));
    let after = etcd.handled().await.unwrap();
    let calls = |method| after.get(method).unwrap_or(&0) - before.get(method).unwrap_or(&0);
    assert_eq!((calls("Put"), calls("LeaseGrant"), calls("Range"), calls("Txn")), (1, 1, 1, 0));
    assert!(etcd.received().await.unwrap().contains_key("Put"));
    assert_eq!((etcd.key_count().await.unwrap(), etcd.lease_count().await.unwrap()), (1, 1));
    assert!(etcd.is_leader().await.unwrap());
}

#[tokio::test]
async fn keeps_its_data_unless_asked_not_to() {
    let etcd = Etcd::start().await.unwrap();
    etcd.post("/v3/kv/put", PUT).await.unwrap();
    etcd.restart_with_data().await.unwrap();
    assert_eq!(etcd.key_count().await.unwrap(), 1);
    etcd.restart_without_data().await.unwrap();
    assert_eq!(etcd.key_count().await.unwrap(), 0);
    etcd.pause().await.unwrap();
    assert!(timeout(NEVER, etcd.key_count()).await.is_err());
    etcd.resume().unwrap();
    assert_eq!(etcd.key_count().await.unwrap(), 0);
    etcd.stop().await.unwrap();
    assert!(!etcd.is_running());
}

#[tokio::test]
async fn a_cluster_replaces_a_dead_leader_and_takes_it_back() {
    let cluster = Etcd::cluster(3).await.unwrap();
    let leader = timeout(SOON, cluster.leader()).await.unwrap();
    cluster.members()[leader].post("/v3/kv/put", PUT).await.unwrap();
    cluster.members()[leader].kill().await.unwrap();
    let next = timeout(SOON, cluster.leader()).await.unwrap();
    assert_ne!(leader, next);
    assert_eq!(cluster.members()[next].key_count().await.unwrap(), 1);
    cluster.members()[leader].start_again().await.unwrap();
    assert_eq!(cluster.members()[leader].key_count().await.unwrap(), 1);
}
