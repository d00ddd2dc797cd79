//! SQLite's errors to ours, honestly: what was surely not executed is `Unavailable`, what may have been is `Ambiguous`.

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

/// Of a statement on this file that was not committed.
pub(crate) fn of(e: &rusqlite::Error, file: &Path) -> Error {
    use ErrorCode::{
        AuthorizationForStatementDenied, CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull,
        FileLockingProtocolFailed, NotADatabase, OutOfMemory, PermissionDenied, ReadOnly, SystemIoFailure,
    };
    let file_name = file.display();
    let Some(code) = e.sqlite_error_code() else {
        let what = format!("{file_name} holds what Leasehold never writes; was it changed by hand?");
        return Error::new(ErrorKind::Internal, format!("{what} ({e})"));
    };
    let (kind, what) = match code {
        DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed => return locked(file),
        ReadOnly | PermissionDenied | AuthorizationForStatementDenied => {
            (ErrorKind::Denied, "may not be written: the file, its directory or its file system is read-only for us")
        }
        CannotOpen if no_descriptor_is_left() => {
            return too_many_open(&format!("{file_name} cannot be opened ({e})"));
        }
        CannotOpen => (ErrorKind::Denied, "cannot be opened, or the files beside it cannot be made"),
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
            (ErrorKind::Internal, what)
        }
        _ => (ErrorKind::Internal, "is not as Leasehold left it"),
    };
    Error::new(kind, format!("{file_name} {what} ({e})"))
}

/// SQLite does not say so. It has closed by now what it could open: as many as it needs are tried.
pub(crate) fn no_descriptor_is_left() -> bool {
    let tried: io::Result<Vec<_>> = (0..4).map(|_| fs::File::open("/")).collect();
    tried.is_err_and(|e| matches!(Errno::from_io_error(&e), Some(Errno::MFILE | Errno::NFILE)))
}

pub(crate) fn too_many_open(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{what}: this process has too many open files (ulimit -n)"))
}

/// What a file, a log and an index that do not belong together look like.
pub(crate) fn is_misfit(e: &rusqlite::Error) -> bool {
    use ErrorCode::{DatabaseCorrupt, NotADatabase, SystemIoFailure};
    matches!(e.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase | SystemIoFailure))
}

/// Of a commit: an error of the disk leaves open what is in the log.
pub(crate) fn of_commit(e: &rusqlite::Error, file: &Path) -> Error {
    match e.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => {
            Error::new(ErrorKind::Ambiguous, format!("{}: the commit failed ({e})", file.display()))
        }
        _ => of(e, file),
    }
}

/// Of the operating system, about this file or directory.
pub(crate) fn of_io(e: &io::Error, path: &Path, what: &str) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{} {what} ({e})", path.display()))
}

/// Another process stayed in a transaction for longer than we may wait.
fn locked(file: &Path) -> Error {
    let by = match writer(file) {
        Some(pid) if is_stopped(pid) => format!("process {pid}, which is stopped: continue or end it"),
        Some(pid) => format!("process {pid}"),
        None => "another process, which cannot be seen from here".to_owned(),
    };
    let what = format!("{} is locked, and with it every lock in it, by {by}", file.display());
    Error::new(ErrorKind::Unavailable, what)
}

/// The process that is in a write transaction. Read from the list of all locks: to open the file and ask would drop our own locks
/// on it at the close, as POSIX wants it.
fn writer(file: &Path) -> Option<u32> {
    let inode = fs::metadata(beside(&file.canonicalize().ok()?, "-shm")).ok()?.ino();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|lock| holder(lock, inode))
}

/// `1: POSIX  ADVISORY  WRITE 708 fe:00:1835017 120 120`
fn holder(lock: &str, inode: u64) -> Option<u32> {
    let mut words = lock.split_whitespace().skip_while(|word| *word != "WRITE").skip(1);
    let pid = words.next()?.parse().ok()?;
    let of_file = words.next()?.rsplit(':').next()?.parse() == Ok(inode);
    let first: u64 = words.next()?.parse().ok()?;
    let last = words.next()?.parse().unwrap_or(u64::MAX);
    (of_file && (first..=last).contains(&WRITE_LOCK)).then_some(pid)
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_is_found_among_the_locks() {
        let write = "1: POSIX  ADVISORY  WRITE 708 fe:00:1835017 120 120";
        assert_eq!(holder(write, 1_835_017), Some(708));
        assert_eq!(holder(write, 1_835_018), None);
        assert_eq!(holder("2: POSIX  ADVISORY  WRITE 9 fe:00:5 0 EOF", 5), Some(9));
        assert_eq!(holder("3: POSIX  ADVISORY  READ 9 fe:00:5 120 120", 5), None);
        assert_eq!(holder("4: POSIX  ADVISORY  WRITE 9 fe:00:5 124 124", 5), None);
        assert_eq!(holder("5: -> POSIX  ADVISORY  WRITE", 5), None);
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
            (11, ErrorKind::Internal),
            (13, ErrorKind::Unavailable),
            (14, ErrorKind::Denied),
            (15, ErrorKind::Unavailable),
            (23, ErrorKind::Denied),
            (25, ErrorKind::Internal),
            (26, ErrorKind::Internal),
        ] {
            let error = of(&failure(code), Path::new("/x.db"));
            assert_eq!(error.kind(), kind, "{code}: {error}");
            assert!(error.to_string().contains("/x.db"), "{error}");
        }
        assert_eq!(of_commit(&failure(10), Path::new("/x.db")).kind(), ErrorKind::Ambiguous);
        assert_eq!(of_commit(&failure(13), Path::new("/x.db")).kind(), ErrorKind::Unavailable);
        let misfits: Vec<i32> = (1..27).filter(|code| is_misfit(&failure(*code))).collect();
        assert_eq!(misfits, [10, 11, 26]);
        assert_eq!(of(&rusqlite::Error::QueryReturnedNoRows, Path::new("/x.db")).kind(), ErrorKind::Internal);
    }

    #[test]
    fn whatever_the_list_of_locks_says_it_is_read_or_passed_over() {
        leasehold_fuzz::fuzz_text(include_str!("../corpus/locks"), |lock| {
            if let Some(pid) = holder(lock, 5) {
                assert!(lock.contains(&pid.to_string()) && lock.contains("WRITE"));
            }
        });
    }

    #[test]
    fn what_the_system_refuses_has_its_kind() {
        use io::ErrorKind::{
            InvalidFilename, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem, StorageFull,
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
            assert!(error.to_string().starts_with("/x.db cannot be made"), "{error}");
        }
        assert_eq!(too_many_open("x").kind(), ErrorKind::Unavailable);
        assert!(!no_descriptor_is_left());
    }

    #[test]
    fn a_process_that_runs_is_not_stopped() {
        assert!(!is_stopped(std::process::id()));
    }
}
