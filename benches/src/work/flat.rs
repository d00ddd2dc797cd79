//! Very many cycles of one client: whether it keeps something of each.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::try_join_all;

use crate::meter::{Done, Meter, Sample, live_heap};
use crate::metric::Metric;
use crate::processes;
use crate::subject::{Result, Subject};

/// No name is used in two rounds.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// What the cycles of a round are of.
#[derive(Clone, Copy)]
pub struct Cycles {
    pub count: usize,
    /// So many go on beside one another.
    pub tasks: usize,
    /// Each of a name of its own; else each task has one.
    pub new_names: bool,
}

/// What it says of memory is of all cycles together.
pub async fn flat<S: Subject>(client: S, cycles: Cycles, meter: Meter) -> Result<Sample> {
    let Cycles { count, tasks, new_names } = cycles;
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    meter
        .around(async move {
            let (heap, memory) = (live_heap(), processes::own_memory()?);
            let task = async |task: usize| {
                for i in (first + task..first + count).step_by(tasks) {
                    client.cycle(&format!("flat {}", if new_names { i } else { task })).await?;
                }
                Result::Ok(())
            };
            try_join_all((0..tasks).map(task)).await?;
            let growth =
                [(Metric::HeapGrowth, live_heap() - heap), (Metric::MemoryGrowth, processes::own_memory()? - memory)];
            Ok(Done { operations: count as f64, figures: growth.into(), elsewhere: false })
        })
        .await
}
