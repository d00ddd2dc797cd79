//! The project's own chores: `cargo xtask <chore>`. [`CHORES`] lists them; CI runs them and nothing else.
//!
//! It uses little beyond the standard library, so that it builds in seconds on a bare machine.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is a program that talks to its user"
)]

mod bans;
mod bench;
mod binaries;
mod chaos;
#[cfg(test)]
mod guide;
mod jobs;
mod lint;
mod matrix;
mod postgres;
mod room;
mod run;
mod servers;
mod setup;
mod sim;
mod suites;
mod test;
mod tidy;
#[cfg(test)]
mod workflows;

use std::{env, process::ExitCode};

use run::Outcome;

/// A chore's name, its description, and its function.
type Chore = (&'static str, &'static str, fn() -> Outcome);

const CHORES: [Chore; 19] = [
    (
        "setup",
        "installs the servers and tools that tests need, by apt-get; with --all also other versions of Redis and Valkey, by pip",
        servers::setup,
    ),
    (
        "tidy",
        "checks the rules of the project that no compiler checks",
        tidy::tidy,
    ),
    (
        "lint",
        "checks format, tidy, bans of dependencies, clippy, rustdoc; with --all each feature and each library alone",
        lint::lint,
    ),
    (
        "test",
        "builds all tests, runs several side by side, and counts: --all, --suite PACKAGE/SUITE",
        test::test,
    ),
    (
        "bench",
        "measures beside raw commands: --quick, --peers, --store STORE, --row ROW",
        bench::bench,
    ),
    (
        "chaos",
        "runs clients under faults and judges them: --store STORE, --seconds N, --seed S",
        chaos::chaos,
    ),
    (
        "prove",
        "the same for long, and writes docs/reliability.md: --store STORE, --seconds N",
        chaos::prove,
    ),
    (
        "sim",
        "runs the real code in simulated worlds: --seeds N, --seed S, --steps and --faults of one",
        sim::sim,
    ),
    (
        "postgres",
        "runs the suite of the PostgreSQL store on other versions, from npm: 13 14 16 17 18, or some of them",
        postgres::postgres,
    ),
    ("ci", "lint and test", || {
        lint::lint().and_then(|()| test::test())
    }),
    ("msrv", "builds everything with the oldest Rust", jobs::msrv),
    (
        "portable",
        "tests what works on every system, on this one",
        jobs::portable,
    ),
    (
        "targets",
        "checks the same for Windows and macOS, from here",
        jobs::targets,
    ),
    (
        "features",
        "checks every combination of features",
        jobs::features,
    ),
    (
        "minimal",
        "builds with the oldest versions of dependencies",
        jobs::minimal,
    ),
    (
        "deny",
        "checks licences, sources and advisories",
        jobs::deny,
    ),
    (
        "semver",
        "compares the public API with the last release",
        jobs::semver,
    ),
    (
        "docs",
        "builds the documentation as docs.rs does",
        jobs::docs,
    ),
    (
        "package",
        "packages what is published, builds the packages, and limits the command's size",
        jobs::package,
    ),
];

fn main() -> ExitCode {
    if let Some(compiled) = run::compiled() {
        return compiled;
    }
    let word = env::args().nth(1).unwrap_or_default();
    let outcome = match CHORES.iter().find(|(name, ..)| *name == word) {
        Some((.., chore)) => run::at_the_root().and_then(|()| chore()),
        None => Err(usage()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {word}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let lines = CHORES
        .iter()
        .map(|(name, what, _)| format!("\n  {name:9} {what}"));
    format!(
        "usage: cargo xtask <chore>, which is one of:{}",
        lines.collect::<String>()
    )
}
