//! Programs of another user: they may not be signalled, and that is said.
//!
//! The command runs as an ordinary user that may become another one and, for what the test has built, reach any file, as
//! if its program were `sudo`; it may not signal that other user. That takes root, or `newuidmap` for a user namespace.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{self, Running, Stage, until, words_of};

const OURS: &str = "1";
const ANOTHER: &str = "2";

/// A holder that runs as an ordinary user, and a process of another user below it that ends with the folder.
struct Case {
    folder: TempDir,
    stage: Stage,
    holder: Running,
    foreign: i32,
}

impl Case {
    /// The holder's program is this script, in which `FOREIGN` becomes the other user's process.
    async fn of(script: &str) -> Case {
        Case::with(script, run).await
    }

    async fn with(script: &str, run: fn(&Stage, PathBuf, &str) -> Command) -> Case {
        let (folder, stage) = (TempDir::new().unwrap(), support::redis().await);
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let at = folder.path().display();
        let foreign = format!(
            "echo $$ > {at}/new; mv {at}/new {at}/pid; while [ -e {at} ]; do sleep 0.1; done"
        );
        let script = script.replace(
            "FOREIGN",
            &format!("setpriv --reuid {ANOTHER} sh -c '{foreign}'"),
        );
        let script = script.replace(
            "UNTIL_THERE",
            &format!("while [ ! -e {at}/pid ]; do sleep 0.01; done"),
        );
        let mut command = run(&stage, folder.path().join("report"), &script);
        let holder =
            Running::start(command.stderr(File::create(folder.path().join("said")).unwrap()));
        let pid = folder.path().join("pid");
        let foreign = until("the other user's process", || {
            fs::read_to_string(&pid).ok()?.trim().parse().ok()
        });
        Case {
            folder,
            stage,
            holder,
            foreign,
        }
    }

    fn lose(&self) {
        assert_eq!(self.stage.evict("job", self.stage.token("job")), Some(0));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.file("said")).unwrap()
    }

    /// That process lives on, and is told of on standard error.
    fn assert_told(&self) {
        self.assert_named();
        assert!(
            words_of(self.foreign).contains("while"),
            "it lives on: {}",
            self.said()
        );
    }

    fn assert_named(&self) {
        let (said, foreign) = (self.said(), self.foreign);
        assert!(
            said.contains(&format!(
                ": {foreign} (of another user: it may not be signalled)"
            )),
            "{said}"
        );
    }

    /// And in the report.
    fn assert_reported(&self, outcome: &str) {
        self.assert_told();
        let report: Value =
            serde_json::from_str(&fs::read_to_string(self.file("report")).unwrap()).unwrap();
        assert_eq!(
            (&report["outcome"], &report["left"]),
            (&outcome.into(), &Value::from(vec![self.foreign]))
        );
    }
}

/// `leasehold run` as an ordinary user.
fn run(stage: &Stage, report: PathBuf, script: &str) -> Command {
    let mut command = Command::new("setpriv");
    if !rustix::process::geteuid().is_root() {
        command = Command::new("unshare");
        command.args(["--map-root-user", "--map-auto", "setpriv"]);
    }
    let rights = "+setuid,+dac_override";
    command.args([
        "--reuid",
        OURS,
        "--regid",
        OURS,
        "--clear-groups",
        "--inh-caps",
        rights,
        "--ambient-caps",
        rights,
    ]);
    command.args([
        env!("CARGO_BIN_EXE_leasehold"),
        "run",
        "job",
        "--store",
        &stage.url,
    ]);
    command
        .args(["--ttl", &format!("{}ms", stage.ttl.as_millis()), "--report"])
        .arg(report);
    command
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null());
    command
}

/// The same where `/proc` shows only the user's own processes.
fn run_hidden(stage: &Stage, report: PathBuf, script: &str) -> Command {
    let inner = run(stage, report, script);
    let mut command = Command::new("unshare");
    let mut words = inner.get_args();
    if !rustix::process::geteuid().is_root() {
        // Only in a PID namespace of its own may such a user mount one; the inner `unshare` is then this one.
        command.args(["--map-root-user", "--map-auto", "--pid", "--fork"]);
        words.by_ref().take(2).for_each(drop);
    }
    let line = "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"";
    command
        .args(["--mount", "sh", "-c", line, "sh"])
        .stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.arg(inner.get_program());
    }
    command.args(words);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_proc_does_not_show() {
    let mut case = Case::with("setsid FOREIGN & exec sleep 1000", run_hidden).await;
    case.lose();
    assert_eq!(case.holder.end().code(), Some(76));
    case.assert_named();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_when_the_lock_is_lost() {
    let mut case = Case::of("exec FOREIGN").await;
    case.holder.signal(Signal::TERM);
    until("the refusal", || {
        case.said()
            .contains("SIGTERM was not passed on")
            .then_some(())
    });
    case.lose();
    assert_eq!(case.holder.end().code(), Some(76));
    case.assert_reported("lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_when_the_lock_is_lost() {
    let mut case = Case::of("setsid FOREIGN & exec sleep 1000").await;
    case.lose();
    assert_eq!(case.holder.end().code(), Some(76));
    case.assert_reported("lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_the_program_leaves_behind() {
    let mut case = Case::of("FOREIGN & UNTIL_THERE; exit 4").await;
    assert_eq!(case.holder.end().code(), Some(4));
    case.assert_reported("ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_when_the_command_is_killed() {
    let case = Case::of("exec FOREIGN").await;
    case.holder.signal(Signal::KILL);
    until("the guardian's last words", || {
        case.said().contains("run on").then_some(())
    });
    case.assert_told();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_when_the_guardian_is_killed() {
    let mut case = Case::of("exec FOREIGN").await;
    // It runs as the command does.
    support::send(case.holder.guardian(), Signal::KILL);
    assert_eq!(case.holder.end().code(), Some(125));
    case.assert_reported("failed");
}
