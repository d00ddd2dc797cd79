//! What the tests of this store share: private nodes, clients through proxies, and short words for claims.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{Backend, Claim, Claimed, Grant, LeaseRef, Mode, Place, Renewal, WaitPolicy};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use leasehold_redlock::Redlock;
use leasehold_testbed::{Proxy, Redis, RedisOptions};

/// Long enough that nothing expires by accident.
pub const TTL: Duration = Duration::from_secs(10);

/// No test runs longer.
pub async fn bounded(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(100), Box::pin(test)).await.expect("the test hangs");
}

/// Nodes that reach the disk before they answer, as a Redlock wants them.
pub async fn nodes(n: usize) -> Vec<Redis> {
    Redis::start_many_with(n, &RedisOptions { persistent: true, ..RedisOptions::default() }).await.unwrap()
}

pub fn url<'a>(addrs: impl IntoIterator<Item = &'a str>) -> String {
    format!("redlock://{}", addrs.into_iter().collect::<Vec<_>>().join(","))
}

pub async fn client(nodes: &[Redis]) -> Redlock {
    Redlock::connect(&url(nodes.iter().map(|node| node.addr()))).await.unwrap()
}

/// A client behind one proxy for each node.
pub async fn through(nodes: &[Redis]) -> (Redlock, Vec<Proxy>) {
    let mut proxies = Vec::new();
    for node in nodes {
        proxies.push(Proxy::to(node.addr()).await.unwrap());
    }
    (Redlock::connect(&url(proxies.iter().map(Proxy::addr))).await.unwrap(), proxies)
}

pub fn claim(name: &str, mode: Mode, policy: WaitPolicy, ttl: Duration) -> Claim {
    Claim::new(name, mode, policy, ttl, "label of mine")
}

pub fn fast(name: &str) -> Claim {
    claim(name, Mode::Exclusive, WaitPolicy::Fast, TTL)
}

pub fn attempt(name: &str) -> Claim {
    claim(name, Mode::Exclusive, WaitPolicy::Try, TTL)
}

pub fn lease(claim: &Claim, token: FencingToken) -> LeaseRef {
    LeaseRef::new(Arc::new(claim.clone()), Place::new("unused"), Some(token))
}

/// Claims until the store says what became of it, which is a grant.
pub async fn granted(store: &Redlock, claim: &Claim) -> Grant {
    loop {
        match store.claim(claim).await {
            Ok(Claimed::Granted(grant)) => return grant,
            Ok(other) => panic!("not granted: {other:?}"),
            Err(e) => assert!(matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous), "{e:?}"),
        }
        sleep(10).await;
    }
}

/// Claims until it is granted: whoever was first has to be released or to expire.
pub async fn soon(store: &Redlock, claim: &Claim) -> Grant {
    loop {
        match store.claim(claim).await {
            Ok(Claimed::Granted(grant)) => return grant,
            Ok(_) => {}
            Err(e) => assert!(matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous), "{e:?}"),
        }
        sleep(10).await;
    }
}

pub async fn renewed(store: &Redlock, claim: &Claim, token: FencingToken) -> Renewal {
    store.renew(&[lease(claim, token)]).await.unwrap().remove(0)
}

pub fn kind<T: std::fmt::Debug>(answer: Result<T>) -> ErrorKind {
    answer.map_err(|e: Error| e.kind()).unwrap_err()
}

/// The lock's value on a node; `None` if it is free there.
pub async fn value(node: &Redis, name: &str) -> Option<String> {
    node.command(&["GET", name]).await.unwrap().text()
}

/// On how many nodes this claim is the lock's value.
pub async fn held_on(nodes: &[Redis], claim: &Claim) -> usize {
    let mut held = 0;
    for node in nodes {
        held += usize::from(value(node, claim.name.as_str()).await == Some(claim.id.to_string()));
    }
    held
}

/// Waits until this claim is the lock's value on so many nodes.
pub async fn until_held_on(nodes: &[Redis], claim: &Claim, n: usize) {
    while held_on(nodes, claim).await != n {
        sleep(10).await;
    }
}

/// The keys of a node that are not the last tokens of idle names.
pub async fn traces(node: &Redis) -> Vec<String> {
    let all = node.keys("*").await.unwrap();
    all.into_iter().filter(|key| !key.ends_with("}:rf")).collect()
}

/// Waits until nothing is left on these nodes.
pub async fn until_clean(nodes: &[&Redis]) {
    for node in nodes {
        while !traces(node).await.is_empty() {
            sleep(10).await;
        }
    }
}

pub async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
