//! The lock as a condition of a user's own write: exactly this hold meets it, while it stands on the server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::Backend;
use leasehold_core::{ErrorKind, Fenced, Store};
use leasehold_redis::client::Client;
use leasehold_redis::client::aio::MultiplexedConnection;
use leasehold_redis::{Redis, StillHolds};
use support::*;

const NONE: [&str; 0] = [];

async fn connection(server: &Server) -> MultiplexedConnection {
    Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn stores(server: &Server) -> (Arc<Redis>, Store) {
    let locks = Arc::new(client(server).await);
    (locks.clone(), Store::new(locks))
}

/// Whether it was written.
async fn written(held: &StillHolds, connection: &mut MultiplexedConnection) -> bool {
    let write = "return redis.call('INCR', KEYS[1])";
    held.then::<i64>(connection, write, &["row"], &NONE).await.unwrap().is_some()
}

#[tokio::test]
async fn exactly_this_hold_writes_while_it_stands() {
    bounded(async {
        let server = server().await;
        let ((locks, store), mut to) = (stores(&server).await, connection(&server).await);
        let guard = store.lock("x").ttl(TTL).acquire().await.unwrap();
        let held = locks.still_holds(&guard).unwrap();
        let write = "redis.call('SET', KEYS[1], ARGV[1] .. #KEYS .. #ARGV) return {ARGV[1], 7}";
        let answer: Option<(String, i64)> = held.then(&mut to, write, &["a"], &["paid"]).await.unwrap();
        assert_eq!(answer, Some(("paid".into(), 7)));
        assert_eq!(text(&server, &["GET", "a"]).await.as_deref(), Some("paid11"));
        assert!(written(&held, &mut to).await);
        // A namespace with the same end of the name, and a name that contains it.
        let elsewhere = store.clone().namespace("shop").lock("x").ttl(TTL).acquire().await.unwrap();
        let theirs = locks.still_holds(&elsewhere).unwrap();
        assert!(written(&theirs, &mut to).await);
        assert!(locks.evict(elsewhere.full_name(), elsewhere.fencing_token()).await.unwrap());
        assert!(written(&held, &mut to).await);
        assert!(!written(&theirs, &mut to).await);
        elsewhere.lost().await;
        assert_eq!(locks.still_holds(&elsewhere).unwrap_err().kind(), ErrorKind::Lost);
        // Given back, and taken again by the same client.
        guard.release().await.unwrap();
        assert!(!written(&held, &mut to).await);
        let again = store.lock("x").ttl(TTL).acquire().await.unwrap();
        assert!(!written(&held, &mut to).await);
        let held = locks.still_holds(&again).unwrap();
        assert!(written(&held, &mut to).await);
        // Evicted: whoever was told late writes nothing.
        assert!(locks.evict(again.full_name(), again.fencing_token()).await.unwrap());
        assert!(!written(&held, &mut to).await);
        assert_eq!(text(&server, &["GET", "row"]).await.as_deref(), Some("4"));
    })
    .await;
}

#[tokio::test]
async fn every_mode_and_every_turn_has_its_condition() {
    bounded(async {
        let server = server().await;
        let ((locks, store), mut to) = (stores(&server).await, connection(&server).await);
        let readers = store.rw_lock("rw").ttl(TTL);
        let (one, two) = (readers.read().acquire().await.unwrap(), readers.read().acquire().await.unwrap());
        let held = [locks.still_holds(&one).unwrap(), locks.still_holds(&two).unwrap()];
        assert!(written(&held[0], &mut to).await && written(&held[1], &mut to).await);
        one.release().await.unwrap();
        assert!(!written(&held[0], &mut to).await && written(&held[1], &mut to).await);
        two.release().await.unwrap();
        let writer = readers.write().acquire().await.unwrap();
        assert!(!written(&held[1], &mut to).await);
        let held = locks.still_holds(&writer).unwrap();
        writer.downgrade().await.unwrap();
        assert!(written(&held, &mut to).await);
        let permit = store.semaphore("s", 2).ttl(TTL).acquire().await.unwrap();
        let permitted = locks.still_holds(&permit).unwrap();
        assert!(written(&permitted, &mut to).await);
        // Deleted by hand, while its entry stays.
        server.command(&["DEL", "s"]).await.unwrap();
        assert!(!written(&permitted, &mut to).await);
        let fast = store.lock("fast").fast().ttl(TTL);
        for _ in 0..3 {
            let turn = fast.acquire().await.unwrap();
            assert!(written(&locks.still_holds(&turn).unwrap(), &mut to).await);
            turn.release().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn an_expired_hold_writes_nothing() {
    bounded(async {
        let server = server().await;
        let proxy = leasehold_testbed::Proxy::to(server.addr()).await.unwrap();
        let locks = Arc::new(Redis::connect(&format!("redis://{}", proxy.addr())).await.unwrap());
        let (store, mut to) = (Store::new(locks.clone()), connection(&server).await);
        for shared in [false, true] {
            let name = format!("x/{shared}");
            let lock = store.rw_lock(name.as_str()).ttl(Duration::from_secs(1));
            let guard =
                if shared { lock.read().acquire().await.unwrap() } else { lock.write().acquire().await.unwrap() };
            let held = locks.still_holds(&guard).unwrap();
            assert!(written(&held, &mut to).await);
            proxy.hold();
            guard.lost().await;
            while number(&server, &["EXISTS", &name]).await == 1 {
                sleep(10).await;
            }
            assert!(!written(&held, &mut to).await);
            proxy.heal().await;
            sleep(100).await;
        }
    })
    .await;
}

#[tokio::test]
async fn another_client_s_hold_is_refused_and_no_id_is_shown() {
    bounded(async {
        let server = server().await;
        let ((locks, store), (_, theirs)) = (stores(&server).await, stores(&server).await);
        let theirs = theirs.lock("x").ttl(TTL).acquire().await.unwrap();
        assert_eq!(locks.still_holds(&theirs).unwrap_err().kind(), ErrorKind::Lost);
        let elsewhere = Store::new(leasehold_memory::Memory::new()).lock("x").acquire().await.unwrap();
        assert_eq!(locks.still_holds(&elsewhere).unwrap_err().kind(), ErrorKind::Lost);
        let guard = store.lock("y").ttl(TTL).acquire().await.unwrap();
        let id = held_by(&server, "y").await;
        let held = locks.still_holds(&guard).unwrap();
        assert!(!format!("{held:?} {:?} {guard:?}", guard.place()).contains(&id));
        // What is wrong with a script is its author's to know.
        let mut to = connection(&server).await;
        for (script, why) in [
            ("return (", "script"),
            ("return redis.call('GET', KEYS[1])", "hold"),
            ("error('mine')", "mine"),
            ("redis.call('SET', 'a', '1')", "returned nothing"),
            ("return 'text'", "another type"),
        ] {
            server.command(&["DEL", "list"]).await.unwrap();
            server.command(&["RPUSH", "list", "1"]).await.unwrap();
            let error = held.then::<i64>(&mut to, script, &["list"], &NONE).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{script}: {error}");
            assert!(error.to_string().contains(why) && !format!("{error:?}").contains(&id), "{script}: {error:?}");
        }
        server.command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]).await.unwrap();
        let error = held.then::<i64>(&mut to, "return 1", &["a"], &NONE).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && !format!("{error:?}").contains(&id), "{error:?}");
    })
    .await;
}
