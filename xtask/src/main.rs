//! The project's own chores: `cargo xtask <setup | lint | test | ci | tidy>`.
//!
//! It uses little beyond the standard library, so that it builds in seconds on a bare machine.
//!
//! - `setup` installs the servers and tools that tests need.
//! - `lint` checks formatting, lints, documentation, features, dependency bans and the rules of `tidy`.
//! - `test` builds every test suite at once, runs several side by side, and counts.
//! - `ci` is `lint` and `test`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program that talks to its user")]

mod bans;
mod binaries;
mod lint;
mod manifest;
mod matrix;
mod run;
mod setup;
mod suites;
mod test;
mod tidy;

use std::{env, process::ExitCode};

/// What a chore has to say when it fails.
type Outcome = Result<(), String>;

const USAGE: &str = "usage: cargo xtask <setup | lint | test | ci | tidy>";

fn main() -> ExitCode {
    let chore = env::args().nth(1).unwrap_or_default();
    let outcome = run::at_the_root().and_then(|()| match chore.as_str() {
        "setup" => setup::setup(),
        "lint" => lint::lint(),
        "test" => test::test(),
        "ci" => lint::lint().and_then(|()| test::test()),
        "tidy" => tidy::tidy(),
        _ => Err(USAGE.into()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {chore}: {error}");
            ExitCode::FAILURE
        }
    }
}
