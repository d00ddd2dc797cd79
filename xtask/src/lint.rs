//! Everything that can be said about the code without running it.

use std::fs;

use crate::{
    bans,
    bench::MANIFEST,
    run::{Outcome, cargo, run},
    setup, tidy,
};

/// The features of the facade that must build alone.
const FEATURES: [&str; 16] = [
    "",
    "memory",
    "redis",
    "redlock",
    "etcd",
    "zookeeper",
    "postgres",
    "sqlite",
    "bridge",
    "tls",
    "redis,tls",
    "redlock,tls",
    "etcd,tls",
    "zookeeper,tls",
    "zookeeper,sasl",
    "postgres,tls",
];

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
