//! The `leasehold` command: hold a distributed lock while a program runs.
//!
//! The modules: `args` is the command line; `run` acquires the lock, `held` runs the program under
//! it, `supervise` stays until it ends; `guardian` is the second process, which ends the program in
//! time whatever happens to this one. `guardian`, `supervise`, `signals` and `terminal` know
//! nothing of stores: they see deadlines.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command speaks on its standard streams"
)]

mod args;
mod bridge_seal;
mod bridge_stages;
#[cfg(feature = "lab")]
mod compare;
mod durations;
mod elect;
mod exit;
mod fires;
mod guardian;
mod held;
mod inspect;
mod lookup;
mod manual;
mod nested;
mod once;
mod open;
mod output;
mod participant;
mod processes;
mod record;
#[cfg(feature = "redlock")]
mod redlock_change;
mod retry;
mod run;
mod run_outcome;
mod runtime;
#[cfg(feature = "postgres")]
mod schema;
mod signals;
mod status_line;
mod store_url;
mod supervise;
mod table;
mod terminal;
mod usage;
#[cfg(feature = "lab")]
mod verify;
mod waiting;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use tokio::runtime::Builder;

use args::{Args, Command};
use exit::Exit;
use runtime::in_runtime;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let exit = match words.first().and_then(|word| word.to_str()) {
        #[cfg(feature = "lab")]
        Some(compare::HOLD) => {
            in_runtime(Builder::new_current_thread(), || compare::hold(&words[1..])).flatten()
        }
        _ => command(),
    };
    exit.unwrap_or_else(|e| exit::failed(&e)).end()
}

fn command() -> io::Result<Exit> {
    let args = match Args::read() {
        Ok(args) => args,
        Err(exit) => return Ok(exit),
    };
    args.trace();
    descriptors_suffice()?;
    if !args.command.takes_over_signals() {
        signals::survive_file_limit()?;
    }
    let one = Builder::new_current_thread;
    #[cfg(feature = "lab")]
    let many = Builder::new_multi_thread;
    match args.command {
        Command::Run(args) => Ok(run::main(&args)),
        Command::Once(args) => Ok(once::main(&args)),
        Command::Elect(args) => Ok(elect::main(&args)),
        Command::Ls(args) => in_runtime(one(), || inspect::ls(args))?,
        Command::Who(args) => in_runtime(one(), || inspect::who(args))?,
        Command::Break(args) => in_runtime(one(), || inspect::evict(args))?,
        Command::Forget(args) => in_runtime(one(), || inspect::forget(args))?,
        Command::Guarantees(args) => in_runtime(one(), || inspect::guarantees(args))?,
        #[cfg(feature = "lab")]
        Command::Verify(args) => {
            let signals = signals::Inherited::take_over(&processes::Status::read())?;
            in_runtime(many(), || verify::main(args, signals))?
        }
        #[cfg(feature = "lab")]
        Command::Compare(args) => in_runtime(many(), || compare::main(args))?,
        #[cfg(feature = "postgres")]
        Command::PostgresSchema(args) => schema::main(&args),
        #[cfg(feature = "redlock")]
        Command::RedlockChange(args) => in_runtime(one(), || redlock_change::main(args))?,
        Command::BridgeSeal(args) => in_runtime(one(), || bridge_seal::main(args))?,
        Command::BridgeStages(args) => in_runtime(one(), || bridge_stages::main(args))?,
        Command::Completions(args) => manual::completions(args.shell),
        Command::Man(args) => manual::pages(args.of.as_deref()),
    }
}

/// With fewer file descriptors than this, parts of the command fail in odd ways.
const DESCRIPTORS: u64 = 64;

fn descriptors_suffice() -> io::Result<()> {
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(limit) if limit < DESCRIPTORS => Err(io::Error::other(format!(
            "this process may open only {limit} files, and needs {DESCRIPTORS}: `ulimit -n {DESCRIPTORS}` or more"
        ))),
        _ => Ok(()),
    }
}
