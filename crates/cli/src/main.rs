//! The `leasehold` command: hold a distributed lock while a program runs.
//!
//! Where to look: `args` is the command line; `run` takes the lock and `supervise` keeps it while the program runs;
//! `guardian` is the second process, which ends the program in time whatever happens to this one. `guardian`, `supervise`,
//! `signals` and `terminal` know nothing of stores: they see deadlines.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command speaks on its standard streams")]

mod args;
mod exit;
mod guardian;
mod lookup;
mod processes;
mod report;
mod run;
mod signals;
mod store_url;
mod supervise;
mod terminal;
mod waiting;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Args, Command};
use exit::Exit;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.first().and_then(|word| word.to_str()) {
        Some(guardian::GUARDIAN) => return guardian::process::main(&words[1..]),
        Some(guardian::EXEC) => return guardian::exec::main(&words[1..]),
        _ => {}
    }
    let args = match Args::read() {
        Ok(args) => args,
        Err(exit) => return exit.into(),
    };
    args.trace();
    let exit = match args.command {
        Command::Run(run) => in_runtime(|| run::main(run)),
    };
    exit.unwrap_or_else(|e| exit::failed(&e)).end()
}

/// One thread is enough: whatever may block has a thread of its own.
fn in_runtime<F: Future<Output = Exit>>(work: impl FnOnce() -> F) -> std::io::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(async { Box::pin(work()).await });
    // A lookup that hangs must not hold up the end.
    runtime.shutdown_background();
    Ok(exit)
}
