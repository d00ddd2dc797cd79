//! Turns in a second against the number of waiters.

use maud::{Markup, html};

use super::marks::classes;
use crate::compare::report::Measured;
use crate::measure::units::rate;
use crate::plot::axis::{Log, WIDTH};
use crate::plot::curves::{self, Curve, ENDS, HEIGHT};

pub(super) fn plot(stores: &[Measured]) -> Markup {
    let curves = of(stores);
    let rates = curves.iter().flat_map(|curve| &curve.points);
    let Some(axis) = Log::decades(rates.map(|(_, rate)| *rate), ENDS[0], ENDS[1]) else {
        return html! {};
    };
    html! {
        svg viewBox={"0 0 " (WIDTH) " " (HEIGHT)} role="img" aria-label=(description(&curves)) {
            (curves::plot(&curves, (&axis, &axis.powers()), &round, ("waiters", waiters)))
        }
    }
}

/// A curve for each store in each order: waiters, and turns in a second.
fn of(stores: &[Measured]) -> Vec<Curve> {
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
                label: format!("{} {}", m.label, order.word()),
                class: classes(store, order),
                points,
            });
        }
    }
    curves
}

fn waiters(number: usize) -> String {
    if number == 1 {
        "alone".to_owned()
    } else {
        number.to_string()
    }
}

/// A power of ten, short.
fn round(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.0} M", v / 1e6),
        v if v >= 1e3 => format!("{:.0} k", v / 1e3),
        v => format!("{v}"),
    }
}

fn description(curves: &[Curve]) -> String {
    let one = |curve: &Curve| {
        let points = curve
            .points
            .iter()
            .map(|(n, turns)| format!("{n} waiters {}", rate(*turns)));
        let points = points.collect::<Vec<_>>().join(", ");
        format!("{}: {points}", curve.label)
    };
    curves.iter().map(one).collect::<Vec<_>>().join("; ")
}
