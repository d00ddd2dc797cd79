//! Where the token is spent, in SQL: the statement that refuses a stale writer, and a holder that was paused past its lease.
//!
//! The rows are the program's own and live in a database of its own: the store's file is the store's. The statement is the
//! same in any SQL: a token fits a signed 64-bit column.

#![allow(clippy::unwrap_used, reason = "a test and its helpers")]

use std::path::Path;
use std::time::Duration;

use leasehold_core::{Fenced, FencingToken, Guard, Store};
use leasehold_sqlite::Sqlite;
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
    db.query_row(read, [], |row| Ok((row.get(0)?, FencingToken::new(row.get::<_, i64>(1)? as u64)))).unwrap()
}

/// A program of its own, as far as time is concerned: while nobody drives its runtime, it is paused.
fn program(locks: &Path) -> (Runtime, Guard) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(async {
        let store = Store::new(Sqlite::open(locks).await.unwrap());
        let lock = store.lock("orders/42").ttl(Duration::from_millis(500));
        tokio::time::timeout(Duration::from_secs(30), lock.acquire()).await.unwrap().unwrap()
    });
    (runtime, guard)
}

#[test]
fn a_paused_holders_late_write_changes_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let (locks, orders) = (folder.path().join("locks.db"), folder.path().join("orders.db"));
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
    assert!(!first.is_valid(), "the truth is there for whoever asks");
    drop(paused);
}
