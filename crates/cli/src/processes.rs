//! The children of this process, as the kernel lists them, and the way to end them all.
//!
//! Nothing here walks `/proc`: its cost grows with the number of processes on the machine, and it
//! misses processes that move meanwhile. A subreaper's living descendants are its children, or
//! below one of them. The kernel lists a process's own children. When a child ends, its children
//! join the list in the same step, and a child leaves the list only when this process reaps it. A
//! list without a living child therefore means that no descendant lives.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, getpid, kill_process, test_kill_process, waitid,
};
use serde::{Deserialize, Serialize};

/// After this time, a process that we may kill and have killed counts as unkillable: it is stuck in
/// the kernel. On a busy machine it takes a while until a killed process gets to run, and ends.
pub(crate) const UNKILLABLE: Duration = Duration::from_secs(5);
/// The number of rounds that kill, before anything else is done, the processes that became our
/// children while others were killed.
const PASSES: usize = 1000;

/// The text of `/proc/self/status`, read once; empty if there is no `/proc`.
#[derive(Debug)]
pub(crate) struct Status(String);

impl Status {
    pub(crate) fn read() -> Status {
        // The kernel returns the whole text at once if it fits.
        let mut text = vec![0; 16_384];
        let read = File::open("/proc/self/status").and_then(|mut file| file.read(&mut text));
        Status(read.map_or_else(
            |_| String::new(),
            |read| String::from_utf8_lossy(&text[..read]).into_owned(),
        ))
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    }

    /// The signals that this process ignores, as a set of bits.
    pub(crate) fn ignored_signals(&self) -> u64 {
        self.field("SigIgn:")
            .and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .unwrap_or(0)
    }
}

/// The kernel's list of the children of this process, including those that become its children
/// because their parents have ended.
#[derive(Debug)]
pub(crate) struct Children(File);

impl Children {
    /// Opens the list, once and early: later, neither a lack of file descriptors nor a missing
    /// `/proc` hides a child. It is called in a process's first thread, the only one that has
    /// children.
    ///
    /// # Errors
    /// The list is missing or useless: there is no `/proc`, it is that of another PID namespace, or
    /// the kernel does not list children.
    pub(crate) fn open(status: &Status) -> io::Result<Children> {
        let refuse = |why: &str| {
            let what = "descendants of CMD could outlive the lock, so it is not run";
            Err(io::Error::other(format!("{why}; without it {what}")))
        };
        if status.0.is_empty() {
            return refuse(
                "there is no /proc of this PID namespace: mount it (`mount -t proc proc /proc`, `unshare --mount-proc`)",
            );
        }
        // The field has one number for each namespace, from that of /proc down to ours.
        if status
            .field("NSpid:")
            .is_some_and(|numbers| numbers.split_whitespace().count() != 1)
        {
            return refuse(
                "/proc is that of another PID namespace: mount ours (`mount -t proc proc /proc`, `unshare --mount-proc`)",
            );
        }
        match File::open("/proc/thread-self/children") {
            Ok(list) => Ok(Children(list)),
            Err(e) => refuse(&format!(
                "the kernel does not list our children (CONFIG_PROC_CHILDREN): {e}"
            )),
        }
    }

    /// All children, ended ones too.
    pub(crate) fn all(&self) -> io::Result<Vec<i32>> {
        let mut text = Vec::new();
        let mut part = [0; 4096];
        loop {
            match self.0.read_at(&mut part, text.len() as u64)? {
                0 => break,
                read => text.extend_from_slice(&part[..read]),
            }
        }
        let text = String::from_utf8_lossy(&text);
        Ok(text
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect())
    }

    /// The living children, except `except`. The ended ones are reaped. Until then no other process
    /// can have their ids.
    pub(crate) fn living(&self, except: &[i32]) -> io::Result<Vec<i32>> {
        living_of(|| self.all(), |pid| except.contains(&pid), reap)
    }

    /// Kills every child except `except`, also those that become children meanwhile. Returns those
    /// that had not ended yet; call it again until there are none.
    pub(crate) fn kill(&self, except: &[i32]) -> io::Result<Vec<Left>> {
        let mut foreign = HashMap::new();
        let mut living = Vec::new();
        for _ in 0..PASSES {
            living = self.living(except)?;
            let met = foreign.len();
            for pid in &living {
                foreign
                    .entry(*pid)
                    .or_insert_with(|| signal(*pid, Signal::KILL) == Err(Errno::PERM));
            }
            if foreign.len() == met {
                break;
            }
        }
        Ok(living
            .into_iter()
            .map(|pid| Left {
                pid,
                foreign: foreign[&pid],
            })
            .collect())
    }
}

/// The living children of a list, except `except`. A child that ends after the list was read leaves
/// its own children to this process, and they are not on the list. Only a list without an ended
/// child therefore shows that none lives.
fn living_of(
    mut list: impl FnMut() -> io::Result<Vec<i32>>,
    except: impl Fn(i32) -> bool,
    mut reap: impl FnMut(i32) -> bool,
) -> io::Result<Vec<i32>> {
    loop {
        let (ended, living): (Vec<i32>, Vec<i32>) = list()?
            .into_iter()
            .filter(|pid| !except(*pid))
            .partition(|pid| reap(*pid));
        if ended.is_empty() || !living.is_empty() {
            return Ok(living);
        }
    }
}

/// A process that still runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Left {
    pub(crate) pid: i32,
    /// We may not signal it: it runs as another user.
    pub(crate) foreign: bool,
}

impl Left {
    /// Describes a child of this process.
    pub(crate) fn of(pid: i32) -> Left {
        Left {
            pid,
            foreign: Pid::from_raw(pid)
                .is_some_and(|pid| test_kill_process(pid) == Err(Errno::PERM)),
        }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.foreign {
            " (of another user: it may not be signalled)"
        } else {
            ""
        };
        write!(f, "{}{whose}", self.pid)
    }
}

/// A text about the program's end, by this command.
pub(crate) fn how_ended(left: &[Left]) -> String {
    match left {
        [] => "the program was ended".into(),
        left => format!(
            "what could be ended was, but these processes run on: {}",
            listed(left)
        ),
    }
}

pub(crate) fn listed(left: &[Left]) -> String {
    left.iter()
        .map(Left::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns whether this process has no child at all, living or ended.
pub(crate) fn is_childless() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// Checks that the kernel lets this process wait for its children. Otherwise it would not see the
/// end of a program.
///
/// # Errors
/// A sandbox refuses the system call.
pub(crate) fn can_wait() -> io::Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::All, options) {
        Ok(_) | Err(Errno::CHILD | Errno::INTR) => Ok(()),
        Err(e) => Err(io::Error::other(format!(
            "this process may not wait for its children (waitid: {e}), so the end of CMD would not be seen, and it is not run; \
             a seccomp filter of a container or sandbox refuses it: allow waitid there"
        ))),
    }
}

/// Reaps one child if it has ended, with all its threads; returns false if it lives.
pub(crate) fn reap(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else {
        return true;
    };
    !matches!(
        waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG
        ),
        Ok(None) | Err(Errno::INTR)
    )
}

/// Sends a signal to a child that has not been reaped.
pub(crate) fn signal(pid: i32, signal: Signal) -> Result<(), Errno> {
    Pid::from_raw(pid).map_or(Ok(()), |pid| kill_process(pid, signal))
}

/// Returns whether a child that has not been reaped is in this process group. It needs no file
/// descriptor.
pub(crate) fn is_in_group(pid: i32, group: i32) -> bool {
    getpgid(Pid::from_raw(pid)).is_ok_and(|found| found.as_raw_nonzero().get() == group)
}

/// The parent, the process group and the session of a process.
///
/// Each of them is 0 if it is outside of this PID namespace, as the session of a container's
/// command is. `rustix` takes such a number for impossible, so its `getsid`, `getpgid` and `getpgrp`
/// are for processes that we started ourselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kin {
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
}

impl Kin {
    /// Returns `None` if there is no such process.
    pub(crate) fn of(pid: i32) -> Option<Kin> {
        Kin::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads a text of `/proc/PID/stat`: `PID (NAME) STATE PARENT GROUP SESSION …`. A name can
    /// contain spaces, parentheses and any bytes.
    fn parse(stat: &[u8]) -> Option<Kin> {
        let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&stat[name_ends + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace().skip(1).map(str::parse);
        let mut next = || fields.next()?.ok();
        Some(Kin {
            parent: next()?,
            group: next()?,
            session: next()?,
        })
    }
}

pub(crate) fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_of_a_container_is_outside_of_it() {
        let kin = |parent, group, session| {
            Some(Kin {
                parent,
                group,
                session,
            })
        };
        assert_eq!(Kin::parse(b"8 (sh) S 7 8 0 -1 4194304"), kin(7, 8, 0));
        assert_eq!(Kin::parse(b"8 (a) R 1 2 (3) \xff) S 7 8 9 0"), kin(7, 8, 9));
        assert_eq!(Kin::parse(b"8 (sh) S 7 8"), None);
        assert_eq!(Kin::of(own_pid()).map(|kin| kin.parent > 0), Some(true));
    }

    #[test]
    fn the_children_of_a_child_that_just_ended_are_not_missed() {
        // Child 3 ends while it is checked, and its child 4 becomes ours; 2 is excepted.
        let mut lists = [vec![2, 3], vec![2, 4]].into_iter();
        let list = || Ok(lists.next().unwrap());
        assert_eq!(
            living_of(list, |pid| pid == 2, |pid| pid == 3).unwrap(),
            vec![4]
        );
        // A list without a child that ends is the last one.
        let mut lists = [vec![2, 3, 5], vec![2]].into_iter();
        let list = || Ok(lists.next().unwrap());
        assert_eq!(
            living_of(list, |pid| pid == 2, |pid| pid != 2).unwrap(),
            Vec::<i32>::new()
        );
        assert_eq!(lists.next(), None);
    }
}
