//! The second file, `<file>-done`, with its log and its index: it keeps what outlives a boot. It is
//! made when something is first written into it.
//!
//! - Its three files belong together as those of the first file do, and are compared before each
//!   use. If one of them was deleted or replaced, or another boot has used them, the next client
//!   copies the content into new files, and moves these into their place: no index is ever opened
//!   beside a file or a log to which it does not belong, and no file is changed in which another
//!   client may still read.
//! - The new main file is moved first. A client that is killed then leaves it beside the former
//!   log. A log says in each of its transactions of which files it is, so the next client leaves
//!   that one out.
//! - It is written only under the write lock of the first file, by a connection of its own, so that
//!   its commit is over before that of the first file begins. Clients of former first files are
//!   kept out by the number of the generation, which is compared in each transaction.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use leasehold_core::backend::Moment;
use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, ErrorCode, Row, params};
use rustix::fs::{Access, access, fsync};
use scopeguard::guard;

use crate::client::connect::{connect, limit_log};
use crate::client::generation::{Files, create, immutable, is_moved, remove_all};
use crate::client::place;
use crate::client::presence::Presence;
use crate::client::time::{deadline, now, wall};
use crate::error;
use crate::names::beside;

/// The `application_id` of the second file.
const APPLICATION: i64 = 0x4C65_6144;
/// The version of the layout of its tables: the low byte of `user_version`, as in the first file.
const VERSION: i64 = 1;
/// The size of a page in bytes.
const PAGE: i64 = 4096;
/// The number of bytes from which on the log is written back.
const LOG_BYTES: u64 = 1 << 20;
/// The number of bytes that the log keeps when it begins again.
const KEPT_LOG_BYTES: i64 = 1 << 18;

/// The condition under which the second file is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// It is open already, or not there: nothing has to be opened.
    IfOpen,
    /// It is there.
    IfThere,
    /// It is made if it is not there.
    Made,
}

/// The open second file.
pub(crate) struct CompletedFile {
    pub(crate) connection: Connection,
    pub(crate) path: PathBuf,
    files: Files,
}

/// The description that a file has of itself.
struct Header {
    application: i64,
    version: i64,
    tables: i64,
    /// The files that belong together, if they can be read.
    files: Option<String>,
    boot: Option<String>,
}

impl Header {
    fn of(connection: &Connection) -> rusqlite::Result<Header> {
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        let meta = connection.query_row("SELECT files, boot FROM meta", [], read);
        let (files, boot) = meta.ok().unzip();
        Ok(Header {
            application: number("PRAGMA application_id")?,
            version: number("PRAGMA user_version")?,
            tables,
            files,
            boot,
        })
    }

    /// Fails unless the file is the store's second file, in this version, or empty.
    fn check(&self, path: &Path) -> Result<()> {
        let (kind, what) = match (self.application, self.version & 0xFF) {
            (APPLICATION, VERSION) => return Ok(()),
            (APPLICATION, other) => (
                ErrorKind::Internal,
                format!(
                    "it is another version's (schema {other}; this one makes schema {VERSION}): use that one; or end all its \
                     users, and delete it with -wal and -shm: work that is done begins anew then"
                ),
            ),
            (0, 0) if self.version == 0 && self.tables == 0 => return Ok(()),
            _ => (
                ErrorKind::Unsupported,
                "it is another program's database".to_owned(),
            ),
        };
        Err(Error::new(
            kind,
            format!("{} cannot be used: {what}", path.display()),
        ))
    }
}

/// The error of a statement on the second file that was not committed.
pub(crate) fn failed(e: &rusqlite::Error, path: &Path) -> Error {
    let what = match e.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Corrupt,
            "is damaged, or no SQLite database. It is not made anew by itself, since work that is done would be done again: \
             end all its users, and restore it, or delete it with -wal and -shm",
        ),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unavailable,
            "cannot be read or written. Was it, or -wal or -shm beside it, cut or changed by hand?",
        ),
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed,
        ) => (
            ErrorKind::Unavailable,
            "is locked by another process, and with it all work that is done once",
        ),
        None => (
            ErrorKind::Internal,
            "holds a completion that this version cannot read. A newer version may have written it, or somebody by hand",
        ),
        _ => return error::of(e, path),
    };
    let (kind, what) = what;
    Error::new(kind, format!("{} {what} ({e})", path.display()))
}

impl CompletedFile {
    /// Opens the second file of the file at this path without links; `None` if it is not there.
    pub(crate) fn open(
        real: &Path,
        boot: &str,
        presence: &Presence,
        wanted: Wanted,
    ) -> Result<Option<CompletedFile>> {
        let path = beside(real, "-done");
        let is_there = match fs::symlink_metadata(&path) {
            Ok(_) => true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(error::of_io(&e, &path, "cannot be looked at")),
        };
        if !is_there && wanted != Wanted::Made {
            return Ok(None);
        }
        if wanted == Wanted::IfOpen {
            return Err(Error::new(ErrorKind::Unavailable, "it is not open"));
        }
        let deadline = deadline();
        // As when the first file is opened: two turns to make it and open it, and one to see that
        // another client has made it.
        let mut turns = 0..3;
        let mut _begun = None;
        while turns.next().is_some() || Moment::now() < deadline {
            let (files, joined) = {
                let _among = presence.among_others(deadline)?;
                let files = Files::at(&path, &path);
                (files, join(&path, files, boot))
            };
            match joined {
                Ok(Some(open)) => return Ok(Some(open)),
                Ok(None) if !files.is_there() && wanted != Wanted::Made => return Ok(None),
                Ok(None) => {}
                // The files were replaced meanwhile: parts of two sets do not fit together.
                Err(_) if Files::at(&path, &path) != files => continue,
                Err(e) => return Err(e),
            }
            let alone = presence.alone(deadline)?;
            if Files::at(&path, &path) == files {
                _begun = begin(&path, real, files, boot, presence)?;
            }
            drop(alone);
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} is replaced again and again", path.display()),
        ))
    }

    /// Returns whether the paths still lead to all three files that were opened.
    pub(crate) fn is_whole(&self) -> bool {
        Files::at(&self.path, &self.path) == self.files
    }

    /// Runs one transaction that writes. The inner error is that of the work, and undoes it.
    pub(crate) fn write<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let of = |e| failed(&e, &self.path);
        let run = |sql: &str| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        run("BEGIN IMMEDIATE").map_err(of)?;
        let _undo = guard(&self.connection, |connection| {
            if !connection.is_autocommit() {
                let _ = connection.execute_batch("ROLLBACK");
            }
        });
        let value = work(&self.connection)?;
        run("UPDATE meta SET writes = writes + 1").map_err(of)?;
        run("COMMIT").map_err(|e| match e.sqlite_error_code() {
            Some(ErrorCode::SystemIoFailure) => error::of_commit(&e, &self.path),
            _ => failed(&e, &self.path),
        })?;
        Ok(value)
    }

    /// Writes the log back if it has become long. This waits for the disk.
    pub(crate) fn keep_log_short(&self) {
        let log = fs::metadata(beside(&self.path, "-wal"));
        if log.is_ok_and(|log| log.len() > LOG_BYTES) {
            // If this fails, the log only gets longer.
            let _ = self
                .connection
                .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }
}

/// Opens the files if they belong together and this boot has begun them; otherwise `None`.
fn join(path: &Path, files: Files, boot: &str) -> Result<Option<CompletedFile>> {
    if !files.is_there() && fs::symlink_metadata(path).is_err() {
        return Ok(None);
    }
    fits(path)?;
    let of = |e| failed(&e, path);
    let mark = files.mark_in(boot, VERSION);
    let version =
        |file: Connection| file.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0));
    let is_marked = immutable(path).and_then(version).is_ok_and(|it| it == mark);
    if !files.are_complete() || !is_marked {
        return Ok(None);
    }
    let connection = connect(path).map_err(of)?;
    tune(&connection).map_err(of)?;
    let header = Header::of(&connection).map_err(of)?;
    header.check(path)?;
    let belong = header.files == Some(files.text()) && header.boot.as_deref() == Some(boot);
    if !belong || Files::at(path, path) != files {
        return Ok(None);
    }
    Ok(Some(CompletedFile {
        connection,
        path: path.to_owned(),
        files,
    }))
}

/// Refuses what the first file is refused for: its directory is the same.
fn fits(path: &Path) -> Result<()> {
    let invalid = |what: &str| Error::new(ErrorKind::Invalid, format!("{} {what}", path.display()));
    match fs::symlink_metadata(path) {
        Ok(file) if file.is_symlink() => {
            return Err(invalid(
                "is a link, and the files beside it would not be its own",
            ));
        }
        Ok(file) if !file.is_file() => return Err(place::no_file(path)),
        Ok(file) if std::os::unix::fs::MetadataExt::nlink(&file) > 1 => {
            return Err(invalid(
                "has another name, a hard link, and the files beside this one are not its own: use one name for it",
            ));
        }
        Ok(_) => place::is_mounted_with_its_folder(path)?,
        Err(_) => return Ok(()),
    }
    access(path, Access::WRITE_OK).map_err(|e| {
        let what =
            "may not be written: the file, its directory or its file system is read-only for us";
        error::of_io(&e.into(), path, what)
    })
}

/// Makes its transactions outlive the process, and the boot unless the power fails.
fn tune(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA synchronous = NORMAL")?;
    // The log is written back while no lock waits for the disk.
    limit_log(connection, 0)?;
    let limit = format!("PRAGMA journal_size_limit = {KEPT_LOG_BYTES}");
    connection.query_row(&limit, [], |_| Ok(()))
}

/// Keeps the index of new files in use until they are opened.
struct Begun {
    _connection: Connection,
}

/// Copies the files that are there into new ones, and moves these into their place. Without any, the
/// new ones are empty. The caller keeps all others from opening them meanwhile.
fn begin(
    path: &Path,
    real: &Path,
    files: Files,
    boot: &str,
    presence: &Presence,
) -> Result<Option<Begun>> {
    let new = beside(path, "-new");
    remove_all(&new)?;
    let done = replace(path, real, &new, files, boot, presence);
    if !matches!(done, Ok(Some(_))) {
        let _ = remove_all(&new);
    }
    done
}

fn replace(
    path: &Path,
    real: &Path,
    new: &Path,
    files: Files,
    boot: &str,
    presence: &Presence,
) -> Result<Option<Begun>> {
    let of = |e: rusqlite::Error| failed(&e, path);
    let connection = if files.is_there() {
        copied(path, new, files)?
    } else {
        create(new, real)?;
        opened(new).map_err(of)?
    };
    let new_files = Files::at(new, new);
    if !new_files.are_complete() {
        return Ok(None);
    }
    take_into_use(&connection, new_files, boot).map_err(of)?;
    for ending in ["", "-wal", "-shm"] {
        if !is_moved(&beside(new, ending), &beside(path, ending))? {
            return Ok(None);
        }
    }
    // After a power failure the directory has either the old files or the new ones.
    let _ = fsync(&presence.folder);
    Ok(Some(Begun {
        _connection: connection,
    }))
}

/// Copies these files, and opens the copy. The log is left out if it is not that of the main file.
fn copied(path: &Path, new: &Path, files: Files) -> Result<Connection> {
    let of = |e: rusqlite::Error| failed(&e, path);
    let alone = immutable(path).and_then(|file| Header::of(&file));
    if let Ok(header) = &alone {
        header.check(path)?;
    }
    let known = alone.as_ref().ok().and_then(|header| header.files.clone());
    let is_of_another = known
        .as_ref()
        .is_some_and(|known| files.has_the_log_of_another(known));
    if files.has_log() && !is_of_another {
        copy(path, new, &["", "-wal"])?;
        let connection = opened(new).map_err(of)?;
        let header = Header::of(&connection).map_err(of)?;
        header.check(path)?;
        if known.is_none() || header.files == known {
            return sound(connection, path);
        }
        drop(connection);
        remove_all(new)?;
    }
    alone.map_err(of)?;
    copy(path, new, &[""])?;
    sound(opened(new).map_err(of)?, path)
}

/// Copies these parts. The main file's locks in this process end with that: its clients turn to the
/// new files.
fn copy(from: &Path, to: &Path, parts: &[&str]) -> Result<()> {
    for part in parts {
        let from = beside(from, part);
        let to = beside(to, part);
        create(&to, &from)?;
        let bytes = fs::File::open(&from).and_then(|mut from| {
            let mut to = fs::OpenOptions::new().write(true).open(&to)?;
            io::copy(&mut from, &mut to)
        });
        bytes.map_err(|e| error::of_io(&e, &from, "cannot be copied"))?;
    }
    Ok(())
}

/// Opens new files, and makes what they lack: the tables, the log and the index.
fn opened(new: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(new)?;
    connection.execute_batch(&format!("PRAGMA page_size = {PAGE}"))?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    tune(&connection)?;
    let tables = "SELECT count(*) FROM sqlite_schema";
    if connection.query_row(tables, [], |row| row.get::<_, i64>(0))? == 0 {
        make_tables(&connection)?;
    }
    Ok(connection)
}

/// Returns the connection if the content fits together.
fn sound(connection: Connection, path: &Path) -> Result<Connection> {
    let check = "PRAGMA quick_check(1)";
    let found = connection.query_row(check, [], |row| row.get::<_, String>(0));
    match found {
        Ok(found) if found == "ok" => Ok(connection),
        Ok(_) => {
            let damaged = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            Err(failed(&rusqlite::Error::SqliteFailure(damaged, None), path))
        }
        Err(e) => Err(failed(&e, path)),
    }
}

fn make_tables(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!("PRAGMA application_id = {APPLICATION}"))?;
    connection.execute_batch(include_str!("../completed.sql"))?;
    connection
        .execute("INSERT INTO meta VALUES ('', '', 0, 0)", [])
        .map(drop)
}

/// Removes what has ended, and says that this boot uses these files together. The content is in the
/// main file then, and on the disk.
fn take_into_use(connection: &Connection, files: Files, boot: &str) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let ended = "DELETE FROM done WHERE CASE boot WHEN ?1 THEN until <= ?2 ELSE wall <= ?3 END";
    connection.execute(ended, params![boot, now(), wall().as_millis() as i64])?;
    let begin = "UPDATE meta SET files = ?1, boot = ?2, generation = 0, writes = writes + 1";
    connection.execute(begin, params![files.text(), boot])?;
    connection.execute_batch(&format!(
        "PRAGMA user_version = {}; COMMIT",
        files.mark_in(boot, VERSION)
    ))?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}
