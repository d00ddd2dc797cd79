//! Behind PgBouncer: what its modes let through, and what a store says of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::time::Duration;

use leasehold_core::Store;
use leasehold_core::seam::{Backend, WaitPolicy};
use leasehold_postgres::Postgres;
use leasehold_testbed::{PgBouncer, PgBouncerOptions};
use support::*;
use tokio::task::JoinSet;

async fn behind(pooler: &PgBouncer, words: &str) -> Postgres {
    let url = format!("{}?timeout=5000{words}", pooler.url());
    connected(|| Postgres::connect(&url)).await
}

#[tokio::test]
async fn it_is_noticed_that_nothing_is_heard_through_it() {
    bounded(async {
        let server = server().await;
        let pooler = PgBouncer::start(&server).await.unwrap();
        let deaf = behind(&pooler, "").await.guarantees();
        assert!(
            !deaf.pushed_wake && deaf.warnings.iter().any(|warning| warning.contains("bells=host:port")),
            "{deaf:?}"
        );
        let off = behind(&pooler, "&bells=off").await.guarantees();
        assert!(!off.pushed_wake && !off.warnings.iter().any(|warning| warning.contains("bells")), "{off:?}");
        let bells = behind(&pooler, &format!("&bells={}", server.addr())).await.guarantees();
        assert!(bells.pushed_wake && !bells.warnings.iter().any(|warning| warning.contains("bells")), "{bells:?}");
        // One that hands out a connection for as long as its client stays lets everything through.
        let options = PgBouncerOptions { pool_mode: "session", pool_size: 20, ..PgBouncerOptions::default() };
        let session = PgBouncer::start_with(server.addr(), &options).await.unwrap();
        assert!(behind(&session, "").await.guarantees().pushed_wake);
    })
    .await;
}

#[tokio::test]
async fn more_clients_than_it_has_connections_take_turns() {
    bounded(async {
        let server = server().await;
        for pool_mode in ["transaction", "statement"] {
            let options = PgBouncerOptions { pool_mode, pool_size: 2, ..PgBouncerOptions::default() };
            let pooler = PgBouncer::start_with(server.addr(), &options).await.unwrap();
            let mut tasks = JoinSet::new();
            for _ in 0..4 {
                let store = Store::new(behind(&pooler, "&bells=off").await).ttl(Duration::from_secs(20));
                tasks.spawn(async move {
                    for _ in 0..10 {
                        store.lock("a").acquire().await.unwrap().release().await.unwrap();
                    }
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.unwrap();
            }
        }
        assert_eq!(server.number("SELECT count(*) FROM leasehold.place").await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn one_that_is_restarted_is_connected_to_again() {
    bounded(async {
        let server = server().await;
        let pooler = PgBouncer::start(&server).await.unwrap();
        let store = behind(&pooler, "&bells=off").await;
        let mine = claim("a", WaitPolicy::Try);
        granted(&store, &mine).await;
        pooler.restart_with_data().await.unwrap();
        until(async || store.release(&mine, None).await.is_ok()).await;
    })
    .await;
}
