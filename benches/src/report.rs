//! What a run has shown, as JSON and as Markdown.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::metric::{Metric, digits};
use crate::plan::Plan;
use crate::rounds::Measured;
use crate::servers::Store;
use crate::spread::Spread;
use crate::subject::Result;

#[derive(Serialize, Deserialize)]
pub struct Report {
    pub machine: Machine,
    pub plan: Plan,
    pub tables: Vec<Table>,
    pub failures: Vec<String>,
}

/// One row of one store.
#[derive(Serialize, Deserialize)]
pub struct Table {
    pub row: String,
    pub title: String,
    pub store: Store,
    pub server: String,
    pub heads: Vec<Metric>,
    pub shows: Vec<Metric>,
    pub contenders: Vec<Measured>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine {
            date,
            commit,
            processor,
            cores,
            memory,
            system,
            rust,
            load_before,
            load_after,
            crates,
        } = &self.machine;
        writeln!(
            f,
            "{date}, {commit}; {processor}, {cores} cores, {memory}; {system}; {rust}, release build."
        )?;
        let (beside, rounds) = (self.plan.beside, self.plan.rounds());
        writeln!(
            f,
            "Load before {load_before}, after {load_after}; busy loops of its own beside it: {beside}."
        )?;
        let versions: Vec<String> = crates
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        writeln!(f, "Crates: {}.\n", versions.join(", "))?;
        writeln!(
            f,
            "Medians of {rounds} rounds. × is the ratio to the first column in the same round:"
        )?;
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
    pub fn read(path: &Path) -> Result<Report> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?)
    }

    /// As JSON, and as Markdown.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let name = self.plan.name();
        fs::create_dir_all(folder)?;
        fs::write(
            folder.join(format!("{name}.json")),
            serde_json::to_string(self)?,
        )?;
        fs::write(folder.join(format!("{name}.md")), self.to_string())?;
        Ok(())
    }

    /// Takes over what another has measured; of a row that both have, the other's.
    pub fn take(&mut self, other: Report) {
        for table in other.tables {
            match self
                .tables
                .iter_mut()
                .find(|it| (&it.row, it.store) == (&table.row, table.store))
            {
                Some(own) => *own = table,
                None => self.tables.push(table),
            }
        }
        self.failures.extend(other.failures);
    }

    pub fn table(&self, row: &str, store: Store) -> Option<&Table> {
        self.tables
            .iter()
            .find(|table| table.row == row && table.store == store)
    }

    /// How much could not be measured.
    pub fn failed(&self) -> usize {
        let contenders = self.tables.iter().flat_map(|table| &table.contenders);
        self.failures.len()
            + contenders
                .filter(|contender| contender.failure.is_some())
                .count()
    }

    /// What each row is about, in a line: the first contender, and the last of ours.
    fn headlines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| Row | Store | Figure | First | leasehold |\n|---|---|---|---|---|"
        )?;
        for table in &self.tables {
            let Some((first, own)) = table.contenders.first().zip(table.own()) else {
                continue;
            };
            for metric in table.heads.iter().filter(|metric| table.has(**metric)) {
                let Table { row, store, .. } = table;
                let is_alone = first.label == own.label;
                let first = if is_alone {
                    "–".into()
                } else {
                    format!("{}: {}", first.label, shown(*metric, first))
                };
                let own = format!("{}: {}", own.label, shown(*metric, own));
                writeln!(
                    f,
                    "| {row} | {store} | {} | {first} | {own} |",
                    metric.title()
                )?;
            }
        }
        Ok(())
    }
}

impl Table {
    /// Whether this was measured of ours.
    pub fn has(&self, metric: Metric) -> bool {
        self.own()
            .is_some_and(|own| own.figures.contains_key(&metric))
    }

    /// The last of ours: the biggest, where there are several.
    pub fn own(&self) -> Option<&Measured> {
        let is_ours = |it: &&Measured| it.label.starts_with("leasehold");
        self.contenders
            .iter()
            .rev()
            .find(is_ours)
            .or(self.contenders.last())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "### {}: {}\n\n{}. {}.\n",
            self.row, self.store, self.title, self.server
        )?;
        let (mut head, mut rule) = (String::from("| |"), String::from("|---|"));
        let measured: Vec<&Measured> = self
            .contenders
            .iter()
            .filter(|it| it.absent.is_none())
            .collect();
        for contender in &measured {
            write!(head, " {} |", contender.label)?;
            rule.push_str("---|");
        }
        writeln!(f, "{head}\n{rule}")?;
        for metric in &self.shows {
            if measured
                .iter()
                .any(|contender| contender.figures.contains_key(metric))
            {
                let cells: Vec<String> = measured
                    .iter()
                    .map(|contender| shown(*metric, contender))
                    .collect();
                writeln!(f, "| {} | {} |", metric.title(), cells.join(" | "))?;
            }
        }
        for contender in &self.contenders {
            if let Some(failure) = &contender.failure {
                writeln!(f, "\n**{} failed:** {failure}", contender.label)?;
            }
            if let Some(why) = &contender.absent {
                writeln!(f, "\nNot measured: {}: {why}.", contender.label)?;
            }
        }
        Ok(())
    }
}

/// A figure, and its ratio to the first if it is a time: what was counted speaks for itself.
pub fn shown(metric: Metric, contender: &Measured) -> String {
    let Some(figure) = contender.figures.get(&metric) else {
        return "–".into();
    };
    let value = metric.shown(figure.median);
    let ratio = contender
        .ratios
        .get(&metric)
        .filter(|ratio| metric.is_compared() && !ratio.is_one());
    match ratio {
        Some(ratio) if metric.is_a_pace() => {
            format!(
                "{value}, {}: {} × the rate",
                times(ratio),
                digits(1.0 / ratio.median)
            )
        }
        Some(ratio) => format!("{value}, {}", times(ratio)),
        None => value,
    }
}

fn times(
    Spread {
        median,
        least,
        most,
        ..
    }: &Spread,
) -> String {
    format!(
        "{} × ({}–{})",
        digits(*median),
        digits(*least),
        digits(*most)
    )
}
