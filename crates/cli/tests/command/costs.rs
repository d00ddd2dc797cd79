//! What one run asks of the kernel, which does not depend on the machine: how many system calls, in which threads, and nothing about
//! other processes.

use std::fs;
use std::process::Command;

use crate::support::{self, Stage, code};
use tempfile::TempDir;

/// What the kernel is asked for by all processes of `leasehold run job -- PROGRAM`, with a short `PATH`: one line for each call.
fn calls(stage: &Stage, program: &[&str]) -> Vec<String> {
    let folder = TempDir::new().unwrap();
    let trace = folder.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-qq", "-o"]).arg(&trace).args([
        env!("CARGO_BIN_EXE_leasehold"),
        "run",
        "job",
        "--",
    ]);
    strace
        .args(program)
        .env("LEASEHOLD_STORE", &stage.url)
        .env("PATH", "/usr/bin:/bin");
    // Cargo sets it, and each library would be looked for in its folders.
    strace.env_remove("LD_LIBRARY_PATH");
    assert_eq!(code(&mut strace), Some(0), "strace: `cargo xtask setup`");
    let trace = fs::read_to_string(&trace).unwrap();
    // Neither signals, nor the second half of a call during which another process made one. What is left of the last is a call that
    // only a build with debug assertions makes, at each descriptor that it closes.
    let is_call = |line: &&str| {
        let (_, call) = line.trim_start().split_once(' ').unwrap_or_default();
        let call = call.trim_start();
        !call.starts_with(['+', '-', '<']) && !call.contains(", F_GETFD")
    };
    trace.lines().filter(is_call).map(String::from).collect()
}

/// How many there are at most, on any machine, and in builds with and without debug info. Fewer are better: lower it then.
const CALLS: usize = 350;

/// Counts those of a run that has nothing to wait for, once its file is there. Of many runs: two of three read what those before have
/// written to the log, or write it back, and one that a busy machine makes slow has a thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_makes_few_system_calls() {
    let stage = support::sqlite().await;
    assert_eq!(
        code(&mut stage.leasehold(["run", "job", "--", "true"])),
        Some(0)
    );
    let mut fewest: Vec<String> = Vec::new();
    for _ in 0..40 {
        let run = calls(&stage, &["true"]);
        if run.len() <= CALLS {
            return;
        }
        if fewest.is_empty() || run.len() < fewest.len() {
            fewest = run;
        }
    }
    panic!(
        "{} system calls, more than {CALLS}:\n{}",
        fewest.len(),
        fewest.join("\n")
    );
}

/// A forked process has one thread, and what another thread has locked is never unlocked in it: so none is started before.
#[tokio::test(flavor = "multi_thread")]
async fn both_forks_are_made_in_processes_of_one_thread() {
    let stage = support::sqlite().await;
    let calls = calls(&stage, &["true"]);
    let starts = calls.iter().filter(|call| call.contains(" clone"));
    let starts: Vec<(&str, bool)> = starts
        .map(|call| {
            (
                call.split(' ').next().unwrap_or_default(),
                call.contains("CLONE_THREAD"),
            )
        })
        .collect();
    let (threads, forks): (Vec<_>, Vec<_>) = starts.iter().partition(|(_, is_thread)| *is_thread);
    let [(command, _), (guardian, _)] = &forks[..] else {
        panic!("{starts:?}")
    };
    assert_eq!(starts[0], (*command, false), "{starts:?}");
    assert!(threads.iter().all(|(pid, _)| pid != guardian), "{starts:?}");
    let executed = calls
        .iter()
        .filter(|call| call.contains(" execve("))
        .count();
    assert_eq!(executed, 2, "this binary, and the program: {calls:?}");
}

/// What it costs does not depend on what else runs on the machine: nothing lists `/proc`, or reads of other processes.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_looks_at_processes_of_others() {
    let stage = support::sqlite().await;
    let calls = calls(&stage, &["sh", "-c", "(setsid true &); true"]);
    assert!(
        calls.iter().any(|call| call.contains("/children\"")),
        "the trace is one of the whole: {calls:?}"
    );
    let looks = |call: &&String| {
        let path = call
            .split("\"/proc")
            .nth(1)
            .map(|rest| rest.split('"').next().unwrap_or_default());
        call.contains("</proc>")
            || path.is_some_and(|path| path.is_empty() || path == "/" || is_a_process(path))
    };
    assert_eq!(
        calls.iter().filter(looks).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
}

/// `/123` or below.
fn is_a_process(path: &str) -> bool {
    path.split('/')
        .nth(1)
        .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}
