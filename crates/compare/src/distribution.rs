//! How a latency is distributed: a few quantiles, and a histogram on a logarithmic axis for the plots.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// So many bins for each factor of ten.
pub(crate) const BINS_PER_DECADE: f64 = 12.0;

/// A latency's distribution, in microseconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// How many were measured.
    pub count: usize,
    /// The arithmetic mean.
    pub mean_us: f64,
    /// Half were shorter.
    pub p50_us: f64,
    /// Nine of ten were shorter.
    pub p90_us: f64,
    /// 99 of 100 were shorter.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The histogram; empty bins are left out.
    pub bins: Vec<Bin>,
}

/// One bin of a histogram on a logarithmic axis.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Bin {
    /// Where it begins, in microseconds; it ends a twelfth of a factor of ten later.
    pub from_us: f64,
    /// Which part of all fell into it.
    pub share: f64,
}

impl Latency {
    /// The distribution of these; `None` if there are none.
    pub fn of(samples: impl IntoIterator<Item = Duration>) -> Option<Latency> {
        let mut us: Vec<f64> = samples.into_iter().map(|d| d.as_secs_f64() * 1e6).collect();
        us.sort_by(f64::total_cmp);
        let (count, max_us) = (us.len(), *us.last()?);
        let quantile = |q: f64| us[(((count - 1) as f64) * q).round() as usize];
        let mut bins = BTreeMap::<i64, usize>::new();
        for sample in &us {
            // Nothing is shorter than the clock can tell.
            *bins.entry((sample.max(1e-3).log10() * BINS_PER_DECADE).floor() as i64).or_default() += 1;
        }
        let bin = |(bin, n): (i64, usize)| Bin {
            from_us: 10f64.powf(bin as f64 / BINS_PER_DECADE),
            share: n as f64 / count as f64,
        };
        Some(Latency {
            count,
            mean_us: us.iter().sum::<f64>() / count as f64,
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            max_us,
            bins: bins.into_iter().map(bin).collect(),
        })
    }
}

/// Jain's index of fairness (Jain, Chiu, Hawe 1984): 1 if all got the same, 1/n if one got all.
pub(crate) fn jain(got: &[usize]) -> f64 {
    let sum: f64 = got.iter().map(|&n| n as f64).sum();
    let squares: f64 = got.iter().map(|&n| (n as f64).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (got.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_bins() {
        let latency = Latency::of((1..=100).map(Duration::from_micros)).unwrap();
        assert_eq!((latency.count, latency.max_us.round()), (100, 100.0));
        assert!((latency.p50_us - 51.0).abs() < 1.1 && (latency.p99_us - 99.0).abs() < 1.1, "{latency:?}");
        assert!((latency.bins.iter().map(|bin| bin.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(latency.bins.windows(2).all(|pair| pair[0].from_us < pair[1].from_us));
        assert!(Latency::of([]).is_none());
    }

    #[test]
    fn jain_knows_equals_and_hogs() {
        assert_eq!(jain(&[5, 5, 5, 5]), 1.0);
        assert_eq!(jain(&[9, 0, 0, 0]), 0.25);
        assert_eq!(jain(&[0, 0]), 1.0);
    }
}
