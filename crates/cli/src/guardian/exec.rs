//! The last steps before the program: in a group of its own, bound to the guardian's life, in the foreground if it is to be, with
//! the signal mask that the command found. Runs in the program's own process, forked from the guardian.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setpgid};

use super::wire::Start;
use crate::{exit, processes, terminal};

/// Becomes the program, or says why not and ends.
pub(super) fn main(program: &[OsString], start: &Start, guardian: i32, blocked: &SigSet) -> ! {
    let code = match prepare(start.foreground, guardian, blocked) {
        Ok(()) => execute(program, start),
        Err(e) => {
            exit::say(format_args!("preparing the program: {e}"));
            exit::FAILED
        }
    };
    process::exit(code.into())
}

fn prepare(foreground: bool, guardian: i32, blocked: &SigSet) -> io::Result<()> {
    setpgid(None, None)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the guardian ended before that, no signal comes.
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != guardian) {
        return Err(io::Error::other("the guardian has ended"));
    }
    if foreground && let Some(terminal) = terminal::Terminal::open() {
        // The signals are still blocked, so that this does not stop us.
        terminal.give_to(processes::own_pid());
    }
    Ok(blocked.thread_set_mask()?)
}

/// Returns only if it fails, with the code that says why.
fn execute(program: &[OsString], start: &Start) -> u8 {
    let [program, arguments @ ..] = program else { return exit::NOT_FOUND };
    let error = Command::new(program).args(arguments).envs(start.environment.iter().cloned()).exec();
    exit::say(format_args!("{}: {error}", program.display()));
    match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    }
}
