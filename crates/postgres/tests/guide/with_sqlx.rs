//! With sqlx.

use leasehold::postgres::{HELD, LOST};
use leasehold::{Fenced, Guard};

pub async fn pay(guard: &Guard, pool: &sqlx::PgPool) -> Result<bool, sqlx::Error> {
    let mut tx = pool.begin().await?;
    let held = sqlx::query(HELD)
        .bind(guard.full_name().as_str())
        .bind(guard.fencing_token().as_i64());
    match held.execute(&mut *tx).await {
        Err(sqlx::Error::Database(e)) if e.code().as_deref() == Some(LOST) => return Ok(false),
        held => held?,
    };
    sqlx::query("UPDATE orders SET state = 'paid' WHERE id = 42")
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(true)
}
