//! A client that the program has: it is used as it is, what is wrong with it is said at once, and
//! it stays the program's. And credentials that the program is asked for.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use etcd_client::{Client, ConnectOptions};
use leasehold_core::{Error, ErrorKind, Store};
use leasehold_etcd::{Config, Etcd};
use leasehold_testbed as testbed;

const PASSWORD: &str = "s3cret";

/// A server whose users have tokens of a second.
async fn with_users() -> testbed::Etcd {
    let options = testbed::EtcdOptions {
        extra: vec!["--auth-token-ttl=1".into()],
        ..Default::default()
    };
    let server = testbed::Etcd::start_with(&options).await.unwrap();
    server.add_users(PASSWORD).await.unwrap();
    server
}

fn shared(client: &Client) -> Config {
    Config::with_client(client.clone())
        .namespace("test")
        .timeout(Duration::from_secs(3))
}

/// Its token runs out again and again, and the client would not renew it by itself.
#[tokio::test]
async fn it_is_used_with_its_user_and_never_closed() {
    within(90, async {
        let server = with_users().await;
        let options = ConnectOptions::new().with_user("me", PASSWORD);
        let mut client = Client::connect([server.url()], Some(options))
            .await
            .unwrap();
        let etcd = Etcd::with_config(shared(&client)).await.unwrap();
        assert_eq!(format!("{etcd:?}"), "Etcd(a client/test)");
        let store = Store::new(etcd).ttl(Duration::from_secs(5));
        let guard = store.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(store.lock("a").acquire());
        until_waiting(&store, "a", 1).await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(
            guard.is_valid() && !waiter.is_finished(),
            "{:?}",
            guard.check()
        );
        guard.release().await.unwrap();
        within(20, waiter)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
        store.close(Duration::from_secs(5)).await.unwrap();
        assert_eq!(
            (
                server.key_count().await.unwrap(),
                server.lease_count().await.unwrap()
            ),
            (0, 0)
        );
        client.refresh_token().await.unwrap();
        client.put("theirs", "goes on", None).await.unwrap();
        // As short as it is in the documentation.
        let store = Store::new(Etcd::with_client(client).await.unwrap());
        store
            .lock("b")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_is_wrong_with_it_is_said_at_once() {
    within(60, async {
        let server = with_users().await;
        let connect = |options| Client::connect([server.url()], options);
        let nobody = connect(None).await.unwrap();
        let me = ConnectOptions::new().with_user("me", PASSWORD);
        let mut me = connect(Some(me)).await.unwrap();
        let error = Etcd::with_client(nobody).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        // It has a token that is good, and a password that is no more.
        let root = ConnectOptions::new()
            .with_user("root", PASSWORD)
            .with_auto_token_refresh(true);
        connect(Some(root))
            .await
            .unwrap()
            .user_change_password("me", "another")
            .await
            .unwrap();
        let error = Etcd::with_config(shared(&me)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(!format!("{error:?}").contains(PASSWORD));
        me.update_user(Some(("me".into(), "another".into())))
            .await
            .unwrap();
        drop(Etcd::with_config(shared(&me)).await.unwrap());
        let error = Etcd::with_config(shared(&me).options(ConnectOptions::new()))
            .await
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("its own options"),
            "{error:?}"
        );
        let silent = testbed::Proxy::to(server.addr()).await.unwrap();
        silent.hold();
        let addr = silent.addr();
        for gone in ["127.0.0.1:1", addr] {
            let gone = Client::connect([gone], None).await.unwrap();
            let error = within(10, Etcd::with_client(gone)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        }
    })
    .await;
}

/// The client sends a third of all requests to the member that is down.
#[tokio::test]
async fn a_member_that_is_down_costs_no_hold_and_no_waiter() {
    within(120, async {
        let cluster = testbed::Etcd::cluster(3).await.unwrap();
        let options = ConnectOptions::new().with_require_leader(true);
        let options = options.with_keep_alive(Duration::from_secs(2), Duration::from_secs(1));
        let client = Client::connect(cluster.urls(), Some(options))
            .await
            .unwrap();
        let store = Store::new(
            Etcd::with_config(shared(&client).timeout(Duration::from_secs(1)))
                .await
                .unwrap(),
        );
        let ttl = Duration::from_secs(15);
        let guard = store.lock("a").ttl(ttl).acquire().await.unwrap();
        let waiter = tokio::spawn(store.lock("a").ttl(ttl).acquire());
        until_waiting(&store, "a", 1).await;
        let leader = cluster.leader().await;
        cluster.members()[leader].kill().await.unwrap();
        tokio::time::sleep(ttl + Duration::from_secs(1)).await;
        assert!(
            guard.is_valid() && !waiter.is_finished(),
            "{:?}",
            guard.check()
        );
        // And one that is silent.
        cluster.members()[leader].start_again().await.unwrap();
        cluster.members()[(leader + 1) % 3].pause().await.unwrap();
        tokio::time::sleep(ttl + Duration::from_secs(1)).await;
        assert!(
            guard.is_valid() && !waiter.is_finished(),
            "{:?}",
            guard.check()
        );
        let before = guard.fencing_token();
        give_back(guard).await;
        let next = within(40, waiter).await.unwrap().unwrap();
        assert!(next.fencing_token() > before);
        give_back(next).await;
        cluster.members()[(leader + 1) % 3].resume().unwrap();
    })
    .await;
}

/// Who is asked for the password says the new one when it has been changed: no hold and no waiter
/// is lost by that, however often, and no token by itself renews itself with an old one.
#[tokio::test]
async fn credentials_that_are_asked_for_are_rotated_without_a_restart() {
    within(90, async {
        for jwt in [None, Some(Duration::from_secs(2))] {
            let options = testbed::EtcdOptions {
                jwt,
                ..Default::default()
            };
            let server = testbed::Etcd::start_with(&options).await.unwrap();
            server.add_users(PASSWORD).await.unwrap();
            let root = ConnectOptions::new()
                .with_user("root", PASSWORD)
                .with_auto_token_refresh(true);
            let mut root = Client::connect([server.url()], Some(root)).await.unwrap();
            let now = Arc::new(Mutex::new(Ok(PASSWORD.to_owned())));
            let said = now.clone();
            let config = Config::new([server.url()])
                .namespace("test")
                .timeout(Duration::from_secs(3));
            let config = config.credentials(move || {
                let said = said.lock().unwrap().clone();
                async {
                    said.map(|password| ("me".into(), password))
                        .map_err(|kind| Error::new(kind, "the vault"))
                }
            });
            assert!(!format!("{config:?}").contains(PASSWORD));
            let store = Store::new(Etcd::with_config(config.clone()).await.unwrap())
                .ttl(Duration::from_secs(5));
            let guard = store.lock("a").acquire().await.unwrap();
            let waiter = tokio::spawn(store.lock("a").acquire());
            until_waiting(&store, "a", 1).await;
            for round in 0..3 {
                let next = format!("{PASSWORD} {round}");
                *now.lock().unwrap() = Ok(next.clone());
                root.refresh_token().await.unwrap();
                root.user_change_password("me", next).await.unwrap();
                store
                    .lock("b")
                    .acquire()
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap();
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert!(
                guard.is_valid() && !waiter.is_finished(),
                "{:?}",
                guard.check()
            );
            // While the function fails, or says an old one, nothing is granted, and nothing is lost
            // before its time.
            for (failing, kind) in [
                (Err(ErrorKind::Unavailable), ErrorKind::Unavailable),
                (Err(ErrorKind::Denied), ErrorKind::Denied),
                (Ok(PASSWORD.to_owned()), ErrorKind::Denied),
            ] {
                let good = std::mem::replace(&mut *now.lock().unwrap(), failing);
                let error = Etcd::with_config(config.clone()).await.unwrap_err();
                assert_eq!(error.kind(), kind, "{error:?}");
                assert!(!format!("{error:?}").contains(PASSWORD), "{error:?}");
                *now.lock().unwrap() = good;
            }
            give_back(guard).await;
            give_back(within(20, waiter).await.unwrap().unwrap()).await;
        }
    })
    .await;
}

#[cfg(any(feature = "tls-aws-lc", feature = "tls-ring"))]
#[tokio::test]
async fn its_tls_is_used() {
    use etcd_client::{Certificate, Identity, TlsOptions};
    use leasehold_testbed::{Certificates, EtcdOptions, TlsPort};

    let read = |path: &std::path::Path| std::fs::read(path).unwrap();
    within(90, async {
        let authority = Certificates::new().unwrap();
        let port = TlsPort::new(&authority).unwrap().mutual();
        let options = EtcdOptions {
            tls: Some(port.clone()),
            ..EtcdOptions::default()
        };
        let _server = testbed::Etcd::start_with(&options).await.unwrap();
        let files = authority.issue("client").unwrap();
        let of = |ca: &std::path::Path| {
            let identity = Identity::from_pem(read(&files.certificate), read(&files.key));
            let tls = TlsOptions::new()
                .ca_certificate(Certificate::from_pem(read(ca)))
                .identity(identity);
            let options = ConnectOptions::new()
                .with_tls(tls)
                .with_connect_timeout(Duration::from_secs(3));
            Client::connect([format!("https://{}", port.addr())], Some(options))
        };
        let client = of(authority.ca()).await.unwrap();
        let store = Store::new(Etcd::with_client(client).await.unwrap());
        store
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        // Its own connecting may fail, or the store says so at once.
        if let Ok(client) = of(Certificates::new().unwrap().ca()).await {
            let error = Etcd::with_client(client).await.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unavailable),
                "{error:?}"
            );
        }
    })
    .await;
}
