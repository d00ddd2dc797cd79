//! What is done to a PostgreSQL server, beside what is done to every one.

use std::time::Duration;

use leasehold_testbed::Postgres;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};

use super::breaking::AGAIN;

/// Its processes that serve clients of the store.
const THEIRS: &str = "FROM pg_stat_activity WHERE usename = 'app'";

/// Ends about half of the connections. A server that is down or does not answer is left alone.
pub(super) async fn terminate(server: &Postgres, within: Duration) {
    let terminate = format!("SELECT pg_terminate_backend(pid) {THEIRS} AND random() < 0.5");
    let _ = timeout(within, server.query(&terminate)).await;
}

/// Stops one of its processes where it stands: in a verb, or in a client's transaction.
pub(super) async fn pause_backend(server: &Postgres, length: Duration) {
    let any = format!("SELECT pid {THEIRS} ORDER BY state = 'idle', random() LIMIT 1");
    let Ok(Ok(pid)) = timeout(length, server.number(&any)).await else {
        return;
    };
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return;
    };
    // It may have ended.
    let _ = kill_process(pid, Signal::STOP);
    sleep(length).await;
    let _ = kill_process(pid, Signal::CONT);
}

/// Takes no further connection of the clients, or two at most: those that they have stay.
pub(super) async fn refuse_connections(server: &Postgres, length: Duration, further: u64) {
    let limit = |most: String| async move {
        let alter = format!("ALTER ROLE app CONNECTION LIMIT {most}");
        timeout(length, server.query(&alter))
            .await
            .is_ok_and(|done| done.is_ok())
    };
    let number = timeout(length, server.number(&format!("SELECT count(*) {THEIRS}"))).await;
    let Ok(Ok(number)) = number else { return };
    if !limit((number + further).to_string()).await {
        return;
    }
    sleep(length).await;
    while !limit("-1".to_owned()).await {
        sleep(AGAIN).await;
    }
}

/// Ends it as its operator does who does not wait for clients.
pub(super) async fn stop(server: &Postgres, length: Duration) {
    server.stop().await.unwrap();
    sleep(length / 2).await;
    while server.start_again().await.is_err() {
        sleep(AGAIN).await;
    }
}

/// Deletes the places of a lock, and its line, or not. Says whether that is certain.
pub(super) async fn delete(server: &Postgres, lock: &str, line: bool) -> bool {
    let of = |table| format!("DELETE FROM leasehold.{table} WHERE name = '{lock}'");
    let sql = if line {
        [of("lines"), of("place")].join(";")
    } else {
        of("place")
    };
    server.query(&sql).await.is_ok()
}

/// What it still has of the locks, once what nobody uses is swept away: rows of places and lines, transactions, locks. Observers end by
/// themselves.
pub(super) async fn left(server: &Postgres) -> Vec<(String, u64, u64)> {
    let sweep =
        "UPDATE leasehold.lines SET used = used - interval '1 hour'; UPDATE leasehold.meta SET swept = '-infinity';
                 SELECT leasehold.sweep_1(1000, 1000)";
    let mut left = Vec::new();
    // Somebody may sweep just now.
    let _ = server.query(sweep).await;
    for (what, from) in [
        ("places", "leasehold.place"),
        ("lines", "leasehold.lines"),
        (
            "transactions",
            "pg_stat_activity WHERE usename = 'app' AND xact_start IS NOT NULL",
        ),
        ("advisory locks", "pg_locks WHERE locktype = 'advisory'"),
    ] {
        let number = server
            .number(&format!("SELECT count(*) FROM {from}"))
            .await
            .unwrap_or(u64::MAX);
        left.push((what.to_owned(), number, 0));
    }
    left
}
