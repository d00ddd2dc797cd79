//! The powers of the suite over a private etcd server, reached as it is or over TLS, over three members that know their users, and over a
//! server of somebody else.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a harness that cannot do its part has failed"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use etcd_client::{Client, ConnectOptions, Txn, TxnOp};
use futures_util::future::join_all;
use leasehold_conformance::harness::{FencedResource, ForeignHold};
use leasehold_conformance::{Budget, Capabilities, Harness, Link, Need};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_etcd::Etcd as EtcdStore;
use leasehold_testbed::verbs::connected;
use leasehold_testbed::{Certificates, Detour, Etcd, EtcdCluster, EtcdOptions, Proxy, TlsPort};

use crate::ALLOCATOR;

/// Servers of ours, or somebody else's.
pub enum World {
    Private(Arc<Servers>),
    /// The clients of the store come over TLS, and show a certificate.
    Secure(Arc<Servers>, Box<Certificates>),
    External(String),
}

/// One, or three that are one store and know their users, whose tokens are signed.
pub enum Servers {
    One(Box<Etcd>),
    Three(EtcdCluster),
}

/// Who the clients of [`Servers::Three`] are.
const USER: &str = "me";
const PASSWORD: &str = "s3cret";

/// So short that tokens run out in the middle of cases.
const TOKENS: Duration = Duration::from_secs(3);

impl Servers {
    fn all(&self) -> &[Etcd] {
        match self {
            Servers::One(server) => std::slice::from_ref(&**server),
            Servers::Three(cluster) => cluster.members(),
        }
    }

    /// The one that is asked for everything.
    fn first(&self) -> &Etcd {
        &self.all()[0]
    }

    /// A client for what is no lock.
    async fn raw(&self) -> Client {
        let options = match self {
            Servers::One(_) => None,
            Servers::Three(_) => Some(
                ConnectOptions::new()
                    .with_user(USER, PASSWORD)
                    .with_auto_token_refresh(true),
            ),
        };
        Client::connect([self.first().url()], options)
            .await
            .expect("etcd's client")
    }
}

impl World {
    pub async fn private_one() -> Arc<dyn Harness> {
        let server = Etcd::start().await.expect("a private etcd");
        Arc::new(World::Private(Arc::new(Servers::One(Box::new(server)))))
    }

    pub async fn secure_one() -> Arc<dyn Harness> {
        let (certificates, options) = secure();
        let server = Etcd::start_with(&options).await.expect("a private etcd");
        Arc::new(World::Secure(
            Arc::new(Servers::One(Box::new(server))),
            certificates,
        ))
    }

    pub async fn three() -> Arc<dyn Harness> {
        let (certificates, options) = secure();
        // As they are shipped: busy members elect nobody anew.
        let (heartbeat, election) = (Duration::from_millis(100), Duration::from_secs(1));
        let options = EtcdOptions {
            heartbeat,
            election,
            jwt: Some(TOKENS),
            ..options
        };
        let cluster = Etcd::cluster_with(3, &options).await.expect("three etcds");
        cluster.add_users(PASSWORD).await.expect("users");
        Arc::new(World::Secure(
            Arc::new(Servers::Three(cluster)),
            certificates,
        ))
    }

    /// Where clients of the store connect, by way of this address if it is another one.
    fn url(&self, by: Option<&str>) -> String {
        match self {
            World::Private(servers) => format!("etcd://{}", by.unwrap_or(servers.first().addr())),
            World::Secure(servers, certificates) => {
                let each: Vec<&str> = servers.all().iter().filter_map(Etcd::tls_addr).collect();
                let (at, folder) = (
                    each.join(","),
                    certificates.ca().parent().expect("a folder").display(),
                );
                let files =
                    format!("ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key");
                let user = match **servers {
                    Servers::One(_) => String::new(),
                    Servers::Three(_) => format!("{USER}:{PASSWORD}@"),
                };
                format!("etcds://{user}{}?{files}", by.unwrap_or(&at))
            }
            World::External(url) => url.clone(),
        }
    }

    fn servers(&self) -> &Arc<Servers> {
        match self {
            World::Private(servers) | World::Secure(servers, _) => servers,
            World::External(_) => unreachable!("not among the capabilities"),
        }
    }

    fn server(&self) -> &Etcd {
        self.servers().first()
    }

    fn is_three(&self) -> bool {
        matches!(self, World::Secure(servers, _) if matches!(**servers, Servers::Three(_)))
    }
}

/// A CA, and servers that serve TLS to those who show a certificate of it.
fn secure() -> (Box<Certificates>, EtcdOptions) {
    let certificates = Certificates::new().expect("a CA");
    certificates
        .issue("client")
        .expect("a client's certificate");
    let port = TlsPort::new(&certificates).expect("a port").mutual();
    (
        Box::new(certificates),
        EtcdOptions {
            tls: Some(port),
            ..EtcdOptions::default()
        },
    )
}

/// The name as other tools must be given it: see the store's documentation.
fn plain(full_name: &str) -> String {
    full_name.replace('%', "%25").replace('/', "%2F")
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        match self {
            World::Secure(..) if self.is_three() => "etcd ×3, mTLS, JWT",
            World::Secure(..) => "etcd, TLS",
            _ => "etcd",
        }
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let url = self.url(None);
        Arc::new(connected(|| EtcdStore::connect(&url)).await)
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn counters(&self) -> usize {
        100
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{
            AnotherTool, Contents, DeleteHolder, Fence, Footprint, Heap, Link, Private, PushedWake,
            Requests, Restart,
        };
        let able = [
            Private,
            Link,
            Fence,
            DeleteHolder,
            AnotherTool,
            Restart,
            Footprint,
            PushedWake,
            Contents,
            Heap,
        ];
        let capabilities = match self {
            World::Secure(..) if self.is_three() => Capabilities::new(
                &able,
                "what one server cannot do; and a token that runs out costs requests too",
            ),
            World::Private(_) => Capabilities::new(
                &[&able[..], &[Requests, Need::Detour]].concat(),
                "etcd keys have no types, so no key is junk; revisions restart with the data, as its guarantees say",
            ),
            World::Secure(..) => Capabilities::new(
                &[&able[..], &[Requests]].concat(),
                "etcd keys have no types, so no key is junk; revisions restart with the data, as its guarantees say",
            ),
            World::External(_) => Capabilities::new(
                &[PushedWake],
                "the server of LEASEHOLD_ETCD_URL is not ours to disturb",
            ),
        };
        capabilities.lacks(&[Need::Floor], "a place is numbered when it is taken")
    }

    async fn private(&self) -> Arc<dyn Harness> {
        match self {
            World::Secure(..) if self.is_three() => World::three().await,
            World::Secure(..) => World::secure_one().await,
            _ => World::private_one().await,
        }
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let to = self.server().tls_addr().unwrap_or(self.server().addr());
        let proxy = Proxy::to(to).await.expect("a proxy");
        let url = self.url(Some(proxy.addr()));
        let client = connected(|| EtcdStore::connect(&url)).await;
        (Arc::new(client), Arc::new(proxy))
    }

    async fn misled_client(&self) -> (Arc<dyn Backend>, Arc<dyn leasehold_conformance::Detour>) {
        let other = Etcd::start().await.expect("another etcd");
        let url = format!("etcd://{}", other.addr());
        let elsewhere = Arc::new(connected(|| EtcdStore::connect(&url)).await);
        let ways = vec![[self.server().addr().to_owned(), other.addr().to_owned()]];
        let way = Detour::between(ways, elsewhere, other)
            .await
            .expect("a proxy");
        let url = self.url(Some(way.addrs()[0]));
        let client = connected(|| EtcdStore::connect(&url)).await;
        (Arc::new(client), Arc::new(way))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        let url = self.url(None);
        let locks = connected(|| EtcdStore::connect(&url)).await;
        let (locks, data, written) = (
            Arc::new(locks),
            self.servers().raw().await,
            AtomicU64::new(0),
        );
        (
            locks.clone(),
            Arc::new(Fenced {
                locks,
                data,
                written,
            }),
        )
    }

    async fn delete_holder(&self, full_name: &str) {
        let (from, to) = (
            format!("{}/", plain(full_name)),
            format!("{}0", plain(full_name)),
        );
        let range = format!(
            r#"{{"key":"{}","range_end":"{}"}}"#,
            BASE64.encode(from),
            BASE64.encode(to)
        );
        let answer = self
            .server()
            .post("/v3/kv/deleterange", &range)
            .await
            .expect("a deletion");
        assert!(answer.contains(r#""deleted":"1""#), "{answer}");
    }

    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        // The server's own lock service, which is Go's `concurrency.Mutex`: what `etcdctl lock` is made of.
        let servers = self.servers().clone();
        let server = servers.first();
        let lease = field(
            &server
                .post("/v3/lease/grant", r#"{"TTL":"30"}"#)
                .await
                .expect("a lease"),
            "ID",
        );
        let lock = format!(
            r#"{{"name":"{}","lease":"{lease}"}}"#,
            BASE64.encode(plain(full_name))
        );
        let key = field(
            &server
                .post("/v3/lock/lock", &lock)
                .await
                .expect("the other tool's lock"),
            "key",
        );
        Box::new(Foreign { servers, key })
    }

    async fn restart(&self) {
        for server in self.servers().all() {
            server.kill().await.expect("an end");
        }
        for started in join_all(
            self.servers()
                .all()
                .iter()
                .map(|server| server.start_again()),
        )
        .await
        {
            started.expect("a restart");
        }
    }

    async fn requests(&self) -> u64 {
        let handled = self
            .servers()
            .all()
            .iter()
            .map(async |server| server.handled().await.expect("metrics"));
        join_all(handled)
            .await
            .iter()
            .flat_map(|each| each.values())
            .sum()
    }

    fn budget(&self) -> Budget {
        Budget {
            cycle: 2.0,
            hand_over: 2.1,
            permits: 2.1,
            idle: 0.0,
        }
    }

    async fn footprint(&self) -> u64 {
        let (keys, leases) = (
            self.server().key_count().await,
            self.server().lease_count().await,
        );
        keys.expect("a count of keys") + leases.expect("a count of leases") as u64
    }

    async fn contents(&self) -> u64 {
        // No key is without a lease, so nothing else ends by itself.
        self.footprint().await
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

/// The text of one field of a flat JSON answer.
fn field(json: &str, name: &str) -> String {
    let (_, rest) = json
        .split_once(&format!(r#""{name}":""#))
        .unwrap_or_else(|| panic!("no {name} in {json}"));
    rest.split('"').next().unwrap_or_default().to_owned()
}

/// A key beside the locks, written in one transaction with the lock's condition.
struct Fenced {
    locks: Arc<EtcdStore>,
    data: Client,
    written: AtomicU64,
}

#[async_trait]
impl FencedResource for Fenced {
    async fn write(&self, by: &dyn leasehold_core::Fenced) -> Result<bool> {
        let write = Txn::new()
            .when([self.locks.still_holds(by)?])
            .and_then([TxnOp::put("%data", "x", None)]);
        let written = self.data.clone().txn(write).await;
        let written = written
            .map_err(|e| Error::new(ErrorKind::Ambiguous, e.to_string()))?
            .succeeded();
        self.written.fetch_add(u64::from(written), SeqCst);
        Ok(written)
    }

    async fn written(&self) -> u64 {
        self.written.load(SeqCst)
    }
}

struct Foreign {
    servers: Arc<Servers>,
    key: String,
}

#[async_trait]
impl ForeignHold for Foreign {
    async fn release(self: Box<Self>) {
        let unlock = format!(r#"{{"key":"{}"}}"#, self.key);
        self.servers
            .first()
            .post("/v3/lock/unlock", &unlock)
            .await
            .expect("the other tool's unlock");
    }
}
