//! The longest wait of each store, order and number of waiters, what a perfect queue would make of it, and Jain's index.

use maud::{Markup, html};

use super::marks::classes;
use crate::compare::report::{Contended, Measured, Order, sizes};
use crate::measure::units::us;
use crate::plot::COLOURS;
use crate::plot::axis::{Log, WIDTH, grid, short};

const LEFT: f64 = 112.0;
const RIGHT: f64 = WIDTH - 88.0;
const ROW: f64 = 26.0;

/// One store with so many waiters: fair and fast on one line.
struct Pair<'a> {
    store: usize,
    waiters: usize,
    both: Vec<(Order, &'a Contended)>,
}

pub(super) fn plot(stores: &[Measured]) -> Markup {
    let pairs = pairs(stores);
    let waits = pairs
        .iter()
        .flat_map(|pair| &pair.both)
        .flat_map(|(_, c)| [c.wait.max_us, c.everybody_once_us]);
    let Some(axis) = Log::decades(waits, LEFT, RIGHT) else {
        return html! {};
    };
    let ticks = axis.ticks(5);
    let top = 22.0;
    let bottom = 26.0 + ROW * pairs.len() as f64;
    html! {
        svg viewBox={"0 0 " (WIDTH) " " (bottom + 24.0)} role="img" aria-label=(description(stores, &pairs)) {
            (grid(&ticks, top, bottom))
            text.tick x=(WIDTH) y="14" text-anchor="end" { "Jain, fair / fast" }
            text.tick x=(LEFT - 10.0) y="14" text-anchor="end" { "waiters" }
            @for (i, pair) in pairs.iter().enumerate() {
                @let y = top + ROW * (i as f64 + 0.62);
                @let first = i == 0 || pairs[i - 1].store != pair.store;
                @if first && i > 0 { line.base x1="0" x2=(WIDTH) y1=(short(y - ROW / 2.0)) y2=(short(y - ROW / 2.0)) {} }
                @if first { text class={"label c" (pair.store % COLOURS)} x="0" y=(short(y + 4.0)) { (stores[pair.store].label) } }
                text.tick x=(LEFT - 10.0) y=(short(y + 4.0)) text-anchor="end" { (pair.waiters) }
                @if let [(_, a), (_, b)] = &pair.both[..] {
                    line class={"span c" (pair.store % COLOURS)} x1=(short(axis.at(a.wait.max_us))) x2=(short(axis.at(b.wait.max_us))) y1=(short(y)) y2=(short(y)) {}
                }
                @if let Some((_, c)) = pair.both.first() {
                    @let perfect = short(axis.at(c.everybody_once_us));
                    line class={"perfect c" (pair.store % COLOURS)} x1=(perfect) x2=(perfect) y1=(short(y - 7.0)) y2=(short(y + 7.0)) {}
                }
                @for (order, c) in pair.both.iter().rev() {
                    circle class={"dot " (classes(pair.store, *order))} cx=(short(axis.at(c.wait.max_us))) cy=(short(y)) r="4.4" {}
                }
                text.value x=(WIDTH) y=(short(y + 4.0)) text-anchor="end" { (indices(pair)) }
            }
        }
    }
}

fn pairs(stores: &[Measured]) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    for (store, m) in stores.iter().enumerate() {
        for waiters in sizes(std::slice::from_ref(m)) {
            let both = m
                .orders()
                .filter_map(|order| Some((order, m.with(order, waiters)?)))
                .collect();
            pairs.push(Pair {
                store,
                waiters,
                both,
            });
        }
    }
    pairs
}

fn indices(pair: &Pair<'_>) -> String {
    pair.both
        .iter()
        .map(|(_, c)| format!("{:.2}", c.jain))
        .collect::<Vec<_>>()
        .join(" / ")
}

fn description(stores: &[Measured], pairs: &[Pair<'_>]) -> String {
    let one = |pair: &Pair<'_>| {
        let both = pair
            .both
            .iter()
            .map(|(order, c)| format!("{} {}", order.word(), us(c.wait.max_us)));
        let both = both.collect::<Vec<_>>().join(", ");
        format!(
            "{} with {} waiters: {both}",
            stores[pair.store].label, pair.waiters
        )
    };
    pairs.iter().map(one).collect::<Vec<_>>().join("; ")
}
