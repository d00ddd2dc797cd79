//! The end of the command: its own exit codes, which scripts rely on, and death by a signal.

use std::fmt::Display;
use std::io::{Write, stderr};
use std::process::ExitCode;

use leasehold::{Error, ErrorKind};

use crate::store_url::StoreUrl;
use crate::{output, signals};

/// Bad usage: arguments, a name, a URL, a feature that this build lacks.
pub(crate) const USAGE: u8 = 64;
/// The store could not be used; nothing was run, or `once` could not record a good end.
pub(crate) const UNAVAILABLE: u8 = 69;
/// `once` does not know whether a good end is recorded.
pub(crate) const UNKNOWN: u8 = 70;
/// The lock was not acquired; nothing was run. `-E` changes it.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The lock was lost, and the program was ended.
pub(crate) const LOST: u8 = 76;
/// `--max-hold` was over, and the program was ended.
pub(crate) const MAX_HOLD: u8 = 124;
/// Leasehold itself failed.
pub(crate) const FAILED: u8 = 125;
/// The program cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
pub(crate) const NOT_FOUND: u8 = 127;

/// The way in which this process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    Code(u8),
    /// Death by this signal, so that shells and `make` see it.
    Signal(i32),
}

impl Exit {
    /// Ends this process by its signal, or returns the code that `main` returns.
    pub(crate) fn end(self) -> ExitCode {
        match self {
            Exit::Code(code) => code.into(),
            Exit::Signal(number) => {
                signals::die_of(number);
                of_signal(number).into()
            }
        }
    }
}

/// The code that shells use for death by a signal.
pub(crate) fn of_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(FAILED)
}

/// The code for a store's error before anything was run.
pub(crate) fn of_error(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::Unsupported => USAGE,
        ErrorKind::Contended | ErrorKind::TimedOut => NOT_ACQUIRED,
        ErrorKind::Lost | ErrorKind::Stale => LOST,
        _ => UNAVAILABLE,
    }
}

/// Prints one line of this command on standard error.
pub(crate) fn say(what: impl Display) {
    // If it cannot be written, there is no other place to say it.
    let _ = writeln!(stderr(), "leasehold: {}", output::plain(&what.to_string()));
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text.push_str(&format!(": {e}"));
        cause = e.source();
    }
    text
}

/// The text of a store's error. It names the store, unless the error is about the lock's name or
/// its holder.
pub(crate) fn of_store(error: &Error, named: &str) -> String {
    match error.contention() {
        Some(who) => {
            let name = error
                .name()
                .map_or_else(String::new, |name| format!("lock {name:?}: "));
            let in_time = if error.kind() == ErrorKind::TimedOut {
                " in time"
            } else {
                ""
            };
            format!("{name}not acquired{in_time}, nothing was run: {who}")
        }
        // The error is about the name, not the store.
        None if error.kind() == ErrorKind::Invalid && error.name().is_some() => chain(error),
        None => format!("{named}: {}", chain(error)),
    }
}

/// The text of a store's error. If the store is in a file and this process has a limit on file
/// sizes, the text names the limit: it may be the real reason.
pub(crate) fn about(error: &Error, store: &StoreUrl) -> String {
    let text = of_store(error, &store.named());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    match limit.filter(|_| of_error(error) == UNAVAILABLE && store.file().is_some()) {
        Some(limit) => format!(
            "this process may write no file beyond {limit} bytes, which may be the reason (`ulimit -f unlimited` lifts it): {text}"
        ),
        None => text,
    }
}

/// Reports a request that makes no sense, and returns the exit.
pub(crate) fn bad_usage(what: impl Display) -> Exit {
    say(what);
    Exit::Code(USAGE)
}

/// The exit for an internal command line that was typed by hand.
#[cfg(feature = "lab")]
pub(crate) fn not_for_users() -> Exit {
    bad_usage("this is for leasehold itself")
}

/// Reports that leasehold itself failed, and returns the exit.
pub(crate) fn failed(error: &std::io::Error) -> Exit {
    say(chain(error));
    Exit::Code(FAILED)
}
