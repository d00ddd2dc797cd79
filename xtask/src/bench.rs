//! Measures: builds the program of `benches/`, which is a workspace of its own, and runs it.

use std::{env, process::Command};

use crate::{
    run::{Outcome, cargo, output, run},
    setup,
};

/// The manifest of the benchmarks. The crates that they compare with are in no other build.
pub(crate) const MANIFEST: &str = "benches/Cargo.toml";

/// Runs it with the words that follow the chore's name; `--peers` is also a feature of its build.
pub(crate) fn bench() -> Outcome {
    let words: Vec<String> = env::args().skip(2).collect();
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    // The build goes into the workspace's own target folder.
    let folder = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    // A run that only reads results needs no set-up.
    let reads = has("--table") || words.iter().any(|word| word.contains('='));
    if !reads {
        setup::setup()?;
        if !has("--row") || has("command") {
            // One of the rows runs the command, and finds it beside itself.
            let mut command = cargo(&[
                "build",
                "--release",
                "-p",
                "leasehold-cli",
                "--features",
                "full",
            ]);
            command.env("CARGO_TARGET_DIR", &folder);
            run(command)?;
        }
    }
    let mut bench = cargo(&["run", "--release", "--manifest-path", MANIFEST]);
    bench.env("CARGO_TARGET_DIR", folder);
    let mut commit = Command::new("git");
    commit.args(["describe", "--always", "--dirty"]);
    // The measured commit, for the report.
    if let Ok(commit) = output(commit) {
        bench.env("LEASEHOLD_COMMIT", commit.trim());
    }
    if has("--peers") || has("--docs") {
        bench.args(["--features", "peers"]);
    }
    bench.arg("--").args(words);
    run(bench)
}
