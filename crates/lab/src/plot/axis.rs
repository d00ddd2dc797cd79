//! Axes of plots: from values to places, and where the ticks are.

use maud::{Markup, html};

/// The width of every plot in its own units: about its size on a phone.
pub const WIDTH: f64 = 380.0;

/// A logarithmic axis from one place to another.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Log {
    /// An axis for these values, from whole decade to whole decade; `None` if there are none.
    pub fn decades(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Log> {
        let (low, high) = ends(values)?;
        let low = 10f64.powf(low.log10().floor());
        let high = 10f64.powf(high.log10().ceil());
        Some(Log {
            low,
            high: if high > low { high } else { low * 10.0 },
            from,
            to,
        })
    }

    /// An axis for these values with a little room at both ends; `None` if there are none.
    pub fn around(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Log> {
        let (low, high) = ends(values)?;
        let room = (high / low).powf(0.05).max(1.25);
        Some(Log::between(low / room, high * room, from, to))
    }

    /// An axis from one value to another.
    pub fn between(low: f64, high: f64, from: f64, to: f64) -> Log {
        Log {
            low,
            high: high.max(low * 2.0),
            from,
            to,
        }
    }

    pub fn at(&self, value: f64) -> f64 {
        let part = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        self.from + part.min(1.0) * (self.to - self.from)
    }

    /// The powers of ten on it.
    pub fn powers(&self) -> Vec<f64> {
        let first = (self.low.log10() - 1e-9).ceil() as i32;
        let last = (self.high.log10() + 1e-9).floor() as i32;
        (first..=last).map(|power| 10f64.powi(power)).collect()
    }

    /// The powers of ten on it; where these are few, also twice and five times each.
    pub fn steps(&self) -> Vec<f64> {
        if self.high / self.low > 1e3 {
            return self.powers();
        }
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        decades
            .flat_map(|power| [1.0, 2.0, 5.0].map(|part| part * 10f64.powi(power)))
            .filter(|step| (self.low..=self.high).contains(step))
            .collect()
    }

    /// Its powers of ten with their labels; if there are more than `most`, every other one.
    pub fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        let powers = self.powers();
        let step = if powers.len() > most { 2 } else { 1 };
        powers
            .into_iter()
            .step_by(step)
            .map(|value| (self.at(value), tick(value)))
            .collect()
    }
}

/// The least and the greatest of the values that have a logarithm.
fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values
        .filter(|value| value.is_finite() && *value > 0.0)
        .map(|value| (value, value))
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// Vertical lines and their labels below.
pub fn grid(ticks: &[(f64, String)], top: f64, bottom: f64) -> Markup {
    html! {
        @for (x, label) in ticks {
            line.grid x1=(short(*x)) x2=(short(*x)) y1=(short(top)) y2=(short(bottom)) {}
            // Labels stay inside of the picture.
            @let (x, anchor) = if *x < 20.0 { (0.0, "start") } else if *x > WIDTH - 20.0 { (WIDTH, "end") } else { (*x, "middle") };
            text.tick x=(short(x)) y=(short(bottom + 15.0)) text-anchor=(anchor) { (label) }
        }
    }
}

/// A coordinate without digits that cannot be seen.
pub fn short(value: f64) -> String {
    format!("{value:.1}")
}

/// A round duration, as on a tick: microseconds to text.
fn tick(us: f64) -> String {
    match us {
        _ if us < 0.9 => format!("{:.0} ns", us * 1e3),
        _ if us < 900.0 => format!("{us:.0} µs"),
        _ if us < 9e5 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.0} s", us / 1e6),
    }
}

/// Moves labels apart so that each has `gap`, each as little as that takes; `places` in any order.
pub fn apart(places: &mut [f64], gap: f64, low: f64, high: f64) {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    for pair in order.windows(2) {
        places[pair[1]] = places[pair[1]].max(places[pair[0]] + gap);
    }
    let mut limit = high;
    for &i in order.iter().rev() {
        places[i] = places[i].min(limit).max(low);
        limit = places[i] - gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decades_hold_their_values() {
        let axis = Log::decades([42.0, 3.0, 900.0].into_iter(), 0.0, 300.0).unwrap();
        assert_eq!(axis.powers(), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!([axis.at(1.0), axis.at(1000.0)], [0.0, 300.0]);
        assert!((axis.at(10.0) - 100.0).abs() < 1e-9);
        assert!(Log::decades([f64::NAN, 0.0].into_iter(), 0.0, 1.0).is_none());
    }

    #[test]
    fn a_short_axis_has_more_steps() {
        let axis = Log::around([3.0, 40.0].into_iter(), 0.0, 300.0).unwrap();
        assert_eq!(axis.steps(), [5.0, 10.0, 20.0, 50.0]);
        assert!(axis.at(3.0) > 0.0 && axis.at(40.0) < 300.0);
        let long = Log::around([1.0, 1e4].into_iter(), 0.0, 300.0).unwrap();
        assert_eq!(long.steps(), long.powers());
    }

    #[test]
    fn labels_move_apart() {
        let mut places = [50.0, 10.0, 51.0, 52.0];
        apart(&mut places, 10.0, 0.0, 60.0);
        assert_eq!(places, [40.0, 10.0, 50.0, 60.0]);
    }
}
