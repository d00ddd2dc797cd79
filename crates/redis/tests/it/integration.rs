//! With core on top: pushes, notifications, poll intervals and losses as a user meets them.

use std::time::{Duration, Instant};

use crate::support::*;
use leasehold_core::{ErrorKind, Loss, Store};
use leasehold_testbed::Proxy;

/// Nothing is renewed within twenty seconds.
const LONG: Duration = Duration::from_secs(60);
/// What a busy machine needs for what is done at once.
const SOON: Duration = Duration::from_secs(10);

async fn store(server: &Server) -> Store {
    Store::new(client(server).await)
}

#[allow(clippy::disallowed_methods)]
fn clock() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn a_push_hands_over_between_clients_without_a_request_of_the_waiter() {
    bounded(async {
        let server = server().await;
        let (one, two) = (store(&server).await, store(&server).await);
        for round in 0..20 {
            let held = one.lock("x").ttl(LONG).acquire().await.unwrap();
            let waiter = tokio::spawn(two.lock("x").ttl(LONG).acquire());
            while in_line(&server, "x").await == 0 {
                sleep(1).await;
            }
            let count = Count::from_here(&server).await;
            let (token, start) = (held.fencing_token(), clock());
            held.release().await.unwrap();
            let next = waiter.await.unwrap().unwrap();
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            assert!(next.fencing_token() > token && next.is_valid());
            if round > 0 {
                assert_eq!((count.requests().await, count.of("publish").await), (1, 1));
            }
            next.release().await.unwrap();
        }
        assert_eq!(traces(&server).await, [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn many_waiters_of_several_clients_are_served_in_order_for_two_requests_each() {
    bounded(async {
        let server = server().await;
        let stores = [
            store(&server).await,
            store(&server).await,
            store(&server).await,
        ];
        let first = stores[0].lock("x").ttl(LONG).acquire().await.unwrap();
        first.release().await.unwrap();
        let count = Count::from_here(&server).await;
        let gate = stores[0].lock("x").ttl(LONG).acquire().await.unwrap();
        let mut waiters = Vec::new();
        for n in 0..60_i64 {
            let lock = stores[n as usize % 3].lock("x").ttl(LONG);
            waiters.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                let token = guard.fencing_token();
                guard.release().await.unwrap();
                token
            }));
            while in_line(&server, "x").await <= n {
                sleep(1).await;
            }
        }
        gate.release().await.unwrap();
        let mut last = None;
        for waiter in waiters {
            let token = Some(waiter.await.unwrap());
            assert!(token > last, "out of order");
            last = token;
        }
        // A claim and a release for each, and nothing else.
        assert_eq!(count.requests().await, 61 * 2);
    })
    .await;
}

#[tokio::test]
async fn a_dead_holders_lock_is_taken_soon_after_its_lease() {
    bounded(async {
        let server = server().await;
        let (one, two) = (store(&server).await, store(&server).await);
        let held = one
            .lock("x")
            .ttl(Duration::from_millis(500))
            .acquire()
            .await
            .unwrap();
        let start = clock();
        std::mem::forget(held);
        // Closed at once, so its release is never answered.
        assert_eq!(
            one.close(Duration::ZERO).await.unwrap_err().kind(),
            ErrorKind::Ambiguous
        );
        let next = two.lock("x").ttl(LONG).acquire().await.unwrap();
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        next.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_evicted_holder_is_told_by_the_push_and_not_by_a_renewal() {
    bounded(async {
        let server = server().await;
        let (one, two) = (store(&server).await, store(&server).await);
        // It is renewed after twenty seconds.
        let held = one
            .lock("x")
            .ttl(Duration::from_secs(60))
            .acquire()
            .await
            .unwrap();
        assert!(two.evict("x", held.fencing_token()).await.unwrap());
        let loss = tokio::time::timeout(Duration::from_secs(15), held.lost()).await;
        assert_eq!(loss.unwrap(), Loss::Evicted);
    })
    .await;
}

#[tokio::test]
async fn a_push_lost_with_its_connection_is_made_up_for_after_the_reconnect() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let one = store(&server).await;
        let two = Store::new(
            leasehold_redis::Redis::connect(&format!("redis://{}", proxy.addr()))
                .await
                .unwrap(),
        );
        let held = one.lock("x").ttl(LONG).acquire().await.unwrap();
        let waiter = tokio::spawn(two.lock("x").ttl(LONG).acquire());
        while in_line(&server, "x").await == 0 {
            sleep(1).await;
        }
        proxy.cut().await;
        held.release().await.unwrap();
        sleep(100).await;
        let start = clock();
        proxy.heal().await;
        // Long before its poll and its renewal.
        let next = waiter.await.unwrap().unwrap();
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        next.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_hold_survives_a_short_break_and_is_lost_in_a_long_one() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = Store::new(
            leasehold_redis::Redis::connect(&format!("redis://{}", proxy.addr()))
                .await
                .unwrap(),
        );
        let held = store
            .lock("x")
            .ttl(Duration::from_millis(3000))
            .acquire()
            .await
            .unwrap();
        proxy.disconnect().await;
        sleep(4000).await;
        assert!(held.is_valid());
        proxy.hold();
        let start = clock();
        assert_eq!(held.lost().await, Loss::Expired);
        // A busy machine may notice the end a little later than it is.
        assert!(
            start.elapsed() <= Duration::from_millis(4500),
            "{:?}",
            start.elapsed()
        );
        proxy.heal().await;
        let again = store.lock("x").ttl(TTL).acquire().await.unwrap();
        assert!(again.fencing_token() > held.fencing_token());
    })
    .await;
}

#[tokio::test]
async fn waiting_for_another_tools_release_takes_a_quarter_of_a_second() {
    bounded(async {
        let server = server().await;
        let store = store(&server).await;
        server
            .command(&["SET", "x", "theirs", "NX", "PX", "60000"])
            .await
            .unwrap();
        let waiter = tokio::spawn(store.lock("x").ttl(TTL).acquire());
        sleep(300).await;
        server.command(&["DEL", "x"]).await.unwrap();
        let start = clock();
        let _guard = waiter.await.unwrap().unwrap();
        // Far before the end of the lease that it waits for.
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    })
    .await;
}
