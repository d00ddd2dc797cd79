//! The FIFO of each client. Other clients write messages into it, and see by it that the process
//! has ended.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold_core::Result;
use leasehold_core::backend::ClaimId;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, fchmod, fstat, mkfifoat, open, statat,
};
use rustix::io::{Errno, read, write};
use rustix::pipe::fcntl_getpipe_size;

use crate::client::generation::group_bits;
use crate::client::words::Word;
use crate::error;
use crate::names::beside;

/// A FIFO as the rows of its client name it: the number in its name, its device and its inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Address {
    pub(crate) fifo: i64,
    pub(crate) dev: i64,
    pub(crate) ino: i64,
}

impl Address {
    /// Reads `fifo, dev, ino`.
    pub(crate) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Address> {
        Ok(Address {
            fifo: row.get(0)?,
            dev: row.get(1)?,
            ino: row.get(2)?,
        })
    }
}

/// This client's own FIFO, open for reading and writing: it does not end as long as this client, or
/// a guardian with a copy of it, lives.
pub(crate) struct Fifo {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) address: Address,
    path: PathBuf,
}

impl Fifo {
    pub(crate) fn create(real: &Path) -> Result<Fifo> {
        loop {
            let fifo = fastrand::i64(1..);
            let path = path(real, fifo);
            let of = |e: Errno| error::of_io(&e.into(), &path, "cannot be made");
            // All clients that share the file may write to it.
            let mode = Mode::from_raw_mode(0o600 | group_bits(real));
            mkfifoat(CWD, &path, mode).map_err(of)?;
            let fd = open(
                &path,
                OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                Mode::empty(),
            );
            let fd = match fd {
                // Another client removed the FIFO as that of a dead client, before it was opened
                // here.
                Err(Errno::NOENT) => continue,
                Err(e) => {
                    let _ = fs::remove_file(&path);
                    return Err(of(e));
                }
                Ok(fd) => fd,
            };
            let stat = fstat(&fd).map_err(of)?;
            // The umask may have cut the mode, which is set again then.
            if Mode::from_raw_mode(stat.st_mode) != mode {
                fchmod(&fd, mode).map_err(of)?;
            }
            let address = Address {
                fifo,
                dev: stat.st_dev as i64,
                ino: stat.st_ino as i64,
            };
            if stat.st_nlink > 0 {
                return Ok(Fifo {
                    fd: Arc::new(fd),
                    address,
                    path,
                });
            }
        }
    }

    /// Returns whether the FIFO was deleted: no client can write to this one, or see its end, any
    /// more.
    pub(crate) fn has_vanished(&self) -> bool {
        fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Reads all messages that were written since the last call. The flag says that there may have
    /// been more, for which there was no room.
    pub(crate) fn drain(&self) -> (String, bool) {
        let mut heard = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = read(&self.fd, &mut buffer) {
            heard.extend_from_slice(&buffer[..n]);
        }
        // Messages do not fill each page of the pipe to the end, so half of its size counts as
        // full.
        let full = fcntl_getpipe_size(&self.fd).unwrap_or(0) / 2;
        (
            String::from_utf8_lossy(&heard).into_owned(),
            heard.len() >= full,
        )
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        // The name is random, so no other FIFO has it even if this one has vanished.
        let _ = fs::remove_file(&self.path);
    }
}

fn path(real: &Path, fifo: i64) -> PathBuf {
    beside(real, &format!("-fifo-{fifo:016x}"))
}

/// Removes the FIFO that a dead client left.
pub(crate) fn remove(real: &Path, fifo: i64) {
    let path = path(real, fifo);
    if fs::symlink_metadata(&path).is_ok_and(|file| file.file_type().is_fifo()) {
        let _ = fs::remove_file(path);
    }
}

/// The FIFOs of this file's clients that exist. The directory is read on from the position of its
/// last read.
pub(crate) fn all(real: &Path, folder: &OwnedFd) -> Vec<Address> {
    let prefix = [real.file_name().unwrap_or_default().as_bytes(), b"-fifo-"].concat();
    let mut found = Vec::new();
    let mut buffer = Vec::with_capacity(8192);
    let mut files = RawDir::new(folder, buffer.spare_capacity_mut());
    while let Some(Ok(file)) = files.next() {
        let digits = file
            .file_name()
            .to_bytes()
            .strip_prefix(&*prefix)
            .and_then(|digits| str::from_utf8(digits).ok());
        let Some(Ok(fifo)) = digits.map(|digits| i64::from_str_radix(digits, 16)) else {
            continue;
        };
        if let Ok(stat) = statat(folder, file.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            found.push(Address {
                fifo,
                dev: stat.st_dev as i64,
                ino: stat.st_ino as i64,
            });
        }
    }
    found
}

/// The state of the client at an address.
pub(crate) enum Liveness {
    /// The FIFO is open in some process. Polling this descriptor reports an error once it is closed
    /// there.
    Alive(OwnedFd),
    /// The FIFO is that of the address, and open nowhere: the process has ended.
    Dead,
    /// The FIFO cannot be opened, or is another one. That proves nothing.
    Unknown,
}

pub(crate) fn liveness(real: &Path, of: Address) -> Liveness {
    let path = path(real, of.fifo);
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // The identity of the FIFO has to be known also if it cannot be opened.
    let Ok(found) = open(&path, OFlags::PATH | flags, Mode::empty()).and_then(fstat) else {
        return Liveness::Unknown;
    };
    let same = (found.st_dev as i64, found.st_ino as i64) == (of.dev, of.ino);
    if !same || FileType::from_raw_mode(found.st_mode) != FileType::Fifo {
        return Liveness::Unknown;
    }
    match open(&path, OFlags::WRONLY | flags, Mode::empty()) {
        Ok(fd) => Liveness::Alive(fd),
        Err(Errno::NXIO) => Liveness::Dead,
        Err(_) => Liveness::Unknown,
    }
}

/// Writes a word into a client's FIFO. A full one is not waited for: its owner asks for everything
/// once it has read that much.
pub(crate) fn send(real: &Path, to: Address, word: &Word) -> Liveness {
    let liveness = liveness(real, to);
    if let Liveness::Alive(_) = liveness {
        // The descriptor can also be read, so that an end of the reader at this moment raises no
        // SIGPIPE here.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if let Ok(fd) = open(path(real, to.fifo), flags, Mode::empty()) {
            let _ = write(fd, format!("{word}\n").as_bytes());
        }
    }
    liveness
}

/// The clients on which this client's waiting claims depend: their FIFOs, and the claims.
#[derive(Default)]
pub(crate) struct Watches(HashMap<i64, (Arc<OwnedFd>, HashSet<ClaimId>)>);

impl Watches {
    /// Makes `claim` depend on these clients and no others. Returns those that have ended already.
    pub(crate) fn set(&mut self, real: &Path, claim: ClaimId, on: &[Address]) -> Vec<i64> {
        self.end_others(claim, on);
        let mut dead = Vec::new();
        for of in on {
            if let Some((_, claims)) = self.0.get_mut(&of.fifo) {
                claims.insert(claim);
                continue;
            }
            match liveness(real, *of) {
                Liveness::Alive(fd) => self
                    .0
                    .extend([(of.fifo, (fd.into(), HashSet::from([claim])))]),
                Liveness::Dead => dead.push(of.fifo),
                Liveness::Unknown => {}
            }
        }
        dead
    }

    pub(crate) fn forget(&mut self, claim: ClaimId) {
        self.end_others(claim, &[]);
    }

    fn end_others(&mut self, claim: ClaimId, on: &[Address]) {
        let is_on = |fifo: &i64| on.iter().any(|of| of.fifo == *fifo);
        self.0.retain(|fifo, (_, claims)| {
            is_on(fifo) || !claims.remove(&claim) || !claims.is_empty()
        });
    }

    /// Ends a watch. Returns the claims that depended on it.
    pub(crate) fn close(&mut self, fifo: i64) -> HashSet<ClaimId> {
        self.0
            .remove(&fifo)
            .map(|(_, claims)| claims)
            .unwrap_or_default()
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = (i64, Arc<OwnedFd>)> {
        self.0.iter().map(|(fifo, (fd, _))| (*fifo, fd.clone()))
    }
}
