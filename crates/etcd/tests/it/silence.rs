//! Endpoints and connections that fall silent: a hold is renewed over what still answers, within
//! its lease.

use std::time::Duration;

use crate::common::*;
use futures_util::future::join_all;
use leasehold_core::{Guard, Store};
use leasehold_testbed as testbed;

const LEASE: Duration = Duration::from_secs(6);

/// For so long that one renewal that fails is not enough to lose it.
async fn lives_on(guard: &Guard, what: &str) {
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    assert!(guard.is_valid(), "{what}: {:?}", guard.check());
}

/// Of three endpoints one answers, and it is the one that is asked last. The one before it has been
/// silent for long, so its time limit is four times as long.
#[tokio::test(flavor = "multi_thread")]
async fn the_one_endpoint_that_answers_is_asked_in_time() {
    within(100, async {
        let server = server().await;
        let mut proxies = Vec::new();
        for _ in 0..3 {
            proxies.push(testbed::Proxy::to(server.addr()).await.unwrap());
        }
        let all = proxies
            .iter()
            .map(|proxy| proxy.addr())
            .collect::<Vec<_>>()
            .join(",");
        let store = Store::new(usual(&all).await).ttl(LEASE);
        proxies.iter().for_each(testbed::Proxy::hold);
        let lock = store.lock("a");
        assert!(
            join_all((0..8).map(|_| lock.inspect()))
                .await
                .iter()
                .all(Result::is_err)
        );
        proxies[0].heal().await;
        let guard = loop {
            match lock.acquire().await {
                Ok(guard) => break guard,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        };
        for answering in [2, 1, 0] {
            proxies[(answering + 1) % 3].hold();
            proxies[answering].heal().await;
            lives_on(&guard, &format!("{answering} answers")).await;
        }
        give_back(guard).await;
    })
    .await;
}

/// What there was is silent for good, and neither side is told. A connection that is made anew
/// works.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_silent_is_given_up_within_the_lease() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let store = Store::new(usual(proxy.addr()).await).ttl(LEASE);
        let guard = store.lock("a").acquire().await.unwrap();
        for _ in 0..3 {
            proxy.freeze();
            lives_on(&guard, "frozen").await;
        }
        give_back(guard).await;
    })
    .await;
}
