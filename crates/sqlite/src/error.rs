//! Converts SQLite's errors to the store's: a request that was surely not executed is
//! `Unavailable`, and one that may have been is `Ambiguous`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use leasehold_core::{Error, ErrorKind};
use rusqlite::ErrorCode;
use rustix::io::Errno;

use crate::names::beside;

/// The byte of the `-shm` file that the writer locks (SQLite's *WAL-mode File Format*, section 2.2: the locks).
const WRITE_LOCK: u64 = 120;

/// The error of a statement on this file that was not committed.
pub(crate) fn of(e: &rusqlite::Error, file: &Path) -> Error {
    use ErrorCode::{
        AuthorizationForStatementDenied, CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked,
        DiskFull, FileLockingProtocolFailed, NotADatabase, OutOfMemory, PermissionDenied, ReadOnly,
        SystemIoFailure,
    };
    let file_name = file.display();
    let Some(code) = e.sqlite_error_code() else {
        let what =
            format!("{file_name} holds what Leasehold never writes; was it changed by hand?");
        return Error::new(ErrorKind::Corrupt, format!("{what} ({e})"));
    };
    let (kind, what) = match code {
        DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed => return locked(file),
        ReadOnly | PermissionDenied | AuthorizationForStatementDenied => (
            ErrorKind::Denied,
            "may not be written: the file, its directory or its file system is read-only for us",
        ),
        CannotOpen if no_descriptor_is_left() => {
            return too_many_open(&format!("{file_name} cannot be opened ({e})"));
        }
        CannotOpen => (
            ErrorKind::Denied,
            "cannot be opened, or the files beside it cannot be made",
        ),
        DiskFull => (ErrorKind::Unavailable, "cannot grow: the disk is full"),
        OutOfMemory => (ErrorKind::Unavailable, "cannot be read or written"),
        SystemIoFailure => {
            let what = "cannot be read or written. Was it, or -wal or -shm beside it, cut or changed by hand? Then delete \
                        all three: the next client begins anew";
            (ErrorKind::Unavailable, what)
        }
        NotADatabase | DatabaseCorrupt => {
            let what = "is damaged, or no SQLite database. It is not made anew by itself, since a lock in it may be held: \
                        end all its users, delete it, and start again; tokens keep rising";
            (ErrorKind::Corrupt, what)
        }
        _ => (ErrorKind::Corrupt, "is not as Leasehold left it"),
    };
    let error = Error::new(kind, format!("{file_name} {what} ({e})"));
    if code == DiskFull {
        error.answered()
    } else {
        error
    }
}

/// Returns whether the process has no file descriptor left, which SQLite does not report. SQLite
/// has closed its own by now, so this opens as many as it needs.
pub(crate) fn no_descriptor_is_left() -> bool {
    let tried: io::Result<Vec<_>> = (0..4).map(|_| fs::File::open("/")).collect();
    tried.is_err_and(|e| matches!(Errno::from_io_error(&e), Some(Errno::MFILE | Errno::NFILE)))
}

pub(crate) fn too_many_open(what: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("{what}: this process has too many open files (ulimit -n)"),
    )
}

/// The error of a commit. After an error of the disk it is not known whether the log has the
/// commit.
pub(crate) fn of_commit(e: &rusqlite::Error, file: &Path) -> Error {
    match e.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => Error::new(
            ErrorKind::Ambiguous,
            format!("{}: the commit failed ({e})", file.display()),
        ),
        _ => of(e, file),
    }
}

/// The error of the operating system about this file or directory.
pub(crate) fn of_io(e: &io::Error, path: &Path, what: &str) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            ErrorKind::Invalid
        }
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{} {what} ({e})", path.display()))
}

/// The error for a file that another process keeps locked for longer than this client may wait.
fn locked(file: &Path) -> Error {
    let by = match writer(file) {
        Some(pid) if is_stopped(pid) => {
            format!("process {pid}, which is stopped: continue or end it")
        }
        Some(pid) => format!("process {pid}"),
        None => "another process, which cannot be seen from here".to_owned(),
    };
    let what = format!(
        "{} is locked, and with it every lock in it, by {by}",
        file.display()
    );
    Error::new(ErrorKind::Unavailable, what)
}

/// The error for a file in which a client holds or waits under another boot id. It cannot be of an
/// earlier boot: after a reboot nobody has a lease, since the kernel that knew of it has gone.
pub(crate) fn of_another_boot(file: &Path) -> Error {
    let what = "is used by programs that see another boot of this machine, and one of them holds a lock in it, or waits for one: \
                a container has a /proc/sys/kernel/random/boot_id of its own. Mount the machine's there, or use a server's store";
    Error::new(ErrorKind::Unsupported, format!("{} {what}", file.display()))
}

/// The error for a directory on which another program has a lock of flock(2). `shared`: this client
/// asked for a shared lock.
pub(crate) fn locked_folder(folder: &Path, shared: bool) -> Error {
    let inode = fs::metadata(folder).ok().map(|folder| folder.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let by = inode.and_then(|inode| locks.lines().find_map(|lock| flocker(lock, inode, shared)));
    let by = by.map_or_else(
        || "a program that cannot be seen from here".to_owned(),
        |pid| format!("process {pid}"),
    );
    let what = format!(
        "{} is locked by {by}, with flock(2): no lock file in it can be opened meanwhile. Let that program lock a file of its own",
        folder.display()
    );
    Error::new(ErrorKind::Unavailable, what)
}

/// Returns the process if this line of `/proc/locks` is a lock of flock(2) on this inode, such as
/// `1: FLOCK  ADVISORY  WRITE 708 fe:00:1835017 0 EOF`.
fn flocker(lock: &str, inode: u64, only_writers: bool) -> Option<u32> {
    let mut words = lock.split_whitespace().skip(1);
    let kind = words.next()?;
    let _ = words.next()?;
    let how = words.next()?;
    let pid = words.next()?.parse().ok().filter(|pid| *pid > 0)?;
    let of_folder = words.next()?.rsplit(':').next()?.parse() == Ok(inode);
    (kind == "FLOCK" && of_folder && (how == "WRITE" || !only_writers)).then_some(pid)
}

/// The process that is in a write transaction. It is read from the list of all locks: if this
/// process opened the file to ask, it would lose its own locks on it at the close, as POSIX
/// demands.
fn writer(file: &Path) -> Option<u32> {
    let inode = fs::metadata(beside(&file.canonicalize().ok()?, "-shm"))
        .ok()?
        .ino();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|lock| holder(lock, inode))
}

/// Returns the process if this line of `/proc/locks` is the write lock of this inode, such as
/// `1: POSIX  ADVISORY  WRITE 708 fe:00:1835017 120 120`.
fn holder(lock: &str, inode: u64) -> Option<u32> {
    let mut words = lock
        .split_whitespace()
        .skip_while(|word| *word != "WRITE")
        .skip(1);
    let pid = words.next()?.parse().ok()?;
    let of_file = words.next()?.rsplit(':').next()?.parse() == Ok(inode);
    let first: u64 = words.next()?.parse().ok()?;
    let last = words.next()?.parse().unwrap_or(u64::MAX);
    (of_file && (first..=last).contains(&WRITE_LOCK)).then_some(pid)
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_is_found_among_the_locks() {
        let write = "1: POSIX  ADVISORY  WRITE 708 fe:00:1835017 120 120";
        assert_eq!(holder(write, 1_835_017), Some(708));
        assert_eq!(holder(write, 1_835_018), None);
        assert_eq!(
            holder("2: POSIX  ADVISORY  WRITE 9 fe:00:5 0 EOF", 5),
            Some(9)
        );
        assert_eq!(
            holder("3: POSIX  ADVISORY  READ 9 fe:00:5 120 120", 5),
            None
        );
        assert_eq!(
            holder("4: POSIX  ADVISORY  WRITE 9 fe:00:5 124 124", 5),
            None
        );
        assert_eq!(holder("5: -> POSIX  ADVISORY  WRITE", 5), None);
    }

    #[test]
    fn who_locked_a_directory_is_found_among_the_locks() {
        let lock = "1: FLOCK  ADVISORY  WRITE 708 fe:00:1835017 0 EOF";
        assert_eq!(flocker(lock, 1_835_017, true), Some(708));
        assert_eq!(flocker(lock, 1_835_018, true), None);
        let shared = "1: FLOCK  ADVISORY  READ 708 fe:00:5 0 EOF";
        assert_eq!(flocker(shared, 5, true), None);
        assert_eq!(flocker(shared, 5, false), Some(708));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 708 fe:00:5 0 EOF",
            "1: OFDLCK ADVISORY  READ -1 fe:00:5 0 9",
            "1: FLOCK  ADVISORY  WRITE 0 fe:00:5 0 EOF",
        ] {
            assert_eq!(flocker(other, 5, false), None, "{other}");
        }
    }

    #[test]
    fn causes_have_their_kinds() {
        let failure = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        for (code, kind) in [
            (3, ErrorKind::Denied),
            (5, ErrorKind::Unavailable),
            (7, ErrorKind::Unavailable),
            (8, ErrorKind::Denied),
            (10, ErrorKind::Unavailable),
            (11, ErrorKind::Corrupt),
            (13, ErrorKind::Unavailable),
            (14, ErrorKind::Denied),
            (15, ErrorKind::Unavailable),
            (23, ErrorKind::Denied),
            (25, ErrorKind::Corrupt),
            (26, ErrorKind::Corrupt),
        ] {
            let error = of(&failure(code), Path::new("/x.db"));
            assert_eq!(error.kind(), kind, "{code}: {error}");
            assert!(error.to_string().contains("/x.db"), "{error}");
        }
        assert_eq!(
            of_commit(&failure(10), Path::new("/x.db")).kind(),
            ErrorKind::Ambiguous
        );
        assert_eq!(
            of_commit(&failure(13), Path::new("/x.db")).kind(),
            ErrorKind::Unavailable
        );
        assert_eq!(
            of(&rusqlite::Error::QueryReturnedNoRows, Path::new("/x.db")).kind(),
            ErrorKind::Corrupt
        );
    }

    #[test]
    fn whatever_the_list_of_locks_says_it_is_read_or_passed_over() {
        leasehold_fuzz::fuzz_text(include_str!("../corpus/locks"), |lock| {
            if let Some(pid) = holder(lock, 5) {
                assert!(lock.contains(&pid.to_string()) && lock.contains("WRITE"));
            }
            if let Some(pid) = flocker(lock, 5, false) {
                assert!(lock.contains(&pid.to_string()) && lock.contains("FLOCK"));
            }
        });
    }

    #[test]
    fn what_the_system_refuses_has_its_kind() {
        use io::ErrorKind::{
            InvalidFilename, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
            StorageFull,
        };

        for (e, kind) in [
            (PermissionDenied, ErrorKind::Denied),
            (ReadOnlyFilesystem, ErrorKind::Denied),
            (NotFound, ErrorKind::Invalid),
            (NotADirectory, ErrorKind::Invalid),
            (InvalidFilename, ErrorKind::Invalid),
            (StorageFull, ErrorKind::Unavailable),
        ] {
            let error = of_io(&e.into(), Path::new("/x.db"), "cannot be made");
            assert_eq!(error.kind(), kind, "{e:?}");
            assert!(
                error.to_string().starts_with("/x.db cannot be made"),
                "{error}"
            );
        }
        assert_eq!(too_many_open("x").kind(), ErrorKind::Unavailable);
        assert!(!no_descriptor_is_left());
    }

    #[test]
    fn a_process_that_runs_is_not_stopped() {
        assert!(!is_stopped(std::process::id()));
    }
}
