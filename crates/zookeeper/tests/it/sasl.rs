//! Accounts of the servers' own, by SASL with DIGEST-MD5: who gets in, who owns the nodes, and what
//! a hold outlives.

use std::sync::{Arc, Mutex};

use crate::common::{LONG, connected, fair, granted, limited, release, until, waiting};
use futures_util::future::try_join_all;
use leasehold_core::{Error, ErrorKind, Result, Store};
use leasehold_testbed::fleet_cases::FleetStore;
use leasehold_testbed::verbs::{self, within};
use leasehold_testbed::{
    Certificates, TlsPort, ZooKeeper as Server, ZooKeeperOptions, fleet_cases,
};
use leasehold_zookeeper::{Config, ZooKeeper};
use zookeeper_client::{
    Acl, Acls, AuthId, Client, CreateMode, Error as ZkError, Permission, SaslOptions,
};

const PASSWORD: &str = "s3cret";

fn accounts(password: &str) -> Vec<(String, String)> {
    [("me", password), ("you", "other")]
        .map(|(user, password)| (user.to_owned(), password.to_owned()))
        .into()
}

async fn server() -> Server {
    let options = ZooKeeperOptions {
        accounts: accounts(PASSWORD),
        ..ZooKeeperOptions::default()
    };
    Server::start_with(&options).await.unwrap()
}

fn url(user: &str, password: &str, at: &str) -> String {
    format!("zookeeper://{user}:{password}@{at}/team/locks?sasl=digest-md5")
}

fn all(scheme: &str, id: &str) -> Acl {
    Acl::new(Permission::ALL, AuthId::new(scheme, id))
}

/// It is refused so in time, without a secret, and holds nothing.
///
/// A server that refuses closes the connection at once. Who sends something just then gets a reset
/// in place of the answer.
async fn refused(config: Config, kind: ErrorKind) -> Error {
    let error = loop {
        let error = within(10, ZooKeeper::with_config(config.clone()))
            .await
            .unwrap_err();
        if error.kind() != ErrorKind::Unavailable {
            break error;
        }
        assert!(error.to_string().contains("refuses"), "{error}");
    };
    assert_eq!(error.kind(), kind, "{error:?}");
    let text = format!("{error} {error:?}");
    assert!(
        !text.contains(PASSWORD) && !text.contains("wr0ng"),
        "{text}"
    );
    error
}

#[tokio::test]
async fn an_account_owns_its_nodes_and_nothing_above_them() {
    limited(async {
        let server = server().await;
        let at = server.addr();
        let mine = connected(&url("me", PASSWORD, at)).await;
        let claim = fair("a", LONG);
        let grant = granted(&mine, &claim).await;
        waiting(&connected(&url("me", PASSWORD, at)).await, &fair("a", LONG)).await;
        let raw = Client::connector()
            .with_sasl(SaslOptions::digest_md5("me", PASSWORD))
            .connect(at)
            .await
            .unwrap();
        for node in ["/team/locks", "/team/locks/a", grant.place.as_str()] {
            assert_eq!(
                raw.get_acl(node).await.unwrap().0,
                [all("sasl", "me")],
                "{node}"
            );
        }
        assert_eq!(raw.get_acl("/team").await.unwrap().0, *Acls::anyone_all());
        for other in [
            url("you", "other", at),
            format!("zookeeper://{at}/team/locks"),
        ] {
            refused(Config::from_url(&other).unwrap(), ErrorKind::Denied).await;
        }
        release(&mine, &claim, &grant.place).await;
    })
    .await;
}

#[tokio::test]
async fn who_is_not_known_is_refused() {
    limited(async {
        let server = server().await;
        for (user, password) in [("me", "wr0ng"), ("you", PASSWORD), ("nobody", PASSWORD)] {
            let error = refused(
                Config::from_url(&url(user, password, server.addr())).unwrap(),
                ErrorKind::Denied,
            )
            .await;
            assert!(error.to_string().contains("credentials"), "{error}");
        }
        // A server that knows no accounts takes everybody for nobody.
        let open = crate::common::server().await;
        refused(
            Config::from_url(&url("me", PASSWORD, open.addr())).unwrap(),
            ErrorKind::Denied,
        )
        .await;
        assert_eq!(
            (
                server.ephemerals_count().await.unwrap(),
                open.ephemerals_count().await.unwrap()
            ),
            (0, 0)
        );
    })
    .await;
}

/// Also where the server lets nobody else in.
#[tokio::test]
async fn it_is_sent_over_tls_too() {
    limited(async {
        let authority = Certificates::new().unwrap();
        let port = TlsPort::new(&authority).unwrap();
        let (tls, extra) = (
            Some(port.clone()),
            vec!["sessionRequireClientSASLAuth=true".to_owned()],
        );
        let options = ZooKeeperOptions {
            tls,
            extra,
            accounts: accounts(PASSWORD),
            ..ZooKeeperOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let (at, ca) = (server.tls_addr().unwrap(), authority.ca().display());
        let right = format!("zookeepers://me:{PASSWORD}@{at}/locks?sasl=digest-md5&ca={ca}");
        // The first handshakes of a server are slow on a busy machine.
        let store = Store::new(connected(&right).await);
        drop(crate::common::hold_patiently(&store, "a", LONG).await);
        let wrong = right.replace(PASSWORD, "wr0ng");
        refused(Config::from_url(&wrong).unwrap(), ErrorKind::Denied).await;
        for none in [
            format!("zookeepers://{at}/locks?ca={ca}"),
            format!("zookeeper://{}", server.addr()),
        ] {
            refused(Config::from_url(&none).unwrap(), ErrorKind::Denied).await;
        }
    })
    .await;
}

/// The client crate makes a number up for each connection, of more digits or fewer.
#[tokio::test]
async fn each_connection_is_let_in() {
    limited(async {
        let server = server().await;
        for _ in 0..8 {
            let connector = Client::connector().with_sasl(SaslOptions::digest_md5("me", PASSWORD));
            try_join_all((0..16).map(|_| connector.clone().connect(server.addr())))
                .await
                .unwrap();
        }
    })
    .await;
}

/// A hold outlives a server that knows another password for a while, and is lost to nobody.
#[tokio::test]
async fn a_hold_outlives_the_rotation_of_its_password() {
    limited(async {
        let server = server().await;
        let now = Arc::new(Mutex::new(PASSWORD));
        let (said, asked) = (now.clone(), Arc::new(Mutex::new(0)));
        let counted = asked.clone();
        let config = Config::new(server.addr())
            .private()
            .sasl_credentials(move || {
                *counted.lock().unwrap() += 1;
                let said = (*said.lock().unwrap()).to_owned();
                async move { Result::<_, Error>::Ok(("me".to_owned(), said)) }
            });
        let store = Store::new(verbs::connected(|| ZooKeeper::with_config(config.clone())).await);
        let guard = crate::common::hold(&store, "a", LONG).await;
        server.set_accounts(&accounts("n3w")).unwrap();
        server.kill().await.unwrap();
        server.start_again().await.unwrap();
        // It is refused again and again, and stays.
        let before = *asked.lock().unwrap();
        until(|| async { *asked.lock().unwrap() > before + 4 || !guard.is_valid() }).await;
        assert!(guard.is_valid(), "{:?}", guard.check());
        *now.lock().unwrap() = "n3w";
        while let Err(e) = guard.confirm().await {
            assert!(e.is_retryable(), "{e:?}");
        }
        assert!(guard.is_valid(), "{:?}", guard.check());
        guard.release().await.unwrap();
        refused(
            Config::from_url(&url("me", PASSWORD, server.addr())).unwrap(),
            ErrorKind::Denied,
        )
        .await;
    })
    .await;
}

/// Whoever is in the list shares the locks; all others see what they are let see.
#[tokio::test]
async fn nodes_have_the_access_rights_that_were_chosen() {
    limited(async {
        let server = server().await;
        let at = server.addr();
        let acls = [
            all("sasl", "me"),
            all("sasl", "you"),
            Acl::new(Permission::READ, AuthId::anyone()),
        ];
        let config = |user, password| {
            Config::new(at)
                .root("/team/locks")
                .acls(&acls)
                .sasl(user, password)
        };
        let me = verbs::connected(|| ZooKeeper::with_config(config("me", PASSWORD))).await;
        let you = verbs::connected(|| ZooKeeper::with_config(config("you", "other"))).await;
        let (mine, yours) = (fair("a", LONG), fair("a", LONG));
        let held = granted(&me, &mine).await;
        waiting(&you, &yours).await;
        release(&me, &mine, &held.place).await;
        let held = granted(&you, &yours).await;
        let raw = Client::connect(at).await.unwrap();
        for node in ["/team/locks", "/team/locks/a", held.place.as_str()] {
            assert_eq!(raw.get_acl(node).await.unwrap().0, acls, "{node}");
        }
        assert_eq!(raw.get_acl("/team").await.unwrap().0, *Acls::anyone_all());
        assert_eq!(raw.list_children("/team/locks/a").await.unwrap().len(), 1);
        assert_eq!(
            raw.delete(held.place.as_str(), None).await.unwrap_err(),
            ZkError::NoAuth
        );
        let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
        assert_eq!(
            raw.create("/team/locks/b", b"", &open).await.unwrap_err(),
            ZkError::NoAuth
        );
        release(&you, &yours, &held.place).await;
        // Rights that a connection does not have are no reason to hang, nor to hold.
        refused(
            Config::new(at)
                .root("/other")
                .acls(&[all("sasl", "you")])
                .sasl("me", PASSWORD),
            ErrorKind::Denied,
        )
        .await;
    })
    .await;
}

/// A server with accounts. Rights are those to the nodes of the locks.
struct Accounts(Server);

impl Accounts {
    /// Gives what this user has to that one.
    async fn give(&self, from: &'static str, password: &'static str, to: &str) {
        let connector = Client::connector().with_sasl(SaslOptions::digest_md5(from, password));
        let raw = connector.connect(self.0.addr()).await.unwrap();
        for node in raw.list_children("/team/locks").await.unwrap() {
            raw.set_acl(&format!("/team/locks/{node}"), &[all("sasl", to)], None)
                .await
                .unwrap();
        }
        raw.set_acl("/team/locks", &[all("sasl", to)], None)
            .await
            .unwrap();
    }
}

impl FleetStore for Accounts {
    const WRONG: &'static str = "credentials";
    const RIGHTS: &'static str = "ACLs";
    /// Whoever has a session may ask which nodes it has.
    const CONFIRMED_BY_READING: bool = true;

    async fn start(password: &str) -> Accounts {
        assert_eq!(password, PASSWORD);
        Accounts(server().await)
    }

    fn url(&self, password: &str) -> String {
        url("me", password, self.0.addr())
    }

    fn addrs(&self) -> Vec<String> {
        vec![self.0.addr().to_owned()]
    }

    /// Who sends something when a server closes the connection gets a reset in place of the answer.
    async fn connect(url: &str) -> Result<Store> {
        loop {
            match ZooKeeper::connect(url).await {
                Err(e) if e.kind() == ErrorKind::Unavailable => {}
                made => return made.map(Store::new),
            }
        }
    }

    async fn revoke(&self) {
        self.give("me", PASSWORD, "you").await;
    }

    async fn restore(&self) {
        self.give("you", "other", "me").await;
    }

    async fn nothing_is_left(&self) {
        until(|| async { self.0.ephemerals_count().await.unwrap() == 0 }).await;
    }
}

fleet_cases!(Accounts);
