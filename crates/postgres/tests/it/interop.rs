//! The fence with the crates that programs use for their own transactions, as their users write it: sqlx, diesel and tokio-postgres. Each test
//! starts itself again as a program that is stopped while it holds, and goes on as if it held still.

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use leasehold_core::{Fenced, Guard, Store};
use leasehold_postgres::client::{NoTls, connect};
use leasehold_postgres::{HELD, LOST, Postgres};
use sqlx_core::query::query;
use sqlx_postgres::PgPoolOptions;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

const LOCK: &str = "orders/42";
/// Where the program that is started again finds the server.
const URL: &str = "LEASEHOLD_TEST_URL";
/// Longer than a busy machine may take for a transaction.
const LEASE: Duration = Duration::from_secs(4);
/// What it says when it has written, and holds.
const HOLDS: &str = "it holds";
/// What the server says of a transaction that came too late: diesel shows few SQLSTATEs.
const WORDS: &str = "the lock is no longer held";

/// A program that is stopped while it holds, until somebody else has the lock. What it then does is refused.
async fn paused(test: &str, server: &Server, store: &Store) {
    program(server)
        .await
        .batch_execute("CREATE SCHEMA app; CREATE TABLE app.orders (id int8, state text)")
        .await
        .unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", &format!("interop::{test}"), "--nocapture"])
        .env(URL, server.url())
        .kill_on_drop(true);
    let mut program = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = program.id().unwrap().to_string();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    while said.next_line().await.unwrap().unwrap() != HOLDS {}
    signal("-STOP", &pid).await;
    let next = store.lock(LOCK).acquire().await.unwrap();
    signal("-CONT", &pid).await;
    program
        .stdin
        .take()
        .unwrap()
        .write_all(b"go on\n")
        .await
        .unwrap();
    let mut words = String::new();
    while let Some(line) = said.next_line().await.unwrap() {
        words += &line;
    }
    assert!(
        words.contains(WORDS) && program.wait().await.unwrap().success(),
        "{words}"
    );
    let orders = async |state| {
        server
            .number(&format!(
                "SELECT count(*) FROM app.orders WHERE state = '{state}'"
            ))
            .await
            .unwrap()
    };
    assert_eq!((orders("in time").await, orders("late").await), (1, 0));
    next.release().await.unwrap();
}

async fn signal(signal: &str, pid: &str) {
    assert!(
        Command::new("kill")
            .args([signal, pid])
            .status()
            .await
            .unwrap()
            .success()
    );
}

/// The program, by this way to write.
async fn program_that_is_paused(
    url: &str,
    write: impl AsyncFn(&Postgres, &Guard, &'static str) -> String,
) {
    let locks = Arc::new(connected(|| Postgres::connect(url)).await);
    let guard = Store::new(locks.clone())
        .ttl(LEASE)
        .lock(LOCK)
        .acquire()
        .await
        .unwrap();
    assert_eq!(write(&locks, &guard, "in time").await, "");
    println!("\n{HOLDS}");
    std::io::stdout().flush().unwrap();
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()))
        .await
        .unwrap()
        .unwrap();
    // As one that looked at the clock before it was stopped.
    println!("{}", write(&locks, &guard, "late").await);
}

async fn by_whom(test: &str, write: impl AsyncFn(&Postgres, &Guard, &'static str) -> String) {
    bounded(async {
        if let Ok(url) = std::env::var(URL) {
            return program_that_is_paused(&url, write).await;
        }
        let server = server().await;
        let store = Store::new(client(&server).await);
        paused(test, &server, &store).await;
    })
    .await;
}

#[tokio::test]
async fn sqlx() {
    by_whom("sqlx", async |_, guard, state| {
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .connect(&std::env::var(URL).unwrap())
            .await
            .unwrap();
        let mut tx = pool.begin().await.unwrap();
        query("INSERT INTO app.orders VALUES (42, $1)")
            .bind(state)
            .execute(&mut *tx)
            .await
            .unwrap();
        let held = query(HELD)
            .bind(guard.full_name().as_str())
            .bind(guard.fencing_token().as_i64());
        let said = match held.execute(&mut *tx).await {
            Ok(_) => String::new(),
            Err(refused) => {
                assert_eq!(
                    refused.as_database_error().unwrap().code().as_deref(),
                    Some(LOST)
                );
                refused.to_string()
            }
        };
        // It does not look at what it was told.
        tx.commit().await.unwrap();
        said
    })
    .await;
}

#[tokio::test]
async fn tokio_postgres() {
    by_whom("tokio_postgres", async |_, guard, state| {
        let (mut db, connection) = connect(&std::env::var(URL).unwrap(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let tx = db.transaction().await.unwrap();
        tx.execute("INSERT INTO app.orders VALUES (42, $1)", &[&state])
            .await
            .unwrap();
        let held = tx
            .execute(
                HELD,
                &[&guard.full_name().as_str(), &guard.fencing_token().as_i64()],
            )
            .await;
        let said = match held {
            Ok(_) => String::new(),
            Err(refused) => {
                assert_eq!(refused.code().unwrap().code(), LOST);
                refused.as_db_error().unwrap().message().to_owned()
            }
        };
        tx.commit().await.unwrap();
        said
    })
    .await;
}

#[tokio::test]
async fn diesel() {
    use diesel_async::RunQueryDsl;
    by_whom("diesel", async |locks, guard, state| {
        let mut db = AsyncPgConnection::establish(&std::env::var(URL).unwrap())
            .await
            .unwrap();
        // As long as it holds it may ask the store for both.
        let (name, token) = match locks.still_holds(guard) {
            Ok(still_holds) => (still_holds.params().0.to_owned(), still_holds.params().1),
            Err(_) => (
                guard.full_name().to_string(),
                guard.fencing_token().as_i64(),
            ),
        };
        db.batch_execute("BEGIN").await.unwrap();
        let insert =
            diesel::sql_query("INSERT INTO app.orders VALUES (42, $1)").bind::<Text, _>(state);
        insert.execute(&mut db).await.unwrap();
        let held = diesel::sql_query(HELD)
            .bind::<Text, _>(name)
            .bind::<BigInt, _>(token);
        let said = held
            .execute(&mut db)
            .await
            .map_or_else(|refused| refused.to_string(), |_| String::new());
        db.batch_execute("COMMIT").await.unwrap();
        said
    })
    .await;
}
