//! Words of a URL that a real server has to answer: sockets, databases, and certificates that are verified less.

use crate::support::*;
use leasehold_core::Store;
use leasehold_redis::Redis;
use leasehold_testbed::tls_cases::works;
use leasehold_testbed::{Redis as Server, RedisOptions};

#[tokio::test]
async fn a_socket_in_words_of_other_clients() {
    bounded(async {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a b.sock").display().to_string();
        let options = RedisOptions {
            extra: ["--unixsocket".into(), socket.clone()].into(),
            password: Some("pw".into()),
            ..RedisOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let path = socket.replace(' ', "%20");
        for (url, db) in [
            (format!("unix://:pw@{path}?db=1"), "1"),
            (format!("redis+unix://{path}?pass=pw&db=2"), "2"),
            (
                format!("VALKEY://default:pw@{}/3?protocol=3", server.addr()),
                "3",
            ),
        ] {
            let store = Store::new(Redis::connect(&url).await.unwrap());
            let guard = store.lock("a").acquire().await.unwrap();
            let info = server.command(&["INFO", "keyspace"]).await.unwrap();
            let info = info.text().unwrap();
            assert!(info.contains(&format!("db{db}:")), "{info}");
            guard.release().await.unwrap();
            works(store).await;
        }
    })
    .await;
}

#[cfg(feature = "tls-no-provider")]
#[tokio::test]
async fn a_certificate_is_verified_no_less_than_the_words_say() {
    use leasehold_core::backend::Backend;
    use leasehold_testbed::{Certificates, TlsPort};

    bounded(async {
        let (authority, stranger) = (Certificates::new().unwrap(), Certificates::new().unwrap());
        let mut port = TlsPort::new(&authority).unwrap();
        port.files = authority.issue_for("db", &["db.internal"]).unwrap();
        let options = RedisOptions {
            extra: port.redis(),
            ..RedisOptions::default()
        };
        let _server = Server::start_with(&options).await.unwrap();
        let own = format!("ssl_ca_certs={}", authority.ca().display());
        let others = format!("ssl_ca_certs={}", stranger.ca().display());
        for (words, refused, warns) in [
            (own.clone(), Some("db.internal"), false),
            (format!("{own}&ssl_check_hostname=false"), None, false),
            (
                format!("{others}&ssl_check_hostname=false"),
                Some("not signed by the CA"),
                false,
            ),
            ("ssl_cert_reqs=none".to_owned(), None, true),
        ] {
            let url = format!("rediss://{}?{words}", port.addr());
            match (Redis::connect(&url).await, refused) {
                (Ok(store), None) => {
                    let told = store.guarantees();
                    let told = told
                        .warnings()
                        .iter()
                        .any(|it| it.contains("ssl_cert_reqs=none"));
                    assert_eq!(told, warns, "{words}");
                    works(Store::new(store)).await;
                }
                (Err(e), Some(why)) => assert!(e.to_string().contains(why), "{words}: {e}"),
                (connected, _) => panic!("{words}: {connected:?}"),
            }
        }
    })
    .await;
}
