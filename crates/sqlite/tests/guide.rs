//! The example of `docs/transactions.md` for SQLite and rusqlite, as it stands there: by who holds, and by who held. That for sqlx is in
//! `beside_sqlx`.

#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test, and an example of a program"
)]

// What the example names as its users do.
extern crate self as leasehold;

pub use leasehold_sqlite as sqlite;

#[path = "guide/with_rusqlite.rs"]
mod with_rusqlite;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Store;
use leasehold_sqlite::{Config, Sqlite};
use rusqlite::Connection;
use with_rusqlite::{open, pay};

#[tokio::test]
async fn who_holds_pays_and_who_held_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (
        folder.path().join("locks.db"),
        folder.path().join("data.db"),
    );
    let locks = Arc::new(Sqlite::with_config(Config::new(&file)).await.unwrap());
    let store = Store::new(locks.clone());
    let mut db = open(data.to_str().unwrap(), file.to_str().unwrap()).unwrap();
    db.execute_batch(
        "CREATE TABLE orders (id INTEGER, state TEXT); INSERT INTO orders VALUES (42, 'open')",
    )
    .unwrap();

    let first = store.lock("orders/42").acquire().await.unwrap();
    let from_before = locks.still_holds(&first).unwrap();
    assert!(pay(&from_before, &mut db).unwrap());
    assert!(
        store
            .evict("orders/42", first.fencing_token())
            .await
            .unwrap()
    );
    assert!(!pay(&from_before, &mut db).unwrap(), "its hold was ended");
    let next = store.lock("orders/42").acquire().await.unwrap();
    assert!(!pay(&from_before, &mut db).unwrap(), "another holds");
    assert!(pay(&locks.still_holds(&next).unwrap(), &mut db).unwrap());
}

/// Whoever writes the data for long, or reads it, keeps who pays waiting, and nobody else: the locks' file is free meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_transaction_on_the_data_keeps_no_other_lock_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (
        folder.path().join("locks.db"),
        folder.path().join("data.db"),
    );
    let locks = Arc::new(Sqlite::with_config(Config::new(&file)).await.unwrap());
    let store = Store::new(locks.clone());
    let open = || open(data.to_str().unwrap(), file.to_str().unwrap()).unwrap();
    let mut db = open();
    db.execute_batch(
        "CREATE TABLE orders (id INTEGER, state TEXT); INSERT INTO orders VALUES (42, 'open')",
    )
    .unwrap();
    let guard = store.lock("orders/42").acquire().await.unwrap();
    let condition = locks.still_holds(&guard).unwrap();

    let another = Connection::open(&data).unwrap();
    another.execute_batch("BEGIN IMMEDIATE").unwrap();
    let paying =
        tokio::task::spawn_blocking(move || pay(&condition, &mut db).map(|paid| (paid, db)));
    // A claim waits for the file for a second at most.
    for _ in 0..20 {
        let another = store.lock("another").try_acquire().await.unwrap();
        another.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!paying.is_finished());
    another.execute_batch("ROLLBACK").unwrap();
    let (paid, mut db) = paying.await.unwrap().unwrap();
    assert!(paid);

    another
        .execute_batch("BEGIN; SELECT * FROM orders")
        .unwrap();
    assert!(pay(&locks.still_holds(&guard).unwrap(), &mut db).unwrap());
    another.execute_batch("COMMIT").unwrap();
}
