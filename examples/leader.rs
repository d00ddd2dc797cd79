//! One scheduler leads, the others stand by, and everybody can see who it is and where.
//!
//! `cargo run --example leader [URL]`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use leasehold::{Leader, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let store = leasehold::connect(
        std::env::args()
            .nth(1)
            .unwrap_or_else(|| "memory://".to_owned()),
    )
    .await?;
    let election = store.election("examples/scheduler");
    let mut observer = election.observe().await?;
    println!("{}", shown(observer.current()));

    let first = election.campaign("10.0.0.1:7000").await?;
    observer.changed().await?;
    println!("{}", shown(observer.current()));

    // It moves to another port. It is still the same leader, with the same token.
    first.proclaim("10.0.0.1:7001").await?;
    observer.changed().await?;
    println!("{}", shown(observer.current()));

    // The second stands by, and leads as soon as the first resigns, or dies.
    let second = tokio::spawn(election.campaign("10.0.0.2:7000"));
    first.resign().await?;
    let second = second
        .await
        .map_err(|e| leasehold::Error::new(leasehold::ErrorKind::Internal, e.to_string()))??;
    while observer
        .current()
        .is_none_or(|leader| leader.token != second.fencing_token())
    {
        observer.changed().await?;
    }
    println!("{}", shown(observer.current()));
    second.resign().await?;
    store.close(Duration::from_secs(1)).await
}

fn shown(leader: Option<&Leader>) -> String {
    match leader {
        Some(leader) => format!("{} leads, token {}", leader.value, leader.token),
        None => "nobody leads".to_owned(),
    }
}
