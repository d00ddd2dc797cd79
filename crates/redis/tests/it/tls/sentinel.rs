//! Behind a sentinel, which has a certificate of its own: the cases of every store, and what is wrong with the server that it names.

use leasehold_core::{ErrorKind, Result, Store};
use leasehold_redis::Redis;
use leasehold_testbed::tls_cases::{TlsStore, works};
use leasehold_testbed::{Certificates, Reply, TlsPort, tls_cases};

use super::*;

/// A sentinel with a TLS port, and the master that it watches, whose TLS port is another one.
struct Watched {
    sentinel: Server,
    own: TlsPort,
    master: Server,
}

/// What replicas and sentinels connect to, and what sentinels name, is the TLS port then.
fn secure(port: &TlsPort) -> Vec<String> {
    [port.redis(), vec!["--tls-replication".into(), "yes".into()]].concat()
}

impl Watched {
    /// They serve TLS at these ports.
    async fn by(own: &TlsPort, of_master: &TlsPort) -> Watched {
        let extra = secure(of_master);
        let options = RedisOptions {
            extra,
            password: Some("s3cret".into()),
            ..RedisOptions::default()
        };
        let master = Server::start_with(&options).await.unwrap();
        let at = of_master.port;
        let mut lines =
            format!("sentinel monitor main 127.0.0.1 {at} 1\nsentinel auth-pass main s3cret\n");
        for pair in secure(own).chunks_exact(2) {
            lines += &format!("{} {}\n", &pair[0][2..], pair[1]);
        }
        Watched {
            sentinel: Server::start_sentinel(&lines).await.unwrap(),
            own: own.clone(),
            master,
        }
    }
}

impl TlsStore for Watched {
    const SCHEME: &'static str = "redis+sentinel";
    const USER: &'static str = ":s3cret@";
    const PATH: &'static str = "/main";

    fn secure_scheme() -> String {
        "rediss+sentinel".into()
    }

    async fn start(port: &TlsPort) -> Watched {
        Watched::by(port, &port.at_another_port().unwrap()).await
    }

    fn addrs(&self) -> (Vec<String>, Vec<String>) {
        (vec![self.sentinel.addr().into()], vec![self.own.addr()])
    }

    async fn connect(url: &str) -> Result<Store> {
        Redis::connect(url).await.map(Store::new)
    }

    async fn nothing_is_left(&self) {
        until(async || {
            self.sentinel
                .info("clients")
                .await
                .unwrap()
                .contains("connected_clients:1\r")
        })
        .await;
        // The testbed's own connection, and the sentinel's two.
        let list = async || {
            self.master
                .command(&["CLIENT", "LIST"])
                .await
                .unwrap()
                .text()
                .unwrap()
        };
        until(async || {
            list()
                .await
                .lines()
                .filter(|client| !client.contains("name=sentinel-"))
                .count()
                == 1
        })
        .await;
        assert!(
            matches!(self.master.command(&["KEYS", "*"]).await.unwrap(), Reply::Array(keys) if keys.is_empty())
        );
    }
}

tls_cases!(Watched);

/// The sentinel is trusted, and the server that it names is not.
#[tokio::test]
async fn a_master_whose_certificate_is_wrong_is_named() {
    bounded(async {
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let port = |files| TlsPort {
            files,
            ..TlsPort::new(&authority).unwrap()
        };
        let own = TlsPort::new(&authority).unwrap();
        for (files, says) in [
            (authority.issue_expired("late").unwrap(), "expired"),
            (
                authority.issue_for("db", &["db.internal"]).unwrap(),
                "not for 127.0.0.1",
            ),
            (stranger.issue("server").unwrap(), "not signed by the CA"),
        ] {
            let of_master = port(files);
            let servers = Watched::by(&own, &of_master).await;
            let url = format!(
                "rediss+sentinel://:s3cret@{}/main?timeout=4000&{}",
                own.addr(),
                ca(&authority)
            );
            let words = words_without(&["s3cret"], Redis::connect(&url).await);
            assert!(words.contains("Denied") && words.contains(says), "{words}");
            assert!(words.contains(&of_master.addr()), "{words}");
            servers.nothing_is_left().await;
        }
    })
    .await;
}

/// None falls back to plain text to the server when its own connection is over TLS, nor the reverse.
#[tokio::test]
async fn the_sentinel_and_the_master_are_both_reached_over_tls() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let own = TlsPort::new(&authority).unwrap();
        let servers = Watched::start(&own).await;
        let url = |scheme: &str, at: &str, words: &str| {
            format!("{scheme}://:s3cret@{at}/main?timeout=4000&{words}")
        };
        works(Store::new(
            Redis::connect(&url("rediss+sentinel", &own.addr(), &ca(&authority)))
                .await
                .unwrap(),
        ))
        .await;
        // The sentinel has a plain port too, and names the TLS port of the master there.
        let error = Redis::connect(&url("redis+sentinel", servers.sentinel.addr(), ""))
            .await
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable
                && error.to_string().contains("rediss+sentinel://"),
            "{error}"
        );
    })
    .await;
}
