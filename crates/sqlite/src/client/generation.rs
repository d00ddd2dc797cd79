//! The three files of which one generation consists, and how a new one is begun: never in files that another client may
//! still use.
//!
//! - The new ones are complete and in use before a path leads to them. A file that waits to be taken into use would be by two clients, each
//!   over an index of its own, if somebody deleted the first one's just then: both would write in one log.
//! - While the three are moved, an empty file of ours is at the path, which knows the last token: a client that is killed then leaves that.
//! - No client opens the files meanwhile, nor any index beside a file that is not in use with it. SQLite uses whatever is there, and knows
//!   what a process has open by the main file: it would cut the index under the other clients of its process, or drop their locks.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind::NotFound};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::time::UNIX_EPOCH;

use leasehold_core::seam::Moment;
use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, OpenFlags, params};

use crate::client::connect::{connect, grow, wait_for_no_disk};
use crate::client::presence::Presence;
use crate::client::time::{now, wall};
use crate::client::tokens::above;
use crate::error;
use crate::names::beside;

/// `application_id` of our files.
pub(crate) const APPLICATION: i64 = 0x4C65_6173;
/// The low byte of `user_version`. Above it is a mark of the files that belong together and of the boot.
pub(crate) const VERSION: i64 = 5;
/// The size of a page: what a transaction writes at least. Rows with names of usual length fit several times.
const PAGE: i64 = 2048;
/// How many bytes of a new file are for rows from the start: a full disk cannot refuse them later.
const ROOM: u32 = 1 << 18;

/// The file, its log and the log's index, each by its device, its inode, and when it was made (0 where the file system does not say): the
/// number of one that was deleted is soon another's, and a restored one then says that it belongs to the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Files([Option<(u64, u64, u64)>; 3]);

impl Files {
    /// What is there now. The files themselves are not opened to find out: to close one would drop SQLite's locks, as POSIX
    /// wants it.
    pub(crate) fn at(path: &Path, real: &Path) -> Files {
        Files([identity(path), identity(&beside(real, "-wal")), identity(&beside(real, "-shm"))])
    }

    /// Whether the first of them is still there.
    pub(crate) fn begin_at(&self, path: &Path) -> bool {
        identity(path) == self.0[0]
    }

    /// Whether the first and the last of them are. A new generation always begins with others, and leaves its own index
    /// where somebody puts an old file back.
    pub(crate) fn begin_and_end_at(&self, path: &Path, index: &Path) -> bool {
        self.begin_at(path) && identity(index) == self.0[2]
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0[0].is_some()
    }

    pub(crate) fn are_complete(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    /// As `meta` has them.
    pub(crate) fn text(&self) -> String {
        format!("{:?}", &self.0[..if fault("Q1") { 1 } else { 3 }])
    }

    /// What `user_version` is in a file that this boot uses together with the others.
    pub(crate) fn mark(&self, boot: &str) -> i64 {
        let text = self.text() + boot;
        let hash = text.bytes().fold(0i64, |hash, byte| (hash * 31 + i64::from(byte)) % 0x7F_FFFE);
        (hash + 1) << 8 | VERSION
    }
}

fn identity(path: &Path) -> Option<(u64, u64, u64)> {
    let file = fs::metadata(path).ok()?;
    let made = file.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    Some((file.dev(), file.ino(), made.map_or(0, |made| made.as_nanos() as u64)))
}

/// A client that opens the file.
pub(crate) struct Opener<'a> {
    pub(crate) boot: &'a str,
    pub(crate) presence: &'a Presence,
    /// The longest of its leases in files that it has used until now.
    pub(crate) own: i64,
    /// Until when others are waited for.
    pub(crate) deadline: Moment,
}

/// What a transaction has to know of its generation.
#[derive(Clone, Copy, Default)]
pub(crate) struct Meta {
    /// Until when nothing is granted.
    pub(crate) quiet: i64,
    /// The last token.
    pub(crate) token: i64,
}

/// What the directory lets its group do, for the files that we make in it.
pub(crate) fn group_bits(beside: &Path) -> u32 {
    let folder = beside.parent().and_then(|folder| fs::metadata(folder).ok());
    folder.map_or(0, |folder| folder.permissions().mode()) & 0o060
}

/// What a file says of itself.
pub(crate) struct Header {
    application: i64,
    version: i64,
    /// Which layout of the tables.
    pub(crate) schema: i64,
    tables: i64,
    /// The boot whose times are in it, and the last token that it knows, as far as they can be read.
    pub(crate) boot: Option<String>,
    pub(crate) token: i64,
}

fn immutable(real: &Path) -> rusqlite::Result<Connection> {
    let bytes = real.as_os_str().as_bytes().iter();
    let uri = bytes.fold("file:".to_owned(), |uri, byte| format!("{uri}%{byte:02X}")) + "?immutable=1";
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(uri, flags)
}

impl Header {
    /// Reads it, its log left out, without a lock and without making anything beside it.
    pub(crate) fn read(real: &Path) -> rusqlite::Result<Header> {
        Header::of(&immutable(real)?)
    }

    /// Whether the file says that it is used together with the files of this mark. Nothing but its first page is read, in the same way.
    pub(crate) fn has_mark(real: &Path, mark: i64) -> bool {
        let read = |file: Connection| file.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0));
        immutable(real).and_then(read).is_ok_and(|version| version == mark)
    }

    /// The same through a connection, with what is in the log.
    pub(crate) fn of(connection: &Connection) -> rusqlite::Result<Header> {
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let (application, version) = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        let meta = connection.query_row("SELECT boot, token FROM meta", [], |row| Ok((row.get(0)?, row.get(1)?)));
        let (boot, token) = meta.map_or((None, 0), |(boot, token)| (Some(boot), token));
        Ok(Header { application, version, schema: version & 0xFF, tables, boot, token })
    }

    /// An error unless it is ours, or empty.
    pub(crate) fn check(&self, file: &Path) -> Result<()> {
        let what = match (self.application, self.schema) {
            (APPLICATION, VERSION) => return Ok(()),
            (APPLICATION, other) => format!(
                "it is a later version's (schema {other}): use that one; or end all its users, and delete it with -wal and -shm; \
                 tokens keep rising"
            ),
            (0, 0) if self.version == 0 && self.tables == 0 => return Ok(()),
            _ => "it is another program's database".to_owned(),
        };
        Err(Error::new(ErrorKind::Unsupported, format!("{} cannot be used: {what}", file.display())))
    }

    /// Of a version before this one.
    pub(crate) fn is_earlier(&self) -> bool {
        self.application == APPLICATION && (1..VERSION).contains(&self.schema)
    }

    /// Ours, and not used together with the files of this mark.
    pub(crate) fn is_of_others(&self, mark: i64) -> bool {
        self.application == APPLICATION && self.schema == VERSION && self.version != mark
    }

    /// Ours, and nobody has used it; or it was used in this boot, and not together with the files of this mark.
    pub(crate) fn is_alone(&self, mark: i64, boot: &str) -> bool {
        self.is_of_others(mark) && (self.version == VERSION || self.boot.as_deref() == Some(boot))
    }
}

/// Puts new files into the place of these, unless others have replaced them already. They must be ours, or not there. Whoever looks
/// again sees which are there now.
pub(crate) fn begin(real: &Path, old: Files, token: i64, opener: &Opener<'_>) -> Result<()> {
    let _alone = opener.presence.alone(opener.deadline)?;
    if Files::at(real, real) != old {
        return Ok(());
    }
    begin_alone(real, token, opener)
}

/// The same, with the lock, and once they were looked at.
pub(crate) fn begin_alone(real: &Path, token: i64, opener: &Opener<'_>) -> Result<()> {
    let (new, empty) = (beside(real, "-new"), beside(real, "-empty"));
    let remove_them = || remove_all(&new).and_then(|()| remove(&empty));
    let done = remove_them()
        .and_then(|()| make(&empty, real, token))
        .and_then(|()| make(&new, real, token))
        .and_then(|()| replace(real, &new, &empty, opener));
    if done.is_err() {
        let _ = remove_them();
    }
    done
}

/// Takes the new files into use, and puts them into the place of those that are there. A cleaner may remove what we make: then it is made
/// anew.
fn replace(real: &Path, new: &Path, empty: &Path, opener: &Opener<'_>) -> Result<()> {
    let (mut connection, grown) = match prepare(new) {
        Err(_) if !new.exists() => return Ok(()),
        prepared => prepared?,
    };
    let files = Files::at(new, new);
    if !files.are_complete() {
        return Ok(());
    }
    // From here on nobody is granted anything in the old one, and whatever was granted has begun. Should we not come to the end, the next
    // client finds one that is not in use, and the last token.
    if !is_moved(empty, real)? {
        return Ok(());
    }
    // Ours, too: nobody may have told our guards yet.
    let longest = opener.presence.longest_of_others()?.max(opener.own);
    let quiet = if longest == 0 { 0 } else { now().saturating_add(longest) };
    match take_into_use(&mut connection, files, opener.boot, quiet) {
        Err(_) if Files::at(new, new) != files => return Ok(()),
        used => used.map_err(|e| error::of(&e, new))?,
    }
    // It would look for its files under the former names.
    drop(connection);
    // In this order a foreign program that opens them meanwhile builds no new index from the old log, and does not find the new file beside
    // it.
    for ending in ["-wal", "-shm", ""] {
        if !is_moved(&beside(new, ending), &beside(real, ending))? {
            return Ok(());
        }
    }
    // Where the disk was too full for both, the old one has gone now. If it still is, the next client uses them as they are.
    if grown { Ok(()) } else { grow(&beside(real, "-wal")) }
}

/// Gives the new file its room, and makes the two beside it: they stay what they are under another name. Says whether the log has its room,
/// too.
fn prepare(new: &Path) -> Result<(Connection, bool)> {
    let open = || {
        let connection = connect(new)?;
        wait_for_no_disk(&connection)?;
        connection.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
        connection.execute_batch(&format!(
            "CREATE TABLE room (room); INSERT INTO room VALUES (zeroblob({ROOM})); DROP TABLE room"
        ))?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        // The first that reads makes the two.
        Header::of(&connection).map(|_| connection)
    };
    let connection = open().map_err(|e| error::of(&e, new))?;
    let grown = grow(&beside(new, "-wal"));
    Ok((connection, grown.is_ok()))
}

/// `false` if it is not there any more.
fn is_moved(from: &Path, to: &Path) -> Result<bool> {
    match fs::rename(from, to) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == NotFound => Ok(false),
        Err(e) => Err(error::of_io(&e, to, "cannot be replaced")),
    }
}

fn take_into_use(connection: &mut Connection, files: Files, boot: &str, quiet: i64) -> rusqlite::Result<()> {
    let tx = connection.transaction()?;
    let begin = "UPDATE meta SET files = ?1, boot = ?2, generation = ?3, quiet = ?4, token = max(token, ?5)";
    tx.execute(begin, params![files.text(), boot, fastrand::i64(1..), quiet, above(wall())])?;
    tx.execute_batch(&format!("PRAGMA user_version = {}", files.mark(boot)))?;
    tx.commit()?;
    // Now the file itself says that it is in use, whatever becomes of its log.
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

fn remove_all(path: &Path) -> Result<()> {
    ["", "-wal", "-shm"].iter().try_for_each(|ending| remove(&beside(path, ending)))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != NotFound => Err(error::of_io(&e, path, "cannot be removed")),
        _ => Ok(()),
    }
}

/// Makes a file that no client uses, with the owner and the rights of the old one.
fn make(new: &Path, real: &Path, token: i64) -> Result<()> {
    let create = || -> io::Result<()> {
        // No link of anybody, and what becomes of the path meanwhile does not matter.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(new)?;
        match fs::metadata(real) {
            Ok(old) => {
                // Only root may give it to its owner; another user would be the new one.
                let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
                file.set_permissions(old.permissions())
            }
            // Members of the group that may make files beside it share it. What SQLite makes later takes the file's own bits.
            Err(_) => match group_bits(real) {
                0 => Ok(()),
                group => file.set_permissions(Permissions::from_mode(0o600 | group)),
            },
        }
    };
    create().map_err(|e| error::of_io(&e, new, "cannot be made"))?;
    match fill(new, token) {
        // A cleaner has removed it: whoever uses it sees that.
        Err(_) if !new.exists() => Ok(()),
        filled => filled.map_err(|e| error::of(&e, new)),
    }
}

fn fill(new: &Path, token: i64) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let file = Connection::open_with_flags(new, flags)?;
    file.execute_batch(&format!("PRAGMA page_size = {PAGE}"))?;
    file.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
    file.execute_batch(&format!(
        "PRAGMA synchronous = OFF; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}"
    ))?;
    file.execute_batch(include_str!("../schema.sql"))?;
    file.execute("INSERT INTO meta VALUES ('', '', 0, 0, ?1)", [token.max(0)]).map(drop)
}
