//! The lock by which other clients know this one even if its files are gone. It is a lock on their
//! directory, so that no cleaner of files can take it away.
//!
//! It is a read lock of the open directory (OFD). Its offset stands for the file's name, and its
//! length is the client's longest lease in milliseconds. A client that begins the file anew reads
//! from it how long leases in the old file may live. The lock blocks no other client, and ends with
//! the process.

use std::cmp::Ordering;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use leasehold_core::backend::Moment;
use leasehold_core::{Error, ErrorKind, Result};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, openat};

use crate::error;

/// The number of lengths that the lock of one file may have: leases of up to 49 days.
const SPAN: i64 = 1 << 32;

pub(crate) struct Presence {
    /// The open directory. Its lock keeps others waiting as long as it is open in some process.
    pub(crate) folder: OwnedFd,
    /// The path of the directory.
    at: PathBuf,
    base: i64,
    /// The length of this client's lock.
    length: i64,
}

impl Presence {
    /// Opens the presence for the file at this path without links. If `before` is in the same
    /// place, its lock is kept, since a guardian may share it; otherwise its longest lease is
    /// announced in the new place.
    pub(crate) fn open(real: &Path, folder: &Path, before: Option<&Presence>) -> Result<Presence> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let of = |e: rustix::io::Errno| {
            error::of_io(&e.into(), folder, "is a directory that cannot be opened")
        };
        let at = folder.to_owned();
        let folder = open(folder, flags, Mode::empty()).map_err(of)?;
        // FNV-1a: the same number in every build of every version.
        let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let name = real
            .file_name()
            .unwrap_or_default()
            .as_bytes()
            .iter()
            .fold(0x811C_9DC5, hash);
        let mut new = Presence {
            folder,
            at,
            base: i64::from(name >> 1) * SPAN,
            length: 0,
        };
        if let Some(before) = before {
            if new.is_where(before) {
                return Ok(Presence {
                    folder: share(&before.folder)?,
                    length: before.length,
                    ..new
                });
            }
            new.set(before.longest())?;
        }
        Ok(new)
    }

    /// Returns whether both are for files of one name in one directory: whoever begins the files
    /// anew there waits for the leases of both.
    pub(crate) fn is_where(&self, other: &Presence) -> bool {
        self.base == other.base && same(&self.folder, &other.folder)
    }

    /// The longest lease that this client has announced to others, in nanoseconds.
    pub(crate) fn longest(&self) -> i64 {
        self.length * 1_000_000
    }

    /// Announces to others that this is now the longest lease, in nanoseconds.
    pub(crate) fn set(&mut self, lease: i64) -> Result<()> {
        let length = (lease.max(0) as u64)
            .div_ceil(1_000_000)
            .min(SPAN as u64 - 1) as i64;
        let lock = match length.cmp(&self.length) {
            Ordering::Equal => return Ok(()),
            Ordering::Greater => of(libc::F_RDLCK, self.base, length),
            Ordering::Less => of(libc::F_UNLCK, self.base + length, self.length - length),
        };
        fcntl(&self.folder, FcntlArg::F_OFD_SETLK(&lock)).map_err(failed)?;
        self.length = length;
        Ok(())
    }

    /// The longest lease that any other client may have, in nanoseconds.
    pub(crate) fn longest_of_others(&self) -> Result<i64> {
        let mut longest = 0;
        while longest < SPAN {
            // Asks for a lock that is in the way of a write lock on the rest of the range.
            let mut other = of(libc::F_WRLCK, self.base + longest, SPAN - longest);
            fcntl(&self.folder, FcntlArg::F_OFD_GETLK(&mut other)).map_err(failed)?;
            if i32::from(other.l_type) == libc::F_UNLCK {
                break;
            }
            let end = if other.l_len == 0 {
                i64::MAX
            } else {
                other.l_start.saturating_add(other.l_len)
            };
            longest = (end - self.base).clamp(longest + 1, SPAN);
        }
        Ok(longest * 1_000_000)
    }

    /// Keeps all others from opening the files, and from beginning them anew, until the returned
    /// descriptor is dropped.
    pub(crate) fn alone(&self, deadline: Moment) -> Result<OwnedFd> {
        self.lock(FlockOperation::NonBlockingLockExclusive, deadline)
    }

    /// Keeps all others from beginning the files anew, until the returned descriptor is dropped.
    pub(crate) fn among_others(&self, deadline: Moment) -> Result<OwnedFd> {
        self.lock(FlockOperation::NonBlockingLockShared, deadline)
    }

    /// Locks the directory through a descriptor that nobody shares, since a guardian would keep a
    /// shared one beyond this client's death. It is a lock of flock(2), although other programs may
    /// interfere with it: fcntl(2) locks for writing only a file that is open for writing, and a
    /// directory never is.
    fn lock(&self, how: FlockOperation, deadline: Moment) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(&self.folder, ".", flags, Mode::empty()).map_err(|e| {
            Error::new(
                ErrorKind::Unavailable,
                "the file's directory cannot be locked",
            )
            .with_source(e)
        })?;
        while flock(&folder, how).is_err() {
            if Moment::now() >= deadline {
                let shared = matches!(how, FlockOperation::NonBlockingLockShared);
                return Err(error::locked_folder(&self.at, shared));
            }
            thread::sleep(Duration::from_micros(fastrand::u64(200..1000)));
        }
        Ok(folder)
    }
}

/// Another descriptor of the same open file.
pub(crate) fn share(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone()
        .map_err(|e| Error::new(ErrorKind::Unavailable, "no more files").with_source(e))
}

fn same(a: &OwnedFd, b: &OwnedFd) -> bool {
    let place = |of: &OwnedFd| fstat(of).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    place(a).is_some_and(|a| Some(a) == place(b))
}

fn of(kind: i32, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

fn failed(e: nix::errno::Errno) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the file's directory cannot be locked",
    )
    .with_source(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_lease_of_others_is_seen_and_ends_with_them() {
        let folder = tempfile::tempdir().unwrap();
        let of =
            |name: &str| Presence::open(&folder.path().join(name), folder.path(), None).unwrap();
        let mut a = of("x.db");
        let mut b = of("x.db");
        let c = of("x.db");
        let mut d = of("y.db");
        let ms = |ms: i64| ms * 1_000_000;
        d.set(ms(90_000)).unwrap();
        assert_eq!(c.longest_of_others().unwrap(), 0, "another file's");
        a.set(ms(2_000)).unwrap();
        b.set(ms(30_000) - 1).unwrap();
        assert_eq!(c.longest_of_others().unwrap(), ms(30_000));
        assert_eq!(
            b.longest_of_others().unwrap(),
            ms(2_000),
            "its own does not count"
        );
        b.set(ms(1_000)).unwrap();
        assert_eq!(c.longest_of_others().unwrap(), ms(2_000));
        drop(a);
        assert_eq!(
            (c.longest_of_others().unwrap(), b.longest()),
            (ms(1_000), ms(1_000))
        );
        let guardians = share(&b.folder).unwrap();
        let again = Presence::open(&folder.path().join("x.db"), folder.path(), Some(&b)).unwrap();
        drop((b, again));
        assert_eq!(
            c.longest_of_others().unwrap(),
            ms(1_000),
            "a guardian has it open"
        );
        drop(guardians);
        let mut b = of("x.db");
        b.set(ms(1_000)).unwrap();
        b.set(0).unwrap();
        assert_eq!(c.longest_of_others().unwrap(), 0);
        b.set(i64::MAX).unwrap();
        assert!(c.longest_of_others().unwrap() > ms(24 * 3_600_000));
    }
}
