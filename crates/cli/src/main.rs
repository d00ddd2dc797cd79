//! The `leasehold` command: hold a distributed lock while a program runs.
//!
//! Where to look: `args` is the command line; `run` takes the lock, `held` runs the program under it, `supervise` stays until it ends;
//! `guardian` is the second process, which ends the program in time whatever happens to this one. `guardian`, `supervise`,
//! `signals` and `terminal` know nothing of stores: they see deadlines.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command speaks on its standard streams")]

mod args;
mod compare;
mod durations;
mod elect;
mod exit;
mod guardian;
mod held;
mod inspect;
mod lookup;
mod manual;
mod open;
mod output;
mod processes;
mod report;
mod retry;
mod run;
mod run_outcome;
mod signals;
mod status_line;
mod store_url;
mod supervise;
mod table;
mod terminal;
mod usage;
mod verify;
mod waiting;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Args, Command};
use exit::Exit;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.first().and_then(|word| word.to_str()) {
        Some(guardian::GUARDIAN) => return guardian::process::main(&words[1..]),
        Some(compare::HOLD) => return compare::hold(&words[1..]),
        Some(guardian::EXEC) => return guardian::exec::main(&words[1..]),
        _ => {}
    }
    let args = match Args::read() {
        Ok(args) => args,
        Err(exit) => return exit.end(),
    };
    args.trace();
    if let Err(e) = descriptors_suffice() {
        return exit::failed(&e).end();
    }
    let exit = match args.command {
        Command::Run(args) => in_runtime(|| run::main(args)),
        Command::Elect(args) => in_runtime(|| elect::main(args)),
        Command::Ls(args) => in_runtime(|| inspect::ls(args)),
        Command::Who(args) => in_runtime(|| inspect::who(args)),
        Command::Break(args) => in_runtime(|| inspect::evict(args)),
        Command::Guarantees(args) => in_runtime(|| inspect::guarantees(args)),
        Command::Verify(args) => verify::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Completions(args) => manual::completions(args.shell),
        Command::Man(args) => manual::pages(args.of.as_deref()),
    };
    exit.unwrap_or_else(|e| exit::failed(&e)).end()
}

/// Below this many file descriptors parts of it fail in odd ways.
const DESCRIPTORS: u64 = 64;

fn descriptors_suffice() -> std::io::Result<()> {
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(limit) if limit < DESCRIPTORS => Err(std::io::Error::other(format!(
            "this process may open only {limit} files, and needs {DESCRIPTORS}: `ulimit -n {DESCRIPTORS}` or more"
        ))),
        _ => Ok(()),
    }
}

/// One thread is enough: whatever may block has a thread of its own.
fn in_runtime<F: Future<Output = std::io::Result<Exit>>>(work: impl FnOnce() -> F) -> std::io::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(async { Box::pin(work()).await });
    // A lookup that hangs must not hold up the end.
    runtime.shutdown_background();
    exit
}
