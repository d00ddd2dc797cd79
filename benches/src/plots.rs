//! Pictures of a run: how rows grow with the crowd, and how far the aims are.

use leasehold_lab::plot::axis::{Log, WIDTH, short};
use leasehold_lab::plot::curves::{self, Curve, ENDS, HEIGHT};
use leasehold_lab::plot::{COLOURS, picture};
use maud::html;

use crate::compare::Run;
use crate::goals::GOALS;
use crate::metric::{Metric, digits};
use crate::report::{Report, Table};
use crate::servers::Store;

/// The curves that are drawn: of which row, of what, and what is counted on the other axis.
const CURVES: [(&str, Metric, &str, &str); 9] = [
    (
        "line",
        Metric::Time,
        "waiters of one client",
        "time of a hand-over",
    ),
    ("clients", Metric::Time, "clients", "time of a hand-over"),
    ("clients", Metric::Bytes, "clients", "bytes of a hand-over"),
    (
        "many",
        Metric::Time,
        "names of one client",
        "time of a cycle",
    ),
    (
        "held",
        Metric::ClientCpu,
        "locks held",
        "client CPU in 30 s",
    ),
    ("held", Metric::Heap, "locks held", "heap of each"),
    (
        "idle",
        Metric::Requests,
        "idle waiters of one client",
        "requests in a second",
    ),
    (
        "idle",
        Metric::Bytes,
        "idle waiters of one client",
        "bytes in a second",
    ),
    (
        "idle",
        Metric::Heap,
        "idle waiters of one client",
        "heap of each",
    ),
];

/// So many points make a curve.
const POINTS: usize = 3;

/// Each with its name.
pub fn curves(report: &Report) -> Vec<(String, String)> {
    let plots = CURVES.iter().filter_map(|(row, metric, x, y)| {
        let name = format!("{row}-{}", format!("{metric:?}").to_lowercase());
        Some((name, curve(report, row, *metric, (x, y))?))
    });
    plots.collect()
}

/// One line for each store.
fn curve(report: &Report, row: &str, metric: Metric, titles: (&str, &str)) -> Option<String> {
    let points = |table: &Table| -> Vec<(usize, f64)> {
        let sized = table
            .contenders
            .iter()
            .filter_map(|it| it.size.zip(it.figures.get(&metric)));
        sized.map(|(size, spread)| (size, spread.median)).collect()
    };
    let tables = report.tables.iter().filter(|table| table.row == row);
    let of_store = |table: &Table| Curve {
        label: table.store.to_string(),
        class: class(Store::SINGLE.iter().position(|store| *store == table.store)),
        points: points(table),
    };
    let curves: Vec<Curve> = tables
        .map(of_store)
        .filter(|curve| curve.points.len() >= POINTS)
        .collect();
    let values = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|point| point.1);
    let axis = Log::around(values, ENDS[0], ENDS[1])?;
    let plot = curves::plot(
        &curves,
        (&axis, &axis.steps()),
        &|value| metric.shown(value),
        (titles.0, |size| size.to_string()),
    );
    Some(picture(
        &format!("{row}: {} by {}", titles.1, titles.0),
        WIDTH,
        HEIGHT,
        &plot,
    ))
}

/// A colour, and a line without gaps.
fn class(colour: Option<usize>) -> String {
    format!("c{} fair", colour.unwrap_or_default() % COLOURS)
}

/// A line for each aim: how far each run is from it. What is left of 1 is reached.
pub fn goals(runs: &[Run]) -> String {
    let far = |run: &Run| -> Vec<Option<[f64; 3]>> {
        let spread = GOALS.iter().map(|goal| {
            let spread = goal.of(&run.report)?;
            let ends = [goal.distance(spread.least)?, goal.distance(spread.most)?];
            Some([goal.distance(spread.median)?, ends[0], ends[1]])
        });
        spread.collect()
    };
    let runs: Vec<(&str, Vec<_>)> = runs.iter().map(|run| (&*run.name, far(run))).collect();
    let shown: Vec<usize> = (0..GOALS.len())
        .filter(|at| runs.iter().any(|(_, far)| far[*at].is_some()))
        .collect();
    let (left, right, top, row) = (330.0, 860.0, 30.0, 20.0);
    let bottom = top + row * shown.len() as f64;
    let values = runs
        .iter()
        .flat_map(|(_, far)| far.iter().flatten().flatten().copied());
    // The aim itself is among them.
    let x = Log::around(values.chain([1.0]), left, right)
        .unwrap_or(Log::between(0.5, 2.0, left, right));
    let line = |at: usize| top + row * (at as f64 + 0.5);
    let plot = html! {
        @for step in x.steps() {
            @let at = short(x.at(step));
            line.grid x1=(at) x2=(at) y1=(top - 10.0) y2=(bottom) {}
            text.tick x=(at) y=(bottom + 16.0) text-anchor="middle" { (digits(step)) " ×" }
        }
        line.aim x1=(short(x.at(1.0))) x2=(short(x.at(1.0))) y1=(top - 10.0) y2=(bottom) {}
        @for (i, at) in shown.iter().enumerate() {
            text x=(left - 12.0) y=(line(i) + 4.0) text-anchor="end" { (GOALS[*at].title) }
        }
        @for (run, (name, far)) in runs.iter().enumerate() {
            // The first is what the others are compared with.
            @let class = format!("c{} {}", run % COLOURS, if run > 0 { "fair" } else { "fast" });
            @let key = left + 110.0 * run as f64;
            circle class={"dot " (class)} cx=(key) cy="10" r="4" {}
            text class={"end " (class)} x=(key + 9.0) y="14" { (name) }
            @for (i, at) in shown.iter().enumerate() {
                @if let Some([median, least, most]) = far[*at].map(|all| all.map(|value| short(x.at(value)))) {
                    line class={"span " (class)} x1=(least) x2=(most) y1=(line(i)) y2=(line(i)) {}
                    circle class={"dot " (class)} cx=(median) cy=(line(i)) r="4" {}
                }
            }
        }
    };
    picture(
        "Distance from the goal (1: reached; further left is better)",
        right + 30.0,
        bottom + 20.0,
        &plot,
    )
}
