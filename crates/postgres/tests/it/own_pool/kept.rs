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

/// It is a request of another runtime that finds the pool empty.
#[test]
fn no_other_runtime_takes_a_connection_that_holds_need() {
    let [main, other] = [runtime(), runtime()];
    let server = main.block_on(server());
    for nth in 0..3 {
        let pool = main.block_on(async { Theirs::each(&server.url(), 1)[nth].clone() });
        let options = PoolOptions::new().timeout(Duration::from_millis(1_500));
        let (store, locks, guard, mut theirs) = main.block_on(bounded(async {
            let store = Arc::new(connected(|| pool.over(options.clone())).await);
            let locks = Store::new(store.clone()).ttl(Duration::from_secs(6));
            let guard = locks.lock("held").acquire().await.unwrap();
            // The program is the next to get what goes back.
            let pool = pool.clone();
            let theirs = tokio::spawn(async move { pool.get().await });
            (store, locks, guard, theirs)
        }));
        let answer = other.block_on(bounded(store.claim(&claim("other", WaitPolicy::Try))));
        refusal(answer, ErrorKind::Unavailable, &[pool.name()]);
        main.block_on(bounded(async {
            let end = "SELECT (extract(epoch FROM until) * 1000)::bigint FROM leasehold.place WHERE name = 'held'";
            let first = server.number(end).await.unwrap();
            until(async || {
                assert!(guard.is_valid() && !theirs.is_finished(), "it went back to {}", pool.name());
                server.number(end).await.unwrap() > first + 2_500
            })
            .await;
            theirs.abort();
            let _ = (&mut theirs).await;
            guard.release().await.unwrap();
        }));
        // Now nothing needs it there.
        let mine = claim("other", WaitPolicy::Try);
        other.block_on(bounded(async {
            until(async || store.claim(&mine).await.is_ok()).await;
            store.release(&mine, None).await.unwrap();
        }));
        main.block_on(bounded(cycle_again(&store)));
        drop((store, locks));
    }
}

#[test]
fn a_runtime_that_ends_gives_its_connection_back() {
    let main = runtime();
    let server = main.block_on(server());
    for nth in 0..3 {
        let pool = main.block_on(async { Theirs::each(&server.url(), 2)[nth].clone() });
        let store = Arc::new(main.block_on(pool.store()));
        // Each of the two keeps one for minutes.
        let long = Duration::from_secs(600);
        let held = ["main", "other"]
            .map(|name| Claim::new(name, Mode::Exclusive, WaitPolicy::Try, long, "test"));
        let other = runtime();
        main.block_on(bounded(granted(&store, &held[0])));
        other.block_on(bounded(granted(&store, &held[1])));
        assert!(main.block_on(lends_nothing(&pool, Duration::from_millis(300))));
        drop(other);
        main.block_on(within(25, async {
            let mut theirs = taken(&pool).await;
            assert_eq!(
                said(&mut theirs, "SELECT 'theirs'").await.as_deref(),
                Some("theirs")
            );
            drop(theirs);
            for claim in &held {
                store.release(claim, None).await.unwrap();
            }
            store.close().await.unwrap();
        }));
    }
}

#[tokio::test]
async fn a_connection_that_nothing_needs_goes_back() {
    bounded(async {
        let server = server().await;
        drop(client(&server).await);
        let each = Theirs::each(&server.url(), 1).map(async |pool| {
            let store = Arc::new(pool.store().await);
            let locks = Store::new(store.clone()).ttl(Duration::from_secs(600));
            let guard = locks.lock(pool.name()).acquire().await.unwrap();
            // Its next renewal is in some minutes.
            let is_kept = lends_nothing(&pool, Duration::from_secs(17)).await;
            assert!(is_kept, "{} has it", pool.name());
            guard.release().await.unwrap();
            drop(taken(&pool).await);
            cycle(&store, pool.name()).await;
        });
        futures_util::future::join_all(each).await;
    })
    .await;
}

/// A link that died without a word, as one that a firewall has forgotten. This pool asks a connection that comes back whether it lives.
#[tokio::test]
async fn a_dead_connection_is_no_place_of_the_pool_for_ever() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let url = server.url().replace(server.addr(), proxy.addr());
        let [.., pool] = Theirs::each(&url, 1);
        let store = connected(|| pool.over(patient().connections(1))).await;
        cycle(&store, "a").await;
        assert!(lends_nothing(&pool, Duration::from_millis(100)).await);
        proxy.freeze();
        until(async || pool.get().await.is_ok()).await;
        until(async || {
            let mine = claim("a", WaitPolicy::Try);
            store.claim(&mine).await.is_ok() && store.release(&mine, None).await.is_ok()
        })
        .await;
    })
    .await;
}
