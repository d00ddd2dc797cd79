//! Descendants that are hard to find, to reach or to kill: none lives when the lock is given up.

use std::process::Command;

use crate::support::{self, Running, Stage, campaign, is_guardian, output, send, words_of};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

/// A shell line in a PID namespace of its own, with a `/proc` of its own if asked for; `$L` is the command.
fn in_namespace(stage: &Stage, words: &[&str], line: &str) -> Command {
    let mut command = Command::new("unshare");
    if !geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
        .args(["--pid", "--fork", "--kill-child"])
        .args(words)
        .args(["sh", "-c", line]);
    command
        .env("LEASEHOLD_STORE", &stage.url)
        .env("L", env!("CARGO_BIN_EXE_leasehold"));
    command
}

/// Rounds of a family that loses its lock: `hunt.py` says which.
async fn hunt(what: &str, members: usize, rounds: usize) {
    let (stage, folder) = (support::sqlite().await, TempDir::new().unwrap());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/support/hunt.py");
    let line = format!(
        "exec python3 {script} rounds $L {} {what} {members} {rounds}",
        folder.path().display()
    );
    let output = output(&mut in_namespace(&stage, &["--mount-proc"], &line));
    let said = |bytes| String::from_utf8_lossy(bytes).into_owned();
    eprintln!("{what}: {}", said(&output.stdout).trim());
    assert!(output.status.success(), "{what}: {}", said(&output.stderr));
}

/// As after a wrap of the process ids: a reader in their order meets the child before its parent.
#[tokio::test(flavor = "multi_thread")]
async fn a_family_of_300_with_falling_ids() {
    hunt("chain", 300, campaign(3, 100)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_fork_while_they_are_killed() {
    hunt("bomb", 300, campaign(3, 100)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_first_thread_has_ended() {
    hunt("threads", 2, campaign(3, 20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_descendants_cannot_be_found_nothing_is_run() {
    let stage = support::sqlite().await;
    // The namespace's own /proc is not there: what is there shows other numbers, or, unmounted, nothing.
    let foreign: &[&str] = &[];
    let none: &[&str] = &["--mount", "--propagation", "private"];
    for (words, line) in [
        (foreign, "$L run job -- echo ran"),
        (none, "umount -l /proc; $L run job -- echo ran"),
    ] {
        let refused = output(&mut in_namespace(&stage, words, line));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(
            (refused.status.code(), &refused.stdout[..]),
            (Some(125), &b""[..]),
            "{said}"
        );
        assert!(
            said.contains("PID namespace: mount") && said.contains("outlive the lock"),
            "{said}"
        );
    }
    let own = output(&mut in_namespace(
        &stage,
        &["--mount-proc"],
        "$L run job -- echo ran",
    ));
    assert_eq!(own.stdout, b"ran\n");
}

/// The guardian is killed while it is killing: the command goes on with what is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_guardian_that_is_killed_while_it_kills() {
    let stage = support::sqlite().await;
    let family = support::Family::new();
    let mut holder = Running::start(
        stage
            .run("job", ["--max-hold", "1s", "--"])
            .args(family.all()),
    );
    let members = family.until_alive();
    let guardian = holder.guardian();
    // SIGTERM after a second, which they ignore; SIGKILL three twentieths of the lease later.
    std::thread::sleep(std::time::Duration::from_millis(1300));
    if is_guardian(guardian) {
        send(guardian, Signal::KILL);
    }
    assert!(matches!(holder.end().code(), Some(124 | 125)));
    assert!(
        members
            .into_iter()
            .all(|pid| !words_of(pid).contains("family")),
        "{:?}",
        family.alive()
    );
}
