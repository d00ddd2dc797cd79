//! After a kill: the lease as a bar, each wait as a mark.

use maud::{Markup, html};

use crate::plot::COLOURS;
use crate::plot::axis::{WIDTH, grid, short};

use crate::compare::report::Measured;
use crate::measure::units::ms;

const LEFT: f64 = 1.0;
const RIGHT: f64 = WIDTH - 4.0;
const ROW: f64 = 46.0;

pub(super) fn plot(stores: &[Measured]) -> Markup {
    let all: Vec<_> = stores
        .iter()
        .enumerate()
        .filter_map(|(i, m)| Some((i, m, m.recovery.as_ref()?)))
        .collect();
    let longest = all
        .iter()
        .flat_map(|(_, _, r)| r.waits_ms.iter().copied().chain([r.lease_ms]))
        .max()
        .unwrap_or(1);
    let high = longest as f64 / 1000.0 * 1.04;
    let step = step(high);
    let at = |ms: u64| LEFT + ms as f64 / 1000.0 / high * (RIGHT - LEFT);
    let marks = (0..=(high / step) as u32).map(|i| f64::from(i) * step);
    let ticks: Vec<(f64, String)> = marks
        .map(|s| (LEFT + s / high * (RIGHT - LEFT), format!("{s} s")))
        .collect();
    let bottom = ROW * all.len() as f64 + 4.0;
    let shown = |r: &crate::compare::report::Recovery| {
        let ends = (r.waits_ms.first(), r.waits_ms.last());
        let waits = match ends {
            (Some(a), Some(b)) if a != b => format!("{} to {}", ms(*a), ms(*b)),
            (Some(a), _) => ms(*a),
            _ => "never".to_owned(),
        };
        format!("{waits} · lease {}", ms(r.lease_ms))
    };
    html! {
        svg viewBox={"0 0 " (WIDTH) " " (bottom + 22.0)} role="img" aria-label=(all.iter().map(|(_, m, r)| format!("{}: {}", m.label, shown(r))).collect::<Vec<_>>().join("; ")) {
            (grid(&ticks, 4.0, bottom))
            @for (row, (i, m, r)) in all.iter().enumerate() {
                @let y = ROW * (row + 1) as f64 - 16.0;
                rect class={"lease c" (i % COLOURS)} x=(LEFT) y=(short(y)) width=(short(at(r.lease_ms) - LEFT)) height="10" rx="2" {}
                @for wait in &r.waits_ms {
                    line class={"mark c" (i % COLOURS)} x1=(short(at(*wait))) x2=(short(at(*wait))) y1=(short(y - 4.0)) y2=(short(y + 14.0)) {}
                }
                text class={"label c" (i % COLOURS)} x=(LEFT) y=(short(y - 9.0)) { (m.label) }
                text.value x=(RIGHT) y=(short(y - 9.0)) text-anchor="end" { (shown(r)) }
            }
        }
    }
}

/// About five ticks, at round numbers.
fn step(high: f64) -> f64 {
    let rough = (high / 5.0).max(1e-3);
    let decade = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * decade)
        .find(|step| *step >= rough)
        .unwrap_or(decade * 10.0)
}
