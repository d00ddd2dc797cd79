//! The guarded program: its leader, what it leaves behind, and when it must end. All decisions of the guardian are here.

use std::io;
use std::time::Duration;

use leasehold::seam::Moment;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid};

use super::deadline::Plan;
use super::wire::{Ended, Leftovers, Status, Why};
use crate::processes::{self, Children, Left};
use crate::signals;

/// How soon to check again processes whose end is not reported: while they may end by themselves, and once they were killed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const KILLED_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// One program. Its leader stays unreaped to the last, so that its process group's id stays its own.
#[derive(Debug)]
pub(super) struct ProcessTree {
    children: Children,
    leader: i32,
    plan: Plan,
    deadline: Moment,
    leftovers: Leftovers,
    status: Option<Status>,
    ending: Option<Ending>,
    /// The leader was reaped: its group must not be signalled any more.
    reaped: bool,
    /// The processes that the last round of killing found, and may kill.
    met: Vec<i32>,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    why: Why,
    scope: Scope,
    kill_at: Moment,
    /// When a process was killed that had not been found before; at first, when the killing began.
    killed_at: Option<Moment>,
}

/// Which processes have to end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Scope {
    /// The program's process group.
    Group,
    /// Every descendant.
    All,
}

/// What the guardian does next.
pub(super) enum Verdict {
    Wait(Moment),
    Done(Ended),
}

impl ProcessTree {
    pub(super) fn new(
        children: Children,
        leader: i32,
        plan: Plan,
        deadline: Moment,
        leftovers: Leftovers,
    ) -> ProcessTree {
        ProcessTree {
            children,
            leader,
            plan,
            deadline,
            leftovers,
            status: None,
            ending: None,
            reaped: false,
            met: Vec::new(),
        }
    }

    /// What the next program's tree is made of, once this one is done.
    pub(super) fn into_children(self) -> Children {
        self.children
    }

    /// The lock is held until `deadline`. Nothing saves a program that must end already.
    pub(super) fn extend(&mut self, deadline: Moment) {
        self.deadline = self.deadline.max(deadline);
    }

    /// Passes a signal on; false if no process of the program's group may be signalled.
    pub(super) fn signal(&self, number: i32) -> bool {
        signals::numbered(number).is_none_or(|signal| self.signal_group(signal) != Err(Errno::PERM))
    }

    /// Ends the program and all its descendants, by order of the command.
    pub(super) fn end(&mut self, now: Moment, at_once: bool) -> io::Result<()> {
        self.begin(Why::Ordered, Scope::All, if at_once { now } else { now + self.plan.grace })
    }

    /// A child changed: notes the end of the leader, reaps the rest. The signal, if the leader was stopped by one.
    pub(super) fn reap(&mut self) -> io::Result<Option<i32>> {
        let Some(leader) = Pid::from_raw(self.leader) else { return Ok(None) };
        let ask = |options| waitid(WaitId::Pid(leader), options | WaitIdOptions::NOHANG);
        let mut stopped = None;
        if self.status.is_none()
            && let Some(status) = ask(WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)?
        {
            stopped = status.stopping_signal();
            match stopped {
                Some(_) => drop(ask(WaitIdOptions::STOPPED)?),
                None => self.status = Some(status_of(&status)),
            }
        }
        // Once the leader has ended, what is done next begins with that.
        if self.status.is_none() {
            self.others()?;
        }
        Ok(stopped)
    }

    /// What to do at this moment.
    pub(super) fn act(&mut self, now: Moment, command_died: bool) -> io::Result<Verdict> {
        if command_died {
            self.begin(Why::Deadline, Scope::All, now + self.plan.grace)?;
        } else if now >= self.plan.term_at(self.deadline) {
            self.begin(Why::Deadline, Scope::All, self.plan.kill_at(self.deadline))?;
        }
        let Some(mut ending) = self.ending else {
            return match (self.status, self.leftovers) {
                (None, _) => Ok(Verdict::Wait(self.plan.term_at(self.deadline))),
                (Some(_), Leftovers::Wait) if !self.others()?.is_empty() => {
                    Ok(Verdict::Wait(self.plan.term_at(self.deadline)))
                }
                (Some(_), leftovers) => {
                    let others = self.others()?;
                    if leftovers == Leftovers::Kill && !others.is_empty() {
                        self.begin(Why::Itself, Scope::Group, now + self.plan.grace)?;
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
        // What cannot be killed (another user's, or stuck in the kernel) must not make us hang.
        let only_foreign = ending.scope == Scope::All && self.met.is_empty();
        let limit = if only_foreign { self.plan.margin } else { self.plan.margin.max(processes::UNKILLABLE) };
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

    /// No process of this scope seems to live.
    fn over(&mut self, now: Moment, ending: &Ending) -> io::Result<Verdict> {
        match ending.scope {
            // A member whose parent has left the group and lives is no child of ours.
            Scope::Group => drop(self.signal_group(Signal::KILL)),
            Scope::All => {
                self.reaped = self.reaped || processes::reap(self.leader);
                // The kernel decides.
                if !processes::is_childless() {
                    return Ok(Verdict::Wait(now + KILLED_POLL_INTERVAL));
                }
            }
        }
        let others = self.others()?;
        self.done(ending.why, others)
    }

    /// Asks it to end. A wider scope takes over from a narrower one; otherwise the first reason stays.
    fn begin(&mut self, why: Why, scope: Scope, kill_at: Moment) -> io::Result<()> {
        let kill_at = kill_at.min(self.plan.kill_at(self.deadline));
        if let Some(ending) = &mut self.ending
            && ending.scope >= scope
        {
            ending.kill_at = ending.kill_at.min(kill_at);
            return Ok(());
        }
        self.ending = Some(Ending { why, scope, kill_at, killed_at: None });
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

    /// Kills them, and returns whether there was one that the last round had not found: then it makes progress.
    fn kill(&mut self, scope: Scope) -> io::Result<bool> {
        let _ = self.signal_group(Signal::KILL);
        if scope != Scope::All {
            return Ok(false);
        }
        let met = self.children.kill(self.spared())?.into_iter().filter(|left| !left.foreign).map(|left| left.pid);
        let before = std::mem::replace(&mut self.met, met.collect());
        Ok(self.met.iter().any(|pid| !before.contains(pid)))
    }

    fn signal_group(&self, signal: Signal) -> Result<(), Errno> {
        match Pid::from_raw(self.leader).filter(|_| !self.reaped) {
            Some(leader) => kill_process_group(leader, signal),
            None => Ok(()),
        }
    }

    /// Our living children but the leader: every descendant is one, or below one.
    fn others(&self) -> io::Result<Vec<i32>> {
        self.children.living(self.spared())
    }

    /// The leader, as long as its id is its own.
    fn spared(&self) -> &[i32] {
        if self.reaped { &[] } else { std::slice::from_ref(&self.leader) }
    }

    fn any_lives(&self, scope: Scope) -> io::Result<bool> {
        let others = self.others()?;
        Ok(match scope {
            Scope::Group => others.iter().any(|pid| processes::is_in_group(*pid, self.leader)),
            Scope::All => !others.is_empty(),
        })
    }

    /// It is over. `left` live yet.
    fn done(&mut self, why: Why, mut left: Vec<i32>) -> io::Result<Verdict> {
        match self.status {
            Some(_) => self.reaped = self.reaped || processes::reap(self.leader),
            None => left.push(self.leader),
        }
        let left = left.into_iter().map(Left::of).collect();
        Ok(Verdict::Done(Ended { status: self.status, why, left }))
    }
}

fn status_of(status: &WaitIdStatus) -> Status {
    match status.terminating_signal() {
        Some(signal) => Status::Signal(signal),
        None => Status::Code(status.exit_status().unwrap_or(0)),
    }
}
