//! Private etcd servers and clusters: start, stop, restart, pause, counters, isolation.

use std::time::Duration;

use leasehold_testbed::{Etcd, EtcdCluster, EtcdOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

const NEVER: Duration = Duration::from_millis(150);
const SOON: Duration = Duration::from_secs(30);
const PUT: &str = r#"{"key":"Zm9v","value":"YmFy"}"#;
const GET: &str = r#"{"key":"Zm9v"}"#;

#[tokio::test]
async fn answers_and_counts() {
    let etcd = Etcd::start().await.unwrap();
    assert_eq!(
        (
            etcd.key_count().await.unwrap(),
            etcd.lease_count().await.unwrap()
        ),
        (0, 0)
    );
    let before = etcd.handled().await.unwrap();
    etcd.post("/v3/kv/put", PUT).await.unwrap();
    etcd.post("/v3/lease/grant", r#"{"TTL":60}"#).await.unwrap();
    assert!(
        etcd.post("/v3/kv/range", GET)
            .await
            .unwrap()
            .contains("YmFy")
    );
    let after = etcd.handled().await.unwrap();
    let calls = |method| after.get(method).unwrap_or(&0) - before.get(method).unwrap_or(&0);
    assert_eq!(
        (
            calls("Put"),
            calls("LeaseGrant"),
            calls("Range"),
            calls("Txn")
        ),
        (1, 1, 1, 0)
    );
    assert_eq!(
        (
            etcd.key_count().await.unwrap(),
            etcd.lease_count().await.unwrap()
        ),
        (1, 1)
    );
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

/// Asks with a token of before.
async fn asked_with(etcd: &Etcd, token: &str) -> String {
    let mut stream = TcpStream::connect(etcd.addr()).await.unwrap();
    let head = "POST /v3/kv/range HTTP/1.0\r\nAuthorization: ";
    let request = format!(
        "{head}{token}\r\nContent-Length: {}\r\n\r\n{GET}",
        GET.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_change_of_its_users_makes_tokens_old() {
    let options = EtcdOptions {
        jwt: Some(Duration::from_secs(600)),
        ..EtcdOptions::default()
    };
    let etcd = Etcd::start_with(&options).await.unwrap();
    assert!(!etcd.has_users());
    etcd.add_users("pass").await.unwrap();
    assert!(etcd.has_users());
    let answer = etcd
        .post(
            "/v3/auth/authenticate",
            r#"{"name":"me","password":"pass"}"#,
        )
        .await
        .unwrap();
    let token = answer
        .split("\"token\":\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    assert!(asked_with(&etcd, token).await.contains("200 OK"));
    etcd.change_users().await.unwrap();
    let refused = asked_with(&etcd, token).await;
    assert!(
        refused.contains("revision") && !refused.contains("200 OK"),
        "{refused}"
    );
    etcd.post("/v3/kv/put", PUT).await.unwrap();
}

#[tokio::test]
async fn a_cluster_replaces_a_dead_leader_and_takes_it_back() {
    let cluster = Etcd::cluster(3).await.unwrap();
    let leader = timeout(SOON, cluster.leader()).await.unwrap();
    cluster.members()[leader]
        .post("/v3/kv/put", PUT)
        .await
        .unwrap();
    cluster.members()[leader].kill().await.unwrap();
    let next = timeout(SOON, cluster.leader()).await.unwrap();
    assert_ne!(leader, next);
    assert_eq!(cluster.members()[next].key_count().await.unwrap(), 1);
    cluster.members()[leader].start_again().await.unwrap();
    assert_eq!(cluster.members()[leader].key_count().await.unwrap(), 1);
}

#[tokio::test]
async fn a_member_is_isolated_from_the_others_and_not_from_clients() {
    let options = EtcdOptions {
        peer_proxies: true,
        ..EtcdOptions::default()
    };
    let cluster = Etcd::cluster_with(3, &options).await.unwrap();
    for _ in 0..2 {
        let old = timeout(SOON, cluster.leader()).await.unwrap();
        assert!(cluster.isolate(old));
        until_healthy(&cluster, old, false).await;
        let new = timeout(SOON, another_leader(&cluster, old)).await.unwrap();
        // It may still be taking over.
        let put = async {
            while cluster.members()[new]
                .post("/v3/kv/put", PUT)
                .await
                .is_err()
            {}
        };
        timeout(SOON, put).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        assert!(
            !is_healthy(&cluster, old).await,
            "no way around the proxies"
        );
        cluster.rejoin(old).await;
        until_healthy(&cluster, old, true).await;
        assert_eq!(cluster.members()[old].key_count().await.unwrap(), 1);
    }
    let leader = timeout(SOON, cluster.leader()).await.unwrap();
    let follower = (leader + 1) % 3;
    cluster.isolate(follower);
    until_healthy(&cluster, follower, false).await;
    until_healthy(&cluster, leader, true).await;
}

/// The member that leads in the place of one that may still believe it does.
async fn another_leader(cluster: &EtcdCluster, old: usize) -> usize {
    loop {
        let leader = cluster.leader().await;
        if leader != old {
            return leader;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a member can read what a majority agrees on.
async fn is_healthy(cluster: &EtcdCluster, member: usize) -> bool {
    let read = cluster.members()[member].post("/v3/kv/range", GET);
    matches!(timeout(Duration::from_millis(500), read).await, Ok(Ok(_)))
}

async fn until_healthy(cluster: &EtcdCluster, member: usize, wanted: bool) {
    let becomes = async {
        while is_healthy(cluster, member).await != wanted {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, becomes)
        .await
        .unwrap_or_else(|_| panic!("member {member} is not healthy: {wanted}"));
}
