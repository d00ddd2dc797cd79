//! Very many cycles of one client: whether it keeps something of each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::sleep;

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

/// Of very many cycles on a busy machine some are not answered in time: one of a hundred at most.
pub fn some_may_fail(cycle: Result<()>, failed: &AtomicUsize, of: usize) -> Result<()> {
    cycle.or_else(|e| {
        if failed.fetch_add(1, Ordering::Relaxed) < of / 100 {
            Ok(())
        } else {
            Err(e)
        }
    })
}

/// What it says of memory is of all cycles together.
pub async fn flat<S: Subject>(client: S, cycles: Cycles, meter: Meter) -> Result<Sample> {
    let Cycles {
        count,
        tasks,
        new_names,
    } = cycles;
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    let (heap, memory, failed) = (live_heap(), processes::own_memory()?, AtomicUsize::new(0));
    let mut sample = meter
        .around(async {
            let task = async |task: usize| {
                for i in (first + task..first + count).step_by(tasks) {
                    let name = format!("flat {}", if new_names { i } else { task });
                    some_may_fail(client.cycle(&name).await, &failed, count)?;
                }
                Result::Ok(())
            };
            try_join_all((0..tasks).map(task)).await?;
            Ok(Done {
                operations: count as f64,
                ..Done::default()
            })
        })
        .await?;
    // An answer that nobody needs is memory until it has come: Redlock waits for a majority.
    let mut waits = 0..5;
    while live_heap() > heap && waits.next().is_some() {
        sleep(Duration::from_millis(20)).await;
    }
    sample.insert(Metric::HeapGrowth, live_heap() - heap);
    sample.insert(Metric::MemoryGrowth, processes::own_memory()? - memory);
    Ok(sample)
}
