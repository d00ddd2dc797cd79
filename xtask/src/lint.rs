//! All checks of the code that do not run it.
//!
//! Each feature and each library alone takes other features of third-party crates, so that most of
//! their code is checked once more: together that takes longer than all other checks. Only `--all`
//! does it, which the job in CI has. Otherwise one check stands for them, all stores without TLS
//! over the third-party crates as they are for all other checks: it finds code that needs TLS, or
//! the code of the lab, and does not say so.

use std::{env, fs};

use crate::{
    bans,
    bench::MANIFEST,
    run::{LAB, Outcome, PLAIN, beside_clippy, cargo, lab, run},
    setup, tidy,
};

/// All stores, without TLS and SASL.
const STORES: &str = "memory,redis,redlock,etcd,zookeeper,postgres,sqlite,bridge";
/// The features of the facade that must build alone.
const FEATURES: [&str; 21] = [
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
    "deadpool",
    "bb8",
    "sqlx",
    "redis,redlock,etcd,zookeeper,postgres,tls-ring",
    "redis,redlock,etcd,zookeeper,postgres,tls-no-provider",
];

/// The documentation. With an example, cargo has third-party crates as Clippy has them, which
/// checks tests: their features count, too.
const DOC: [&str; 7] = [
    "doc",
    "--workspace",
    "--all-features",
    "--no-deps",
    "--lib",
    "--bin=xtask",
    "--example=quickstart",
];

/// Runs every check, cheapest first, and stops at the first that fails. It leaves out each feature
/// and each library alone, unless it is called with `--all`.
pub(crate) fn lint() -> Outcome {
    run(cargo(&["fmt", "--all", "--check"]))?;
    run(cargo(&["fmt", "--check", "--manifest-path", MANIFEST]))?;
    tidy::tidy()?;
    // The benchmarks have a lock file of their own, which no other build reads.
    run(cargo(&[
        "update",
        "--workspace",
        "--locked",
        "--manifest-path",
        MANIFEST,
    ]))?;
    setup::setup()?;
    bans::bans()?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--all-features"];
    let words = [&["-D", "warnings"][..], &LAB].concat();
    // Clippy takes the place of the compiler itself.
    run(cargo(&[&clippy[..], &["--"], &words].concat()))?;
    let mut doc = beside_clippy(&words, &DOC);
    doc.env("RUSTDOCFLAGS", "-D warnings --cfg leasehold_lab");
    run(doc)?;
    // The example is one of the crate that has all stores, and builds them.
    run(PLAIN.cargo(&[
        "check",
        "--workspace",
        "--all-features",
        "--example=quickstart",
    ]))?;
    if env::args().any(|word| word == "--all") {
        // Clippy takes as long as a check, and refuses warnings.
        let mut stores = cargo(&["clippy"]);
        stores
            .args(&facade(STORES)[1..])
            .args(["--", "-D", "warnings"]);
        run(stores)?;
        for feature in FEATURES {
            run(lab(&facade(feature)))?;
        }
        each_library_alone()?;
    }
    Ok(())
}

/// Checks the facade with these features alone.
fn facade(features: &str) -> [&str; 6] {
    [
        "check",
        "-p",
        "leasehold",
        "--no-default-features",
        "--features",
        features,
    ]
}

/// A library that forgets a feature of a dependency builds beside others that have it, and not alone.
fn each_library_alone() -> Outcome {
    let crates = fs::read_dir("crates").map_err(|error| format!("reading crates: {error}"))?;
    let mut names: Vec<String> = crates
        .flatten()
        .map(|entry| format!("leasehold-{}", entry.file_name().display()))
        .collect();
    names.sort();
    names
        .iter()
        .try_for_each(|name| run(lab(&["check", "-p", name])))
}
