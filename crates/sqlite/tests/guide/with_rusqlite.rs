//! With rusqlite.

use leasehold::sqlite::StillHolds;
use rusqlite::Connection;

/// A connection to the data, with the file of the locks beside it. The store has opened that before.
pub fn open(data: &str, locks: &str) -> rusqlite::Result<Connection> {
    let db = Connection::open(data)?;
    db.execute("ATTACH ?1 AS locks", [locks])?;
    db.execute_batch("PRAGMA locks.synchronous = OFF")?; // a lock waits for no disk
    Ok(db)
}

/// Whether the order is paid now. If not, somebody else has had the lock, and nothing is written.
pub fn pay(still_holds: &StillHolds, db: &mut Connection) -> rusqlite::Result<bool> {
    let tx = db.transaction()?;
    if tx.execute(&still_holds.sql("locks"), still_holds.params())? != 1 {
        return Ok(false); // dropped, it is rolled back
    }
    tx.execute("UPDATE orders SET state = 'paid' WHERE id = 42", [])?;
    tx.commit()?;
    Ok(true)
}
