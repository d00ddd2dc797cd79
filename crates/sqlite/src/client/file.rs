//! The file on its disk: it is checked, opened, and checked again later, since another file may be
//! in its place.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use leasehold_core::backend::{Identity, Moment};
use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Result, StoreId};
use rusqlite::{Connection, OptionalExtension, Row, ffi};
use rustix::fs::{Access, access, statvfs};
use scopeguard::guard;

use crate::client::completed::{CompletedFile, Wanted};
use crate::client::connect::{SHORT_LOG_PAGES, connect, limit_log, limit_pages, wait_for_no_disk};
use crate::client::fifo::Address;
use crate::client::generation::{self, Begun, Files, Header, Kept, Meta, Opener};
use crate::client::identity;
use crate::client::place;
use crate::client::presence::Presence;
use crate::client::time::{now, wait_until};
use crate::error;
use crate::names::beside;

/// The number of pages by which the file may grow at once, and the number of bytes of the disk that
/// must be free for that: the log has to be written back into the file later, or nothing could be
/// renewed.
const STEP_PAGES: i64 = 512;
const STEP_BYTES: u64 = 4 << 20;
/// The time for which opening may wait for others.
pub(crate) const OPENING: Duration = Duration::from_secs(3);
/// The time after which an opening client tries again.
const AGAIN: Duration = Duration::from_millis(10);
/// The number of the generation in place of a file that nobody may use any more.
const NOTHING: i64 = 0;
/// The interval in which the log is looked for, in nanoseconds.
const LOOK: i64 = 50_000_000;

/// An open file.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    /// The path without links, from which the names of FIFOs are made.
    pub(crate) real: PathBuf,
    /// The path of the log's index.
    index: PathBuf,
    pub(crate) connection: Connection,
    pub(crate) presence: Presence,
    /// The clients in the file when it was opened, by their FIFOs, and holds that had ended.
    pub(crate) clients: HashMap<i64, Address>,
    files: Files,
    generation: i64,
    /// The moment of the last look at all three files.
    looked: Cell<i64>,
    /// The boot of the machine.
    boot: String,
    /// The second file, once it was needed and is there.
    completed: RefCell<Option<CompletedFile>>,
}

/// The outcome of opening the files that were there.
enum Joined {
    Open(Generation),
    /// The files were replaced or completed meanwhile, by another client or by this one.
    Changed,
    /// The files do not belong together: no client may use them any more.
    Stale(Kept),
    /// The files belong together, and are in use by clients that see another boot.
    OfAnotherBoot(Kept),
}

/// Files that belong together, and were opened.
struct Generation {
    connection: Connection,
    number: i64,
    /// The clients in the file, by their FIFOs, and holds that had ended.
    clients: HashMap<i64, Address>,
    /// The identity of the store, if the file has one.
    store: Option<StoreId>,
}

/// The error of files that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Failed {
    Sqlite(#[from] rusqlite::Error),
    Other(#[from] Error),
}

impl File {
    /// Opens the file. It is begun anew if there is none, if it is of another boot, or if it does
    /// not belong to the files beside it any more: the new file grants nothing until every lease of
    /// a living client may have ended, in whichever files. `before` is the lock by which others
    /// know of this client's leases in files that it used until now, and the longest of those
    /// leases. Others are waited for until the deadline. A client that only `looks` begins no
    /// files: a file that nobody may use any more is empty for it. A file of another store than
    /// that of `identity` is refused.
    pub(crate) fn open(
        path: &Path,
        identity: &Identity,
        before: Option<(&Presence, i64)>,
        looks: bool,
        deadline: Moment,
    ) -> Result<File> {
        let boot = place::boot()?;
        let real = place::real(path)?;
        let folder = real.parent().unwrap_or(Path::new("/"));
        let presence = Presence::open(&real, folder, before.map(|(presence, _)| presence))?;
        let own = before.map_or(0, |(_, longest)| longest);
        let stays = before.is_some_and(|(before, _)| presence.is_where(before));
        let opener = Opener {
            boot: &boot,
            presence: &presence,
            own,
            deadline,
            yields: false,
        };
        wait_until(deadline);
        // There are at least three turns: two to make the file once and open it, and one to see
        // that another client has made it.
        let mut turns = 0..3;
        let mut _begun = None;
        while turns.next().is_some() || Moment::now() < deadline {
            let (looked, files, joined) = {
                // Without this lock the old file could be opened with the new index: see
                // `generation`.
                let _among = presence.among_others(deadline)?;
                let looked = now();
                let files = Files::at(path, &real);
                (looked, files, join(&real, files, &boot))
            };
            // The identities are those of the files that were joined: a later look may see others.
            let open = |presence, generation: Generation| {
                if let Some(id) = &generation.store {
                    identity.renew(id);
                }
                File {
                    path: path.into(),
                    index: beside(&real, "-shm"),
                    real: real.clone(),
                    connection: generation.connection,
                    presence,
                    clients: generation.clients,
                    files,
                    generation: generation.number,
                    looked: Cell::new(looked),
                    boot: boot.clone(),
                    completed: RefCell::default(),
                }
            };
            let is_ours = |found: Option<&StoreId>| {
                identity::check(identity, found, stays).map_err(|e| e.in_context(path.display()))
            };
            let mut yields = false;
            let mut kept = match joined {
                Ok(Joined::Open(mut generation)) => {
                    is_ours(generation.store.as_ref())?;
                    if generation.store.is_none() && !looks {
                        let id = identity::fresh(identity);
                        // Nothing is wrong with a file without it, and the next program tries again.
                        generation.store = identity::give(&mut generation.connection, id).ok();
                    }
                    return Ok(open(presence, generation));
                }
                Ok(Joined::OfAnotherBoot(_)) if presence.longest_of_others()? > 0 => {
                    return Err(error::of_another_boot(path));
                }
                Ok(Joined::OfAnotherBoot(kept)) => {
                    yields = true;
                    kept
                }
                Ok(Joined::Stale(kept)) => kept,
                Ok(Joined::Changed) => continue,
                // The files were replaced meanwhile: parts of two generations do not fit together.
                Err(_) if Files::at(path, &real) != files => continue,
                Err(e) if is_transient(&e, &real, files, &boot) && Moment::now() < deadline => {
                    thread::sleep(AGAIN);
                    continue;
                }
                Err(e) => return Err(e),
            };
            is_ours(kept.store.as_ref())?;
            if looks {
                let nothing = Generation {
                    connection: empty().map_err(|e| error::of(&e, path))?,
                    number: NOTHING,
                    clients: HashMap::new(),
                    store: kept.store,
                };
                return Ok(open(presence, nothing));
            }
            kept.store.get_or_insert_with(|| identity::fresh(identity));
            let opener = Opener { yields, ..opener };
            _begun = generation::begin(&real, files, &kept, &opener)?;
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} is replaced again and again", path.display()),
        ))
    }

    /// Returns whether clients may use the file that was opened. A client that only looks may have
    /// nothing in its place.
    pub(crate) fn is_in_use(&self) -> bool {
        self.generation != NOTHING
    }

    /// Returns whether the paths still lead to the files that were opened. SQLite would go on in
    /// deleted files, beside the client that has made them anew. New files always have another main
    /// file and another index, so only these are looked at each time. A client that has lost only
    /// its log goes on for a moment, with all others that have that log open.
    pub(crate) fn is_current(&self) -> bool {
        let now = now();
        if now - self.looked.get() < LOOK {
            return self.files.begin_and_end_at(&self.path, &self.index);
        }
        self.looked.set(now);
        self.is_whole()
    }

    /// Returns whether the paths still lead to all three files that were opened.
    pub(crate) fn is_whole(&self) -> bool {
        let is_whole = Files::at(&self.path, &self.real) == self.files || fault("Q1");
        if !is_whole {
            self.looked.set(0);
        }
        is_whole
    }

    /// Reads the facts about the generation that was opened; `None` if the file is of another
    /// generation by now.
    pub(crate) fn meta(&self) -> rusqlite::Result<Option<Meta>> {
        let meta = "SELECT quiet, token FROM meta WHERE generation = ?1";
        let read = |row: &Row<'_>| {
            Ok(Meta {
                quiet: row.get(0)?,
                token: row.get(1)?,
            })
        };
        self.connection
            .prepare_cached(meta)?
            .query_row([self.generation], read)
            .optional()
    }

    /// The number of the generation that was opened.
    pub(crate) fn generation(&self) -> i64 {
        self.generation
    }

    /// The boot of the machine, in which the file was opened.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Uses the second file, that of completions; `None` if there is none. It is opened if it has
    /// to be, and opened again if its files were replaced meanwhile.
    pub(crate) fn with_completed<T>(
        &self,
        wanted: Wanted,
        work: impl FnOnce(&CompletedFile) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut open = self.completed.borrow_mut();
        if !open.as_ref().is_some_and(CompletedFile::is_whole) {
            *open = None;
            *open = CompletedFile::open(&self.real, &self.boot, &self.presence, wanted)?;
        }
        open.as_ref().map(work).transpose()
    }

    /// Begins a write transaction. Dropping the returned guard undoes the transaction unless it was
    /// [committed](File::commit).
    pub(crate) fn begin(&self) -> rusqlite::Result<impl Sized> {
        self.connection
            .prepare_cached("BEGIN IMMEDIATE")?
            .execute([])?;
        Ok(guard(&self.connection, |connection| {
            if !connection.is_autocommit() {
                let _ = connection.execute_batch("ROLLBACK");
            }
        }))
    }

    pub(crate) fn commit(&self) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached("COMMIT")?
            .execute([])
            .map(drop)
    }

    /// Lets the file grow by a step if the disk has room for it. Returns whether it may grow.
    pub(crate) fn may_grow(&self) -> bool {
        let free = self.real.parent().and_then(|folder| statvfs(folder).ok());
        let has_room =
            free.is_some_and(|free| free.f_bavail.saturating_mul(free.f_frsize) > STEP_BYTES);
        let pages = self
            .connection
            .query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0));
        has_room
            && pages.is_ok_and(|pages| limit_pages(&self.connection, pages + STEP_PAGES).is_ok())
    }

    /// Makes this client write the log back early from now on.
    pub(crate) fn keep_log_short(&self) -> rusqlite::Result<()> {
        limit_log(&self.connection, SHORT_LOG_PAGES)
    }

    /// Begins the file anew, because it lacks something that this client wrote. `own` is the
    /// longest of this client's leases in it. The caller keeps the answer until it has opened the
    /// new file.
    pub(crate) fn replace(
        &self,
        identity: &Identity,
        own: i64,
        deadline: Moment,
    ) -> Result<Option<Begun>> {
        let token = "SELECT token FROM meta";
        let token = self.connection.query_row(token, [], |row| row.get(0));
        let kept = Kept {
            token: token.unwrap_or(0),
            store: identity.id(),
        };
        let opener = Opener {
            boot: &place::boot()?,
            presence: &self.presence,
            own,
            deadline,
            yields: false,
        };
        generation::begin(&self.real, self.files, &kept, &opener)
    }
}

/// An empty database in place of a file that nobody may use any more. It has no generation, so a
/// client that writes turns to the file itself.
fn empty() -> rusqlite::Result<Connection> {
    let nothing = Connection::open_in_memory()?;
    nothing.execute_batch(include_str!("../schema.sql"))?;
    Ok(nothing)
}

/// Returns whether the index alone may be wrong, so that the error ends by itself. After the last
/// client has gone, a foreign program that had opened a former log may be the first to open this
/// index: it then builds the index from that log. After its end the next client builds it anew.
fn is_transient(e: &Error, real: &Path, files: Files, boot: &str) -> bool {
    e.kind() == ErrorKind::Corrupt && Header::has_mark(real, files.mark(boot))
}

/// Returns the outcome for files that no client may open; `None` if they may be opened. SQLite uses
/// whatever index is beside a file: if that belongs to another file, it cuts the index under the
/// clients of this process, or drops their locks in it.
fn unfit(real: &Path, files: Files, boot: &str) -> Result<Option<Joined>> {
    if !files.is_there() {
        return Ok(Some(Joined::Stale(Kept::default())));
    }
    let mark = files.mark(boot);
    if files.are_complete() && Header::has_mark(real, mark) {
        return Ok(None);
    }
    let header = match Header::read(real) {
        // Another client may be writing the log back at this moment.
        Err(_) if files.are_complete() => return Ok(None),
        header => header.map_err(|e| error::of(&e, real))?,
    };
    if files.are_complete() && !header.is_alone(mark, boot) {
        return Ok(None);
    }
    header.check(real)?;
    // The file has been used, perhaps by a client that still uses it.
    has_one_name(real)?;
    Ok(Some(Joined::Stale(header.kept)))
}

/// Refuses a hard link: the files that belong to it may be beside its other name, with locks that
/// are held.
fn has_one_name(real: &Path) -> Result<()> {
    if fs::metadata(real).is_ok_and(|file| file.nlink() > 1) {
        let what = "has another name, a hard link, and the files beside this one are not its own: use one name for it";
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{} {what}", real.display()),
        ));
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
            Ok(header) if header.is_of_another_boot(files, boot) => {
                Ok(Joined::OfAnotherBoot(header.kept))
            }
            // A power cut has left this, or a file stands beside the log of another one. No client
            // has used these together.
            Ok(header) if header.is_of_others(files.mark(boot)) => Ok(Joined::Stale(header.kept)),
            _ => Err(error::of(&e, real)),
        },
    }
}

fn try_to_join(real: &Path, files: Files, boot: &str) -> std::result::Result<Joined, Failed> {
    let mut connection = connect(real)?;
    // SQLite opens a file for reading if it may not write to it.
    if access(real, Access::WRITE_OK).is_err() {
        return Err(Failed::Sqlite(rusqlite::Error::SqliteFailure(
            ffi::Error::new(ffi::SQLITE_READONLY),
            None,
        )));
    }
    // Only the main file is open yet.
    if !files.begin_at(real) {
        return Ok(Joined::Changed);
    }
    // All reads are in one transaction, since each transaction locks the index anew.
    let tx = connection.transaction()?;
    let header = Header::of(&tx)?;
    header.check(real)?;
    if tx.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0))? != "wal" {
        return Ok(Joined::Stale(header.kept));
    }
    // The paths lead to the same files before and after opening, so these are the files that were
    // opened.
    if !files.are_complete() || Files::at(real, real) != files {
        return Ok(Joined::Changed);
    }
    let meta = "SELECT files, boot, generation FROM meta";
    let read = |row: &Row<'_>| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get(2)?,
        ))
    };
    let Some((known, of, number)) = tx.query_row(meta, [], read).optional()? else {
        return Ok(Joined::Stale(Kept::default()));
    };
    if known == files.text() && of != boot {
        return Ok(Joined::OfAnotherBoot(header.kept));
    }
    if known != files.text() {
        if of == boot {
            has_one_name(real)?;
        }
        return Ok(Joined::Stale(header.kept));
    }
    // The file grows by steps from here on.
    limit_pages(&tx, 1)?;
    let clients = clients(&tx)?;
    tx.commit()?;
    wait_for_no_disk(&connection)?;
    Ok(Joined::Open(Generation {
        connection,
        number,
        clients,
        store: header.kept.store,
    }))
}

/// The clients that may have ended, and the holds that have lapsed by themselves.
fn clients(tx: &Connection) -> rusqlite::Result<HashMap<i64, Address>> {
    let all = "SELECT fifo, dev, ino FROM session WHERE fifo > 0 OR until <= ?1
               UNION SELECT fifo, dev, ino FROM observer";
    let client = |row: &Row<'_>| Address::read(row).map(|of| (of.fifo, of));
    tx.prepare(all)?.query_map([now()], client)?.collect()
}
