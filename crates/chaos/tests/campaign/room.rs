//! Where a file of locks is: on a small disk of its own, which can be full, if the system lets us have one.

use std::{
    env,
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::geteuid,
};
use tempfile::TempDir;

/// The file of locks, and what SQLite makes beside it.
pub(super) const FILES: [&str; 3] = ["locks.db", "locks.db-wal", "locks.db-shm"];
/// Set in a process that has a mount namespace of its own.
const INSIDE: &str = "LEASEHOLD_CHAOS_INSIDE";
/// Much more than the store takes.
const SIZE: &std::ffi::CStr = c"size=24m";

/// Goes on in a mount namespace of its own, where a disk can be mounted, and is gone with the last process that is in it. Where there is
/// none to be had it goes on as it is.
pub(crate) fn enter() {
    if env::var_os(INSIDE).is_some() {
        return;
    }
    let inside = |program: &Path| {
        let mut command = Command::new("unshare");
        if !geteuid().is_root() {
            command.args(["--user", "--map-current-user", "--keep-caps"]);
        }
        command
            .args(["--mount", "--propagation", "private"])
            .arg(program);
        command
    };
    let possible = inside(Path::new("true"))
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if possible && let Ok(program) = env::current_exe() {
        let failed = inside(&program)
            .args(env::args_os().skip(1))
            .env(INSIDE, "1")
            .exec();
        eprintln!("no namespace: {failed}");
    }
}

/// A folder, removed when this is dropped.
pub(crate) struct Room {
    folder: TempDir,
    is_small: bool,
}

impl Room {
    pub(crate) fn new() -> Room {
        let folder = tempfile::tempdir().unwrap();
        let is_small = env::var_os(INSIDE).is_some()
            && mount("none", folder.path(), "tmpfs", MountFlags::empty(), SIZE).is_ok();
        Room { folder, is_small }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn file(&self) -> PathBuf {
        self.path().join(FILES[0])
    }

    /// Whether it can be full.
    pub(crate) fn is_small(&self) -> bool {
        self.is_small
    }

    /// Leaves no room.
    pub(super) fn fill(&self) {
        let mut filler = File::options()
            .create(true)
            .append(true)
            .open(self.filler())
            .unwrap();
        let block = vec![1; 1 << 16];
        loop {
            match filler.write(&block) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("filling a disk: {error}"),
            }
        }
    }

    pub(super) fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.is_small {
            // Without it the folder stays, and is empty.
            let _ = unmount(self.path(), UnmountFlags::DETACH);
        }
    }
}
