//! What the tests of the command share: the real binary, a program that is hard to end, and what it has written.

mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use leasehold::backend::Moment;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) use stage::*;

/// The same test on every store.
macro_rules! on {
    ($($store:ident),+: $test:ident) => { on!(@ [$($store)+] $test); };
    (@ [$($store:ident)+] $test:ident) => {
        mod $test {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $store() {
                super::$test(&crate::support::$store().await).await;
            })+
        }
    };
}

/// How often something is done: a short slice always, all of it with `LEASEHOLD_CAMPAIGN=1`.
pub(crate) fn campaign(slice: usize, whole: usize) -> usize {
    if std::env::var_os("LEASEHOLD_CAMPAIGN").is_some_and(|it| it == "1") {
        whole
    } else {
        slice
    }
}

/// Nothing here takes so long, on any machine.
pub(crate) const LONG: Duration = Duration::from_secs(40);
const GLANCE: Duration = Duration::from_millis(3);

/// `leasehold` with these words, without a store.
pub(crate) fn leasehold<'a>(words: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command
        .args(words)
        .env_remove("LEASEHOLD_STORE")
        .env_remove("LEASEHOLD_STORE_FILE")
        .stdin(Stdio::null());
    command
}

/// The same with all signals as they are by default, whatever the caller of these tests ignores, as `nohup` does.
pub(crate) fn afresh(command: &Command) -> Command {
    let mut afresh = Command::new("env");
    afresh
        .arg("--default-signal")
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => afresh.env(name, value),
            None => afresh.env_remove(name),
        };
    }
    afresh
}

/// Runs it to its end.
pub(crate) fn output(command: &mut Command) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.wait_with_output().unwrap()
}

/// Its exit code; none if a signal ended it.
pub(crate) fn code(command: &mut Command) -> Option<i32> {
    let output = output(command);
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.code()
}

/// Its exit code, and the JSON that it prints.
pub(crate) fn json(command: &mut Command) -> (Option<i32>, Value) {
    let output = output(command);
    let printed = serde_json::from_slice(&output.stdout);
    (
        output.status.code(),
        printed.unwrap_or_else(|e| panic!("{e}: {output:?}")),
    )
}

/// What it prints.
pub(crate) fn text(command: &mut Command) -> String {
    String::from_utf8(output(command).stdout).unwrap()
}

/// A command that runs. Dropping it kills it.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        Running(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        until("the end of the command", || self.0.try_wait().unwrap())
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Its guardian's process.
    pub(crate) fn guardian(&self) -> i32 {
        until("the guardian", || {
            children_of(self.pid())
                .into_iter()
                .find(|pid| is_guardian(*pid))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Waits until `look` finds something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Moment::now() + LONG;
    let mut pause = GLANCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Moment::now() < give_up, "waited {LONG:?} for {what}");
        std::thread::sleep(pause);
        // Many looks start a process, and would keep those from running that they wait for.
        pause = (pause * 5 / 4).min(GLANCE * 10);
    }
}

/// `(pid, parent, state)` of each process.
fn processes() -> Vec<(i32, i32, char)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let stat = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut words = text.rsplit_once(") ")?.1.split(' ');
        Some((
            pid,
            words.next()?.chars().next()?,
            words.next()?.parse().ok()?,
        ))
    };
    pids.filter_map(stat)
        .map(|(pid, state, parent)| (pid, parent, state))
        .collect()
}

pub(crate) fn children_of(parent: i32) -> Vec<i32> {
    processes()
        .into_iter()
        .filter(|process| process.1 == parent)
        .map(|process| process.0)
        .collect()
}

/// Whether the process is stopped by a signal.
pub(crate) fn is_stopped(pid: i32) -> bool {
    processes()
        .iter()
        .any(|process| process.0 == pid && matches!(process.2, 'T' | 't'))
}

/// Whether a process has the name of a guardian.
pub(crate) fn is_guardian(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "lock-guardian")
}

/// The command line of a process; empty if there is none, or it has ended.
pub(crate) fn words_of(pid: i32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
        .replace('\0', " ")
}

/// A folder in which families write the times at which they live.
pub(crate) struct Family {
    folder: TempDir,
}

impl Family {
    pub(crate) fn new() -> Family {
        Family {
            folder: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command line for `-- …`: a program, its child and its daemon.
    pub(crate) fn all(&self) -> [String; 4] {
        [
            "bash".into(),
            script(),
            "all".into(),
            self.folder().display().to_string(),
        ]
    }

    /// A program that writes the time once.
    pub(crate) fn once(&self, name: &str) -> [String; 4] {
        [
            "bash".into(),
            script(),
            "once".into(),
            self.folder().join(name).display().to_string(),
        ]
    }

    /// Waits until all three members of one family live, and returns their process ids.
    pub(crate) fn until_alive(&self) -> Vec<i32> {
        until("a family of three", || {
            let alive = self
                .files("")
                .into_iter()
                .filter(|file| !stamps(file).is_empty())
                .count();
            (alive == 3).then(|| self.pids())
        })
    }

    pub(crate) fn pids(&self) -> Vec<i32> {
        let files = self.files(".pid");
        files
            .iter()
            .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
            .collect()
    }

    /// Those of its members that live.
    pub(crate) fn alive(&self) -> Vec<i32> {
        let folder = self.folder().display().to_string();
        self.pids()
            .into_iter()
            .filter(|pid| words_of(*pid).contains(&folder))
            .collect()
    }

    /// Waits until none lives, and returns the last time that any has written.
    pub(crate) fn until_gone(&self) -> u64 {
        until("the end of the family", || {
            self.alive().is_empty().then_some(())
        });
        self.last()
    }

    /// The last time that any member has written.
    pub(crate) fn last(&self) -> u64 {
        self.files("")
            .iter()
            .filter_map(|file| stamps(file).last().copied())
            .max()
            .unwrap()
    }

    /// The time that a program has written once.
    pub(crate) fn written(&self, name: &str) -> u64 {
        stamps(&self.folder().join(name))[0]
    }

    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let members = ["leader", "child", "daemon"].map(|member| format!(".{member}{extension}"));
        let entries = fs::read_dir(self.folder())
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        entries
            .filter(|path| {
                members
                    .iter()
                    .any(|end| path.to_string_lossy().ends_with(end))
            })
            .collect()
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.alive()
            .into_iter()
            .for_each(|pid| send(pid, Signal::KILL));
    }
}

fn script() -> String {
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/command/support/family.sh"
    )
    .into()
}

/// The complete lines of a file of times.
fn stamps(file: &Path) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| line.parse().unwrap()).collect()
}

/// Now, as the families write it: µs of the wall clock.
pub(crate) fn now() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    u64::try_from(now.as_micros()).unwrap()
}
