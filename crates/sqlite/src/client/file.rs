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
use rusqlite::{Connection, OptionalExtension, Row, ffi};
use rustix::fs::{Access, access, statvfs};
use scopeguard::guard;

use crate::client::connect::{SHORT_LOG_PAGES, connect, limit_log, limit_pages, wait_for_no_disk};
use crate::client::fifo::Address;
use crate::client::generation::{self, Files, Header, Meta, Opener};
use crate::client::place;
use crate::client::presence::Presence;
use crate::client::time::{now, wait_until};
use crate::client::upgrade;
use crate::error;
use crate::names::beside;

/// By how many pages the file may grow at once, and how much of the disk must be free for that: its log has to be written
/// back into it later, or nothing could be renewed.
const STEP_PAGES: i64 = 512;
const STEP_BYTES: u64 = 4 << 20;
/// How long opening may wait for others.
pub(crate) const OPENING: Duration = Duration::from_secs(3);
/// How often it is looked whether the log is still there, in nanoseconds.
const LOOK: i64 = 50_000_000;

/// An open file.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// The path without links: what the names of FIFOs are made of.
    pub(crate) real: PathBuf,
    /// The path of the log's index.
    index: PathBuf,
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
        let opener = Opener { boot: &boot, presence: &presence, own, deadline };
        wait_until(deadline);
        // Once it takes two turns to make it, and one to see that others have.
        let mut turns = 0..3;
        while turns.next().is_some() || Moment::now() < deadline {
            let (looked, files, joined) = {
                // Else it could be with the old file and the new index: see `generation`.
                let _among = presence.among_others(deadline)?;
                let (looked, files) = (now(), Files::at(path, &real));
                (looked, files, join(&real, files, &boot))
            };
            let token = match joined {
                Ok(Joined::Open(connection, generation, clients)) => {
                    // Those that were joined: a later look may see others.
                    let (path, index, looked) = (path.into(), beside(&real, "-shm"), Cell::new(looked));
                    return Ok(File { path, real, index, connection, presence, clients, files, generation, looked });
                }
                Ok(Joined::Stale(token)) => token,
                Ok(Joined::Changed) => continue,
                Ok(Joined::Earlier) => {
                    upgrade::begin(&real, files, &opener)?;
                    continue;
                }
                // Parts of two generations do not fit together.
                Err(_) if Files::at(path, &real) != files => continue,
                Err(e) => return Err(e),
            };
            generation::begin(&real, files, token, &opener)?;
        }
        Err(Error::new(ErrorKind::Unavailable, format!("{} is replaced again and again", path.display())))
    }

    /// Whether the paths still lead to the files that were opened. SQLite would go on in deleted ones, beside the client that made
    /// them anew. That one always has another main file and another index, so only these are looked at each time: who has only lost a
    /// log goes on with all others that have it open, for a moment.
    pub(crate) fn is_current(&self) -> bool {
        let now = now();
        if now - self.looked.get() < LOOK {
            return self.files.begin_and_end_at(&self.path, &self.index);
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

    /// Has the file begun anew: what is in it is not what we wrote. `own`: the longest of our leases in it.
    pub(crate) fn replace(&self, own: i64, deadline: Moment) -> Result<()> {
        let token = "SELECT token FROM meta";
        let token = self.connection.query_row(token, [], |row| row.get(0)).unwrap_or(0);
        let opener = Opener { boot: &place::boot()?, presence: &self.presence, own, deadline };
        generation::begin(&self.real, self.files, token, &opener)
    }
}

/// What is to be done with the file before any client opens it. SQLite uses whatever index is beside a file: with one that belongs to another
/// file, it cuts that under the clients of this process, or drops their locks in it.
fn unfit(real: &Path, files: Files, boot: &str) -> Result<Option<Joined>> {
    if !files.is_there() {
        return Ok(Some(Joined::Stale(0)));
    }
    let mark = files.mark(boot);
    if files.are_complete() && Header::has_mark(real, mark) {
        return Ok(None);
    }
    let header = match Header::read(real) {
        // Somebody may write it back just now.
        Err(_) if files.are_complete() => return Ok(None),
        header => header.map_err(|e| error::of(&e, real))?,
    };
    if files.are_complete() && !header.is_alone(mark, boot) {
        return Ok(None);
    }
    if header.is_earlier() {
        return Ok(Some(Joined::Earlier));
    }
    header.check(real)?;
    // It has been used, perhaps by a client that still does.
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

fn join(real: &Path, files: Files, boot: &str) -> Result<Joined> {
    if let Some(unfit) = unfit(real, files, boot)? {
        return Ok(unfit);
    }
    match try_to_join(real, files, boot) {
        Ok(joined) => Ok(joined),
        Err(Failed::Other(e)) => Err(e),
        Err(Failed::Sqlite(e)) => match Header::read(real) {
            // What a power cut has left, or what a file and the log of another make together. No client has used that.
            Ok(header) if header.is_of_others(files.mark(boot)) => Ok(Joined::Stale(header.token)),
            Ok(header) if header.is_earlier() => Ok(Joined::Earlier),
            _ => Err(error::of(&e, real)),
        },
    }
}

fn try_to_join(real: &Path, files: Files, boot: &str) -> std::result::Result<Joined, Failed> {
    let mut connection = connect(real)?;
    // SQLite opens for reading what it may not write.
    if access(real, Access::WRITE_OK).is_err() {
        return Err(Failed::Sqlite(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_READONLY), None)));
    }
    // Nothing but the file itself is open yet.
    if !files.begin_at(real) {
        return Ok(Joined::Changed);
    }
    // In one transaction: each locks the index anew.
    let tx = connection.transaction()?;
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
    let Some((known, of, generation)) = tx.query_row(meta, [], read).optional()? else { return Ok(Joined::Stale(0)) };
    if (&*known, &*of) != (&*files.text(), boot) {
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
    Ok(Joined::Open(connection, generation, clients))
}

/// Whoever may have ended: each client, and holds that lapse by themselves.
fn clients(tx: &Connection) -> rusqlite::Result<HashMap<i64, Address>> {
    let all = "SELECT fifo, dev, ino FROM session WHERE fifo > 0 OR until <= ?1
               UNION SELECT fifo, dev, ino FROM observer";
    let client = |row: &Row<'_>| Address::read(row).map(|of| (of.fifo, of));
    tx.prepare(all)?.query_map([now()], client)?.collect()
}
