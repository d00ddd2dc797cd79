//! Runs the example: by who holds, and by who held and has heard of nothing.

use std::sync::Arc;

use leasehold_core::Store;
use leasehold_sqlite::{Config, Sqlite};

use crate::with_sqlx::{open, pay};

pub async fn run() {
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("locks.db"), folder.path().join("data.db"));
    let locks = Arc::new(Sqlite::with_config(Config::new(&file)).await.unwrap());
    let store = Store::new(locks.clone());
    let pool = open(&format!("sqlite://{}?mode=rwc", data.display()), file.to_str().unwrap()).await.unwrap();
    let orders = "CREATE TABLE orders (id INTEGER, state TEXT); INSERT INTO orders VALUES (42, 'open')";
    sqlx::raw_sql(orders).execute(&pool).await.unwrap();

    let first = store.lock("orders/42").acquire().await.unwrap();
    let from_before = locks.still_holds(&first).unwrap();
    assert!(pay(&from_before, &pool).await.unwrap());
    assert!(store.evict("orders/42", first.fencing_token()).await.unwrap());
    assert!(!pay(&from_before, &pool).await.unwrap(), "its hold was ended");
    let next = store.lock("orders/42").acquire().await.unwrap();
    assert!(!pay(&from_before, &pool).await.unwrap(), "another holds");
    assert!(pay(&locks.still_holds(&next).unwrap(), &pool).await.unwrap());
    pool.close().await;
}
