//! The token where it is spent: a statement for a user's own transactions.

use leasehold_core::{Error, ErrorKind, Fenced, Name, Result};

use crate::Postgres;
use crate::entry::is_own;
use crate::scripts::{SCHEMA, check_schema};

/// *This hold stands, and no other is granted before this transaction has ended*: a statement for a transaction of your own, in the
/// database of the locks, if their schema is `leasehold`. `$1` is the lock's full name, `$2` its token. [`held`] is the same for another
/// schema.
///
/// If the hold has ended, it fails with the SQLSTATE [`LOST`], and the transaction with it: what it wrote is not committed. If it stands,
/// it is kept until the transaction ends, whatever becomes of its lease: what the transaction writes is committed before the next
/// holder begins, or not at all. No clock of this process matters to that.
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store, db: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_core::Fenced;
/// use leasehold_postgres::HELD;
///
/// let guard = store.lock("orders/42").acquire().await?;
/// let tx = db.transaction().await?;
/// tx.execute(HELD, &[&guard.full_name().as_str(), &guard.fencing_token().as_i64()]).await?;
/// tx.execute("UPDATE orders SET state = 'paid' WHERE id = 42", &[]).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// With sqlx:
///
/// ```no_run
/// # mod sqlx { pub use sqlx_core::query::query; pub use sqlx_postgres::PgPool; }
/// # async fn example(store: leasehold_core::Store, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// # use leasehold_core::Fenced;
/// # use leasehold_postgres::HELD;
/// let guard = store.lock("orders/42").acquire().await?;
/// let mut tx = pool.begin().await?;
/// sqlx::query(HELD).bind(guard.full_name().as_str()).bind(guard.fencing_token().as_i64()).execute(&mut *tx).await?;
/// sqlx::query("UPDATE orders SET state = 'paid' WHERE id = 42").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// With diesel, here by diesel-async:
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store, db: &mut diesel_async::AsyncPgConnection) -> Result<(), Box<dyn std::error::Error>> {
/// # use leasehold_core::Fenced;
/// # use leasehold_postgres::HELD;
/// use diesel::sql_types::{BigInt, Text};
/// use diesel_async::{AsyncConnection, RunQueryDsl};
///
/// let guard = store.lock("orders/42").acquire().await?;
/// let (name, token) = (guard.full_name().to_string(), guard.fencing_token().as_i64());
/// db.transaction(|db| Box::pin(async move {
///     diesel::sql_query(HELD).bind::<Text, _>(name).bind::<BigInt, _>(token).execute(db).await?;
///     diesel::sql_query("UPDATE orders SET state = 'paid' WHERE id = 42").execute(db).await
/// })).await?;
/// # Ok(()) }
/// ```
///
/// The project's page `docs/transactions.md` has the whole of it. In short:
///
/// - **Execute it outside of savepoints**, which nested transactions of sqlx and diesel are: `ROLLBACK TO` gives up what it holds.
/// - First in the transaction it fails early; last it is in nobody's way for long. At `REPEATABLE READ` and `SERIALIZABLE`, first: later it
///   may fail with a lease that was renewed meanwhile. At `READ COMMITTED` begin the transaction after the grant: what it read before that
///   is older than the hold.
/// - A transaction that does nothing for longer than the TTL is ended by the server, unless its `idle_in_transaction_session_timeout` is set:
///   so a program that stops inside keeps others out for a TTL, and not for ever. `PREPARE TRANSACTION` keeps them out until it is resolved.
/// - While it is kept, a release of this hold is retried, and an eviction lets nobody in.
/// - It covers nothing outside of this database, and no failover that loses the hold: there only the token protects.
pub const HELD: &str = "SELECT leasehold.held($1::text, $2::bigint)";

/// The SQLSTATE with which [`HELD`] fails if the hold has ended.
pub const LOST: &str = "LH001";

/// *This hold still stands*, for a transaction of your own: [`HELD`], and what is bound to it.
///
/// See [`Postgres::still_holds`].
#[derive(Clone, Debug)]
#[must_use = "it is a statement to be executed"]
pub struct StillHolds {
    sql: String,
    name: Name,
    token: i64,
}

impl StillHolds {
    /// The statement.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// What is bound to `$1` and `$2`.
    pub fn params(&self) -> (&str, i64) {
        (self.name.as_str(), self.token)
    }
}

impl Postgres {
    /// A condition for a transaction of your own: *`by` still holds*, and no other is granted before that transaction has ended. It is
    /// [`HELD`] for the schema of this store, and for holds of this very client: one of another store may have the same name and number.
    ///
    /// For a `fast` lock it says that this hold of the process stands, whichever of its tasks has the turn.
    ///
    /// ```no_run
    /// # async fn example(db: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use leasehold_core::Store;
    /// use leasehold_postgres::Postgres;
    ///
    /// let locks = Arc::new(Postgres::connect("postgres://app:secret@10.0.0.1/orders").await?);
    /// let store = Store::new(locks.clone());
    /// let guard = store.lock("orders/42").acquire().await?;
    ///
    /// let still_holds = locks.still_holds(&guard)?;
    /// let (name, token) = still_holds.params();
    /// let tx = db.transaction().await?;
    /// tx.execute(still_holds.sql(), &[&name, &token]).await?;
    /// tx.execute("UPDATE orders SET state = 'paid' WHERE id = 42", &[]).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the hold has ended as far as this process knows, or is another client's. Nothing is sent for that.
    pub fn still_holds(&self, by: &(impl Fenced + ?Sized)) -> Result<StillHolds> {
        let unknown = || Error::new(ErrorKind::Lost, "this client knows no such hold").with_name(by.name());
        by.place().filter(|place| by.is_valid() && is_own(place, &self.0.client)).ok_or_else(unknown)?;
        let (name, token) = (by.full_name().clone(), by.fencing_token().as_i64());
        Ok(StillHolds { sql: held(&self.0.config.schema)?, name, token })
    }
}

/// [`HELD`] for the locks of this schema.
///
/// # Errors
///
/// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a name that is none.
pub fn held(schema: &str) -> Result<String> {
    check_schema(schema)?;
    Ok(HELD.replacen(SCHEMA, schema, 1))
}
