//! Tasks that want one lock, each again as soon as it has given it back.

use std::sync::Arc;
use std::time::Duration;

use leasehold_lab::measure::{self, Turns, jain};

use crate::meter::{Done, Meter, Sample};
use crate::metric::Metric;
use crate::spread::median;
use crate::subject::{Result, Subject};

/// `tasks` of these clients in turn, and what that costs.
pub async fn contended<S: Subject>(
    clients: Arc<[S]>,
    name: &str,
    tasks: usize,
    section: Duration,
    meter: Meter,
    window: Duration,
) -> Result<Sample> {
    meter
        .around(turns(clients, name, tasks, section, window))
        .await
}

/// `tasks` of these clients in turn. `section`: for how long each holds it.
pub async fn turns<S: Subject>(
    clients: Arc<[S]>,
    name: &str,
    tasks: usize,
    section: Duration,
    window: Duration,
) -> Result<Done> {
    let seen = measure::turns(&clients, name, tasks, section, window).await?;
    match seen.overlaps {
        0 => Ok(done(&seen, window)),
        _ => Err("two hold at once".into()),
    }
}

fn done(Turns { each, .. }: &Turns, window: Duration) -> Done {
    let nanos = |span: &Duration| span.as_nanos() as f64;
    let turns = each.iter().map(|task| task.turns as f64);
    let waits = each.iter().flat_map(|task| &task.waits).map(nanos);
    let mut figures = Sample::from([
        (Metric::Jain, jain(turns.clone())),
        (Metric::LongestWait, waits.fold(0.0, f64::max)),
    ]);
    let in_time: usize = each.iter().map(|task| task.in_time).sum();
    if in_time > 0 {
        figures.insert(Metric::Turn, nanos(&window) / in_time as f64);
    }
    let gaps = each.iter().flat_map(|task| &task.hand_overs);
    let mut gaps: Vec<f64> = gaps.map(nanos).collect();
    gaps.sort_by(f64::total_cmp);
    if !gaps.is_empty() {
        figures.insert(Metric::Gap, median(&gaps));
    }
    Done {
        operations: turns.sum(),
        figures,
        elsewhere: false,
    }
}
