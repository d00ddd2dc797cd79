//! Work that is done once, with sqlx.

use leasehold::postgres::Postgres;
use leasehold::{Keep, OnceOutcome, Store};

type Error = Box<dyn std::error::Error + Send + Sync>;

pub async fn invoice(
    locks: &Postgres,
    store: &Store,
    pool: &sqlx::PgPool,
    order: i64,
) -> Result<bool, Error> {
    let once = store.once(("invoice", order)).in_transaction();
    let work = once.run(async |attempt| {
        let done = locks.done(&*attempt, Keep::Forever)?;
        let (name, token, keep, result) = done.params();
        let mut tx = pool.begin().await?;
        sqlx::query(done.sql())
            .bind(name)
            .bind(token)
            .bind(keep)
            .bind(result)
            .execute(&mut *tx)
            .await?;
        sqlx::query("INSERT INTO invoices VALUES ($1)")
            .bind(order)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok::<_, Error>(())
    });
    Ok(matches!(work.await??, OnceOutcome::Ran(())))
}
