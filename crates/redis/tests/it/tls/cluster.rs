//! In a Cluster: the cases of every store, and that each node is reached so.

use leasehold_core::backend::Backend;
use leasehold_core::{ErrorKind, Result, Store};
use leasehold_redis::Redis;
use leasehold_testbed::tls_cases::{TlsStore, works};
use leasehold_testbed::{Certificates, RedisCluster, RedisClusterOptions, TlsPort, tls_cases};

use super::*;

/// A Cluster of one node: nodes would not trust each other's wrong certificates.
struct Lone(RedisCluster);

impl TlsStore for Lone {
    const SCHEME: &'static str = "redis+cluster";
    const USER: &'static str = ":s3cret@";
    const PATH: &'static str = "";

    fn secure_scheme() -> String {
        "rediss+cluster".into()
    }

    async fn start(port: &TlsPort) -> Lone {
        let node = RedisOptions {
            password: Some("s3cret".into()),
            ..RedisOptions::default()
        };
        let tls = Some(port.clone());
        let options = RedisClusterOptions {
            primaries: 1,
            replicas: 0,
            node,
            tls,
            ..RedisClusterOptions::default()
        };
        Lone(RedisCluster::start(&options).await.unwrap())
    }

    fn addrs(&self) -> (Vec<String>, Vec<String>) {
        let url = self.0.url();
        (
            vec![self.0.nodes()[0].addr().into()],
            vec![url.rsplit(['@', '/']).next().unwrap().to_owned()],
        )
    }

    async fn connect(url: &str) -> Result<Store> {
        Redis::connect(url).await.map(Store::new)
    }

    async fn nothing_is_left(&self) {
        // The testbed's own connection is the one that asks.
        until(async || {
            self.0.nodes()[0]
                .info("clients")
                .await
                .unwrap()
                .contains("connected_clients:1\r")
        })
        .await;
    }
}

tls_cases!(Lone);

#[tokio::test]
async fn each_of_its_nodes_is_reached_over_tls() {
    bounded(async {
        let certificates = Certificates::new().unwrap();
        let tls = Some(TlsPort::new(&certificates).unwrap());
        let options = RedisClusterOptions {
            replicas: 0,
            tls,
            ..RedisClusterOptions::default()
        };
        let cluster = RedisCluster::start(&options).await.unwrap();
        let url = format!("{}?timeout=4000&{}", cluster.url(), ca(&certificates));
        works(Store::new(Redis::connect(&url).await.unwrap())).await;
        let store = Redis::connect(&url).await.unwrap();
        let claims: Vec<_> = (0..12).map(|n| fair(&format!("held/{n}"))).collect();
        for claim in &claims {
            granted(&store, claim).await;
        }
        // Also where another node sends it.
        let slot = cluster.slot("held/0").await.unwrap();
        let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
        cluster.move_slot(slot, to).await.unwrap();
        store.release(&claims[0], None).await.unwrap();
        // Nothing is said in plain text, and a plain URL gets nothing at these ports.
        let plain = cluster.url().replace("rediss+", "redis+");
        assert_eq!(kind(Redis::connect(&plain).await), ErrorKind::Unavailable);
    })
    .await;
}
