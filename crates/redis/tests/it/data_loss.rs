//! A server that loses its data while this client is cut off from it: what the client still holds is shared no further inside of it
//! until the server has confirmed it, so that tokens rise.

use leasehold_core::backend::TokenFloor;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::Backend;
use leasehold_core::{ErrorKind, FencingToken, Guard, Loss, Owner, Result, Store};
use leasehold_redis::Redis;
use leasehold_testbed::Proxy;

const LEASE: Duration = Duration::from_secs(20);

/// A client that holds, one beside it, and the way of the first to the server.
struct World {
    server: Server,
    way: Proxy,
    store: Store,
    other: Store,
}

impl World {
    async fn start() -> World {
        let server = server().await;
        let way = Proxy::to(server.addr()).await.unwrap();
        let url = format!("redis://{}?timeout=300", way.addr());
        let store = loop {
            match Redis::connect(&url).await {
                Ok(store) => break Store::new(store).ttl(LEASE),
                // So short a limit is passed by a busy machine.
                Err(e) => assert!(e.is_retryable(), "{e:?}"),
            }
        };
        let other = Store::new(client(&server).await).ttl(LEASE);
        World {
            server,
            way,
            store,
            other,
        }
    }

    /// The server forgets everything while the first client cannot reach it, and the other client is granted the lock.
    async fn lose_data(&self) -> Guard {
        self.way.cut().await;
        while !format!("{:?}", self.store).contains("not connected") {
            sleep(5).await;
        }
        self.server.command(&["FLUSHALL"]).await.unwrap();
        self.other.lock("x").acquire().await.unwrap()
    }
}

/// Whether it has not ended after some turns of the runtime.
async fn still_waits<T>(acquire: &mut (impl Future<Output = T> + Unpin)) -> bool {
    for _ in 0..20 {
        let pending =
            poll_fn(|cx| Poll::Ready(Pin::new(&mut *acquire).poll(cx).is_pending())).await;
        if !pending {
            return false;
        }
        sleep(5).await;
    }
    true
}

/// It is granted once the server is reached again and the other client has released, with a greater token.
async fn follows(world: &World, other: Guard, acquire: impl Future<Output = Result<Guard>>) {
    let mut acquire = pin!(acquire);
    assert!(
        still_waits(&mut acquire).await,
        "granted beside token {}",
        other.fencing_token()
    );
    world.way.heal().await;
    assert!(
        still_waits(&mut acquire).await,
        "granted beside token {}",
        other.fencing_token()
    );
    let token = other.fencing_token();
    other.release().await.unwrap();
    let next = acquire.await.unwrap();
    assert!(
        next.fencing_token() > token,
        "{} after {token}",
        next.fencing_token()
    );
}

#[tokio::test]
async fn no_turn_is_passed_on_under_a_claim_that_the_server_may_have_forgotten() {
    bounded(async {
        let world = World::start().await;
        let first = world.store.lock("x").fast().acquire().await.unwrap();
        let mut second = pin!(world.store.lock("x").fast().acquire());
        assert!(still_waits(&mut second).await);
        let other = world.lose_data().await;
        assert!(first.is_valid(), "its lease is not over");
        drop(first);
        follows(&world, other, second).await;
    })
    .await;
}

#[tokio::test]
async fn an_owner_enters_no_hold_that_the_server_may_have_forgotten() {
    bounded(async {
        let world = World::start().await;
        let me = Owner::new();
        let first = world.store.lock("x").owner(&me).acquire().await.unwrap();
        let other = world.lose_data().await;
        assert!(first.is_valid(), "its lease is not over");
        let refused = world
            .store
            .lock("x")
            .owner(&me)
            .try_acquire()
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        follows(&world, other, world.store.lock("x").owner(&me).acquire()).await;
        assert_eq!(first.lost().await, Loss::Gone);
    })
    .await;
}

#[tokio::test]
async fn what_the_server_kept_is_shared_again_as_soon_as_it_is_reached() {
    bounded(async {
        let world = World::start().await;
        let me = Owner::new();
        let first = world.store.lock("x").owner(&me).acquire().await.unwrap();
        let turn = world.store.lock("y").fast().acquire().await.unwrap();
        let mut next = pin!(world.store.lock("y").fast().acquire());
        assert!(still_waits(&mut next).await);
        world.way.disconnect().await;
        // Confirmed by a request of its own, or by the renewal that follows the new connection.
        let again = world.store.lock("x").owner(&me).acquire().await.unwrap();
        assert_eq!(again.fencing_token(), first.fencing_token());
        while turn.confirm().await.is_err() {
            sleep(5).await;
        }
        let token = turn.fencing_token().get();
        drop(turn);
        assert_eq!(next.await.unwrap().fencing_token().get(), token + 1);
    })
    .await;
}

/// Where the last token is lost, the clock is above all of them. A raise to a smaller number does not take its place.
#[tokio::test]
async fn a_raise_over_a_lost_fence_hides_no_loss() {
    let server = server().await;
    let store = client(&server).await;
    let taken = async |floor| {
        let mut claim = fair("x");
        claim.floor = floor;
        let token = granted(&store, &claim).await.token;
        store.release(&claim, None).await.unwrap();
        token
    };
    let before = taken(None).await;
    server.command(&["DEL", "{}:f"]).await.unwrap();
    store.raise(FencingToken::new(5)).await.unwrap();
    let after = taken(Some(FencingToken::new(6))).await;
    assert!(after > before, "{after} after {before}");
}
