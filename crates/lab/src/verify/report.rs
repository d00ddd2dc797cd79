//! The report, as data and as a table.

use leasehold_conformance::{Outcome, Verdict};
use serde::Serialize;

use crate::verify::findings::{Finding, Severity};

/// The result for one server.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Verification {
    /// The URL without credentials.
    pub address: String,
    /// The store's kind.
    pub store: String,
    /// The identity of the store, if it has one: servers with another one are other stores.
    pub store_id: Option<String>,
    /// The server's version, if it says it; several if its members differ.
    pub version: Option<String>,
    /// The findings about its settings, warnings first.
    pub findings: Vec<Finding>,
    /// Each promise, and what became of its cases.
    pub promises: Vec<Promise>,
    /// Every case that failed.
    pub broken: Vec<Broken>,
    /// Which leases it really grants.
    pub leases: Vec<Granted>,
    /// The store's notes about itself.
    pub notes: String,
    /// Names that were still in use when the namespace was removed. It should be zero.
    pub left_behind: usize,
    /// The duration of the run.
    pub seconds: f64,
}

/// A promise, judged by its cases.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Promise {
    /// Its number in the guarantees: P1 to P10.
    pub id: &'static str,
    /// Its name.
    pub title: &'static str,
    /// The number of cases that hold.
    pub passed: usize,
    /// The number of cases that fail.
    pub failed: usize,
    /// The number of cases that a guest cannot judge.
    pub not_judged: usize,
}

/// A case that failed.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Broken {
    /// The case.
    pub case: &'static str,
    /// The clauses that it judges.
    pub clauses: &'static str,
    /// Why it failed.
    pub why: String,
}

/// A lease that was asked for, and what was granted.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Granted {
    /// Milliseconds that were asked for.
    pub asked_ms: u64,
    /// Milliseconds that were granted, to a tenth of a second; `None` if it was refused.
    pub granted_ms: Option<u64>,
}

/// The promises by number, as `docs/guarantees.md` names them.
const PROMISES: [(&str, &str); 10] = [
    ("P1", "Exclusion"),
    ("P2", "Fencing"),
    ("P3", "Loss is early"),
    ("P4", "Cancel-safe"),
    ("P5", "No stuck waiter"),
    ("P6", "Order"),
    ("P7", "Constant cost"),
    ("P8", "Honest errors"),
    ("P9", "Clean"),
    ("P10", "Names"),
];

pub(crate) fn promises(verdicts: &[Verdict]) -> Vec<Promise> {
    let judged = |id: &str, is: fn(&Outcome) -> bool| {
        verdicts
            .iter()
            .filter(|v| v.case.clauses.split(' ').any(|c| c == id) && is(&v.outcome))
            .count()
    };
    let promise = |(id, title): (&'static str, &'static str)| Promise {
        id,
        title,
        passed: judged(id, |o| *o == Outcome::Passed),
        failed: judged(id, |o| matches!(o, Outcome::Failed(_))),
        not_judged: judged(id, |o| matches!(o, Outcome::NotJudged(_))),
    };
    PROMISES.map(promise).into()
}

pub(crate) fn broken(verdicts: &[Verdict]) -> Vec<Broken> {
    let failed = verdicts.iter().filter_map(|v| match &v.outcome {
        Outcome::Failed(why) => Some(Broken {
            case: v.case.name,
            clauses: v.case.clauses,
            why: shortened(why),
        }),
        _ => None,
    });
    failed.collect()
}

/// Shortens the message of a case, which may quote long values.
fn shortened(why: &str) -> String {
    const MOST: usize = 400;
    let lines: Vec<String> = why
        .lines()
        .map(|line| line.chars().take(MOST / 2).collect())
        .collect();
    lines.join(" ").chars().take(MOST).collect()
}

impl Verification {
    /// Returns whether every case that was judged holds.
    pub fn holds(&self) -> bool {
        self.broken.is_empty()
    }

    /// Returns whether there is a warning.
    pub fn warns(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == Severity::Warning)
    }

    /// The whole for a terminal.
    pub fn table(&self) -> String {
        let version = self
            .version
            .as_ref()
            .map_or(String::new(), |version| format!(" {version}"));
        let id = self.store_id.as_ref();
        let id = id.map_or(String::new(), |id| format!(", {id}"));
        let mut text = format!("{}: {}{version}{id}\n\n", self.address, self.store);
        if !self.promises.is_empty() {
            text += "  promise              holds   broken   not judged\n";
        }
        for p in &self.promises {
            let id = p.id;
            let title = p.title;
            text += &format!(
                "  {id:<4}{title:<16}{:>6}{:>9}{:>13}\n",
                p.passed, p.failed, p.not_judged
            );
        }
        text += "\n";
        for lease in &self.leases {
            let granted = match lease.granted_ms {
                Some(ms) if ms == lease.asked_ms => "granted".to_owned(),
                Some(ms) => format!("granted for about {}", seconds(ms)),
                None => "refused".to_owned(),
            };
            text += &format!("  a lease of {} is {granted}\n", seconds(lease.asked_ms));
        }
        for finding in &self.findings {
            let word = if finding.severity == Severity::Warning {
                "WARNING"
            } else {
                "note"
            };
            text += &format!("\n{word}: {}: {}\n", finding.about, finding.text);
        }
        for broken in &self.broken {
            text += &format!(
                "\nBROKEN: {} ({}): {}\n",
                broken.case, broken.clauses, broken.why
            );
        }
        text += &format!("\n{}\n", self.verdict());
        text
    }

    fn verdict(&self) -> String {
        let judged: usize = self.promises.iter().map(|p| p.passed + p.failed).sum();
        let warnings = self
            .findings
            .iter()
            .filter(|finding| finding.severity == Severity::Warning)
            .count();
        let held = match self.broken.len() {
            0 if self.promises.is_empty() => "the promises were not judged".to_owned(),
            0 if judged == 0 => "nothing could be judged".to_owned(),
            0 => "whatever a guest can judge holds".to_owned(),
            1 => "1 case is broken".to_owned(),
            n => format!("{n} cases are broken"),
        };
        let warned = match warnings {
            0 => "nothing to warn of".to_owned(),
            1 => "1 warning".to_owned(),
            n => format!("{n} warnings"),
        };
        let left = match self.left_behind {
            0 => "the namespace is removed".to_owned(),
            n => format!("{n} names are left behind until their leases end"),
        };
        format!(
            "{}: {held}; {warned}; {left}; {:.0} s",
            self.address, self.seconds
        )
    }
}

fn seconds(ms: u64) -> String {
    format!("{} s", ms as f64 / 1000.0)
}
