//! TLS: what makes a connection, and what must not. Each refusal is a typed error in time that names the server and what to do.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::fs;
use std::time::Duration;

use leasehold_core::seam::Backend;
use leasehold_core::{ErrorKind, Store};
use leasehold_redis::client::IntoConnectionInfo;
use leasehold_redis::{Config, Redis, Tls};
use leasehold_testbed::{Certificates, KeyFiles, Proxy, RedisCluster, RedisClusterOptions, RedisOptions, TlsPort};
use support::*;

/// A server with a TLS port that shows these files.
async fn serving(certificates: &Certificates, files: KeyFiles, mutual: bool) -> (Server, TlsPort) {
    let port = TlsPort { files, mutual, ..TlsPort::new(certificates).unwrap() };
    let options = RedisOptions { extra: port.redis(), password: Some("s3cret".into()), ..RedisOptions::default() };
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
    format!("rediss://:s3cret@{at}?timeout=4000&{words}")
}

/// It is refused so, within the limits, and says this; nothing stays connected.
async fn refused(server: &Server, url: &str, kind: ErrorKind, words: &[&str]) {
    let error = within(30, Redis::connect(url)).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{url}: {error}");
    let text = format!("{error} {error:?}");
    for word in words {
        assert!(text.contains(word), "{url}: {text}");
    }
    assert!(!text.contains("s3cret") && !text.contains("PRIVATE KEY"), "{text}");
    // The testbed's own connection is the one that asks.
    while connections(server).await > 1 {
        sleep(5).await;
    }
}

async fn connections(server: &Server) -> u64 {
    let info = server.info("clients").await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("connected_clients:")).unwrap();
    line.trim().parse().unwrap()
}

async fn works(store: Redis) {
    let store = Store::new(store);
    let guard = store.lock("orders/42").ttl(TTL).acquire().await.unwrap();
    guard.confirm().await.unwrap();
    guard.release().await.unwrap();
    store.close(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn a_private_ca_a_name_and_a_client_certificate() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let (server, port) = serving(&authority, authority.issue("server").unwrap(), true).await;
        let client = authority.issue("client").unwrap();
        let words = format!("{}&{}", ca(&authority), shown(&client));
        works(Redis::connect(&url(&port.addr(), &words)).await.unwrap()).await;
        let by_name = format!("localhost:{}", port.port);
        works(Redis::connect(&url(&by_name, &words)).await.unwrap()).await;
        // The same as a configuration, beside replicas of which none is wanted.
        let info = format!("redis://:s3cret@{}", port.addr()).into_connection_info().unwrap();
        let tls = Tls::new().ca_file(authority.ca()).client_files(&client.certificate, &client.key);
        let config = Config::new(info).tls(tls).min_replicas(0, TTL);
        let debug = format!("{config:?}");
        assert!(debug.contains("ca.pem") && !debug.contains("s3cret"), "{debug}");
        works(Redis::with_config(config).await.unwrap()).await;
        // A certificate for another name, which the user knows.
        let (other, at) = serving(&authority, authority.issue_for("db", &["db.internal"]).unwrap(), false).await;
        let named = format!("{}&server_name=db.internal", ca(&authority));
        works(Redis::connect(&url(&at.addr(), &named)).await.unwrap()).await;
        drop((server, other));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_trusted_is_refused() {
    bounded(async {
        use ErrorKind::{Denied, Unavailable};
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let (server, port) = serving(&authority, authority.issue("server").unwrap(), false).await;
        let at = port.addr();
        refused(&server, &url(&at, &ca(&stranger)), Denied, &[&at, "not signed by the CA", "`ca`"]).await;
        refused(&server, &url(&at, ""), Denied, &[&at, "this system trusts", "`ca`"]).await;
        let words = format!("{}&server_name=db.internal", ca(&authority));
        refused(&server, &url(&at, &words), Denied, &[&at, "not for db.internal", "localhost", "`server_name`"]).await;
        // TLS where there is none, and none where there is TLS.
        let plain = server.addr().to_owned();
        refused(&server, &url(&plain, &ca(&authority)), Unavailable, &[&plain, "TLS port"]).await;
        refused(&server, &format!("redis://:s3cret@{at}?timeout=4000"), Unavailable, &[&at, "rediss://"]).await;
        let (late, port) = serving(&authority, authority.issue_expired("late").unwrap(), false).await;
        refused(&late, &url(&port.addr(), &ca(&authority)), Denied, &[&port.addr(), "expired"]).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_is_not_trusted_is_refused() {
    bounded(async {
        use ErrorKind::Denied;
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let (server, port) = serving(&authority, authority.issue("server").unwrap(), true).await;
        let (at, trust) = (port.addr(), ca(&authority));
        refused(&server, &url(&at, &trust), Denied, &[&at, "demands a client certificate", "`cert`"]).await;
        for files in [stranger.issue("client").unwrap(), authority.issue_expired("late").unwrap()] {
            let words = format!("{trust}&{}", shown(&files));
            refused(&server, &url(&at, &words), Denied, &[&at, "refused the client's certificate"]).await;
        }
        // The password is still asked for.
        let words = format!("{trust}&{}", shown(&authority.issue("client").unwrap()));
        let wrong = url(&at, &words).replace("s3cret", "wr0ng");
        refused(&server, &wrong, Denied, &[&at, "credentials"]).await;
    })
    .await;
}

#[tokio::test]
async fn files_that_are_of_no_use_are_named() {
    bounded(async {
        use ErrorKind::Invalid;
        let authority = Certificates::new().unwrap();
        let (server, port) = serving(&authority, authority.issue("server").unwrap(), false).await;
        let folder = authority.ca().parent().unwrap().to_owned();
        let [one, two] = ["one", "two"].map(|name| authority.issue(name).unwrap());
        let junk = folder.join("junk.pem");
        fs::write(&junk, "-----BEGIN CERTIFICATE-----\ns3cret\n").unwrap();
        let (junk, missing) = (junk.display(), folder.join("missing.pem").display().to_string());
        let half = KeyFiles { certificate: one.certificate.clone(), key: two.key.clone() };
        let swapped = KeyFiles { certificate: one.key.clone(), key: one.certificate.clone() };
        let no_key = KeyFiles { certificate: one.certificate.clone(), key: one.certificate.clone() };
        for (words, says) in [
            (format!("ca={missing}"), &*missing),
            (format!("ca={junk}"), "junk.pem"),
            (format!("ca={}", folder.display()), "no file"),
            ("ca=/dev/zero".into(), "no file"),
            (format!("ca={}", one.key.display()), "no certificate in"),
            (format!("cert={}", one.certificate.display()), "cert without key"),
            (format!("key={}", one.key.display()), "key without cert"),
            (shown(&half), "do not fit together"),
            (shown(&swapped), "no certificate in"),
            (shown(&no_key), "no private key in"),
            (format!("{}&server_name=a%20b", ca(&authority)), "server_name"),
        ] {
            refused(&server, &url(&port.addr(), &words), Invalid, &[says]).await;
        }
    })
    .await;
}

/// A certificate runs out while a client lives: the next connection shows the one that is there by then.
#[tokio::test]
async fn files_are_read_anew_for_each_connection() {
    bounded(async {
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let (server, port) = serving(&authority, authority.issue("server").unwrap(), true).await;
        let client = authority.issue("client").unwrap();
        let proxy = Proxy::to(&port.addr()).await.unwrap();
        let words = format!("{}&{}", ca(&authority), shown(&client));
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
        // A connection with what is there now is refused, and the hold is not lost by it.
        loop {
            match guard.confirm().await {
                Err(e) if e.kind() == ErrorKind::Denied => {
                    assert!(e.to_string().contains("refused the client's certificate"), "{e}");
                    break;
                }
                Ok(()) | Err(_) => sleep(5).await,
            }
        }
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
        guard.release().await.unwrap();
        drop(server);
    })
    .await;
}

#[tokio::test]
async fn sentinels_and_the_server_that_they_name_are_reached_over_tls() {
    bounded(async {
        let certificates = Certificates::new().unwrap();
        let (port, own) = (TlsPort::new(&certificates).unwrap(), TlsPort::new(&certificates).unwrap());
        // What replicas and sentinels connect to, and what sentinels name, is the TLS port then.
        let secure = |port: &TlsPort| [port.redis(), vec!["--tls-replication".into(), "yes".into()]].concat();
        let options = RedisOptions { extra: secure(&port), password: Some("s3cret".into()), ..RedisOptions::default() };
        let _server = Server::start_with(&options).await.unwrap();
        let mut lines = format!("sentinel monitor main 127.0.0.1 {} 1\nsentinel auth-pass main s3cret\n", port.port);
        for pair in secure(&own).chunks_exact(2) {
            lines += &format!("{} {}\n", &pair[0][2..], pair[1]);
        }
        let sentinel = Server::start_sentinel(&lines).await.unwrap();
        let by = |scheme: &str, at: &str, words: &str| format!("{scheme}://:s3cret@{at}/main?timeout=4000&{words}");
        works(Redis::connect(&by("rediss+sentinel", &own.addr(), &ca(&certificates))).await.unwrap()).await;
        // None of them falls back to plain text, and none trusts another CA.
        let stranger = Certificates::new().unwrap();
        for (url, kind) in [
            (by("rediss+sentinel", sentinel.addr(), &ca(&certificates)), ErrorKind::Unavailable),
            (by("rediss+sentinel", &own.addr(), &ca(&stranger)), ErrorKind::Denied),
            (by("redis+sentinel", &own.addr(), ""), ErrorKind::Unavailable),
            (by("redis+sentinel", sentinel.addr(), ""), ErrorKind::Unavailable),
        ] {
            let error = Redis::connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{url}: {error}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_cluster_is_reached_by_tls_at_each_of_its_nodes() {
    bounded(async {
        let certificates = Certificates::new().unwrap();
        let tls = Some(TlsPort::new(&certificates).unwrap());
        let options = RedisClusterOptions { replicas: 0, tls, ..RedisClusterOptions::default() };
        let cluster = RedisCluster::start(&options).await.unwrap();
        let url = format!("{}?timeout=4000&{}", cluster.url(), ca(&certificates));
        works(Redis::connect(&url).await.unwrap()).await;
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
        let other = Certificates::new().unwrap();
        let wrong = format!("{}?timeout=4000&{}", cluster.url(), ca(&other));
        assert_eq!(kind(Redis::connect(&wrong).await), ErrorKind::Denied);
    })
    .await;
}
