//! The suite against real etcd.

use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, DeleteOptions, GetOptions, SortOrder, SortTarget};
use leasehold_conformance::harness::ForeignHold;
use leasehold_conformance::{Harness, Link, Need, Powers};
use leasehold_core::seam::{Backend, async_trait};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use tokio::process::{Child, Command};

struct World(testbed::Etcd);

impl World {
    async fn start() -> World {
        World(testbed::Etcd::start().await.unwrap())
    }

    fn url(addr: &str) -> String {
        format!("etcd://{addr}/suite")
    }

    /// The documented layout, written down once more: the tests must not learn it from the code.
    fn line(full_name: &str) -> String {
        format!("suite/{}", full_name.replace('%', "%25").replace('/', "%2F"))
    }

    async fn raw(&self) -> Client {
        Client::connect([self.0.url()], None).await.unwrap()
    }
}

#[async_trait]
impl Harness for World {
    fn store(&self) -> &'static str {
        "etcd"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(Etcd::connect(&World::url(self.0.addr())).await.unwrap())
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn powers(&self) -> Powers {
        use Need::{AnotherTool, DeleteHolder, Footprint, Link, Private, PushedWake, Restart};
        let able = [AnotherTool, DeleteHolder, Footprint, Link, Private, PushedWake, Restart];
        Powers::new(&able, "etcd's keys have no types, and its tokens do not survive the loss of its data")
    }

    async fn private(&self) -> Arc<dyn Harness> {
        Arc::new(World::start().await)
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let proxy = Arc::new(testbed::Proxy::to(self.0.addr()).await.unwrap());
        let client = Etcd::connect(&World::url(proxy.addr())).await.unwrap();
        (Arc::new(client), Arc::new(Cable(proxy)))
    }

    async fn delete_holder(&self, full_name: &str) {
        let mut raw = self.raw().await;
        let oldest = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
        let read = raw.get(format!("{}/", World::line(full_name)), Some(oldest)).await.unwrap();
        let key = read.kvs()[0].key();
        assert_eq!(raw.delete(key, Some(DeleteOptions::new())).await.unwrap().deleted(), 1);
    }

    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        let line = World::line(full_name);
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.0.url(), "lock", &line]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let mut raw = self.raw().await;
        while raw.get(format!("{line}/"), Some(GetOptions::new().with_prefix())).await.unwrap().kvs().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Box::new(Etcdctl(child))
    }

    async fn restart(&self) {
        self.0.restart_with_data().await.unwrap();
    }

    async fn footprint(&self) -> u64 {
        self.0.key_count().await.unwrap() + self.0.lease_count().await.unwrap() as u64
    }
}

struct Etcdctl(Child);

#[async_trait]
impl ForeignHold for Etcdctl {
    async fn release(mut self: Box<Self>) {
        let pid = self.0.id().unwrap().to_string();
        // It unlocks when it is interrupted.
        Command::new("kill").args(["-INT", &pid]).status().await.unwrap();
        self.0.wait().await.unwrap();
    }
}

struct Cable(Arc<testbed::Proxy>);

impl Link for Cable {
    fn black_hole(&self) {
        self.0.hold();
    }
    fn lose_replies(&self) {
        self.0.drop_replies();
    }
    fn cut(&self) {
        let proxy = self.0.clone();
        tokio::spawn(async move { proxy.cut().await });
    }
    fn heal(&self) {
        let proxy = self.0.clone();
        tokio::spawn(async move { proxy.heal().await });
    }
}

fn main() -> ExitCode {
    leasehold_conformance::main(|| async { Arc::new(World::start().await) as Arc<dyn Harness> })
}
