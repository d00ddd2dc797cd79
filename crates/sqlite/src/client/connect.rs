//! A connection to the file: it is opened, and its use of the disk is limited.

use std::path::Path;

use leasehold_core::Result;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use rustix::io::Errno;

use crate::client::time::wait;
use crate::error;

/// The number of pages at which the log is written back into the file, and the number of bytes that
/// are reserved for the log from the start, so that a full disk refuses no renewal.
const LOG_PAGES: i64 = 512;
const LOG_BYTES: u64 = 2 << 20;
/// The number of pages at which the log is written back by clients that come for one lock and go:
/// the first client that opens the file reads the whole log.
pub(crate) const SHORT_LOG_PAGES: i64 = 24;

/// Opens an existing file.
pub(crate) fn connect(real: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    #[allow(unused_mut, reason = "older versions of rusqlite do not ask for it")]
    let mut connection = Connection::open_with_flags(real, flags)?;
    connection.busy_handler(Some(wait))?;
    // The log stays for the next process. Besides, the last client to close would delete the file
    // at the log's path, which may be the log of others by then.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // There is room for all statements, so none is compiled twice.
    connection.set_prepared_statement_cache_capacity(64);
    // No statement is compiled again for another value: the bundled SQLite is built to plan by
    // values, which gains nothing with these indexes.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    limit_log(&connection, LOG_PAGES)?;
    Ok(connection)
}

/// Makes transactions wait for no disk: files that a power cut leaves are of another boot, and are
/// begun anew. It is called after the first read of the file, since before that it would read the
/// file itself.
pub(crate) fn wait_for_no_disk(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA synchronous = OFF")
}

/// Makes the connection write the log back once it has this number of pages.
pub(crate) fn limit_log(connection: &Connection, pages: i64) -> rusqlite::Result<()> {
    connection.query_row(&format!("PRAGMA wal_autocheckpoint = {pages}"), [], |_| {
        Ok(())
    })
}

/// Limits the number of pages of the file. The limit is never below their present number.
pub(crate) fn limit_pages(connection: &Connection, pages: i64) -> rusqlite::Result<()> {
    connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
}

/// Reserves the room of the log. On a file system that cannot reserve it, the log grows as it is
/// written.
pub(crate) fn grow(log: &Path) -> Result<()> {
    let of = |e: Errno| error::of_io(&e.into(), log, "cannot be made large enough");
    let log = open(
        log,
        OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    )
    .map_err(of)?;
    match fallocate(&log, FallocateFlags::empty(), 0, LOG_BYTES) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        grown => grown.map_err(of),
    }
}
