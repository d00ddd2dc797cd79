//! Turns in a second against the number of waiters.

use maud::{Markup, html};

use super::axis::{Log, WIDTH, apart, short};
use super::marks::{COLOURS, classes};
use crate::compare::report::{Measured, Order};
use crate::measure::units::rate;

const LEFT: f64 = 40.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 262.0;
const HEIGHT: f64 = 304.0;

/// The curve of one store in one order.
struct Curve {
    store: usize,
    order: Order,
    /// Waiters, and turns in a second.
    points: Vec<(usize, f64)>,
}

pub(super) fn plot(stores: &[Measured]) -> Markup {
    let curves = curves(stores);
    let mut sizes: Vec<usize> = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|(n, _)| *n)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let values = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|(_, rate)| *rate);
    let Some(y) = Log::decades(values, BOTTOM, TOP) else {
        return html! {};
    };
    let longest = curves
        .iter()
        .map(|curve| stores[curve.store].label.chars().count() + 5)
        .max()
        .unwrap_or_default();
    let right = WIDTH - 15.0 - 6.7 * longest as f64;
    let x = Log::between(1.0, sizes.last().copied().unwrap_or(2) as f64, LEFT, right);
    let ends: Vec<(&Curve, f64)> = curves
        .iter()
        .filter_map(|c| Some((c, y.at(c.points.last()?.1))))
        .collect();
    let mut places: Vec<f64> = ends.iter().map(|(_, place)| *place).collect();
    apart(&mut places, 14.0, TOP, BOTTOM);
    html! {
        svg viewBox={"0 0 " (WIDTH) " " (HEIGHT)} role="img" aria-label=(description(stores, &curves)) {
            @for value in y.powers() {
                line.grid x1=(LEFT) x2=(short(right)) y1=(short(y.at(value))) y2=(short(y.at(value))) {}
                text.tick x=(LEFT - 6.0) y=(short(y.at(value) + 4.0)) text-anchor="end" { (round(value)) }
            }
            @for n in &sizes {
                line.grid x1=(short(x.at(*n as f64))) x2=(short(x.at(*n as f64))) y1=(TOP) y2=(BOTTOM) {}
                text.tick x=(short(x.at(*n as f64))) y=(BOTTOM + 17.0) text-anchor="middle" { (if *n == 1 { "alone".to_owned() } else { n.to_string() }) }
            }
            text.tick x=(short(f64::midpoint(LEFT, right))) y=(BOTTOM + 35.0) text-anchor="middle" { "waiters" }
            @for curve in &curves {
                @let places: Vec<(f64, f64)> = curve.points.iter().map(|(n, rate)| (x.at(*n as f64), y.at(*rate))).collect();
                polyline class={"curve " (classes(curve.store, curve.order))} points=(places.iter().map(|(x, y)| format!("{},{}", short(*x), short(*y))).collect::<Vec<_>>().join(" ")) {}
                @for (x, y) in &places { circle class={"dot " (classes(curve.store, curve.order))} cx=(short(*x)) cy=(short(*y)) r="3.6" {} }
            }
            @for ((curve, end), place) in ends.iter().zip(&places) {
                @if (end - place).abs() > 2.0 {
                    path.lead d={"M" (short(right + 5.0)) " " (short(*end)) " L" (short(right + 11.0)) " " (short(*place))} {}
                }
                text class={"end c" (curve.store % COLOURS)} x=(short(right + 13.0)) y=(short(place + 4.0)) { (stores[curve.store].label) " " (curve.order.word()) }
            }
        }
    }
}

fn curves(stores: &[Measured]) -> Vec<Curve> {
    let mut curves = Vec::new();
    for (store, m) in stores.iter().enumerate() {
        for order in m.orders() {
            let alone = m.alone(order).map(|u| (1, u.per_second));
            let waiting = m
                .contended
                .iter()
                .filter(|c| c.order == order)
                .map(|c| (c.waiters, c.per_second));
            let mut points: Vec<(usize, f64)> = alone.into_iter().chain(waiting).collect();
            points.sort_by_key(|(n, _)| *n);
            curves.push(Curve {
                store,
                order,
                points,
            });
        }
    }
    curves
}

/// A power of ten, short.
fn round(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.0} M", v / 1e6),
        v if v >= 1e3 => format!("{:.0} k", v / 1e3),
        v => format!("{v}"),
    }
}

fn description(stores: &[Measured], curves: &[Curve]) -> String {
    let one = |curve: &Curve| {
        let points = curve
            .points
            .iter()
            .map(|(n, turns)| format!("{n} waiters {}", rate(*turns)));
        format!(
            "{} {}: {}",
            stores[curve.store].label,
            curve.order.word(),
            points.collect::<Vec<_>>().join(", ")
        )
    };
    curves.iter().map(one).collect::<Vec<_>>().join("; ")
}
