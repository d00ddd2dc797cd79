//! Distributions as hills, one row for each store, on one logarithmic axis.

use maud::{Markup, html};

use super::marks::classes;
use crate::compare::distribution::{BINS_PER_DECADE, Latency};
use crate::compare::report::{Measured, Order};
use crate::measure::units::us;
use crate::plot::COLOURS;
use crate::plot::axis::{Log, WIDTH, grid, short};

const ROW: f64 = 62.0;
const HILL: f64 = 34.0;
const LEFT: f64 = 10.0;
const RIGHT: f64 = WIDTH - 10.0;

/// One client alone.
pub(super) fn alone(stores: &[Measured]) -> Markup {
    plot(stores, |m, order| m.alone(order).map(|u| &u.cycle))
}

/// From hand to hand.
pub(super) fn hand_over(stores: &[Measured], waiters: usize) -> Markup {
    plot(stores, |m, order| {
        m.with(order, waiters)?.hand_over.as_ref()
    })
}

fn plot(stores: &[Measured], latency: impl Fn(&Measured, Order) -> Option<&Latency>) -> Markup {
    let both = |m| -> Vec<(Order, &Latency)> {
        [Order::Fair, Order::Fast]
            .into_iter()
            .filter_map(|order| Some((order, latency(m, order)?)))
            .collect()
    };
    let values = stores.iter().flat_map(|m| {
        let ends = both(m).into_iter().flat_map(|(_, l)| {
            [
                l.bins.first().map_or(l.p50_us, |b| b.from_us),
                l.p99_us * 1.3,
            ]
        });
        ends.chain([m.round_trip.p50_us]).collect::<Vec<_>>()
    });
    let Some(axis) = Log::decades(values, LEFT, RIGHT) else {
        return html! {};
    };
    let bottom = ROW * stores.len() as f64 + 4.0;
    html! {
        svg viewBox={"0 0 " (WIDTH) " " (bottom + 22.0)} role="img" aria-label=(description(stores, &both)) {
            (grid(&axis.ticks(7), 4.0, bottom))
            @for (i, m) in stores.iter().enumerate() {
                @let base = ROW * (i + 1) as f64 - 4.0;
                @let shapes = both(m);
                line.base x1=(LEFT) x2=(RIGHT) y1=(short(base)) y2=(short(base)) {}
                @for (order, l) in &shapes {
                    path class={"hill " (classes(i, *order))} d=(hill(&axis, l, base)) {}
                }
                @let trip = axis.at(m.round_trip.p50_us);
                path.trip d={"M" (short(trip)) " " (short(base - 6.0)) " l4.5 8 h-9 Z"} {}
                text class={"label c" (i % COLOURS)} x="0" y=(short(base - HILL - 8.0)) { (m.label) }
                text.value x=(WIDTH) y=(short(base - HILL - 8.0)) text-anchor="end" { (medians(&shapes)) }
            }
        }
    }
}

fn medians(shapes: &[(Order, &Latency)]) -> String {
    let one = |(order, l): &(Order, &Latency)| format!("{} {}", us(l.p50_us), order.word());
    shapes.iter().map(one).collect::<Vec<_>>().join(" · ")
}

fn description<'a>(
    stores: &'a [Measured],
    both: &impl Fn(&'a Measured) -> Vec<(Order, &'a Latency)>,
) -> String {
    stores
        .iter()
        .map(|m| format!("{}: {}", m.label, medians(&both(m))))
        .collect::<Vec<_>>()
        .join("; ")
}

/// The outline of a histogram, through the middle of each bin, from zero to zero.
fn hill(axis: &Log, latency: &Latency, base: f64) -> String {
    let step = 10f64.powf(1.0 / BINS_PER_DECADE);
    let most = latency
        .bins
        .iter()
        .map(|bin| bin.share)
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut end = None::<f64>;
    for bin in &latency.bins {
        // Bins without any are not there: the outline falls to the ground between.
        if end.is_none_or(|end| bin.from_us > end * 1.01) {
            points.extend(end.map(|end| (end * step.sqrt(), 0.0)));
            points.push((bin.from_us / step.sqrt(), 0.0));
        }
        points.push((bin.from_us * step.sqrt(), bin.share / most));
        end = Some(bin.from_us * step);
    }
    points.extend(end.map(|end| (end * step.sqrt(), 0.0)));
    let place = |(us, height): &(f64, f64)| {
        format!("{} {}", short(axis.at(*us)), short(base - height * HILL))
    };
    format!(
        "M{} Z",
        points.iter().map(place).collect::<Vec<_>>().join(" L")
    )
}
