//! The token where it is spent: a condition for a user's own SQLite transactions.

use leasehold_core::{Error, ErrorKind, Fenced, Result};

use crate::Sqlite;

/// *This hold still stands*, for a transaction of your own: a statement that changes one row if it does, and none if not.
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
    /// The statement, for a connection to which the store's file is attached under this name.
    pub fn sql(&self, attached_as: &str) -> String {
        let schema = attached_as.replace('"', "\"\"");
        format!(
            "UPDATE \"{schema}\".place SET n = n
             WHERE seq = ?1 AND name = ?2 AND ?3 BETWEEN token AND token + turns - 1 AND session > 0"
        )
    }

    /// What is bound to `?1`, `?2` and `?3`.
    pub fn params(&self) -> (i64, &str, i64) {
        (self.seq, &self.name, self.token)
    }
}

impl Sqlite {
    /// A condition for a transaction of your own: *`by` still holds*. Execute it **first** in the transaction that writes, on a
    /// connection to which the store's file is attached, and roll back unless it changed one row. A holder that was paused or
    /// evicted past its lease then writes nothing, without a token in your data.
    ///
    /// It is an update that changes nothing, because that takes the write lock of the store's file until you commit: no other
    /// client can be granted the lock between the check and your write, as with a `SELECT`, which may read an old
    /// snapshot. So be short: meanwhile every lock in the file waits. A hold whose lease has ended still passes, as long as no
    /// other client has been granted the lock since.
    ///
    /// For a `fast` lock it says that this hold of the process stands, whichever of its tasks has the turn.
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
    /// let tx = db.transaction()?;
    /// if tx.execute(&still_holds.sql("locks"), still_holds.params())? == 1 {
    ///     tx.execute("INSERT INTO orders VALUES (42, 'paid')", [])?;
    ///     tx.commit()?;
    /// } // else it is not ours any more, and nothing is written
    /// # Ok(()) }
    /// ```
    ///
    /// **What it cannot see**: that the store's file was deleted or replaced since you attached it. The check then looks at a
    /// file that no client uses any more. Keep the token in your data where that may happen. So attach it after the store was
    /// opened, and anew after a reboot, each of which begins the file anew.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the hold has ended as far as this process knows, or is another kind of store's. Nothing
    /// is read for that.
    pub fn still_holds(&self, by: &(impl Fenced + ?Sized)) -> Result<StillHolds> {
        let seq = by.place().filter(|_| by.is_valid()).and_then(|place| place.as_str().parse().ok());
        let unknown = || Error::new(ErrorKind::Lost, "this SQLite client holds nothing with this token");
        let seq = seq.ok_or_else(|| unknown().with_name(by.name()))?;
        Ok(StillHolds { seq, name: by.full_name().as_str().to_owned(), token: by.fencing_token().as_i64() })
    }
}
