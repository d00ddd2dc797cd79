//! With diesel.

use diesel::sql_types::{BigInt, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use leasehold::postgres::HELD;
use leasehold::{Fenced, Guard};

pub async fn pay(
    guard: &Guard,
    db: &mut AsyncPgConnection,
) -> Result<usize, diesel::result::Error> {
    let (name, token) = (
        guard.full_name().to_string(),
        guard.fencing_token().as_i64(),
    );
    let paying = db.transaction(|db| {
        Box::pin(async move {
            diesel::sql_query(HELD)
                .bind::<Text, _>(name)
                .bind::<BigInt, _>(token)
                .execute(db)
                .await?;
            diesel::sql_query("UPDATE orders SET state = 'paid' WHERE id = 42")
                .execute(db)
                .await
        })
    });
    paying.await
}
