//! The table: one row for each number, one column for each store. The page shows the same rows.

use std::iter;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use leasehold::{Fairness, Fencing};

use crate::compare::report::{Contended, Measured, Order, Renewal, Report, sizes};
use crate::compare::subject::Reach;
use crate::measure::units::{digits, millis, ms, rate, times, us};

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
    let all = [
        (
            "Yardstick",
            vec![row(stores, "one round trip, median", |m| {
                Some(us(m.round_trip.p50_us))
            })],
        ),
        ("Fair", of_order(stores, Order::Fair)),
        ("Fast", of_order(stores, Order::Fast)),
        ("Many locks held", of_renewal(stores)),
        ("A holder is killed", of_recovery(stores)),
        ("Promises", of_promises(stores)),
    ];
    let group = |(title, mut rows): (_, Vec<Row>)| {
        rows.retain(|row| row.cells.iter().any(|cell| cell != NONE));
        (!rows.is_empty()).then_some(Group { title, rows })
    };
    all.into_iter().filter_map(group).collect()
}

fn of_order(stores: &[Measured], order: Order) -> Vec<Row> {
    let mut rows = vec![
        row(stores, "alone: acquire and release", |m| {
            Some(us(m.alone(order)?.cycle.p50_us))
        }),
        row(stores, "… in round trips", |m| {
            Some(times(m.alone(order)?.round_trips))
        }),
        row(stores, "… 99 of 100 within", |m| {
            Some(us(m.alone(order)?.cycle.p99_us))
        }),
    ];
    let sizes = sizes(stores);
    let each = |title: &str, shown: fn(&Contended) -> Option<String>| -> Vec<Row> {
        let row = |n| {
            row(stores, &format!("{n} waiters: {title}"), |m| {
                m.with(order, n).and_then(shown)
            })
        };
        sizes.iter().copied().map(row).collect()
    };
    rows.extend(each("turns in a second", |c| Some(rate(c.per_second))));
    rows.extend(each("hand-over, median", |c| {
        Some(us(c.hand_over.as_ref()?.p50_us))
    }));
    rows.extend(each("hand-over in round trips", |c| {
        c.round_trips.map(times)
    }));
    rows.extend(each("longest wait", |c| Some(us(c.wait.max_us))));
    rows.extend(each("longest wait in fair shares", |c| {
        Some(digits(c.longest_wait_shares))
    }));
    rows.extend(each("Jain's index", |c| Some(format!("{:.3}", c.jain))));
    rows.extend(each("TWO INSIDE AT ONCE", |c| {
        (c.overlaps > 0).then(|| c.overlaps.to_string())
    }));
    rows
}

fn of_renewal(stores: &[Measured]) -> Vec<Row> {
    let row = |title, shown: fn(&Renewal) -> Option<String>| {
        row(stores, title, |m| shown(m.renewal.as_ref()?))
    };
    vec![
        row("locks", |r| Some(r.locks.to_string())),
        row("lease", |r| Some(ms(r.lease_ms))),
        row("processor time in a second", |r| {
            Some(us(r.cpu_ms_per_second * 1e3))
        }),
        row("locks in a batch", |r| Some(digits(r.locks_per_batch))),
        row("one batch, median", |r| Some(us(r.batch.as_ref()?.p50_us))),
        row("acquiring all", |r| Some(ms(r.taken_ms))),
        row("releasing all", |r| Some(ms(r.given_back_ms))),
        row("lost meanwhile", |r| Some(r.lost.to_string())),
    ]
}

fn of_recovery(stores: &[Measured]) -> Vec<Row> {
    vec![
        row(stores, "lease", |m| Some(ms(m.recovery.as_ref()?.lease_ms))),
        row(stores, "next grant after, median", |m| {
            let waits = &m.recovery.as_ref()?.waits_ms;
            waits.get(waits.len() / 2).map(|wait| ms(*wait))
        }),
        row(stores, "… longest", |m| {
            m.recovery.as_ref()?.waits_ms.last().map(|wait| ms(*wait))
        }),
    ]
}

fn of_promises(stores: &[Measured]) -> Vec<Row> {
    let reach = |m: &Measured| match m.reach {
        Reach::Process => "one process",
        Reach::Host => "one host",
        Reach::Machines => "machines",
    };
    let tokens = |m: &Measured| match m.promises.fencing() {
        Fencing::SurvivesDataLoss => "past data loss",
        Fencing::WhileDataLives => "with the data",
        _ => "not promised",
    };
    vec![
        row(stores, "locks among", |m| Some(reach(m).into())),
        row(stores, "tokens rise", |m| Some(tokens(m).into())),
        row(stores, "order of service", |m| {
            Some(match m.promises.fairness() {
                Fairness::Strict => "strict".into(),
                Fairness::Bounded => "bounded".into(),
                _ => "none".into(),
            })
        }),
        row(stores, "wake-up", |m| {
            Some(if m.promises.pushed_wake() {
                "pushed".into()
            } else {
                "polled".into()
            })
        }),
        row(stores, "shortest lease", |m| {
            Some(ms(millis(m.promises.min_ttl())))
        }),
        row(stores, "freed late by up to", |m| {
            Some(ms(millis(m.promises.recovery())))
        }),
    ]
}

fn row(stores: &[Measured], title: &str, shown: impl Fn(&Measured) -> Option<String>) -> Row {
    let cells = stores
        .iter()
        .map(|m| shown(m).unwrap_or_else(|| NONE.to_owned()))
        .collect();
    Row {
        title: title.to_owned(),
        cells,
    }
}

impl Report {
    /// The report for a terminal: the advice, and all numbers.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(NOTHING)
            .set_header(iter::once("").chain(self.stores.iter().map(|m| &*m.label)));
        for group in groups(&self.stores) {
            table.add_row([group.title]);
            for Row { title, cells } in group.rows {
                table.add_row(iter::once(format!("  {title}")).chain(cells));
            }
        }
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            column.set_cell_alignment(if at == 0 {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            });
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
                text += &format!(
                    "\nnot measured on {}: {}: {}\n",
                    m.label, failure.workload, failure.error
                );
            }
        }
        text
    }
}
