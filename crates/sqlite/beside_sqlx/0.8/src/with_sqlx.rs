//! With sqlx 0.8.

use leasehold::sqlite::StillHolds;
use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;

/// Connections to the data, each with the file of the locks beside it. The store has opened that before.
pub async fn open(data: &str, locks: &str) -> Result<SqlitePool, sqlx::Error> {
    let locks = locks.to_owned();
    let options = SqlitePoolOptions::new().after_connect(move |db, _| {
        let locks = locks.clone();
        Box::pin(async move {
            sqlx::query("PRAGMA journal_mode = WAL").execute(&mut *db).await?; // no reader keeps a commit waiting
            sqlx::query("ATTACH ? AS locks").bind(locks).execute(&mut *db).await?;
            sqlx::query("PRAGMA locks.synchronous = OFF").execute(db).await?; // a lock waits for no disk
            Ok(())
        })
    });
    options.connect(data).await
}

/// Whether the order is paid now. If not, somebody else has had the lock, and nothing is written.
pub async fn pay(still_holds: &StillHolds, pool: &SqlitePool) -> Result<bool, sqlx::Error> {
    let (sql, (seq, name, token)) = (still_holds.sql("locks"), still_holds.params());
    // It waits for other writers of the data first, and only then keeps the locks' file.
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let held = sqlx::query(&sql).bind(seq).bind(name).bind(token).execute(&mut *tx).await?;
    if held.rows_affected() != 1 {
        return Ok(false); // dropped, it is rolled back
    }
    sqlx::query("UPDATE orders SET state = 'paid' WHERE id = 42").execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(true)
}
