//! Where the token is spent: a paused holder's write is refused by the value itself.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::time::Duration;

use leasehold_core::{ErrorKind, FencingToken, Loss, Store};
use leasehold_redis::client::{AsyncTypedCommands, Client, aio::MultiplexedConnection};
use leasehold_redis::{Redis, write_fenced};
use leasehold_testbed::Proxy;
use support::*;

/// The user's own connection, which is none of the store's.
async fn own(server: &Server) -> MultiplexedConnection {
    Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn balance(connection: &mut MultiplexedConnection) -> Option<String> {
    connection.hget("balance/42", "value").await.unwrap()
}

#[tokio::test]
async fn a_paused_holders_write_is_refused() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let paused = Store::new(Redis::connect(&format!("redis://{}", proxy.addr())).await.unwrap());
        let other = Store::new(client(&server).await);
        let mut connection = own(&server).await;
        // The first holder writes, and then hears and says nothing for longer than its lease.
        let first = paused.lock("account/42").ttl(Duration::from_millis(500)).acquire().await.unwrap();
        write_fenced(&mut connection, "balance/42", first.fencing_token(), 100).await.unwrap();
        proxy.hold();
        assert_eq!(first.lost().await, Loss::Expired);
        // Somebody else goes on.
        let second = other.lock("account/42").ttl(TTL).acquire().await.unwrap();
        write_fenced(&mut connection, "balance/42", second.fencing_token(), 170).await.unwrap();
        // The first wakes up in the middle of its section, and did not look at its guard.
        let refused = write_fenced(&mut connection, "balance/42", first.fencing_token(), 30).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Lost);
        assert!(refused.to_string().contains(&second.fencing_token().to_string()), "{refused}");
        assert_eq!(balance(&mut connection).await.as_deref(), Some("170"));
        // Who holds writes on.
        write_fenced(&mut connection, "balance/42", second.fencing_token(), 180).await.unwrap();
        assert_eq!(balance(&mut connection).await.as_deref(), Some("180"));
    })
    .await;
}

#[tokio::test]
async fn tokens_are_compared_exactly() {
    bounded(async {
        let server = server().await;
        let mut connection = own(&server).await;
        // Neighbours beyond what a double can tell apart, and numbers of different lengths.
        let rising =
            [0, 1, 9, 10, 99, 100, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, i64::MAX as u64 - 1, i64::MAX as u64];
        let token = FencingToken::new;
        for (i, n) in rising.into_iter().enumerate() {
            for value in ["once", "again"] {
                write_fenced(&mut connection, "balance/42", token(n), value).await.unwrap();
            }
            for smaller in &rising[..i] {
                let refused = write_fenced(&mut connection, "balance/42", token(*smaller), "stale").await;
                assert!(refused.is_err_and(|e| e.kind() == ErrorKind::Lost), "{smaller} after {n}");
            }
            assert_eq!(balance(&mut connection).await.as_deref(), Some("again"));
        }
        // A key of another type is said as what it is.
        server.command(&["SET", "text", "1"]).await.unwrap();
        let error = write_fenced(&mut connection, "text", token(1), 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    })
    .await;
}
