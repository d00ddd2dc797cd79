//! The test that every lock should pass: tasks, each with a client of its own, increment a counter that nothing but the
//! lock protects. If two of them ever work at once, increments are lost and the sum is wrong.
//!
//! `cargo run --example counter [-- URL [TASKS [INCREMENTS]]]`, for instance with `--features redis` and
//! `redis://localhost:6379 20 50`.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use leasehold::{FencingToken, Lock, Result};
use tokio::task::{JoinSet, yield_now};
use tokio::time::Instant;

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "memory://".to_owned());
    let tasks: usize = args.next().map_or(Ok(10), |n| n.parse())?;
    let increments: u64 = args.next().map_or(Ok(100), |n| n.parse())?;

    let mut stores = vec![leasehold::connect(&url).await?];
    // Each memory:// is a world of its own: there all tasks share one.
    while stores.len() < tasks && !url.starts_with("memory:") {
        stores.push(leasehold::connect(&url).await?);
    }

    let counter = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let mut working = JoinSet::new();
    for store in stores.iter().cycle().take(tasks) {
        working.spawn(count(
            store.lock("examples/counter"),
            counter.clone(),
            increments,
        ));
    }
    let mut greatest = FencingToken::new(0);
    while let Some(done) = working.join_next().await {
        greatest = greatest.max(done??);
    }
    let took = begin.elapsed();

    let (sum, expected) = (counter.load(Relaxed), tasks as u64 * increments);
    println!(
        "on {}: {tasks} tasks, {increments} increments each",
        stores[0].guarantees().store()
    );
    println!(
        "sum {sum} of {expected}, in {:.3} s, greatest token {greatest}",
        took.as_secs_f64()
    );
    for store in stores {
        store.close(Duration::from_secs(1)).await?;
    }
    if sum == expected {
        Ok(())
    } else {
        Err("increments were lost".into())
    }
}

/// Increments under the lock, in three steps between which others could come. Returns the last token.
async fn count(lock: Lock, counter: Arc<AtomicU64>, increments: u64) -> Result<FencingToken> {
    let mut last = FencingToken::new(0);
    for _ in 0..increments {
        let guard = lock.acquire().await?;
        let seen = counter.load(Relaxed);
        yield_now().await;
        counter.store(seen + 1, Relaxed);
        last = guard.fencing_token();
        guard.release().await?;
    }
    Ok(last)
}
