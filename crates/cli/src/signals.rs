//! Signals: blocked before any thread starts and read as events, so that no handler exists and what the caller ignores
//! (`nohup`) stays ignored, in the program too.

use std::io;
use std::os::fd::AsFd;
use std::{fs, sync::Arc, sync::atomic::AtomicBool};

use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::Pid;
use tokio::net::unix::pipe;

/// What is passed on to the program, or acted upon.
const READ: [Signal; 11] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGCONT,
];

/// The signals that this process reads, in its one runtime.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: pipe::Receiver,
    before: Vec<i32>,
}

impl Signals {
    /// Blocks them for this thread and all that it will start: call it before any other is started.
    pub(crate) fn take() -> io::Result<Signals> {
        let before = SigSet::thread_get_mask()?.iter().map(|signal| signal as i32).collect();
        children_can_be_waited_for()?;
        let ignored = ignored();
        let read: SigSet = READ.into_iter().filter(|signal| ignored & (1 << (*signal as u32 - 1)) == 0).collect();
        read.thread_block()?;
        // Whoever gives a terminal away must not be stopped by it.
        SigSet::from(Signal::SIGTTOU).thread_block()?;
        let fd = SignalFd::with_flags(&read, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // No pipe, but read like one.
        let fd = pipe::Receiver::from_owned_fd_unchecked(fd.as_fd().try_clone_to_owned()?)?;
        Ok(Signals { fd, before })
    }

    /// The next one. Cancel-safe.
    pub(crate) async fn next(&self) -> io::Result<Signal> {
        let mut record = [0; size_of::<siginfo>()];
        loop {
            self.fd.readable().await?;
            match self.fd.try_read(&mut record) {
                Ok(_) => {
                    // A record begins with the signal's number.
                    let [a, b, c, d, ..] = record;
                    if let Some(signal) = named(i32::from_ne_bytes([a, b, c, d])) {
                        return Ok(signal);
                    }
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Does the work, unless a signal ends it; stops and continues with its job meanwhile.
    pub(crate) async fn unless_interrupted<T>(&self, work: impl Future<Output = T>) -> io::Result<Result<T, Signal>> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(Ok(done)),
                signal = self.next() => match signal? {
                    stop @ (Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU) => stop_own_group(stop),
                    Signal::SIGCONT => {}
                    signal => return Ok(Err(signal)),
                },
            }
        }
    }

    /// The signals that were blocked before.
    pub(crate) fn blocked_before(&self) -> &[i32] {
        &self.before
    }
}

/// The signal of this number.
pub(crate) fn named(number: i32) -> Option<Signal> {
    Signal::try_from(number).ok()
}

/// All signals blocked, and a descriptor that tells of the end of children: for the guardian.
pub(crate) fn deaf() -> io::Result<SignalFd> {
    SigSet::all().thread_block()?;
    children_can_be_waited_for()?;
    Ok(SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

/// An inherited `SIGCHLD` that is ignored makes children unwaitable. Any handler will do; it never runs where the signal is
/// blocked, and does nothing elsewhere.
fn children_can_be_waited_for() -> io::Result<()> {
    signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::new(AtomicBool::new(false)))?;
    Ok(())
}

/// The signals that this process ignores, as a set of bits.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Stops our whole group as the terminal would. The kernel does not stop a group that nobody could continue. Returns when
/// we are continued.
pub(crate) fn stop_own_group(signal: Signal) {
    let _ = kill(Pid::from_raw(0), signal);
    let set = SigSet::from(signal);
    // The default action happens here.
    let _ = set.thread_unblock();
    let _ = set.thread_block();
}

/// Continues our whole group.
pub(crate) fn continue_own_group() {
    let _ = kill(Pid::from_raw(0), Signal::SIGCONT);
}

/// Sends a signal to our whole group, us included: it stays blocked here until [`die_of`].
pub(crate) fn tell_own_group(signal: Signal) {
    let _ = kill(Pid::from_raw(0), signal);
}

/// Ends this process by the signal's default action; returns if that is not to end.
pub(crate) fn die_of(number: i32) {
    if let Some(signal) = named(number) {
        let _ = raise(signal);
        let _ = SigSet::from(signal).thread_unblock();
    }
}
