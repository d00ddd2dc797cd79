//! One client with thousands of holds: none is lost, also through a slow link and through cuts.

use std::time::Duration;

use crate::support::*;
use leasehold_core::{Guard, Lease, Loss, Store};
use leasehold_redis::Redis;
use leasehold_testbed::Proxy;
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
    let store = Store::new(
        Redis::connect(&format!("redis://{}", proxy.addr()))
            .await
            .unwrap(),
    );
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
    println!(
        "{holds} holds, TTL {ttl:?}, {long:?}, {link:?}: {} lost",
        lost.len()
    );
    assert!(
        lost.is_empty(),
        "{} of {holds} lost through {link:?}: {:?}",
        lost.len(),
        &lost[..lost.len().min(3)]
    );
    drop(guards);
    store.close(Duration::from_secs(30)).await.unwrap();
}

fn is_campaign() -> bool {
    std::env::var_os("LEASEHOLD_CAMPAIGN").is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_holds_of_one_client_outlive_a_slow_link_and_cuts() {
    bounded(async {
        let each = [Link::Direct, Link::Slow, Link::Cut].map(|link| {
            tokio::spawn(hold(
                link,
                1000,
                Duration::from_secs(3),
                Duration::from_secs(5),
            ))
        });
        for one in each {
            one.await.unwrap();
        }
    })
    .await;
}

/// `LEASEHOLD_CAMPAIGN=1 cargo test --release -p leasehold-redis --test it many::ten_thousand -- --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_holds_of_one_client_in_a_campaign() {
    if !is_campaign() {
        return;
    }
    for link in [Link::Direct, Link::Slow, Link::Cut] {
        hold(
            link,
            10_000,
            Duration::from_secs(3),
            Duration::from_secs(30),
        )
        .await;
    }
}
