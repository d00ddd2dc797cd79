//! The guardian: a second process, the parent of the program, that ends the program in time
//! whatever happens to the command. This module is the command's end of it.
//!
//! The guardian is forked from the command, and the program from the guardian, each from a process
//! of one thread: executing this binary again would cost more than everything else. The guardian is
//! the program's parent because only a parent can keep the program's process id from being reused.
//! It is a subreaper so that every descendant whose own parent has ended becomes its child. It
//! knows nothing of locks: it gets deadlines.

pub(crate) mod deadline;
mod doubles;
mod exec;
mod process;
mod process_tree;
pub(crate) mod wire;

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Poll, ready};
use std::time::Duration;

use fork::{Fork, fork};
use leasehold::backend::Moment;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, set_child_subreaper};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::processes::{self, Children, Left, Status};
use crate::signals::Inherited;
use wire::{Event, Order, Start};

/// A running guardian to which no runtime listens yet.
#[derive(Debug)]
pub(crate) struct Started {
    socket: OwnedFd,
    pid: i32,
    children: Children,
    unrelated: Vec<i32>,
}

impl Started {
    /// Connects the guardian's events to the runtime that runs this.
    pub(crate) fn listen(self) -> io::Result<Guardian> {
        let Started {
            socket,
            pid,
            children,
            unrelated,
        } = self;
        let socket = UnixStream::from_std(socket.into())?;
        let room = wire::room().into();
        let dismissed = Cell::default();
        Ok(Guardian {
            socket,
            room,
            dismissed,
            pid,
            children,
            unrelated,
        })
    }
}

/// The command's end of the guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    /// Carries packets, although the type is called a stream.
    socket: UnixStream,
    /// The buffer for messages of the guardian.
    room: RefCell<Vec<u8>>,
    dismissed: Cell<bool>,
    pid: i32,
    children: Children,
    /// Children that this process already had when it executed this program. They are not
    /// descendants of the guarded program.
    unrelated: Vec<i32>,
}

impl Guardian {
    /// Starts the guardian of this program, which does not run yet. Call it before any thread is
    /// started: a forked process has only the thread that forked. Fails where descendants cannot be
    /// found.
    pub(crate) fn start(
        program: &[OsString],
        signals: &Inherited,
        status: &Status,
    ) -> io::Result<Started> {
        processes::can_wait()?;
        let children = Children::open(status)?;
        let unrelated = children.all()?;
        // If the guardian is killed, the processes that it guards become children of this process.
        set_child_subreaper(Some(Pid::INIT))?;
        // The first reading finds out how to read the kernel's clock, for both processes.
        let _ = Moment::now();
        let (socket, its) = wire::pair()?;
        let pid = match fork()? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                // Otherwise the guardian would never see the end of the command.
                drop(socket);
                process::main(program, its, signals, status)
            }
        };
        Ok(Started {
            socket,
            pid,
            children,
            unrelated,
        })
    }

    /// Asks the guardian to start the program; also again, once the program has ended.
    pub(crate) fn run(&self, start: Start, life_line: &[OwnedFd]) -> io::Result<()> {
        let fds: Vec<BorrowedFd<'_>> = life_line.iter().map(AsFd::as_fd).collect();
        wire::send(&self.socket, &Order::Start(start), &fds)
    }

    /// Sends an order. If it cannot be sent, an acknowledgement will be missing too, or the
    /// guardian has ended.
    pub(crate) fn order(&self, order: &Order) {
        let _ = wire::send(&self.socket, order, &[]);
    }

    /// Returns the next event of the guardian, or `None` once it has ended. Cancel-safe.
    pub(crate) async fn next(&self) -> io::Result<Option<Event>> {
        let receive = || wire::receive(&self.socket, &mut self.room.borrow_mut());
        let is_none_yet = |e: &io::Error| {
            matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            )
        };
        let received = poll_fn(|cx| {
            loop {
                // Reads before the runtime reports the event: a process that was stopped sees its
                // timers first.
                match receive() {
                    Err(e) if is_none_yet(&e) => {}
                    received => return Poll::Ready(received),
                }
                ready!(self.socket.poll_read_ready(cx))?;
                // By this call the runtime forgets that the socket was readable.
                match self.socket.try_io(Interest::READABLE, receive) {
                    Err(e) if is_none_yet(&e) => {}
                    received => return Poll::Ready(received),
                }
            }
        });
        Ok(received.await?.map(|(event, _)| event))
    }

    /// Kills a guardian that no longer answers. The kernel kills the program with it, and the other
    /// descendants become children of this process.
    pub(crate) fn kill(&self) {
        let _ = processes::signal(self.pid, Signal::KILL);
    }

    /// Tells the guardian to end: its program has ended and will not be started again.
    pub(crate) fn dismiss(&self) {
        if !self.dismissed.replace(true) {
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
    }

    /// Tells the guardian to end, and waits for its end. It must neither stay a zombie, nor become
    /// the child of another guardian.
    pub(crate) async fn gone(&self) {
        self.dismiss();
        let give_up = Moment::now() + processes::UNKILLABLE;
        while !processes::reap(self.pid) && Moment::now() < give_up {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Does the work of a dead guardian: ends all processes that became our children when it died.
    /// Returns those that could not be ended.
    pub(crate) async fn clean_up(&self, limit: Duration) -> io::Result<Vec<Left>> {
        let give_up = Moment::now() + limit.max(processes::UNKILLABLE);
        loop {
            let living = self.children.kill(&self.unrelated)?;
            if living.iter().all(|process| process.foreign) || Moment::now() >= give_up {
                return Ok(living);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
