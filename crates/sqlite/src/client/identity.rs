//! The identity of the store: a random text in its file, which new files take over from the former
//! ones.
//!
//! Where the files were deleted or exchanged in their place, a client goes on, also if they have
//! another identity now: whoever begins files there waits for the leases of all clients, so nobody
//! holds beside another. Elsewhere nobody knows of those leases. So where the path leads to another
//! directory, or to a file of another name, only a file with the known identity is used.

use leasehold_core::backend::{ClaimId, Identity};
use leasehold_core::{Error, ErrorKind, Result, StoreId};
use rusqlite::{Connection, TransactionBehavior};

use crate::client::connect::limit_pages;
use crate::client::generation::Header;

/// The largest number of pages that SQLite knows.
const ANY: i64 = 0xFFFF_FFFE;

/// Fails if the file at the path belongs to another store than this client. `found` is the identity
/// in that file. `stays`: it is where the client's file was until now.
pub(crate) fn check(identity: &Identity, found: Option<&StoreId>, stays: bool) -> Result<()> {
    let goes_on = stays && (found.is_none() || !identity.is_pinned());
    if identity.id().is_none() || goes_on {
        return Ok(());
    }
    found.map_or_else(|| Err(nothing(identity)), |found| identity.check(found))
}

/// The error where no file has the known identity.
fn nothing(identity: &Identity) -> Error {
    let id = identity.id().map_or_else(String::new, |id| id.to_string());
    let what = match identity.is_pinned() {
        true => format!(
            "the URL names the store {id}, and here is no file, or one of an earlier build, which has no identity: \
             open it once without `store`, and name the identity that it has then (`leasehold guarantees`)"
        ),
        false => {
            format!("the path leads elsewhere now, where no file of this client's store {id} is")
        }
    };
    Error::new(ErrorKind::OtherStore, what)
}

/// The identity for files that have none.
pub(crate) fn fresh(identity: &Identity) -> StoreId {
    let random = || StoreId::of("sqlite", ClaimId::fresh());
    identity.id().unwrap_or_else(random)
}

/// Gives an identity to a file of an earlier build, and returns the one that it has then: another
/// client may do the same.
pub(crate) fn give(connection: &mut Connection, id: StoreId) -> rusqlite::Result<StoreId> {
    limit_pages(connection, ANY)?;
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if tx.prepare("SELECT store FROM meta").is_err() {
        tx.execute_batch("ALTER TABLE meta ADD COLUMN store TEXT")?;
    }
    let found = Header::of(&tx)?.kept.store;
    if found.is_none() {
        tx.execute("UPDATE meta SET store = ?1", [id.as_str()])?;
    }
    tx.commit()?;
    limit_pages(connection, 1)?;
    // When files are begun anew, the main file is read without its log.
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    Ok(found.unwrap_or(id))
}
