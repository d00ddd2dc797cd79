//! The guardian's own process: one thread, all signals blocked, three events (a message of the command, the end of
//! a child, a timer on the clock that counts suspend), and one rule for what to do next.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;

use fork::{Fork, fork};
use leasehold::seam::Moment;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, set_child_subreaper, setpgid};
use rustix::thread::set_name;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::exec;
use super::process_tree::{ProcessTree, Verdict};
use super::wire::{self, Event, Order, Start};
use crate::processes::{Children, Status};
use crate::signals::Inherited;
use crate::{exit, processes, signals};

/// The guardian of this program, to its end; with the command at the other end of this socket.
pub(super) fn main(program: &[OsString], command: OwnedFd, signals: &Inherited, status: &Status) -> ! {
    let mut guardian = Guardian::new(program, command, signals, status).unwrap_or_else(|e| failed(&e));
    guardian.listen().unwrap_or_else(|e| failed(&e));
    // With all that it has open, the life line too.
    std::process::exit(0)
}

/// The kernel ends the program with us, and the command the rest.
fn failed<T>(e: &io::Error) -> T {
    exit::say(format_args!("the guardian failed: {e}"));
    std::process::exit(exit::FAILED.into())
}

struct Guardian<'a> {
    program: &'a [OsString],
    signals: &'a Inherited,
    command: OwnedFd,
    /// For what it says.
    room: Vec<u8>,
    children: SignalFd,
    timer: OwnedFd,
    /// While no program runs.
    offspring: Option<Children>,
    tree: Option<ProcessTree>,
    /// The store's sign that we live: closed by our end.
    _life_line: Vec<OwnedFd>,
}

impl<'a> Guardian<'a> {
    fn new(
        program: &'a [OsString],
        command: OwnedFd,
        signals: &'a Inherited,
        status: &Status,
    ) -> io::Result<Guardian<'a>> {
        let children = signals::block_all()?;
        // The terminal's signals are for the command's group.
        setpgid(None, None)?;
        // Whoever kills the command by its name, with all that have it, does not kill us.
        set_name(c"lock-guardian")?;
        set_child_subreaper(Some(Pid::INIT))?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let offspring = Some(Children::open(status)?);
        let (room, tree, _life_line) = (wire::room(), None, Vec::new());
        Ok(Guardian { program, signals, command, room, children, timer, offspring, tree, _life_line })
    }

    fn listen(&mut self) -> io::Result<()> {
        let mut command_lives = true;
        loop {
            let mut fds = vec![PollFd::new(&self.children, PollFlags::IN)];
            if self.tree.is_some() {
                fds.push(PollFd::new(&self.timer, PollFlags::IN));
            }
            if command_lives {
                fds.push(PollFd::new(&self.command, PollFlags::IN));
            }
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let is_heard = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let (child_changed, command_speaks) =
                (is_heard(&fds[0]), command_lives && fds.last().is_some_and(is_heard));
            drop(fds);
            // One of each: what is left is heard in the next turn.
            let child_changed = child_changed && self.children.read_signal()?.is_some();
            if command_speaks {
                command_lives = self.receive()?;
            }
            let Some(tree) = &mut self.tree else {
                if command_lives {
                    continue;
                }
                return Ok(());
            };
            if child_changed && let Some(signal) = tree.reap()? {
                notify(&self.command, &Event::Stopped { signal });
            }
            match tree.act(Moment::now(), !command_lives)? {
                Verdict::Done(ended) => {
                    if !command_lives && !ended.left.is_empty() {
                        // The command that would say it is not there any more.
                        exit::say(processes::how_ended(&ended.left));
                    }
                    notify(&self.command, &Event::Ended(ended));
                    if !command_lives {
                        return Ok(());
                    }
                    self.offspring = self.tree.take().map(ProcessTree::into_children);
                }
                Verdict::Wait(at) => self.wake_at(at)?,
            }
        }
    }

    /// Reads an order; false once the command has ended.
    fn receive(&mut self) -> io::Result<bool> {
        let (order, fds) = match wire::receive(&self.command, &mut self.room) {
            Ok(Some(received)) => received,
            Ok(None) => return Ok(false),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return Ok(true),
            Err(e) => return Err(e),
        };
        match (order, &mut self.tree) {
            (Order::Start(start), None) => match self.start(&start, fds) {
                Ok(pid) => notify(&self.command, &Event::Started { pid }),
                Err(e) => notify(&self.command, &Event::Failed(format!("starting the program: {e}"))),
            },
            (Order::Deadline(nanos), Some(tree)) => {
                tree.extend(Moment::from_nanos(nanos));
                // Also while it is ending the program: it lives, and does its work.
                notify(&self.command, &Event::Ack(nanos));
            }
            (Order::Signal(signal), Some(tree)) => {
                if !tree.signal(signal) {
                    notify(&self.command, &Event::NotSignalled { signal });
                }
            }
            (Order::End { at_once }, Some(tree)) => tree.end(Moment::now(), at_once)?,
            (_, _) => {}
        }
        Ok(true)
    }

    fn start(&mut self, start: &Start, life_line: Vec<OwnedFd>) -> io::Result<i32> {
        self._life_line = life_line;
        let guardian = processes::own_pid();
        let pid = match fork()? {
            Fork::Parent(pid) => pid,
            Fork::Child => exec::main(self.program, start, guardian, &self.signals.blocked),
        };
        // It does so itself as well: whoever is first, its group is there for the first signal.
        let _ = setpgid(Pid::from_raw(pid), None);
        let children = self.offspring.take().ok_or_else(|| io::Error::other("a program runs already"))?;
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
fn notify(command: &OwnedFd, event: &Event) {
    let _ = wire::send(command, event, &[]);
}
