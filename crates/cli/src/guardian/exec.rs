//! The last steps before the program, in the program's own process, which is forked from the
//! guardian. It gets a process group of its own, dies with the guardian, takes the foreground if it
//! is to have it, and gets the signal mask that the command found.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setpgid};

use super::wire::Start;
use crate::{exit, processes, terminal};

/// Becomes the program, or reports why it cannot and ends.
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
    // If the guardian ended before the call above, no signal comes.
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != guardian) {
        return Err(io::Error::other("the guardian has ended"));
    }
    if foreground && let Some(terminal) = terminal::Terminal::open() {
        // The signals are still blocked, so this does not stop the process.
        terminal.give_to(processes::own_pid());
    }
    Ok(blocked.thread_set_mask()?)
}

/// Variables by which a service manager names the process that its other variables are for. It
/// named the command, but they are for the program.
const NAME_THE_PROCESS: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// Identifies the process of `LISTEN_PID` by the id of its pidfd, which no other process can have.
const LISTEN_PIDFDID: &str = "LISTEN_PIDFDID";

/// Executes the program. Returns only if that fails, with the exit code for the reason.
fn execute(program: &[OsString], start: &Start) -> u8 {
    let [program, arguments @ ..] = program else {
        return exit::NOT_FOUND;
    };
    let own = processes::own_pid().to_string();
    let mut named = Vec::from(NAME_THE_PROCESS);
    named.retain(|name| env::var(name).is_ok_and(|pid| pid == start.command.to_string()));
    let mut command = Command::new(program);
    if named.contains(&NAME_THE_PROCESS[0]) {
        command.env_remove(LISTEN_PIDFDID);
    }
    let error = command
        .args(arguments)
        .envs(start.environment.iter().cloned())
        .envs(named.into_iter().map(|name| (name, &own)))
        .exec();
    exit::say(format_args!("{}: {error}", program.display()));
    match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    }
}
