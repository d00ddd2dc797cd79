//! TLS to every node: the cases of every store, and which servers make a Redlock.

use std::time::Duration;

use leasehold_core::{ErrorKind, Result, Store};
use leasehold_redis::redlock::client::IntoConnectionInfo;
use leasehold_redis::redlock::{Config, Redlock, Tls};
use leasehold_testbed::tls_cases::{TlsStore, works};
use leasehold_testbed::verbs::{bounded, until};
use leasehold_testbed::{Certificates, Redis, RedisOptions, TlsPort, tls_cases};

/// Three nodes, each with a TLS port.
struct Secure(Vec<(Redis, TlsPort)>);

async fn node(port: TlsPort) -> (Redis, TlsPort) {
    let options = RedisOptions {
        extra: port.redis(),
        password: Some("s3cret".into()),
        ..RedisOptions::default()
    };
    (Redis::start_with(&options).await.unwrap(), port)
}

impl TlsStore for Secure {
    const SCHEME: &'static str = "redlock";
    const USER: &'static str = ":s3cret@";
    const PATH: &'static str = "";

    async fn start(port: &TlsPort) -> Secure {
        let mut nodes = vec![node(port.clone()).await];
        for _ in 0..2 {
            nodes.push(node(port.at_another_port().unwrap()).await);
        }
        Secure(nodes)
    }

    fn addrs(&self) -> (Vec<String>, Vec<String>) {
        self.0
            .iter()
            .map(|(node, port)| (node.addr().to_owned(), port.addr()))
            .unzip()
    }

    async fn connect(url: &str) -> Result<Store> {
        Redlock::connect(url).await.map(Store::new)
    }

    async fn nothing_is_left(&self) {
        for (node, _) in &self.0 {
            // The testbed's own connection is the one that asks.
            until(async || {
                node.info("clients")
                    .await
                    .unwrap()
                    .contains("connected_clients:1\r")
            })
            .await;
        }
    }
}

tls_cases!(Secure);

/// As a configuration. A node that is away is done without. One whose certificate is refused is a mistake that does not go away.
#[tokio::test]
async fn a_node_whose_certificate_ran_out_is_named() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let Secure(mut nodes) = Secure::start(&TlsPort::new(&authority).unwrap()).await;
        let made = async |nodes: &[(Redis, TlsPort)]| {
            let infos = nodes.iter().map(|(_, port)| {
                format!("redis://:s3cret@{}", port.addr())
                    .into_connection_info()
                    .unwrap()
            });
            let config = Config::new(infos.collect()).timeout(Duration::from_secs(2));
            Redlock::with_config(config.tls(Tls::new().ca_file(authority.ca()))).await
        };
        works(Store::new(made(&nodes).await.unwrap())).await;
        let late = TlsPort {
            files: authority.issue_expired("late").unwrap(),
            ..TlsPort::new(&authority).unwrap()
        };
        nodes[1] = node(late).await;
        let error = made(&nodes).await.unwrap_err();
        let text = error.to_string();
        assert!(
            error.kind() == ErrorKind::Denied && text.contains("has expired"),
            "{text}"
        );
        assert!(text.contains(&nodes[1].1.addr()), "{text}");
    })
    .await;
}
