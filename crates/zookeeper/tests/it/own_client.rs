//! A connector that the program has: its credentials and its TLS are used, and what is wrong with
//! it is said before anything is sent.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{ErrorKind, Store};
use leasehold_zookeeper::zookeeper_client::{Client, Error as ZkError};
use leasehold_zookeeper::{Config, ZooKeeper};

#[tokio::test]
async fn its_credentials_are_used_for_each_session() {
    limited(async {
        let server = server().await;
        let connector = Client::connector().with_auth("digest", b"me:s3cret");
        let theirs = connector.clone().connect(server.addr()).await.unwrap();
        let config = Config::with_connector(server.addr(), connector.clone())
            .root("/mine")
            .private();
        assert!(!format!("{config:?}").contains("s3cret"));
        let store = Store::new(ZooKeeper::with_config(config).await.unwrap());
        // Two sessions of this store, of which neither is theirs.
        let guards = [
            hold(&store, "a", LONG).await,
            hold(&store, "b", SHORT).await,
        ];
        let strange = Client::connect(server.addr()).await.unwrap();
        assert_eq!(
            strange.list_children("/mine").await.unwrap_err(),
            ZkError::NoAuth
        );
        assert!(theirs.list_children("/mine/a").await.unwrap().len() == 1);
        assert_eq!(
            theirs.list_ephemerals("/mine").await.unwrap(),
            Vec::<String>::new()
        );
        for guard in guards {
            guard.release().await.unwrap();
        }
        store.close(Duration::from_secs(5)).await.unwrap();
        theirs.check_stat("/mine").await.unwrap().unwrap();
        // As short as it is in the documentation.
        let store = Store::new(
            ZooKeeper::with_connector(server.addr(), connector)
                .await
                .unwrap(),
        );
        store
            .lock("c")
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
async fn what_is_wrong_with_it_is_said_before_anything_is_sent() {
    limited(async {
        let server = server().await;
        let theirs = Client::connect(server.addr()).await.unwrap();
        let resumes = Client::connector().with_session(theirs.session().clone());
        for (connector, part) in [
            (resumes, "with_session"),
            (Client::connector().with_detached(), "with_detached"),
        ] {
            let error = ZooKeeper::with_connector(server.addr(), connector)
                .await
                .unwrap_err();
            assert!(
                error.kind() == ErrorKind::Invalid && error.to_string().contains(part),
                "{error:?}"
            );
        }
        // It was taken from nobody.
        theirs.check_stat("/").await.unwrap().unwrap();
        assert_eq!(server.connection_count().await.unwrap(), 1);
        let secure = format!("tcp+tls://{}", server.addr());
        let kind = if cfg!(feature = "tls-no-provider") {
            ErrorKind::Invalid
        } else {
            ErrorKind::Unsupported
        };
        let error = ZooKeeper::with_connector(&secure, Client::connector())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        let mixed = format!("{secure},{}", server.addr());
        let error = ZooKeeper::with_connector(&mixed, Client::connector())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        let gone =
            ZooKeeper::with_connector("127.0.0.1:1", Client::connector().with_readonly(true))
                .await
                .unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Unavailable, "{gone:?}");
    })
    .await;
}

/// Its TLS is the program's, and nothing is sent without it.
#[cfg(feature = "tls-no-provider")]
#[tokio::test]
async fn its_tls_is_used_for_all_servers_or_nothing_is_sent() {
    use leasehold_testbed::{Certificates, TlsPort, ZooKeeper as Server, ZooKeeperOptions, verbs};
    use leasehold_zookeeper::Tls;
    use leasehold_zookeeper::zookeeper_client::TlsOptions;

    limited(async {
        let authority = Certificates::new().unwrap();
        let port = TlsPort::new(&authority).unwrap();
        let options = ZooKeeperOptions {
            tls: Some(port.clone()),
            ..ZooKeeperOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let ca = std::fs::read_to_string(authority.ca()).unwrap();
        let connector = Client::connector().with_tls(TlsOptions::new().with_pem_ca(&ca).unwrap());
        let secure = format!("tcp+tls://{}", port.addr());
        // The first handshakes of a server are slow on a busy machine.
        let store =
            verbs::connected(|| ZooKeeper::with_connector(&secure, connector.clone())).await;
        drop(hold_patiently(&Store::new(store), "a", LONG).await);
        for servers in [
            server.addr().to_owned(),
            format!("{secure},{}", server.addr()),
        ] {
            let error = ZooKeeper::with_connector(&servers, connector.clone())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{servers}: {error:?}");
        }
        let both = Config::with_connector(&secure, connector.clone())
            .tls(Tls::new().ca_file(authority.ca()));
        assert_eq!(
            ZooKeeper::with_config(both).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
        let none = ZooKeeper::with_connector("tcp+tls://a..b:1", connector)
            .await
            .unwrap_err();
        assert_eq!(
            none.kind(),
            ErrorKind::Invalid,
            "the client crate would panic: {none:?}"
        );
        let stranger = std::fs::read_to_string(Certificates::new().unwrap().ca()).unwrap();
        let wrong = Client::connector().with_tls(TlsOptions::new().with_pem_ca(&stranger).unwrap());
        assert_eq!(
            ZooKeeper::with_connector(&secure, wrong)
                .await
                .unwrap_err()
                .kind(),
            ErrorKind::Unavailable
        );
    })
    .await;
}
