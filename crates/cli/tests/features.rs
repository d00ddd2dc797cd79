//! A store or a command that this build lacks is refused in words.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

#[test]
fn a_store_that_this_build_lacks() {
    let built = [
        ("redis", cfg!(feature = "redis"), "redis://127.0.0.1:1"),
        (
            "redlock",
            cfg!(feature = "redlock"),
            "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        ),
        ("etcd", cfg!(feature = "etcd"), "etcd://127.0.0.1:1"),
        (
            "postgres",
            cfg!(feature = "postgres"),
            "postgres://me:secret@127.0.0.1:1/db",
        ),
        (
            "zookeeper",
            cfg!(feature = "zookeeper"),
            "zookeeper://127.0.0.1:1",
        ),
        (
            "sqlite",
            cfg!(feature = "sqlite"),
            "sqlite:///no/such/folder/locks.db",
        ),
    ];
    for (store, built, url) in built {
        let words = ["run", "job", "-n", "--store", url, "--", "true"];
        let output = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(words)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let lacks = said.contains(&format!("needs the feature {store:?}"));
        assert_eq!(lacks, !built, "{url}: {said}");
        let expected = if built && store != "sqlite" { 69 } else { 64 };
        assert_eq!(output.status.code(), Some(expected), "{url}: {said}");
    }
}

#[test]
fn a_command_that_this_build_lacks() {
    for command in ["verify", "compare"] {
        let output = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args([command, "--help"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let lacks = said.contains(&format!("`{command}` needs the feature \"lab\""));
        assert_eq!(lacks, cfg!(not(feature = "lab")), "{said}");
        let expected = if lacks { 64 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{said}");
    }
}
