//! The examples of `docs/transactions.md` and `docs/done-in-your-transaction.md` for PostgreSQL, as they stand there: by who holds, and by who
//! held.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    unreachable_pub,
    reason = "tests, and examples of programs"
)]

// What the examples name as their users do.
extern crate self as leasehold;
extern crate self as sqlx;

pub use leasehold_core::{Fenced, Guard, Keep, OnceOutcome, Store};
pub use leasehold_postgres as postgres;
pub use sqlx_core::{Error, query::query};
pub use sqlx_postgres::PgPool;

#[path = "guide/once_with_sqlx.rs"]
mod once_with_sqlx;
#[path = "guide/once_with_tokio_postgres.rs"]
mod once_with_tokio_postgres;
#[path = "guide/with_diesel.rs"]
mod with_diesel;
#[path = "guide/with_sqlx.rs"]
mod with_sqlx;
#[path = "guide/with_tokio_postgres.rs"]
mod with_tokio_postgres;

#[path = "it/support/mod.rs"]
mod support;

use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncPgConnection};
use sqlx_postgres::PgPoolOptions;
use support::*;

/// An order that is to be paid, its lock held, and its next holder once that was taken away.
struct World {
    server: Server,
    store: Store,
}

impl World {
    async fn new() -> World {
        let server = server().await;
        let store = Store::new(client(&server).await).ttl(Duration::from_secs(60));
        let schema = format!(
            "CREATE SCHEMA {role} AUTHORIZATION {role}",
            role = Server::USER
        );
        server.query(&schema).await.unwrap();
        let orders =
            "CREATE TABLE orders (id int8, state text); INSERT INTO orders VALUES (42, 'open')";
        program(&server).await.batch_execute(orders).await.unwrap();
        World { server, store }
    }

    async fn hold(&self) -> Guard {
        self.store.lock("orders/42").acquire().await.unwrap()
    }

    /// The guard stays: its program is paused, and has heard of nothing.
    async fn replaced(&self, guard: &Guard) -> Guard {
        assert!(
            self.store
                .evict("orders/42", guard.fencing_token())
                .await
                .unwrap()
        );
        self.hold().await
    }

    /// Whether it was paid, which it is no longer then.
    async fn was_paid(&self) -> bool {
        let state = format!("SELECT state FROM {}.orders", Server::USER);
        let state = self.server.text(&state).await.unwrap();
        self.server
            .query(&format!(
                "UPDATE {}.orders SET state = 'open'",
                Server::USER
            ))
            .await
            .unwrap();
        state == "paid"
    }
}

#[tokio::test]
async fn with_tokio_postgres() {
    bounded(async {
        let world = World::new().await;
        let mut db = program(&world.server).await;
        let guard = world.hold().await;
        assert!(with_tokio_postgres::pay(&guard, &mut db).await.unwrap());
        assert!(world.was_paid().await);
        let _next = world.replaced(&guard).await;
        assert!(!with_tokio_postgres::pay(&guard, &mut db).await.unwrap());
        assert!(!world.was_paid().await);
    })
    .await;
}

#[tokio::test]
async fn with_sqlx() {
    bounded(async {
        let world = World::new().await;
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .connect(&world.server.url())
            .await
            .unwrap();
        let guard = world.hold().await;
        assert!(with_sqlx::pay(&guard, &pool).await.unwrap());
        assert!(world.was_paid().await);
        let _next = world.replaced(&guard).await;
        assert!(!with_sqlx::pay(&guard, &pool).await.unwrap());
        assert!(!world.was_paid().await);
    })
    .await;
}

#[tokio::test]
async fn with_diesel() {
    bounded(async {
        let world = World::new().await;
        let mut db = AsyncPgConnection::establish(&world.server.url())
            .await
            .unwrap();
        let guard = world.hold().await;
        assert_eq!(with_diesel::pay(&guard, &mut db).await, Ok(1));
        assert!(world.was_paid().await);
        let _next = world.replaced(&guard).await;
        let refused = with_diesel::pay(&guard, &mut db).await.unwrap_err();
        assert!(
            refused.to_string().contains("the lock is no longer held"),
            "{refused}"
        );
        assert!(!world.was_paid().await);
    })
    .await;
}

/// Calls an example for some orders, and again for each.
async fn invoiced_once(
    server: &Server,
    call: impl AsyncFn(i64) -> Result<bool, Box<dyn std::error::Error + Send + Sync>>,
) {
    let invoices = format!("SELECT count(*) FROM {}.invoices", Server::USER);
    for order in 0..5 {
        assert!(call(order).await.unwrap());
        for _ in 0..2 {
            assert!(!call(order).await.unwrap());
        }
        assert_eq!(server.number(&invoices).await.unwrap(), order as u64 + 1);
    }
    // The effect fails, so the work is not done.
    let full = format!("ALTER TABLE {}.invoices ADD CHECK (id < 5)", Server::USER);
    server.query(&full).await.unwrap();
    for _ in 0..2 {
        call(5).await.unwrap_err();
    }
    assert_eq!(server.number(&invoices).await.unwrap(), 5);
}

async fn invoices() -> (World, std::sync::Arc<postgres::Postgres>, Store) {
    let world = World::new().await;
    let locks = std::sync::Arc::new(client(&world.server).await);
    let store = Store::new(locks.clone());
    let table = "CREATE TABLE invoices (id int8)";
    program(&world.server)
        .await
        .batch_execute(table)
        .await
        .unwrap();
    (world, locks, store)
}

#[tokio::test]
async fn once_with_tokio_postgres() {
    bounded(async {
        let (world, locks, store) = invoices().await;
        let db = tokio::sync::Mutex::new(program(&world.server).await);
        let call = async |order| {
            let mut db = db.lock().await;
            once_with_tokio_postgres::invoice(&locks, &store, &mut db, order).await
        };
        invoiced_once(&world.server, call).await;
    })
    .await;
}

#[tokio::test]
async fn once_with_sqlx() {
    bounded(async {
        let (world, locks, store) = invoices().await;
        let pool = PgPoolOptions::new().max_connections(2);
        let pool = pool.connect(&world.server.url()).await.unwrap();
        let call = async |order| once_with_sqlx::invoice(&locks, &store, &pool, order).await;
        invoiced_once(&world.server, call).await;
    })
    .await;
}
