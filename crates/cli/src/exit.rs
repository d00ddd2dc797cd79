//! How the command ends: its own exit codes, which scripts rely on, and death by a signal.

use std::fmt::Display;
use std::io::{Write, stderr};
use std::process::ExitCode;

use leasehold::{Error, ErrorKind};

use crate::{output, signals};

/// Bad usage: arguments, a name, a URL, a feature that this build lacks.
pub(crate) const USAGE: u8 = 64;
/// The store could not be used; nothing was run.
pub(crate) const UNAVAILABLE: u8 = 69;
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

/// How this process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    Code(u8),
    /// Of this signal, so that shells and `make` see it.
    Signal(i32),
}

impl Exit {
    /// Ends this process so, or gives `main` the code to return.
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

/// The code for an error of a store, before anything was run.
pub(crate) fn of_error(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::Unsupported => USAGE,
        ErrorKind::Contended | ErrorKind::TimedOut => NOT_ACQUIRED,
        ErrorKind::Lost => LOST,
        _ => UNAVAILABLE,
    }
}

/// One line about ourselves on standard error.
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

/// An error of this store, with the store where that is what matters.
pub(crate) fn of_store(error: &Error, named: &str) -> String {
    match error.contention() {
        Some(who) => {
            let name = error.name().map_or_else(String::new, |name| format!("lock {name:?}: "));
            let in_time = if error.kind() == ErrorKind::TimedOut { " in time" } else { "" };
            format!("{name}not acquired{in_time}, nothing was run: {who}")
        }
        // About the name, not the store.
        None if error.kind() == ErrorKind::Invalid && error.name().is_some() => chain(error),
        None => format!("{named}: {}", chain(error)),
    }
}

/// What was asked for makes no sense.
pub(crate) fn bad_usage(what: impl Display) -> Exit {
    say(what);
    Exit::Code(USAGE)
}

/// An internal command line, typed by hand.
pub(crate) fn not_for_users() -> Exit {
    bad_usage("this is for leasehold itself")
}

/// Leasehold itself failed.
pub(crate) fn failed(error: &std::io::Error) -> Exit {
    say(chain(error));
    Exit::Code(FAILED)
}
