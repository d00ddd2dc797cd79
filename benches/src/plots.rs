//! Pictures of a run: how rows grow with the crowd, and how far the aims are.

use crate::compare::Run;
use crate::goals::GOALS;
use crate::metric::{Metric, digits};
use crate::report::{Report, Table};
use crate::servers::Store;
use crate::svg::{Anchor, BLACK, GREY, LIGHT, Log, Svg};

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

fn colour(store: Store) -> &'static str {
    match store {
        Store::Memory => "#111827",
        Store::Sqlite => "#0072b2",
        Store::Redis => "#d55e00",
        Store::Redlock => "#cc79a7",
        Store::Etcd => "#009e73",
        Store::ZooKeeper => "#b8860b",
        Store::Postgres => "#56b4e9",
    }
}

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
    let points = |table: &Table| -> Vec<(f64, f64)> {
        let sized = table
            .contenders
            .iter()
            .filter_map(|it| it.size.zip(it.figures.get(&metric)));
        sized
            .map(|(size, spread)| (size as f64, spread.median))
            .collect()
    };
    let tables = report.tables.iter().filter(|table| table.row == row);
    let lines: Vec<(Store, Vec<(f64, f64)>)> =
        tables.map(|table| (table.store, points(table))).collect();
    let lines: Vec<_> = lines
        .into_iter()
        .filter(|(_, points)| points.len() >= POINTS)
        .collect();
    let all = || lines.iter().flat_map(|(_, points)| points.iter().copied());

    let (left, right, top, bottom) = (80.0, 500.0, 50.0, 280.0);
    let (x, y) = (
        Log::of(all().map(|at| at.0), left, right)?,
        Log::of(all().map(|at| at.1), bottom, top)?,
    );
    let mut svg = Svg::new(620.0, 330.0);
    svg.text(
        left,
        24.0,
        Anchor::Start,
        BLACK,
        &format!("{row}: {} by {}", titles.1, titles.0),
    );
    for step in y.steps() {
        svg.line((left, y.place(step)), (right, y.place(step)), LIGHT, 1.0);
        svg.text(
            left - 8.0,
            y.place(step) + 4.0,
            Anchor::End,
            GREY,
            &metric.shown(step),
        );
    }
    let mut sizes: Vec<usize> = all().map(|at| at.0 as usize).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let at = x.place(size as f64);
        svg.line((at, bottom), (at, bottom + 5.0), GREY, 1.0);
        svg.text(at, bottom + 20.0, Anchor::Middle, GREY, &size.to_string());
    }
    svg.line((left, bottom), (right, bottom), GREY, 1.0);
    svg.text(
        (left + right) / 2.0,
        bottom + 40.0,
        Anchor::Middle,
        GREY,
        titles.0,
    );
    // Names beside the ends of the lines, each with room.
    let mut ends: Vec<(f64, Store)> = Vec::new();
    for (store, points) in &lines {
        let places: Vec<_> = points
            .iter()
            .map(|at| (x.place(at.0), y.place(at.1)))
            .collect();
        svg.polyline(&places, colour(*store), 2.0);
        places
            .iter()
            .for_each(|at| svg.dot(*at, 3.0, colour(*store), true));
        ends.push((places.last()?.1, *store));
    }
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut above = f64::NEG_INFINITY;
    for (end, store) in ends {
        above = end.max(above + 15.0);
        svg.text(
            right + 10.0,
            above + 4.0,
            Anchor::Start,
            colour(store),
            &store.to_string(),
        );
    }
    Some(svg.finished())
}

const COLOURS: [&str; 4] = ["#9ca3af", "#d55e00", "#0072b2", "#009e73"];

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
    let (left, right, top, row) = (330.0, 860.0, 60.0, 20.0);
    let bottom = top + row * shown.len() as f64;
    let values = runs
        .iter()
        .flat_map(|(_, far)| far.iter().flatten().flatten().copied())
        .filter(|it| it.is_finite());
    let Some(x) = Log::of(values.chain([1.0]), left, right) else {
        return Svg::new(1.0, 1.0).finished();
    };
    let mut svg = Svg::new(890.0, bottom + 40.0);
    svg.text(
        20.0,
        24.0,
        Anchor::Start,
        BLACK,
        "Distance from the goal (1: reached; further left is better)",
    );
    for step in x.steps() {
        svg.line(
            (x.place(step), top - 10.0),
            (x.place(step), bottom),
            LIGHT,
            1.0,
        );
        svg.text(
            x.place(step),
            bottom + 16.0,
            Anchor::Middle,
            GREY,
            &format!("{} ×", digits(step)),
        );
    }
    svg.line(
        (x.place(1.0), top - 10.0),
        (x.place(1.0), bottom),
        BLACK,
        1.5,
    );
    for (run, (name, far)) in runs.iter().enumerate() {
        let (colour, key) = (COLOURS[run % COLOURS.len()], left + 110.0 * run as f64);
        svg.dot((key, 40.0), 4.0, colour, run > 0);
        svg.text(key + 9.0, 44.0, Anchor::Start, colour, name);
        for (line, at) in shown.iter().enumerate() {
            let y = top + row * line as f64 + row / 2.0;
            if run == 0 {
                svg.text(left - 12.0, y + 4.0, Anchor::End, BLACK, GOALS[*at].title);
            }
            if let Some([median, least, most]) = far[*at] {
                svg.line((x.place(least), y), (x.place(most), y), colour, 1.0);
                svg.dot((x.place(median), y), 4.0, colour, run > 0);
            }
        }
    }
    svg.finished()
}
