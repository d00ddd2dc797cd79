//! What `/proc` says about processes, and the way to end all children of this one.

use std::{fmt, fs, io};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};

/// One process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    group: i32,
    ended: bool,
}

/// All processes. `None` if there is no `/proc`, or one of another PID namespace.
fn all() -> Option<Vec<Process>> {
    let own = fs::read_link("/proc/self").ok()?.to_str()?.parse::<u32>().ok()?;
    if own != std::process::id() {
        return None;
    }
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // One that ends meanwhile is not there any more.
    Some(pids.filter_map(|pid: i32| parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect())
}

/// A line of `/proc/PID/stat`: the name, in parentheses, may contain anything.
fn parse(stat: &str) -> Option<Process> {
    let (head, tail) = (stat.split_once(" (")?.0, stat.rsplit_once(") ")?.1);
    let mut words = tail.split(' ');
    let state = words.next()?;
    let mut number = || words.next()?.parse().ok();
    Some(Process { pid: head.parse().ok()?, parent: number()?, group: number()?, ended: matches!(state, "Z" | "X") })
}

/// The children of this process, ended ones too. Nobody else may reap them, so their ids stay theirs.
pub(crate) fn children() -> Vec<Process> {
    let own = own_pid();
    all().unwrap_or_default().into_iter().filter(|process| process.parent == own).collect()
}

/// The children of this process that have not ended, but not `except`.
pub(crate) fn living_children(except: i32) -> Vec<i32> {
    children().iter().filter(|child| !child.ended && child.pid != except).map(|child| child.pid).collect()
}

/// Whether a process of this group lives.
pub(crate) fn group_lives(group: i32) -> bool {
    all().unwrap_or_default().iter().any(|process| process.group == group && !process.ended)
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
        Left { pid, foreign: kill(Pid::from_raw(pid), None) == Err(Errno::EPERM) }
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.foreign { " (of another user: it may not be signalled)" } else { "" };
        write!(f, "{}{whose}", self.pid)
    }
}

/// Kills every child of this process but `except`, and reaps those that have ended. As each ends, its children become
/// ours: rounds go on until none is left. Only our own unreaped children are signalled, so no id can have become
/// somebody else's. Returns those that had not ended yet, also if they were killed now.
pub(crate) fn kill_children(except: &[i32]) -> Vec<Left> {
    let mut living = Vec::new();
    for child in children().into_iter().filter(|child| !except.contains(&child.pid)) {
        if child.ended {
            reap(child.pid);
            continue;
        }
        let foreign = kill(Pid::from_raw(child.pid), Signal::SIGKILL) == Err(Errno::EPERM);
        living.push(Left { pid: child.pid, foreign });
    }
    living
}

/// Reaps the children that have ended, but not `except`.
pub(crate) fn reap_ended(except: i32) {
    children().iter().filter(|child| child.ended && child.pid != except).for_each(|child| reap(child.pid));
}

/// Reaps one child that has ended.
pub(crate) fn reap(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Waits for the end of one child.
pub(crate) fn wait_for(pid: i32) -> io::Result<()> {
    let Some(pid) = rustix::process::Pid::from_raw(pid) else { return Ok(()) };
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED)?;
    Ok(())
}

pub(crate) fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_anything() {
        let process = parse("42 (a) b (c) S 1 40 40 0 -1").unwrap();
        assert_eq!(process, Process { pid: 42, parent: 1, group: 40, ended: false });
        assert!(parse("43 (x) Z 1 40 40 0 -1").unwrap().ended);
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn this_process_is_there() {
        let own = own_pid();
        assert!(all().unwrap().iter().any(|process| process.pid == own && !process.ended));
    }
}
