//! Behind PgBouncer: what its modes let through, and what a store says of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::fs;
use std::time::Duration;

use leasehold_core::Store;
use leasehold_core::seam::{Backend, Renewal, WaitPolicy};
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

/// How often the server was asked for a statement that it had not prepared, or not any more: its log says so.
fn unprepared(server: &Server) -> usize {
    let files = fs::read_dir(server.data().join("log")).into_iter().flatten();
    let text: String = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap_or_default()).collect();
    text.lines().filter(|line| line.contains("prepared statement") && line.contains("does not exist")).count()
}

/// It let everything through when the store connected, so what is frequent is prepared. Now it hands out a connection for each transaction,
/// and the server forgets what was prepared in it: the verbs hear of that once, the renewals once, and nothing fails.
#[tokio::test]
async fn statements_that_one_in_another_mode_forgets_are_sent_unprepared() {
    bounded(async {
        let server = Server::start_with(&options().set("logging_collector", "on").set("log_min_messages", "error"))
            .await
            .unwrap();
        let extra = vec!["server_reset_query_always = 1".to_owned()];
        let session = PgBouncerOptions { pool_mode: "session", pool_size: 20, extra };
        let pooler = PgBouncer::start_with(server.addr(), &session).await.unwrap();
        let store = behind(&pooler, "").await;
        assert!(store.guarantees().pushed_wake, "it is as good as the server");
        // Later versions can keep what was prepared.
        let settings = pooler.console("SHOW CONFIG").await.unwrap();
        let keeps = settings.iter().any(|row| row[0].as_deref() == Some("max_prepared_statements"));
        let mode = format!("pool_mode = transaction{}", if keeps { "\nmax_prepared_statements = 0" } else { "" });
        let file = pooler.data().join("pgbouncer.ini");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("pool_mode = session", &mode)).unwrap();
        pooler.restart_with_data().await.unwrap();
        // Both of its kinds of connections broke, and it knows.
        until(async || store.mark().await.is_ok()).await;
        let nobody = claim("b", WaitPolicy::Try);
        let asked = [lease(&nobody, None)];
        until(async || matches!(store.renew(&asked).await.as_deref(), Ok([Renewal::Lost(_)]))).await;
        for _ in 0..5 {
            let mine = claim("a", WaitPolicy::Try);
            let token = granted(&store, &mine).await.token;
            assert!(matches!(renewed(&store, &mine, token).await, Renewal::Renewed(_)));
            store.release(&mine, None).await.unwrap();
        }
        until(async || unprepared(&server) == 2).await;
    })
    .await;
}
