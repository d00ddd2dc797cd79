//! The guardian's own process. It has one thread and blocks all signals. It waits for three events:
//! a message of the command, the end of a child, and a timer on the clock that counts suspend. One
//! rule decides its next step.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;

use fork::{Fork, fork};
use leasehold::backend::Moment;
use nix::sys::signal::Signal::SIGCHLD;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, set_child_subreaper, setpgid};
use rustix::thread::set_name;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::doubles::Doubles;
use super::exec;
use super::process_tree::{ProcessTree, Verdict};
use super::wire::{self, Event, Order, Start};
use crate::processes::{Children, Status};
use crate::signals::Inherited;
use crate::{exit, processes, signals};

/// Runs the guardian of this program to its end. The command is at the other end of this socket.
pub(super) fn main(
    program: &[OsString],
    command: OwnedFd,
    signals: &Inherited,
    status: &Status,
) -> ! {
    let mut guardian =
        Guardian::new(program, command, signals, status).unwrap_or_else(|e| failed(&e));
    guardian.listen().unwrap_or_else(|e| failed(&e));
    // The exit closes all that is open, the life line too.
    std::process::exit(0)
}

/// The kernel ends the program together with the guardian, and the command ends the other
/// descendants.
fn failed<T>(e: &io::Error) -> T {
    exit::say(format_args!("the guardian failed: {e}"));
    std::process::exit(exit::FAILED.into())
}

struct Guardian<'a> {
    program: &'a [OsString],
    signals: &'a Inherited,
    command: OwnedFd,
    /// The buffer for messages of the command.
    room: Vec<u8>,
    caught: SignalFd,
    doubles: Doubles,
    timer: OwnedFd,
    /// Present while no program runs.
    offspring: Option<Children>,
    tree: Option<ProcessTree>,
    /// The store's sign that this client lives. The end of the guardian closes it.
    _life_line: Vec<OwnedFd>,
}

impl<'a> Guardian<'a> {
    fn new(
        program: &'a [OsString],
        command: OwnedFd,
        signals: &'a Inherited,
        status: &Status,
    ) -> io::Result<Guardian<'a>> {
        let caught = signals::block_all()?;
        // The terminal sends its signals to the command's group, which the guardian leaves.
        setpgid(None, None)?;
        // A kill of all processes that have the command's name does not hit the guardian.
        set_name(c"lock-guardian")?;
        set_child_subreaper(Some(Pid::INIT))?;
        let timer = timerfd_create(
            TimerfdClockId::Boottime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let offspring = Some(Children::open(status)?);
        Ok(Guardian {
            program,
            signals,
            command,
            room: wire::room(),
            caught,
            doubles: Doubles::default(),
            timer,
            offspring,
            tree: None,
            _life_line: Vec::new(),
        })
    }

    fn listen(&mut self) -> io::Result<()> {
        let mut command_lives = true;
        loop {
            let mut fds = vec![PollFd::new(&self.caught, PollFlags::IN)];
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
            let is_signalled = is_heard(&fds[0]);
            let command_speaks = command_lives && fds.last().is_some_and(is_heard);
            drop(fds);
            // At most one event of each kind: the next turn reads the others.
            let child_changed = is_signalled && self.catch()?;
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
            let now = Moment::now();
            while let Some(number) = self.doubles.due(now) {
                pass_on(tree, number, &self.command);
            }
            match tree.act(now, !command_lives)? {
                Verdict::Done(ended) => {
                    if !command_lives && !ended.left.is_empty() {
                        // The command that would report this has ended.
                        exit::say(processes::how_ended(&ended.left));
                    }
                    notify(&self.command, &Event::Ended(ended));
                    if !command_lives {
                        return Ok(());
                    }
                    self.offspring = self.tree.take().map(ProcessTree::into_children);
                }
                Verdict::Wait(at) => {
                    self.wake_at(self.doubles.next().map_or(at, |next| next.min(at)))?;
                }
            }
        }
    }

    /// Reads a signal; returns whether it reports a change of a child.
    fn catch(&mut self) -> io::Result<bool> {
        let Some(record) = self.caught.read_signal()? else {
            return Ok(false);
        };
        let number = i32::try_from(record.ssi_signo).unwrap_or_default();
        let child_changed = number == SIGCHLD as i32;
        if !child_changed {
            self.doubles.got(number, Moment::now());
        }
        Ok(child_changed)
    }

    /// Reads an order; returns false once the command has ended.
    fn receive(&mut self) -> io::Result<bool> {
        let (order, fds) = match wire::receive(&self.command, &mut self.room) {
            Ok(Some(received)) => received,
            Ok(None) => return Ok(false),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(true);
            }
            Err(e) => return Err(e),
        };
        match (order, &mut self.tree) {
            (Order::Start(start), None) => match self.start(&start, fds) {
                Ok(pid) => notify(&self.command, &Event::Started { pid }),
                Err(e) => notify(
                    &self.command,
                    &Event::Failed(format!("starting the program: {e}")),
                ),
            },
            (Order::Deadline(deadline), Some(tree)) => {
                tree.extend(deadline);
                // It also answers while it ends the program: it lives, and does its work.
                notify(&self.command, &Event::Ack(deadline));
            }
            (
                Order::Signal {
                    number,
                    from_systemd: true,
                },
                Some(tree),
            ) if tree.is_in_our_cgroup() => {
                self.doubles.command_got(number, Moment::now());
            }
            (Order::Signal { number, .. }, Some(tree)) => pass_on(tree, number, &self.command),
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
        // The program's process does this as well. Whichever comes first, the group exists before
        // the first signal.
        let _ = setpgid(Pid::from_raw(pid), None);
        let children = self
            .offspring
            .take()
            .ok_or_else(|| io::Error::other("a program runs already"))?;
        self.tree = Some(ProcessTree::new(
            children,
            pid,
            start.deadline,
            start.leftovers,
        ));
        Ok(pid)
    }

    fn wake_at(&self, at: Moment) -> io::Result<()> {
        // Zero would disarm the timer.
        let nanos = at.as_nanos().max(1);
        let at = Timespec {
            tv_sec: (nanos / 1_000_000_000) as i64,
            tv_nsec: (nanos % 1_000_000_000) as i64,
        };
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let when = Itimerspec {
            it_interval: never,
            it_value: at,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &when)?;
        Ok(())
    }
}

/// Passes a signal on to the program.
fn pass_on(tree: &ProcessTree, signal: i32, command: &OwnedFd) {
    if !tree.signal(signal) {
        notify(command, &Event::NotSignalled { signal });
    }
}

/// Sends an event to the command. A stopped command does not read and may miss events, but it can
/// do without them.
fn notify(command: &OwnedFd, event: &Event) {
    let _ = wire::send(command, event, &[]);
}
