//! Measures: builds the program of `benches/`, which is a workspace of its own, and runs it.

use std::env;

use crate::{
    run::{Outcome, cargo, run},
    setup,
};

/// Its manifest. What it compares with is in no other build.
pub(crate) const MANIFEST: &str = "benches/Cargo.toml";

/// Runs it with the words that follow the chore's name; `--peers` is also a feature of its build.
pub(crate) fn bench() -> Outcome {
    setup::setup()?;
    let words: Vec<String> = env::args().skip(2).collect();
    let mut bench = cargo(&["run", "--release", "--manifest-path", MANIFEST]);
    // In our own folder for what is built.
    bench.env("CARGO_TARGET_DIR", env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    if words.iter().any(|word| word == "--peers") {
        bench.args(["--features", "peers"]);
    }
    bench.arg("--").args(words);
    run(bench)
}
