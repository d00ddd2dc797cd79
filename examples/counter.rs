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

use leasehold::{FencingToken, Lock, Result};
use tokio::task::{JoinSet, yield_now};
use tokio::time::Instant;

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "memory://".to_owned());
    let tasks: u64 = args.next().map_or(Ok(10), |n| n.parse())?;
    let increments: u64 = args.next().map_or(Ok(100), |n| n.parse())?;

    let first = leasehold::connect(&url).await?;
    let mut locks = vec![first.lock("examples/counter")];
    while (locks.len() as u64) < tasks {
        // Each memory:// is a world of its own: there all tasks share one.
        let store = if url.starts_with("memory:") { first.clone() } else { leasehold::connect(&url).await? };
        locks.push(store.lock("examples/counter"));
    }

    let counter = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let mut working = JoinSet::new();
    for lock in locks.into_iter().take(usize::try_from(tasks)?) {
        working.spawn(count(lock, counter.clone(), increments));
    }
    let mut greatest = FencingToken::new(0);
    while let Some(done) = working.join_next().await {
        greatest = greatest.max(done??);
    }
    let took = begin.elapsed();

    let (sum, expected) = (counter.load(Relaxed), tasks * increments);
    println!("on {}: {tasks} tasks, {increments} increments each", first.guarantees().store);
    println!("sum {sum} of {expected}, in {:.3} s, greatest token {greatest}", took.as_secs_f64());
    if sum == expected { Ok(()) } else { Err("increments were lost".into()) }
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
