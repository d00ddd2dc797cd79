//! TLS: the cases of every store, and what is ZooKeeper's own.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::connected;
use leasehold_core::{ErrorKind, Result, Store};
use leasehold_testbed::tls_cases::{TlsStore, shown, works};
use leasehold_testbed::verbs::{self, bounded, sleep, within};
use leasehold_testbed::{
    Certificates, KeyFiles, Proxy, TlsPort, ZooKeeper as Server, ZooKeeperOptions, tls_cases,
};
use leasehold_zookeeper::{Config, Tls, ZooKeeper};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// A server with a TLS port.
struct Secure(Server, TlsPort);

impl TlsStore for Secure {
    const SCHEME: &'static str = "zookeeper";
    const USER: &'static str = "us:s3cret@";
    const PATH: &'static str = "/test";
    const NEEDS_DEFAULT_PROVIDER: bool = true;

    async fn start(port: &TlsPort) -> Secure {
        let options = ZooKeeperOptions {
            tls: Some(port.clone()),
            ..ZooKeeperOptions::default()
        };
        Secure(Server::start_with(&options).await.unwrap(), port.clone())
    }

    fn addrs(&self) -> (Vec<String>, Vec<String>) {
        (vec![self.0.addr().into()], vec![self.1.addr()])
    }

    /// A busy machine may need longer for the first handshake than connecting may take.
    async fn connect(url: &str) -> Result<Store> {
        let mut left = 5;
        loop {
            match ZooKeeper::connect(url).await {
                Err(e) if e.kind() == ErrorKind::Unavailable && left > 0 => left -= 1,
                made => return made.map(Store::new),
            }
        }
    }

    async fn nothing_is_left(&self) {
        assert_eq!(self.0.ephemerals_count().await.unwrap(), 0);
    }
}

tls_cases!(Secure);

fn ca(certificates: &Certificates) -> String {
    format!("ca={}", certificates.ca().display())
}

fn url(at: &str, words: &str) -> String {
    format!("zookeepers://us:s3cret@{at}/test?{words}")
}

#[tokio::test]
async fn a_configuration_and_one_of_several() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let Secure(server, port) = Secure::start(&TlsPort::new(&authority).unwrap().mutual()).await;
        let client = authority.issue("client").unwrap();
        // What it cannot verify by another name it does not connect to.
        let tls = Tls::new()
            .ca_file(authority.ca())
            .client_files(&client.certificate, &client.key);
        let config = Config::new(&port.addr()).tls(tls.clone());
        works(Store::new(
            verbs::connected(|| ZooKeeper::with_config(config.clone())).await,
        ))
        .await;
        let named = Config::new(&port.addr()).tls(tls.server_name("localhost"));
        let error = ZooKeeper::with_config(named).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().contains("server_name"),
            "{error}"
        );
        // One of several that can be used is enough.
        let files = authority.issue_for("db", &["db.internal"]).unwrap();
        let Secure(_other, at) = Secure::start(&TlsPort {
            files,
            ..TlsPort::new(&authority).unwrap()
        })
        .await;
        let words = format!("{}{}", ca(&authority), shown(&client));
        works(Store::new(
            connected(&url(&format!("{},{}", at.addr(), port.addr()), &words)).await,
        ))
        .await;
        let error = ZooKeeper::connect(&url("a..b:1", &words))
            .await
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("a..b"),
            "{error}"
        );
        assert_eq!(
            server.ephemerals_count().await.unwrap(),
            0,
            "all sessions were closed"
        );
    })
    .await;
}

/// Whoever takes the connections and answers nothing, or something else than TLS, reads a handshake
/// and nothing more.
#[tokio::test]
async fn nothing_is_sent_to_who_speaks_no_tls() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let trust = ca(&authority);
        for answer in [
            &b""[..],
            b"\0\0\0\x25 a greeting of ZooKeeper's own, in plain text",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (at, heard) = (
                listener.local_addr().unwrap().to_string(),
                Arc::new(Mutex::new(Vec::new())),
            );
            let hears = heard.clone();
            let listening = tokio::spawn(async move {
                loop {
                    let (mut stream, hears) = (listener.accept().await.unwrap().0, hears.clone());
                    tokio::spawn(async move {
                        let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
                        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                            said.extend_from_slice(&buffer[..read]);
                            hears.lock().unwrap().push(said.clone());
                            if stream.write_all(answer).await.is_err() {
                                return;
                            }
                        }
                    });
                }
            });
            let error = within(10, ZooKeeper::connect(&url(&at, &trust)))
                .await
                .unwrap_err();
            assert!(
                error.kind() == ErrorKind::Unavailable && error.to_string().contains(&at),
                "{error:?}"
            );
            listening.abort();
            let heard = heard.lock().unwrap();
            assert!(!heard.is_empty());
            for said in heard.iter() {
                // The type of a record, and TLS 1.x: a handshake, or an alert.
                assert!(matches!(said[..], [0x16 | 0x15, 3, ..]), "{said:?}");
                assert!(!said.windows(6).any(|window| window == b"s3cret"));
            }
        }
    })
    .await;
}

/// A certificate runs out while a client lives: a connection that is made anew shows the one that
/// is there by then.
#[tokio::test]
async fn files_are_read_anew_for_each_connection() {
    bounded(async {
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let Secure(_server, port) =
            Secure::start(&TlsPort::new(&authority).unwrap().mutual()).await;
        let client = authority.issue("client").unwrap();
        let proxy = Proxy::to(port.addr()).await.unwrap();
        let words = format!("{}{}", ca(&authority), shown(&client));
        let store = Store::new(connected(&url(proxy.addr(), &words)).await);
        let guard = store
            .lock("x")
            .ttl(Duration::from_secs(60))
            .acquire()
            .await
            .unwrap();
        let read =
            |files: &KeyFiles| [&files.certificate, &files.key].map(|path| fs::read(path).unwrap());
        let put = |files: [Vec<u8>; 2]| {
            fs::write(&client.certificate, &files[0]).unwrap();
            fs::write(&client.key, &files[1]).unwrap();
        };
        let good = read(&client);
        // What is connected stays so.
        put(read(&stranger.issue("client").unwrap()));
        guard.confirm().await.unwrap();
        proxy.disconnect().await;
        for _ in 0..3 {
            guard.confirm().await.unwrap_err();
        }
        assert!(guard.is_valid());
        put(good);
        while guard.confirm().await.is_err() {
            sleep(5).await;
        }
        guard.release().await.unwrap();
    })
    .await;
}
