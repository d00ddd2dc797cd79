//! The powers of the suite over a private ZooKeeper server, reached as it is or as an account by SASL, over three servers by TLS and as
//! an account, and over a server of somebody else. The other tool is the client crate's own lock, which is Curator's recipe.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a harness that cannot do its part has failed"
)]

#[path = "../it/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::connected;
use futures_util::future::join_all;
use leasehold_conformance::harness::{FencedResource, ForeignHold};
use leasehold_conformance::{Budget, Capabilities, Harness, Link, Need};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::{Error, ErrorKind, Fenced, Result};
use leasehold_testbed::{
    Certificates, Detour, Proxy, TlsPort, ZooKeeper as Server, ZooKeeperEnsemble, ZooKeeperOptions,
};
use leasehold_zookeeper::ZooKeeper;
#[cfg(feature = "sasl")]
use zookeeper_client::SaslOptions;
use zookeeper_client::{
    Acls, Client, CreateMode, Error as ZkError, LockOptions, LockPrefix, MultiWriteError,
    OwnedLockClient,
};

use crate::ALLOCATOR;

/// Servers of ours, or an external one.
pub enum World {
    Private(Box<Server>),
    /// Clients have an account of the server's, and nobody else may touch their nodes.
    Account(Box<Server>),
    /// Three that are one store. Its clients come over TLS with certificates, and with credentials: nobody else may touch their nodes.
    Three(Box<ZooKeeperEnsemble>, Box<Certificates>),
    External(String),
}

/// Who the clients are, if they are anybody.
const USER: &str = "me";
const PASSWORD: &str = "s3cret";

/// The node of a lock, as the store's documentation says it; the suite's names need no more than this.
fn node(full_name: &str) -> String {
    format!(
        "/leasehold/{}",
        full_name.replace('%', "%25").replace('/', "%2F")
    )
}

impl World {
    pub async fn private_one() -> Arc<dyn Harness> {
        Arc::new(World::Private(Box::new(
            Server::start().await.expect("a private ZooKeeper"),
        )))
    }

    pub async fn account() -> Arc<dyn Harness> {
        let accounts = vec![(USER.to_owned(), PASSWORD.to_owned())];
        let options = ZooKeeperOptions {
            accounts,
            ..ZooKeeperOptions::default()
        };
        Arc::new(World::Account(Box::new(
            Server::start_with(&options)
                .await
                .expect("a private ZooKeeper"),
        )))
    }

    pub async fn three() -> Arc<dyn Harness> {
        let certificates = Certificates::new().expect("a CA");
        certificates
            .issue("client")
            .expect("a client's certificate");
        let port = TlsPort::new(&certificates).expect("a port").mutual();
        let options = ZooKeeperOptions {
            tls: Some(port),
            ..ZooKeeperOptions::default()
        };
        let ensemble = Server::ensemble_with(3, &options)
            .await
            .expect("three ZooKeepers");
        Arc::new(World::Three(Box::new(ensemble), Box::new(certificates)))
    }

    /// Where clients of the store connect, by way of this address if it is another one.
    fn url(&self, by: Option<&str>) -> String {
        match self {
            World::Private(server) => format!("zookeeper://{}", by.unwrap_or(server.addr())),
            World::Account(server) => {
                format!(
                    "zookeeper://{USER}:{PASSWORD}@{}?sasl=digest-md5",
                    by.unwrap_or(server.addr())
                )
            }
            World::Three(ensemble, certificates) => {
                let all: Vec<&str> = ensemble
                    .members()
                    .iter()
                    .filter_map(|member| member.tls_addr())
                    .collect();
                let (all, folder) = (
                    all.join(","),
                    certificates.ca().parent().expect("a folder").display(),
                );
                let files =
                    format!("ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key");
                format!(
                    "zookeepers://{USER}:{PASSWORD}@{}?{files}",
                    by.unwrap_or(&all)
                )
            }
            World::External(url) => url.clone(),
        }
    }

    fn servers(&self) -> &[Server] {
        match self {
            World::Private(server) | World::Account(server) => std::slice::from_ref(server),
            World::Three(ensemble, _) => ensemble.members(),
            World::External(_) => unreachable!("not among the capabilities"),
        }
    }

    /// A client that sees all that was done before.
    async fn raw(&self) -> Client {
        let addrs: Vec<&str> = self.servers().iter().map(|server| server.addr()).collect();
        let connector = match self {
            #[cfg(feature = "sasl")]
            World::Account(_) => {
                Client::connector().with_sasl(SaslOptions::digest_md5(USER, PASSWORD))
            }
            World::Three(..) => {
                Client::connector().with_auth("digest", format!("{USER}:{PASSWORD}").as_bytes())
            }
            _ => Client::connector(),
        };
        let raw = connector
            .connect(&addrs.join(","))
            .await
            .expect("a bare client");
        raw.sync("/").await.expect("an answer");
        raw
    }

    /// One of the servers' counters, of each.
    async fn counted(&self, name: &str) -> Vec<u64> {
        let of = async |server: &Server| {
            let mntr = server.mntr().await.expect("counters");
            mntr.get(name)
                .and_then(|n| n.parse().ok())
                .expect("a number")
        };
        join_all(self.servers().iter().map(of)).await
    }
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        match self {
            World::Account(_) => "zookeeper, SASL",
            World::Three(..) => "zookeeper ×3, TLS, digest",
            _ => "zookeeper",
        }
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(connected(&self.url(None)).await)
    }

    fn ttl(&self) -> Duration {
        // Some round trips and three eighths of a lease go into its proof: a busy machine needs more than elsewhere.
        Duration::from_secs(4)
    }

    fn counters(&self) -> usize {
        // Each client shakes hands with TLS, and three servers share the machine with it.
        if matches!(self, World::Three(..)) {
            40
        } else {
            200
        }
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{
            AnotherTool, Contents, DeleteHolder, Fence, Footprint, Heap, Junk, Link, Private,
            PushedWake, Requests, Restart,
        };
        let able = [
            AnotherTool,
            DeleteHolder,
            Fence,
            Footprint,
            Junk,
            Link,
            Private,
            PushedWake,
            Requests,
            Restart,
        ];
        let able = [&able[..], &[Contents, Heap]].concat();
        let capabilities = match self {
            World::Private(_) => Capabilities::new(
                &[&able[..], &[Need::Detour]].concat(),
                "transaction numbers restart with the data, as its guarantees say",
            ),
            World::Account(_) | World::Three(..) => Capabilities::new(
                &able,
                "transaction numbers restart with the data, as its guarantees say",
            ),
            World::External(_) => Capabilities::new(
                &[PushedWake],
                "the server of LEASEHOLD_ZOOKEEPER_URL is not ours to disturb",
            ),
        };
        capabilities
            .lacks(
                &[Need::AtomicMulti],
                "no transaction makes nodes on the condition that others have no children",
            )
            .lacks(&[Need::MinHold], "nothing of a session outlives its client")
            .lacks(&[Need::Floor], "a place is numbered when it is taken")
    }

    async fn private(&self) -> Arc<dyn Harness> {
        match self {
            World::Account(_) => World::account().await,
            World::Three(..) => World::three().await,
            _ => World::private_one().await,
        }
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let server = &self.servers()[0];
        let to = server.tls_addr().unwrap_or(server.addr()).to_owned();
        let proxy = Proxy::to(to).await.expect("a proxy");
        let client = connected(&self.url(Some(proxy.addr()))).await;
        (Arc::new(client), Arc::new(proxy))
    }

    async fn misled_client(&self) -> (Arc<dyn Backend>, Arc<dyn leasehold_conformance::Detour>) {
        let other = Server::start().await.expect("another ZooKeeper");
        let elsewhere = Arc::new(connected(&format!("zookeeper://{}", other.addr())).await);
        let ways = vec![[self.servers()[0].addr().to_owned(), other.addr().to_owned()]];
        let way = Detour::between(ways, elsewhere, other)
            .await
            .expect("a proxy");
        let client = connected(&self.url(Some(way.addrs()[0]))).await;
        (Arc::new(client), Arc::new(way))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        let (raw, path) = (
            self.raw().await,
            format!("/row-{}", ROWS.fetch_add(1, Ordering::Relaxed)),
        );
        raw.create(
            &path,
            b"",
            &CreateMode::Persistent.with_acls(Acls::anyone_all()),
        )
        .await
        .expect("a row");
        let client = connected(&self.url(None)).await;
        (
            Arc::new(client.clone()),
            Arc::new(Row { client, raw, path }),
        )
    }

    async fn delete_holder(&self, full_name: &str) {
        let (raw, node) = (self.raw().await, node(full_name));
        let mut queue = raw.list_children(&node).await.expect("a queue");
        queue.sort_by_key(|child| child.rsplit('-').next().map(str::to_owned));
        raw.delete(&format!("{node}/{}", queue[0]), None)
            .await
            .expect("a deletion");
    }

    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all())
            .with_ancestor_options(container)
            .expect("options");
        let (raw, node) = (self.raw().await, node(full_name));
        let prefix = LockPrefix::new_curator(&node, "lock-").expect("a prefix");
        let lock = raw
            .lock(prefix, b"127.0.0.1", options)
            .await
            .expect("the other tool's lock");
        Box::new(Foreign(lock.into_owned()))
    }

    async fn put_junk(&self, full_name: &str) {
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        let raw = self.raw().await;
        raw.mkdir(
            "/leasehold",
            &CreateMode::Persistent.with_acls(Acls::anyone_all()),
        )
        .await
        .expect("the root");
        raw.create(&node(full_name), b"junk", &ephemeral)
            .await
            .expect("junk");
        std::mem::forget(raw); // the node lives as long as its session
    }

    async fn restart(&self) {
        for server in self.servers() {
            server.kill().await.expect("an end");
        }
        for started in join_all(self.servers().iter().map(|server| server.start_again())).await {
            started.expect("a restart");
        }
    }

    async fn requests(&self) -> u64 {
        // Pings, keep-alives and this very request are counted too: they are few beside those of a case.
        self.counted("zk_packets_received").await.iter().sum()
    }

    fn budget(&self) -> Budget {
        // Two sessions, for leases of 10 and of 20 s: eight keep-alives a lease, and a ping between two of them.
        Budget {
            cycle: 2.0,
            hand_over: 5.1,
            permits: 9.5,
            idle: 2.0 * (8.0 / 10.0 + 8.0 / 20.0),
        }
    }

    async fn footprint(&self) -> u64 {
        // Locks' own nodes are containers: the server removes them by itself. Each server has all nodes, and its own clients.
        let own = [
            self.counted("zk_watch_count").await,
            self.counted("zk_num_alive_connections").await,
        ];
        self.counted("zk_ephemerals_count").await[0] + own.iter().flatten().sum::<u64>()
    }

    async fn contents(&self) -> u64 {
        self.counted("zk_znode_count").await[0]
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

static ROWS: AtomicUsize = AtomicUsize::new(0);

/// A node that counts its writes as its version.
struct Row {
    client: ZooKeeper,
    raw: Client,
    path: String,
}

#[async_trait]
impl FencedResource for Row {
    async fn write(&self, by: &dyn Fenced) -> Result<bool> {
        let unknown = |e: ZkError| {
            Error::new(ErrorKind::Ambiguous, "the write was not answered").with_source(e)
        };
        let mut write = self.raw.new_multi_writer();
        write
            .add_check_version(&self.client.still_holds(by)?, -1)
            .map_err(unknown)?;
        write.add_set_data(&self.path, b"", None).map_err(unknown)?;
        match write.commit().await {
            Ok(_) => Ok(true),
            Err(MultiWriteError::OperationFailed {
                source: ZkError::NoNode,
                index: 0,
            }) => Ok(false),
            Err(e) => Err(unknown(e.into())),
        }
    }

    async fn written(&self) -> u64 {
        let row = self.raw.check_stat(&self.path).await.expect("an answer");
        row.expect("a row").version.unsigned_abs().into()
    }
}

struct Foreign(OwnedLockClient);

#[async_trait]
impl ForeignHold for Foreign {
    async fn release(self: Box<Self>) {
        self.0
            .client()
            .delete(self.0.lock_path(), None)
            .await
            .expect("the other tool's unlock");
    }
}
