//! With rusqlite.

use leasehold::sqlite::StillHolds;
use rusqlite::{Connection, TransactionBehavior};

/// A connection to the data, with the file of the locks beside it. The store has opened that before.
pub fn open(data: &str, locks: &str) -> rusqlite::Result<Connection> {
    let db = Connection::open(data)?;
    db.execute_batch("PRAGMA journal_mode = WAL")?; // no reader keeps a commit waiting
    db.execute("ATTACH ?1 AS locks", [locks])?;
    db.execute_batch("PRAGMA locks.synchronous = OFF")?; // a lock waits for no disk
    Ok(db)
}

/// Whether the order is paid now. If not, somebody else has had the lock, and nothing is written.
pub fn pay(still_holds: &StillHolds, db: &mut Connection) -> rusqlite::Result<bool> {
    // It waits for other writers of the data first, and only then keeps the locks' file.
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if tx.execute(&still_holds.sql("locks"), still_holds.params())? != 1 {
        return Ok(false); // dropped, it is rolled back
    }
    tx.execute("UPDATE orders SET state = 'paid' WHERE id = 42", [])?;
    tx.commit()?;
    Ok(true)
}
