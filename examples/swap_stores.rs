//! One story on any store: the code below knows only `DistributedLock`, the URL decides where the lock lives.
//!
//! `cargo run --example swap_stores` needs no server;
//! `cargo run --example swap_stores --features redis -- redis://localhost:6379` tells the same on Redis.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::{DistributedLock, Result, Store};

const NAME: &str = "examples/swap_stores";

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "memory://".to_owned());
    // Two clients, as two machines would have. A memory store lives in one process, so there they share one.
    let ours = leasehold::connect(&url).await?;
    let theirs = if url.starts_with("memory:") {
        ours.clone()
    } else {
        leasehold::connect(&url).await?
    };
    println!("on {}", ours.guarantees().store());
    let alice = Arc::new(ours.lock(NAME).label("alice"));
    let bob = Arc::new(theirs.lock(NAME).label("bob"));
    let told = story(alice, bob, &ours).await;
    // Also after an error: what is still held is given back now, and not when its lease ends.
    ours.close(Duration::from_secs(1)).await?;
    theirs.close(Duration::from_secs(1)).await?;
    told
}

/// Nothing in here depends on the store. `operator` is for what no holder does: looking on, and evicting.
async fn story(
    alice: Arc<dyn DistributedLock>,
    bob: Arc<dyn DistributedLock>,
    operator: &Store,
) -> Result<()> {
    let first = alice.acquire().await?;
    let token = first.fencing_token();
    println!("1. alice holds the lock, token {token}");

    let Err(refusal) = bob.try_acquire().await else {
        unreachable!("alice holds it")
    };
    println!("2. bob tries, and is told: {}", refusal.into_contention()?);

    let hand_over = async {
        while operator.lock(NAME).inspect().await?.waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("3. bob stands in line, and alice releases");
        first.release().await
    };
    let (second, released) = tokio::join!(bob.acquire(), hand_over);
    released?;
    let (second, before) = (second?, token);
    let token = second.fencing_token();
    assert!(token > before, "a later holder has a greater token");
    println!("4. bob holds the lock, and his token is greater: {token}");

    // Only the hold with this very token is ended: never the next one by mistake.
    assert!(operator.evict(NAME, token).await?, "bob holds it");
    println!(
        "5. the operator evicts bob, who hears of it: {}",
        second.lost().await
    );
    let Err(verdict) = second.release().await else {
        unreachable!("it was not his any more")
    };
    println!("6. bob's release says that he was not protected to the end: {verdict}");

    let third = alice.acquire().await?;
    assert!(third.fencing_token() > token, "also after an eviction");
    println!(
        "7. alice holds the lock again, token {}",
        third.fencing_token()
    );
    let end = third.lost();
    third.release().await?;
    println!("8. her hold has ended: {}", end.await);
    Ok(())
}
