//! The file on its disk: whether it can be trusted there, how it is opened, and whether it is still the one that was.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use leasehold_core::seam::Moment;
use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use rustix::fs::{Access, access, statfs};

use crate::error;

/// `application_id` and `user_version` of our files.
const APPLICATION: i64 = 0x4C65_6173;
const VERSION: i64 = 1;
/// How long opening may wait for others.
const OPENING: Duration = Duration::from_secs(3);
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
    /// The boot whose times are in it.
    boot: String,
    identity: (u64, u64),
}

impl File {
    /// Opens the file, or makes it if there is none. Whatever is left in it of another boot is dead.
    pub(crate) fn open(path: &Path) -> Result<File> {
        let boot = boot()?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        stands_on_local_disk(folder)?;
        access(folder, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|e| error::of_io(&e.into(), folder, "is a directory in which we may make no files"))?;
        let before = fs::metadata(path).ok();
        if before.as_ref().is_some_and(|file| !file.is_file()) {
            return Err(Error::new(ErrorKind::Invalid, format!("{} is no file", path.display())));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        wait_until(Moment::now() + OPENING);
        let of = |e: rusqlite::Error| error::of(&e, path);
        let mut connection = Connection::open_with_flags(path, flags).map_err(of)?;
        let real = path.canonicalize().map_err(|e| error::of_io(&e, path, "cannot be found"))?;
        prepare(&mut connection, &real, &boot, before.is_none()).map_err(of)??;
        let identity = identity(path);
        let identity = identity.filter(|now| before.is_none_or(|file| *now == (file.dev(), file.ino())));
        let replaced = || Error::new(ErrorKind::Unavailable, format!("{} was replaced just now", path.display()));
        Ok(File { path: path.into(), real, connection, boot, identity: identity.ok_or_else(replaced)? })
    }

    /// Whether the path still leads to the file that was opened. SQLite would go on in a deleted one, beside whoever made
    /// it anew. The file itself is not opened to find out: to close it would drop SQLite's locks, as POSIX wants it.
    pub(crate) fn is_current(&self) -> bool {
        identity(&self.path) == Some(self.identity)
    }

    /// Whether the times in the file are still those of this boot: another one has no business in it.
    pub(crate) fn is_of_this_boot(&self) -> rusqlite::Result<bool> {
        let boot = "SELECT boot = ?1 FROM meta";
        self.connection.prepare_cached(boot)?.query_row([&self.boot], |row| row.get(0))
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn prepare(connection: &mut Connection, real: &Path, boot: &str, is_new: bool) -> rusqlite::Result<Result<()>> {
    connection.busy_handler(Some(wait))?;
    // Group members who may make files beside it share it. What SQLite makes later takes the file's own bits.
    let group = group_bits(real);
    if is_new && group != 0 {
        // Refused if somebody else was faster to make it: then it is theirs to say.
        let _ = fs::set_permissions(real, fs::Permissions::from_mode(0o600 | group));
    }
    loop {
        // The change of mode does not ask the busy handler.
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0)) {
            Ok(mode) if mode == "wal" => break,
            Ok(mode) => return Ok(unsupported(real, &format!("SQLite answers journal_mode {mode:?}, not \"wal\""))),
            Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) && wait(0) => {}
            Err(e) => return Err(e),
        }
    }
    connection.execute_batch("PRAGMA synchronous = NORMAL")?;
    // More than there are statements: none is ever compiled twice.
    connection.set_prepared_statement_cache_capacity(64);
    // Nor again for another value: the bundled SQLite is built to plan by values, which gains nothing with these indexes.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // The log stays for the next process, which then needs neither to sync nor to make it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let number = |pragma: &str| tx.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0));
    let tables: i64 = tx.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (number("application_id")?, number("user_version")?) {
        (APPLICATION, VERSION) => {}
        (APPLICATION, other) => {
            return Ok(unsupported(real, &format!("it was made by another version of Leasehold (schema {other})")));
        }
        (0, 0) if tables == 0 => {
            tx.execute_batch(include_str!("schema.sql"))?;
            tx.execute("INSERT INTO meta VALUES (?1, 0)", [boot])?;
            tx.execute_batch(&format!("PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}"))?;
        }
        _ => return Ok(unsupported(real, "it is another program's database")),
    }
    if tx.execute("UPDATE meta SET boot = ?1 WHERE boot <> ?1", [boot])? > 0 {
        let mut left = tx.prepare("SELECT fifo FROM session UNION SELECT fifo FROM observer")?;
        for fifo in left.query_map([], |row| row.get(0))? {
            crate::fifo::remove(real, fifo?);
        }
        tx.execute_batch("DELETE FROM place; DELETE FROM session; DELETE FROM observer")?;
    }
    tx.commit()?;
    Ok(Ok(()))
}

fn unsupported(file: &Path, what: &str) -> Result<()> {
    Err(Error::new(ErrorKind::Unsupported, format!("{} cannot be used: {what}", file.display())))
}

/// What the directory lets its group do, for the files that we make in it.
pub(crate) fn group_bits(beside: &Path) -> u32 {
    let folder = beside.parent().and_then(|folder| fs::metadata(folder).ok());
    folder.map_or(0, |folder| folder.permissions().mode()) & 0o060
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
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|e| unsupported("/proc does not say which boot this is").with_source(e))?;
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

thread_local! {
    /// Until when this thread's connection waits for others. SQLite calls a handler that takes no state.
    static DEADLINE: Cell<Moment> = const { Cell::new(Moment::from_nanos(0)) };
}

/// Sets how long statements of this thread wait for other writers.
pub(crate) fn wait_until(deadline: Moment) {
    DEADLINE.set(deadline);
}

/// The busy handler: short naps of random length, since SQLite's own grow to a tenth of a second, and whoever sleeps that
/// long starves. A crowd takes longer ones, or its naps would cost more than its work.
fn wait(tries: i32) -> bool {
    let goes_on = Moment::now() < DEADLINE.get();
    if goes_on {
        let crowd = (1 + tries.unsigned_abs() / 8).min(8);
        thread::sleep(Duration::from_micros(fastrand::u64(50..200)) * crowd);
    }
    goes_on
}
