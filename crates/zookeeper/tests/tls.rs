//! TLS: what makes a connection, and what must not. Each refusal is a typed error in time that names the server and what to do.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(clippy::large_futures, reason = "a test is one future")]

mod common;

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::connected;
use leasehold_core::{ErrorKind, Store};
use leasehold_testbed::seam::{bounded, sleep, within};
use leasehold_testbed::{Certificates, KeyFiles, Proxy, TlsPort, ZooKeeper as Server, ZooKeeperOptions};
use leasehold_zookeeper::{Config, Tls, ZooKeeper};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// A server with a TLS port that shows these files.
async fn serving(certificates: &Certificates, files: KeyFiles, mutual: bool) -> (Server, TlsPort) {
    let port = TlsPort { files, mutual, ..TlsPort::new(certificates).unwrap() };
    let options = ZooKeeperOptions { tls: Some(port.clone()), ..ZooKeeperOptions::default() };
    (Server::start_with(&options).await.unwrap(), port)
}

/// The words of a URL.
fn ca(certificates: &Certificates) -> String {
    format!("ca={}", certificates.ca().display())
}

fn shown(files: &KeyFiles) -> String {
    format!("cert={}&key={}", files.certificate.display(), files.key.display())
}

fn url(at: &str, words: &str) -> String {
    format!("zookeepers://us:s3cret@{at}/test?{words}")
}

/// It is refused so, within three seconds and a time-out (on a machine that has time), and says this; nothing is left in the store.
async fn refused(server: &Server, url: &str, kind: ErrorKind, words: &[&str]) {
    let error = within(10, ZooKeeper::connect(url)).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{url}: {error}");
    let text = format!("{error} {error:?}");
    for word in words {
        assert!(text.contains(word), "{url}: {text}");
    }
    assert!(!text.contains("s3cret") && !text.contains("PRIVATE KEY"), "{text}");
    assert_eq!(server.ephemerals_count().await.unwrap(), 0);
}

async fn works(store: ZooKeeper) {
    let store = Store::new(store);
    let guard = store.lock("orders/42").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    guard.confirm().await.unwrap();
    guard.release().await.unwrap();
    store.close(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn a_private_ca_and_a_client_certificate() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let (server, port) = serving(&authority, authority.issue("server").unwrap(), true).await;
        let client = authority.issue("client").unwrap();
        let words = format!("{}&{}", ca(&authority), shown(&client));
        works(connected(&url(&port.addr(), &words)).await).await;
        works(connected(&url(&format!("localhost:{}", port.port), &words)).await).await;
        // The same as a configuration. What it cannot verify by another name it does not connect to.
        let tls = Tls::new().ca_file(authority.ca()).client_files(&client.certificate, &client.key);
        works(ZooKeeper::with_config(Config::new(&port.addr()).tls(tls.clone())).await.unwrap()).await;
        let named = Config::new(&port.addr()).tls(tls.server_name("localhost"));
        let error = ZooKeeper::with_config(named).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("server_name"), "{error}");
        assert_eq!(server.ephemerals_count().await.unwrap(), 0, "all sessions were closed");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_trusted_is_refused() {
    bounded(async {
        use ErrorKind::{Denied, Unavailable};
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let (server, port) = serving(&authority, authority.issue("server").unwrap(), false).await;
        let (at, trust) = (port.addr(), ca(&authority));
        refused(&server, &url(&at, &ca(&stranger)), Denied, &[&at, "not signed by the CA", "`ca`"]).await;
        refused(&server, &url(&at, ""), Denied, &[&at, "this system trusts", "`ca`"]).await;
        // TLS where there is none, and none where there is TLS.
        let plain = server.addr().to_owned();
        refused(&server, &url(&plain, &trust), Unavailable, &[&plain, "TLS port"]).await;
        refused(&server, &format!("zookeeper://{at}"), Unavailable, &["zookeepers://"]).await;
        let (late, expired) = serving(&authority, authority.issue_expired("late").unwrap(), false).await;
        refused(&late, &url(&expired.addr(), &trust), Denied, &[&expired.addr(), "expired"]).await;
        let (other, port) = serving(&authority, authority.issue_for("db", &["db.internal"]).unwrap(), false).await;
        refused(&other, &url(&port.addr(), &trust), Denied, &[&port.addr(), "not for 127.0.0.1", "db.internal"]).await;
        // One of several that can be used is enough.
        works(connected(&url(&format!("{},{at}", port.addr()), &trust)).await).await;
    })
    .await;
}

/// Whoever takes the connections and answers nothing, or something else than TLS, reads a handshake and nothing more.
#[tokio::test]
async fn nothing_is_sent_to_who_speaks_no_tls() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let trust = ca(&authority);
        for answer in
            [&b""[..], b"\0\0\0\x25 a greeting of ZooKeeper's own, in plain text", b"HTTP/1.1 400 Bad Request\r\n\r\n"]
        {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (at, heard) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Vec::new())));
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
            let error = within(10, ZooKeeper::connect(&url(&at, &trust))).await.unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(&at), "{error:?}");
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

#[tokio::test]
async fn a_client_that_is_not_trusted_is_refused() {
    bounded(async {
        use ErrorKind::{Denied, Invalid};
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let (server, port) = serving(&authority, authority.issue("server").unwrap(), true).await;
        let (at, trust) = (port.addr(), ca(&authority));
        refused(&server, &url(&at, &trust), Denied, &[&at, "demands a client certificate", "`cert`"]).await;
        for files in [stranger.issue("client").unwrap(), authority.issue_expired("late").unwrap()] {
            let words = format!("{trust}&{}", shown(&files));
            refused(&server, &url(&at, &words), Denied, &[&at, "refused the client's certificate"]).await;
        }
        let [one, two] = ["one", "two"].map(|name| authority.issue(name).unwrap());
        let half = KeyFiles { certificate: one.certificate.clone(), key: two.key.clone() };
        refused(&server, &url(&at, &format!("{trust}&{}", shown(&half))), Invalid, &["do not fit together"]).await;
        refused(&server, &url(&at, "ca=/missing.pem"), Invalid, &["/missing.pem"]).await;
        refused(&server, &url("a..b:1", &trust), Invalid, &["a..b"]).await;
    })
    .await;
}

/// A certificate runs out while a client lives: a connection that is made anew shows the one that is there by then.
#[tokio::test]
async fn files_are_read_anew_for_each_connection() {
    bounded(async {
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let (_server, port) = serving(&authority, authority.issue("server").unwrap(), true).await;
        let client = authority.issue("client").unwrap();
        let proxy = Proxy::to(port.addr()).await.unwrap();
        let words = format!("{}&{}", ca(&authority), shown(&client));
        let store = Store::new(connected(&url(proxy.addr(), &words)).await);
        let guard = store.lock("x").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        let read = |files: &KeyFiles| [&files.certificate, &files.key].map(|path| fs::read(path).unwrap());
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
