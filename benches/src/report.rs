//! What a run has shown, as JSON and as Markdown.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::machine::Machine;
use crate::metric::{Metric, digits};
use crate::plan::Plan;
use crate::rounds::Measured;
use crate::servers::Store;
use crate::spread::Spread;

#[derive(Serialize)]
pub struct Report {
    pub machine: Machine,
    pub plan: Plan,
    pub tables: Vec<Table>,
    pub failures: Vec<String>,
}

/// One row of one store.
#[derive(Serialize)]
pub struct Table {
    pub row: &'static str,
    pub title: String,
    pub store: Store,
    pub server: String,
    pub heads: &'static [Metric],
    pub shows: &'static [Metric],
    pub contenders: Vec<Measured>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { date, commit, processor, cores, memory, system, rust, load_before, load_after, crates } =
            &self.machine;
        writeln!(f, "{date}, {commit}; {processor}, {cores} cores, {memory}; {system}; {rust}, release build.")?;
        writeln!(f, "Load before {load_before}, after {load_after}.")?;
        let versions: Vec<String> = crates.iter().map(|(name, version)| format!("{name} {version}")).collect();
        writeln!(f, "Crates: {}.\n", versions.join(", "))?;
        writeln!(f, "Medians of {} rounds. × is the ratio to the first column in the same round:", self.plan.rounds())?;
        writeln!(f, "its median, and its range over the rounds.\n")?;
        self.headlines(f)?;
        for table in &self.tables {
            write!(f, "\n{table}")?;
        }
        for failure in &self.failures {
            writeln!(f, "\n**Failed:** {failure}")?;
        }
        Ok(())
    }
}

impl Report {
    /// How much could not be measured.
    pub fn failed(&self) -> usize {
        let contenders = self.tables.iter().flat_map(|table| &table.contenders);
        self.failures.len() + contenders.filter(|contender| contender.failure.is_some()).count()
    }

    /// What each row is about, in a line: the first contender, and the last of ours.
    fn headlines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| Row | Store | Figure | First | leasehold |\n|---|---|---|---|---|")?;
        for table in &self.tables {
            let (Some(first), Some(last)) = (table.contenders.first(), table.contenders.last()) else { continue };
            let is_ours = |it: &&Measured| it.label.starts_with("leasehold");
            let own = table.contenders.iter().rev().find(is_ours).unwrap_or(last);
            for metric in table.heads {
                let Table { row, store, .. } = table;
                let is_alone = first.label == own.label;
                let first = if is_alone { "–".into() } else { format!("{}: {}", first.label, shown(*metric, first)) };
                let own = format!("{}: {}", own.label, shown(*metric, own));
                writeln!(f, "| {row} | {store} | {} | {first} | {own} |", metric.title())?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}: {}\n\n{}. {}.\n", self.row, self.store, self.title, self.server)?;
        let (mut head, mut rule) = (String::from("| |"), String::from("|---|"));
        for contender in &self.contenders {
            write!(head, " {} |", contender.label)?;
            rule.push_str("---|");
        }
        writeln!(f, "{head}\n{rule}")?;
        for metric in self.shows {
            if self.contenders.iter().any(|contender| contender.figures.contains_key(metric)) {
                let cells: Vec<String> = self.contenders.iter().map(|contender| shown(*metric, contender)).collect();
                writeln!(f, "| {} | {} |", metric.title(), cells.join(" | "))?;
            }
        }
        for contender in &self.contenders {
            if let Some(failure) = &contender.failure {
                writeln!(f, "\n**{} failed:** {failure}", contender.label)?;
            }
        }
        Ok(())
    }
}

/// A figure, and its ratio to the first if it is a time: what was counted speaks for itself.
fn shown(metric: Metric, contender: &Measured) -> String {
    let Some(figure) = contender.figures.get(&metric) else { return "–".into() };
    let value = metric.shown(figure.median);
    let ratio = contender.ratios.get(&metric).filter(|ratio| metric.is_compared() && !ratio.is_one());
    match ratio {
        Some(ratio) if metric == Metric::Time => {
            format!("{value}, {}: {} × the rate", times(ratio), digits(1.0 / ratio.median))
        }
        Some(ratio) => format!("{value}, {}", times(ratio)),
        None => value,
    }
}

fn times(Spread { median, least, most, .. }: &Spread) -> String {
    format!("{} × ({}–{})", digits(*median), digits(*least), digits(*most))
}
