//! The distribution of a latency: a few quantiles, and a histogram on a logarithmic axis for the plots.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The number of bins for each factor of ten.
pub(crate) const BINS_PER_DECADE: f64 = 12.0;

/// A latency's distribution, in microseconds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// The number of measurements.
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

/// One bin of a histogram on a logarithmic axis. All stores have the same bins: n twelfths of a factor of ten from 1 µs, n a
/// whole number, so that their shares can be compared bin by bin.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Bin {
    /// The lower end in microseconds; the upper one is a twelfth of a factor of ten above.
    pub from_us: f64,
    /// Which part of all fell into it.
    pub share: f64,
}

impl Latency {
    /// The distribution of these, to three digits; `None` if there are none.
    pub fn of(samples: impl IntoIterator<Item = Duration>) -> Option<Latency> {
        let mut all = Histogram::<u64>::new(3).ok()?;
        for sample in samples {
            // It grows as it must: no duration is too long for it.
            all.record(u64::try_from(sample.as_nanos()).ok()?).ok()?;
        }
        if all.is_empty() {
            return None;
        }
        let us = |nanos: u64| nanos as f64 / 1e3;
        // One grid for all stores: 1 µs is an edge of it. Nothing is shorter than a nanosecond.
        let mut bins = BTreeMap::<i32, u64>::new();
        for value in all.iter_recorded() {
            let bin = us(value.value_iterated_to().max(1)).log10() * BINS_PER_DECADE;
            *bins.entry(bin.floor() as i32).or_default() += value.count_since_last_iteration();
        }
        let bin = |(bin, count)| Bin {
            from_us: 10f64.powf(f64::from(bin) / BINS_PER_DECADE),
            share: count as f64 / all.len() as f64,
        };
        Some(Latency {
            count: usize::try_from(all.len()).unwrap_or(usize::MAX),
            mean_us: all.mean() / 1e3,
            p50_us: us(all.value_at_quantile(0.5)),
            p90_us: us(all.value_at_quantile(0.9)),
            p99_us: us(all.value_at_quantile(0.99)),
            max_us: us(all.max()),
            bins: bins.into_iter().map(bin).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_bins() {
        let latency = Latency::of((1..=100).map(Duration::from_micros)).unwrap();
        assert_eq!((latency.count, latency.max_us.round()), (100, 100.0));
        assert!(
            (latency.p50_us - 51.0).abs() < 1.1 && (latency.p99_us - 99.0).abs() < 1.1,
            "{latency:?}"
        );
        assert!((latency.bins.iter().map(|bin| bin.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(
            latency
                .bins
                .windows(2)
                .all(|pair| pair[0].from_us < pair[1].from_us)
        );
        assert!(Latency::of([]).is_none());
        // All measurements have one grid.
        for bin in latency
            .bins
            .iter()
            .chain(&Latency::of([Duration::from_nanos(123_457)]).unwrap().bins)
        {
            let place = bin.from_us.log10() * BINS_PER_DECADE;
            assert!((place - place.round()).abs() < 1e-9, "{bin:?}");
        }
    }
}
