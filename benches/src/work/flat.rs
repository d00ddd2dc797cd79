//! Very many cycles of one client: whether it keeps something of each.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::meter::{Done, Meter, Sample, live_heap};
use crate::metric::Metric;
use crate::processes;
use crate::subject::{Result, Subject};

/// No name is used in two rounds.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// `count` cycles of one name, or of a new one each. What it says of memory is of all of them together.
pub async fn flat<S: Subject>(client: S, count: usize, new_names: bool, meter: Meter) -> Result<Sample> {
    let first = NEXT.fetch_add(count, Ordering::Relaxed);
    meter
        .around(async move {
            let (heap, memory) = (live_heap(), processes::own_memory()?);
            for i in 0..count {
                match new_names {
                    true => client.cycle(&format!("flat {}", first + i)).await?,
                    false => client.cycle("flat").await?,
                }
            }
            let growth =
                [(Metric::HeapGrowth, live_heap() - heap), (Metric::MemoryGrowth, processes::own_memory()? - memory)];
            Ok(Done { operations: count as f64, figures: growth.into(), elsewhere: false })
        })
        .await
}
