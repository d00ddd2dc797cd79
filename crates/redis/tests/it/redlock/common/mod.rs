//! What the tests of this store share: private nodes, clients through proxies, and short words for claims.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_imports,
    reason = "each test uses a part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::time::Duration;

/// The keys of a node's script for this lock, as they stand behind their number.
pub fn keys_of(lock: &str) -> Vec<String> {
    let beside = ["rq", "rh", "rw", "rs", "re"].map(|end| format!("{{{lock}}}:{end}"));
    let of_all = ["rt", "ro", "rb", "rn"].map(|end| format!("{{}}:{end}"));
    let keys = [lock.to_owned()].into_iter().chain(beside).chain(of_all);
    keys.collect()
}

/// A request that runs a node's script for this lock with these arguments.
pub fn eval<'a>(script: &'a str, keys: &'a [String], args: &[&'a str]) -> Vec<&'a str> {
    let keys = ["10"].into_iter().chain(keys.iter().map(String::as_str));
    let words = ["EVAL", script].into_iter().chain(keys);
    words.chain(args.iter().copied()).collect()
}

use leasehold_core::backend::{Backend, Claim, Claimed, Grant, Mode, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken};
use leasehold_redis::redlock::Redlock;
pub use leasehold_testbed::verbs::{
    TTL, bounded, connected, kind, lease, refusals, sleep, until, within, words_without,
};
use leasehold_testbed::{Proxy, Redis, RedisOptions};

/// The beginning of the scripts.
pub const BEGINNING: &str = concat!(
    include_str!("../../../../src/link/clock.lua"),
    include_str!("../../../../src/redlock/bound.lua"),
);

/// Nodes that reach the disk before they answer, as a Redlock wants them.
pub async fn nodes(n: usize) -> Vec<Redis> {
    Redis::start_many_with(
        n,
        &RedisOptions {
            persistent: true,
            ..RedisOptions::default()
        },
    )
    .await
    .unwrap()
}

pub fn url<'a>(addrs: impl IntoIterator<Item = &'a str>) -> String {
    format!(
        "redlock://{}",
        addrs.into_iter().collect::<Vec<_>>().join(",")
    )
}

/// Where nothing fails, a node that takes long says only that the machine is busy.
pub async fn client(nodes: &[Redis]) -> Redlock {
    let url = format!("{}?timeout=5000", url(nodes.iter().map(|node| node.addr())));
    connected(|| Redlock::connect(&url)).await
}

/// A client behind one proxy for each node, which waits longer for each than usual, and no longer than tests of silence have time for.
pub async fn through(nodes: &[Redis]) -> (Redlock, Vec<Proxy>) {
    linked(nodes, "?timeout=1000").await
}

/// A client behind one proxy for each node, with these words in its URL.
pub async fn linked(nodes: &[Redis], words: &str) -> (Redlock, Vec<Proxy>) {
    let mut proxies = Vec::new();
    for node in nodes {
        proxies.push(Proxy::to(node.addr()).await.unwrap());
    }
    let url = format!("{}{words}", url(proxies.iter().map(Proxy::addr)));
    (connected(|| Redlock::connect(&url)).await, proxies)
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

/// Claims until the store says what became of it, which is a grant.
pub async fn granted(store: &Redlock, claim: &Claim) -> Grant {
    loop {
        match store.claim(claim).await {
            Ok(Claimed::Granted(grant)) => return grant,
            Ok(other) => panic!("not granted: {other:?}"),
            Err(e) => assert!(
                matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous),
                "{e:?}"
            ),
        }
        sleep(10).await;
    }
}

/// Claims until it is granted: the one before has to be released or to expire.
pub async fn soon(store: &Redlock, claim: &Claim) -> Grant {
    loop {
        match store.claim(claim).await {
            Ok(Claimed::Granted(grant)) => return grant,
            Ok(_) => {}
            Err(e) => assert!(
                matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous),
                "{e:?}"
            ),
        }
        sleep(10).await;
    }
}

/// What is said of a hold once it is known: of a busy machine's nodes no majority may answer in time.
pub async fn renewed(store: &Redlock, claim: &Claim, token: FencingToken) -> Renewal {
    let asked = [lease(claim, token)];
    loop {
        match store.renew(&asked).await.unwrap().remove(0) {
            Renewal::Unknown(_) => sleep(10).await,
            said => return said,
        }
    }
}

/// Releases it, and asks again for the same reason.
pub async fn given_back(store: &Redlock, claim: &Claim) {
    while let Err(e) = store.release(claim, None).await {
        assert!(e.is_retryable(), "{e:?}");
        sleep(10).await;
    }
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

/// The entry of a hold on a node; empty if it has none.
pub async fn entry(node: &Redis, claim: &Claim) -> String {
    let hold = format!("{{{}}}:rh", claim.name);
    node.command(&["HGET", &hold, &claim.id.to_string()])
        .await
        .unwrap()
        .text()
        .unwrap_or_default()
}

/// Renews it, until every node has it by one token from one request: a node that granted late has another one until then, and no
/// request that would write it is under way afterwards. A request that a node did not get is followed by another one.
pub async fn agree(store: &Redlock, nodes: &[Redis], claim: &Claim, token: FencingToken) {
    loop {
        if !matches!(renewed(store, claim, token).await, Renewal::Renewed(_)) {
            sleep(10).await;
            continue;
        }
        for _ in 0..100 {
            let mut said = Vec::new();
            for node in nodes {
                let entry = entry(node, claim).await;
                let words: Vec<_> = entry.split(' ').map(str::to_owned).collect();
                said.push(words.get(2).cloned().zip(words.get(6).cloned()));
            }
            if said.iter().all(|one| one.is_some() && *one == said[0]) {
                return;
            }
            sleep(10).await;
        }
    }
}

/// The keys of a node that are not those of all names.
pub async fn traces(node: &Redis) -> Vec<String> {
    let all = node.keys("*").await.unwrap();
    all.into_iter()
        .filter(|key| !key.starts_with("{}:r") && key != "{}:store")
        .collect()
}

/// No token of a node is greater, of any name.
pub async fn bound(node: &Redis) -> u64 {
    node.command(&["GET", "{}:rb"])
        .await
        .unwrap()
        .text()
        .unwrap()
        .parse()
        .unwrap()
}

/// As if this node had given out, or had been told, that token of a name.
pub async fn has_given(node: &Redis, name: &str, token: u64) {
    let token = token.to_string();
    node.command(&["SET", "{}:rb", &token]).await.unwrap();
    node.command(&["HSET", "{}:rt", "", &format!("{token} 0 0"), name, &token])
        .await
        .unwrap();
    node.command(&["PERSIST", "{}:rt"]).await.unwrap();
}

/// Waits until nothing is left on these nodes.
pub async fn until_clean(nodes: &[&Redis]) {
    for node in nodes {
        while !traces(node).await.is_empty() {
            sleep(10).await;
        }
    }
}

/// Waits until a client's claims reach every node.
pub async fn until_whole(store: &Redlock, nodes: &[Redis]) {
    let mut held = 0;
    while held != nodes.len() {
        let probe = fast("probe");
        soon(store, &probe).await;
        // Some may be late.
        for _ in 0..20 {
            held = held_on(nodes, &probe).await;
            if held == nodes.len() {
                break;
            }
            sleep(10).await;
        }
        given_back(store, &probe).await;
    }
}

/// How many scripts ran, and what they called inside: once so many ran, or after a while, since a node may have been away.
pub async fn calls(node: &Redis, scripts: u64) -> (u64, u64) {
    let mut ran = (0, 0);
    for _ in 0..400 {
        let stats: std::collections::BTreeMap<String, u64> = node.commandstats().await.unwrap();
        let others = [
            "evalsha",
            "eval",
            "info",
            "config|resetstat",
            "ping",
            "auth",
            "hello",
            "subscribe",
        ];
        assert!(
            !stats.contains_key("hgetall"),
            "a request reads every holder"
        );
        let inner = stats
            .iter()
            .filter(|(name, _)| !others.contains(&name.as_str()))
            .map(|(_, n)| n)
            .sum();
        ran = (stats.get("evalsha").copied().unwrap_or_default(), inner);
        if ran.0 >= scripts {
            break;
        }
        sleep(5).await;
    }
    ran
}
