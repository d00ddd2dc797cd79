//! Two accounts at once, taken in the same order by everybody: no deadlock, all or nothing, a token for each.
//!
//! `cargo run --example transfer [URL]`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use leasehold::{Result, Store};

#[tokio::main]
async fn main() -> Result<()> {
    let store = leasehold::connect(
        std::env::args()
            .nth(1)
            .unwrap_or_else(|| "memory://".to_owned()),
    )
    .await?
    .namespace("examples");
    // Each names the accounts in its own order, as they come.
    let (there, back) = tokio::join!(transfer(&store, 3, 7), transfer(&store, 7, 3));
    there?;
    back?;

    let seven = store.lock(("account", 7)).acquire().await?;
    let both = store.multi_lock([("account", 3), ("account", 7)]);
    let Err(refusal) = both.acquire_timeout(Duration::from_millis(100)).await else {
        unreachable!("seven is held")
    };
    println!("not both: {refusal}");
    seven.release().await?;
    store.close(Duration::from_secs(1)).await
}

async fn transfer(store: &Store, from: u32, to: u32) -> Result<()> {
    let both = store
        .multi_lock([("account", from), ("account", to)])
        .acquire()
        .await?;
    for (name, token) in both.tokens() {
        println!("{from} to {to}: UPDATE … WHERE account = '{name}' AND seen <= {token}");
    }
    both.release().await
}
