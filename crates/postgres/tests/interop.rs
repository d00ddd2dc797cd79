//! The fence with the crates that programs use for their own transactions: sqlx and diesel, as their users write it. `fence.rs` has
//! tokio-postgres.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{Fenced, Guard, Name, Store};
use leasehold_postgres::{HELD, LOST, Postgres};
use sqlx_core::query::query;
use sqlx_postgres::PgPoolOptions;
use support::*;

/// A holder that was paused between its look at the clock and its transaction: it believes that it holds, whatever happened since.
#[derive(Debug)]
struct Paused(Name, leasehold_core::FencingToken);

impl Paused {
    fn holder(by: &impl Fenced) -> Paused {
        Paused(by.full_name().clone(), by.fencing_token())
    }
}

/// A table of a program's own, in the database of the locks.
async fn world() -> (Server, Arc<Postgres>, Store) {
    let server = server().await;
    let locks = Arc::new(client(&server).await);
    program(&server)
        .await
        .batch_execute("CREATE SCHEMA app; CREATE TABLE app.orders (id int8, state text)")
        .await
        .unwrap();
    (server, locks.clone(), Store::new(locks).ttl(Duration::from_secs(60)))
}

/// Somebody else has the lock now.
async fn lost_to_another(store: &Store, guard: &Guard) -> Guard {
    assert!(store.evict("orders/42", guard.fencing_token()).await.unwrap());
    store.lock("orders/42").acquire().await.unwrap()
}

async fn orders(server: &Server) -> u64 {
    server.number("SELECT count(*) FROM app.orders").await.unwrap()
}

#[tokio::test]
async fn sqlx() {
    bounded(async {
        let (server, _locks, store) = world().await;
        let pool = PgPoolOptions::new().max_connections(2).connect(&server.url()).await.unwrap();
        let guard = store.lock("orders/42").acquire().await.unwrap();

        let mut tx = pool.begin().await.unwrap();
        query(HELD)
            .bind(guard.full_name().as_str())
            .bind(guard.fencing_token().as_i64())
            .execute(&mut *tx)
            .await
            .unwrap();
        query("INSERT INTO app.orders VALUES (42, 'paid')").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(orders(&server).await, 1);

        let late = Paused::holder(&guard);
        let _next = lost_to_another(&store, &guard).await;
        let mut tx = pool.begin().await.unwrap();
        query("INSERT INTO app.orders VALUES (43, 'late')").execute(&mut *tx).await.unwrap();
        let refused = query(HELD).bind(late.0.as_str()).bind(late.1.as_i64()).execute(&mut *tx).await.unwrap_err();
        assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some(LOST));
        tx.commit().await.unwrap();
        assert_eq!(orders(&server).await, 1);
    })
    .await;
}

#[tokio::test]
async fn diesel() {
    bounded(async {
        let (server, locks, store) = world().await;
        let mut db = AsyncPgConnection::establish(&server.url()).await.unwrap();
        let guard = store.lock("orders/42").acquire().await.unwrap();

        let still_holds = locks.still_holds(&guard).unwrap();
        let (name, token) = still_holds.params();
        db.batch_execute("BEGIN").await.unwrap();
        let held = diesel::sql_query(still_holds.sql()).bind::<Text, _>(name).bind::<BigInt, _>(token);
        held.execute(&mut db).await.unwrap();
        diesel::sql_query("INSERT INTO app.orders VALUES (42, 'paid')").execute(&mut db).await.unwrap();
        db.batch_execute("COMMIT").await.unwrap();
        assert_eq!(orders(&server).await, 1);

        let late = Paused::holder(&guard);
        let _next = lost_to_another(&store, &guard).await;
        db.batch_execute("BEGIN").await.unwrap();
        diesel::sql_query("INSERT INTO app.orders VALUES (43, 'late')").execute(&mut db).await.unwrap();
        let held = diesel::sql_query(HELD).bind::<Text, _>(late.0.as_str()).bind::<BigInt, _>(late.1.as_i64());
        // It knows few SQLSTATEs; the message says it.
        let refused = held.execute(&mut db).await.unwrap_err();
        assert!(refused.to_string().contains("the lock is no longer held"), "{refused:?}");
        db.batch_execute("COMMIT").await.unwrap();
        assert_eq!(orders(&server).await, 1);
    })
    .await;
}
