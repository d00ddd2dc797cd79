//! The file on its disk: whether it can be trusted there, how it is opened, and whether it is still the one that was.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::seam::Moment;
use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, TransactionBehavior, ffi, params};
use rustix::fs::{Access, FallocateFlags, Mode, OFlags, access, fallocate, open, statvfs};
use rustix::io::Errno;
use scopeguard::guard;

use crate::client::fifo::Address;
use crate::client::generation::{self, Files, Header, Meta};
use crate::client::place;
use crate::client::presence::Presence;
use crate::client::time::{now, wait, wait_until, wall};
use crate::client::tokens::above;
use crate::client::upgrade;
use crate::error;
use crate::names::beside;

/// How many pages the log has when it is written back into the file, and how many bytes it has room for from the start, so
/// that a full disk refuses no renewal.
const LOG_PAGES: i64 = 512;
const LOG_BYTES: u64 = 2 << 20;
/// The same for clients that come for one lock and go: the first that opens the file reads the whole log.
const SHORT_LOG_PAGES: i64 = 24;
/// By how many pages the file may grow at once, and how much of the disk must be free for that: its log has to be written
/// back into it later, or nothing could be renewed.
const STEP_PAGES: i64 = 512;
const STEP_BYTES: u64 = 4 << 20;
/// How long opening may wait for others.
pub(crate) const OPENING: Duration = Duration::from_secs(3);
/// How often it is looked whether the log and its index are still there, in nanoseconds.
const LOOK: i64 = 50_000_000;
/// An open file.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// The path without links: what the names of FIFOs are made of.
    pub(crate) real: PathBuf,
    pub(crate) connection: Connection,
    pub(crate) presence: Presence,
    /// Whoever was in it when it was opened: clients by their FIFOs, and holds that had ended.
    pub(crate) clients: HashMap<i64, Address>,
    files: Files,
    generation: i64,
    /// When all three were looked at.
    looked: Cell<i64>,
}

/// What came of opening the files that were there.
enum Joined {
    /// They are one generation, with this number, and with these clients.
    Open(Connection, i64, HashMap<i64, Address>),
    /// Others have replaced or completed them meanwhile, or we have.
    Changed,
    /// They are of another boot, or not those that belong together: no client may use them any more. With the last token.
    Stale(i64),
    /// Clients of an earlier version may use them.
    Earlier,
}

/// Why they cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Failed {
    Sqlite(#[from] rusqlite::Error),
    Other(#[from] Error),
}

impl File {
    /// Opens the file. It is begun anew if there is none, if it is of another boot, or if it is not together any more with the
    /// files beside it: then it grants nothing until every lease of a living client may have ended, whatever it still uses.
    /// `before`: what others know of our leases in files that we used until now, and the longest of those. Others are waited for
    /// until the deadline.
    pub(crate) fn open(path: &Path, before: Option<(&Presence, i64)>, deadline: Moment) -> Result<File> {
        let boot = place::boot()?;
        let real = place::real(path)?;
        let folder = real.parent().unwrap_or(Path::new("/"));
        let presence = Presence::open(&real, folder, before.map(|(presence, _)| presence))?;
        let own = before.map_or(0, |(_, longest)| longest);
        wait_until(deadline);
        // Once it takes two turns to make it, and one to see that others have.
        let mut turns = 0..3;
        while turns.next().is_some() || Moment::now() < deadline {
            let (looked, files) = (now(), Files::at(path, &real));
            let token = match join(&real, files, &boot, (&presence, own), deadline) {
                Ok(Joined::Open(connection, generation, clients)) => {
                    // Those that were joined: a later look may see others.
                    let (path, looked) = (path.into(), Cell::new(looked));
                    return Ok(File { path, real, connection, presence, clients, files, generation, looked });
                }
                Ok(Joined::Stale(token)) => token,
                Ok(Joined::Changed) => continue,
                Ok(Joined::Earlier) => {
                    upgrade::begin(&real, files, &boot, &presence, deadline)?;
                    continue;
                }
                // Parts of two generations do not fit together.
                Err(_) if Files::at(path, &real) != files => continue,
                Err(e) => return Err(e),
            };
            generation::begin(&real, files, token, &presence, deadline)?;
        }
        Err(Error::new(ErrorKind::Unavailable, format!("{} is replaced again and again", path.display())))
    }

    /// Whether the paths still lead to the files that were opened. SQLite would go on in deleted ones, beside the client that made
    /// them anew. That one always begins with another main file, so only this is looked at each time: who has only lost a log goes
    /// on with all others that have it open, for a moment.
    pub(crate) fn is_current(&self) -> bool {
        let now = now();
        if now - self.looked.get() < LOOK {
            return self.files.begin_at(&self.path);
        }
        self.looked.set(now);
        self.is_whole()
    }

    /// The same, with a look at all three.
    pub(crate) fn is_whole(&self) -> bool {
        let is_whole = Files::at(&self.path, &self.real) == self.files || fault("Q1");
        if !is_whole {
            self.looked.set(0);
        }
        is_whole
    }

    /// `None` if another generation has no business in this file any more.
    pub(crate) fn meta(&self) -> rusqlite::Result<Option<Meta>> {
        let meta = "SELECT quiet, token FROM meta WHERE generation = ?1";
        let read = |row: &Row<'_>| Ok(Meta { quiet: row.get(0)?, token: row.get(1)? });
        self.connection.prepare_cached(meta)?.query_row([self.generation], read).optional()
    }

    /// Begins a write transaction, which is undone when this is dropped, unless it was [committed](File::commit).
    pub(crate) fn begin(&self) -> rusqlite::Result<impl Sized> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        Ok(guard(&self.connection, |connection| {
            if !connection.is_autocommit() {
                let _ = connection.execute_batch("ROLLBACK");
            }
        }))
    }

    pub(crate) fn commit(&self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// Lets the file grow by a step, if the disk has room for it.
    pub(crate) fn may_grow(&self) -> bool {
        let free = self.real.parent().and_then(|folder| statvfs(folder).ok());
        let has_room = free.is_some_and(|free| free.f_bavail.saturating_mul(free.f_frsize) > STEP_BYTES);
        let pages = self.connection.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0));
        has_room && pages.is_ok_and(|pages| limit_pages(&self.connection, pages + STEP_PAGES).is_ok())
    }

    /// From now on this client writes the log back early.
    pub(crate) fn keep_log_short(&self) -> rusqlite::Result<()> {
        limit_log(&self.connection, SHORT_LOG_PAGES)
    }

    /// Has the file begun anew: what is in it is not what we wrote.
    pub(crate) fn replace(&self, deadline: Moment) -> Result<()> {
        let token = "SELECT token FROM meta";
        let token = self.connection.query_row(token, [], |row| row.get(0)).unwrap_or(0);
        generation::begin(&self.real, self.files, token, &self.presence, deadline)
    }
}

/// What is to be done with the file before any client opens it.
fn unfit(real: &Path, files: Files) -> Result<Option<Joined>> {
    if !files.is_there() {
        return Ok(Some(Joined::Stale(0)));
    }
    if files.are_complete() {
        return Ok(None);
    }
    let header = Header::read(real).map_err(|e| error::of(&e, real))?;
    if header.is_earlier() {
        return Ok(Some(Joined::Earlier));
    }
    header.check(real)?;
    // The client that opens a new one makes the files beside it. All others have been used, perhaps by a client that still does.
    if header.is_new() {
        return Ok(None);
    }
    has_one_name(real)?;
    Ok(Some(Joined::Stale(header.token)))
}

/// Not a hard link: beside its other name may be the files that belong to it, with locks that are held.
pub(crate) fn has_one_name(real: &Path) -> Result<()> {
    if fs::metadata(real).is_ok_and(|file| file.nlink() > 1) {
        let what = "has another name, a hard link, and the files beside this one are not its own: use one name for it";
        return Err(Error::new(ErrorKind::Invalid, format!("{} {what}", real.display())));
    }
    Ok(())
}

fn join(real: &Path, files: Files, boot: &str, known: (&Presence, i64), deadline: Moment) -> Result<Joined> {
    if let Some(unfit) = unfit(real, files)? {
        return Ok(unfit);
    }
    match try_to_join(real, files, boot, known, deadline) {
        Ok(joined) => Ok(joined),
        Err(Failed::Other(e)) => Err(e),
        Err(Failed::Sqlite(e)) => match Header::read(real) {
            // What a power cut has left, or what a file and the log of another make together. No client has used that.
            // Or a new file with one of the two beside it taken away, before it said that it is in use.
            Ok(header) if header.is_of_others(files.mark(boot)) || header.is_new() && error::is_misfit(&e) => {
                Ok(Joined::Stale(header.token))
            }
            Ok(header) if header.is_earlier() => Ok(Joined::Earlier),
            _ => Err(error::of(&e, real)),
        },
    }
}

fn try_to_join(
    real: &Path,
    files: Files,
    boot: &str,
    (presence, own): (&Presence, i64),
    deadline: Moment,
) -> std::result::Result<Joined, Failed> {
    let mut connection = connect(real)?;
    // SQLite opens for reading what it may not write.
    if access(real, Access::WRITE_OK).is_err() {
        return Err(Failed::Sqlite(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_READONLY), None)));
    }
    // In one transaction: each locks the index anew.
    let mut tx = connection.transaction()?;
    let header = Header::of(&tx)?;
    if header.is_earlier() {
        return Ok(Joined::Earlier);
    }
    header.check(real)?;
    if tx.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0))? != "wal" {
        return Ok(Joined::Stale(header.token));
    }
    // The same before and after: it is those that we have opened.
    if !files.are_complete() || Files::at(real, real) != files {
        return Ok(Joined::Changed);
    }
    let meta = "SELECT files, boot, generation FROM meta";
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get(2)?));
    let mut meta_row = tx.query_row(meta, [], read).optional()?;
    let mut _alone = None;
    if meta_row.as_ref().is_some_and(|(files, ..)| files.is_empty()) {
        drop(tx);
        wait_for_no_disk(&connection)?;
        // Nobody else does so meanwhile over another index, should this one be deleted just now: both would write in one log.
        _alone = Some(presence.alone(deadline)?);
        tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if Files::at(real, real) != files {
            return Ok(Joined::Changed);
        }
        meta_row = tx.query_row(meta, [], read).optional()?;
    }
    let Some((known, of, mut generation)) = meta_row else { return Ok(Joined::Stale(0)) };
    let is_new = known.is_empty();
    if is_new {
        // Ours, too: nobody may have told our guards yet.
        let longest = presence.longest_of_others()?.max(own);
        let quiet = if longest == 0 { 0 } else { now().saturating_add(longest) };
        generation = fastrand::i64(1..);
        let begin = "UPDATE meta SET files = ?1, boot = ?2, generation = ?3, quiet = ?4, token = max(token, ?5)";
        tx.execute(begin, params![files.text(), boot, generation, quiet, above(wall())])?;
        tx.execute_batch(&format!("PRAGMA user_version = {}", files.mark(boot)))?;
        grow(&beside(real, "-wal"))?;
    } else if (&*known, &*of) != (&*files.text(), boot) {
        if of == boot {
            has_one_name(real)?;
        }
        return Ok(Joined::Stale(header.token));
    }
    // It grows by steps from here on.
    limit_pages(&tx, 1)?;
    let clients = clients(&tx)?;
    tx.commit()?;
    wait_for_no_disk(&connection)?;
    if is_new {
        // Now the file itself says that it is in use, whatever becomes of its log.
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        // Who has opened it over another index since knows nothing of that.
        let now = Files::at(real, real);
        if now != files {
            generation::begin(real, now, header.token, presence, deadline)?;
            return Ok(Joined::Changed);
        }
    }
    Ok(Joined::Open(connection, generation, clients))
}

/// Whoever may have ended: each client, and holds that lapse by themselves.
fn clients(tx: &Connection) -> rusqlite::Result<HashMap<i64, Address>> {
    let all = "SELECT fifo, dev, ino FROM session WHERE fifo > 0 OR until <= ?1
               UNION SELECT fifo, dev, ino FROM observer";
    let client = |row: &Row<'_>| Address::read(row).map(|of| (of.fifo, of));
    tx.prepare(all)?.query_map([now()], client)?.collect()
}

pub(crate) fn connect(real: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
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
fn wait_for_no_disk(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA synchronous = OFF")
}

fn limit_log(connection: &Connection, pages: i64) -> rusqlite::Result<()> {
    connection.query_row(&format!("PRAGMA wal_autocheckpoint = {pages}"), [], |_| Ok(()))
}

/// At least as many as there are.
fn limit_pages(connection: &Connection, pages: i64) -> rusqlite::Result<()> {
    connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
}

/// Gives the log its room. Where that cannot be asked for, it grows as it is written.
fn grow(log: &Path) -> Result<()> {
    let of = |e: Errno| error::of_io(&e.into(), log, "cannot be made large enough");
    let log = open(log, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()).map_err(of)?;
    match fallocate(&log, FallocateFlags::empty(), 0, LOG_BYTES) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        grown => grown.map_err(of),
    }
}
