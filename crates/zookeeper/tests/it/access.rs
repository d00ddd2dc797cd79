//! Who may use the store's nodes, and what a server can refuse: credentials, old servers, too many
//! connections; and each reason, as the page of this store tells it.

use std::sync::Mutex;
use std::time::Duration;

use crate::common::*;
use leasehold_core::ErrorKind::{Denied, Lost, Unavailable, Unsupported};
use leasehold_core::backend::{Backend, Claim, Claimed, Grant, LeaseRef, Renewal};
use leasehold_core::{Error, ErrorKind, Loss, Store};
use leasehold_testbed::reasons::{Reason, Reasons};
use leasehold_testbed::{Proxy, ZooKeeper as Server, ZooKeeperOptions};
use leasehold_zookeeper::{Config, ZooKeeper};
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Error as ZkError, Permission};

const CANARY: &str = "c4n4ry-p4ssw0rd";

/// Clients that come with many different TTLs share sessions: a server takes so many connections of
/// one host, and no more.
#[tokio::test]
async fn many_ttls_need_few_connections() {
    limited(async {
        let options = ZooKeeperOptions {
            extra: vec!["maxClientCnxns=30".into()],
            ..ZooKeeperOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let client = client(&server).await;
        let mut held = Vec::new();
        let renew = async |held: &[(Claim, Grant)]| {
            let lease = |(claim, grant): &(Claim, Grant)| {
                LeaseRef::new(claim.clone().into(), grant.place.clone(), Some(grant.token))
            };
            let renewed = client
                .renew(&held.iter().map(lease).collect::<Vec<_>>())
                .await
                .unwrap();
            assert!(
                renewed
                    .iter()
                    .all(|renewal| matches!(renewal, Renewal::Renewed(_))),
                "{renewed:?}"
            );
        };
        for i in 0..61 {
            let ttl = Duration::from_millis(8000 + 700 * i);
            let claim = fair(&format!("{i}"), ttl);
            let grant = granted(&client, &claim).await;
            assert!(
                grant.validity.ttl() >= ttl * 98 / 100,
                "{:?} for {ttl:?}",
                grant.validity.ttl()
            );
            assert_eq!(
                granted(&client, &claim).await.token,
                grant.token,
                "the same session"
            );
            held.push((claim, grant));
            if i % 8 == 0 {
                renew(&held).await; // as the keeper does: a busy machine is slower than the shortest lease
            }
        }
        renew(&held).await;
        for (claim, grant) in &held {
            release(&client, claim, &grant.place).await;
        }
        assert!(server.connection_count().await.unwrap() <= 16);
        assert_eq!(client.list("", None, 100).await.unwrap(), []);
    })
    .await;
}

/// To an older server `getEphemerals` is an unknown request, as this one is to ours.
fn as_if_older(proxy: &Proxy) {
    let request = |kind: u8, path: &str| {
        let mut bytes = vec![0, 0, 0, kind, 0, 0, 0, path.len() as u8];
        bytes.extend(path.bytes());
        bytes
    };
    proxy.rewrite_requests(request(103, "/test"), request(99, "/test"));
}

#[tokio::test]
async fn a_server_that_cannot_tell_a_loss_is_refused() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        as_if_older(&proxy);
        let e = ZooKeeper::connect(&format!("zookeeper://{}/test", proxy.addr()))
            .await
            .unwrap_err();
        assert_eq!(e.kind(), Unsupported, "{e:?}");
        assert!(e.to_string().contains("3.6"), "{e}");
    })
    .await;
}

/// A renewal that cannot ask for the hold's own node proves nothing.
#[tokio::test]
async fn a_renewal_without_an_answer_renews_nothing() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let client = at(proxy.addr()).await;
        let claim = fair("a", Duration::from_secs(4));
        let grant = granted(&client, &claim).await;
        let lease = LeaseRef::new(claim.into(), grant.place, Some(grant.token));
        as_if_older(&proxy);
        let renewed = client.renew(std::slice::from_ref(&lease)).await.unwrap();
        assert!(
            matches!(&renewed[..], [Renewal::Unknown(e)] if e.kind() == Unsupported),
            "{renewed:?}"
        );
    })
    .await;
}

/// A node that was deleted by hand is reported by the next renewal, also without a notification.
#[tokio::test]
async fn a_hold_is_verified_by_its_own_node() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let raw = Client::connect(server.addr()).await.unwrap();
        let (kept, deleted) = (fair("kept", LONG), fair("deleted", LONG));
        let mut leases = Vec::new();
        for claim in [&kept, &deleted] {
            let grant = granted(&client, claim).await;
            leases.push(LeaseRef::new(
                claim.clone().into(),
                grant.place,
                Some(grant.token),
            ));
        }
        raw.delete(leases[1].place.as_str(), None).await.unwrap();
        let renewed = client.renew(&leases).await.unwrap();
        assert!(
            matches!(
                renewed[..],
                [Renewal::Renewed(_), Renewal::Lost(Loss::Gone)]
            ),
            "{renewed:?}"
        );
        let tried = client.claim(&trying("kept", LONG)).await.unwrap();
        assert!(matches!(tried, Claimed::Busy(_)), "{tried:?}");
        // No session serves this TTL.
        let elsewhere = LeaseRef::new(fair("kept", SHORT).into(), leases[0].place.clone(), None);
        assert!(matches!(
            client.renew(&[elsewhere]).await.unwrap()[..],
            [Renewal::Lost(Loss::Expired)]
        ));
    })
    .await;
}

/// What stands above the root is not ours: it stays open to those who could use it before.
#[tokio::test]
async fn credentials_close_the_root_and_nothing_above_it() {
    limited(async {
        let server = server().await;
        let mine = connected(&format!(
            "zookeeper://me:{CANARY}@{}/team/app/locks",
            server.addr()
        ))
        .await;
        granted(&mine, &fair("a", LONG)).await;
        let same = format!("zookeeper://me:{CANARY}@{}/team/app/locks", server.addr());
        waiting(&connected(&same).await, &fair("a", LONG)).await;
        let other = format!("zookeeper://me:wrong@{}/team/app/locks", server.addr());
        assert_eq!(ZooKeeper::connect(&other).await.unwrap_err().kind(), Denied);
        let raw = Client::connect(server.addr()).await.unwrap();
        let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
        raw.create("/team/other", b"", &open).await.unwrap();
        raw.create("/team/app/other", b"", &open).await.unwrap();
        for closed in ["/team/app/locks", "/team/app/locks/a"] {
            assert_eq!(
                raw.list_children(closed).await.unwrap_err(),
                ZkError::NoAuth,
                "{closed}"
            );
        }
        // Without credentials nothing is closed.
        let open = client(&server).await;
        granted(&open, &fair("a", LONG)).await;
        raw.list_children("/test/a").await.unwrap();
        // And what is closed above stays closed below.
        let readable = Acl::new(Permission::READ | Permission::CREATE, AuthId::anyone());
        let guarded = CreateMode::Persistent.with_acls(Acls::new(std::slice::from_ref(&readable)));
        raw.create("/guarded", b"", &guarded).await.unwrap();
        let inside = connected(&format!(
            "zookeeper://me:{CANARY}@{}/guarded/app/locks",
            server.addr()
        ))
        .await;
        granted(&inside, &fair("a", LONG)).await;
        assert_eq!(raw.get_acl("/guarded/app").await.unwrap().0, [readable]);
    })
    .await;
}

/// With those of before beside them, what was made by them can be used on, and what is made now can
/// be used by both.
#[tokio::test]
async fn credentials_that_are_asked_for_are_rotated_without_a_restart() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let now = std::sync::Arc::new(Mutex::new(Ok("one")));
        let config = |before: &str| {
            let (said, before) = (now.clone(), format!("me:{before}"));
            let config = Config::new(proxy.addr())
                .root("/mine")
                .private()
                .auth("digest", before.as_bytes());
            config.credentials(move || {
                let said: Result<&str, ErrorKind> = *said.lock().unwrap();
                async move {
                    said.map(|word| ("me".into(), word.into()))
                        .map_err(|kind| Error::new(kind, "the vault"))
                }
            })
        };
        let store = Store::new(ZooKeeper::with_config(config("one")).await.unwrap());
        let guard = hold(&store, "a", LONG).await;
        *now.lock().unwrap() = Ok("two");
        // Its session asks again when it has to connect again, and a session for another TTL when
        // it is opened.
        proxy.disconnect().await;
        let other = hold_patiently(&store, "b", SHORT).await;
        while guard.confirm().await.is_err() {}
        let two = Client::connector()
            .with_auth("digest", b"me:two")
            .connect(server.addr())
            .await
            .unwrap();
        assert_eq!(
            two.list_children("/mine").await.unwrap_err(),
            ZkError::NoAuth,
            "made by the one of before"
        );
        assert_eq!(two.list_children("/mine/b").await.unwrap().len(), 1);
        other.release().await.unwrap();
        guard.release().await.unwrap();
        let error = ZooKeeper::with_config(config("wrong")).await.unwrap_err();
        assert_eq!(error.kind(), Denied, "{error:?}");
        for kind in [Unavailable, Denied] {
            *now.lock().unwrap() = Err(kind);
            let error = ZooKeeper::with_config(config("one")).await.unwrap_err();
            assert!(
                error.kind() == kind && error.to_string().contains("the vault"),
                "{error:?}"
            );
        }
    })
    .await;
}

/// Neither a password nor the names by which claims are found again are in any error.
#[tokio::test]
async fn no_error_shows_a_secret() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let url = format!("zookeeper://me:{CANARY}@{}/closed", proxy.addr());
        let client = connected(&url).await;
        let (held, waits) = (fair("a", SHORT), fair("a", SHORT));
        let grant = granted(&client, &held).await;
        let secrets = [
            CANARY.to_owned(),
            held.id.to_string(),
            waits.id.to_string(),
            fair("x", SHORT).id.to_string(),
        ];
        let mut errors = vec![
            ZooKeeper::connect(&format!(
                "zookeeper://me:other{CANARY}@{}/closed",
                server.addr()
            ))
            .await
            .unwrap_err(),
            ZooKeeper::connect(&format!("zookeeper://{}/closed", server.addr()))
                .await
                .unwrap_err(),
            ZooKeeper::connect(&format!("zookeeper://me:{CANARY}@127.0.0.1:1/closed"))
                .await
                .unwrap_err(),
            ZooKeeper::connect(&format!("zookeeper://me:{CANARY}@{}/a//b", server.addr()))
                .await
                .unwrap_err(),
            ZooKeeper::connect(&format!("zookeeper://{CANARY}@{}/b", server.addr()))
                .await
                .unwrap_err(),
            ZooKeeper::with_config(Config::new(&format!("me:{CANARY}@a")))
                .await
                .unwrap_err(),
        ];
        let lease = LeaseRef::new(held.clone().into(), grant.place.clone(), Some(grant.token));
        proxy.cut().await;
        errors.extend(client.claim(&waits).await.err());
        errors.extend(client.claim(&held).await.err());
        errors.extend(client.release(&held, Some(&grant.place)).await.err());
        errors.extend(client.inspect(&held.name).await.err());
        errors.extend(client.evict(&held.name, grant.token).await.err());
        errors.extend(client.list("", None, 9).await.err());
        for renewal in client.renew(&[lease]).await.unwrap() {
            if let Renewal::Unknown(e) = renewal {
                errors.push(e);
            }
        }
        assert!(errors.len() >= 11, "{errors:?}");
        proxy.heal().await;
        // The server's own words: a node that is not what it should be.
        let raw = Client::connector()
            .with_auth("digest", format!("me:{CANARY}").as_bytes())
            .connect(server.addr())
            .await
            .unwrap();
        raw.create(
            "/closed/wrong",
            b"",
            &CreateMode::Ephemeral.with_acls(Acls::anyone_all()),
        )
        .await
        .unwrap();
        until(|| async { client.inspect(&held.name).await.is_ok() }).await;
        errors.push(client.claim(&fair("wrong", SHORT)).await.unwrap_err());
        for e in errors {
            let mut texts = vec![format!("{e} {e:?}")];
            let mut source = std::error::Error::source(&e);
            while let Some(inner) = source {
                texts.push(format!("{inner} {inner:?}"));
                source = inner.source();
            }
            for secret in &secrets {
                assert!(!texts.concat().contains(secret), "{texts:?}");
            }
        }
    })
    .await;
}

/// The reasons on the page of this store.
#[rustfmt::skip]
const REASONS: [Reason; 14] = [
    (CLOSED, Unavailable, "nothing listens at this port: is ZooKeeper running there, and is the port right?", "at once"),
    (UNKNOWN, Unavailable, "the host name cannot be looked up: is it written right?", "as long as the system looks, at most 4 s"),
    (SILENT, Unavailable, "it takes connections and does not answer: it is stopped or overloaded, or it is no ZooKeeper", "3 s"),
    (NO_QUORUM, Unavailable, "it has no quorum: start the other servers, or mend its way to a majority of them", "at once"),
    (READ_ONLY, Unavailable, "it has no quorum and only reads (readonlymode.enabled): start the other servers, or mend its way to a majority of them", "at once"),
    (TOO_MANY, Unavailable, "it closes connections without a word: its maxClientCnxns (or maxCnxns) is used up", "at once"),
    (TLS, Unavailable, "it wants TLS (zookeepers://)", "at once"),
    (LOCAL, Unsupported, "the servers have localSessionsEnabled=true without localSessionsUpgradingEnabled=true", "at once"),
    (OLD, Unsupported, "the ZooKeeper server is too old: 3.6 is needed", "at once"),
    (DENIED, Denied, "ZooKeeper refuses: check the credentials, and the ACLs of the store's nodes", "at once"),
    (SASL, Denied, "ZooKeeper refuses: check the credentials, and the ACLs of the store's nodes", "at once"),
    (QUOTA, Unavailable, "the quota of the store's root node is used up", "a try at once, `acquire` after a lease"),
    (HELD_NO_QUORUM, Lost, "its lease ran out before it could be renewed", "at the end of the lease"),
    (HELD_EXPIRED, Lost, "its lease ran out before it could be renewed", "at the end of the lease"),
];

const CLOSED: &str = "Nothing listens at the port";
const UNKNOWN: &str = "Nobody knows the host name";
const SILENT: &str = "The server takes connections and is silent: it is stopped, or overloaded";
const NO_QUORUM: &str = "The server has no quorum";
const READ_ONLY: &str = "The server has no quorum, and serves clients that only read";
const TOO_MANY: &str = "`maxClientCnxns` is used up by this host";
const TLS: &str = "The port is one for TLS, and the URL asks for none";
const LOCAL: &str = "`localSessionsEnabled` without `localSessionsUpgradingEnabled`";
const OLD: &str = "The server is older than 3.6";
const DENIED: &str = "The nodes are another user's, or the password is wrong";
const SASL: &str =
    "The servers demand SASL (`sessionRequireClientSASLAuth`), or its password is wrong";
const QUOTA: &str = "The quota of the root node is used up (`enforceQuota`)";
const HELD_NO_QUORUM: &str = "The quorum is lost while a lock is held";
const HELD_EXPIRED: &str = "The server is away while a lock is held";

async fn refused(judged: &Reasons, row: &'static str, hosts: &str) {
    let refused = ZooKeeper::connect(&format!("zookeeper://{hosts}/test")).await;
    judged.is(row, &refused.unwrap_err());
}

async fn with(extra: &[&str]) -> Server {
    let options = ZooKeeperOptions {
        extra: extra.iter().map(|line| (*line).to_owned()).collect(),
        ..ZooKeeperOptions::default()
    };
    Server::start_with(&options).await.unwrap()
}

/// Nobody is there, or somebody else, or somebody who refuses.
async fn of_one_server(judged: &Reasons) {
    let server = with(&["enforceQuota=true"]).await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let connected_before = Store::new(at(proxy.addr()).await);
    as_if_older(&proxy);
    refused(judged, OLD, proxy.addr()).await;
    proxy.hold();
    refused(judged, SILENT, proxy.addr()).await;
    // A try ends before it is known that the connection is broken.
    let silent = connected_before.lock("c").acquire_timeout(SHORT * 3).await;
    judged.is(SILENT, &silent.unwrap_err());
    drop(proxy);
    refused(judged, UNKNOWN, "nobody.invalid").await;
    {
        let url = |user: &str| format!("zookeeper://{user}:secret@{}/closed", server.addr());
        let _mine = connected(&url("me")).await;
        let theirs = ZooKeeper::connect(&url("you")).await;
        judged.is(DENIED, &theirs.unwrap_err());
    }
    let store = store(&server).await.ttl(SHORT);
    let raw = Client::connect(server.addr()).await.unwrap();
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let limits = "/zookeeper/quota/test/zookeeper_limits";
    raw.mkdir("/zookeeper/quota/test", &open).await.unwrap();
    let stats = "/zookeeper/quota/test/zookeeper_stats";
    raw.create(stats, b"count=9,bytes=0", &open).await.unwrap();
    let hard = b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=1";
    raw.create(limits, hard, &open).await.unwrap();
    judged.is(QUOTA, &store.lock("a").try_acquire().await.unwrap_err());
    raw.delete(limits, None).await.unwrap();
    let held = hold_patiently(&store, "b", SHORT).await;
    let addr = server.addr().to_owned();
    server.kill().await.unwrap();
    refused(judged, CLOSED, &addr).await;
    let wait = Duration::from_secs(1);
    judged.is(CLOSED, &store.lock("c").try_acquire().await.unwrap_err());
    let late = store.lock("c").acquire_timeout(wait).await;
    judged.is(CLOSED, &late.unwrap_err());
    judged.is(CLOSED, &store.lock("c").inspect().await.unwrap_err());
    held.lost().await;
    judged.is(HELD_EXPIRED, &held.check().unwrap_err());
}

async fn of_limits(judged: &Reasons) {
    let server = with(&["maxClientCnxns=1"]).await;
    let _one = client(&server).await;
    refused(judged, TOO_MANY, server.addr()).await;
}

/// What only several servers say.
async fn of_an_ensemble(judged: &Reasons) {
    let ensemble = Server::ensemble(2).await.unwrap();
    let last = ensemble.members()[0].addr();
    let store = Store::new(at(last).await);
    let held = hold_patiently(&store, "a", SHORT).await;
    ensemble.members()[1].kill().await.unwrap();
    // Until it has noticed.
    until(async || {
        let refused = ZooKeeper::connect(&format!("zookeeper://{last}/test")).await;
        refused.is_err_and(|e| e.to_string().contains("no quorum: start"))
    })
    .await;
    refused(judged, NO_QUORUM, last).await;
    judged.is(NO_QUORUM, &store.lock("c").try_acquire().await.unwrap_err());
    held.lost().await;
    judged.is(NO_QUORUM, &store.lock("c").try_acquire().await.unwrap_err());
    judged.is(HELD_NO_QUORUM, &held.check().unwrap_err());
}

async fn of_a_reader(judged: &Reasons) {
    let options = ZooKeeperOptions {
        read_only_mode: true,
        ..ZooKeeperOptions::default()
    };
    let ensemble = Server::ensemble_with(2, &options).await.unwrap();
    ensemble.members()[1].kill().await.unwrap();
    let last = ensemble.members()[0].addr();
    until(async || {
        let refused = ZooKeeper::connect(&format!("zookeeper://{last}/test")).await;
        refused.is_err_and(|e| e.to_string().contains("only reads"))
    })
    .await;
    refused(judged, READ_ONLY, last).await;
}

async fn of_local_sessions(judged: &Reasons) {
    let options = ZooKeeperOptions {
        extra: vec!["localSessionsEnabled=true".into()],
        ..ZooKeeperOptions::default()
    };
    let ensemble = Server::ensemble_with(2, &options).await.unwrap();
    refused(judged, LOCAL, &ensemble.connect_string()).await;
}

async fn of_tls(judged: &Reasons) {
    let certificates = leasehold_testbed::Certificates::new().unwrap();
    let options = ZooKeeperOptions {
        tls: Some(leasehold_testbed::TlsPort::new(&certificates).unwrap()),
        ..ZooKeeperOptions::default()
    };
    let server = Server::start_with(&options).await.unwrap();
    refused(judged, TLS, server.tls_addr().unwrap()).await;
}

async fn of_sasl(judged: &Reasons) {
    let options = ZooKeeperOptions {
        extra: vec!["sessionRequireClientSASLAuth=true".into()],
        accounts: vec![("me".into(), "secret".into())],
        ..ZooKeeperOptions::default()
    };
    let server = Server::start_with(&options).await.unwrap();
    refused(judged, SASL, server.addr()).await;
}

/// Each of them is what the page says, and the page has no other.
#[tokio::test(flavor = "multi_thread")]
async fn each_reason_of_the_page_is_told() {
    limited(Box::pin(async {
        let judged = Reasons::new(&REASONS);
        tokio::join!(
            of_one_server(&judged),
            of_limits(&judged),
            of_an_ensemble(&judged),
            of_a_reader(&judged),
            of_local_sessions(&judged),
            of_tls(&judged),
            of_sasl(&judged),
        );
        judged.are_judged();
    }))
    .await;
}

#[test]
fn the_page_has_each_reason() {
    Reasons::new(&REASONS).are_on_the_page_of("zookeeper");
}
