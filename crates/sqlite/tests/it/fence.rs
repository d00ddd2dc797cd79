//! Where the token is spent, in SQL: the statement that refuses a stale writer, and a holder that was paused past its lease.
//!
//! The rows are the program's own and live in a database of its own: the store's file is the store's. The statement with the
//! token is the same in any SQL: it fits a signed 64-bit column. The condition without one needs the store's file attached.

mod matrix;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ErrorKind, Fenced, FencingToken, Guard, Store};
use leasehold_sqlite::{Config, Sqlite, StillHolds};
use rusqlite::{Connection, params};
use tokio::runtime::{Builder, Runtime};

const SCHEMA: &str =
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL, seen INTEGER NOT NULL DEFAULT 0);
                      INSERT INTO orders (id, state) VALUES (42, 'open');";

/// Writes, and remembers the token, in one statement. No row changed: a later holder has written already.
fn write(db: &Connection, by: &impl Fenced, state: &str) -> Result<(), String> {
    let token = by.fencing_token().as_i64();
    let update = "UPDATE orders SET state = ?1, seen = ?2 WHERE id = 42 AND seen <= ?2";
    match db.execute(update, params![state, token]) {
        Ok(1) => Ok(()),
        Ok(_) => Err(format!("refused: token {token} is stale")),
        Err(e) => Err(e.to_string()),
    }
}

fn row(db: &Connection) -> (String, FencingToken) {
    let read = "SELECT state, seen FROM orders WHERE id = 42";
    db.query_row(read, [], |row| {
        Ok((row.get(0)?, FencingToken::new(row.get::<_, i64>(1)? as u64)))
    })
    .unwrap()
}

/// A program of its own, as far as time is concerned: while nobody drives its runtime, it is paused.
fn program(locks: &Path) -> (Runtime, Guard) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(async {
        let store = Store::new(Sqlite::with_config(Config::new(locks)).await.unwrap());
        let lock = store.lock("orders/42").ttl(Duration::from_millis(500));
        tokio::time::timeout(Duration::from_secs(30), lock.acquire())
            .await
            .unwrap()
            .unwrap()
    });
    (runtime, guard)
}

#[test]
fn a_paused_holders_late_write_changes_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let (locks, orders) = (
        folder.path().join("locks.db"),
        folder.path().join("orders.db"),
    );
    let db = Connection::open(orders).unwrap();
    db.execute_batch(SCHEMA).unwrap();

    let (paused, first) = program(&locks); // nobody drives it from here on: its lease runs out
    write(&db, &first, "packed").unwrap();
    let (_running, second) = program(&locks);
    assert!(second.fencing_token() > first.fencing_token());
    write(&db, &second, "sent").unwrap();

    let late = write(&db, &first, "cancelled").unwrap_err();
    assert!(late.contains("stale"), "{late}");
    assert_eq!(row(&db), ("sent".to_owned(), second.fencing_token()));
    write(&db, &second, "delivered").unwrap(); // the same holder may write as often as it wants
    assert!(!first.is_valid(), "the loss is there for each call");
    drop(paused);
}

/// A database of its own, to which the file of locks, which is there, is attached.
fn attached(locks: &Path, orders: &Path) -> Connection {
    let db = Connection::open(orders).unwrap();
    db.execute_batch(SCHEMA).unwrap();
    db.busy_timeout(Duration::from_secs(30)).unwrap();
    db.execute("ATTACH ?1 AS \"the locks\"", [locks.to_str()])
        .unwrap();
    db.execute_batch("PRAGMA \"the locks\".synchronous = OFF")
        .unwrap();
    db
}

/// Writes in one transaction with the check that the hold still stands.
fn write_if(db: &mut Connection, condition: &StillHolds, state: &str) -> rusqlite::Result<bool> {
    let tx = db.transaction()?;
    let holds = tx.execute(&condition.sql("the locks"), condition.params())? == 1;
    tx.execute("UPDATE orders SET state = ?1 WHERE id = 42", [state])?;
    if holds { tx.commit() } else { tx.rollback() }.map(|()| holds)
}

/// No token in the rows: the condition alone, from before it was lost, refuses the replaced holder, and never the present one.
#[test]
fn a_condition_refuses_whoever_was_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (locks, orders) = (
        folder.path().join("locks.db"),
        folder.path().join("orders.db"),
    );
    let client = Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(Sqlite::with_config(Config::new(&locks)))
        .unwrap();
    let mut db = attached(&locks, &orders);

    let (_paused, first) = program(&locks); // nobody drives it from here on: its lease runs out
    let from_before = client.still_holds(&first).unwrap();
    assert!(write_if(&mut db, &from_before, "packed").unwrap());
    let (_running, second) = program(&locks);
    assert!(!write_if(&mut db, &from_before, "cancelled").unwrap());
    assert!(write_if(&mut db, &client.still_holds(&second).unwrap(), "sent").unwrap());
    assert_eq!(row(&db).0, "sent");
    assert_eq!(
        client.still_holds(&first).unwrap_err().kind(),
        ErrorKind::Lost
    );
}

/// What was read before, at leisure, does not count: the check asks for the newest, or fails.
#[test]
fn an_old_snapshot_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (locks, orders) = (
        folder.path().join("locks.db"),
        folder.path().join("orders.db"),
    );
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = Arc::new(Sqlite::with_config(Config::new(&locks)).await.unwrap());
        let mut db = attached(&locks, &orders);
        let store = Store::new(client.clone());
        let guard = store.lock("orders/42").acquire().await.unwrap();
        let condition = client.still_holds(&guard).unwrap();
        let tx = db.transaction().unwrap();
        let held: i64 = tx
            .query_row("SELECT count(*) FROM \"the locks\".place", [], |row| {
                row.get(0)
            })
            .unwrap();
        assert_eq!(held, 1);
        assert!(
            store
                .evict("orders/42", guard.fencing_token())
                .await
                .unwrap()
        );
        let checked = tx.execute(&condition.sql("the locks"), condition.params());
        assert!(checked.is_err(), "a snapshot from before said {checked:?}");
        drop(tx);
        assert!(!write_if(&mut db, &condition, "cancelled").unwrap());
    });
}

/// From the check to the commit nobody else is granted the lock.
#[test]
fn nobody_comes_between_the_check_and_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let (locks, orders) = (
        folder.path().join("locks.db"),
        folder.path().join("orders.db"),
    );
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = Arc::new(Sqlite::with_config(Config::new(&locks)).await.unwrap());
        let mut db = attached(&locks, &orders);
        let store = Store::new(client.clone());
        let lock = store.lock("orders/42").ttl(Duration::from_secs(10));
        let guard = lock.acquire().await.unwrap();
        let condition = client.still_holds(&guard).unwrap();
        let tx = db.transaction().unwrap();
        assert_eq!(
            tx.execute(&condition.sql("the locks"), condition.params())
                .unwrap(),
            1
        );
        let token = guard.fencing_token();
        let next = tokio::spawn(async move {
            store.evict("orders/42", token).await.unwrap();
            lock.acquire().await.unwrap()
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!next.is_finished());
        tx.execute("UPDATE orders SET state = 'sent' WHERE id = 42", [])
            .unwrap();
        tx.commit().unwrap();
        assert!(next.await.unwrap().fencing_token() > token);
    });
}
