//! What the tests of this store share: a server of their own, short words for calls of `Backend`, and counts of requests.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
pub(crate) use leasehold_conformance::context::{granted, waiting};
use leasehold_core::backend::{
    Backend, Claim, Claimed, Grant, LeaseRef, Mode, Renewal, WaitPolicy,
};
use leasehold_core::{Guard, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
pub(crate) use leasehold_testbed::verbs::within;
use tokio::task::{AbortHandle, JoinSet};

pub(crate) const TTL: Duration = Duration::from_secs(20);
/// So long that nothing happens because a lease ended or a waiter asked again by itself.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn server() -> testbed::Etcd {
    testbed::Etcd::start().await.unwrap()
}

/// Where nothing fails, a request that takes long says only that the machine is busy.
pub(crate) async fn client(addr: &str) -> Etcd {
    Etcd::connect(&format!("etcd://{addr}/test?timeout=5000"))
        .await
        .unwrap()
}

/// Gives a request up after a second, as it is usual.
pub(crate) async fn usual(addr: &str) -> Etcd {
    Etcd::connect(&format!("etcd://{addr}/test")).await.unwrap()
}

pub(crate) async fn store(server: &testbed::Etcd) -> Store {
    Store::new(client(server.addr()).await).ttl(LONG)
}

/// Until so many wait for the lock.
pub(crate) async fn until_waiting(store: &Store, name: &str, waiters: usize) {
    // A server that is starting again does not answer each time.
    while store
        .lock(name)
        .inspect()
        .await
        .map_or(usize::MAX, |queue| queue.waiters.len())
        != waiters
    {
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

/// What is said of these leases once nothing of them is unknown: a busy server may leave a renewal without an answer.
pub(crate) async fn renewals(etcd: &Etcd, leases: &[LeaseRef]) -> Vec<Renewal> {
    loop {
        let answers = etcd.renew(leases).await.unwrap();
        if !answers
            .iter()
            .any(|answer| matches!(answer, Renewal::Unknown(_)))
        {
            return answers;
        }
    }
}

/// Releases it. A release that a fault leaves unanswered goes on in the background.
pub(crate) async fn give_back(guard: Guard) {
    if let Err(error) = guard.release().await {
        assert!(error.is_retryable(), "{error:?}");
    }
}

/// The requests that the server has answered, by method, without those of the test itself.
pub(crate) async fn requests(server: &testbed::Etcd) -> BTreeMap<String, u64> {
    let mut counts = server.handled().await.unwrap();
    counts.retain(|_, count| *count > 0);
    counts
}

/// The requests from `before` until now.
pub(crate) async fn requests_since(
    server: &testbed::Etcd,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let mut counts = requests(server).await;
    counts
        .iter_mut()
        .for_each(|(method, count)| *count -= before.get(method).copied().unwrap_or(0));
    counts.retain(|_, count| *count > 0);
    counts
}

pub(crate) fn counts(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
    all.iter()
        .map(|(method, count)| ((*method).to_owned(), *count))
        .collect()
}

/// etcd's own client.
pub(crate) async fn raw(server: &testbed::Etcd) -> Client {
    Client::connect([server.url()], None).await.unwrap()
}

/// The keys under a prefix, without the sessions' own.
pub(crate) async fn keys(server: &testbed::Etcd, prefix: &str) -> Vec<String> {
    let read = raw(server)
        .await
        .get(prefix, Some(GetOptions::new().with_prefix()))
        .await
        .unwrap();
    let keys = read.kvs().iter().map(|kv| kv.key_str().unwrap().to_owned());
    keys.filter(|key| !key.contains("%session")).collect()
}

pub(crate) async fn release(etcd: &Etcd, claim: &Claim) {
    etcd.release(claim, None).await.unwrap();
}

/// Until there are so many keys.
pub(crate) async fn until_keys(server: &testbed::Etcd, n: usize) {
    while server.key_count().await.unwrap() != n as u64 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Clients that take turns, each with one task.
pub(crate) struct Circle {
    pub(crate) stores: Vec<Store>,
    waiting: JoinSet<(usize, Guard)>,
    waiters: Vec<AbortHandle>,
    holder: Option<(usize, Guard)>,
}

impl Circle {
    pub(crate) async fn of(server: &testbed::Etcd, clients: usize) -> Circle {
        let (waiting, waiters) = (JoinSet::new(), Vec::new());
        let mut circle = Circle {
            stores: Vec::new(),
            waiting,
            waiters,
            holder: None,
        };
        for i in 0..clients {
            circle.stores.push(store(server).await);
            let waiter = circle.acquire(i);
            circle.waiters.push(waiter);
            until_keys(server, i + 1).await;
        }
        circle.next().await;
        circle
    }

    fn acquire(&mut self, i: usize) -> AbortHandle {
        // So long that no session is renewed, and no waiter asks again by itself, however slow the machine is.
        let acquire = self.stores[i]
            .lock("a")
            .ttl(Duration::from_secs(3600))
            .fair()
            .acquire();
        self.waiting
            .spawn(async move { (i, acquire.await.unwrap()) })
    }

    /// Waits for the next holder.
    pub(crate) async fn next(&mut self) {
        loop {
            match within(20, self.waiting.join_next()).await.unwrap() {
                Ok(holder) => break self.holder = Some(holder),
                Err(left) => assert!(left.is_cancelled(), "{left}"),
            }
        }
    }

    pub(crate) fn holder(&self) -> usize {
        self.holder.as_ref().unwrap().0
    }

    /// It comes, or comes again.
    pub(crate) fn comes(&mut self, i: usize) {
        self.waiters[i] = self.acquire(i);
    }

    /// It waits no longer.
    pub(crate) fn leaves(&self, i: usize) {
        self.waiters[i].abort();
    }

    /// The holder releases; answers who that was.
    pub(crate) async fn release(&mut self) -> usize {
        let (i, guard) = self.holder.take().unwrap();
        guard.release().await.unwrap();
        i
    }

    /// The holder releases, and comes again; answers who holds next.
    pub(crate) async fn hand_over(&mut self) -> usize {
        let i = self.release().await;
        self.comes(i);
        self.next().await;
        self.holder()
    }

    pub(crate) async fn hand_over_often(&mut self, times: usize) {
        for _ in 0..times {
            self.hand_over().await;
        }
    }
}
