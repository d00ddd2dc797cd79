//! TLS: the cases of every store, with one server, behind a sentinel and in a Cluster, and what is Redis' own.

mod cluster;
mod sentinel;

use std::fs;
use std::time::Duration;

use crate::support::*;
use leasehold_core::{Error, ErrorKind, Result, Store};
use leasehold_redis::client::IntoConnectionInfo;
use leasehold_redis::{Config, Redis, Tls};
use leasehold_testbed::tls_cases::{TlsStore, shown, works};
use leasehold_testbed::{Certificates, Proxy, RedisOptions, TlsPort, tls_cases};

/// A server with a TLS port.
struct Secure(Server, TlsPort);

impl TlsStore for Secure {
    const SCHEME: &'static str = "redis";
    const USER: &'static str = ":s3cret@";
    const PATH: &'static str = "";

    async fn start(port: &TlsPort) -> Secure {
        let options = RedisOptions {
            extra: port.redis(),
            password: Some("s3cret".into()),
            ..RedisOptions::default()
        };
        Secure(Server::start_with(&options).await.unwrap(), port.clone())
    }

    fn addrs(&self) -> (Vec<String>, Vec<String>) {
        (vec![self.0.addr().into()], vec![self.1.addr()])
    }

    async fn connect(url: &str) -> Result<Store> {
        Redis::connect(url).await.map(Store::new)
    }

    async fn nothing_is_left(&self) {
        // The testbed's own connection is the one that asks.
        until(async || {
            self.0
                .info("clients")
                .await
                .unwrap()
                .contains("connected_clients:1\r")
        })
        .await;
    }
}

tls_cases!(Secure);

fn ca(certificates: &Certificates) -> String {
    format!("ca={}", certificates.ca().display())
}

fn url(at: &str, words: &str) -> String {
    format!("rediss://:s3cret@{at}?timeout=4000&{words}")
}

/// It closes the connection in the handshake, before it could say why.
#[tokio::test]
async fn a_full_server_is_thought_of() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let Secure(server, port) = Secure::start(&TlsPort::new(&authority).unwrap()).await;
        let url = url(&port.addr(), &ca(&authority));
        let _first = Redis::connect(&url).await.unwrap();
        let full = ["CONFIG", "SET", "maxclients", "1"];
        server.command(&full).await.unwrap();
        let error = Redis::connect(&url).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.to_string().contains("maxclients"),
            "{error:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_configuration_and_a_name_that_the_user_knows() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let Secure(_server, port) =
            Secure::start(&TlsPort::new(&authority).unwrap().mutual()).await;
        let client = authority.issue("client").unwrap();
        let info = format!("redis://:s3cret@{}", port.addr())
            .into_connection_info()
            .unwrap();
        let tls = Tls::new()
            .ca_file(authority.ca())
            .client_files(&client.certificate, &client.key);
        // Beside replicas of which none is wanted.
        let config = Config::new(info).tls(tls).min_replicas(0, TTL);
        let debug = format!("{config:?}");
        assert!(
            debug.contains("ca.pem") && !debug.contains("s3cret"),
            "{debug}"
        );
        works(Store::new(Redis::with_config(config).await.unwrap())).await;
        // The password is still asked for.
        let words = format!("{}{}", ca(&authority), shown(&client));
        let error = Redis::connect(&url(&port.addr(), &words).replace("s3cret", "wr0ng"))
            .await
            .unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(
            error.kind() == ErrorKind::Denied
                && text.contains(&port.addr())
                && text.contains("credentials"),
            "{text}"
        );
        assert!(!text.contains("wr0ng"), "{text}");
        let files = authority.issue_for("db", &["db.internal"]).unwrap();
        let Secure(_other, at) = Secure::start(&TlsPort {
            files,
            ..TlsPort::new(&authority).unwrap()
        })
        .await;
        let named = format!("{}&server_name=db.internal", ca(&authority));
        works(Store::new(
            Redis::connect(&url(&at.addr(), &named)).await.unwrap(),
        ))
        .await;
    })
    .await;
}

#[tokio::test]
async fn files_that_are_of_no_use_are_named() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let folder = authority.ca().parent().unwrap().to_owned();
        let one = authority.issue("one").unwrap();
        for (words, says) in [
            (format!("ca={}", folder.display()), "no file"),
            ("ca=/dev/zero".into(), "no file"),
            (format!("ca={}", one.key.display()), "no certificate in"),
            (
                format!(
                    "cert={}&key={}",
                    one.key.display(),
                    one.certificate.display()
                ),
                "no certificate in",
            ),
            (
                format!("cert={0}&key={0}", one.certificate.display()),
                "no private key in",
            ),
            (
                format!("{}&server_name=a%20b", ca(&authority)),
                "server_name",
            ),
        ] {
            let error = Redis::connect(&url("127.0.0.1:1", &words))
                .await
                .unwrap_err();
            assert!(
                error.kind() == ErrorKind::Invalid && error.to_string().contains(says),
                "{words}: {error}"
            );
        }
    })
    .await;
}

/// A certificate runs out while a client lives: the next connection shows the one that is there by then.
#[tokio::test]
async fn files_are_read_anew_for_each_connection() {
    bounded(async {
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let Secure(_server, port) =
            Secure::start(&TlsPort::new(&authority).unwrap().mutual()).await;
        let client = authority.issue("client").unwrap();
        let proxy = Proxy::to(&port.addr()).await.unwrap();
        let words = format!("{}{}", ca(&authority), shown(&client));
        let store = Store::new(Redis::connect(&url(proxy.addr(), &words)).await.unwrap());
        let lock = store.lock("x").ttl(Duration::from_secs(60));
        let guard = lock.acquire().await.unwrap();
        // What is connected stays so.
        let foreign = stranger.issue("client").unwrap();
        let good = [&client.certificate, &client.key].map(|path| fs::read(path).unwrap());
        let put = |files: [Vec<u8>; 2]| {
            fs::write(&client.certificate, &files[0]).unwrap();
            fs::write(&client.key, &files[1]).unwrap();
        };
        put([&foreign.certificate, &foreign.key].map(|path| fs::read(path).unwrap()));
        guard.confirm().await.unwrap();
        proxy.disconnect().await;
        // A connection with what is there now is refused, which is an outage: the hold is not lost by it, and who waits goes on waiting.
        let refused = async || {
            loop {
                let error = guard.confirm().await.err();
                assert!(error.as_ref().is_none_or(Error::is_retryable), "{error:?}");
                let words = error.map_or_else(String::new, |e| e.to_string());
                if words.contains("refused the client's certificate") {
                    return;
                }
                sleep(5).await;
            }
        };
        refused().await;
        let waiter = tokio::spawn(store.lock("y").acquire());
        refused().await;
        assert!(!waiter.is_finished());
        // Neither is it by files that are missing for a while, nor does who waits give up.
        fs::remove_file(&client.key).unwrap();
        loop {
            match guard.confirm().await {
                Err(e) if e.to_string().contains("cannot be read") => {
                    assert_eq!(e.kind(), ErrorKind::Unavailable);
                    break;
                }
                Ok(()) | Err(_) => sleep(5).await,
            }
        }
        assert!(guard.is_valid());
        put(good);
        while guard.confirm().await.is_err() {
            sleep(5).await;
        }
        waiter.await.unwrap().unwrap().release().await.unwrap();
        guard.release().await.unwrap();
    })
    .await;
}
