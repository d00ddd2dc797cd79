//! Signals are blocked before any thread starts, and read as events. No handler exists, and a
//! signal that the caller ignores (`nohup`) stays ignored, in the program too. SIGPIPE is an
//! exception: the language's runtime ignores it before `main`, so the caller's setting is not
//! known.

use std::fs;
use std::io;
use std::{sync::Arc, sync::atomic::AtomicBool};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::Pid;
use rustix_libc_wrappers::process::SignalExt;
use tokio::net::unix::pipe;

use crate::processes::{self, Status};

/// Signals that are not passed on to the program: the end of a child, SIGPIPE, and signals that a
/// process causes itself by a fault.
const OURS: [Signal; 8] = [
    Signal::SIGCHLD,
    Signal::SIGPIPE,
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGSYS,
];

/// Signals that the kernel sends to a process that has reached a limit of its own.
const OWN_LIMITS: [Signal; 2] = [Signal::SIGXCPU, Signal::SIGXFSZ];

/// A signal that came; it may be a real-time signal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caught {
    pub(crate) number: i32,
    /// The kernel sent it (a terminal, a timer). Otherwise a process did.
    pub(crate) by_kernel: bool,
    /// The process that sent it; 0 for one outside of our PID namespace, or for none.
    sender: i32,
}

impl Caught {
    /// Reads a record of `signalfd`, which begins with the number, an error, the code, and the
    /// sender's process id.
    fn of(record: &[u8; size_of::<siginfo>()]) -> Caught {
        let word = |at: usize| {
            i32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
        };
        Caught {
            number: word(0),
            by_kernel: word(8) > 0,
            sender: word(12),
        }
    }

    /// Returns whether the kernel sent the signal because this process has reached a limit. SIGXFSZ
    /// then seems to come from this process itself.
    fn is_own_limit(&self) -> bool {
        (self.by_kernel || self.sender == processes::own_pid())
            && self.named().is_some_and(|it| OWN_LIMITS.contains(&it))
    }

    /// Returns whether systemd sent the signal. By default it sends a signal to each process of a
    /// unit.
    pub(crate) fn is_from_systemd(&self) -> bool {
        !self.by_kernel
            && fs::read_to_string(format!("/proc/{}/comm", self.sender))
                .is_ok_and(|name| name.starts_with("systemd"))
    }

    pub(crate) fn named(&self) -> Option<Signal> {
        named(self.number)
    }
}

/// The signals of this process as its caller left them. They have been blocked since.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// The signals that the caller had blocked.
    pub(crate) blocked: SigSet,
    /// The signals that are ignored, as a set of bits.
    ignored: u64,
    read: SigSet,
}

impl Inherited {
    /// Blocks the signals for this thread, for all threads that it starts, and for processes that
    /// are forked from it. Call it before there are any.
    pub(crate) fn take_over(status: &Status) -> io::Result<Inherited> {
        let blocked = SigSet::thread_get_mask()?;
        let ignored = status.ignored_signals();
        if ignored & bit(Signal::SIGCHLD as i32) != 0 {
            children_can_be_waited_for()?;
        }
        Ok(Inherited {
            blocked,
            ignored,
            read: block()?,
        })
    }

    /// Reads the signals from now on, in the runtime that runs this.
    pub(crate) fn listen(&self) -> io::Result<Signals> {
        let fd = SignalFd::with_flags(&self.read, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // It is no pipe, but it is read like one.
        Ok(Signals {
            fd: pipe::Receiver::from_owned_fd_unchecked(fd.into())?,
            ignored: self.ignored,
        })
    }
}

/// The signals that this process reads, in its one runtime.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: pipe::Receiver,
    /// The signals that are ignored, as a set of bits.
    ignored: u64,
}

impl Signals {
    /// Returns the next signal that is neither ignored nor caused by a limit of this process.
    /// Cancel-safe.
    pub(crate) async fn next(&self) -> io::Result<Caught> {
        let mut record = [0; size_of::<siginfo>()];
        loop {
            self.fd.readable().await?;
            match self.fd.try_read(&mut record) {
                Ok(_) => {
                    let caught = Caught::of(&record);
                    if !caught.is_own_limit() && self.ignored & bit(caught.number) == 0 {
                        return Ok(caught);
                    }
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Does the work, unless a signal ends it. Returns the number of that signal.
    pub(crate) async fn unless_interrupted<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> io::Result<Result<T, i32>> {
        tokio::select! {
            biased;
            done = work => Ok(Ok(done)),
            signal = self.interruption() => signal.map(Err),
        }
    }

    /// Returns the number of the next signal that would end a process by default. Meanwhile this
    /// process stops and continues with its job.
    pub(crate) async fn interruption(&self) -> io::Result<i32> {
        loop {
            let caught = self.next().await?;
            match caught.named() {
                Some(stop @ (Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)) => {
                    stop_own_group(stop);
                }
                Some(Signal::SIGCONT | Signal::SIGWINCH | Signal::SIGURG) => {}
                _ => return Ok(caught.number),
            }
        }
    }
}

/// Blocks all signals that [`Signals`] reads.
fn block() -> io::Result<SigSet> {
    let mut read = SigSet::all();
    OURS.into_iter().for_each(|signal| read.remove(signal));
    read.thread_block()?;
    Ok(read)
}

/// The signal of this number, if it has a name.
pub(crate) fn named(number: i32) -> Option<Signal> {
    Signal::try_from(number).ok()
}

/// The signal of this number, also a real-time one.
pub(crate) fn numbered(number: i32) -> Option<rustix::process::Signal> {
    rustix::process::Signal::from_raw(number)
}

/// The name of a signal, for people.
pub(crate) fn name_of(number: i32) -> String {
    named(number).map_or_else(
        || format!("signal {number}"),
        |signal| signal.as_str().into(),
    )
}

/// Blocks all signals, and returns a descriptor that reports them, the end of children too. It is
/// for the guardian, which can wait for its children as its parent can.
pub(crate) fn block_all() -> io::Result<SignalFd> {
    SigSet::all().thread_block()?;
    Ok(SignalFd::with_flags(
        &SigSet::all(),
        SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC,
    )?)
}

/// Makes a write beyond the limit on file sizes fail, from now on, instead of ending this process.
pub(crate) fn survive_file_limit() -> io::Result<()> {
    Ok(SigSet::from(Signal::SIGXFSZ).thread_block()?)
}

/// Children cannot be waited for if the caller left `SIGCHLD` ignored, so this registers a handler.
/// Any handler will do: it never runs where the signal is blocked, and does nothing elsewhere.
fn children_can_be_waited_for() -> io::Result<()> {
    signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

fn bit(number: i32) -> u64 {
    u32::try_from(number - 1)
        .ok()
        .and_then(|at| 1_u64.checked_shl(at))
        .unwrap_or(0)
}

/// Stops our whole group as the terminal would, and returns when it is continued. The kernel does
/// not stop a group that no shell could continue.
pub(crate) fn stop_own_group(signal: Signal) {
    signal_own_group(signal);
    let set = SigSet::from(signal);
    // The default action happens here.
    let _ = set.thread_unblock();
    let _ = set.thread_block();
}

/// Sends a signal to our whole group, this process included, which keeps it blocked until
/// [`die_of`].
pub(crate) fn signal_own_group(signal: Signal) {
    let _ = kill(Pid::from_raw(0), signal);
}

/// Ends this process by the signal's default action. Returns if that action does not end a process.
pub(crate) fn die_of(number: i32) {
    if let Some(signal) = numbered(number) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        let _ = SigSet::empty().thread_set_mask();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_signal_and_its_sender() {
        let mut record = [0; size_of::<siginfo>()];
        record[..4].copy_from_slice(&40_i32.to_ne_bytes());
        record[8..12].copy_from_slice(&(-1_i32).to_ne_bytes());
        let caught = Caught::of(&record);
        assert_eq!(
            (caught.number, caught.by_kernel, caught.named()),
            (40, false, None)
        );
        assert_eq!(numbered(40).map(|signal| signal.as_raw()), Some(40));
        assert_eq!((bit(1), bit(64), bit(65), bit(0)), (1, 1 << 63, 0, 0));
    }
}
