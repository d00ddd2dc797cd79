//! One client with many tasks: what they send is sent together. With thousands of holds: none is lost, also through a slow link and
//! through cuts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(clippy::print_stdout, reason = "what a campaign counted is for people")]

mod support;

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use leasehold_core::seam::{Backend, Claimed};
use leasehold_core::{Guard, Lease, Loss, Store};
use leasehold_redis::Redis;
use leasehold_testbed::Proxy;
use support::*;
use tokio::task::JoinSet;

/// How a client reaches its server meanwhile.
#[derive(Clone, Copy, Debug)]
enum Link {
    Direct,
    Slow,
    Cut,
}

/// Holds so many locks for so long, and counts those that were lost.
async fn hold(link: Link, holds: usize, ttl: Duration, long: Duration) {
    let server = server().await;
    let proxy = Proxy::to(server.addr()).await.unwrap();
    if matches!(link, Link::Slow) {
        proxy.delay(Duration::from_millis(50));
    }
    let store = Store::new(Redis::connect(&format!("redis://{}", proxy.addr())).await.unwrap());
    let (mut taking, mut guards) = (JoinSet::new(), Vec::<Guard>::new());
    for n in 0..holds {
        taking.spawn(store.lock(format!("many/{n}")).ttl(ttl).acquire());
        while taking.len() >= 500 {
            guards.push(taking.join_next().await.unwrap().unwrap().unwrap());
        }
    }
    while let Some(guard) = taking.join_next().await {
        guards.push(guard.unwrap().unwrap());
    }
    let mut left = long;
    while left > Duration::ZERO {
        let step = left.min(Duration::from_secs(10));
        tokio::time::sleep(step / 2).await;
        if matches!(link, Link::Cut) {
            proxy.disconnect().await;
        }
        tokio::time::sleep(step / 2).await;
        left -= step;
    }
    let lost: Vec<Loss> = guards.iter().filter_map(Lease::loss).collect();
    println!("{holds} holds, TTL {ttl:?}, {long:?}, {link:?}: {} lost", lost.len());
    assert!(lost.is_empty(), "{} of {holds} lost through {link:?}: {:?}", lost.len(), &lost[..lost.len().min(3)]);
    drop(guards);
    store.close(Duration::from_secs(30)).await.unwrap();
}

fn is_campaign() -> bool {
    std::env::var_os("LEASEHOLD_CAMPAIGN").is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_holds_of_one_client_outlive_a_slow_link_and_cuts() {
    bounded(async {
        let each = [Link::Direct, Link::Slow, Link::Cut]
            .map(|link| tokio::spawn(hold(link, 1000, Duration::from_secs(3), Duration::from_secs(5))));
        for one in each {
            one.await.unwrap();
        }
    })
    .await;
}

/// `LEASEHOLD_CAMPAIGN=1 cargo test --release -p leasehold-redis --test many -- ten_thousand --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_holds_of_one_client_in_a_campaign() {
    if !is_campaign() {
        return;
    }
    for link in [Link::Direct, Link::Slow, Link::Cut] {
        hold(link, 10_000, Duration::from_secs(3), Duration::from_secs(30)).await;
    }
}

/// Sixty-four tasks of one client that are ready at the same time write once, not once each: the connection's task lets them all add
/// their requests. One worker, so that it is the scheduler's order alone that decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn of_requests_that_are_ready_together() {
    const TASKS: u64 = 64;
    const CYCLES: u64 = 20;
    bounded(async {
        let server = server().await;
        let store = Store::new(client(&server).await);
        let reads = async || server.info("stats").await.unwrap().lines().find_map(reads_of).unwrap();
        store.lock("0").acquire().await.unwrap().release().await.unwrap();
        let before = reads().await;
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let store = store.clone();
            tasks.spawn(async move {
                for _ in 0..CYCLES {
                    let guard = store.lock(task.to_string()).ttl(Duration::from_secs(60)).acquire().await.unwrap();
                    guard.release().await.unwrap();
                }
            });
        }
        tasks.join_all().await;
        let (requests, reads) = (TASKS * CYCLES * 2, reads().await - before);
        println!("{requests} requests in {reads} reads");
        assert!(reads * 8 <= requests, "{requests} requests in {reads} reads");
    })
    .await;
}

fn reads_of(line: &str) -> Option<u64> {
    line.trim().strip_prefix("total_reads_processed:")?.parse().ok()
}

/// While the connection's task lets others add their requests, one of them blocks the thread that it waits on. Its requests are a
/// little late, and succeed over the same connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_blocks_its_thread_stops_no_request() {
    bounded(async {
        let server = server().await;
        let store = Arc::new(client(&server).await);
        granted(&*store, &fair("0")).await;
        let count = Count::from_here(&server).await;
        let ([busy, blocks], (end, ended)) = (<[Arc<AtomicBool>; 2]>::default(), mpsc::channel::<()>());
        // One thread is busy until the other one is blocked.
        let (spins, until) = (busy.clone(), blocks.clone());
        let other = tokio::spawn(async move {
            spins.store(true, Ordering::SeqCst);
            while !until.load(Ordering::SeqCst) {
                hint::spin_loop();
            }
        });
        until_so(&busy).await;
        let claims = tokio::spawn(async move {
            tokio::spawn(async move {
                blocks.store(true, Ordering::SeqCst);
                let _ = ended.recv();
            });
            let [one, two] = [fair("1"), fair("2")];
            tokio::join!(store.claim(&one), store.claim(&two))
        });
        let (one, two) = claims.await.unwrap();
        assert!(matches!((&one, &two), (Ok(Claimed::Granted(_)), Ok(Claimed::Granted(_)))), "{one:?}, {two:?}");
        drop(end);
        other.await.unwrap();
        assert_eq!(count.of("hello").await, 0, "another connection was made");
    })
    .await;
}

async fn until_so(flag: &AtomicBool) {
    until(|| async { flag.load(Ordering::SeqCst) }).await;
}
