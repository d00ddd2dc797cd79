//! A connection that dies in silence while a new one would work: it costs a moment, and no hold.

use std::time::{Duration, Instant};

use crate::support::*;
use leasehold_core::Store;
use leasehold_core::backend::{Backend, Claim, Renewal, WaitPolicy};
use leasehold_redis::Redis;
use leasehold_testbed::Proxy;

async fn store_through(proxy: &Proxy, words: &str) -> Store {
    Store::new(
        Redis::connect(&format!("redis://{}{words}", proxy.addr()))
            .await
            .unwrap(),
    )
}

#[tokio::test]
async fn a_silently_dead_connection_costs_no_hold() {
    bounded(async {
        let server = server().await;
        let mut holding = Vec::new();
        for (ttl, words) in [(2000, ""), (3000, ""), (4000, "?timeout=2500")] {
            let ttl = Duration::from_millis(ttl);
            let proxy = Proxy::to(server.addr()).await.unwrap();
            let store = store_through(&proxy, words).await;
            holding.push(tokio::spawn(async move {
                let guard = store
                    .lock(format!("x/{ttl:?}"))
                    .ttl(ttl)
                    .acquire()
                    .await
                    .unwrap();
                for _ in 0..2 {
                    proxy.freeze();
                    tokio::select! {
                        why = guard.lost() => panic!("lost with a TTL of {ttl:?}: {why:?}"),
                        () = tokio::time::sleep(ttl.mul_f64(1.2)) => {}
                    }
                }
                guard.confirm().await.unwrap();
                assert!(proxy.connections() >= 3, "nothing was frozen");
                guard.release().await.unwrap();
            }));
        }
        for hold in holding {
            hold.await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn the_first_request_after_a_silent_cut_does_not_wait_for_its_limit() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = store_through(&proxy, "?timeout=8000").await;
        store
            .lock("warm")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        proxy.freeze();
        let asked = clock();
        let guard = store.lock("x").acquire().await.unwrap();
        assert!(
            asked.elapsed() < Duration::from_secs(7),
            "{:?}",
            asked.elapsed()
        );
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_waiter_behind_a_dead_connection_is_served() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (store, other) = (
            store_through(&proxy, "").await,
            Store::new(client(&server).await),
        );
        let ttl = Duration::from_secs(3);
        let held = other.lock("x").ttl(ttl).acquire().await.unwrap();
        let waiter = tokio::spawn(store.lock("x").ttl(ttl).acquire());
        while in_line(&server, "x").await == 0 {
            sleep(1).await;
        }
        proxy.freeze();
        // Nothing that is told now arrives; the place is kept over another connection.
        sleep(4000).await;
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_only_slow_keeps_its_connection() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = Redis::connect(&format!("redis://{}?timeout=2000", proxy.addr()))
            .await
            .unwrap();
        granted(&store, &fair("warm")).await;
        proxy.delay(Duration::from_millis(350));
        for n in 0..3 {
            granted(&store, &claim(&format!("x/{n}"), WaitPolicy::Try, TTL, "")).await;
        }
        store.release(&fair("warm"), None).await.unwrap();
        proxy.heal().await;
        while proxy.open_connections() > 1 {
            sleep(10).await;
        }
        granted(&store, &fair("y")).await;
    })
    .await;
}

/// The connections of stores, by the numbers that the server gave them.
async fn subscribers(server: &leasehold_testbed::Redis) -> Vec<String> {
    let all = server.command(&["CLIENT", "LIST"]).await.unwrap();
    let all = all.text().unwrap_or_default();
    let subscribed = all.lines().filter(|client| client.contains(" sub=1 "));
    let number = |client: &str| client.split(' ').next().map(str::to_owned);
    subscribed.filter_map(number).collect()
}

#[tokio::test]
async fn a_connection_that_answers_many_requests_slowly_is_kept() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        // So short a limit that thousands of requests take longer than one may be silent. Where a machine is busy, not each of them is answered
        // in time.
        let store = Redis::connect(&format!("redis://{}?timeout=1500", proxy.addr()))
            .await
            .unwrap();
        let mut leases = Vec::new();
        for n in 0..4000 {
            let long = Duration::from_secs(300);
            let reader = Claim::new(
                format!("x/{}", n % 50).as_str(),
                SHARED,
                WaitPolicy::Fair,
                long,
                "",
            );
            leases.push(lease(&reader, Some(granted(&store, &reader).await.token)));
        }
        let used = subscribers(&server).await;
        assert!(!used.is_empty());
        for _ in 0..2 {
            let answers = store.renew(&leases).await.unwrap();
            let renewed = answers
                .iter()
                .filter(|answer| matches!(answer, Renewal::Renewed(_)))
                .count();
            let unknown = answers
                .iter()
                .filter(|answer| matches!(answer, Renewal::Unknown(_)))
                .count();
            assert!(
                renewed > 0 && renewed + unknown == leases.len(),
                "{renewed} and {unknown}"
            );
        }
        // Another connection may have been made meanwhile, and given up as this one answered.
        let open = subscribers(&server).await;
        assert!(
            used.iter().all(|it| open.contains(it)),
            "it was left while it answered: {used:?} {open:?}"
        );
    })
    .await;
}

#[allow(clippy::disallowed_methods)]
fn clock() -> Instant {
    Instant::now()
}
