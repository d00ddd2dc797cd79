//! Signals: blocked before any thread starts and read as events, so that no handler exists and what the caller ignores
//! (`nohup`) stays ignored, in the program too. Which is not so of SIGPIPE: the language's runtime ignores it before `main`, so
//! what the caller did is not known.

use std::io;
use std::{sync::Arc, sync::atomic::AtomicBool};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::Pid;
use rustix_libc_wrappers::process::SignalExt;
use tokio::net::unix::pipe;

use crate::processes::Status;

/// What is not passed on to the program: its own end, SIGPIPE, and what a process does to itself by a fault.
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

/// What the kernel sends to a process at limits that it has reached itself.
const OWN_LIMITS: [Signal; 2] = [Signal::SIGXCPU, Signal::SIGXFSZ];

/// A signal that came, real-time ones too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caught {
    pub(crate) number: i32,
    /// The kernel sent it: a terminal, a timer. Otherwise a process did.
    pub(crate) by_kernel: bool,
}

impl Caught {
    /// Read from a record of `signalfd`, which begins with the number, an error and the code.
    fn of(record: &[u8; size_of::<siginfo>()]) -> Caught {
        let word = |at: usize| i32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        Caught { number: word(0), by_kernel: word(8) > 0 }
    }

    pub(crate) fn named(&self) -> Option<Signal> {
        named(self.number)
    }
}

/// The signals of this process as its caller left them. They are blocked since.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// Those that were blocked.
    pub(crate) blocked: SigSet,
    /// Those that are ignored, as a set of bits.
    ignored: u64,
    read: SigSet,
}

impl Inherited {
    /// Blocks them for this thread and all that it will start, and for processes that are forked from it: call it before any.
    pub(crate) fn take_over(status: &Status) -> io::Result<Inherited> {
        let blocked = SigSet::thread_get_mask()?;
        let ignored = status.ignored_signals();
        if ignored & bit(Signal::SIGCHLD as i32) != 0 {
            children_can_be_waited_for()?;
        }
        Ok(Inherited { blocked, ignored, read: block()? })
    }

    /// Reads them from now on, in the runtime that runs this.
    pub(crate) fn listen(&self) -> io::Result<Signals> {
        let fd = SignalFd::with_flags(&self.read, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // No pipe, but read like one.
        Ok(Signals { fd: pipe::Receiver::from_owned_fd_unchecked(fd.into())?, ignored: self.ignored })
    }
}

/// The signals that this process reads, in its one runtime.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: pipe::Receiver,
    /// As a set of bits.
    ignored: u64,
}

impl Signals {
    /// The next one that is not ignored. Cancel-safe.
    pub(crate) async fn next(&self) -> io::Result<Caught> {
        let mut record = [0; size_of::<siginfo>()];
        loop {
            self.fd.readable().await?;
            match self.fd.try_read(&mut record) {
                Ok(_) => {
                    let caught = Caught::of(&record);
                    let own_limit = caught.by_kernel && caught.named().is_some_and(|it| OWN_LIMITS.contains(&it));
                    if !own_limit && self.ignored & bit(caught.number) == 0 {
                        return Ok(caught);
                    }
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Does the work, unless a signal ends it, by its number.
    pub(crate) async fn unless_interrupted<T>(&self, work: impl Future<Output = T>) -> io::Result<Result<T, i32>> {
        tokio::select! {
            biased;
            done = work => Ok(Ok(done)),
            signal = self.interruption() => signal.map(Err),
        }
    }

    /// The number of the next signal that ends a process by default, or would. Stops and continues with its job meanwhile.
    pub(crate) async fn interruption(&self) -> io::Result<i32> {
        loop {
            let caught = self.next().await?;
            match caught.named() {
                Some(stop @ (Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)) => stop_own_group(stop),
                Some(Signal::SIGCONT | Signal::SIGWINCH | Signal::SIGURG) => {}
                _ => return Ok(caught.number),
            }
        }
    }
}

/// Blocks all that [`Signals`] reads.
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

/// For people.
pub(crate) fn name_of(number: i32) -> String {
    named(number).map_or_else(|| format!("signal {number}"), |signal| signal.as_str().into())
}

/// All signals blocked, and a descriptor that reports the end of children: for the guardian, which can wait for them as its parent
/// can.
pub(crate) fn block_all() -> io::Result<SignalFd> {
    SigSet::all().thread_block()?;
    Ok(SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

/// An inherited `SIGCHLD` that is ignored makes children unwaitable. Any handler will do; it never runs where the signal is
/// blocked, and does nothing elsewhere.
fn children_can_be_waited_for() -> io::Result<()> {
    signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

fn bit(number: i32) -> u64 {
    u32::try_from(number - 1).ok().and_then(|at| 1_u64.checked_shl(at)).unwrap_or(0)
}

/// Stops our whole group as the terminal would. The kernel does not stop a group that no shell could continue. Returns when
/// we are continued.
pub(crate) fn stop_own_group(signal: Signal) {
    signal_own_group(signal);
    let set = SigSet::from(signal);
    // The default action happens here.
    let _ = set.thread_unblock();
    let _ = set.thread_block();
}

/// Sends a signal to our whole group, us included: it stays blocked here until [`die_of`].
pub(crate) fn signal_own_group(signal: Signal) {
    let _ = kill(Pid::from_raw(0), signal);
}

/// Ends this process by the signal's default action; returns if that is not to end.
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
        assert_eq!((caught.number, caught.by_kernel, caught.named()), (40, false, None));
        assert_eq!(numbered(40).map(|signal| signal.as_raw()), Some(40));
        assert_eq!((bit(1), bit(64), bit(65), bit(0)), (1, 1 << 63, 0, 0));
    }
}
