//! TLS to every node: which servers and certificates make a Redlock, and which do not. What one connection may meet is tested by
//! `leasehold-redis`, whose connections these are.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use leasehold_core::{ErrorKind, Result, Store};
use leasehold_redlock::client::IntoConnectionInfo;
use leasehold_redlock::{Config, Redlock, Tls};
use leasehold_testbed::seam::{TTL, bounded};
use leasehold_testbed::{Certificates, Redis, RedisOptions, TlsPort};

/// Nodes of which this one shows a certificate that has run out.
async fn nodes(authority: &Certificates, expired: Option<usize>) -> Vec<(Redis, TlsPort)> {
    let mut nodes = Vec::new();
    for nth in 0..3 {
        let mut port = TlsPort::new(authority).unwrap();
        if expired == Some(nth) {
            port.files = authority.issue_expired("late").unwrap();
        }
        let options = RedisOptions { extra: port.redis(), ..RedisOptions::default() };
        nodes.push((Redis::start_with(&options).await.unwrap(), port));
    }
    nodes
}

fn url(scheme: &str, nodes: &[(Redis, TlsPort)], words: &str) -> String {
    let hosts: Vec<String> = nodes.iter().map(|(_, port)| port.addr()).collect();
    format!("{scheme}://{}?timeout=2000&{words}", hosts.join(","))
}

fn refused(made: Result<Redlock>, kind: ErrorKind, words: &[&str]) {
    let error = made.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[tokio::test]
async fn every_node_is_reached_over_tls_or_not_at_all() {
    bounded(async {
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let nodes = nodes(&authority, None).await;
        let trust = |authority: &Certificates| format!("ca={}", authority.ca().display());
        let infos = nodes.iter().map(|(_, port)| format!("redis://{}", port.addr()).into_connection_info().unwrap());
        let config = Config::new(infos.collect()).timeout(Duration::from_secs(2));
        for made in [
            Redlock::connect(&url("redlocks", &nodes, &trust(&authority))).await,
            Redlock::with_config(config.tls(Tls::new().ca_file(authority.ca()))).await,
        ] {
            let store = Store::new(made.unwrap());
            let guard = store.lock("orders/42").ttl(TTL).acquire().await.unwrap();
            guard.confirm().await.unwrap();
            guard.release().await.unwrap();
        }
        let first = nodes[0].1.addr();
        let made = Redlock::connect(&url("redlocks", &nodes, &trust(&stranger))).await;
        refused(made, ErrorKind::Denied, &[&first, "not signed by the CA"]);
        let made = Redlock::connect(&url("redlock", &nodes, "prefix=")).await;
        refused(made, ErrorKind::Unavailable, &[&first, "redlocks://"]);
        let made = Redlock::connect(&url("redlock", &nodes, &trust(&authority))).await;
        refused(made, ErrorKind::Invalid, &["ca is for TLS"]);
    })
    .await;
}

/// A node that is away is done without. One whose certificate is refused is a mistake that does not go away.
#[tokio::test]
async fn a_node_whose_certificate_ran_out_is_named() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let nodes = nodes(&authority, Some(1)).await;
        let made = Redlock::connect(&url("redlocks", &nodes, &format!("ca={}", authority.ca().display()))).await;
        refused(made, ErrorKind::Denied, &[&nodes[1].1.addr(), "has expired"]);
    })
    .await;
}
