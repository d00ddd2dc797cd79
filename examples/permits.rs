//! At most three exports at a time, over all machines; a crash gives its permit back.
//!
//! `cargo run --example permits [URL]`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Result, Semaphore};

static RUNNING: AtomicU32 = AtomicU32::new(0);

#[tokio::main]
async fn main() -> Result<()> {
    let store = leasehold::connect(
        std::env::args()
            .nth(1)
            .unwrap_or_else(|| "memory://".to_owned()),
    )
    .await?;
    let exports = store.semaphore("examples/exports", 3);

    let jobs: Vec<_> = (0..6)
        .map(|n| tokio::spawn(export(n, exports.clone())))
        .collect();
    for job in jobs {
        job.await
            .map_err(|e| leasehold::Error::new(leasehold::ErrorKind::Internal, e.to_string()))??;
    }

    // One job may take several. All of them is a way to be alone.
    let all = exports.permits(3).acquire().await?;
    println!(
        "all three permits are held: {}",
        exports.inspect().await?.holders.len()
    );
    all.release().await?;

    // Everybody must say the same number: another one is a mistake, and is told.
    let one = exports.acquire().await?;
    let Err(mistake) = store.semaphore("examples/exports", 5).try_acquire().await else {
        unreachable!("3 is not 5")
    };
    println!("a deployment that says five: {mistake}");
    one.release().await?;
    store.close(Duration::from_secs(1)).await
}

async fn export(n: u32, exports: Semaphore) -> Result<()> {
    let permit = exports.acquire().await?;
    println!(
        "export {n} runs, {} at a time",
        RUNNING.fetch_add(1, Ordering::SeqCst) + 1
    );
    tokio::time::sleep(Duration::from_millis(20)).await;
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    permit.release().await
}
