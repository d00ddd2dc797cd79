//! What the tests of this store share: directories, other processes (this test binary again, in a role), and trials.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test uses a part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

use std::future::Future;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::runtime::Builder;

use leasehold_core::backend::Moment;
use leasehold_core::{Result, Store};
use leasehold_sqlite::{Config, Sqlite};
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;

/// Which role a process has, and with which words.
const ROLE: &str = "LEASEHOLD_TEST_ROLE";

/// A part that another process plays. Its words are those of [`Actor::start`].
pub type Role = (&'static str, fn(&[String]));
/// A named test.
pub type Test = (&'static str, fn());

/// The whole of a test binary: plays a role if it was started for one, else runs the tests.
pub fn main(roles: &[Role], tests: &[Test], alone: bool) -> ExitCode {
    if let Ok(line) = std::env::var(ROLE) {
        let mut words = line.split('\n').map(str::to_owned);
        let name = words.next().unwrap();
        let (_, play) = roles
            .iter()
            .find(|(role, _)| *role == name)
            .expect("a role");
        play(&words.collect::<Vec<_>>());
        return ExitCode::SUCCESS;
    }
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(if alone { 1 } else { 4 });
    let trial = |(name, test): &Test| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&args, tests.iter().map(trial).collect()).exit_code()
}

/// Another process, ended when this is dropped.
pub struct Actor {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    pub fn start(role: &str, words: &[&str]) -> Actor {
        Actor::start_by(Command::new(std::env::current_exe().unwrap()), role, words)
    }

    /// The same behind another program, whose last word is this one.
    pub fn start_by(mut command: Command, role: &str, words: &[&str]) -> Actor {
        let line = [&[role], words].concat().join("\n");
        command
            .env(ROLE, line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, lines) = (
            child.stdin.take(),
            BufReader::new(child.stdout.take().unwrap()).lines(),
        );
        Actor {
            child,
            stdin,
            lines,
        }
    }

    /// The next line that it says.
    pub fn hear(&mut self) -> String {
        self.lines.next().expect("it ended without a word").unwrap()
    }

    /// Waits until it says something, or has ended.
    pub fn ends_or_says(&mut self) {
        drop(self.lines.next());
    }

    /// The next line that it says; `None` once it has ended.
    pub fn hears(&mut self) -> Option<String> {
        self.lines.next().map(|line| line.unwrap())
    }

    /// Expects this line.
    pub fn says(&mut self, line: &str) {
        assert_eq!(self.hear(), line);
    }

    /// Says a line to it, for which it waits with [`await_cue`].
    pub fn cue(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    /// No cue comes any more: whatever it plays comes to its end.
    pub fn dismiss(&mut self) {
        self.stdin = None;
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// `kill -9`, and the end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// CPU time that its threads have used, to the nanosecond.
    pub fn cpu(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let used = threads.map(|thread| {
            // One that has just ended counts no more.
            let stat = std::fs::read_to_string(thread.unwrap().path().join("schedstat"))
                .unwrap_or_default();
            stat.split(' ')
                .next()
                .and_then(|nanos| nanos.parse::<u64>().ok())
                .unwrap_or_default()
        });
        Duration::from_nanos(used.sum())
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the next [`Actor::cue`]; false if the process that gave them has gone.
pub fn await_cue() -> bool {
    std::io::stdin()
        .read_line(&mut String::new())
        .is_ok_and(|n| n > 0)
}

/// Writes a line to the process that started this one.
pub fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// A directory with, later, one file of locks.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    pub fn word(&self) -> String {
        self.path().display().to_string()
    }
}

pub async fn open(path: impl AsRef<Path>) -> Result<Sqlite> {
    Sqlite::with_config(Config::new(path)).await
}

pub async fn store(path: impl AsRef<Path>) -> Store {
    Store::new(open(path).await.unwrap())
}

/// Runs a test that may take a minute at most.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    run_for(Duration::from_secs(60), test)
}

/// Runs a test that may take this long.
pub fn run_for<T>(limit: Duration, test: impl Future<Output = T>) -> T {
    run_on(Builder::new_multi_thread().worker_threads(2), limit, test)
}

/// The same on one thread.
pub fn run_alone<T>(test: impl Future<Output = T>) -> T {
    run_on(
        &mut Builder::new_current_thread(),
        Duration::from_secs(60),
        test,
    )
}

fn run_on<T>(runtime: &mut Builder, limit: Duration, test: impl Future<Output = T>) -> T {
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(limit, Box::pin(test))
            .await
            .expect("the test hangs")
    })
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How long ago it was.
pub fn since(moment: Moment) -> Duration {
    Moment::now().since(moment)
}

/// Of sorted durations, the one below which this share lies.
pub fn share(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}
