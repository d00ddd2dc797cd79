//! Users with few rights, and names of servers: the cases of every store; and each reason for which
//! this store can refuse, as its page tells it.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType, Client, ConnectOptions};
use leasehold_core::ErrorKind::{Denied, Lost, Unavailable, Unsupported};
use leasehold_core::{Guard, Result, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use leasehold_testbed::fleet_cases;
use leasehold_testbed::fleet_cases::FleetStore;
use leasehold_testbed::reasons::{Reason, Reasons};
use leasehold_testbed::verbs::{bounded, connected, until};
use tokio::join;

/// A server with users.
struct Accounts(testbed::Etcd);

impl Accounts {
    async fn role(&self, verb: &str, user: &str) {
        self.0
            .post(
                &format!("/v3/auth/user/{verb}"),
                &format!(r#"{{"{user}":"me","role":"all"}}"#),
            )
            .await
            .unwrap();
    }
}

impl FleetStore for Accounts {
    const WRONG: &'static str = "authentication failed";
    const RIGHTS: &'static str = "the rights";

    async fn start(password: &str) -> Accounts {
        let options = testbed::EtcdOptions {
            extra: vec!["--bcrypt-cost=4".into()],
            ..Default::default()
        };
        let server = testbed::Etcd::start_with(&options).await.unwrap();
        server.add_users(password).await.unwrap();
        Accounts(server)
    }

    fn url(&self, password: &str) -> String {
        format!("etcd://me:{password}@{}/test?timeout=3000", self.0.addr())
    }

    fn addrs(&self) -> Vec<String> {
        vec![self.0.addr().to_owned()]
    }

    async fn connect(url: &str) -> Result<Store> {
        Etcd::connect(url).await.map(Store::new)
    }

    async fn revoke(&self) {
        self.role("revoke", "name").await;
    }

    async fn restore(&self) {
        self.role("grant", "user").await;
    }

    async fn nothing_is_left(&self) {
        let left =
            async || self.0.key_count().await.unwrap() + self.0.lease_count().await.unwrap() as u64;
        until(async || left().await == 0).await;
    }
}

fleet_cases!(Accounts);

/// The reasons on the page of this store.
const REASONS: [Reason; 16] = [
    (
        CLOSED,
        Unavailable,
        "nothing listens at this port: is etcd running there, and is the port right?",
        "at once",
    ),
    (
        UNKNOWN,
        Unavailable,
        "the host name cannot be looked up: is it written right?",
        "as long as the system looks, at most 4 s",
    ),
    (
        SILENT,
        Unavailable,
        "it takes connections and does not answer in plain text: is it stopped, or overloaded?",
        "4 s",
    ),
    (
        TLS,
        Unavailable,
        "does it speak TLS there? Then the scheme of the URL is etcds://",
        "at once",
    ),
    (
        PROXY,
        Unsupported,
        "this is an etcd grpc-proxy, …: give the addresses of the members themselves",
        "at once",
    ),
    (
        NO_LEADER,
        Unavailable,
        "the member has no leader: start the other members, or mend its way to a majority of them",
        "at once; after an election time-out",
    ),
    (
        FULL,
        Unavailable,
        "etcd is full (alarm NOSPACE) and stores nothing more: compact and defragment it, then `etcdctl alarm disarm`",
        "a try at once, `acquire` after a lease",
    ),
    (
        CORRUPT,
        Unavailable,
        "the members' data differ (alarm CORRUPT) and etcd serves nothing: replace the member that is wrong, then `etcdctl alarm disarm`",
        "a try at once, `acquire` after a lease",
    ),
    (
        PASSWORD,
        Denied,
        "etcd knows no such user, or the password is wrong",
        "at once",
    ),
    (
        NO_USER,
        Denied,
        "etcd demands a user: give user:password@ in the URL",
        "at once",
    ),
    (
        NO_AUTH,
        Denied,
        "this etcd has no users: leave the user and the password out, or run `etcdctl auth enable`",
        "at once",
    ),
    (
        NO_RIGHTS,
        Denied,
        "the user has not the rights: grant a role of it `readwrite --prefix` on the namespace",
        "at once",
    ),
    (
        HELD_NO_RIGHTS,
        Lost,
        "its lease ran out before it could be renewed: the user has not the rights",
        "at the end of the lease",
    ),
    (
        HELD_NO_USER,
        Lost,
        "its lease ran out before it could be renewed: etcd knows no such user, or the password is wrong",
        "at the end of the lease",
    ),
    (
        HELD_NO_LEADER,
        Lost,
        "its lease ran out before it could be renewed: …",
        "at the end of the lease",
    ),
    (
        OBSERVED,
        Unavailable,
        "etcd cannot be reached or cannot serve",
        "the default TTL of the store: 10 s",
    ),
];

const CLOSED: &str = "Nothing listens at the port";
const UNKNOWN: &str = "Nobody knows the host name";
const SILENT: &str = "The server takes connections and is silent: it is stopped, or overloaded";
const TLS: &str = "It speaks TLS, and the URL does not";
const PROXY: &str = "It is an `etcd grpc-proxy`";
const NO_LEADER: &str = "No majority of the members is up, or reached";
const FULL: &str = "The alarm NOSPACE";
const CORRUPT: &str = "The alarm CORRUPT";
const PASSWORD: &str = "The password is wrong, or there is no such user";
const NO_USER: &str = "etcd has users, and the URL has none";
const NO_AUTH: &str = "The URL has a user, and etcd has none";
const NO_RIGHTS: &str = "The role does not have the namespace, or no longer";
const HELD_NO_RIGHTS: &str = "The rights are taken away while a lock is held";
const HELD_NO_USER: &str = "The user is deleted, or its password changed, while a lock is held";
const HELD_NO_LEADER: &str = "The majority is lost while a lock is held";
const OBSERVED: &str = "An observer's cluster is away";

async fn refused(judged: &Reasons, row: &'static str, url: &str) {
    judged.is(row, &Etcd::connect(url).await.unwrap_err());
}

/// The hold ends, for that reason.
async fn lost(judged: &Reasons, row: &'static str, guard: &Guard) {
    guard.lost().await;
    judged.is(row, &guard.check().unwrap_err());
}

const SHORT: Duration = Duration::from_secs(3);

async fn store_at(url: &str) -> Store {
    connected(async || Etcd::connect(url).await.map(Store::new))
        .await
        .ttl(SHORT)
}

/// Nobody is there, or somebody else.
async fn of_addresses(judged: &Reasons) {
    let server = testbed::Etcd::start().await.unwrap();
    let silent = testbed::Proxy::to(server.addr()).await.unwrap();
    silent.hold();
    let proxy = server.grpc_proxy().await.unwrap();
    refused(judged, PROXY, &format!("etcd://{}/test", proxy.addr())).await;
    // Also beside a member that could be used.
    let both = format!("etcd://{},{}/test?timeout=3000", proxy.addr(), proxy.addr());
    refused(judged, PROXY, &both).await;
    refused(judged, SILENT, &format!("etcd://{}/test", silent.addr())).await;
    refused(judged, UNKNOWN, "etcd://nobody.invalid/test").await;
    refused(
        judged,
        NO_AUTH,
        &format!("etcd://me:pw@{}/test", server.addr()),
    )
    .await;
    let closed = server.addr().to_owned();
    drop((proxy, silent, server));
    refused(judged, CLOSED, &format!("etcd://{closed}/test")).await;
}

async fn of_tls(judged: &Reasons) {
    let certificates = testbed::Certificates::new().unwrap();
    let options = testbed::EtcdOptions {
        tls: Some(testbed::TlsPort::new(&certificates).unwrap()),
        ..Default::default()
    };
    let server = testbed::Etcd::start_with(&options).await.unwrap();
    let url = format!("etcd://{}/test", server.tls_addr().unwrap());
    refused(judged, TLS, &url).await;
}

async fn of_alarms(judged: &Reasons) {
    for (row, alarm) in [(FULL, AlarmType::Nospace), (CORRUPT, AlarmType::Corrupt)] {
        let server = testbed::Etcd::start().await.unwrap();
        let store = store_at(&format!("etcd://{}/test?timeout=3000", server.addr())).await;
        let mut raw = Client::connect([server.url()], None).await.unwrap();
        raw.alarm(AlarmAction::Activate, alarm, None).await.unwrap();
        judged.is(row, &store.lock("a").try_acquire().await.unwrap_err());
    }
}

async fn of_users(judged: &Reasons) {
    let servers = Accounts::start("s3cret").await;
    refused(judged, PASSWORD, &servers.url("wr0ng")).await;
    refused(
        judged,
        NO_USER,
        &format!("etcd://{}/test", servers.0.addr()),
    )
    .await;
    let store = store_at(&servers.url("s3cret")).await;
    let held = store.lock("a").acquire().await.unwrap();
    servers.revoke().await;
    judged.is(NO_RIGHTS, &store.lock("b").try_acquire().await.unwrap_err());
    lost(judged, HELD_NO_RIGHTS, &held).await;
    servers.restore().await;
    let held = store.lock("c").acquire().await.unwrap();
    let root = ConnectOptions::new().with_user("root", "s3cret");
    let mut root = Client::connect([servers.0.url()], Some(root))
        .await
        .unwrap();
    root.user_delete("me").await.unwrap();
    lost(judged, HELD_NO_USER, &held).await;
}

async fn of_majorities(judged: &Reasons) {
    let cluster = testbed::Etcd::cluster(3).await.unwrap();
    let last = cluster.members()[0].addr();
    let store = store_at(&format!("etcd://{last}/test?timeout=3000")).await;
    let held = store.lock("a").acquire().await.unwrap();
    let mut observer = store.election("a").observe().await.unwrap();
    for member in &cluster.members()[1..] {
        member.kill().await.unwrap();
    }
    let observed = async {
        let mut changed = observer.changed().await;
        while changed.is_ok() {
            changed = observer.changed().await;
        }
        judged.is(OBSERVED, &changed.unwrap_err());
    };
    join!(lost(judged, HELD_NO_LEADER, &held), observed);
    // Until it has noticed that its leader is gone it only does not answer.
    let url = format!("etcd://{last}/test?timeout=3000");
    until(async || {
        let refused = Etcd::connect(&url).await.unwrap_err();
        refused.to_string().contains("no leader")
    })
    .await;
    refused(judged, NO_LEADER, &url).await;
}

/// Each of them is what the page says, and the page has no other.
#[tokio::test(flavor = "multi_thread")]
async fn each_reason_of_the_page_is_told() {
    bounded(Box::pin(async {
        let judged = Reasons::new(&REASONS);
        join!(
            of_addresses(&judged),
            of_tls(&judged),
            of_alarms(&judged),
            of_users(&judged),
            of_majorities(&judged),
        );
        judged.are_judged();
    }))
    .await;
}

#[test]
fn the_page_has_each_reason() {
    Reasons::new(&REASONS).are_on_the_page_of("etcd");
}
