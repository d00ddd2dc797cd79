//! The FIFO of each client: its bell, into which others write what it should hear, and its life, which ends with the process.
//!
//! A FIFO is known by a number, which is in the name of its file: 31 random bits, and 32 of its inode's number. So whatever
//! else is put in its place is not taken for it.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use leasehold_core::Result;
use leasehold_core::seam::ClaimId;
use rustix::fs::{CWD, Mode, OFlags, fstat, mkfifoat, open};
use rustix::io::{Errno, read, write};

use crate::error;
use crate::file::group_bits;

/// How FIFOs are opened: nothing waits for another process.
const FLAGS: OFlags = OFlags::NONBLOCK.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// What ends a word: no name has it.
const END: char = '\0';

/// Our own FIFO, open for reading and writing: it never ends while we, or a guardian with a copy of it, live.
pub(crate) struct Fifo {
    pub(crate) fd: OwnedFd,
    pub(crate) number: i64,
    real: PathBuf,
}

impl Fifo {
    pub(crate) fn create(real: &Path) -> Result<Fifo> {
        let random = fastrand::i64(1..1 << 31) << 32;
        let draft = path(real, random);
        let of = |e: std::io::Error| error::of_io(&e, &draft, "cannot be made");
        mkfifoat(CWD, &draft, Mode::RUSR | Mode::WUSR).map_err(|e| of(e.into()))?;
        // Whoever shares the file may ring; the umask does not cut this.
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o600 | group_bits(real))).map_err(of)?;
        let fd = open(&draft, FLAGS | OFlags::RDWR, Mode::empty()).map_err(|e| of(e.into()))?;
        let number = random | inode(fs::symlink_metadata(&draft).map_err(of)?.ino());
        fs::rename(&draft, path(real, number)).map_err(of)?;
        Ok(Fifo { fd, number, real: real.into() })
    }

    /// Whether somebody deleted it: nobody can ring us, or see our end, any more.
    pub(crate) fn has_vanished(&self) -> bool {
        fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// The words that were written into it since.
    pub(crate) fn drain(&self) -> Vec<String> {
        let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = read(&self.fd, &mut buffer) {
            heard.extend_from_slice(&buffer[..n]);
        }
        String::from_utf8_lossy(&heard).split_terminator(END).map(str::to_owned).collect()
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        remove(&self.real, self.number);
    }
}

fn path(real: &Path, fifo: i64) -> PathBuf {
    let mut name = OsString::from(real);
    name.push(format!("-fifo-{fifo:016x}"));
    name.into()
}

/// What a FIFO's number has of its inode's.
fn inode(number: u64) -> i64 {
    (number & 0xFFFF_FFFF) as i64
}

/// The path of a FIFO, if it is the very one that was made with this number.
fn find(real: &Path, fifo: i64) -> Option<PathBuf> {
    let path = path(real, fifo);
    let file = fs::symlink_metadata(&path).ok()?;
    (file.file_type().is_fifo() && inode(file.ino()) == inode(fifo as u64)).then_some(path)
}

/// Removes a FIFO, if it is the very one.
pub(crate) fn remove(real: &Path, fifo: i64) {
    if let Some(path) = find(real, fifo) {
        let _ = fs::remove_file(path);
    }
}

/// What is behind a number.
pub(crate) enum Life {
    /// Somebody has it open: this becomes an error when they close it.
    Alive(OwnedFd),
    /// It is the very FIFO, and nobody has it open: the process has ended.
    Dead,
    /// It cannot be opened, or is another one. That proves nothing.
    Unknown,
}

pub(crate) fn life(real: &Path, fifo: i64) -> Life {
    let Some(path) = find(real, fifo) else { return Life::Unknown };
    match open(&path, FLAGS | OFlags::WRONLY, Mode::empty()) {
        Ok(fd) => Life::Alive(fd),
        Err(Errno::NXIO) => Life::Dead,
        Err(_) => Life::Unknown,
    }
}

/// Writes a word into somebody's FIFO. A full one is not waited for: its owner has enough to hear.
pub(crate) fn ring(real: &Path, fifo: i64, word: &str) -> Life {
    let life = life(real, fifo);
    if let Life::Alive(_) = life {
        // Through a descriptor that can be read as well, so that an end just now is no SIGPIPE for us.
        if let Ok(fd) = open(path(real, fifo), FLAGS | OFlags::RDWR, Mode::empty()) {
            let _ = write(fd, format!("{word}{END}").as_bytes());
        }
    }
    life
}

/// The lives that this client's waiting claims depend on.
#[derive(Default)]
pub(crate) struct Watches(HashMap<i64, (OwnedFd, HashSet<ClaimId>)>);

impl Watches {
    /// From now on `claim` depends on these lives; answers which have ended already.
    pub(crate) fn set(&mut self, real: &Path, claim: ClaimId, on: &[i64]) -> Vec<i64> {
        self.forget(claim);
        let mut dead = Vec::new();
        for &fifo in on {
            match self.0.entry(fifo) {
                Entry::Occupied(mut known) => {
                    known.get_mut().1.insert(claim);
                }
                Entry::Vacant(free) => match life(real, fifo) {
                    Life::Alive(fd) => {
                        free.insert((fd, HashSet::from([claim])));
                    }
                    Life::Dead => dead.push(fifo),
                    Life::Unknown => {}
                },
            }
        }
        dead
    }

    pub(crate) fn forget(&mut self, claim: ClaimId) {
        self.0.retain(|_, (_, claims)| !claims.remove(&claim) || !claims.is_empty());
    }

    /// Ends a watch; answers which claims depended on it.
    pub(crate) fn end(&mut self, fifo: i64) -> HashSet<ClaimId> {
        self.0.remove(&fifo).map(|(_, claims)| claims).unwrap_or_default()
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = (i64, BorrowedFd<'_>)> {
        self.0.iter().map(|(fifo, (fd, _))| (*fifo, fd.as_fd()))
    }
}
