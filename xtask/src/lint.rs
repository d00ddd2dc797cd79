//! Everything that can be said about the code without running it.

use std::{env, fs};

use crate::{
    bans,
    bench::MANIFEST,
    run::{Outcome, cargo, run},
    setup, tidy,
};

/// The features of the facade that must build alone.
const FEATURES: [&str; 15] = [
    "",
    "memory",
    "redis",
    "redlock",
    "etcd",
    "zookeeper",
    "postgres",
    "sqlite",
    "tls",
    "redis,tls",
    "redlock,tls",
    "etcd,tls",
    "zookeeper,tls",
    "zookeeper,sasl",
    "postgres,tls",
];

/// Programs that have our SQLite store and sqlx, of which a program can link only one SQLite.
const BESIDE_SQLX: [&str; 2] = ["crates/sqlite/beside_sqlx/0.8/Cargo.toml", "crates/sqlite/beside_sqlx/0.9/Cargo.toml"];

/// Runs every check, cheapest first, and stops at the first that fails.
pub(crate) fn lint() -> Outcome {
    run(cargo(&["fmt", "--all", "--check"]))?;
    run(cargo(&["fmt", "--check", "--manifest-path", MANIFEST]))?;
    tidy::tidy()?;
    setup::setup()?;
    bans::bans()?;
    run(cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]))?;
    let mut doc = cargo(&["doc", "--workspace", "--all-features", "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    run(doc)?;
    for feature in FEATURES {
        run(cargo(&["check", "-p", "leasehold", "--no-default-features", "--features", feature]))?;
    }
    for program in BESIDE_SQLX {
        // In our own folder for what is built: what they share with us is built already.
        let folder = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let mut check = cargo(&["check", "--manifest-path", program, "--target-dir"]);
        // Their manifests have no profile of ours.
        let debug = env::var_os("CARGO_PROFILE_DEV_DEBUG").unwrap_or_else(|| "line-tables-only".into());
        check.arg(folder).env("CARGO_PROFILE_DEV_DEBUG", debug);
        run(check)?;
    }
    each_library_alone()
}

/// A library that forgets a feature of a dependency builds beside others that have it, and not alone.
fn each_library_alone() -> Outcome {
    let crates = fs::read_dir("crates").map_err(|error| format!("reading crates: {error}"))?;
    let mut names: Vec<String> =
        crates.flatten().map(|entry| format!("leasehold-{}", entry.file_name().display())).collect();
    names.sort();
    names.iter().try_for_each(|name| run(cargo(&["check", "-p", name])))
}
