//! ZooKeeper, one server or three.

use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::harness::{FencedResource, ForeignHold};
use leasehold_conformance::{Budget, Capabilities, Harness, Link};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::{Error, ErrorKind, Fenced, Result};
use leasehold_sim::stage::{Link as Way, Site};
use leasehold_sim_zookeeper::{Config, ZooKeeper};
use leasehold_sim_zookeeper_client::{Acls, Client, CreateMode, Error as ZkError, MultiWriteError};

use crate::suite::unfit::capabilities;
use crate::suite::{Network, row};

/// That of the suite on real servers.
pub(crate) const TTL: Duration = Duration::from_secs(4);

pub(crate) struct World(pub(crate) Arc<Site>);

/// The node of a lock, as the store's documentation says it; the suite's names need no more than this.
fn node(full_name: &str) -> String {
    format!(
        "/leasehold/{}",
        full_name.replace('%', "%25").replace('/', "%2F")
    )
}

async fn connect(way: &Way) -> ZooKeeper {
    ZooKeeper::with_config(Config::new(&way.hosts().join(",")))
        .await
        .expect("a client")
}

impl World {
    /// A client that sees all that was done before.
    async fn raw(&self) -> Client {
        let server = format!("{}:2181", self.0.link().hosts()[0]);
        let raw = Client::connector()
            .connect(&server)
            .await
            .expect("a bare client");
        raw.sync("/").await.expect("an answer");
        raw
    }
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        "zookeeper"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(connect(&self.0.link()).await)
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn counters(&self) -> usize {
        200
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.0.kind())
    }

    async fn private(&self) -> Arc<dyn Harness> {
        Arc::new(World(self.0.others()))
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let way = self.0.link();
        (Arc::new(connect(&way).await), Arc::new(Network(way)))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        let (raw, path) = (
            self.raw().await,
            format!("/{}", row(&self.0).replace('/', "-")),
        );
        raw.create(
            &path,
            b"",
            &CreateMode::Persistent.with_acls(Acls::anyone_all()),
        )
        .await
        .expect("a row");
        let client = connect(&self.0.link()).await;
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

    /// What Curator's recipe does.
    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        let (raw, node) = (self.raw().await, node(full_name));
        raw.mkdir(&node, &CreateMode::Container.with_acls(Acls::anyone_all()))
            .await
            .expect("a folder");
        let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{node}/_c_7b9a1c4e-5d0f-4f5e-9d0e-2f6d3c1b0a99-lock-");
        let (_, number) = raw
            .create(&prefix, b"127.0.0.1", &mode)
            .await
            .expect("an entry");
        assert_eq!(
            raw.list_children(&node).await.expect("a queue").len(),
            1,
            "somebody else holds it"
        );
        Box::new(Foreign(raw, format!("{prefix}{number}")))
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
        self.0.restart().await;
    }

    async fn requests(&self) -> u64 {
        self.0.counts().requests
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
        self.0.counts().lasting
    }

    async fn contents(&self) -> u64 {
        self.0.counts().contents
    }
}

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

struct Foreign(Client, String);

#[async_trait]
impl ForeignHold for Foreign {
    async fn release(self: Box<Self>) {
        self.0
            .delete(&self.1, None)
            .await
            .expect("the other tool's unlock");
    }
}
