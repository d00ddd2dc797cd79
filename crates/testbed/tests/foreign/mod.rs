//! Another tool's client in a process of its own, moved by words: what the stores' tests of interoperation share.
//!
//! A script says `ready` once it is connected, and then answers each line with one line. It ends when its input does.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

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
        command.arg("-u").arg(Path::new(package).join(script)).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap_or_else(|error| panic!("starting {}: {error}", python.display()));
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut foreign = Foreign { process, input, output };
        assert_eq!(foreign.hear().await, "ready");
        foreign
    }

    pub async fn tell(&mut self, words: &str) {
        self.input.write_all(format!("{words}\n").as_bytes()).await.unwrap();
    }

    pub async fn hear(&mut self) -> String {
        let line = self.output.next_line().await.unwrap();
        line.expect("the script has ended; its standard error says why (cargo xtask setup installs what it needs)")
    }

    pub async fn ask(&mut self, words: &str) -> String {
        self.tell(words).await;
        self.hear().await
    }

    /// Ends it as a crash does (SIGKILL), and returns when it is gone.
    pub async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }
}

/// A number in a plain file, that a reader and writer without a lock gets wrong.
pub struct Counter(std::path::PathBuf);

impl Counter {
    pub fn new(folder: &Path) -> Counter {
        let counter = Counter(folder.join("counter"));
        counter.write(0);
        counter
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub fn read(&self) -> u64 {
        let text = std::fs::read_to_string(&self.0).unwrap();
        text.parse().unwrap_or_else(|_| panic!("somebody writes while it is read: {text:?}"))
    }

    pub fn write(&self, number: u64) {
        std::fs::write(&self.0, number.to_string()).unwrap();
    }

    /// Adds one, and lets everybody else run between reading and writing.
    pub async fn add_one(&self) {
        let number = self.read();
        tokio::task::yield_now().await;
        self.write(number + 1);
    }
}
