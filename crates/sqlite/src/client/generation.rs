//! The three files of which one generation consists, and how a new one is begun: never in files that another client may
//! still use. The new ones are complete and in use before a path leads to them. A file that waits to be taken into use would be
//! by two clients, each over an index of its own, if somebody deleted the first one's just then: both would write in one log.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

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
pub(crate) const VERSION: i64 = 4;
/// The size of a page: what a transaction writes at least. Rows with names of usual length fit several times.
const PAGE: i64 = 2048;

/// Device and inode of the file, of its log and of the log's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Files([Option<(u64, u64)>; 3]);

impl Files {
    /// What is there now. The files themselves are not opened to find out: to close one would drop SQLite's locks, as POSIX
    /// wants it.
    pub(crate) fn at(path: &Path, real: &Path) -> Files {
        Files([identity(path), identity(&beside(real, "-wal")), identity(&beside(real, "-shm"))])
    }

    /// Whether the first of them is still the file at this path. A new generation always begins with another one.
    pub(crate) fn begin_at(&self, path: &Path) -> bool {
        identity(path) == self.0[0]
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

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
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

impl Header {
    /// Reads it, its log left out, without a lock and without making anything beside it.
    pub(crate) fn read(real: &Path) -> rusqlite::Result<Header> {
        let bytes = real.as_os_str().as_bytes().iter();
        let uri = bytes.fold("file:".to_owned(), |uri, byte| format!("{uri}%{byte:02X}")) + "?immutable=1";
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Header::of(&Connection::open_with_flags(uri, flags)?)
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
}

/// Puts new files into the place of these, unless others have replaced them already. They must be ours, or not there.
pub(crate) fn begin(real: &Path, old: Files, token: i64, opener: &Opener<'_>) -> Result<()> {
    let _alone = opener.presence.alone(opener.deadline)?;
    if Files::at(real, real) != old {
        return Ok(());
    }
    let new = beside(real, "-new");
    let done = remove_all(&new).and_then(|()| make(&new, real, token)).and_then(|()| replace(real, &new, opener));
    if done.is_err() {
        let _ = remove_all(&new);
    }
    done
}

/// Takes the new files into use, and puts them into the place of those that are there.
fn replace(real: &Path, new: &Path, opener: &Opener<'_>) -> Result<()> {
    let of = |e| error::of(&e, new);
    let mut connection = connect(new).map_err(of)?;
    wait_for_no_disk(&connection).map_err(of)?;
    // Makes the files beside it, and what is written there needs no more of the disk. They stay what they are under another name.
    Header::of(&connection).map_err(of)?;
    grow(&beside(new, "-wal"))?;
    let files = Files::at(new, new);
    // From here on nobody is granted anything in the old one, and whatever was granted has begun.
    remove(real)?;
    // Ours, too: nobody may have told our guards yet.
    let longest = opener.presence.longest_of_others()?.max(opener.own);
    let quiet = if longest == 0 { 0 } else { now().saturating_add(longest) };
    take_into_use(&mut connection, files, opener.boot, quiet).map_err(of)?;
    // It would look for its files under the former names.
    drop(connection);
    // The file is the last: nobody finds it beside the old log.
    ["-shm", "-wal", ""].iter().try_for_each(|ending| {
        let moved = fs::rename(beside(new, ending), beside(real, ending));
        moved.map_err(|e| error::of_io(&e, real, "cannot be replaced"))
    })
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
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(error::of_io(&e, path, "cannot be removed")),
        _ => Ok(()),
    }
}

/// Makes a file, with the owner and the rights of the old one.
fn make(new: &Path, real: &Path, token: i64) -> Result<()> {
    let create = || -> rusqlite::Result<()> {
        let file = Connection::open(new)?;
        file.execute_batch(&format!("PRAGMA page_size = {PAGE}"))?;
        file.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
        file.execute_batch(&format!(
            "PRAGMA synchronous = OFF; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}"
        ))?;
        file.execute_batch(include_str!("../schema.sql"))?;
        file.execute("INSERT INTO meta VALUES ('', '', 0, 0, ?1)", [token.max(0)])?;
        // Room for rows, which a full disk cannot refuse later.
        file.execute_batch("CREATE TABLE room (room); INSERT INTO room VALUES (zeroblob(262144)); DROP TABLE room")?;
        file.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))
    };
    create().map_err(|e| error::of(&e, new))?;
    let of = |e| error::of_io(&e, new, "cannot be shared");
    match fs::metadata(real) {
        Ok(old) => {
            // Only root may give it to its owner; another user would be the new one.
            let _ = chown(new, Some(old.uid()), Some(old.gid()));
            fs::set_permissions(new, old.permissions()).map_err(of)
        }
        // Members of the group that may make files beside it share it. What SQLite makes later takes the file's own bits.
        Err(_) => match group_bits(real) {
            0 => Ok(()),
            group => fs::set_permissions(new, fs::Permissions::from_mode(0o600 | group)).map_err(of),
        },
    }
}
