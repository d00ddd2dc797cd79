//! The guardian's own process: one thread, all signals blocked, three events (a message of the command, the end of
//! a child, a timer on the clock that counts suspend), and one rule for what to do next.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use leasehold::seam::Moment;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::set_child_subreaper;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::process_tree::{ProcessTree, Verdict};
use super::wire::{self, Event, Order, Start};
use super::{EXEC, OURSELVES};
use crate::processes::Children;
use crate::{exit, processes, run_outcome, signals};

/// `__guardian -- CMD…`, with the command at the other end of standard input.
pub(crate) fn main(words: &[OsString]) -> ExitCode {
    let program = match words {
        [separator, program @ ..] if separator == "--" && !program.is_empty() => program,
        _ => return exit::not_for_users().end(),
    };
    match guard(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The kernel ends the program with us, and the command the rest.
            exit::say(format_args!("the guardian failed: {e}"));
            exit::FAILED.into()
        }
    }
}

struct Guardian<'a> {
    program: &'a [OsString],
    children: SignalFd,
    timer: OwnedFd,
    /// Until the program starts.
    offspring: Option<Children>,
    tree: Option<ProcessTree>,
    /// The store's sign that we live: closed last, by our end.
    _life_line: Vec<OwnedFd>,
}

fn guard(program: &[OsString]) -> io::Result<()> {
    let children = signals::block_all()?;
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let offspring = Some(Children::open()?);
    Guardian { program, children, timer, offspring, tree: None, _life_line: Vec::new() }.listen()
}

impl Guardian<'_> {
    fn listen(mut self) -> io::Result<()> {
        let command = rustix::stdio::stdin();
        let mut command_lives = true;
        loop {
            let mut fds = vec![PollFd::new(&self.children, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
            if command_lives {
                fds.push(PollFd::new(&command, PollFlags::IN));
            }
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            drop(fds);
            let mut child_changed = false;
            while self.children.read_signal()?.is_some() {
                child_changed = true;
            }
            if command_lives {
                command_lives = self.receive()?;
            }
            let Some(tree) = &mut self.tree else {
                if command_lives {
                    continue;
                }
                return Ok(());
            };
            if child_changed && let Some(signal) = tree.reap()? {
                notify(&Event::Stopped { signal });
            }
            match tree.act(Moment::now(), !command_lives)? {
                Verdict::Done(ended) => {
                    if !command_lives && !ended.left.is_empty() {
                        // The command that would say it is not there any more.
                        exit::say(run_outcome::how_ended(&ended.left));
                    }
                    notify(&Event::Ended(ended));
                    return Ok(());
                }
                Verdict::Wait(at) => self.wake_at(at)?,
            }
        }
    }

    /// Reads all orders; false once the command has ended.
    fn receive(&mut self) -> io::Result<bool> {
        loop {
            let (order, fds) = match wire::receive(rustix::stdio::stdin()) {
                Ok(Some(received)) => received,
                Ok(None) => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            match (order, &mut self.tree) {
                (Order::Start(start), None) => match self.start(&start, fds) {
                    Ok(pid) => notify(&Event::Started { pid }),
                    Err(e) => notify(&Event::Failed(format!("starting the program: {e}"))),
                },
                (Order::Deadline(nanos), Some(tree)) => {
                    tree.extend(Moment::from_nanos(nanos));
                    // Also while it is ending the program: it lives, and does its work.
                    notify(&Event::Ack(nanos));
                }
                (Order::Signal(signal), Some(tree)) => {
                    if !tree.signal(signal) {
                        notify(&Event::NotSignalled { signal });
                    }
                }
                (Order::End { at_once }, Some(tree)) => tree.end(Moment::now(), at_once)?,
                (_, _) => {}
            }
        }
    }

    fn start(&mut self, start: &Start, fds: Vec<OwnedFd>) -> io::Result<i32> {
        let children = self.offspring.take().ok_or_else(|| io::Error::other("there was a program before"))?;
        let mut fds = fds.into_iter();
        let stdin = fds.next().map_or_else(Stdio::null, Stdio::from);
        self._life_line = fds.collect();
        let blocked: Vec<String> = start.blocked.iter().map(i32::to_string).collect();
        let mut command = Command::new(OURSELVES);
        command.arg0("leasehold").arg(EXEC).arg(processes::own_pid().to_string());
        command.args([if start.foreground { "foreground" } else { "background" }, &blocked.join(","), "--"]);
        command.args(self.program).stdin(stdin).process_group(0);
        command.envs(start.environment.iter().map(|(name, value)| (name, value)));
        let pid = i32::try_from(command.spawn()?.id()).map_err(io::Error::other)?;
        self.tree =
            Some(ProcessTree::new(children, pid, start.plan, Moment::from_nanos(start.deadline), start.leftovers));
        Ok(pid)
    }

    fn wake_at(&self, at: Moment) -> io::Result<()> {
        // Zero would disarm it.
        let nanos = at.as_nanos().max(1);
        let at = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let when = Itimerspec { it_interval: never, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &when)?;
        Ok(())
    }
}

/// Sends it to the command. One that is stopped and does not read misses what it can do without.
fn notify(event: &Event) {
    let _ = wire::send(rustix::stdio::stdin().as_fd(), event, &[]);
}
