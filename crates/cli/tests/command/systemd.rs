//! As a service: signals that a service manager sends to all processes of a unit, and variables that name the main process.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{self, Running, Stage, output, until};
use tempfile::TempDir;

/// A program that notes each SIGTERM and each SIGWINCH, and ends when its file has gone.
struct Service {
    folder: TempDir,
    running: Running,
}

impl Service {
    fn start(stage: &Stage) -> Service {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let script = format!(
            "trap 'echo >> {}' TERM; trap 'echo >> {}' WINCH; mkfifo {}; exec 9<> {2}; echo $$ > {3}.new; mv {3}.new {3}; \
             while [ -e {3} ]; do read -rt 0.01 -u 9; done; exit 7",
            path("TERM"),
            path("WINCH"),
            path("never"),
            path("pid")
        );
        let running = Running::start(&mut support::afresh(
            &stage.run("job", ["--", "bash", "-c", &script]),
        ));
        let service = Service { folder, running };
        until("the program", || service.path("pid").exists().then_some(()));
        service
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self) -> i32 {
        let text = fs::read_to_string(self.path("pid")).unwrap();
        text.trim().parse().unwrap()
    }

    /// How many of these signals it has got.
    fn seen(&self, signal: &str) -> usize {
        fs::read_to_string(self.path(signal))
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// A process of this name sends a signal to these, and lives on, as a service manager does.
    fn send(&self, sender: &str, signal: &str, pids: &[i32]) -> Running {
        let program = self.path(sender);
        if !program.exists() {
            fs::copy("/bin/bash", &program).unwrap();
        }
        let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
        let script = format!("kill -s {signal} {}; read -r", pids.join(" "));
        let mut sender = Command::new(program);
        sender.args(["-c", &script]).stdin(Stdio::piped());
        Running::start(&mut sender)
    }
}

/// `KillMode=control-group`, which is systemd's default, and `mixed`.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_all_of_a_unit_comes_once() {
    let stage = support::sqlite().await;
    let mut service = Service::start(&stage);
    let (command, guardian, program) = (
        service.running.pid(),
        service.running.guardian(),
        service.program(),
    );
    let mut all = 0;
    let mut comes_once = |sender: &str, pids: &[i32]| {
        all += 1;
        let _sender = service.send(sender, "TERM", pids);
        until("the signal", || (service.seen("TERM") >= all).then_some(()));
        // A signal of a greater number is read after it, and passed on after it.
        let _sender = service.send("another", "WINCH", &[command]);
        until("what came later", || {
            (service.seen("WINCH") == all).then_some(())
        });
        assert_eq!(service.seen("TERM"), all, "{sender}, {pids:?}");
    };
    // The command last: between it and the others a busy machine may stop the sender for longer than they wait for each other.
    comes_once("systemd", &[guardian, program, command]);
    comes_once("systemd", &[program, guardian, command]);
    comes_once("systemd", &[command]);
    // One that ends both by their name does not know of the program.
    comes_once("another", &[command, guardian]);
    fs::remove_file(service.path("pid")).unwrap();
    assert_eq!(service.running.end().code(), Some(7));
}

/// The sockets and the watchdog are the program's, which is another process than the one that was started.
#[tokio::test(flavor = "multi_thread")]
async fn variables_that_name_the_process_name_the_program() {
    let stage = support::sqlite().await;
    let shows = "echo $$ $LISTEN_PID $WATCHDOG_PID $SYSTEMD_EXEC_PID";
    let shown = |script: &str| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script, env!("CARGO_BIN_EXE_leasehold"), shows])
            .env("LEASEHOLD_STORE", &stage.url);
        let text = String::from_utf8(output(&mut shell).stdout).unwrap();
        text.split_whitespace()
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let run = "exec \"$0\" run job -- sh -c \"$1\"";
    let [program, named @ ..] = &shown(&format!(
        "export LISTEN_PID=$$ WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=$$; {run}"
    ))[..] else {
        panic!("it shows nothing")
    };
    assert_eq!(named, [&program[..]; 3]);
    // What names another process is not for us.
    let others = shown(&format!(
        "export LISTEN_PID=1 WATCHDOG_PID=1 SYSTEMD_EXEC_PID=1; {run}"
    ));
    assert_eq!(others[1..], ["1", "1", "1"]);
}
