//! Signals as the program would get them from its parent: each that others send to `leasehold` reaches it, none ends `leasehold`; a program
//! that only itself was stopped stays stopped, with its lock.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{self, Running, Stage, code, is_stopped, send, until};
use rustix::process::Signal;

on!(sqlite: every_signal_is_the_programs);
on!(redis, sqlite: a_program_that_was_stopped_keeps_its_lock);

/// All that a process can handle, but what is of its own making (SEGV and the like), SIGPIPE and SIGCHLD.
const SIGNALS: &str = "HUP INT QUIT ABRT USR1 USR2 ALRM TERM STKFLT CONT TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH \
                       IO PWR RTMIN RTMIN+7 RTMAX";

/// Sends it as `kill` does.
fn kill(signal: &str, pid: i32) {
    assert!(
        Command::new("bash")
            .args(["-c", &format!("kill -s {signal} {pid}")])
            .status()
            .unwrap()
            .success()
    );
}

async fn every_signal_is_the_programs(stage: &Stage) {
    let folder = tempfile::tempdir().unwrap();
    let [seen, ready, never] = ["seen", "ready", "never"].map(|name| folder.path().join(name));
    let traps: String = SIGNALS
        .split(' ')
        .map(|name| format!("trap 'echo {name} >> {}' {name}; ", seen.display()))
        .collect();
    // It waits without another process, and without what bash parses anew each time: a trap in the midst of that is a syntax error.
    let script = format!(
        "{traps} mkfifo {}; exec 9<> {0}; : > {}; while [ -e {1} ]; do read -rt 0.01 -u 9; done; exit 7",
        never.display(),
        ready.display()
    );
    let mut running = Running::start(&mut support::afresh(
        &stage.run("job", ["--", "bash", "-c", &script]),
    ));
    until("the program", || ready.exists().then_some(()));
    for name in SIGNALS.split(' ') {
        kill(name, running.pid());
        until(name, || {
            fs::read_to_string(&seen)
                .unwrap_or_default()
                .lines()
                .any(|line| line == name)
                .then_some(())
        });
    }
    assert_eq!(
        fs::read_to_string(&seen).unwrap().lines().count(),
        SIGNALS.split(' ').count(),
        "each once"
    );
    fs::remove_file(&ready).unwrap();
    assert_eq!(running.end().code(), Some(7));
}

/// The kernel reaps the children of a process that ignores SIGCHLD, and forgets how they ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_inherited_sigchld_that_is_ignored_hides_no_end() {
    let stage = support::sqlite().await;
    let line = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let mut python = Command::new("python3");
    python.args([
        "-c",
        line,
        env!("CARGO_BIN_EXE_leasehold"),
        "run",
        "job",
        "--",
        "sh",
        "-c",
        "exit 7",
    ]);
    assert_eq!(code(python.env("LEASEHOLD_STORE", &stage.url)), Some(7));
}

/// Nothing that is ignored by default ends a wait, and what ends a process by default ends it as itself.
#[tokio::test(flavor = "multi_thread")]
async fn signals_while_waiting() {
    use std::os::unix::process::ExitStatusExt;
    let stage = support::sqlite().await;
    let _held = stage.held();
    for (signal, number) in [("PWR", 30), ("IO", 29), ("RTMIN+3", 37), ("VTALRM", 26)] {
        let mut waiting = Running::start(&mut support::afresh(&stage.run("job", ["--", "true"])));
        stage.until_queue("job", 1, 1);
        ["WINCH", "URG", "CONT"]
            .into_iter()
            .for_each(|signal| kill(signal, waiting.pid()));
        kill(signal, waiting.pid());
        assert_eq!(waiting.end().signal(), Some(number), "{signal}");
        stage.until_queue("job", 1, 0);
    }
}

async fn a_program_that_was_stopped_keeps_its_lock(stage: &Stage) {
    let folder = tempfile::tempdir().unwrap();
    let (pid, go) = (folder.path().join("pid"), folder.path().join("go"));
    let script = format!(
        "echo $$ > {0}.new; mv {0}.new {0}; while [ ! -e {1} ]; do :; done; exit 5",
        pid.display(),
        go.display()
    );
    let mut holder = Running::start(&mut stage.sh(&script));
    let program: i32 = until("the program", || number(&pid));
    let token = stage.token("job");
    send(program, Signal::STOP);
    until("the stop", || is_stopped(program).then_some(()));
    fs::write(&go, "").unwrap();
    // Past its lease: a waiter does not get it even after that.
    assert_eq!(
        code(&mut stage.run(
            "job",
            [
                "--wait",
                &format!("{}ms", stage.ttl.as_millis() * 3 / 2),
                "--",
                "true"
            ]
        )),
        Some(75)
    );
    assert!(is_stopped(program), "no process continued it");
    assert!(!is_stopped(holder.pid()), "nor was anything else stopped");
    assert_eq!(stage.token("job"), token);
    send(program, Signal::CONT);
    assert_eq!(holder.end().code(), Some(5));
    // A stopped program is ended all the same.
    let mut command = stage.run(
        "job",
        [
            "--max-hold",
            "500ms",
            "--",
            "sh",
            "-c",
            "kill -STOP $$; exit 3",
        ],
    );
    assert_eq!(code(&mut command), Some(124));
}

fn number(file: &Path) -> Option<i32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
