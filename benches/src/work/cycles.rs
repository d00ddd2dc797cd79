//! One task takes and gives back, one after the other.

use std::time::Duration;

use leasehold::backend::Moment;

use crate::meter::{Done, Meter, Sample};
use crate::metric::Metric;
use crate::spread::median;
use crate::subject::{Result, Subject};

/// Cycles of one name that nobody else wants; the first few are not measured.
pub async fn cycles<S: Subject>(
    subject: S,
    name: &str,
    meter: Meter,
    window: Duration,
) -> Result<Sample> {
    for _ in 0..3 {
        subject.cycle(name).await?;
    }
    let mut took = Vec::with_capacity(1 << 16);
    meter
        .around(async move {
            let begin = Moment::now();
            let mut before = begin;
            while before.since(begin) < window {
                subject.cycle(name).await?;
                let now = Moment::now();
                took.push(now.since(before).as_nanos() as f64);
                before = now;
            }
            took.sort_by(f64::total_cmp);
            Ok(Done {
                operations: took.len() as f64,
                figures: [(Metric::Median, median(&took))].into(),
                elsewhere: false,
            })
        })
        .await
}
