//! How a client is known though its files are gone: a lock on their directory, which no cleaner of files can take away.
//!
//! It is a read lock of the open directory (OFD), at an offset that stands for the file's name, and as long as the client's
//! longest lease in milliseconds. A client that begins the file anew reads how long leases in the old one may live. It blocks no
//! other client, and ends with the process.

use std::cmp::Ordering;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use leasehold_core::seam::Moment;
use leasehold_core::{Error, ErrorKind, Result};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, openat};

use crate::error;

/// How much room the lock of one file has: leases of up to 49 days.
const SPAN: i64 = 1 << 32;

pub(crate) struct Presence {
    /// What keeps others waiting as long as it is open in some process.
    pub(crate) folder: OwnedFd,
    base: i64,
    /// The length of our lock.
    length: i64,
}

impl Presence {
    /// For the file at this path without links. It goes on with what others know of us in the same place `before`: a guardian
    /// may share that.
    pub(crate) fn open(real: &Path, folder: &Path, before: Option<&Presence>) -> Result<Presence> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let of = |e: rustix::io::Errno| error::of_io(&e.into(), folder, "is a directory that cannot be opened");
        let folder = open(folder, flags, Mode::empty()).map_err(of)?;
        // FNV-1a: the same number in every build of every version.
        let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let name = real.file_name().unwrap_or_default().as_bytes().iter().fold(0x811C_9DC5, hash);
        let mut new = Presence { folder, base: i64::from(name >> 1) * SPAN, length: 0 };
        if let Some(before) = before {
            if new.base == before.base && same(&new.folder, &before.folder) {
                return Ok(Presence { folder: share(&before.folder)?, ..*before });
            }
            new.set(before.longest())?;
        }
        Ok(new)
    }

    /// The longest lease that we let others know of, in nanoseconds.
    pub(crate) fn longest(&self) -> i64 {
        self.length * 1_000_000
    }

    /// From now on our longest lease is this one.
    pub(crate) fn set(&mut self, lease: i64) -> Result<()> {
        let length = (lease.max(0) as u64).div_ceil(1_000_000).min(SPAN as u64 - 1) as i64;
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
            // The lock that would keep out a write lock of what lies beyond.
            let mut other = of(libc::F_WRLCK, self.base + longest, SPAN - longest);
            fcntl(&self.folder, FcntlArg::F_OFD_GETLK(&mut other)).map_err(failed)?;
            if i32::from(other.l_type) == libc::F_UNLCK {
                break;
            }
            let end = if other.l_len == 0 { i64::MAX } else { other.l_start.saturating_add(other.l_len) };
            longest = (end - self.base).clamp(longest + 1, SPAN);
        }
        Ok(longest * 1_000_000)
    }

    /// Keeps all others from opening the files, and from beginning them anew, until what this returns is dropped.
    pub(crate) fn alone(&self, deadline: Moment) -> Result<OwnedFd> {
        self.lock(FlockOperation::NonBlockingLockExclusive, deadline)
    }

    /// Keeps all others from beginning the files anew.
    pub(crate) fn among_others(&self, deadline: Moment) -> Result<OwnedFd> {
        self.lock(FlockOperation::NonBlockingLockShared, deadline)
    }

    /// The lock is that of a descriptor which nobody shares: a guardian would keep it beyond our death.
    fn lock(&self, how: FlockOperation, deadline: Moment) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(&self.folder, ".", flags, Mode::empty())
            .map_err(|e| Error::new(ErrorKind::Unavailable, "the file's directory cannot be locked").with_source(e))?;
        while flock(&folder, how).is_err() {
            if Moment::now() >= deadline {
                return Err(Error::new(ErrorKind::Unavailable, "the file's directory stays locked by another program"));
            }
            thread::sleep(Duration::from_micros(fastrand::u64(200..1000)));
        }
        Ok(folder)
    }
}

/// Another descriptor of the same open file.
pub(crate) fn share(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone().map_err(|e| Error::new(ErrorKind::Unavailable, "no more files").with_source(e))
}

fn same(a: &OwnedFd, b: &OwnedFd) -> bool {
    let place = |of: &OwnedFd| fstat(of).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    place(a).is_some_and(|a| Some(a) == place(b))
}

fn of(kind: i32, start: i64, length: i64) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: length, l_pid: 0 }
}

fn failed(e: nix::errno::Errno) -> Error {
    Error::new(ErrorKind::Unavailable, "the file's directory cannot be locked").with_source(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_lease_of_others_is_seen_and_ends_with_them() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| Presence::open(&folder.path().join(name), folder.path(), None).unwrap();
        let (mut a, mut b, c, mut d) = (of("x.db"), of("x.db"), of("x.db"), of("y.db"));
        let ms = |ms: i64| ms * 1_000_000;
        d.set(ms(90_000)).unwrap();
        assert_eq!(c.longest_of_others().unwrap(), 0, "another file's");
        a.set(ms(2_000)).unwrap();
        b.set(ms(30_000) - 1).unwrap();
        assert_eq!(c.longest_of_others().unwrap(), ms(30_000));
        assert_eq!(b.longest_of_others().unwrap(), ms(2_000), "its own does not count");
        b.set(ms(1_000)).unwrap();
        assert_eq!(c.longest_of_others().unwrap(), ms(2_000));
        drop(a);
        assert_eq!((c.longest_of_others().unwrap(), b.longest()), (ms(1_000), ms(1_000)));
        let (guardians, again) =
            (share(&b.folder).unwrap(), Presence::open(&folder.path().join("x.db"), folder.path(), Some(&b)).unwrap());
        drop((b, again));
        assert_eq!(c.longest_of_others().unwrap(), ms(1_000), "a guardian has it open");
        drop(guardians);
        let mut b = of("x.db");
        b.set(ms(1_000)).unwrap();
        b.set(0).unwrap();
        assert_eq!(c.longest_of_others().unwrap(), 0);
        b.set(i64::MAX).unwrap();
        assert!(c.longest_of_others().unwrap() > ms(24 * 3_600_000));
    }
}
