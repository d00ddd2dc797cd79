//! The numbers of long campaigns, a line for each run, and the page that says what they come to: `docs/reliability.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

use hdrhistogram::Histogram;
use leasehold_chaos::Figures;
use serde::{Deserialize, Serialize};

use super::{
    faults::Choice,
    kind::Kind,
    run::{Outcome, Verdict},
};

/// The page, with a word in braces where the numbers go.
const PAGE: &str = include_str!("reliability.md");
/// The faults by which a server loses data.
const LOSSES: [&str; 4] = ["LoseData", "Restore", "EvictKeys", "DeleteFiles"];

/// One run.
#[derive(Serialize, Deserialize)]
struct Run {
    store: String,
    seed: u64,
    seconds: u64,
    commit: String,
    /// Which were made.
    faults: String,
    /// How long leases were, in milliseconds.
    lease: u64,
    passed: bool,
    violations: u64,
    figures: Figures,
    lateness: Times,
    blocked: Times,
    recovery: Times,
    calm_recovery: Times,
    /// Of the naive clients.
    overlaps: usize,
    stale: usize,
}

/// How long something took each time, in milliseconds, from the shortest on.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Times(Vec<f64>);

impl Times {
    fn of(histogram: &Histogram<u64>) -> Times {
        let ms = |value| (value as f64 / 1e4).round() / 100.0;
        let each = histogram.iter_recorded();
        Times(
            each.flat_map(|it| vec![ms(it.value_iterated_to()); it.count_at_value() as usize])
                .collect(),
        )
    }

    fn all<'a>(each: impl Iterator<Item = &'a Times>) -> Times {
        let mut all: Vec<f64> = each.flat_map(|times| &times.0).copied().collect();
        all.sort_by(f64::total_cmp);
        Times(all)
    }

    /// The smallest that so many of a hundred are not above.
    fn percentile(&self, of: usize) -> f64 {
        let at = (self.0.len() * of).div_ceil(100).saturating_sub(1);
        self.0.get(at).copied().unwrap_or_default()
    }
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn file() -> PathBuf {
    docs().join("reliability/runs.jsonl")
}

/// Adds a line for a run.
pub(crate) fn keep(kind: Kind, seed: u64, choice: &Choice, verdict: &Verdict) {
    let Outcome {
        report,
        overlaps,
        stale,
        seconds,
        ..
    } = &verdict.outcome;
    let run = Run {
        store: kind.name().to_owned(),
        seed,
        seconds: *seconds,
        commit: std::env::var("LEASEHOLD_COMMIT").unwrap_or_default(),
        faults: choice.to_string(),
        lease: kind.ttl().as_millis() as u64,
        passed: verdict.passed,
        violations: report.count,
        figures: report.figures.clone(),
        lateness: Times::of(&report.lateness),
        blocked: Times::of(&report.blocked),
        recovery: Times::of(&report.recovery),
        calm_recovery: Times::of(&report.calm_recovery),
        overlaps: *overlaps,
        stale: *stale,
    };
    fs::create_dir_all(file().parent().unwrap()).unwrap();
    let mut lines = File::options()
        .create(true)
        .append(true)
        .open(file())
        .unwrap();
    writeln!(lines, "{}", serde_json::to_string(&run).unwrap()).unwrap();
}

/// Writes the page from all lines that there are.
pub(crate) fn write() {
    let lines = fs::read_to_string(file()).unwrap_or_default();
    let runs: Vec<Run> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let stores = || {
        let of = |kind: &Kind| {
            runs.iter()
                .filter(|run| run.store == kind.name())
                .collect::<Vec<_>>()
        };
        let stores = Kind::ALL.into_iter().map(move |kind| (kind, of(&kind)));
        stores
            .filter(|(_, runs)| !runs.is_empty())
            .collect::<Vec<_>>()
    };
    let (mut sums, mut losses, mut times) = (String::new(), String::new(), String::new());
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
        losses += &of_losses(name, &runs);
        times += &recoveries(kind, &runs);
    }
    let page = PAGE
        .replace("{sums}\n", &sums)
        .replace("{losses}\n", &losses)
        .replace("{times}\n", &times);
    let page = page.replace("{faults}\n", &faults(&stores()));
    fs::write(docs().join("reliability.md"), page).unwrap();
}

/// When losses were reported, and what was accepted where data were lost.
fn of_losses(name: &str, runs: &[&Run]) -> String {
    let all = Times::all(runs.iter().map(|run| &run.lateness));
    let blocked = Times::all(runs.iter().map(|run| &run.blocked));
    let lost = |run: &Run| {
        run.figures
            .faults
            .keys()
            .any(|kind| LOSSES.contains(&kind.as_str()))
    };
    let lost: Vec<&Figures> = runs
        .iter()
        .filter(|run| lost(run))
        .map(|run| &run.figures)
        .collect();
    let writes: u64 = lost.iter().map(|figures| figures.held_writes).sum();
    let accepted: u64 = lost.iter().map(|figures| figures.held_accepted).sum();
    let share = if writes == 0 {
        "–".to_owned()
    } else {
        format!("{:.1} %", 100.0 * accepted as f64 / writes as f64)
    };
    format!(
        "| {name} | {} | {:.1} | {:.1} | {:.1} | {} | {:.1} | {:.1} | {writes} | {share} |\n",
        all.0.len(),
        all.percentile(50),
        all.percentile(99),
        all.percentile(100),
        blocked.0.len(),
        blocked.percentile(99),
        blocked.percentile(100),
    )
}

/// How long a dead holder was in the way: a line for short leases, and one for long ones.
fn recoveries(kind: Kind, runs: &[&Run]) -> String {
    let mut lines = String::new();
    for lease in runs.iter().map(|run| run.lease).collect::<BTreeSet<_>>() {
        let runs = || runs.iter().filter(move |run| run.lease == lease);
        let (calm, all) = (
            Times::all(runs().map(|run| &run.calm_recovery)),
            Times::all(runs().map(|run| &run.recovery)),
        );
        if all.0.is_empty() {
            continue;
        }
        let promised = kind
            .recovery()
            .map_or("at once".to_owned(), |beyond| (lease + beyond).to_string());
        let (name, worst) = (kind.name(), |times: &Times| {
            format!("{:.0}", times.percentile(100))
        });
        let alone = if calm.0.is_empty() {
            "–".to_owned()
        } else {
            worst(&calm)
        };
        let _ = writeln!(
            lines,
            "| {name} | {lease} | {promised} | {} | {alone} | {} | {:.0} | {} |",
            calm.0.len(),
            all.0.len(),
            all.percentile(50),
            worst(&all)
        );
    }
    lines
}

/// The faults by their kind, a line for each.
fn faults(stores: &[(Kind, Vec<&Run>)]) -> String {
    let mut kinds: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for (kind, runs) in stores {
        for (fault, count) in runs.iter().flat_map(|run| &run.figures.faults) {
            *kinds
                .entry(fault)
                .or_default()
                .entry(kind.name())
                .or_default() += count;
        }
    }
    let names: Vec<&str> = stores.iter().map(|(kind, _)| kind.name()).collect();
    let mut table = format!(
        "| | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for (fault, counts) in kinds {
        let cells = names
            .iter()
            .map(|name| counts.get(name).map_or("–".to_owned(), u64::to_string));
        let _ = writeln!(
            table,
            "| {fault} | {} |",
            cells.collect::<Vec<_>>().join(" | ")
        );
    }
    table
}

fn minutes(seconds: u64) -> String {
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
