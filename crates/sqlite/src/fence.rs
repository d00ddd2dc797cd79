//! The fencing condition for a user's own SQLite transactions.

use leasehold_core::{Error, Fenced, Loss, Result};

use crate::Sqlite;

/// *This hold still stands*, for a transaction of your own: a statement that changes one row if the
/// hold stands, and none if it does not.
///
/// See [`Sqlite::still_holds`].
#[derive(Clone, Debug)]
#[must_use = "it is a statement to be executed"]
pub struct StillHolds {
    seq: i64,
    name: String,
    token: i64,
}

impl StillHolds {
    /// The SQL of the statement, for a connection to which the store's file is attached under this
    /// name.
    pub fn sql(&self, attached_as: &str) -> String {
        let schema = attached_as.replace('"', "\"\"");
        format!(
            "UPDATE \"{schema}\".place SET n = n
             WHERE seq = ?1 AND name = ?2 AND ?3 BETWEEN token AND token + turns - 1 AND session > 0"
        )
    }

    /// The values of `?1`, `?2` and `?3`: the number of the place, the lock's full name, and the
    /// token.
    pub fn params(&self) -> (i64, &str, i64) {
        (self.seq, &self.name, self.token)
    }
}

impl Sqlite {
    /// Returns a condition for a transaction of your own: *`by` still holds*. Execute it **first**
    /// in the transaction that writes, on a connection to which the store's file is attached, and
    /// roll back unless it changed one row. A holder that was paused past its lease, or evicted,
    /// then writes nothing, even without a token in your data.
    ///
    /// The condition is an update that changes nothing, because an update takes the write lock of
    /// the store's file until you commit: no other client can be granted the lock between the check
    /// and your write. A `SELECT` would allow that, since it may read an old snapshot. Keep the
    /// transaction short: meanwhile every lock in the file waits. A hold whose lease has ended
    /// still passes, as long as no other client has been granted the lock since.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use leasehold_core::Store;
    /// use leasehold_sqlite::{Config, Sqlite};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let (path, orders) = (folder.path().join("locks.db"), folder.path().join("orders.db"));
    /// let locks = Arc::new(Sqlite::with_config(Config::new(&path)).await?);
    /// let store = Store::new(locks.clone());
    /// let guard = store.lock("orders/42").acquire().await?;
    ///
    /// let mut db = rusqlite::Connection::open(orders)?;
    /// # db.execute_batch("CREATE TABLE orders (id, state)")?;
    /// db.execute("ATTACH ?1 AS locks", [path.to_str()])?;
    /// db.execute_batch("PRAGMA locks.synchronous = OFF")?; // a lock waits for no disk
    /// let still_holds = locks.still_holds(&guard)?;
    /// // Waits for other writers of the data first, and only then for the locks: nobody's lease ends meanwhile.
    /// let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    /// if tx.execute(&still_holds.sql("locks"), still_holds.params())? == 1 {
    ///     tx.execute("INSERT INTO orders VALUES (42, 'paid')", [])?;
    ///     tx.commit()?;
    /// } // else it is not ours any more, and nothing is written
    /// # Ok(()) }
    /// ```
    ///
    /// **Limit.** The check cannot see that the store's file was deleted or replaced since you
    /// attached it. It then looks at a file that no client uses any more. If that may happen, keep
    /// the token in your data. Attach the file after the store was opened, and again after a
    /// reboot, since both may begin the file anew.
    ///
    /// # Errors
    ///
    /// [`Lost`](leasehold_core::ErrorKind::Lost) if the hold has ended as far as this process knows, or is another
    /// kind of store's; [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for a
    /// [`fast`](leasehold_core::Lock::fast) lock, which goes from task to task of its process
    /// without the file, and over a bridge, where the other store may grant the lock as soon as the
    /// lease has ended there. The file is not read for that.
    pub fn still_holds(&self, by: &(impl Fenced + ?Sized)) -> Result<StillHolds> {
        by.check_condition()?;
        let seq = by
            .place()
            .filter(|_| by.is_valid())
            .and_then(|place| place.as_str().parse().ok());
        let unknown = || {
            Error::lost(by.loss().unwrap_or(Loss::Gone))
                .in_context("this SQLite client holds nothing with this token")
        };
        let seq = seq.ok_or_else(|| unknown().with_name(by.name()))?;
        Ok(StillHolds {
            seq,
            name: by.full_name().as_str().to_owned(),
            token: by.fencing_token().as_i64(),
        })
    }
}
