//! How something grows with a number: a curve for each, on logarithmic axes, with its name at its end.

use maud::{Markup, html};

use super::axis::{Log, WIDTH, apart, short};

/// Where an axis of values ends below, and above.
pub const ENDS: [f64; 2] = [BOTTOM, TOP];
pub const HEIGHT: f64 = 304.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 262.0;

/// One of the curves.
#[derive(Debug)]
pub struct Curve {
    pub label: String,
    /// The class of its colour, and that of its line.
    pub class: String,
    pub points: Vec<(usize, f64)>,
}

/// What is inside of the SVG, which is `WIDTH` wide and [`HEIGHT`] high. `steps` have lines in the grid; `shown` and `number` write
/// the values and the numbers below them.
pub fn plot(
    curves: &[Curve],
    (y, steps): (&Log, &[f64]),
    shown: &dyn Fn(f64) -> String,
    (title, number): (&str, fn(usize) -> String),
) -> Markup {
    let mut numbers: Vec<usize> = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|(n, _)| *n)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    let longest = curves
        .iter()
        .map(|curve| curve.label.chars().count())
        .max()
        .unwrap_or_default();
    let right = WIDTH - 15.0 - 6.7 * longest as f64;
    let ends = (
        numbers.first().copied().unwrap_or(1),
        numbers.last().copied().unwrap_or(2),
    );
    let x = Log::between(ends.0 as f64, ends.1 as f64, LEFT, right);
    let ends: Vec<(&Curve, f64)> = curves
        .iter()
        .filter_map(|c| Some((c, y.at(c.points.last()?.1))))
        .collect();
    let mut places: Vec<f64> = ends.iter().map(|(_, place)| *place).collect();
    apart(&mut places, 14.0, TOP, BOTTOM);
    html! {
        @for value in steps {
            line.grid x1=(LEFT) x2=(short(right)) y1=(short(y.at(*value))) y2=(short(y.at(*value))) {}
            text.tick x=(LEFT - 6.0) y=(short(y.at(*value) + 4.0)) text-anchor="end" { (shown(*value)) }
        }
        @for n in &numbers {
            line.grid x1=(short(x.at(*n as f64))) x2=(short(x.at(*n as f64))) y1=(TOP) y2=(BOTTOM) {}
            text.tick x=(short(x.at(*n as f64))) y=(BOTTOM + 17.0) text-anchor="middle" { (number(*n)) }
        }
        text.tick x=(short(f64::midpoint(LEFT, right))) y=(BOTTOM + 35.0) text-anchor="middle" { (title) }
        @for curve in curves {
            @let places: Vec<(f64, f64)> = curve.points.iter().map(|(n, value)| (x.at(*n as f64), y.at(*value))).collect();
            polyline class={"curve " (curve.class)} points=(places.iter().map(|(x, y)| format!("{},{}", short(*x), short(*y))).collect::<Vec<_>>().join(" ")) {}
            @for (x, y) in &places { circle class={"dot " (curve.class)} cx=(short(*x)) cy=(short(*y)) r="3.6" {} }
        }
        @for ((curve, end), place) in ends.iter().zip(&places) {
            @if (end - place).abs() > 2.0 {
                path.lead d={"M" (short(right + 5.0)) " " (short(*end)) " L" (short(right + 11.0)) " " (short(*place))} {}
            }
            text class={"end " (curve.class)} x=(short(right + 13.0)) y=(short(place + 4.0)) { (curve.label) }
        }
    }
}
