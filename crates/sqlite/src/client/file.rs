//! The file on its disk: whether it can be trusted there, how it is opened, and whether it is still the one that was.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::seam::Moment;
use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, TransactionBehavior, ffi, params};
use rustix::fs::{Access, FallocateFlags, Mode, OFlags, access, fallocate, open, statfs, statvfs};
use rustix::io::Errno;
use scopeguard::guard;

use crate::client::generation::{self, Files, Header, Meta};
use crate::client::presence::Presence;
use crate::client::time::{now, wait, wait_until};
use crate::error;
use crate::names::beside;

/// How many pages the log has when it is written back into the file, and how many bytes it has room for from the start, so
/// that a full disk refuses no renewal.
const LOG_PAGES: i64 = 512;
const LOG_BYTES: u64 = 2 << 20;
/// By how many pages the file may grow at once, and how much of the disk must be free for that: its log has to be written
/// back into it later, or nothing could be renewed.
const STEP_PAGES: i64 = 512;
const STEP_BYTES: u64 = 4 << 20;
/// How long opening may wait for others.
const OPENING: Duration = Duration::from_secs(3);
/// How often it is looked whether the log and its index are still there, in nanoseconds.
const LOOK: i64 = 50_000_000;
/// File systems on which locks, shared memory or FIFOs do not reach every user of a file: the numbers of statfs(2).
const REMOTE: [(i64, &str); 13] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFE53_4D42, "SMB2"),
    (0xFF53_4D42, "CIFS"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "FUSE"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x7375_7245, "Coda"),
];

/// An open file.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// The path without links: what the names of FIFOs are made of.
    pub(crate) real: PathBuf,
    pub(crate) connection: Connection,
    pub(crate) presence: Presence,
    files: Files,
    generation: i64,
    /// When all three were looked at.
    looked: Cell<i64>,
}

/// What came of opening the files that were there.
enum Joined {
    /// They are one generation, with this number.
    Open(Connection, i64),
    /// Others have replaced or completed them meanwhile, or we have.
    Changed,
    /// They are of another boot, or not those that belong together: no client may use them any more. With the last token.
    Stale(i64),
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
    /// `before`: what others know of our leases in files that we used until now.
    pub(crate) fn open(path: &Path, before: Option<&Presence>) -> Result<File> {
        let boot = boot()?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        stands_on_local_disk(folder)?;
        access(folder, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|e| error::of_io(&e.into(), folder, "is a directory in which we may make no files"))?;
        if fs::metadata(path).is_ok_and(|file| !file.is_file()) {
            return Err(Error::new(ErrorKind::Invalid, format!("{} is no file", path.display())));
        }
        let real = without_links(path)?;
        let presence = Presence::open(&real, real.parent().unwrap_or(folder), before)?;
        let deadline = Moment::now() + OPENING;
        wait_until(deadline);
        while Moment::now() < deadline {
            let files = Files::at(path, &real);
            let token = match join(&real, files, &boot, &presence) {
                Ok(Joined::Open(connection, generation)) => {
                    // Those that were joined: a later look may see others.
                    let looked = Cell::default();
                    return Ok(File { path: path.into(), real, connection, presence, files, generation, looked });
                }
                Ok(Joined::Stale(token)) => token,
                Ok(Joined::Changed) => continue,
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
        let is_whole = Files::at(&self.path, &self.real) == self.files;
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

    /// Has the file begun anew: what is in it is not what we wrote.
    pub(crate) fn replace(&self, deadline: Moment) -> Result<()> {
        let token = "SELECT token FROM meta";
        let token = self.connection.query_row(token, [], |row| row.get(0)).unwrap_or(0);
        generation::begin(&self.real, self.files, token, &self.presence, deadline)
    }
}

/// The last token if the file has to be begun anew before any client opens it.
fn stale_token(real: &Path, files: Files) -> Result<Option<i64>> {
    if !files.is_there() {
        return Ok(Some(0));
    }
    if files.are_complete() {
        return Ok(None);
    }
    let header = Header::read(real).map_err(|e| error::of(&e, real))?;
    header.check(real)?;
    // The client that opens a new one makes the files beside it. All others have been used, perhaps by a client that still does.
    if header.is_new() {
        return Ok(None);
    }
    has_one_name(real)?;
    Ok(Some(header.token))
}

/// Not a hard link: beside its other name may be the files that belong to it, with locks that are held.
fn has_one_name(real: &Path) -> Result<()> {
    if fs::metadata(real).is_ok_and(|file| file.nlink() > 1) {
        let what = "has another name, a hard link, and the files beside this one are not its own: use one name for it";
        return Err(Error::new(ErrorKind::Invalid, format!("{} {what}", real.display())));
    }
    Ok(())
}

fn join(real: &Path, files: Files, boot: &str, presence: &Presence) -> Result<Joined> {
    if let Some(token) = stale_token(real, files)? {
        return Ok(Joined::Stale(token));
    }
    match try_to_join(real, files, boot, presence) {
        Ok(joined) => Ok(joined),
        Err(Failed::Other(e)) => Err(e),
        Err(Failed::Sqlite(e)) => match Header::read(real) {
            // What a power cut has left, or what a file and the log of another make together. No client has used that.
            // Or a new file with one of the two beside it taken away, before it said that it is in use.
            Ok(header) if header.is_of_others(files.mark(boot)) || header.is_new() && error::is_misfit(&e) => {
                Ok(Joined::Stale(header.token))
            }
            _ => Err(error::of(&e, real)),
        },
    }
}

fn try_to_join(real: &Path, files: Files, boot: &str, presence: &Presence) -> std::result::Result<Joined, Failed> {
    let mut connection = connect(real)?;
    // SQLite opens for reading what it may not write.
    if access(real, Access::WRITE_OK).is_err() {
        return Err(Failed::Sqlite(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_READONLY), None)));
    }
    let header = Header::of(&connection)?;
    header.check(real)?;
    if connection.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0))? != "wal" {
        return Ok(Joined::Stale(header.token));
    }
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // The same before and after: it is those that we have opened.
    if !files.are_complete() || Files::at(real, real) != files {
        return Ok(Joined::Changed);
    }
    let meta = "SELECT files, boot, generation, token FROM meta";
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get(3)?));
    let known = tx.query_row(meta, [], read).optional()?;
    let Some((known, of, mut generation, token)) = known else { return Ok(Joined::Stale(0)) };
    if known.is_empty() {
        let others = presence.longest_of_others()?;
        let quiet = if others == 0 { 0 } else { now().saturating_add(others) };
        generation = fastrand::i64(1..);
        let begin = "UPDATE meta SET files = ?1, boot = ?2, generation = ?3, quiet = ?4";
        tx.execute(begin, params![files.text(), boot, generation, quiet])?;
        tx.execute_batch(&format!("PRAGMA user_version = {}", files.mark(boot)))?;
        grow(&beside(real, "-wal"))?;
        tx.commit()?;
        // Now the file itself says that it is in use, whatever becomes of its log.
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    } else if (known, &*of) != (files.text(), boot) {
        if of == boot {
            has_one_name(real)?;
        }
        return Ok(Joined::Stale(token));
    } else {
        drop(tx);
    }
    // It grows by steps from here on.
    limit_pages(&connection, 1)?;
    Ok(Joined::Open(connection, generation))
}

fn connect(real: &Path) -> rusqlite::Result<Connection> {
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
    // Nothing waits for the disk: what a power cut leaves is of another boot, and begun anew.
    connection.execute_batch("PRAGMA synchronous = OFF")?;
    connection.query_row(&format!("PRAGMA wal_autocheckpoint = {LOG_PAGES}"), [], |_| Ok(()))?;
    Ok(connection)
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

/// The file's path without links, also if it is not there yet.
fn without_links(path: &Path) -> Result<PathBuf> {
    let of = |e| error::of_io(&e, path, "cannot be found");
    match path.canonicalize() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
            let folder = path.parent().unwrap_or(Path::new("/")).canonicalize().map_err(of)?;
            Ok(folder.join(path.file_name().unwrap_or_default()))
        }
        found => found.map_err(of),
    }
}

/// This boot of this machine, whose CLOCK_BOOTTIME all processes share: none of them may live in shifted time.
fn boot() -> Result<String> {
    let unsupported = |what: &str| Error::new(ErrorKind::Unsupported, what);
    let shifts = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    if shifts.split_whitespace().any(|word| word.parse().is_ok_and(|shift: i64| shift != 0)) {
        return Err(unsupported(
            "this process lives in a time namespace: leases in a file need the machine's own clock",
        ));
    }
    let id =
        fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|e| match error::no_descriptor_is_left() {
            true => error::too_many_open("/proc cannot be read"),
            false => unsupported("/proc does not say which boot this is").with_source(e),
        })?;
    Ok(id.trim().to_owned())
}

fn stands_on_local_disk(folder: &Path) -> Result<()> {
    let disk = statfs(folder).map_err(|e| error::of_io(&e.into(), folder, "is a directory that cannot be used"))?;
    // The kernel's number is 32 bits wide, whatever holds it here.
    let kind = disk.f_type as i64 & 0xFFFF_FFFF;
    let Some((_, name)) = REMOTE.iter().find(|(number, _)| *number == kind) else { return Ok(()) };
    let what = format!("{} is on {name}: a lock file of several processes needs a local disk", folder.display());
    Err(Error::new(ErrorKind::Unsupported, what))
}
