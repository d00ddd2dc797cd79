//! etcd, of one member or of three.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, LeaseGrantOptions, PutOptions, Txn,
    TxnOp,
};
use leasehold_conformance::harness::{FencedResource, ForeignHold};
use leasehold_conformance::{Budget, Capabilities, Harness, Link};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_etcd::{Config, Etcd};
use leasehold_sim::etcd::reach;
use leasehold_sim::stage::{Link as Way, Site};

use crate::suite::Network;
use crate::suite::unfit::capabilities;

/// That of the suite on real servers.
pub(crate) const TTL: Duration = Duration::from_secs(2);

pub(crate) struct World(pub(crate) Arc<Site>);

/// The name as other tools must be given it: see the store's documentation.
fn plain(full_name: &str) -> String {
    full_name.replace('%', "%25").replace('/', "%2F")
}

async fn connect(way: &Way) -> Arc<Etcd> {
    let endpoints: Vec<String> = way
        .hosts()
        .iter()
        .map(|host| format!("http://{host}"))
        .collect();
    Arc::new(
        Etcd::with_config(Config::new(endpoints).reached_by(reach))
            .await
            .expect("a client"),
    )
}

impl World {
    /// A client for what is no lock.
    fn raw(&self) -> Client {
        reach(&format!("http://{}", self.0.link().hosts()[0]))
    }
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        "etcd"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        connect(&self.0.link()).await
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn counters(&self) -> usize {
        100
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.0.kind())
    }

    async fn private(&self) -> Arc<dyn Harness> {
        Arc::new(World(self.0.others()))
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let way = self.0.link();
        (connect(&way).await, Arc::new(Network(way)))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        let (locks, data, written) = (connect(&self.0.link()).await, self.raw(), AtomicU64::new(0));
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
        let prefix = format!("{}/", plain(full_name));
        let gone = self
            .raw()
            .delete(prefix, Some(DeleteOptions::new().with_prefix()))
            .await
            .expect("a deletion");
        assert_eq!(gone.deleted(), 1);
    }

    /// What Go's `concurrency.Mutex` does, of which `etcdctl lock` and the server's own lock service are made.
    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        let mut raw = self.raw();
        let lease = raw
            .lease_grant(30, None::<LeaseGrantOptions>)
            .await
            .expect("a lease")
            .id();
        let key = format!("{}/{lease:x}", plain(full_name));
        let free = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(key.clone(), "", Some(PutOptions::new().with_lease(lease)));
        let done = raw
            .txn(Txn::new().when([free]).and_then([put]))
            .await
            .expect("a key");
        assert!(done.succeeded());
        let first = GetOptions::new().with_prefix().with_count_only();
        let before = raw
            .get(format!("{}/", plain(full_name)), Some(first))
            .await
            .expect("a count");
        assert_eq!(before.count(), 1, "somebody else holds it");
        Box::new(Foreign(raw, key))
    }

    async fn restart(&self) {
        self.0.restart().await;
    }

    async fn requests(&self) -> u64 {
        self.0.counts().requests
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
        self.0.counts().lasting
    }

    async fn contents(&self) -> u64 {
        self.0.counts().contents
    }
}

/// A key beside the locks, written in one transaction with the lock's condition.
struct Fenced {
    locks: Arc<Etcd>,
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

struct Foreign(Client, String);

#[async_trait]
impl ForeignHold for Foreign {
    async fn release(mut self: Box<Self>) {
        self.0
            .delete(&*self.1, None)
            .await
            .expect("the other tool's unlock");
    }
}
