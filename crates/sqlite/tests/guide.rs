//! The example of `docs/transactions.md` for SQLite and rusqlite, as it stands there: by who holds, and by who held. That for sqlx is in
//! `beside_sqlx`.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test, and an example of a program")]

// What the example names as its users do.
extern crate self as leasehold;

pub use leasehold_sqlite as sqlite;

#[path = "guide/with_rusqlite.rs"]
mod with_rusqlite;

use std::sync::Arc;

use leasehold_core::Store;
use leasehold_sqlite::{Config, Sqlite};
use with_rusqlite::{open, pay};

#[tokio::test]
async fn who_holds_pays_and_who_held_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("locks.db"), folder.path().join("data.db"));
    let locks = Arc::new(Sqlite::with_config(Config::new(&file)).await.unwrap());
    let store = Store::new(locks.clone());
    let mut db = open(data.to_str().unwrap(), file.to_str().unwrap()).unwrap();
    db.execute_batch("CREATE TABLE orders (id INTEGER, state TEXT); INSERT INTO orders VALUES (42, 'open')").unwrap();

    let first = store.lock("orders/42").acquire().await.unwrap();
    let from_before = locks.still_holds(&first).unwrap();
    assert!(pay(&from_before, &mut db).unwrap());
    assert!(store.evict("orders/42", first.fencing_token()).await.unwrap());
    assert!(!pay(&from_before, &mut db).unwrap(), "its hold was ended");
    let next = store.lock("orders/42").acquire().await.unwrap();
    assert!(!pay(&from_before, &mut db).unwrap(), "another holds");
    assert!(pay(&locks.still_holds(&next).unwrap(), &mut db).unwrap());
}
