//! Work that is done once, with tokio-postgres.

use leasehold::postgres::Postgres;
use leasehold::{Keep, OnceOutcome, Store};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Writes the invoice of an order once, however often it is called, and whatever fails meanwhile.
/// Returns whether this call has done it.
pub async fn invoice(
    locks: &Postgres,
    store: &Store,
    db: &mut tokio_postgres::Client,
    order: i64,
) -> Result<bool, Error> {
    let once = store.once(("invoice", order)).in_transaction();
    let work = once.run(async |attempt| {
        let done = locks.done(&*attempt, Keep::Forever)?.result("3 lines");
        let (name, token, keep, result) = done.params();
        let tx = db.transaction().await?;
        tx.execute(done.sql(), &[&name, &token, &keep, &result])
            .await?;
        tx.execute("INSERT INTO invoices VALUES ($1)", &[&order])
            .await?;
        tx.commit().await?;
        Ok::<_, Error>(())
    });
    Ok(matches!(work.await??, OnceOutcome::Ran(())))
}
