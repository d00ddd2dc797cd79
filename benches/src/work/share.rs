//! Several processes that want one lock.

use futures_util::future::try_join_all;
use leasehold_lab::measure::jain;

use crate::driver::Driver;
use crate::meter::{Done, Meter, Sample};
use crate::metric::Metric;
use crate::subject::Result;

/// All are asked the same at once.
pub async fn share(drivers: &mut [Driver], question: &str, meter: Meter) -> Result<Sample> {
    meter
        .around(async {
            let answers =
                try_join_all(drivers.iter_mut().map(|driver| driver.ask(question))).await?;
            Ok(together(&answers))
        })
        .await
}

fn together(parts: &[Done]) -> Done {
    let figure = |part: &Done, metric| part.figures.get(&metric).copied().unwrap_or_default();
    // One that had no turn has no figure.
    let rates = parts.iter().map(|part| {
        part.figures
            .get(&Metric::Turn)
            .map_or(0.0, |turn| 1.0 / turn)
    });
    let rate: f64 = rates.clone().sum();
    let least = rates.clone().fold(f64::INFINITY, f64::min);
    let operations: f64 = parts.iter().map(|part| part.operations).sum();
    let cpu: f64 = parts
        .iter()
        .map(|part| figure(part, Metric::ClientCpu) * part.operations)
        .sum();
    let longest = parts
        .iter()
        .map(|part| figure(part, Metric::LongestWait))
        .fold(0.0, f64::max);
    let figures = [
        (Metric::Turn, 1.0 / rate),
        (Metric::Jain, jain(rates)),
        (Metric::LeastShare, least * parts.len() as f64 / rate),
        (Metric::LongestWait, longest),
        (Metric::ClientCpu, cpu / operations),
    ];
    Done {
        operations,
        figures: figures.into(),
        elsewhere: true,
    }
}
