//! The three files that make up a generation, and the begin of a new one, which never happens in
//! files that another client may still use.
//!
//! - The new files are complete and in use before a path leads to them. A file that waited to be
//!   taken into use could be taken by two clients, each with an index of its own, if somebody
//!   deleted the first one's index at that moment: both would write into one log.
//! - While the three files are moved, an empty file of the store is at the path, which knows the
//!   last token: a client that is killed at that time leaves this file.
//! - No client opens the files meanwhile, nor any index beside a file that is not in use with it.
//!   SQLite uses whatever index is there, and recognises the open files of its process by the main
//!   file: it would cut the index under the other clients of its process, or drop their locks.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind::NotFound};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::time::UNIX_EPOCH;

use leasehold_core::backend::Moment;
use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Result, StoreId};
use rusqlite::{Connection, OpenFlags, params};

use crate::client::connect::{connect, grow, wait_for_no_disk};
use crate::client::presence::Presence;
use crate::client::time::{now, wall};
use crate::client::tokens::above;
use crate::error;
use crate::names::beside;

/// The `application_id` of the store's files.
pub(crate) const APPLICATION: i64 = 0x4C65_6173;
/// The low byte of `user_version`. The bits above it are a mark of the files that belong together
/// and of the boot.
pub(crate) const VERSION: i64 = 1;
/// The size of a page in bytes, which is the least that a transaction writes. Several rows with
/// names of usual length fit into one page.
const PAGE: i64 = 2048;
/// The number of bytes in a new file that are reserved for rows: a full disk cannot refuse them
/// later.
const ROOM: u32 = 1 << 18;

/// The file, its log and the log's index. Each is identified by its device, its inode, and the time
/// when it was made (0 where the file system does not know it). The inode alone does not suffice:
/// the number of a deleted file is soon another's, and a restored file would then seem to belong to
/// the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Files([Option<(u64, u64, u64)>; 3]);

impl Files {
    /// Identifies the files that are there now. It does not open them: closing one would drop
    /// SQLite's locks, as POSIX demands.
    pub(crate) fn at(path: &Path, real: &Path) -> Files {
        Files([
            identity(path),
            identity(&beside(real, "-wal")),
            identity(&beside(real, "-shm")),
        ])
    }

    /// Returns whether the main file is still at this path.
    pub(crate) fn begin_at(&self, path: &Path) -> bool {
        identity(path) == self.0[0]
    }

    /// Returns whether the main file and the index are still at these paths. A new generation
    /// always begins with other ones, and its own index stays there even if somebody puts an old
    /// main file back.
    pub(crate) fn begin_and_end_at(&self, path: &Path, index: &Path) -> bool {
        self.begin_at(path) && identity(index) == self.0[2]
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0[0].is_some()
    }

    pub(crate) fn are_complete(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    /// The identities in the form of the table `meta`.
    pub(crate) fn text(&self) -> String {
        format!("{:?}", &self.0[..if fault("Q1") { 1 } else { 3 }])
    }

    /// The `user_version` of a main file that this boot uses together with its log and index.
    pub(crate) fn mark(&self, boot: &str) -> i64 {
        self.mark_in(boot, VERSION)
    }

    /// That mark, for tables of this version.
    pub(crate) fn mark_in(&self, boot: &str, version: i64) -> i64 {
        let text = self.text() + boot;
        let hash = text
            .bytes()
            .fold(0i64, |hash, byte| (hash * 31 + i64::from(byte)) % 0x7F_FFFE);
        (hash + 1) << 8 | version
    }

    /// Returns whether the main file is another one than this text of [`text`](Files::text) says,
    /// and the log is the one that it says.
    pub(crate) fn has_the_log_of_another(&self, text: &str) -> bool {
        let [main, log, _] = self.0;
        log.is_some()
            && text.contains(&format!("{log:?}"))
            && !text.starts_with(&format!("[{main:?}"))
    }

    pub(crate) fn has_log(&self) -> bool {
        self.0[1].is_some()
    }
}

/// The identity of the file at a path. A deleted file that is mounted there by itself does not
/// count: others may have made it anew.
fn identity(path: &Path) -> Option<(u64, u64, u64)> {
    let file = fs::metadata(path).ok().filter(|file| file.nlink() > 0)?;
    let made = file
        .created()
        .ok()
        .and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    Some((
        file.dev(),
        file.ino(),
        made.map_or(0, |made| made.as_nanos() as u64),
    ))
}

/// A client that opens the file, and its conditions.
pub(crate) struct Opener<'a> {
    pub(crate) boot: &'a str,
    pub(crate) presence: &'a Presence,
    /// The longest of its leases, in nanoseconds, in files that it has used until now.
    pub(crate) own: i64,
    /// The moment until which others are waited for.
    pub(crate) deadline: Moment,
    /// The client begins no files if another client has a lease.
    pub(crate) yields: bool,
}

/// The facts about a generation that a transaction needs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Meta {
    /// The moment until which nothing is granted, in nanoseconds.
    pub(crate) quiet: i64,
    /// The last token.
    pub(crate) token: i64,
}

/// The rights of the directory's group, for the files that are made in it.
pub(crate) fn group_bits(beside: &Path) -> u32 {
    let folder = beside.parent().and_then(|folder| fs::metadata(folder).ok());
    folder.map_or(0, |folder| folder.permissions().mode()) & 0o060
}

/// The description that a file has of itself.
pub(crate) struct Header {
    application: i64,
    version: i64,
    /// The version of the layout of the tables.
    schema: i64,
    tables: i64,
    /// The files that belong together, and the boot whose times are in them. They are known as far
    /// as they can be read.
    files: Option<String>,
    boot: Option<String>,
    pub(crate) kept: Kept,
}

/// The facts that new files take over from the former ones.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    /// The last token; 0 if it is not known.
    pub(crate) token: i64,
    /// The identity of the store; `None` if the file has none.
    pub(crate) store: Option<StoreId>,
}

pub(crate) fn immutable(real: &Path) -> rusqlite::Result<Connection> {
    let bytes = real.as_os_str().as_bytes().iter();
    let uri =
        bytes.fold("file:".to_owned(), |uri, byte| format!("{uri}%{byte:02X}")) + "?immutable=1";
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(uri, flags)
}

impl Header {
    /// Reads the header of a file without its log. It takes no lock, and makes no file beside it.
    pub(crate) fn read(real: &Path) -> rusqlite::Result<Header> {
        Header::of(&immutable(real)?)
    }

    /// Returns whether the file says that it is used together with the files of this mark. Only its
    /// first page is read, without a lock.
    pub(crate) fn has_mark(real: &Path, mark: i64) -> bool {
        let read = |file: Connection| {
            file.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))
        };
        immutable(real)
            .and_then(read)
            .is_ok_and(|version| version == mark)
    }

    /// Reads the header through a connection, with the changes in the log.
    pub(crate) fn of(connection: &Connection) -> rusqlite::Result<Header> {
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let application = number("PRAGMA application_id")?;
        let version = number("PRAGMA user_version")?;
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        let read = |columns: &str| {
            let meta = format!("SELECT {columns} FROM meta");
            connection.query_row(&meta, [], |row| {
                let store: Option<String> = row.get(3)?;
                let store = store.and_then(|id| id.parse().ok());
                let token = row.get(2)?;
                Ok((row.get(0)?, row.get(1)?, Kept { token, store }))
            })
        };
        let (files, boot, kept) = read("files, boot, token, store")
            // A file of an earlier build has no such column.
            .or_else(|_| read("files, boot, token, NULL"))
            .unwrap_or_default();
        Ok(Header {
            application,
            version,
            schema: version & 0xFF,
            tables,
            files,
            boot,
            kept,
        })
    }

    /// Fails unless the file is the store's, in this version, or empty.
    pub(crate) fn check(&self, file: &Path) -> Result<()> {
        let what = match (self.application, self.schema) {
            (APPLICATION, VERSION) => return Ok(()),
            (APPLICATION, 0) => {
                "another program has set its user_version, by which Leasehold knows what is in it, to 0. End all its users, and \
                 delete it with -wal and -shm; tokens keep rising"
                    .to_owned()
            }
            (APPLICATION, other) => format!(
                "it is another version's (schema {other}; this one makes schema {VERSION}): use that one; or end all its users, and \
                 delete it with -wal and -shm; tokens keep rising"
            ),
            (0, 0) if self.version == 0 && self.tables == 0 => return Ok(()),
            _ => "it is another program's database".to_owned(),
        };
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("{} cannot be used: {what}", file.display()),
        ))
    }

    /// Returns whether the file is the store's, and not used together with the files of this mark.
    pub(crate) fn is_of_others(&self, mark: i64) -> bool {
        self.application == APPLICATION && self.schema == VERSION && self.version != mark
    }

    /// Returns whether the file is the store's, and used together with these files by clients that
    /// see another boot.
    pub(crate) fn is_of_another_boot(&self, files: Files, boot: &str) -> bool {
        self.application == APPLICATION
            && self.schema == VERSION
            && self.files.as_ref() == Some(&files.text())
            && self.boot.as_deref().is_some_and(|of| of != boot)
    }

    /// Returns whether the file is the store's, and has never been used, or was used in this boot
    /// but not together with the files of this mark.
    pub(crate) fn is_alone(&self, mark: i64, boot: &str) -> bool {
        self.is_of_others(mark) && (self.version == VERSION || self.boot.as_deref() == Some(boot))
    }
}

/// Keeps the index of new files in use.
pub(crate) struct Begun {
    _connection: Connection,
}

/// Replaces these files by new ones, unless another client has replaced them already. They have to
/// be the store's, or missing. The caller looks again which files are there afterwards, and keeps
/// the answer until it has opened them: the first program that opens an index builds it anew from
/// the log that it has. A foreign program may have opened the former log just before the move, and
/// the index just after it.
pub(crate) fn begin(
    real: &Path,
    old: Files,
    kept: &Kept,
    opener: &Opener<'_>,
) -> Result<Option<Begun>> {
    let _alone = opener.presence.alone(opener.deadline)?;
    if Files::at(real, real) != old {
        return Ok(None);
    }
    let new = beside(real, "-new");
    let empty = beside(real, "-empty");
    let remove_them = || remove_all(&new).and_then(|()| remove(&empty));
    let done = remove_them()
        .and_then(|()| make(&empty, real, kept))
        .and_then(|()| make(&new, real, kept))
        .and_then(|()| replace(real, &new, &empty, opener));
    if done.is_err() {
        let _ = remove_them();
    }
    done
}

/// Takes the new files into use, and moves them into the place of those that are there. A cleaner
/// may remove the new files meanwhile: this function then returns `None`, and the caller begins
/// again.
fn replace(real: &Path, new: &Path, empty: &Path, opener: &Opener<'_>) -> Result<Option<Begun>> {
    let (mut connection, grown) = match prepare(new) {
        Err(_) if !new.exists() => return Ok(None),
        prepared => prepared?,
    };
    let files = Files::at(new, new);
    if !files.are_complete() {
        return Ok(None);
    }
    // After the move of the empty file nobody is granted anything in the old file, and every lease
    // in it has begun. If this client does not finish, the next one finds a file that is not in
    // use, and the last token. A lease that is announced between the check below and the move is
    // waited for in the new files, and its hold is lost.
    if opener.yields && opener.presence.longest_of_others()? > 0 {
        return Err(error::of_another_boot(real));
    }
    if !is_moved(empty, real)? {
        return Ok(None);
    }
    // This client's own leases count, too: its guards may not have been told of their loss yet.
    let longest = opener.presence.longest_of_others()?.max(opener.own);
    let quiet = if longest == 0 {
        0
    } else {
        now().saturating_add(longest)
    };
    match take_into_use(&mut connection, files, opener.boot, quiet) {
        Err(_) if Files::at(new, new) != files => return Ok(None),
        used => used.map_err(|e| error::of(&e, new))?,
    }
    // The connection is not used any more: it would look for its files under the former names.
    let begun = Begun {
        _connection: connection,
    };
    // In this order a foreign program that opens the files meanwhile builds no new index from the
    // old log, and does not find the new file beside the old log.
    for ending in ["-wal", "-shm", ""] {
        if !is_moved(&beside(new, ending), &beside(real, ending))? {
            return Ok(None);
        }
    }
    // If the disk was too full for both generations, the old one has gone now. If the disk still
    // is, the next client uses the files as they are.
    if !grown {
        grow(&beside(real, "-wal"))?;
    }
    Ok(Some(begun))
}

/// Reserves room in the new file, and makes its log and index: they keep their identity under
/// another name. The flag says whether the log has its room, too.
fn prepare(new: &Path) -> Result<(Connection, bool)> {
    let open = || {
        let connection = connect(new)?;
        wait_for_no_disk(&connection)?;
        connection.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
        connection.execute_batch(&format!(
            "CREATE TABLE room (room); INSERT INTO room VALUES (zeroblob({ROOM})); DROP TABLE room"
        ))?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        // The first read makes the log and the index.
        Header::of(&connection).map(|_| connection)
    };
    let connection = open().map_err(|e| error::of(&e, new))?;
    let grown = grow(&beside(new, "-wal"));
    Ok((connection, grown.is_ok()))
}

/// Moves a file. Returns `false` if it is not there any more.
pub(crate) fn is_moved(from: &Path, to: &Path) -> Result<bool> {
    match fs::rename(from, to) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == NotFound => Ok(false),
        Err(e) => Err(error::of_io(&e, to, "cannot be replaced")),
    }
}

fn take_into_use(
    connection: &mut Connection,
    files: Files,
    boot: &str,
    quiet: i64,
) -> rusqlite::Result<()> {
    let tx = connection.transaction()?;
    let begin = "UPDATE meta SET files = ?1, boot = ?2, generation = ?3, quiet = ?4, token = max(token, ?5)";
    tx.execute(
        begin,
        params![files.text(), boot, fastrand::i64(1..), quiet, above(wall())],
    )?;
    tx.execute_batch(&format!("PRAGMA user_version = {}", files.mark(boot)))?;
    tx.commit()?;
    // With this checkpoint the main file itself says that it is in use, even if its log gets lost.
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

pub(crate) fn remove_all(path: &Path) -> Result<()> {
    ["", "-wal", "-shm"]
        .iter()
        .try_for_each(|ending| remove(&beside(path, ending)))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != NotFound => Err(error::of_io(&e, path, "cannot be removed")),
        _ => Ok(()),
    }
}

/// Makes a file that no client uses, with the owner and the rights of the old one.
fn make(new: &Path, real: &Path, kept: &Kept) -> Result<()> {
    create(new, real)?;
    match fill(new, kept) {
        // A cleaner has removed the file, which its next user notices.
        Err(_) if !new.exists() => Ok(()),
        filled => filled.map_err(|e| error::of(&e, new)),
    }
}

/// Makes an empty file with the owner and the rights of another one.
pub(crate) fn create(new: &Path, like: &Path) -> Result<()> {
    let create = || -> io::Result<()> {
        // A new file is no link that somebody has put there, and later changes of the path do not
        // affect the open file.
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(new)?;
        match fs::metadata(like) {
            Ok(old) => {
                // Only root may give the file to the old owner; another user becomes its owner.
                let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
                file.set_permissions(old.permissions())
            }
            // Members of the group that may make files in the directory share the file. SQLite
            // makes its other files with the rights of the main file.
            Err(_) => match group_bits(like) {
                0 => Ok(()),
                group => file.set_permissions(Permissions::from_mode(0o600 | group)),
            },
        }
    };
    create().map_err(|e| error::of_io(&e, new, "cannot be made"))
}

fn fill(new: &Path, kept: &Kept) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let file = Connection::open_with_flags(new, flags)?;
    file.execute_batch(&format!("PRAGMA page_size = {PAGE}"))?;
    file.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
    file.execute_batch(&format!(
        "PRAGMA synchronous = OFF; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}"
    ))?;
    file.execute_batch(include_str!("../schema.sql"))?;
    let meta = "INSERT INTO meta VALUES ('', '', 0, 0, ?1, ?2)";
    let store = kept.store.as_ref().map(StoreId::as_str);
    file.execute(meta, params![kept.token.max(0), store])
        .map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_deleted_file_has_no_identity_where_a_path_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let file = File::create(&path).unwrap();
        // A mount of the file leads to it as this does.
        let mount = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert!(identity(&path).is_some() && identity(Path::new(&mount)) == identity(&path));
        fs::remove_file(&path).unwrap();
        assert!(fs::metadata(&mount).is_ok() && identity(Path::new(&mount)).is_none());
    }
}
