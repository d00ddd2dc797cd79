//! The guardian: a second process, parent of the program, that ends it in time whatever happens to the command. Here is the
//! command's end of it.
//!
//! It is forked from the command, and the program from it, each from a process of one thread: to execute this binary again would
//! cost more than all the rest. It is the program's parent because only a parent can keep the program's process id from being
//! reused, and a subreaper so that every descendant whose own parent has ended becomes its child. It knows nothing of locks: it gets
//! deadlines.

pub(crate) mod deadline;
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
use leasehold::seam::Moment;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, set_child_subreaper};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::processes::{self, Children, Left, Status};
use crate::signals::Inherited;
use wire::{Event, Order, Start};

/// A guardian that runs, and that no runtime listens to yet.
#[derive(Debug)]
pub(crate) struct Started {
    socket: OwnedFd,
    pid: i32,
    children: Children,
    unrelated: Vec<i32>,
}

impl Started {
    /// Its events come to the runtime that runs this.
    pub(crate) fn listen(self) -> io::Result<Guardian> {
        let Started { socket, pid, children, unrelated } = self;
        let socket = UnixStream::from_std(socket.into())?;
        let (room, dismissed) = (wire::room().into(), Cell::default());
        Ok(Guardian { socket, room, dismissed, pid, children, unrelated })
    }
}

/// The command's end of the guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    /// Carries packets, whatever the type's name says.
    socket: UnixStream,
    /// For what it says.
    room: RefCell<Vec<u8>>,
    dismissed: Cell<bool>,
    pid: i32,
    children: Children,
    /// Children that this process had before, from the program that executed it: none of ours.
    unrelated: Vec<i32>,
}

impl Guardian {
    /// Starts the guardian of this program, which does not run yet. Call it before any thread is started: a fork has none but the
    /// one that forks. Fails where descendants cannot be found.
    pub(crate) fn start(program: &[OsString], signals: &Inherited, status: &Status) -> io::Result<Started> {
        let children = Children::open(status)?;
        let unrelated = children.all()?;
        // If the guardian is killed, what it guards becomes ours.
        set_child_subreaper(Some(Pid::INIT))?;
        // Where the kernel's clock is to be read is found out once, for both.
        let _ = Moment::now();
        let (socket, its) = wire::pair()?;
        let pid = match fork()? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                // Or it would never see the end of the command.
                drop(socket);
                process::main(program, its, signals, status)
            }
        };
        Ok(Started { socket, pid, children, unrelated })
    }

    /// Has the program started; again, once it has ended.
    pub(crate) fn run(&self, start: Start, life_line: &[OwnedFd]) -> io::Result<()> {
        let fds: Vec<BorrowedFd<'_>> = life_line.iter().map(AsFd::as_fd).collect();
        wire::send(&self.socket, &Order::Start(start), &fds)
    }

    /// Sends an order. One that cannot be sent is missing: then an acknowledgement is missing too, or the guardian has ended.
    pub(crate) fn order(&self, order: &Order) {
        let _ = wire::send(&self.socket, order, &[]);
    }

    /// The next event of the guardian; `None`: it has ended. Cancel-safe.
    pub(crate) async fn next(&self) -> io::Result<Option<Event>> {
        let receive = || wire::receive(&self.socket, &mut self.room.borrow_mut());
        let is_none_yet = |e: &io::Error| matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
        let received = poll_fn(|cx| {
            loop {
                // Before the runtime knows of it: a process that was stopped sees its timers first.
                match receive() {
                    Err(e) if is_none_yet(&e) => {}
                    received => return Poll::Ready(received),
                }
                ready!(self.socket.poll_read_ready(cx))?;
                // By this the runtime forgets that it was readable.
                match self.socket.try_io(Interest::READABLE, receive) {
                    Err(e) if is_none_yet(&e) => {}
                    received => return Poll::Ready(received),
                }
            }
        });
        Ok(received.await?.map(|(event, _)| event))
    }

    /// Kills a guardian that no longer answers. The kernel kills the program with it; the rest comes to us.
    pub(crate) fn kill(&self) {
        let _ = processes::signal(self.pid, Signal::KILL);
    }

    /// Has a guardian end whose program has ended, and will not be started again.
    pub(crate) fn dismiss(&self) {
        if !self.dismissed.replace(true) {
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
    }

    /// Has it end, and waits for that: it is neither to be left a zombie, nor to become the child of another guardian.
    pub(crate) async fn gone(&self) {
        self.dismiss();
        let give_up = Moment::now() + processes::UNKILLABLE;
        while !processes::reap(self.pid) && Moment::now() < give_up {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Does what the guardian would have done: ends all that came to us when it died. Returns what could not be ended.
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
