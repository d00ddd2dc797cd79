//! Another tool's client in a process of its own, moved by words: what the stores' tests of interoperation share.
//!
//! A script says `ready` once it is connected, and then answers each line with one line. It ends when its input does.

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
    reason = "tests"
)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs};

use leasehold_core::{FencingToken, Lock};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Where Debian's Python is. Another one that comes first in `PATH` would not find Debian's modules.
const PYTHON: &str = "/usr/bin/python3";

/// A process that is killed when this is dropped.
pub struct Foreign {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Foreign {
    /// Starts a script, given by its path in the package that is tested, with `LEASEHOLD_PYTHON` or Debian's Python.
    pub async fn start(package: &str, script: &str, args: &[&str]) -> Foreign {
        let python = env::var_os("LEASEHOLD_PYTHON").unwrap_or_else(|| OsString::from(PYTHON));
        let mut command = Command::new(&python);
        command
            .arg("-u")
            .arg(Path::new(package).join(script))
            .args(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command
            .spawn()
            .unwrap_or_else(|error| panic!("starting {}: {error}", python.display()));
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut foreign = Foreign {
            process,
            input,
            output,
        };
        assert_eq!(foreign.hear().await, "ready");
        foreign
    }

    pub async fn tell(&mut self, words: &str) {
        self.input
            .write_all(format!("{words}\n").as_bytes())
            .await
            .unwrap();
    }

    pub async fn hear(&mut self) -> String {
        let line = self.output.next_line().await.unwrap();
        line.expect("the script has ended; its standard error says why (cargo xtask setup installs what it needs)")
    }

    pub async fn ask(&mut self, words: &str) -> String {
        self.tell(words).await;
        self.hear().await
    }

    /// Whether it still waits for the lock; then it has not said yet that it holds it.
    pub async fn waits(&mut self) -> bool {
        self.ask("state").await == "waiting"
    }

    /// Ends it as a crash does (SIGKILL), and returns when it is gone.
    pub async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }
}

/// A number in a plain file, that a reader and writer without a lock gets wrong.
struct Counter {
    path: PathBuf,
    /// What we wrote last.
    last: AtomicU64,
    /// How often another client had written since.
    changes: AtomicU64,
}

impl Counter {
    fn new(folder: &Path) -> Counter {
        let counter = Counter {
            path: folder.join("counter"),
            last: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        };
        counter.write(0);
        counter
    }

    fn read(&self) -> u64 {
        let text = fs::read_to_string(&self.path).unwrap();
        text.parse()
            .unwrap_or_else(|_| panic!("another client writes while it is read: {text:?}"))
    }

    fn write(&self, number: u64) {
        fs::write(&self.path, number.to_string()).unwrap();
    }

    /// Adds one, and lets all others run between reading and writing.
    async fn add_one(&self) {
        let number = self.read();
        let last = self.last.swap(number + 1, Ordering::SeqCst);
        self.changes
            .fetch_add(u64::from(last != number), Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.write(number + 1);
    }
}

/// Tasks of ours, fair and fast ones, and foreign processes add to one counter in `folder` under one lock: the sum must be
/// exact, and our tokens rise. All start together in each of many rounds, so that both sides get their turns also where one
/// of them could keep the other out for as long as it goes on.
pub async fn count_together(locks: &[Lock], processes: &mut [Foreign], folder: &Path) {
    const ROUNDS: u64 = 12;
    const EACH: u64 = 5;
    let counter = Arc::new(Counter::new(folder));
    let mut newest = None;
    for _ in 0..ROUNDS {
        let mut tasks = Vec::new();
        for (n, lock) in locks.iter().cloned().enumerate() {
            let lock = if n % 2 == 0 { lock.fair() } else { lock.fast() };
            tasks.push(tokio::spawn(add(lock, counter.clone(), EACH)));
        }
        for process in &mut *processes {
            process
                .tell(&format!("count {EACH} {}", counter.path.display()))
                .await;
        }
        let mut tokens = Vec::new();
        for task in tasks {
            let of_one = task.await.unwrap();
            assert!(of_one.is_sorted_by(|a, b| a < b), "{of_one:?}");
            tokens.extend(of_one);
        }
        for process in &mut *processes {
            assert_eq!(process.hear().await, "counted");
        }
        tokens.sort_unstable();
        assert!(
            tokens.is_sorted_by(|a, b| a < b) && newest < tokens.first().copied(),
            "{newest:?} {tokens:?}"
        );
        newest = tokens.last().copied();
    }
    assert_eq!(
        counter.read(),
        ROUNDS * EACH * (locks.len() + processes.len()) as u64
    );
    // Both wrote in every round, so what they wrote lies between writes of ours at least in every other.
    let changes = counter.changes.load(Ordering::SeqCst);
    assert!(changes >= ROUNDS / 2, "{changes}");
}

async fn add(lock: Lock, counter: Arc<Counter>, times: u64) -> Vec<FencingToken> {
    let mut tokens = Vec::new();
    for _ in 0..times {
        let guard = lock.acquire().await.unwrap();
        counter.add_one().await;
        tokens.push(guard.fencing_token());
        guard.release().await.unwrap();
    }
    tokens
}
