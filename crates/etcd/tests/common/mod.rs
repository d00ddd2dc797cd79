//! What the tests of this store share: a server of their own, short words for the seam, and counts of requests.
#![allow(dead_code, unused_imports, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
pub(crate) use leasehold_conformance::context::{granted, waiting};
use leasehold_core::Store;
use leasehold_core::seam::{Backend, Claim, Claimed, Grant, Mode, WaitPolicy};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
pub(crate) use leasehold_testbed::seam::within;

pub(crate) const TTL: Duration = Duration::from_secs(20);
/// So long that nothing happens because a lease ended or a waiter asked again by itself.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn server() -> testbed::Etcd {
    testbed::Etcd::start().await.unwrap()
}

pub(crate) async fn client(addr: &str) -> Etcd {
    Etcd::connect(&format!("etcd://{addr}/test")).await.unwrap()
}

pub(crate) async fn store(server: &testbed::Etcd) -> Store {
    Store::new(client(server.addr()).await).ttl(LONG)
}

/// Until so many wait for the lock.
pub(crate) async fn until_waiting(store: &Store, name: &str, waiters: usize) {
    while store.lock(name).inspect().await.unwrap().waiters.len() != waiters {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn claim(name: &str, policy: WaitPolicy, ttl: Duration) -> Claim {
    Claim::new(name, Mode::Exclusive, policy, ttl, "test")
}

pub(crate) fn fair(name: &str) -> Claim {
    claim(name, WaitPolicy::Fair, TTL)
}

/// Claims again until it is granted: what core does at the notification.
pub(crate) async fn becomes_granted(etcd: &Etcd, claim: &Claim) -> Grant {
    loop {
        match etcd.claim(claim).await {
            Ok(Claimed::Granted(grant)) => return grant,
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// The requests that the server has answered, by method, without those of the test itself.
pub(crate) async fn requests(server: &testbed::Etcd) -> BTreeMap<String, u64> {
    let mut counts = server.handled().await.unwrap();
    counts.retain(|_, count| *count > 0);
    counts
}

/// The requests from `before` until now.
pub(crate) async fn requests_since(server: &testbed::Etcd, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut counts = requests(server).await;
    counts.iter_mut().for_each(|(method, count)| *count -= before.get(method).copied().unwrap_or(0));
    counts.retain(|_, count| *count > 0);
    counts
}

pub(crate) fn counts(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
    all.iter().map(|(method, count)| ((*method).to_owned(), *count)).collect()
}

/// etcd's own client.
pub(crate) async fn raw(server: &testbed::Etcd) -> Client {
    Client::connect([server.url()], None).await.unwrap()
}

/// The keys under a prefix, without the sessions' own.
pub(crate) async fn keys(server: &testbed::Etcd, prefix: &str) -> Vec<String> {
    let read = raw(server).await.get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
    let keys = read.kvs().iter().map(|kv| kv.key_str().unwrap().to_owned());
    keys.filter(|key| !key.contains("%session")).collect()
}

pub(crate) async fn release(etcd: &Etcd, claim: &Claim) {
    etcd.release(claim, None).await.unwrap();
}
