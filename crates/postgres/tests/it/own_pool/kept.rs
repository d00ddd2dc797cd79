//! The connection that is kept: when it goes back, and when it does not.

use leasehold_core::backend::{Claim, Mode};

use super::*;

/// A claim that waits for a row.
const BLOCKED: &str = "FROM pg_stat_activity WHERE usename = 'app' AND wait_event_type = 'Lock' AND query LIKE '%claim_1%'";

/// A transaction that has locked the row of this name.
async fn blocker(server: &Server, name: &str) -> leasehold_postgres::client::Client {
    let blocker = program(server).await;
    let lock = format!("BEGIN; SELECT FROM leasehold.lines WHERE name = '{name}' FOR UPDATE");
    blocker.batch_execute(&lock).await.unwrap();
    blocker
}

/// The process whose last statement called this function.
async fn served_by(server: &Server, function: &str) -> u64 {
    let pid = format!(
        "SELECT pid FROM pg_stat_activity WHERE usename = 'app' AND query LIKE '%{function}%'"
    );
    server.number(&pid).await.unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// Whether the program waits for a connection of the pool in vain, as long as this.
async fn lends_nothing(pool: &Theirs, time: Duration) -> bool {
    tokio::time::timeout(time, pool.get()).await.is_err()
}

/// The program has more tasks that want connections than the pool has.
#[tokio::test]
async fn a_connection_that_breaks_takes_no_other_one_along() {
    bounded(async {
        let server = server().await;
        for pool in Theirs::each(&server.url(), 2) {
            let store = Arc::new(pool.store().await);
            let held = claim("held", WaitPolicy::Try);
            let token = granted(&store, &held).await.token;
            cycle(&store, "line").await;
            let blocker = blocker(&server, "line").await;
            let (kept, mut waits) = loop {
                let claims = store.clone();
                let waiting =
                    tokio::spawn(
                        async move { claims.claim(&claim("line", WaitPolicy::Try)).await },
                    );
                let blocked = format!("SELECT count(*) {BLOCKED}");
                until(async || waiting.is_finished() || server.number(&blocked).await.unwrap() > 0)
                    .await;
                // Another connection serves meanwhile, and is kept.
                cycle(&store, "other").await;
                let kept = served_by(&server, "release_1").await;
                let mut waits: JoinSet<_> = (0..2)
                    .map(|_| {
                        let pool = pool.clone();
                        async move { pool.get().await.unwrap() }
                    })
                    .collect();
                server
                    .query(&format!("SELECT pg_terminate_backend(pid) {BLOCKED}"))
                    .await
                    .unwrap();
                if kind(waiting.await.unwrap()) == ErrorKind::Ambiguous {
                    break (kept, waits);
                }
                // It did not wait that long.
                waits.shutdown().await;
            };
            // The program has the place of the broken one, and no other.
            let theirs = waits.join_next().await.unwrap().unwrap();
            let more = tokio::time::timeout(Duration::from_millis(300), waits.join_next()).await;
            assert!(more.is_err(), "{} has two", pool.name());
            let renewal = renewed(&store, &held, token).await;
            assert!(matches!(renewal, Renewal::Renewed(_)), "{renewal:?}");
            assert_eq!(served_by(&server, "renew_1").await, kept, "{}", pool.name());
            blocker.batch_execute("COMMIT").await.unwrap();
            store.release(&held, None).await.unwrap();
            drop((theirs, waits));
        }
    })
    .await;
}
