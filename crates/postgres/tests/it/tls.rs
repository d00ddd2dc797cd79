//! TLS: the cases of every store, in the words of PostgreSQL, and what is its own.

use std::fs;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::Backend;
use leasehold_core::{Error, ErrorKind, Result, Store};
use leasehold_postgres::{Config, Postgres, Tls};
use leasehold_testbed::tls_cases::{TlsStore, works};
use leasehold_testbed::{Certificates, PostgresOptions, Proxy, TlsPort, tls_cases};

/// A server with TLS.
struct Secure(Server, TlsPort);

/// The words of the cases, and those of PostgreSQL.
const WORDS: [(&str, &str); 3] = [
    ("ca", "sslrootcert"),
    ("cert", "sslcert"),
    ("key", "sslkey"),
];

impl TlsStore for Secure {
    const SCHEME: &'static str = "postgres";
    const USER: &'static str = "app:s3cret@";
    const PATH: &'static str = "/postgres";

    async fn start(port: &TlsPort) -> Secure {
        assert_eq!(
            (Server::USER, Server::PASSWORD, Server::DATABASE),
            ("app", "s3cret", "postgres")
        );
        let options = PostgresOptions {
            tls: Some(port.clone()),
            ..options()
        };
        Secure(Server::start_with(&options).await.unwrap(), port.clone())
    }

    fn addrs(&self) -> (Vec<String>, Vec<String>) {
        (vec![self.0.addr().into()], vec![self.1.addr()])
    }

    async fn connect(url: &str) -> Result<Store> {
        let url = match url.strip_prefix("postgress:") {
            Some(rest) => format!("postgres:{rest}&sslmode=verify-full"),
            None => url.to_owned(),
        };
        let url = WORDS.iter().fold(url, |url, (ours, theirs)| {
            url.replace(&format!("&{ours}="), &format!("&{theirs}="))
        });
        Postgres::connect(&url).await.map(Store::new).map_err(|e| {
            let said = WORDS.iter().fold(format!("{e:?}"), |said, (ours, theirs)| {
                said.replace(theirs, ours)
            });
            Error::new(e.kind(), said)
        })
    }

    async fn nothing_is_left(&self) {
        until(async || self.0.clients().await.unwrap() == 0).await;
    }
}

// A server has one port for both, so what is refused in plain text has a case of its own.
tls_cases! { Secure:
    a_private_ca_and_a_client_certificate a_wrong_ca a_wrong_host_name an_expired_certificate half_a_key_pair no_client_certificate
    two_providers_and_no_choice a_provider_of_no_use
}

fn url(at: &str, words: &str) -> String {
    format!("postgres://app:s3cret@{at}/postgres?timeout=4000&{words}")
}

fn secure(authority: &Certificates) -> String {
    format!(
        "sslmode=verify-full&sslrootcert={}",
        authority.ca().display()
    )
}

#[tokio::test]
async fn plain_text_and_tls_are_never_taken_for_one_another() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let plain = server().await;
        let error = Postgres::connect(&url(plain.addr(), &secure(&authority)))
            .await
            .unwrap_err();
        let words = format!("{error}");
        assert!(
            error.kind() == ErrorKind::Unavailable
                && words.contains("no TLS port")
                && words.contains(plain.addr()),
            "{words}"
        );
        let Secure(server, _port) =
            Secure::start(&TlsPort::new(&authority).unwrap().mutual()).await;
        let error = Postgres::connect(&url(server.addr(), "sslmode=disable"))
            .await
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::Denied && error.to_string().contains("sslmode=verify-full"),
            "{error}"
        );
    })
    .await;
}

#[tokio::test]
async fn every_connection_is_over_tls() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let Secure(server, port) = Secure::start(&TlsPort::new(&authority).unwrap()).await;
        let tls = Tls::new().ca_file(authority.ca());
        let config = Config::from_url(&url(&port.addr(), "schema=locks")).unwrap().tls(tls);
        assert!(!format!("{config:?}").contains("s3cret"));
        let store = Store::new(Postgres::with_config(config).await.unwrap());
        assert!(store.guarantees().pushed_wake());
        let guard = store.lock("x").acquire().await.unwrap();
        guard.confirm().await.unwrap();
        let clients = "SELECT count(*) FILTER (WHERE s.ssl) || ' of ' || count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
            WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()";
        let text = server.text(clients).await.unwrap();
        let (encrypted, all) = text.split_once(" of ").unwrap();
        assert!(encrypted == all && all != "0", "{text}");
        guard.release().await.unwrap();
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
        let shown = format!(
            "&sslcert={}&sslkey={}",
            client.certificate.display(),
            client.key.display()
        );
        let config = url(
            proxy.addr(),
            &format!("{}{shown}&listen=off", secure(&authority)),
        );
        let store = Store::new(Postgres::connect(&config).await.unwrap());
        let guard = store
            .lock("x")
            .ttl(Duration::from_secs(60))
            .acquire()
            .await
            .unwrap();
        let good = [&client.certificate, &client.key].map(|path| fs::read(path).unwrap());
        let put = |files: [Vec<u8>; 2]| {
            fs::write(&client.certificate, &files[0]).unwrap();
            fs::write(&client.key, &files[1]).unwrap();
        };
        let foreign = stranger.issue("client").unwrap();
        put([&foreign.certificate, &foreign.key].map(|path| fs::read(path).unwrap()));
        // What is connected stays so.
        guard.confirm().await.unwrap();
        proxy.disconnect().await;
        // A refusal while the store is in use is an outage: who waits goes on waiting.
        let refused = async || {
            let error = guard.confirm().await.err()?;
            assert!(error.is_retryable(), "{error:?}");
            error
                .to_string()
                .contains("refused the client's certificate")
                .then_some(())
        };
        until(async || refused().await.is_some()).await;
        let waiter = tokio::spawn(store.lock("y").acquire());
        until(async || refused().await.is_some()).await;
        assert!(!waiter.is_finished());
        // A file that is missing for a while ends no hold either.
        fs::remove_file(&client.key).unwrap();
        until(async || {
            guard
                .confirm()
                .await
                .is_err_and(|e| e.kind() == ErrorKind::Unavailable)
        })
        .await;
        assert!(guard.is_valid());
        put(good);
        until(async || guard.confirm().await.is_ok()).await;
        waiter.await.unwrap().unwrap().release().await.unwrap();
        works(store).await;
    })
    .await;
}

/// A server with TLS whose certificate is for another host.
async fn elsewhere(authority: &Certificates) -> (Server, TlsPort) {
    let mut port = TlsPort::new(authority).unwrap();
    port.files = authority.issue_for("db", &["db.internal"]).unwrap();
    let options = PostgresOptions {
        tls: Some(port.clone()),
        ..options()
    };
    (Server::start_with(&options).await.unwrap(), port)
}

fn of(server: &Server, words: &str) -> String {
    crate::support::url(server, &format!("&{words}"))
}

/// Whether the connections of clients are over TLS: all, none, or some.
async fn over_tls(server: &Server) -> String {
    let clients = "SELECT string_agg(DISTINCT s.ssl::text, ',') FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
        WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()";
    server.text(clients).await.unwrap()
}

/// The warnings that are about TLS.
fn warned(store: &Postgres) -> usize {
    let all = store.guarantees();
    let of_tls = all
        .warnings()
        .iter()
        .filter(|warning| warning.contains("sslmode=verify-full"));
    of_tls.count()
}

#[tokio::test]
async fn each_mode_of_tls_does_what_it_says() {
    bounded(Box::pin(async {
        let (plain, authority) = (server().await, Certificates::new().unwrap());
        let stranger = Certificates::new().unwrap();
        let (secure, _port) = elsewhere(&authority).await;
        let own = format!("sslrootcert={}", authority.ca().display());
        let others = format!("sslrootcert={}", stranger.ca().display());
        for (words, at_secure, at_plain, warns) in [
            ("sslmode=disable", "false", "false", 0),
            ("sslmode=allow", "false", "false", 1),
            ("sslmode=prefer", "true", "false", 1),
            ("", "true", "false", 0),
            ("sslmode=require", "true", "no TLS port", 1),
            (&format!("sslmode=require&{own}"), "true", "no TLS port", 0),
            (
                &format!("sslmode=require&{others}"),
                "not signed by the CA",
                "no TLS port",
                0,
            ),
            (
                &format!("sslmode=verify-ca&{own}"),
                "true",
                "no TLS port",
                0,
            ),
            (
                &format!("sslmode=verify-full&{own}"),
                "db.internal",
                "no TLS port",
                0,
            ),
            (
                "sslmode=require&channel_binding=require",
                "true",
                "no TLS port",
                0,
            ),
            (
                "channel_binding=require",
                "true",
                "channel_binding=require",
                0,
            ),
        ] {
            for (server, expected) in [(&secure, at_secure), (&plain, at_plain)] {
                let url = of(server, words);
                if expected != "true" && expected != "false" {
                    let said = Postgres::connect(&url).await.unwrap_err().to_string();
                    assert!(
                        said.contains(expected) && !said.contains(Server::PASSWORD),
                        "{words}: {said}"
                    );
                    continue;
                }
                let store = client_at(&url).await;
                assert_eq!(warned(&store), warns, "{words}");
                assert_eq!(over_tls(server).await, expected, "{words}");
                store.close().await.unwrap();
                until(async || server.clients().await.unwrap() == 0).await;
            }
        }
    }))
    .await;
}

/// The server lets clients in by one way only.
#[tokio::test]
async fn the_other_way_is_tried_where_the_first_one_is_refused() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let (server, _port) = elsewhere(&authority).await;
        for (rule, words, over) in [
            (
                "hostssl all all 127.0.0.1/32 scram-sha-256",
                "sslmode=allow",
                "true",
            ),
            (
                "hostnossl all all 127.0.0.1/32 scram-sha-256",
                "sslmode=prefer",
                "false",
            ),
        ] {
            rules(&server, rule).await;
            let store = client_at(&of(&server, words)).await;
            assert_eq!(over_tls(&server).await, over, "{words}");
            works(Store::new(store)).await;
            until(async || server.clients().await.unwrap() == 0).await;
            let wrong = of(&server, words).replace(Server::PASSWORD, "wr0ng");
            let error = Postgres::connect(&wrong).await.unwrap_err();
            assert!(error.to_string().contains("28P01"), "{error}");
        }
        let refused = async |words: &str| {
            let error = Postgres::connect(&of(&server, words)).await.unwrap_err();
            assert!(
                error.kind() == ErrorKind::Denied && error.to_string().contains("28000"),
                "{error}"
            );
        };
        refused("sslmode=require").await;
        // A login over TLS that fails is no reason for plain text, which would be let in.
        let ident =
            "hostssl all all 127.0.0.1/32 ident\nhostnossl all all 127.0.0.1/32 scram-sha-256";
        rules(&server, ident).await;
        refused("sslmode=prefer").await;
    })
    .await;
}
