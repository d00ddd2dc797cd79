//! Many holds and many claims of one client: no renewal and no release waits behind the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{usual as client, *};
use futures_util::stream::{StreamExt, iter};
use leasehold_core::backend::Moment;
use leasehold_core::{Guard, Store};
use leasehold_testbed as testbed;
use tokio::task::JoinSet;

fn campaign() -> bool {
    std::env::var_os("LEASEHOLD_CAMPAIGN").is_some()
}

/// So many locks.
async fn hold(store: &Store, n: usize) -> Vec<Guard> {
    let locks = (0..n).map(|i| store.lock(("held", i as u64)).acquire());
    iter(locks)
        .buffer_unordered(200)
        .map(|guard| guard.unwrap())
        .collect()
        .await
}

/// Keeps them for so long, and answers how many were lost. `disturb` is called with the seconds
/// that have passed.
async fn keep(guards: &[Guard], seconds: u64, mut disturb: impl AsyncFnMut(u64)) -> usize {
    let began = Moment::now();
    for second in 0..seconds {
        disturb(second).await;
        while Moment::now().since(began) < Duration::from_secs(second + 1) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    guards.iter().filter(|guard| !guard.is_valid()).count()
}

/// 10,000 in the campaign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_holds_of_a_short_lease_live_on() {
    let (holds, seconds) = if campaign() { (10_000, 30) } else { (1_000, 6) };
    within(300, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let store = Store::new(client(proxy.addr()).await).ttl(Duration::from_secs(3));
        let guards = hold(&store, holds).await;
        assert_eq!(
            keep(&guards, seconds, async |_| {}).await,
            0,
            "of {holds}, on a quiet network"
        );
        // A tenth of a second there and back, and a connection that is cut now and then.
        proxy.delay(Duration::from_millis(50));
        let cuts = async |second: u64| {
            if second % 10 == 4 {
                proxy.disconnect().await;
            }
        };
        assert_eq!(
            keep(&guards, seconds, cuts).await,
            0,
            "of {holds}, far away"
        );
    })
    .await;
}

/// Keys of the same session come and go between the moments at which a renewal is built and
/// executed. What stays is verified all the same: its guard never comes near its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_short_holds_starves_no_renewal_of_long_ones() {
    let seconds = if campaign() { 30 } else { 7 };
    within(100, async {
        let server = server().await;
        let ttl = Duration::from_secs(3);
        let store = Store::new(client(server.addr()).await).ttl(ttl);
        let long = hold(&store, 3).await;
        let cycles = Arc::new(AtomicU64::new(0));
        let stream: Vec<_> = (0..100u64)
            .map(|i| {
                let (lock, cycles) = (store.lock(("short", i)), cycles.clone());
                tokio::spawn(async move {
                    loop {
                        // A hundred at once on a busy machine: a request may be given up.
                        match lock.acquire().await {
                            Ok(guard) => give_back(guard).await,
                            Err(error) => {
                                assert!(error.is_retryable(), "{error:?}");
                                continue;
                            }
                        }
                        cycles.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        let (began, mut least) = (Moment::now(), ttl);
        while Moment::now().since(began) < Duration::from_secs(seconds) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            least = long.iter().map(Guard::remaining).min().unwrap().min(least);
        }
        let cycles = cycles.load(Relaxed);
        println!("{cycles} short holds in {seconds} s; the long ones had {least:?} at least");
        stream
            .iter()
            .for_each(|task| assert!(!task.is_finished(), "a short hold failed"));
        stream.iter().for_each(tokio::task::JoinHandle::abort);
        assert!(
            long.iter().all(Guard::is_valid) && least > ttl / 5,
            "{least:?}"
        );
        assert!(cycles > 100, "{cycles}: no stream");
    })
    .await;
}

/// So many tasks wait for one lock, and each gets its turn. Answers when all of them waited, and
/// how long the turns took.
async fn everybody_gets_a_turn(
    server: &testbed::Etcd,
    stores: &[Store],
    waiters: usize,
) -> [Duration; 2] {
    let operator = Store::new(client(server.addr()).await).ttl(LONG);
    let guard = operator.lock("a").acquire().await.unwrap();
    let began = Moment::now();
    let mut tasks: JoinSet<()> = JoinSet::new();
    for store in stores.iter().cycle().take(waiters) {
        let acquire = store.lock("a").acquire();
        tasks.spawn(async move { give_back(acquire.await.unwrap()).await });
    }
    while server.key_count().await.unwrap() != waiters as u64 + 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let stood = Moment::now();
    assert!(guard.is_valid(), "{:?}", guard.check());
    guard.release().await.unwrap();
    while let Some(ended) = within(30, tasks.join_next()).await {
        ended.unwrap();
    }
    let took = [stood.since(began), Moment::now().since(stood)];
    // What was not answered is released in the background, long before its lease ends.
    within(20, async {
        while !keys(server, "test/a/").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    took
}

/// 10,000 in the campaign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_of_one_client_get_their_turns() {
    let waiters = if campaign() { 10_000 } else { 1_000 };
    within(500, async {
        let server = server().await;
        let store = Store::new(client(server.addr()).await).ttl(LONG);
        let [stood, turns] = everybody_gets_a_turn(&server, &[store], waiters).await;
        println!("{waiters} waiters stood after {stood:?}, and had their turns within {turns:?}");
    })
    .await;
}

/// 500 in the campaign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_on_one_name_get_their_turns() {
    let clients = if campaign() { 500 } else { 60 };
    within(500, async {
        let server = server().await;
        let mut stores = Vec::new();
        for _ in 0..clients {
            stores.push(Store::new(client(server.addr()).await).ttl(LONG));
        }
        let [stood, turns] = everybody_gets_a_turn(&server, &stores, clients).await;
        println!("{clients} clients stood after {stood:?}, and had their turns within {turns:?}");
    })
    .await;
}
