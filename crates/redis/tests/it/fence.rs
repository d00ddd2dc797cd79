//! The fences: the lock as a condition of a user's own script, and a value that refuses stale tokens. The suite judges which
//! hold meets the condition, and when.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use leasehold_core::{ErrorKind, Fenced, FencingToken, Loss, Store};
use leasehold_redis::client::aio::MultiplexedConnection;
use leasehold_redis::client::{AsyncTypedCommands, Client};
use leasehold_redis::{Redis, StillHolds, write_fenced};
use leasehold_testbed::Proxy;

const NONE: [&str; 0] = [];

async fn connection(server: &Server) -> MultiplexedConnection {
    Client::open(server.url())
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap()
}

async fn stores(server: &Server) -> (Arc<Redis>, Store) {
    let locks = Arc::new(client(server).await);
    (locks.clone(), Store::new(locks))
}

/// Whether it was written.
async fn written(held: &StillHolds, connection: &mut MultiplexedConnection) -> bool {
    let write = "return redis.call('INCR', KEYS[1])";
    held.then::<i64>(connection, write, &["row"], &NONE)
        .await
        .unwrap()
        .is_some()
}

async fn balance(connection: &mut MultiplexedConnection) -> Option<String> {
    connection.hget("balance/42", "value").await.unwrap()
}

#[tokio::test]
async fn a_script_of_the_user_runs_while_the_hold_stands() {
    bounded(async {
        let server = server().await;
        let ((locks, store), mut to) = (stores(&server).await, connection(&server).await);
        let guard = store.lock("x").ttl(TTL).acquire().await.unwrap();
        let held = locks.still_holds(&guard).unwrap();
        let write = "redis.call('SET', KEYS[1], ARGV[1] .. #KEYS .. #ARGV) return {ARGV[1], 7}";
        let answer: Option<(String, i64)> =
            held.then(&mut to, write, &["a"], &["paid"]).await.unwrap();
        assert_eq!(answer, Some(("paid".into(), 7)));
        assert_eq!(
            text(&server, &["GET", "a"]).await.as_deref(),
            Some("paid11")
        );
        guard.release().await.unwrap();
        assert!(!written(&held, &mut to).await);
        // A lock that was deleted by hand, while the entry of its holder stays.
        let permit = store.semaphore("s", 2).ttl(TTL).acquire().await.unwrap();
        let permitted = locks.still_holds(&permit).unwrap();
        assert!(written(&permitted, &mut to).await);
        server.command(&["DEL", "s"]).await.unwrap();
        assert!(!written(&permitted, &mut to).await);
    })
    .await;
}

/// A script that arrives late would run in the turn of the next task: the condition would know the hold of both.
#[tokio::test]
async fn no_script_depends_on_a_fast_lock() {
    bounded(async {
        let server = server().await;
        let (locks, store) = stores(&server).await;
        let guard = store.lock("x").ttl(TTL).fast().acquire().await.unwrap();
        let refused = locks.still_holds(&guard).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_script_that_fails_says_why_and_shows_no_id() {
    bounded(async {
        let server = server().await;
        let (locks, store) = stores(&server).await;
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
            let error = held
                .then::<i64>(&mut to, script, &["list"], &NONE)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{script}: {error}");
            assert!(
                error.to_string().contains(why) && !format!("{error:?}").contains(&id),
                "{script}: {error:?}"
            );
        }
        server
            .command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"])
            .await
            .unwrap();
        let error = held
            .then::<i64>(&mut to, "return 1", &["a"], &NONE)
            .await
            .unwrap_err();
        assert!(
            error.kind() == ErrorKind::Denied && !format!("{error:?}").contains(&id),
            "{error:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_paused_holders_write_is_refused() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let paused = Store::new(
            Redis::connect(&format!("redis://{}", proxy.addr()))
                .await
                .unwrap(),
        );
        let other = Store::new(client(&server).await);
        let mut connection = connection(&server).await;
        // The first holder writes, and then hears and says nothing for longer than its lease.
        let first = paused
            .lock("account/42")
            .ttl(Duration::from_millis(500))
            .acquire()
            .await
            .unwrap();
        write_fenced(&mut connection, "balance/42", first.fencing_token(), 100)
            .await
            .unwrap();
        proxy.hold();
        assert_eq!(first.lost().await, Loss::Expired);
        // Somebody else goes on.
        let second = other.lock("account/42").ttl(TTL).acquire().await.unwrap();
        write_fenced(&mut connection, "balance/42", second.fencing_token(), 170)
            .await
            .unwrap();
        // The first wakes up in the middle of its section, and did not look at its guard.
        let refused = write_fenced(&mut connection, "balance/42", first.fencing_token(), 30)
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Stale);
        assert!(
            refused
                .to_string()
                .contains(&second.fencing_token().to_string()),
            "{refused}"
        );
        assert_eq!(balance(&mut connection).await.as_deref(), Some("170"));
        // Who holds writes on.
        write_fenced(&mut connection, "balance/42", second.fencing_token(), 180)
            .await
            .unwrap();
        assert_eq!(balance(&mut connection).await.as_deref(), Some("180"));
    })
    .await;
}

#[tokio::test]
async fn tokens_are_compared_exactly() {
    bounded(async {
        let server = server().await;
        let mut connection = connection(&server).await;
        // Neighbours beyond what a double can tell apart, and numbers of different lengths.
        let rising = [
            0,
            1,
            9,
            10,
            99,
            100,
            (1 << 53) - 1,
            1 << 53,
            (1 << 53) + 1,
            i64::MAX as u64 - 1,
            i64::MAX as u64,
        ];
        let token = FencingToken::new;
        for (i, n) in rising.into_iter().enumerate() {
            for value in ["once", "again"] {
                write_fenced(&mut connection, "balance/42", token(n), value)
                    .await
                    .unwrap();
            }
            for smaller in &rising[..i] {
                let refused =
                    write_fenced(&mut connection, "balance/42", token(*smaller), "stale").await;
                assert!(
                    refused.is_err_and(|e| e.kind() == ErrorKind::Stale),
                    "{smaller} after {n}"
                );
            }
            assert_eq!(balance(&mut connection).await.as_deref(), Some("again"));
        }
        // A key of another type is said as what it is.
        server.command(&["SET", "text", "1"]).await.unwrap();
        let error = write_fenced(&mut connection, "text", token(1), 1)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    })
    .await;
}
