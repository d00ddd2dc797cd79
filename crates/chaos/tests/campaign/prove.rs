//! The numbers of long campaigns, a line for each run, and the page that says what they come to: `docs/reliability.md`.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

use hdrhistogram::Histogram;
use leasehold_chaos::Figures;
use serde::{Deserialize, Serialize};

use super::{
    kind::Kind,
    run::{Outcome, Verdict},
};

/// The page, with a word in braces where the numbers go.
const PAGE: &str = include_str!("reliability.md");

/// One run.
#[derive(Serialize, Deserialize)]
struct Run {
    store: String,
    seed: u64,
    seconds: u64,
    commit: String,
    passed: bool,
    violations: u64,
    figures: Figures,
    lateness: Times,
    recovery: Times,
    calm_recovery: Times,
    /// Of the naive clients.
    overlaps: usize,
    stale: usize,
}

/// How long something took, in milliseconds.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Times {
    count: u64,
    p50: f64,
    p99: f64,
    max: f64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Times {
        let ms = |quantile| (histogram.value_at_quantile(quantile) as f64 / 1e4).round() / 100.0;
        Times { count: histogram.len(), p50: ms(0.5), p99: ms(0.99), max: ms(1.0) }
    }

    /// The worse of both.
    fn and(self, other: Times) -> Times {
        let (p50, p99, max) = (self.p50.max(other.p50), self.p99.max(other.p99), self.max.max(other.max));
        Times { count: self.count + other.count, p50, p99, max }
    }
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn file() -> PathBuf {
    docs().join("reliability/runs.jsonl")
}

/// Adds a line for a run.
pub(crate) fn keep(kind: Kind, seed: u64, verdict: &Verdict) {
    let Outcome { report, overlaps, stale, seconds } = &verdict.outcome;
    let run = Run {
        store: kind.name().to_owned(),
        seed,
        seconds: *seconds,
        commit: std::env::var("LEASEHOLD_COMMIT").unwrap_or_default(),
        passed: verdict.passed,
        violations: report.count,
        figures: report.figures.clone(),
        lateness: Times::of(&report.lateness),
        recovery: Times::of(&report.recovery),
        calm_recovery: Times::of(&report.calm_recovery),
        overlaps: *overlaps,
        stale: *stale,
    };
    fs::create_dir_all(file().parent().unwrap()).unwrap();
    let mut lines = File::options().create(true).append(true).open(file()).unwrap();
    writeln!(lines, "{}", serde_json::to_string(&run).unwrap()).unwrap();
}

/// Writes the page from all lines that there are.
pub(crate) fn write() {
    let lines = fs::read_to_string(file()).unwrap_or_default();
    let runs: Vec<Run> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stores = || {
        let of = |kind: &Kind| runs.iter().filter(|run| run.store == kind.name()).collect::<Vec<_>>();
        let stores = Kind::ALL.into_iter().map(move |kind| (kind, of(&kind)));
        stores.filter(|(_, runs)| !runs.is_empty()).collect::<Vec<_>>()
    };
    let (mut sums, mut times) = (String::new(), String::new());
    for (kind, runs) in stores() {
        let sum = |of: fn(&Run) -> u64| runs.iter().map(|run| of(run)).sum::<u64>();
        let faults = sum(|run| run.figures.faults.values().sum());
        let name = kind.name();
        let _ = writeln!(
            sums,
            "| {name} | {} | {} | {faults} | {} | {} | {} | **{}** | {} | {} |",
            runs.len(),
            minutes(sum(|run| run.seconds)),
            sum(|run| run.figures.grants),
            sum(|run| run.figures.accepted),
            sum(|run| run.figures.rejected),
            sum(|run| run.violations),
            sum(|run| run.overlaps as u64),
            sum(|run| run.stale as u64),
        );
        let worst = |of: fn(&Run) -> Times| runs.iter().map(|run| of(run)).fold(Times::default(), Times::and);
        let (loss, recovery, calm) =
            (worst(|run| run.lateness), worst(|run| run.recovery), worst(|run| run.calm_recovery));
        let lease = kind.ttl().as_millis();
        let _ = writeln!(
            times,
            "| {name} | {} | {:.1} | {:.1} | {:.1} | {lease} | {} | {:.0} | {} | {:.0} |",
            loss.count, loss.p50, loss.p99, loss.max, calm.count, calm.max, recovery.count, recovery.max
        );
    }
    let page = PAGE.replace("{sums}\n", &sums).replace("{times}\n", &times);
    let page = page.replace("{faults}\n", &faults(&stores())).replace("{runs}\n", &each(&runs));
    fs::write(docs().join("reliability.md"), page).unwrap();
}

/// The faults by their kind, a line for each.
fn faults(stores: &[(Kind, Vec<&Run>)]) -> String {
    let mut kinds: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for (kind, runs) in stores {
        for (fault, count) in runs.iter().flat_map(|run| &run.figures.faults) {
            *kinds.entry(fault).or_default().entry(kind.name()).or_default() += count;
        }
    }
    let names: Vec<&str> = stores.iter().map(|(kind, _)| kind.name()).collect();
    let mut table = format!("| | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for (fault, counts) in kinds {
        let cells = names.iter().map(|name| counts.get(name).map_or("–".to_owned(), u64::to_string));
        let _ = writeln!(table, "| {fault} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    table
}

/// What can be run again.
fn each(runs: &[Run]) -> String {
    let mut table = String::new();
    for Run { store, seed, seconds, commit, passed, violations, .. } in runs {
        let what = if *passed { "passed".to_owned() } else { format!("failed, {violations} violations") };
        let _ = writeln!(table, "| {store} | {seed} | {} | {commit} | {what} |", minutes(*seconds));
    }
    table
}

fn minutes(seconds: u64) -> String {
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
