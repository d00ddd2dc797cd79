//! The statements for a user's own transactions: that a hold still stands, and that work which is
//! done once is done.

use leasehold_core::{Error, Fenced, Keep, Loss, Name, Result};

use crate::Postgres;
use crate::entry::{self, is_own};
use crate::scripts::{SCHEMA, check_schema};

/// *This hold stands, and no other is granted before this transaction has ended*: a statement for a
/// transaction of your own, in the database of the locks, if their schema is `leasehold`. `$1` is
/// the lock's full name, `$2` its token. [`held`] returns the statement for another schema.
///
/// If the hold has ended, the statement fails with the SQLSTATE [`LOST`], and the transaction with
/// it: its writes are not committed. If the hold stands, it is kept until the transaction ends,
/// even if its lease ends before: the writes of the transaction are committed before the next
/// holder begins, or not at all. This does not depend on any clock of this process.
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
/// The project's page `docs/transactions.md` has the details. In short:
///
/// - **Execute it outside of savepoints**, which nested transactions of sqlx and diesel are:
///   `ROLLBACK TO` unlocks the row that keeps the hold.
/// - As the first statement of a transaction it fails early; as the last one it delays others
///   least. At `REPEATABLE READ` and `SERIALIZABLE` it must be the first: later it may fail with a
///   lease that was renewed meanwhile. At `READ COMMITTED` begin the transaction after the grant:
///   anything that it read before the grant is older than the hold.
/// - The server ends a transaction that does nothing for longer than the TTL, the shortest one of
///   several locks, or sooner if its `idle_in_transaction_session_timeout` says so: a program that
///   stops inside a transaction keeps others out for a TTL, and not for ever. `PREPARE TRANSACTION`
///   keeps them out until it is resolved.
/// - While a transaction keeps the hold, a release of it is retried, a downgrade is refused, and an
///   eviction lets nobody in.
/// - A hold of a `fast` lock, or over a bridge, is refused: [`PASSED_ON`].
/// - The statement covers nothing outside of this database, and no failover that loses the hold:
///   there only the token protects.
pub const HELD: &str = "SELECT leasehold.held($1::text, $2::bigint)";

/// The SQLSTATE with which [`HELD`] fails if the hold has ended.
pub const LOST: &str = "LH001";

/// The SQLSTATE with which [`HELD`] fails for a hold that is passed on without this database: a
/// hold of a [`fast`](leasehold_core::Lock::fast) lock, which goes from task to task in its
/// process, and one over a bridge, where the other store may grant the lock as soon as the lease
/// has ended there.
pub const PASSED_ON: &str = "LH005";

/// *This hold still stands*, as a statement for a transaction of your own: [`HELD`], with its
/// parameters.
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
    /// The SQL of the statement.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The values of `$1` and `$2`: the lock's full name and the token.
    pub fn params(&self) -> (&str, i64) {
        (self.name.as_str(), self.token)
    }
}

/// *This work is done once this transaction has committed*: a statement for a transaction of your
/// own, in the database of the locks, if their schema is `leasehold`. `$1` is the full name of the
/// work, `$2` the token of the hold under which it is done, `$3` for how many milliseconds it counts
/// as done (NULL: for ever), and `$4` its result, or NULL. [`done`] returns the statement for another
/// schema, and [`Postgres::done`] the parameters as well.
///
/// The record that the work is done is committed with the effects of the work, or not at all: in
/// this database they happen **exactly once**. The statement is [`HELD`] as well, with all that this
/// implies for the transaction: it fails with [`LOST`] if the hold has ended. It fails with
/// [`ALREADY_DONE`] if the work is done. In both cases the transaction fails with it.
///
/// - **Execute it outside of savepoints**, and once in a transaction for each work.
/// - The keep counts from the statement on, not from the commit.
/// - A result of more than 4,096 bytes is cut.
/// - The transaction is stored as a grant is, also with `synchronous_commit = off`.
///
/// The project's page `docs/done-in-your-transaction.md` has the details.
///
/// ```no_run
/// # async fn example(tx: tokio_postgres::Transaction<'_>, by: &leasehold_core::Held) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_core::Fenced;
/// use leasehold_postgres::DONE;
///
/// let (name, token) = (by.full_name().as_str(), by.fencing_token().as_i64());
/// let (keep, result) = (None::<i64>, None::<&str>);
/// tx.execute(DONE, &[&name, &token, &keep, &result]).await?;
/// tx.execute("INSERT INTO invoices (order_id) VALUES (42)", &[]).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub const DONE: &str = "SELECT leasehold.done($1::text, $2::bigint, $3::bigint, $4::text)";

/// The SQLSTATE with which [`DONE`] fails if the work is done already, perhaps by an earlier
/// transaction of the same hold whose commit was not answered.
pub const ALREADY_DONE: &str = "LH006";

/// *This work is done once this transaction has committed*, as a statement for a transaction of your
/// own: [`DONE`], with its parameters.
///
/// See [`Postgres::done`].
#[derive(Clone, Debug)]
#[must_use = "it is a statement to be executed"]
pub struct Done {
    sql: String,
    name: Name,
    token: i64,
    keep: Option<i64>,
    result: Option<String>,
}

impl Done {
    /// Leaves a result, which everybody reads who is told that the work is done: no secrets. NUL is
    /// replaced by U+FFFD.
    pub fn result(mut self, text: impl Into<String>) -> Done {
        self.result = Some(text.into().replace('\0', "\u{fffd}"));
        self
    }

    /// The SQL of the statement.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The values of `$1` to `$4`: the full name, the token, the keep in milliseconds, and the
    /// result.
    pub fn params(&self) -> (&str, i64, Option<i64>, Option<&str>) {
        (
            self.name.as_str(),
            self.token,
            self.keep,
            self.result.as_deref(),
        )
    }
}

impl Postgres {
    /// Returns a statement for a transaction of your own: *the work that is done under `by` is done
    /// once this transaction has committed*, and counts as done for `keep`. It is [`DONE`] for the
    /// schema of this store, and only for holds of this very client.
    ///
    /// ```no_run
    /// # async fn example(db: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use leasehold_core::{Begun, Keep, Store};
    /// use leasehold_postgres::Postgres;
    ///
    /// let locks = Arc::new(Postgres::connect("postgres://app:secret@10.0.0.1/orders").await?);
    /// let store = Store::new(locks.clone());
    /// let invoice = store.once("invoice/42").keep_forever();
    /// if let Begun::Attempt(guard) = invoice.begin().await? {
    ///     let done = locks.done(&*guard.attempt(), Keep::Forever)?;
    ///     let (name, token, keep, result) = done.params();
    ///     let tx = db.transaction().await?;
    ///     tx.execute(done.sql(), &[&name, &token, &keep, &result]).await?;
    ///     tx.execute("INSERT INTO invoices (order_id) VALUES (42)", &[]).await?;
    ///     tx.commit().await?;
    ///     guard.complete().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`still_holds`](Postgres::still_holds). The check sends no request.
    pub fn done(&self, by: &(impl Fenced + ?Sized), keep: Keep) -> Result<Done> {
        let StillHolds { name, token, .. } = self.still_holds(by)?;
        Ok(Done {
            sql: done(&self.0.config.schema)?,
            name,
            token,
            keep: entry::keep(keep),
            result: None,
        })
    }

    /// Returns a condition for a transaction of your own: *`by` still holds*, and no other is
    /// granted before that transaction has ended. It is [`HELD`] for the schema of this store, and
    /// only for holds of this very client, because a hold in another store may have the same name
    /// and number.
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
    /// [`Lost`](leasehold_core::ErrorKind::Lost) if the hold has ended as far as this process knows, or is another
    /// client's; [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for a `fast` lock and over a bridge, as
    /// [`PASSED_ON`]. The check sends no request.
    pub fn still_holds(&self, by: &(impl Fenced + ?Sized)) -> Result<StillHolds> {
        by.check_condition()?;
        let unknown = || {
            Error::lost(by.loss().unwrap_or(Loss::Gone))
                .in_context("this client knows no such hold")
                .with_name(by.name())
        };
        by.place()
            .filter(|place| by.is_valid() && is_own(place, &self.0.client))
            .ok_or_else(unknown)?;
        let name = by.full_name().clone();
        let token = by.fencing_token().as_i64();
        Ok(StillHolds {
            sql: held(&self.0.config.schema)?,
            name,
            token,
        })
    }
}

/// Returns [`HELD`] for the locks of this schema.
///
/// # Errors
///
/// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a name that cannot be a schema of locks.
pub fn held(schema: &str) -> Result<String> {
    check_schema(schema)?;
    Ok(HELD.replacen(SCHEMA, schema, 1))
}

/// Returns [`DONE`] for the work whose locks are in this schema.
///
/// # Errors
///
/// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a name that cannot be a schema of locks.
pub fn done(schema: &str) -> Result<String> {
    check_schema(schema)?;
    Ok(DONE.replacen(SCHEMA, schema, 1))
}
