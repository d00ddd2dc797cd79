//! The chores with a job of their own in CI, beside `lint` and `test`: one function for each.

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    run::{Outcome, cargo, cargo_of, output, run, shown},
    setup,
};

/// The oldest Rust that users may have: `rust-version` in the workspace's `Cargo.toml`.
pub(crate) const MSRV: &str = env!("CARGO_PKG_RUST_VERSION");
/// The Rust with unreleased features. docs.rs uses it.
pub(crate) const NIGHTLY: &str = "nightly";
/// Systems for which the types can be checked without a machine of their own.
const TARGETS: [&str; 2] = ["x86_64-pc-windows-gnu", "aarch64-apple-darwin"];
/// The greatest size of the command with all stores, in bytes: it is copied into images.
const LARGEST_COMMAND: u64 = 16_000_000;

/// Everything builds with the oldest Rust.
pub(crate) fn msrv() -> Outcome {
    setup::setup()?;
    run(cargo_of(
        MSRV,
        &["check", "--workspace", "--all-features", "--all-targets"],
    ))
}

/// Tests the features that work on every system on this one. It needs neither a server nor protoc.
pub(crate) fn portable() -> Outcome {
    let features = "memory,redis,redlock,zookeeper,postgres,sqlite";
    run(cargo(&[
        "test",
        "-p",
        "leasehold-core",
        "-p",
        "leasehold-memory",
    ]))?;
    run(cargo(&["test", "-p", "leasehold", "--features", features]))
}

/// Checks that these features, and etcd, compile for the systems of [`TARGETS`]. TLS is left out,
/// since it takes their C compilers.
pub(crate) fn targets() -> Outcome {
    setup::setup()?;
    for target in TARGETS {
        let check = [
            "--target",
            target,
            "-p",
            "leasehold-core",
            "-p",
            "leasehold-memory",
            "-p",
            "leasehold",
        ];
        let features = "leasehold/redis,leasehold/redlock,leasehold/etcd,leasehold/zookeeper,leasehold/postgres,leasehold/sqlite";
        run(cargo(
            &[&["check", "--features", features, "--tests"], &check[..]].concat(),
        ))
        .map_err(|error| {
            format!("{error}; if the target is missing: rustup target add {target}")
        })?;
    }
    Ok(())
}

/// Every combination of features passes clippy. The pools of PostgreSQL are left out, since they
/// would make eight times as many: `lint --all` builds each alone.
pub(crate) fn features() -> Outcome {
    needs("hack", "cargo-hack")?;
    setup::setup()?;
    let packages = [
        "-p",
        "leasehold",
        "-p",
        "leasehold-cli",
        "-p",
        "leasehold-lab",
    ];
    let hack = [
        "hack",
        "clippy",
        "--feature-powerset",
        "--exclude-features",
        // `cargo xtask lint --all` checks the providers of TLS and the pools: together with all else they are too many.
        "default,full,tls-aws-lc,tls-ring,tls-no-provider,deadpool,bb8,sqlx",
    ];
    run(cargo(
        &[&hack, &packages[..], &["--", "-D", "warnings"]].concat(),
    ))
}

/// Checks that the published crates also build with the oldest versions that their manifests allow.
pub(crate) fn minimal() -> Outcome {
    needs("hack", "cargo-hack")?;
    needs("minimal-versions", "cargo-minimal-versions")?;
    setup::setup()?;
    run(cargo_of(
        NIGHTLY,
        &[
            "minimal-versions",
            "check",
            "--direct",
            "--workspace",
            "--all-features",
            "--ignore-private",
        ],
    ))
}

/// Checks licences, sources, bans, and known vulnerabilities.
pub(crate) fn deny() -> Outcome {
    needs("deny", "cargo-deny")?;
    run(cargo(&["deny", "--all-features", "check"]))
}

/// The public API is compatible with that of the last release, as far as its version says so.
pub(crate) fn semver() -> Outcome {
    needs("semver-checks", "cargo-semver-checks")?;
    setup::setup()?;
    let mut git = Command::new("git");
    git.args([
        "tag",
        "--list",
        "v*",
        "--merged",
        "HEAD",
        "--sort=-version:refname",
    ]);
    let tags = output(git)?;
    let Some(tag) = tags.lines().next() else {
        println!("semver: no release is tagged yet, there is nothing to compare with");
        return Ok(());
    };
    let words = [
        "semver-checks",
        "--workspace",
        "--all-features",
        "--baseline-rev",
        tag,
    ];
    run(cargo(
        &[
            &words[..],
            &unpublished()?
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>(),
        ]
        .concat(),
    ))
}

/// The documentation as docs.rs builds it.
pub(crate) fn docs() -> Outcome {
    setup::setup()?;
    let mut doc = cargo_of(
        NIGHTLY,
        &["doc", "-p", "leasehold", "--all-features", "--no-deps"],
    );
    doc.env("RUSTDOCFLAGS", "--cfg docsrs -D warnings");
    run(doc)
}

/// Checks that the published crates can be packaged, and build from their packages. Their
/// dependencies must be published too.
pub(crate) fn package() -> Outcome {
    setup::setup()?;
    let unpublished = unpublished()?;
    let unpublished: Vec<&str> = unpublished.iter().map(String::as_str).collect();
    run(cargo(
        &[&["package", "--workspace"], &unpublished[..]].concat(),
    ))?;
    command_is_small()
}

/// The command with all stores, as it is released, is no larger than its limit.
fn command_is_small() -> Outcome {
    let mut build = cargo(&[
        "build",
        "--release",
        "-p",
        "leasehold-cli",
        "--features",
        "full",
    ]);
    build.arg("--message-format=json-render-diagnostics");
    println!("$ {}", shown(&build));
    let messages = output(build)?;
    let mut built = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let command = built.find_map(|message| message["executable"].as_str().map(String::from));
    let command = command.ok_or("cargo built no command")?;
    let bytes = fs::metadata(&command)
        .map_err(|error| format!("{command}: {error}"))?
        .len();
    println!("package: {command} has {bytes} bytes, of {LARGEST_COMMAND} at most");
    if bytes <= LARGEST_COMMAND {
        Ok(())
    } else {
        Err(format!("{command} is too large: {bytes} bytes"))
    }
}

/// `--exclude` for each package that is never published.
fn unpublished() -> Result<Vec<String>, String> {
    let text = output(cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|error| format!("reading cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let private =
        packages.filter(|package| package["publish"].as_array().is_some_and(Vec::is_empty));
    Ok(private
        .flat_map(|package| {
            [
                "--exclude".to_owned(),
                package["name"].as_str().unwrap_or_default().into(),
            ]
        })
        .collect())
}

/// Fails with the way to install a subcommand of cargo if it is missing.
fn needs(subcommand: &str, package: &str) -> Outcome {
    let mut ask = cargo(&[subcommand, "--version"]);
    let found = ask
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if found {
        Ok(())
    } else {
        Err(format!(
            "this needs {package}: cargo install --locked {package}"
        ))
    }
}
