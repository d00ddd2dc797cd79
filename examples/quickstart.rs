//! A first look, without a server: take a lock, use its token, stop when it is lost, give it back.
//!
//! `cargo run --example quickstart`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use leasehold::{FencingToken, Result, RunOutcome};

#[tokio::main]
async fn main() -> Result<()> {
    // Another store is another URL: redis://localhost:6379, etcd://localhost:2379, zookeeper://localhost:2181.
    let store = leasehold::connect("memory://").await?.namespace("billing");
    // A recipe: nothing is sent yet.
    let lock = store
        .lock(("orders", 42))
        .ttl(Duration::from_secs(10))
        .label("quickstart");

    // Waits until the lock is free. Bind the guard to a name: `let _ = …` would release at once.
    let guard = lock.acquire().await?;
    println!(
        "held: token {}, good for {:.1} s",
        guard.fencing_token(),
        guard.remaining().as_secs_f64()
    );

    // A try now names the holder.
    let Err(refusal) = lock.try_acquire().await else {
        unreachable!("the guard above still lives")
    };
    println!("a second try: {}", refusal.into_contention()?);

    // The work, ended early if the lock is lost. The guard renews itself meanwhile.
    tokio::select! {
        loss = guard.lost() => println!("lost: {loss}"),
        () = write(guard.fencing_token()) => println!("written"),
    }
    guard.release().await?;

    // The same with a body: it is dropped if the lock is lost, and the lock is released when it ends.
    let token = lock
        .run(async |held| {
            write(held.fencing_token()).await;
            held.fencing_token()
        })
        .await?;
    println!("written again, under the greater token {token}");

    // A job that should not run twice at a time.
    match lock
        .try_run(async |held| write(held.fencing_token()).await)
        .await?
    {
        RunOutcome::Done(()) => println!("the job ran"),
        RunOutcome::Skipped(who) => println!("the job was skipped: {who}"),
    }

    // A program that just returns here drops what is in the background, and its locks stay taken until their leases end.
    store.close(Duration::from_secs(1)).await
}

/// Stands for a request to a resource that refuses a smaller token than it has seen.
async fn write(_token: FencingToken) {
    tokio::time::sleep(Duration::from_millis(20)).await;
}
