//! What the tests of this store share: a private server, clients of it, and a limit on every test.
#![allow(dead_code, unreachable_pub, unused_imports, missing_docs)] // each test binary uses its own part
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

use std::future::Future;
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold_core::backend::{Backend, Claim, Mode, Place, WaitPolicy};
use leasehold_core::{ErrorKind, Guard, Store};
pub use leasehold_testbed::verbs::{bounded as limited, busy, granted, until, waiting};
use leasehold_testbed::{Proxy, ZooKeeper as Server, ZooKeeperEnsemble, ZooKeeperOptions};
use leasehold_zookeeper::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

/// So long a session that hardly a keep-alive falls into a test.
pub const LONG: Duration = Duration::from_secs(60);

pub const SHORT: Duration = Duration::from_secs(3);

pub async fn server() -> Server {
    Server::start().await.unwrap()
}

/// An ensemble of one server, which may have several addresses: it does not run alone, as it says.
pub async fn ensemble_of_one() -> ZooKeeperEnsemble {
    let words = "standaloneEnabled=false".to_owned();
    let options = ZooKeeperOptions {
        extra: vec![words],
        ..ZooKeeperOptions::default()
    };
    Server::ensemble_with(1, &options).await.unwrap()
}

pub async fn client(server: &Server) -> ZooKeeper {
    at(server.addr()).await
}

pub async fn at(addr: &str) -> ZooKeeper {
    connected(&format!("zookeeper://{addr}/test")).await
}

/// Servers that take connections and never answer, and the way to one that does, which is the last.
pub async fn beside_silent_ones(server: &Server, silent: usize) -> (String, Vec<Proxy>) {
    let all = try_join_all((0..=silent).map(|_| Proxy::to(server.addr())))
        .await
        .expect("proxies");
    all[..silent].iter().for_each(Proxy::hold);
    (
        all.iter().map(Proxy::addr).collect::<Vec<_>>().join(","),
        all,
    )
}

/// A client of a server that is there. A busy machine may need longer than connecting may take.
pub async fn connected(url: &str) -> ZooKeeper {
    for _ in 0..10 {
        match ZooKeeper::connect(url).await {
            Ok(client) => return client,
            // Where one of several servers refuses it, and the others are late, it is refused.
            Err(e) => assert!(
                matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Denied),
                "{e:?}"
            ),
        }
    }
    panic!("{url} is not to be connected to")
}

pub async fn store(server: &Server) -> Store {
    Store::new(client(server).await)
}

pub fn fair(name: &str, ttl: Duration) -> Claim {
    Claim::new(
        name,
        Mode::Exclusive,
        WaitPolicy::Fair,
        ttl,
        &format!("label of {name}"),
    )
}

pub fn of_mode(mode: Mode, name: &str) -> Claim {
    Claim::new(name, mode, WaitPolicy::Fair, LONG, "label")
}

pub fn trying(name: &str, ttl: Duration) -> Claim {
    Claim::new(name, Mode::Exclusive, WaitPolicy::Try, ttl, "trier")
}

pub async fn release(client: &ZooKeeper, claim: &Claim, place: &Place) {
    client.release(claim, Some(place)).await.unwrap();
}

/// How many requests so many idle sessions send by themselves meanwhile, at most: a ping after 0.75 s of silence, and the
/// keep-alives of the session that every client opens for the default lease.
pub fn noise(sessions: usize, meanwhile: Duration) -> f64 {
    sessions as f64 * meanwhile.as_secs_f64() * (1.0 / 0.75 + 1.0 / 1.25) + 2.0
}

/// How many requests the server got while `work` ran, and a moment after it.
pub async fn requests<T>(server: &Server, work: impl Future<Output = T>) -> (u64, T) {
    tokio::time::sleep(Duration::from_millis(20)).await;
    let before = server.packets_received().await.unwrap();
    let done = work.await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let after = server.packets_received().await.unwrap();
    (after - before - 1, done)
}

/// Waits until the server has so many entries in queues; the sessions' `-notify` nodes are not among them.
pub async fn until_entries(server: &Server, entries: u64, sessions: u64) {
    until(|| async { server.ephemerals_count().await.unwrap() == entries + sessions }).await;
}

pub async fn hold(store: &Store, name: &str, ttl: Duration) -> Guard {
    store.lock(name).ttl(ttl).acquire().await.unwrap()
}

/// Also while there is no server for longer than core's patience.
pub async fn hold_patiently(store: &Store, name: &str, ttl: Duration) -> Guard {
    loop {
        match store.lock(name).ttl(ttl).acquire().await {
            Ok(guard) => return guard,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

/// The path of the first entry that this lock could have: nobody has that, and whoever comes is behind it.
pub async fn first_of(raw: &Client, lock: &str, ending: &str) -> String {
    let options = anybodys(CreateMode::Persistent);
    let node = format!("/test/{lock}");
    raw.mkdir(&node, &options).await.unwrap();
    raw.create(&format!("{node}/_c_counted"), b"", &options)
        .await
        .unwrap();
    raw.delete(&format!("{node}/_c_counted"), None)
        .await
        .unwrap();
    format!("{node}/_c_00010203-0405-0607-0809-0a0b0c0d0e0f-{ending}0000000000")
}

/// How a node is created that anybody may use.
pub fn anybodys(mode: CreateMode) -> CreateOptions<'static> {
    mode.with_acls(Acls::anyone_all())
}
