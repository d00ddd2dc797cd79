//! What giving back takes, from the request to its answer.

use std::time::Duration;

use leasehold::backend::Moment;

use crate::meter::{Done, Meter, Sample};
use crate::metric::Metric;
use crate::spread::median;
use crate::subject::{Result, Subject};

/// Releases after a hold of `section`: the yardstick of a gap, which cannot be shorter.
pub async fn releases<S: Subject>(
    subject: S,
    section: Duration,
    meter: Meter,
    window: Duration,
) -> Result<Sample> {
    meter
        .around(async {
            let (begin, mut took) = (Moment::now(), Vec::new());
            while Moment::now().since(begin) < window {
                let held = subject.acquire("release").await?;
                if !section.is_zero() {
                    tokio::time::sleep(section).await;
                }
                let released = Moment::now();
                subject.release(held).await?;
                took.push(Moment::now().since(released).as_nanos() as f64);
            }
            took.sort_by(f64::total_cmp);
            Ok(Done {
                operations: took.len() as f64,
                figures: [(Metric::Gap, median(&took))].into(),
                elsewhere: false,
            })
        })
        .await
}
