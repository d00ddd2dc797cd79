//! The page of what was measured: all runs for it, one after the other, and what they say together.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::compare::{self, Run};
use crate::goals::{GOALS, Goal};
use crate::machine::Machine;
use crate::plots;
use crate::subject::Result;

/// What asks for it.
pub const WORD: &str = "--docs";
/// The run whose rows are drawn as curves: it has no column.
const CURVES: &str = "curves";

/// From the root of the repository, where it is called. What stands between the marks is written anew.
const PAGE: &str = "docs/benchmarks.md";
const PICTURES: &str = "docs/benchmarks";
const BEGIN: &str = "<!-- From here on it is written by `cargo xtask bench --docs`. -->\n";
const END: &str = "<!-- To here. -->\n";
/// Why a goal is missed: a file for each row of a store, by people who have looked at a profile.
const NOTES: &str = "benches/notes";
/// The product as it was before the work on speed, measured by this program.
const BEFORE: &str = "docs/benchmarks/before.json";

/// What is measured, in this order; of rows whose rounds differ most there are more.
const RUNS: [(&str, &str); 7] = [
    ("quiet", "--quick --peers"),
    ("quiet-postgres", "--quick --store postgres"),
    ("quiet-more", "--quick --row alone --row gap --rounds 15"),
    (
        "disk",
        "--quick --row gap --row alone --store etcd --store zookeeper --store postgres",
    ),
    ("beside", "--quick --beside 2"),
    ("beside-postgres", "--quick --store postgres --beside 2"),
    (
        CURVES,
        "--row line --row clients --row many --row held --row idle --rounds 5",
    ),
];
/// The run of servers that write to a disk.
const DISK: &str = "disk";

/// Measures, and writes the page; with `NAME=FILE,FILE…` of earlier runs it only writes, with `--quick` it leaves the curves as
/// they were. A run that fails in parts is shown as far as it came.
pub fn page(words: &[&str], folder: &Path) -> Result<()> {
    if let [] | ["--quick"] = words {
        for (name, options) in RUNS {
            if words.is_empty() || name != CURVES {
                run(name, options)?;
            }
        }
        let file = |name: &str| {
            folder
                .join(name)
                .with_extension("json")
                .display()
                .to_string()
        };
        let quiet = ["quiet", "quiet-postgres", "quiet-more", DISK]
            .map(file)
            .join(",");
        let beside = ["beside", "beside-postgres"].map(file).join(",");
        let mut runs = vec![
            format!("before={BEFORE}"),
            format!("quiet={quiet}"),
            format!("beside={beside}"),
        ];
        if Path::new(&file(CURVES)).exists() {
            runs.push(format!("{CURVES}={}", file(CURVES)));
        }
        return write(compare::read(
            &runs.iter().map(String::as_str).collect::<Vec<_>>(),
        )?);
    }
    write(compare::read(words)?)
}

/// In a process of its own, as if somebody had called it.
fn run(name: &str, options: &str) -> Result<()> {
    // Without them there is nobody to compare with, and ours is measured all the same.
    let options = options
        .split(' ')
        .filter(|word| cfg!(feature = "peers") || *word != "--peers");
    let mut command = Command::new(env::current_exe()?);
    command.args(options).args(["--out", name]);
    if name == DISK {
        command.env(leasehold_testbed::ON_DISK, "1");
    }
    let status = command.status()?;
    if !status.success() {
        eprintln!("{name}: {status}, see its failures");
    }
    Ok(())
}

fn write(mut runs: Vec<Run>) -> Result<()> {
    let curves = runs
        .iter()
        .position(|run| run.name == CURVES)
        .map(|at| runs.remove(at));
    let mut text = String::new();
    writeln!(text, "## Before and after\n\n{}", compare::list(&runs))?;
    if let Some(run) = runs.get(1) {
        writeln!(text, "{}\n", machine(&run.report.machine))?;
    }
    writeln!(
        text,
        "✓ and ✗ say whether the median reaches the goal; in brackets is the range of the rounds.\n"
    )?;
    writeln!(
        text,
        "{}\n![Distance from each goal](benchmarks/goals.svg)\n",
        compare::goals(&runs)?
    )?;
    writeln!(
        text,
        "### What misses its goal, and why\n\n{}",
        missed(&runs)?
    )?;
    fs::write(Path::new(PICTURES).join("goals.svg"), plots::goals(&runs))?;
    if let Some(run) = curves {
        writeln!(
            text,
            "## Curves\n\nFive rounds of each point.\n\n{}",
            compare::list(std::slice::from_ref(&run))
        )?;
        for (of, plot) in plots::curves(&run.report) {
            fs::write(Path::new(PICTURES).join(format!("{of}.svg")), plot)?;
            writeln!(text, "![{of}](benchmarks/{of}.svg)\n")?;
        }
    }
    let page = fs::read_to_string(PAGE).map_err(|e| format!("{PAGE}: {e}"))?;
    let (head, rest) = page
        .split_once(BEGIN)
        .ok_or("the page has no mark where this begins")?;
    let (_, tail) = rest
        .split_once(END)
        .ok_or("the page has no mark where this ends")?;
    fs::write(PAGE, format!("{head}{BEGIN}\n{text}{END}{tail}"))?;
    eprintln!("written: {PAGE}");
    Ok(())
}

fn machine(machine: &Machine) -> String {
    let Machine {
        processor,
        cores,
        memory,
        system,
        rust,
        crates,
        ..
    } = machine;
    let crates: Vec<String> = crates
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    format!(
        "{processor}, {cores} cores, {memory}; {system}; {rust}; {}.",
        crates.join(", ")
    )
}

/// What the last run but the first misses, with the figures of all, and what was found out about it.
fn missed(runs: &[Run]) -> Result<String> {
    let (mut text, mut told) = (String::new(), BTreeSet::new());
    let misses = |goal: &&Goal| {
        runs.iter()
            .skip(1)
            .any(|run| compare::misses(goal, &run.report))
    };
    for goal in GOALS.iter().filter(misses) {
        let row = format!(
            "{}-{}",
            goal.row.replace(", ", "-").replace(' ', "-"),
            goal.store
        );
        if !told.insert(row.clone()) {
            continue;
        }
        let path = Path::new(NOTES).join(&row).with_extension("md");
        let titles = GOALS
            .iter()
            .filter(|other| (other.row, other.store) == (goal.row, goal.store))
            .filter(misses);
        let titles: Vec<&str> = titles.map(|goal| goal.title).collect();
        let why = fs::read_to_string(&path).unwrap_or_else(|_| {
            eprintln!("{}: there is none, and a goal is missed", path.display());
            "Not explained yet.".into()
        });
        writeln!(
            text,
            "- **{}, {}** ({}).\n  {}",
            goal.store,
            goal.row,
            titles.join("; "),
            why.trim().replace('\n', "\n  ")
        )?;
    }
    Ok(text)
}
