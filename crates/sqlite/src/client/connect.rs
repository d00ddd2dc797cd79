//! A connection to the file: how it is opened, and what it may use of the disk.

use std::path::Path;

use leasehold_core::Result;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use rustix::io::Errno;

use crate::client::time::wait;
use crate::error;

/// How many pages the log has when it is written back into the file, and how many bytes it has room for from the start, so
/// that a full disk refuses no renewal.
const LOG_PAGES: i64 = 512;
const LOG_BYTES: u64 = 2 << 20;
/// After how many pages that is for clients that come for one lock and go: the first that opens the file reads the whole log.
pub(crate) const SHORT_LOG_PAGES: i64 = 24;

/// Opens a file that is there.
pub(crate) fn connect(real: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    #[allow(unused_mut, reason = "older versions of rusqlite do not ask for it")]
    let mut connection = Connection::open_with_flags(real, flags)?;
    connection.busy_handler(Some(wait))?;
    // The log stays for the next process. And the last client to close would delete what is at the log's path, which may be the
    // log of others by then.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // More than there are statements: none is ever compiled twice.
    connection.set_prepared_statement_cache_capacity(64);
    // Nor again for another value: the bundled SQLite is built to plan by values, which gains nothing with these indexes.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    limit_log(&connection, LOG_PAGES)?;
    Ok(connection)
}

/// What a power cut leaves is of another boot, and begun anew. After the first look at the file, which this would else be one more of.
pub(crate) fn wait_for_no_disk(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA synchronous = OFF")
}

/// Writes the log back once it has so many pages.
pub(crate) fn limit_log(connection: &Connection, pages: i64) -> rusqlite::Result<()> {
    connection.query_row(&format!("PRAGMA wal_autocheckpoint = {pages}"), [], |_| Ok(()))
}

/// At least as many as there are.
pub(crate) fn limit_pages(connection: &Connection, pages: i64) -> rusqlite::Result<()> {
    connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
}

/// Gives the log its room. Where that cannot be asked for, it grows as it is written.
pub(crate) fn grow(log: &Path) -> Result<()> {
    let of = |e: Errno| error::of_io(&e.into(), log, "cannot be made large enough");
    let log = open(log, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()).map_err(of)?;
    match fallocate(&log, FallocateFlags::empty(), 0, LOG_BYTES) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        grown => grown.map_err(of),
    }
}
