//! The last steps before the program: bound to the guardian's life, in the foreground if it is to be, with the signal mask
//! that the command found. Runs as the program's own process, in its own group.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::{exit, processes, signals, terminal};

/// `__exec PARENT FOREGROUND BLOCKED -- CMD…`
pub(crate) fn main(words: &[OsString]) -> ExitCode {
    let [parent, foreground, blocked, _, program, arguments @ ..] = words else {
        return exit::not_for_users().end();
    };
    let error = match prepare(parent.to_str(), foreground == "foreground", blocked.to_str()) {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(e) => {
            exit::say(format_args!("preparing the program: {e}"));
            return exit::FAILED.into();
        }
    };
    exit::say(format_args!("{}: {error}", program.display()));
    match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    }
    .into()
}

fn prepare(parent: Option<&str>, foreground: bool, blocked: Option<&str>) -> io::Result<()> {
    let parent: Option<i32> = parent.and_then(|pid| pid.parse().ok());
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the guardian ended before that, no signal comes.
    if parent != getppid().map(|pid| pid.as_raw_nonzero().get()) {
        return Err(io::Error::other("the guardian has ended"));
    }
    if foreground && let Some(terminal) = terminal::Terminal::open() {
        // The signals are still blocked, so that this does not stop us.
        terminal.give_to(processes::own_pid());
    }
    let numbers = blocked.unwrap_or_default().split(',').filter_map(|number| number.parse().ok());
    let mask: SigSet = numbers.filter_map(signals::named).collect();
    Ok(mask.thread_set_mask()?)
}
