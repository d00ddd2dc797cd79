//! The guarded program: its leader, what it leaves behind, and when it must end. All decisions of the guardian are here.

use std::io;
use std::time::Duration;

use leasehold::seam::Moment;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};

use super::deadline::Plan;
use super::wire::{Ended, Leftovers, Status, Why};
use crate::processes::{self, Left};

/// How soon to look again at processes that say nothing when they end: while they may end by themselves, and once they
/// were killed.
const GLANCE: Duration = Duration::from_millis(20);
const KILLED: Duration = Duration::from_millis(2);

/// One program. Its leader stays unreaped to the last, so that its process group's id stays its own.
#[derive(Debug)]
pub(super) struct Ward {
    leader: i32,
    plan: Plan,
    deadline: Moment,
    leftovers: Leftovers,
    status: Option<Status>,
    ending: Option<Ending>,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    why: Why,
    scope: Scope,
    kill_at: Moment,
    /// When it was first killed.
    killed_at: Option<Moment>,
}

/// Whom an end is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Scope {
    /// The program's process group.
    Group,
    /// Every descendant.
    All,
}

/// What the guardian does next.
pub(super) enum Verdict {
    Look(Moment),
    Done(Ended),
}

impl Ward {
    pub(super) fn new(leader: i32, plan: Plan, deadline: Moment, leftovers: Leftovers) -> Ward {
        Ward { leader, plan, deadline, leftovers, status: None, ending: None }
    }

    /// The lock is held until `deadline`. Nothing saves a program that must end already.
    pub(super) fn extend(&mut self, deadline: Moment) {
        self.deadline = self.deadline.max(deadline);
    }

    /// Passes a signal on; false if nobody in the program's group may be signalled.
    pub(super) fn signal(&self, number: i32) -> bool {
        let signal = crate::signals::named(number);
        signal.is_none_or(|signal| killpg(Pid::from_raw(self.leader), signal) != Err(Errno::EPERM))
    }

    /// Ends the program and all its descendants, by order of the command.
    pub(super) fn end(&mut self, now: Moment, at_once: bool) {
        self.begin(Why::Ordered, Scope::All, if at_once { now } else { now + self.plan.grace });
    }

    /// A child changed: notes the end of the leader, reaps the rest. The signal, if the leader was stopped by one.
    pub(super) fn look(&mut self) -> io::Result<Option<i32>> {
        let Some(leader) = rustix::process::Pid::from_raw(self.leader) else { return Ok(None) };
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
        processes::reap_ended(self.leader);
        Ok(stopped)
    }

    /// What to do at this moment.
    pub(super) fn act(&mut self, now: Moment, command_died: bool) -> Verdict {
        if command_died {
            self.begin(Why::Deadline, Scope::All, now + self.plan.grace);
        } else if now >= self.plan.term_at(self.deadline) {
            self.begin(Why::Deadline, Scope::All, self.plan.kill_at(self.deadline));
        }
        let Some(ending) = &mut self.ending else {
            return match (self.status, self.leftovers) {
                (None, _) => Verdict::Look(self.plan.term_at(self.deadline)),
                (Some(_), Leftovers::Wait) if !self.others().is_empty() => {
                    Verdict::Look(self.plan.term_at(self.deadline))
                }
                (Some(_), Leftovers::Kill) if processes::group_lives(self.leader) => {
                    self.begin(Why::Itself, Scope::Group, now + self.plan.grace);
                    self.act(now, command_died)
                }
                (Some(_), _) => self.done(Why::Itself),
            };
        };
        if now >= ending.kill_at {
            ending.killed_at.get_or_insert(now);
        }
        let ending = *ending;
        if ending.killed_at.is_some() {
            self.kill(ending.scope);
        }
        let over = self.status.is_some()
            && match ending.scope {
                Scope::Group => !processes::group_lives(self.leader),
                Scope::All => self.others().is_empty(),
            };
        // What cannot be killed (another user's, or stuck in the kernel) must not make us hang.
        if over || ending.killed_at.is_some_and(|at| now >= at + self.plan.margin) {
            return self.done(ending.why);
        }
        Verdict::Look(match (ending.killed_at, self.status) {
            (Some(_), _) => now + KILLED,
            (None, Some(_)) => ending.kill_at.min(now + GLANCE),
            (None, None) => ending.kill_at,
        })
    }

    /// Asks it to end. A wider scope takes over from a narrower one; otherwise the first reason stays.
    fn begin(&mut self, why: Why, scope: Scope, kill_at: Moment) {
        let kill_at = kill_at.min(self.plan.kill_at(self.deadline));
        if let Some(ending) = &mut self.ending
            && ending.scope >= scope
        {
            ending.kill_at = ending.kill_at.min(kill_at);
            return;
        }
        self.ending = Some(Ending { why, scope, kill_at, killed_at: None });
        self.ask_to_end(Pid::from_raw(self.leader), killpg);
        if scope == Scope::All {
            self.others().into_iter().for_each(|pid| self.ask_to_end(Pid::from_raw(pid), kill));
        }
    }

    /// A stopped process must run to end by itself.
    fn ask_to_end(&self, pid: Pid, send: fn(Pid, Signal) -> nix::Result<()>) {
        let _ = send(pid, Signal::SIGTERM);
        let _ = send(pid, Signal::SIGCONT);
    }

    fn kill(&self, scope: Scope) {
        let _ = killpg(Pid::from_raw(self.leader), Signal::SIGKILL);
        if scope == Scope::All {
            processes::kill_children(&[self.leader]);
        }
    }

    /// Our living children but the leader: every descendant is one, or below one.
    fn others(&self) -> Vec<i32> {
        processes::living_children(self.leader)
    }

    fn done(&mut self, why: Why) -> Verdict {
        let mut left = self.others();
        match self.status {
            Some(_) => processes::reap(self.leader),
            None => left.push(self.leader),
        }
        let left = left.into_iter().map(Left::of).collect();
        Verdict::Done(Ended { status: self.status, why, left })
    }
}

fn status_of(status: &WaitIdStatus) -> Status {
    match status.terminating_signal() {
        Some(signal) => Status::Signal(signal),
        None => Status::Code(status.exit_status().unwrap_or(0)),
    }
}
