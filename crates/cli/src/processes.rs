//! The children of this process, as the kernel lists them, and the way to end them all.
//!
//! Nothing here walks `/proc`: that costs as much as the machine has processes, and misses those that move meanwhile. A subreaper's
//! living descendants are its children, or below one of them. The kernel lists a process's own children; as one ends, its
//! children join the list, in the same step; and only those that this process reaps leave it. So a list without a living child means
//! that no descendant lives.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgid, getpid, kill_process, test_kill_process, waitid};
use serde::{Deserialize, Serialize};

/// After how long a process that we may kill and have killed is taken for one that cannot be: it is stuck in the kernel. On a
/// busy machine it takes a while until it gets to run, and ends.
pub(crate) const UNKILLABLE: Duration = Duration::from_secs(5);
/// How often those that came to us while others were killed are killed at once, before anything else is done.
const PASSES: usize = 1000;

/// What `/proc` says of this process, read once. Nothing if there is no `/proc`.
#[derive(Debug)]
pub(crate) struct Status(String);

impl Status {
    pub(crate) fn read() -> Status {
        // The kernel gives all of it at once, if it fits.
        let mut text = vec![0; 16_384];
        let read = File::open("/proc/self/status").and_then(|mut file| file.read(&mut text));
        Status(read.map_or_else(|_| String::new(), |read| String::from_utf8_lossy(&text[..read]).into_owned()))
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
    }

    /// The signals that this process ignores, as a set of bits.
    pub(crate) fn ignored_signals(&self) -> u64 {
        self.field("SigIgn:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
    }
}

/// The kernel's list of the children of this process, and of those that become its own because their parents have ended.
#[derive(Debug)]
pub(crate) struct Children(File);

impl Children {
    /// Opens the list, once and early: later neither a lack of file descriptors nor a `/proc` that has gone hides a child. Called in
    /// a process's first thread, the only one that has children.
    ///
    /// # Errors
    /// Where the list is not there or is of no use: no `/proc`, one of another PID namespace, or a kernel without it.
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
        // One number for each namespace, from the one that /proc shows down to ours.
        if status.field("NSpid:").is_some_and(|numbers| numbers.split_whitespace().count() != 1) {
            return refuse(
                "/proc is that of another PID namespace: mount ours (`mount -t proc proc /proc`, `unshare --mount-proc`)",
            );
        }
        match File::open("/proc/thread-self/children") {
            Ok(list) => Ok(Children(list)),
            Err(e) => refuse(&format!("the kernel does not list our children (CONFIG_PROC_CHILDREN): {e}")),
        }
    }

    /// All of them, ended ones too.
    pub(crate) fn all(&self) -> io::Result<Vec<i32>> {
        let (mut text, mut part) = (Vec::new(), [0; 4096]);
        loop {
            match self.0.read_at(&mut part, text.len() as u64)? {
                0 => break,
                read => text.extend_from_slice(&part[..read]),
            }
        }
        let text = String::from_utf8_lossy(&text);
        Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    }

    /// Those that live, but none of `except`. The others are reaped. Until then no other process can have their ids.
    pub(crate) fn living(&self, except: &[i32]) -> io::Result<Vec<i32>> {
        living_of(|| self.all(), |pid| except.contains(&pid), reap)
    }

    /// Kills every child but `except`, also those that come to us meanwhile. Returns those that had not ended yet; it is to
    /// be called again until there are none.
    pub(crate) fn kill(&self, except: &[i32]) -> io::Result<Vec<Left>> {
        let mut foreign = HashMap::new();
        let mut living = Vec::new();
        for _ in 0..PASSES {
            living = self.living(except)?;
            let met = foreign.len();
            for pid in &living {
                foreign.entry(*pid).or_insert_with(|| signal(*pid, Signal::KILL) == Err(Errno::PERM));
            }
            if foreign.len() == met {
                break;
            }
        }
        Ok(living.into_iter().map(|pid| Left { pid, foreign: foreign[&pid] }).collect())
    }
}

/// Those of a list of children that live, but none of `except`. A child that ends after the list was read leaves its own children
/// to us, which are not on it: so only a list without one that ended says that none lives.
fn living_of(
    mut list: impl FnMut() -> io::Result<Vec<i32>>,
    except: impl Fn(i32) -> bool,
    mut reap: impl FnMut(i32) -> bool,
) -> io::Result<Vec<i32>> {
    loop {
        let (ended, living): (Vec<i32>, Vec<i32>) =
            list()?.into_iter().filter(|pid| !except(*pid)).partition(|pid| reap(*pid));
        if ended.is_empty() || !living.is_empty() {
            return Ok(living);
        }
    }
}

/// A process that runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Left {
    pub(crate) pid: i32,
    /// We may not signal it: it runs as another user.
    pub(crate) foreign: bool,
}

impl Left {
    /// Of a child of this process.
    pub(crate) fn of(pid: i32) -> Left {
        Left { pid, foreign: Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::PERM)) }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.foreign { " (of another user: it may not be signalled)" } else { "" };
        write!(f, "{}{whose}", self.pid)
    }
}

/// How the program was ended, by us.
pub(crate) fn how_ended(left: &[Left]) -> String {
    match left {
        [] => "the program was ended".into(),
        left => format!("what could be ended was, but these processes run on: {}", listed(left)),
    }
}

pub(crate) fn listed(left: &[Left]) -> String {
    left.iter().map(Left::to_string).collect::<Vec<_>>().join(", ")
}

/// Whether this process has no child at all, living or ended.
pub(crate) fn is_childless() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// Reaps one child if it has ended, with all its threads; false if it lives.
pub(crate) fn reap(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return true };
    !matches!(waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(None) | Err(Errno::INTR))
}

/// Sends a signal to a child that has not been reaped.
pub(crate) fn signal(pid: i32, signal: Signal) -> Result<(), Errno> {
    Pid::from_raw(pid).map_or(Ok(()), |pid| kill_process(pid, signal))
}

/// Whether a child that has not been reaped is in this process group.
pub(crate) fn is_in_group(pid: i32, group: i32) -> bool {
    getpgid(Pid::from_raw(pid)).is_ok_and(|found| found.as_raw_nonzero().get() == group)
}

pub(crate) fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_children_of_a_child_that_just_ended_are_not_missed() {
        // While 3 is checked it ends, and its child 4 comes to us; 2 is excepted.
        let mut lists = [vec![2, 3], vec![2, 4]].into_iter();
        let list = || Ok(lists.next().unwrap());
        assert_eq!(living_of(list, |pid| pid == 2, |pid| pid == 3).unwrap(), vec![4]);
        // A list without one that ends is the last.
        let mut lists = [vec![2, 3, 5], vec![2]].into_iter();
        let list = || Ok(lists.next().unwrap());
        assert_eq!(living_of(list, |pid| pid == 2, |pid| pid != 2).unwrap(), Vec::<i32>::new());
        assert_eq!(lists.next(), None);
    }
}
