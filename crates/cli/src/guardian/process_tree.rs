//! The guarded program: its leader, the processes that it leaves behind, and the time at which it
//! must end. All decisions of the guardian are here.

use std::fs;
use std::io;
use std::time::Duration;

use leasehold::backend::Moment;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid,
};

use super::deadline::Deadline;
use super::wire::{Ended, Leftovers, Status, Why};
use crate::processes::{self, Children, Left};
use crate::signals;

/// The intervals at which processes are checked whose end is not reported: while they may end by
/// themselves, and once they were killed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const KILLED_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// One program. Its leader is reaped last, so that no other process group gets its id.
#[derive(Debug)]
pub(super) struct ProcessTree {
    children: Children,
    leader: i32,
    deadline: Deadline,
    leftovers: Leftovers,
    status: Option<Status>,
    ending: Option<Ending>,
    /// The leader was reaped, so its group must not be signalled any more.
    reaped: bool,
    /// The processes that the last round of killing found, and may kill.
    met: Vec<i32>,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    why: Why,
    scope: Scope,
    kill_at: Moment,
    /// The last time that a process was killed that had not been found before; at first, the time
    /// at which the killing began.
    killed_at: Option<Moment>,
}

/// The processes that have to end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Scope {
    /// The program's process group.
    Group,
    /// Every descendant.
    All,
}

/// The next step of the guardian.
pub(super) enum Verdict {
    Wait(Moment),
    Done(Ended),
}

impl ProcessTree {
    pub(super) fn new(
        children: Children,
        leader: i32,
        deadline: Deadline,
        leftovers: Leftovers,
    ) -> ProcessTree {
        ProcessTree {
            children,
            leader,
            deadline,
            leftovers,
            status: None,
            ending: None,
            reaped: false,
            met: Vec::new(),
        }
    }

    /// Returns the list of children, for the tree of the next program.
    pub(super) fn into_children(self) -> Children {
        self.children
    }

    /// Replaces the deadline. A later one does not save a program that must end already.
    pub(super) fn extend(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    /// Returns whether the program is in the guardian's control group, or below it. It then gets
    /// the signals that are sent to the whole unit.
    pub(super) fn is_in_our_cgroup(&self) -> bool {
        let of = |process: &str| fs::read_to_string(format!("/proc/{process}/cgroup"));
        let (Ok(ours), Ok(its)) = (of("self"), of(&self.leader.to_string())) else {
            return false;
        };
        is_below(&ours, &its)
    }

    /// Passes a signal on; returns false if no process of the program's group may be signalled.
    pub(super) fn signal(&self, number: i32) -> bool {
        signals::numbered(number).is_none_or(|signal| self.signal_group(signal) != Err(Errno::PERM))
    }

    /// Ends the program and all its descendants, by order of the command.
    pub(super) fn end(&mut self, now: Moment, at_once: bool) -> io::Result<()> {
        self.begin(
            Why::Ordered,
            Scope::All,
            if at_once {
                now
            } else {
                now + self.deadline.grace()
            },
        )
    }

    /// Handles a change of a child: records the end of the leader, and reaps the others. Returns
    /// the signal if one has stopped the leader.
    pub(super) fn reap(&mut self) -> io::Result<Option<i32>> {
        let Some(leader) = Pid::from_raw(self.leader) else {
            return Ok(None);
        };
        let ask = |options| waitid(WaitId::Pid(leader), options | WaitIdOptions::NOHANG);
        let mut stopped = None;
        if self.status.is_none()
            && let Some(status) =
                ask(WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)?
        {
            stopped = status.stopping_signal();
            match stopped {
                Some(_) => drop(ask(WaitIdOptions::STOPPED)?),
                None => self.status = Some(status_of(&status)),
            }
        }
        // Once the leader has ended, the next step lists and reaps the others anyway.
        if self.status.is_none() {
            self.others()?;
        }
        Ok(stopped)
    }

    /// Does what is due at this moment, and returns the next step.
    pub(super) fn act(&mut self, now: Moment, command_died: bool) -> io::Result<Verdict> {
        if command_died {
            self.begin(Why::Deadline, Scope::All, now + self.deadline.grace())?;
        } else if now >= self.deadline.term_at() {
            self.begin(Why::Deadline, Scope::All, self.deadline.kill_at())?;
        }
        let Some(mut ending) = self.ending else {
            return match (self.status, self.leftovers) {
                (None, _) => Ok(Verdict::Wait(self.deadline.term_at())),
                (Some(_), Leftovers::Wait) if !self.others()?.is_empty() => {
                    Ok(Verdict::Wait(self.deadline.term_at()))
                }
                (Some(_), leftovers) => {
                    let others = self.others()?;
                    if leftovers == Leftovers::Kill && !others.is_empty() {
                        self.begin(Why::Itself, Scope::Group, now + self.deadline.grace())?;
                        return self.act(now, command_died);
                    }
                    self.done(Why::Itself, others)
                }
            };
        };
        if now >= ending.kill_at {
            let came_forth = self.kill(ending.scope)?;
            if came_forth || ending.killed_at.is_none() {
                ending.killed_at = Some(now);
            }
            self.ending = Some(ending);
        }
        // Processes that cannot be killed (another user's, or stuck in the kernel) must not block
        // the guardian for ever.
        let only_foreign = ending.scope == Scope::All && self.met.is_empty();
        let limit = if only_foreign {
            self.deadline.margin()
        } else {
            self.deadline.margin().max(processes::UNKILLABLE)
        };
        if ending.killed_at.is_some_and(|at| now >= at + limit) {
            let others = self.others()?;
            return self.done(ending.why, others);
        }
        if self.status.is_some() && !self.any_lives(ending.scope)? {
            return self.over(now, &ending);
        }
        Ok(Verdict::Wait(match (ending.killed_at, self.status) {
            (Some(_), _) => now + KILLED_POLL_INTERVAL,
            (None, Some(_)) => ending.kill_at.min(now + POLL_INTERVAL),
            (None, None) => ending.kill_at,
        }))
    }

    /// Finishes when no process of this scope seems to live, or waits if the kernel still knows a
    /// child.
    fn over(&mut self, now: Moment, ending: &Ending) -> io::Result<Verdict> {
        match ending.scope {
            // A group member whose parent has left the group, and lives, is not our child.
            Scope::Group => drop(self.signal_group(Signal::KILL)),
            Scope::All => {
                self.reaped = self.reaped || processes::reap(self.leader);
                // The kernel's answer decides.
                if !processes::is_childless() {
                    return Ok(Verdict::Wait(now + KILLED_POLL_INTERVAL));
                }
            }
        }
        let others = self.others()?;
        self.done(ending.why, others)
    }

    /// Asks the processes of this scope to end. A wider scope replaces a narrower one; otherwise
    /// the first reason stays.
    fn begin(&mut self, why: Why, scope: Scope, kill_at: Moment) -> io::Result<()> {
        let kill_at = kill_at.min(self.deadline.kill_at());
        if let Some(ending) = &mut self.ending
            && ending.scope >= scope
        {
            ending.kill_at = ending.kill_at.min(kill_at);
            return Ok(());
        }
        self.ending = Some(Ending {
            why,
            scope,
            kill_at,
            killed_at: None,
        });
        // A stopped process must run to end by itself.
        for signal in [Signal::TERM, Signal::CONT] {
            let _ = self.signal_group(signal);
            if scope == Scope::All {
                for pid in self.others()? {
                    let _ = processes::signal(pid, signal);
                }
            }
        }
        Ok(())
    }

    /// Kills the processes of this scope. Returns whether it met one that the last round had not
    /// found, which is progress.
    fn kill(&mut self, scope: Scope) -> io::Result<bool> {
        let _ = self.signal_group(Signal::KILL);
        if scope != Scope::All {
            return Ok(false);
        }
        let met = self
            .children
            .kill(self.spared())?
            .into_iter()
            .filter(|left| !left.foreign)
            .map(|left| left.pid);
        let before = std::mem::replace(&mut self.met, met.collect());
        Ok(self.met.iter().any(|pid| !before.contains(pid)))
    }

    fn signal_group(&self, signal: Signal) -> Result<(), Errno> {
        match Pid::from_raw(self.leader).filter(|_| !self.reaped) {
            Some(leader) => kill_process_group(leader, signal),
            None => Ok(()),
        }
    }

    /// Our living children except the leader. Every other descendant is one of them, or below one.
    fn others(&self) -> io::Result<Vec<i32>> {
        self.children.living(self.spared())
    }

    /// The leader, until it is reaped. After that, its id may be another process's.
    fn spared(&self) -> &[i32] {
        if self.reaped {
            &[]
        } else {
            std::slice::from_ref(&self.leader)
        }
    }

    fn any_lives(&self, scope: Scope) -> io::Result<bool> {
        let others = self.others()?;
        Ok(match scope {
            Scope::Group => others
                .iter()
                .any(|pid| processes::is_in_group(*pid, self.leader)),
            Scope::All => !others.is_empty(),
        })
    }

    /// Returns the result. The processes `left` still live.
    fn done(&mut self, why: Why, mut left: Vec<i32>) -> io::Result<Verdict> {
        match self.status {
            Some(_) => self.reaped = self.reaped || processes::reap(self.leader),
            None => left.push(self.leader),
        }
        let left = left.into_iter().map(Left::of).collect();
        Ok(Verdict::Done(Ended {
            status: self.status,
            why,
            left,
        }))
    }
}

/// Returns whether each line of one process's `/proc/PID/cgroup` (`0::/system.slice/x.service`)
/// names the group of the other process, or one above it.
fn is_below(ours: &str, its: &str) -> bool {
    let mut its = its.lines();
    ours.lines().all(|our| {
        let it = its.next().unwrap_or_default();
        it.strip_prefix(our)
            .is_some_and(|rest| our.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
    })
}

fn status_of(status: &WaitIdStatus) -> Status {
    match status.terminating_signal() {
        Some(signal) => Status::Signal(signal),
        None => Status::Code(status.exit_status().unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_and_those_below_it() {
        let ours = "1:name=systemd:/a.service\n0::/a.service\n";
        for (its, expected) in [
            (ours, true),
            ("1:name=systemd:/a.service/x\n0::/a.service/x/y\n", true),
            ("1:name=systemd:/a.service\n0::/a.service2\n", false),
            ("1:name=systemd:/a.service\n0::/b.scope\n", false),
            ("1:name=systemd:/a.service\n", false),
        ] {
            assert_eq!(is_below(ours, its), expected, "{its}");
        }
        assert!(is_below("0::/\n", "0::/a\n"));
    }
}
