//! Where and when, and with which versions: no figure without them.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The versions that cargo has chosen.
const LOCKED: &str = include_str!("../Cargo.lock");
/// The crates whose versions matter for a figure.
const CRATES: [&str; 9] = [
    "distributed-lock-redis",
    "etcd-client",
    "leasehold",
    "redis",
    "rslock",
    "rusqlite",
    "tokio",
    "tokio-postgres",
    "zookeeper-client",
];

#[derive(Serialize, Deserialize)]
pub struct Machine {
    pub date: String,
    pub commit: String,
    pub processor: String,
    pub cores: usize,
    pub memory: String,
    pub system: String,
    pub rust: String,
    /// The means of one, five and fifteen minutes, before the first round and after the last.
    pub load_before: String,
    pub load_after: String,
    pub crates: BTreeMap<String, String>,
}

impl Machine {
    pub fn here() -> Machine {
        Machine {
            date: said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            // What was built; what is checked out may be newer.
            commit: option_env!("LEASEHOLD_COMMIT").map_or_else(
                || said("git", &["describe", "--always", "--dirty"]),
                Into::into,
            ),
            processor: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: field("/proc/meminfo", "MemTotal"),
            system: said("uname", &["-sr"]),
            rust: said("rustc", &["--version"]),
            load_before: load(),
            load_after: String::new(),
            crates: locked(),
        }
    }

    pub fn ended(&mut self) {
        self.load_after = load();
    }
}

fn locked() -> BTreeMap<String, String> {
    let value = |line: &str| line.split('"').nth(1).unwrap_or_default().to_owned();
    let packages = LOCKED.split("[[package]]").filter_map(|package| {
        let mut lines = package.trim_start().lines();
        Some((value(lines.next()?), value(lines.next()?)))
    });
    packages
        .filter(|(name, _)| CRATES.contains(&&**name))
        .collect()
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_once(':'))
        .map_or("unknown".into(), |(_, value)| value.trim().into())
}

fn said(program: &str, words: &[&str]) -> String {
    match Command::new(program).args(words).output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().into()
        }
        _ => "unknown".into(),
    }
}
