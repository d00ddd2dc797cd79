//! The guardian: a second process of this binary, parent of the program, that ends it in time whatever happens to the
//! command. Here is the command's end of it.
//!
//! It is the program's parent because only a parent can keep the program's process id from being reused, and a subreaper so
//! that every descendant whose own parent has ended becomes its child. It knows nothing of locks: it gets deadlines.

pub(crate) mod deadline;
pub(crate) mod exec;
pub(crate) mod process;
mod process_tree;
pub(crate) mod wire;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use leasehold::seam::Moment;
use rustix::process::{Signal, set_child_subreaper};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::processes::{self, Children, Left};
use wire::{Event, Order, Start};

/// The first argument of the guardian's command line.
pub(crate) const GUARDIAN: &str = "__guardian";
/// The first argument of the command line that becomes the program's.
pub(crate) const EXEC: &str = "__exec";

/// This very binary, also if the file has been replaced since.
const OURSELVES: &str = "/proc/self/exe";

/// The command's end of the guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    /// Carries packets, whatever the type's name says.
    socket: UnixStream,
    pid: i32,
    children: Children,
    /// Children that this process had before, from the program that executed it: none of ours.
    unrelated: Vec<i32>,
}

impl Guardian {
    /// Starts the guardian of this program, which does not run yet. All signals that are not to end it are blocked. Fails where
    /// descendants cannot be found.
    pub(crate) fn start(program: &[OsString]) -> io::Result<Guardian> {
        let children = Children::open()?;
        let unrelated = children.all()?;
        // If the guardian is killed, what it guards becomes ours.
        set_child_subreaper(Some(rustix::process::getpid()))?;
        let (ours, its) = wire::pair()?;
        let mut command = Command::new(OURSELVES);
        command.arg0("leasehold").arg(GUARDIAN).arg("--").args(program).stdin(its).process_group(0);
        let pid = i32::try_from(command.spawn()?.id()).map_err(io::Error::other)?;
        let ours = std::os::unix::net::UnixStream::from(ours);
        ours.set_nonblocking(true)?;
        Ok(Guardian { socket: UnixStream::from_std(ours)?, pid, children, unrelated })
    }

    /// Has the program started.
    pub(crate) fn run(&self, start: Start, life_line: &[OwnedFd]) -> io::Result<()> {
        let stdin = rustix::stdio::stdin();
        let fds: Vec<BorrowedFd<'_>> = [stdin].into_iter().chain(life_line.iter().map(AsFd::as_fd)).collect();
        wire::send(&self.socket, &Order::Start(start), &fds)
    }

    /// Sends an order. One that cannot be sent is missing: then an acknowledgement is missing too, or the guardian has ended.
    pub(crate) fn order(&self, order: &Order) {
        let _ = wire::send(&self.socket, order, &[]);
    }

    /// The next event of the guardian; `None`: it has ended. Cancel-safe.
    pub(crate) async fn next(&self) -> io::Result<Option<Event>> {
        loop {
            self.socket.readable().await?;
            match self.socket.try_io(Interest::READABLE, || wire::receive(&self.socket)) {
                Ok(event) => return Ok(event.map(|(event, _)| event)),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Kills a guardian that no longer answers. The kernel kills the program with it; the rest comes to us.
    pub(crate) fn kill(&self) {
        let _ = processes::signal(self.pid, Signal::KILL);
    }

    /// Waits for a guardian that has reported the end.
    pub(crate) fn gone(self) {
        drop(self.socket);
        let _ = processes::wait_for(self.pid);
    }

    /// Does what the guardian would have done: ends all that came to us when it died. Returns what could not be ended.
    pub(crate) async fn clean_up(self, limit: Duration) -> io::Result<Vec<Left>> {
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
