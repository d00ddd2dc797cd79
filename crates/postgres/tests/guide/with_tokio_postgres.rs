//! With tokio-postgres.

use leasehold::postgres::{HELD, LOST};
use leasehold::{Fenced, Guard};

/// Whether the order is paid now. If not, the lock was lost, and nothing is written.
pub async fn pay(
    guard: &Guard,
    db: &mut tokio_postgres::Client,
) -> Result<bool, tokio_postgres::Error> {
    let tx = db.transaction().await?;
    match tx
        .execute(
            HELD,
            &[&guard.full_name().as_str(), &guard.fencing_token().as_i64()],
        )
        .await
    {
        Err(e) if e.code().is_some_and(|code| code.code() == LOST) => return Ok(false),
        held => held?,
    };
    tx.execute("UPDATE orders SET state = 'paid' WHERE id = 42", &[])
        .await?;
    tx.commit().await?;
    Ok(true)
}
