//! The table: one row for each number, one column for each store. The page shows the same rows.

use std::iter;

use comfy_table::{CellAlignment, Table, presets::NOTHING};

use crate::report::{Contended, Measured, Order, Report};
use crate::units::{digits, ms, rate, times, us};

/// One row.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) title: String,
    pub(crate) cells: Vec<String>,
}

/// Rows that belong together.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) rows: Vec<Row>,
}

const NONE: &str = "–";

/// All rows that some store has a number for.
pub(crate) fn groups(stores: &[Measured]) -> Vec<Group> {
    let mut groups = vec![Group {
        title: "Yardstick",
        rows: vec![row(stores, "one round trip, median", |m| Some(us(m.round_trip.p50_us)))],
    }];
    for (order, title) in [(Order::Fair, "Fair"), (Order::Fast, "Fast")] {
        groups.push(Group { title, rows: of_order(stores, order) });
    }
    groups.push(Group { title: "Many locks held", rows: of_renewal(stores) });
    groups.push(Group { title: "A holder is killed", rows: of_recovery(stores) });
    groups.push(Group { title: "Promises", rows: of_promises(stores) });
    for group in &mut groups {
        group.rows.retain(|row| row.cells.iter().any(|cell| cell != NONE));
    }
    groups.retain(|group| !group.rows.is_empty());
    groups
}

fn of_order(stores: &[Measured], order: Order) -> Vec<Row> {
    let mut rows = vec![
        row(stores, "alone: take and give back", |m| Some(us(m.alone(order)?.cycle.p50_us))),
        row(stores, "… in round trips", |m| Some(times(m.alone(order)?.round_trips))),
        row(stores, "… 99 of 100 within", |m| Some(us(m.alone(order)?.cycle.p99_us))),
    ];
    let mut sizes: Vec<usize> = stores.iter().flat_map(|m| &m.contended).map(|c| c.waiters).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let each = |title: &str, shown: fn(&Contended) -> Option<String>| -> Vec<Row> {
        sizes
            .iter()
            .map(|&n| row(stores, &format!("{n} waiters: {title}"), |m| m.with(order, n).and_then(shown)))
            .collect()
    };
    rows.extend(each("turns in a second", |c| Some(rate(c.per_second))));
    rows.extend(each("hand-over, median", |c| Some(us(c.hand_over.as_ref()?.p50_us))));
    rows.extend(each("hand-over in round trips", |c| c.round_trips.map(times)));
    rows.extend(each("longest wait", |c| Some(us(c.wait.max_us))));
    rows.extend(each("longest wait in fair shares", |c| Some(digits(c.longest_wait_shares))));
    rows.extend(each("Jain's index", |c| Some(format!("{:.3}", c.jain))));
    if stores.iter().flat_map(|m| &m.contended).any(|c| c.overlaps > 0) {
        rows.extend(each("TWO INSIDE AT ONCE", |c| Some(c.overlaps.to_string())));
    }
    rows
}

fn of_renewal(stores: &[Measured]) -> Vec<Row> {
    vec![
        row(stores, "locks", |m| m.renewal.as_ref().map(|r| r.locks.to_string())),
        row(stores, "lease", |m| m.renewal.as_ref().map(|r| ms(r.lease_ms))),
        row(stores, "processor time in a second", |m| Some(us(m.renewal.as_ref()?.cpu_ms_per_second * 1e3))),
        row(stores, "locks in a batch", |m| Some(digits(m.renewal.as_ref()?.locks_per_batch))),
        row(stores, "one batch, median", |m| Some(us(m.renewal.as_ref()?.batch.as_ref()?.p50_us))),
        row(stores, "taking all", |m| Some(ms(m.renewal.as_ref()?.taken_ms))),
        row(stores, "giving back all", |m| Some(ms(m.renewal.as_ref()?.given_back_ms))),
        row(stores, "lost meanwhile", |m| Some(m.renewal.as_ref()?.lost.to_string())),
    ]
}

fn of_recovery(stores: &[Measured]) -> Vec<Row> {
    vec![
        row(stores, "lease", |m| Some(ms(m.recovery.as_ref()?.lease_ms))),
        row(stores, "next grant after, median", |m| {
            let waits = &m.recovery.as_ref()?.waits_ms;
            waits.get(waits.len() / 2).map(|wait| ms(*wait))
        }),
        row(stores, "… longest", |m| m.recovery.as_ref()?.waits_ms.last().map(|wait| ms(*wait))),
    ]
}

fn of_promises(stores: &[Measured]) -> Vec<Row> {
    vec![
        row(stores, "locks among", |m| {
            Some(match m.reach {
                crate::subject::Reach::Process => "one process".into(),
                crate::subject::Reach::Host => "one host".into(),
                crate::subject::Reach::Machines => "machines".into(),
            })
        }),
        row(stores, "tokens rise", |m| {
            Some(match m.promises.fencing {
                "survives_data_loss" => "past data loss".into(),
                "while_data_lives" => "with the data".into(),
                _ => "not promised".into(),
            })
        }),
        row(stores, "order of service", |m| Some(m.promises.fairness.to_owned())),
        row(stores, "wake-up", |m| Some(if m.promises.pushed_wake { "pushed".into() } else { "asked for".into() })),
        row(stores, "shortest lease", |m| Some(ms(m.promises.min_ttl_ms))),
        row(stores, "freed late by up to", |m| Some(ms(m.promises.recovery_ms))),
    ]
}

fn row(stores: &[Measured], title: &str, shown: impl Fn(&Measured) -> Option<String>) -> Row {
    let cells = stores.iter().map(|m| shown(m).unwrap_or_else(|| NONE.to_owned())).collect();
    Row { title: title.to_owned(), cells }
}

impl Report {
    /// The report for a terminal: the advice, and all numbers.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(iter::once("").chain(self.stores.iter().map(|m| &*m.label)));
        for group in groups(&self.stores) {
            table.add_row([group.title]);
            for Row { title, cells } in group.rows {
                table.add_row(iter::once(format!("  {title}")).chain(cells));
            }
        }
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            column.set_cell_alignment(if at == 0 { CellAlignment::Left } else { CellAlignment::Right });
        }
        let mut text = table.trim_fmt() + "\n";
        if self.settings.glance {
            text += "\nonly a glance: these numbers show that it works, and measure little\n";
        }
        for advice in &self.advice {
            text += &format!("\n{}: {}\n  {}\n", advice.need, advice.choice, advice.why);
        }
        for m in &self.stores {
            for failure in &m.failures {
                text += &format!("\nnot measured on {}: {}: {}\n", m.label, failure.workload, failure.error);
            }
        }
        text
    }
}
