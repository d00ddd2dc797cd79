//! Many read a catalog, one writes it; the writer goes on reading without letting another writer in between.
//!
//! `cargo run --example readers_writers [URL]`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use leasehold::{Owner, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let store = leasehold::connect(
        std::env::args()
            .nth(1)
            .unwrap_or_else(|| "memory://".to_owned()),
    )
    .await?;
    let catalog = store.rw_lock("examples/catalog").label("example");

    let (one, two) = (
        catalog.read().acquire().await?,
        catalog.read().acquire().await?,
    );
    println!(
        "two readers, tokens {} and {}",
        one.fencing_token(),
        two.fencing_token()
    );
    let Err(refusal) = catalog.write().try_acquire().await else {
        unreachable!("somebody reads")
    };
    println!("a writer now: {}", refusal.into_contention()?);
    one.release().await?;
    two.release().await?;

    let writer = catalog.write().acquire().await?;
    println!("a writer, token {}", writer.fencing_token());
    writer.downgrade().await?;
    let reader = catalog.read().try_acquire().await?;
    println!(
        "now it only reads, under the same token {}, and others may too",
        writer.fencing_token()
    );
    reader.release().await?;
    writer.release().await?;

    // An owner who writes may enter again to read. One who reads cannot enter to write: it would wait for itself.
    let mine = catalog.owner(&Owner::new());
    let reading = mine.read().acquire().await?;
    let Err(refusal) = mine.write().acquire().await else {
        unreachable!("no reader becomes a writer")
    };
    println!("a reader who wants to write: {refusal}");
    reading.release().await?;
    store.close(Duration::from_secs(1)).await
}
