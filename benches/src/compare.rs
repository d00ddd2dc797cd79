//! Several runs beside one another: before and after, quiet and busy.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

use crate::goals::{GOALS, Goal};
use crate::metric::{Metric, digits};
use crate::plan::USAGE;
use crate::plots;
use crate::report::{Report, Table, shown};
use crate::servers::Store;
use crate::subject::Result;

/// What asks for it.
pub const WORD: &str = "--table";

/// A report, and what it is called beside others.
pub struct Run {
    pub name: String,
    pub report: Report,
}

/// Prints a table of what is aimed at and one of all rows, and writes them with a picture.
pub fn compare(words: &[&str], folder: &Path) -> Result<()> {
    let runs = read(words)?;
    let text = format!("{}\n{}\n{}", list(&runs), goals(&runs)?, rows(&runs)?);
    fs::create_dir_all(folder)?;
    fs::write(folder.join("table.md"), &text)?;
    fs::write(folder.join("goals.svg"), plots::goals(&runs))?;
    println!("{text}");
    eprintln!("written to {}", folder.display());
    Ok(())
}

/// Reads `NAME=FILE,FILE…`: what a later file has of a row takes the place of what an earlier one has.
pub fn read(words: &[&str]) -> Result<Vec<Run>> {
    let runs = words.iter().map(|word| {
        let (name, files) = word.split_once('=').ok_or(USAGE)?;
        let mut reports = files.split(',').map(|file| Report::read(Path::new(file)));
        let mut report = reports.next().ok_or(USAGE)??;
        for more in reports {
            report.take(more?);
        }
        Ok(Run {
            name: name.into(),
            report,
        })
    });
    runs.collect()
}

/// Which runs these are.
pub fn list(runs: &[Run]) -> String {
    let line = |Run { name, report }: &Run| {
        let (machine, beside) = (&report.machine, report.plan.beside);
        let (load, end) = (&machine.load_before, &machine.load_after);
        format!(
            "- **{name}**: {}, {}; load {load}, then {end}; busy loops: {beside}\n",
            machine.date, machine.commit
        )
    };
    runs.iter().map(line).collect()
}

fn heads(runs: &[Run]) -> (String, String) {
    let names: Vec<&str> = runs.iter().map(|run| &*run.name).collect();
    (names.join(" | "), "---|".repeat(runs.len()))
}

/// What is aimed at, a line for each aim.
pub fn goals(runs: &[Run]) -> std::result::Result<String, fmt::Error> {
    let ((names, rules), mut text) = (heads(runs), String::new());
    writeln!(text, "| What | Goal | {names} |\n|---|---|{rules}")?;
    for goal in GOALS {
        let cells: Vec<String> = runs.iter().map(|run| aimed(goal, &run.report)).collect();
        writeln!(
            text,
            "| {} | {} | {} |",
            goal.title,
            goal.aim(),
            cells.join(" | ")
        )?;
    }
    Ok(text)
}

/// All rows, a line for each figure that they are about.
pub fn rows(runs: &[Run]) -> std::result::Result<String, fmt::Error> {
    let ((names, rules), mut text) = (heads(runs), String::new());
    writeln!(
        text,
        "| Row | Store | Figure | {names} |\n|---|---|---|{rules}"
    )?;
    for (row, store) in in_order(runs) {
        let tables: Vec<Option<&Table>> = runs
            .iter()
            .map(|run| run.report.table(row, store))
            .collect();
        let heads = tables
            .iter()
            .flatten()
            .flat_map(|table| table.heads.iter().copied());
        let is_there = |metric: &Metric| tables.iter().flatten().any(|table| table.has(*metric));
        let heads: BTreeSet<Metric> = heads.filter(is_there).collect();
        for metric in heads {
            let cell = |table: &Option<&Table>| {
                table
                    .and_then(Table::own)
                    .map_or("–".into(), |own| shown(metric, own))
            };
            let cells: Vec<String> = tables.iter().map(cell).collect();
            writeln!(
                text,
                "| {row} | {store} | {} | {} |",
                metric.title(),
                cells.join(" | ")
            )?;
        }
    }
    Ok(text)
}

/// Whether it was measured, and is not reached.
pub fn misses(goal: &Goal, report: &Report) -> bool {
    goal.of(report)
        .and_then(|spread| goal.is_met(spread.median))
        == Some(false)
}

/// Those of any run, in the order of the first that has them.
fn in_order(runs: &[Run]) -> Vec<(&str, Store)> {
    let mut rows = Vec::new();
    for table in runs.iter().rev().flat_map(|run| &run.report.tables) {
        let row = (&*table.row, table.store);
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows
}

fn aimed(goal: &Goal, report: &Report) -> String {
    let Some(spread) = goal.of(report) else {
        return "–".into();
    };
    let sign = match goal.is_met(spread.median) {
        Some(true) => " ✓",
        Some(false) => " ✗",
        None => "",
    };
    let (value, least, most) = (
        goal.shown(spread.median),
        goal.bare(spread.least),
        goal.bare(spread.most),
    );
    match least == most {
        true => format!("{value}{sign}"),
        false => format!("{value} ({least}–{most}){sign}"),
    }
}

impl Goal {
    /// Without the unit of a ratio, which stands before it already.
    fn bare(&self, value: f64) -> String {
        let shown = self.shown(value);
        if shown.ends_with('×') {
            digits(value)
        } else {
            shown
        }
    }
}
