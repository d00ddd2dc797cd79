//! TLS: the cases of every store, and what is etcd's own.

use std::fs;
use std::time::Duration;

use leasehold_core::{ErrorKind, Result, Store};
use leasehold_etcd::{Config, Etcd, Tls};
use leasehold_testbed as testbed;
use leasehold_testbed::tls_cases::{TlsStore, shown, works};
use leasehold_testbed::verbs::{bounded, sleep};
use leasehold_testbed::{Certificates, EtcdOptions, KeyFiles, Proxy, TlsPort, tls_cases};

/// A server with a TLS port.
struct Secure(testbed::Etcd, TlsPort);

impl TlsStore for Secure {
    const SCHEME: &'static str = "etcd";
    const USER: &'static str = "";
    const PATH: &'static str = "/test";

    async fn start(port: &TlsPort) -> Secure {
        let options = EtcdOptions {
            tls: Some(port.clone()),
            ..EtcdOptions::default()
        };
        Secure(
            testbed::Etcd::start_with(&options).await.unwrap(),
            port.clone(),
        )
    }

    fn addrs(&self) -> (Vec<String>, Vec<String>) {
        (vec![self.0.addr().into()], vec![self.1.addr()])
    }

    async fn connect(url: &str) -> Result<Store> {
        Etcd::connect(url).await.map(Store::new)
    }

    async fn nothing_is_left(&self) {
        assert_eq!(
            (
                self.0.key_count().await.unwrap(),
                self.0.lease_count().await.unwrap()
            ),
            (0, 0)
        );
    }
}

tls_cases!(Secure);

fn ca(certificates: &Certificates) -> String {
    format!("ca={}", certificates.ca().display())
}

fn url(at: &str, words: &str) -> String {
    format!("etcds://{at}/test?{words}")
}

#[tokio::test]
async fn a_configuration_a_name_that_the_user_knows_and_one_of_several() {
    bounded(async {
        let authority = Certificates::new().unwrap();
        let Secure(_server, port) =
            Secure::start(&TlsPort::new(&authority).unwrap().mutual()).await;
        let client = authority.issue("client").unwrap();
        // A plain endpoint in it is a mistake, and is not connected to.
        let tls = Tls::new()
            .ca_file(authority.ca())
            .client_files(&client.certificate, &client.key);
        let config = |scheme| Config::new([format!("{scheme}://{}", port.addr())]).tls(tls.clone());
        works(Store::new(
            Etcd::with_config(config("https")).await.unwrap(),
        ))
        .await;
        let error = Etcd::with_config(config("http")).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("https://"),
            "{error}"
        );
        let files = authority.issue_for("db", &["db.internal"]).unwrap();
        let Secure(_other, at) = Secure::start(&TlsPort {
            files,
            ..TlsPort::new(&authority).unwrap()
        })
        .await;
        let named = format!("{}&server_name=db.internal", ca(&authority));
        works(Store::new(
            Etcd::connect(&url(&at.addr(), &named)).await.unwrap(),
        ))
        .await;
        // One of several that can be used is enough.
        let words = format!("{}{}", ca(&authority), shown(&client));
        works(Store::new(
            Etcd::connect(&url(&format!("{},{}", at.addr(), port.addr()), &words))
                .await
                .unwrap(),
        ))
        .await;
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
        let store = Store::new(Etcd::connect(&url(proxy.addr(), &words)).await.unwrap());
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
        // What is connected anew has those of now, and verifies both sides: nothing of the
        // connection before is resumed.
        let refused = async || {
            proxy.disconnect().await;
            for _ in 0..5 {
                let error = guard.confirm().await.unwrap_err();
                assert!(error.is_retryable(), "an outage: {error:?}");
            }
        };
        let confirmed = async || {
            while guard.confirm().await.is_err() {
                sleep(5).await;
            }
        };
        refused().await;
        put(good.clone());
        confirmed().await;
        let trusted = fs::read(authority.ca()).unwrap();
        fs::write(authority.ca(), fs::read(stranger.ca()).unwrap()).unwrap();
        guard.confirm().await.unwrap();
        refused().await;
        assert!(guard.is_valid());
        fs::write(authority.ca(), trusted).unwrap();
        confirmed().await;
        guard.release().await.unwrap();
    })
    .await;
}
