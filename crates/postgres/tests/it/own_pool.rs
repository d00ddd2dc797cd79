//! Over pools that a program has already: what they lend, what they get back, and what becomes of holds when they lend nothing.

mod kept;

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use bb8_postgres::PostgresConnectionManager;
use bb8_postgres::bb8;
use deadpool_postgres::Manager;
use leasehold_core::backend::{Backend, ClaimedAll, Renewal, WaitPolicy, async_trait};
use leasehold_core::{ErrorKind, Result, Store};
use leasehold_postgres::client::{Config as Settings, NoTls};
use leasehold_postgres::pool::{ConnectionPool, PoolError, PooledConnection};
use leasehold_postgres::{Config, PoolOptions, Postgres};
use leasehold_testbed::{PgBouncer, PgBouncerOptions, Proxy};
use sqlx_postgres::{PgPool, PgPoolOptions};
use tokio::task::JoinSet;

/// A pool of one of the kinds that have an adapter.
#[derive(Clone, Debug)]
enum Theirs {
    Deadpool(deadpool_postgres::Pool),
    Bb8(bb8::Pool<PostgresConnectionManager<NoTls>>),
    Sqlx(PgPool),
}

impl Theirs {
    /// One pool of each kind.
    fn each(url: &str, size: u32) -> [Theirs; 3] {
        let settings: Settings = url.parse().unwrap();
        let manager = PostgresConnectionManager::new(settings.clone(), NoTls);
        let deadpool = deadpool_postgres::Pool::builder(Manager::new(settings, NoTls));
        [
            Theirs::Deadpool(deadpool.max_size(size as usize).build().unwrap()),
            Theirs::Bb8(bb8::Pool::builder().max_size(size).build_unchecked(manager)),
            Theirs::Sqlx(
                PgPoolOptions::new()
                    .max_connections(size)
                    .connect_lazy(url)
                    .unwrap(),
            ),
        ]
    }

    async fn over(&self, options: PoolOptions) -> Result<Postgres> {
        match self.clone() {
            Theirs::Deadpool(pool) => Postgres::with_pool(pool, options).await,
            Theirs::Bb8(pool) => Postgres::with_pool(pool, options).await,
            Theirs::Sqlx(pool) => Postgres::with_pool(pool, options).await,
        }
    }

    async fn store(&self) -> Postgres {
        connected(|| self.over(patient())).await
    }

    fn name(&self) -> &'static str {
        match self {
            Theirs::Deadpool(pool) => pool.name(),
            Theirs::Bb8(pool) => pool.name(),
            Theirs::Sqlx(pool) => pool.name(),
        }
    }
}

#[async_trait]
impl ConnectionPool for Theirs {
    fn name(&self) -> &'static str {
        "a pool"
    }

    async fn get(&self) -> std::result::Result<Box<dyn PooledConnection>, PoolError> {
        match self {
            Theirs::Deadpool(pool) => ConnectionPool::get(pool).await,
            Theirs::Bb8(pool) => ConnectionPool::get(pool).await,
            Theirs::Sqlx(pool) => ConnectionPool::get(pool).await,
        }
    }
}

/// Where nothing fails, a request that takes long says only that the machine is busy.
fn patient() -> PoolOptions {
    PoolOptions::new().timeout(Duration::from_secs(5))
}

/// A connection for the program itself.
async fn taken(pool: &dyn ConnectionPool) -> Box<dyn PooledConnection> {
    pool.get().await.unwrap()
}

/// What a statement of the program returns in the first column of the first row.
async fn said(connection: &mut Box<dyn PooledConnection>, sql: &str) -> Option<String> {
    let rows = connection.simple_query(sql).await.unwrap();
    rows.into_iter()
        .next()
        .and_then(|row| row.into_iter().next().flatten())
}

const PID: &str = "SELECT pg_backend_pid()";

async fn places(server: &Server, schema: &str) -> u64 {
    let count = format!("SELECT count(*) FROM {schema}.place");
    server.number(&count).await.unwrap()
}

/// The number of connections of the role of the store.
async fn clients(server: &Server) -> u64 {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'";
    server.number(count).await.unwrap()
}

async fn cycle(store: &Postgres, name: &str) {
    let mine = claim(name, WaitPolicy::Try);
    let token = granted(store, &mine).await.token;
    let renewal = renewed(store, &mine, token).await;
    assert!(matches!(renewal, Renewal::Renewed(_)), "{renewal:?}");
    store.release(&mine, None).await.unwrap();
}

fn refusal<T: Debug>(answer: Result<T>, kind: ErrorKind, words: &[&str]) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// Fair waiters, readers, semaphores and holds that outlive their first lease, all by one connection.
#[tokio::test]
async fn one_connection_of_each_kind_of_pool_is_enough_for_everything() {
    bounded(async {
        let server = server().await;
        let direct = client(&server).await;
        for pool in Theirs::each(&server.url(), 1) {
            let store = pool.store().await;
            assert!(format!("{store:?}").contains(pool.name()), "{store:?}");
            let gives = store.guarantees();
            let warnings = gives.warnings().join(" ");
            assert!(!gives.pushed_wake() && !warnings.contains("otifications"), "{gives:?}");
            for name in ["ä\\'", "🔒 \u{1}", "plain"] {
                let mine = claim(name, WaitPolicy::Try);
                granted(&store, &mine).await;
                let who = busy(&direct, &claim(name, WaitPolicy::Try)).await;
                assert_eq!(who.label.as_deref(), Some("test"), "{name}");
                assert_eq!(store.list(name, None, 9).await.unwrap(), [name.into()]);
                store.release(&mine, None).await.unwrap();
            }
            let store = Store::new(store).ttl(Duration::from_millis(900));
            let held = store.lock("held").acquire().await.unwrap();
            let end = "SELECT (extract(epoch FROM until) * 1000)::bigint FROM leasehold.place WHERE name = 'held'";
            let first = server.number(end).await.unwrap();
            let mut all = JoinSet::new();
            for nth in 0..24 {
                let store = store.clone();
                all.spawn(async move {
                    let guard = match nth % 3 {
                        0 => store.lock("a").acquire().await.unwrap(),
                        1 => store.rw_lock("b").read().acquire().await.unwrap(),
                        _ => store.semaphore("c", 2).acquire().await.unwrap(),
                    };
                    guard.release().await.unwrap();
                });
            }
            while let Some(served) = all.join_next().await {
                served.unwrap();
            }
            until(async || {
                assert!(held.is_valid(), "it ended over {}", pool.name());
                server.number(end).await.unwrap() > first + 2_000
            })
            .await;
            held.release().await.unwrap();
            store.close(Duration::from_secs(10)).await.unwrap();
            // The pool has its connection back, and nobody has left anything in the session.
            let mut theirs = taken(&pool).await;
            for count in ["pg_prepared_statements", "pg_listening_channels()", "pg_cursors"] {
                let count = format!("SELECT count(*) FROM {count}");
                assert_eq!(said(&mut theirs, &count).await.as_deref(), Some("0"), "{count}");
            }
        }
    })
    .await;
}

/// Counts connections on the server while many names are held and many tasks wait.
#[tokio::test]
async fn no_more_connections_are_used_than_the_guarantees_say() {
    bounded(async {
        let server = server().await;
        drop(client(&server).await);
        until(async || clients(&server).await == 0).await;
        let url = url(&server, "");
        let [deadpool, ..] = Theirs::each(&server.url(), 2);
        // These would lend more.
        let [_, bb8, sqlx] = Theirs::each(&server.url(), 8);
        let ways = [None, Some(deadpool), Some(bb8), Some(sqlx)];
        for way in ways {
            let store = match &way {
                None => connected(|| Postgres::connect(&url)).await,
                Some(pool) => pool.store().await,
            };
            let name = way.as_ref().map_or("its own", Theirs::name);
            let says = store.guarantees().connections().unwrap();
            let store = Store::new(store).ttl(Duration::from_secs(30));
            let mut holds = JoinSet::new();
            for nth in 0..1_000 {
                let lock = store.lock(("held", nth));
                holds.spawn(async move { lock.acquire().await.unwrap() });
            }
            let mut most = 0;
            let mut held = Vec::new();
            while let Some(guard) = holds.join_next().await {
                held.push(guard.unwrap());
                if held.len() % 20 == 0 {
                    most = most.max(clients(&server).await);
                }
            }
            let mut waits = JoinSet::new();
            for _ in 0..100 {
                let lock = store.lock(("held", 0));
                waits.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
            }
            while store
                .lock(("held", 0))
                .inspect()
                .await
                .unwrap()
                .waiters
                .len()
                < 100
            {
                most = most.max(clients(&server).await);
            }
            held.clear();
            // Some are served; without notifications all would take long.
            for _ in 0..5 {
                waits.join_next().await.unwrap().unwrap();
                most = most.max(clients(&server).await);
            }
            waits.shutdown().await;
            println!("{name}: {most} connections, and {says:?} are said");
            assert!(most <= says.at_most as u64, "{name}: {most}");
            store.close(Duration::from_secs(30)).await.unwrap();
            drop((store, way));
            until(async || clients(&server).await == 0).await;
        }
    })
    .await;
}

/// After its work it keeps one connection; the pool has all others back.
#[tokio::test]
async fn one_connection_is_kept_and_the_others_go_back() {
    bounded(async {
        let server = server().await;
        for pool in Theirs::each(&server.url(), 3) {
            let store = pool.over(patient().connections(3)).await.unwrap();
            let claims: Vec<_> = (0..40)
                .map(|n| claim(&format!("{n}"), WaitPolicy::Try))
                .collect();
            let all = claims.iter().map(|claim| store.claim(claim));
            for claimed in futures_util::future::join_all(all).await {
                claimed.unwrap();
            }
            // The program has the two others at once.
            let one = taken(&pool).await;
            let two = taken(&pool).await;
            let third = tokio::time::timeout(Duration::from_millis(300), pool.get()).await;
            assert!(third.is_err(), "{} has three", pool.name());
            // And the store goes on with what it has.
            cycle(&store, "a").await;
            drop((one, two));
            store.close().await.unwrap();
            let all = [taken(&pool).await, taken(&pool).await, taken(&pool).await];
            drop(all);
        }
    })
    .await;
}

#[tokio::test]
async fn the_programs_own_work_starves_no_renewal() {
    bounded(async {
        let server = server().await;
        for pool in Theirs::each(&server.url(), 2) {
            let store = Store::new(pool.store().await).ttl(Duration::from_millis(900));
            let held = store.lock("held").acquire().await.unwrap();
            // Its transactions wait for this very lock.
            let mut theirs = taken(&pool).await;
            theirs.simple_query("BEGIN").await.unwrap();
            let waits: JoinSet<_> = (0..20)
                .map(|_| {
                    let pool = pool.clone();
                    async move { drop(pool.get().await) }
                })
                .collect();
            let end = "SELECT (extract(epoch FROM until) * 1000)::bigint FROM leasehold.place WHERE name = 'held'";
            let first = server.number(end).await.unwrap();
            until(async || {
                assert!(held.is_valid(), "it ended over {}", pool.name());
                server.number(end).await.unwrap() > first + 2_500
            })
            .await;
            let other = store.lock("other").acquire().await.unwrap();
            other.release().await.unwrap();
            held.release().await.unwrap();
            theirs.simple_query("COMMIT").await.unwrap();
            drop((theirs, waits));
        }
    })
    .await;
}

#[tokio::test]
async fn a_pool_that_lends_nothing_is_named_in_time() {
    bounded(async {
        let server = server().await;
        let short = PoolOptions::new().timeout(Duration::from_millis(200));
        for pool in Theirs::each(&server.url(), 1) {
            let theirs = taken(&pool).await;
            let answer = pool.over(short.clone()).await;
            refusal(answer, ErrorKind::Unavailable, &[pool.name(), "200ms"]);
            drop(theirs);
            pool.over(short.clone())
                .await
                .unwrap()
                .close()
                .await
                .unwrap();
            // Later, when the kept connection has ended and the program has the only one.
            let store = pool.store().await;
            cycle(&store, "a").await;
            server
                .query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'",
                )
                .await
                .unwrap();
            cycle_again(&store).await;
            store.close().await.unwrap();
        }
        // Nobody listens there, and the secret is in no error.
        let url = server.url();
        server.stop().await.unwrap();
        for pool in Theirs::each(&url, 1) {
            let answer = pool.over(short.clone()).await;
            let words = words_without(&[Server::PASSWORD], answer);
            assert!(
                words.contains("Unavailable") && words.contains(pool.name()),
                "{words}"
            );
            // sqlx tries again for longer than this.
            let says_why = words.contains("Connection refused");
            assert!(says_why || pool.name().contains("sqlx"), "{words}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_reason_of_a_server_that_refuses_the_login_is_told() {
    bounded(async {
        let server = server().await;
        let url = server.url().replace(Server::PASSWORD, "wrong");
        for pool in Theirs::each(&url, 1) {
            let answer = pool.over(patient()).await;
            refusal(answer, ErrorKind::Denied, &[pool.name(), "28P01"]);
        }
    })
    .await;
}

async fn cycle_again(store: &Postgres) {
    until(async || {
        let mine = claim("again", WaitPolicy::Try);
        store.claim(&mine).await.is_ok() && store.release(&mine, None).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_closed_pool_is_told_and_its_close_waits_for_no_store() {
    bounded(async {
        let server = server().await;
        for pool in Theirs::each(&server.url(), 2) {
            let store = pool.store().await;
            let held = claim(pool.name(), WaitPolicy::Try);
            let token = granted(&store, &held).await.token;
            match &pool {
                Theirs::Deadpool(pool) => pool.close(),
                // It has no end.
                Theirs::Bb8(_) => continue,
                Theirs::Sqlx(pool) => pool.close().await,
            }
            let renewal = renewed_or(&store, &held, token).await;
            match &pool {
                // The connection that is kept is not the pool's any more.
                Theirs::Deadpool(_) => assert!(matches!(renewal, Ok(Renewal::Renewed(_)))),
                _ => refusal(renewal, ErrorKind::Unavailable, &[pool.name(), "closed"]),
            }
            refusal(
                pool.over(patient()).await,
                ErrorKind::Unavailable,
                &[pool.name(), "closed"],
            );
            drop(store);
            until(async || clients(&server).await == 0).await;
        }
    })
    .await;
}

async fn renewed_or(
    store: &Postgres,
    claim: &leasehold_core::backend::Claim,
    token: leasehold_core::FencingToken,
) -> Result<Renewal> {
    let renewals = store.renew(&[lease(claim, token)]).await?;
    Ok(renewals.into_iter().next().unwrap())
}

/// A claim in somebody's transaction would be taken back with it, and a commit of ours would commit what is not ours.
#[tokio::test]
async fn a_connection_that_was_left_in_a_transaction_is_closed() {
    bounded(async {
        let server = server().await;
        let observer = client(&server).await;
        server
            .query("CREATE TABLE public.theirs (); GRANT ALL ON public.theirs TO app")
            .await
            .unwrap();
        for statement in [
            "INSERT INTO public.theirs DEFAULT VALUES",
            "SELECT 1",
            "SELECT 1/0",
        ] {
            for pool in Theirs::each(&server.url(), 1) {
                let mut theirs = taken(&pool).await;
                let pid = said(&mut theirs, PID).await;
                let _ = theirs.simple_query("BEGIN").await.unwrap();
                let _ = theirs.simple_query(statement).await;
                drop(theirs);
                let store = pool.store().await;
                let mine = claim("a", WaitPolicy::Try);
                granted(&store, &mine).await;
                busy(&observer, &claim("a", WaitPolicy::Try)).await;
                store.release(&mine, None).await.unwrap();
                assert_eq!(
                    server
                        .number("SELECT count(*) FROM public.theirs")
                        .await
                        .unwrap(),
                    0
                );
                store.close().await.unwrap();
                assert_ne!(
                    said(&mut taken(&pool).await, PID).await,
                    pid,
                    "{}",
                    pool.name()
                );
            }
        }
    })
    .await;
}

/// What the program sets for a session is its own: it changes no request, and is as it was.
#[tokio::test]
async fn settings_of_a_session_change_no_request_and_stay() {
    bounded(async {
        let server = server().await;
        let observer = client(&server).await;
        let hostile = "CREATE SCHEMA hostile AUTHORIZATION app; SET ROLE app;
            CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.now() - interval ''1 hour''';
            CREATE FUNCTION hostile.eq(timestamptz, timestamptz) RETURNS bool LANGUAGE sql AS 'SELECT false';
            CREATE OPERATOR hostile.= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = hostile.eq)";
        server.query(hostile).await.unwrap();
        let settings = [
            ("search_path", "hostile, pg_catalog"),
            ("default_transaction_isolation", "serializable"),
            ("bytea_output", "escape"),
            ("standard_conforming_strings", "off"),
            ("application_name", "theirs"),
            ("statement_timeout", "1h"),
            ("synchronous_commit", "off"),
            ("array_nulls", "off"),
        ];
        for pool in Theirs::each(&server.url(), 1) {
            let mut theirs = taken(&pool).await;
            let pid = said(&mut theirs, PID).await;
            for (name, value) in settings {
                let set = format!("SELECT pg_catalog.set_config('{name}', '{value}', false)");
                theirs.simple_query(&set).await.unwrap();
            }
            let before = said(&mut theirs, "SELECT string_agg(name || setting, ' ' ORDER BY name) FROM pg_settings WHERE source = 'session'").await;
            drop(theirs);
            let store = pool.store().await;
            let mine = claim("ä\\'", WaitPolicy::Try);
            let token = granted(&store, &mine).await.token;
            busy(&observer, &claim("ä\\'", WaitPolicy::Try)).await;
            let who = busy(&store, &claim("ä\\'", WaitPolicy::Try)).await;
            assert_eq!(who.label.as_deref(), Some("test"));
            assert!(matches!(renewed(&store, &mine, token).await, Renewal::Renewed(_)));
            store.release(&mine, None).await.unwrap();
            let both = ["b", "c"].map(|name| claim(name, WaitPolicy::Try));
            assert!(matches!(store.claim_all(&both).await, Ok(ClaimedAll::Granted(_))));
            for claim in &both {
                store.release(claim, None).await.unwrap();
            }
            store.close().await.unwrap();
            let mut theirs = taken(&pool).await;
            let after = said(&mut theirs, "SELECT string_agg(name || setting, ' ' ORDER BY name) FROM pg_settings WHERE source = 'session'").await;
            assert_eq!((said(&mut theirs, PID).await, after), (pid, before), "{}", pool.name());
        }
    })
    .await;
}

/// In another encoding the same bytes are another name.
#[tokio::test]
async fn a_connection_in_another_encoding_is_closed() {
    bounded(async {
        let server = server().await;
        let observer = client(&server).await;
        for pool in Theirs::each(&server.url(), 1) {
            let mut theirs = taken(&pool).await;
            theirs
                .simple_query("SET client_encoding = 'LATIN1'")
                .await
                .unwrap();
            drop(theirs);
            let store = pool.store().await;
            let mine = claim("ä", WaitPolicy::Try);
            granted(&store, &mine).await;
            busy(&observer, &claim("ä", WaitPolicy::Try)).await;
            store.release(&mine, None).await.unwrap();
            store.close().await.unwrap();
        }
    })
    .await;
}

/// A pool in which every connection is unfit says so, and does not go on for ever.
#[tokio::test]
async fn a_pool_whose_connections_are_all_in_transactions_is_told() {
    struct Always(Theirs);

    #[async_trait]
    impl ConnectionPool for Always {
        fn name(&self) -> &'static str {
            "this pool"
        }

        async fn get(&self) -> std::result::Result<Box<dyn PooledConnection>, PoolError> {
            let mut connection = self.0.get().await?;
            connection.simple_query("BEGIN").await?;
            Ok(connection)
        }
    }

    bounded(async {
        let server = server().await;
        for pool in Theirs::each(&server.url(), 1) {
            let answer = Postgres::with_pool(Always(pool), patient()).await;
            refusal(
                answer,
                ErrorKind::Unavailable,
                &["this pool", "open transaction"],
            );
        }
    })
    .await;
}

/// A pool whose program has executed a statement in each connection, and left the session so.
#[derive(Clone)]
struct Left {
    pool: Theirs,
    statement: Arc<Mutex<String>>,
}

impl Left {
    fn new(pool: Theirs) -> Left {
        Left {
            pool,
            statement: Arc::default(),
        }
    }

    /// The store needs another connection from now on, and in each one this was executed.
    async fn leaves(&self, server: &Server, statement: &str) {
        statement.clone_into(&mut self.statement.lock().unwrap());
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'";
        server.query(end).await.unwrap();
    }
}

#[async_trait]
impl ConnectionPool for Left {
    fn name(&self) -> &'static str {
        "this pool"
    }

    async fn get(&self) -> std::result::Result<Box<dyn PooledConnection>, PoolError> {
        let mut connection = self.pool.get().await?;
        let statement = self.statement.lock().unwrap().clone();
        connection.simple_query(&statement).await?;
        Ok(connection)
    }
}

/// Each request of it would be refused, as long as the store has it.
#[tokio::test]
async fn a_session_of_another_role_or_that_may_not_write_is_refused() {
    bounded(async {
        let server = server().await;
        let ask = "GRANT EXECUTE ON FUNCTION pg_control_system() TO app; REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC";
        server.query(&format!("{ask}; CREATE ROLE other; GRANT other TO app")).await.unwrap();
        for pool in Theirs::each(&server.url(), 1) {
            let left = Left::new(pool.clone());
            let store = connected(|| Postgres::with_pool(left.clone(), patient())).await;
            let mine = claim("a", WaitPolicy::Try);
            for (statement, why) in [
                ("SET ROLE other", "of the role other"),
                ("SET default_transaction_read_only = on", "read-only"),
            ] {
                left.leaves(&server, statement).await;
                // The first requests may find the end of a connection.
                until(async || match store.claim(&mine).await {
                    Ok(answer) => panic!("{statement}: {answer:?}"),
                    Err(e) => {
                        let words = e.to_string();
                        words.contains(why) && words.contains("this pool") && e.kind() == ErrorKind::Unavailable
                    }
                })
                .await;
                left.leaves(&server, "RESET ROLE; RESET ALL").await;
                until(async || store.claim(&mine).await.is_ok()).await;
                store.release(&mine, None).await.unwrap();
            }
            let warnings = store.guarantees().warnings().join(" ");
            assert!(!warnings.contains("pg_control_system"), "{warnings}");
            store.close().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_of_another_role_goes_back_for_one_of_the_first_role() {
    bounded(async {
        let server = server().await;
        server
            .query("CREATE ROLE other; GRANT other TO app")
            .await
            .unwrap();
        for pool in Theirs::each(&server.url(), 3) {
            let store = pool.store().await;
            let mine = claim("a", WaitPolicy::Try);
            granted(&store, &mine).await;
            let kept =
                "SELECT pid FROM pg_stat_activity WHERE usename = 'app' AND query LIKE '%claim_1%'";
            let kept = server.number(kept).await.unwrap();
            let mut one = taken(&pool).await;
            let other = taken(&pool).await;
            one.simple_query("SET ROLE other").await.unwrap();
            drop(one);
            drop(other);
            server
                .query(&format!("SELECT pg_terminate_backend({kept})"))
                .await
                .unwrap();
            until(async || store.release(&mine, None).await.is_ok()).await;
            let mut both = [taken(&pool).await, taken(&pool).await];
            let [one, other] = &mut both;
            let roles = [said(one, "SHOW role").await, said(other, "SHOW role").await];
            assert!(
                roles.contains(&Some("other".to_owned())),
                "{} closed it",
                pool.name()
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_that_ends_requests_is_not_kept_in_place_of_a_good_one() {
    bounded(async {
        let server = server().await;
        for pool in Theirs::each(&server.url(), 2) {
            let store = pool.store().await;
            let mut theirs = taken(&pool).await;
            theirs
                .simple_query("SET statement_timeout = '300ms'")
                .await
                .unwrap();
            drop(theirs);
            cycle(&store, "line").await;
            let blocker = program(&server).await;
            let lock = "BEGIN; SELECT FROM leasehold.lines WHERE name = 'line' FOR UPDATE";
            blocker.batch_execute(lock).await.unwrap();
            // Both connections wait, and this one ends first.
            let both =
                [(); 2].map(|()| async { store.claim(&claim("line", WaitPolicy::Try)).await });
            for answer in futures_util::future::join_all(both).await {
                assert_eq!(kind(answer), ErrorKind::Unavailable);
            }
            blocker.batch_execute("COMMIT").await.unwrap();
            let mut theirs = taken(&pool).await;
            let limit = said(&mut theirs, "SHOW statement_timeout").await;
            assert_eq!(limit.as_deref(), Some("300ms"), "{}", pool.name());
            cycle(&store, "line").await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_whose_commits_wait_for_no_standby_is_a_warning() {
    bounded(async {
        let server = server().await;
        for pool in Theirs::each(&server.url(), 1) {
            let left = Left::new(pool);
            let store = connected(|| Postgres::with_pool(left.clone(), patient())).await;
            let warns = || {
                store
                    .guarantees()
                    .warnings()
                    .join(" ")
                    .contains("synchronous_commit does not wait")
            };
            assert!(!warns());
            // It is not there, so no other commit ends.
            server
                .set("synchronous_standby_names", "one")
                .await
                .unwrap();
            until(async || {
                let new = program(&server).await;
                let names = new.query_one("SHOW synchronous_standby_names", &[]).await;
                names.unwrap().get::<_, &str>(0) == "one"
            })
            .await;
            left.leaves(&server, "SET synchronous_commit = local").await;
            let mine = claim("a", WaitPolicy::Try);
            until(async || store.claim(&mine).await.is_ok()).await;
            assert!(warns());
            store.release(&mine, None).await.unwrap();
            server.set("synchronous_standby_names", "").await.unwrap();
        }
    })
    .await;
}

/// A pool that lends connections of the one or the other database.
#[derive(Clone)]
struct Either {
    pools: [Theirs; 2],
    second: Arc<AtomicBool>,
}

impl Either {
    fn lead_to_second(&self, second: bool) {
        self.second.store(second, Ordering::Release);
    }
}

#[async_trait]
impl ConnectionPool for Either {
    fn name(&self) -> &'static str {
        "this pool"
    }

    async fn get(&self) -> std::result::Result<Box<dyn PooledConnection>, PoolError> {
        let second = self.second.load(Ordering::Acquire);
        self.pools[usize::from(second)].get().await
    }
}

#[tokio::test]
async fn a_connection_to_another_database_is_refused_and_nothing_is_lost() {
    bounded(async {
        let server = server().await;
        server.query("CREATE DATABASE second OWNER app").await.unwrap();
        let second = server.url().replace(&format!("/{}", Server::DATABASE), "/second");
        let pools = Theirs::each(&server.url(), 2).into_iter().zip(Theirs::each(&second, 2));
        for (first, second) in pools {
            let name = first.name();
            let pool = Either { pools: [first, second.clone()], second: Arc::default() };
            let store = Postgres::with_pool(pool.clone(), patient()).await.unwrap();
            let held = claim("held", WaitPolicy::Try);
            let token = granted(&store, &held).await.token;
            pool.lead_to_second(true);
            server
                .query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app' AND datname <> 'second'")
                .await
                .unwrap();
            // The first request may find the end of its connection.
            until(async || {
                let answer = store.claim(&claim("held", WaitPolicy::Try)).await;
                assert!(answer.is_err(), "over {name}: {answer:?}");
                kind(answer) == ErrorKind::OtherStore
            })
            .await;
            refusal(renewed_or(&store, &held, token).await, ErrorKind::OtherStore, &["belongs to the store"]);
            // The connection has gone back as it was.
            let mut theirs = [taken(&second).await, taken(&second).await];
            let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold'";
            assert_eq!(said(&mut theirs[0], schemas).await.as_deref(), Some("0"));
            drop(theirs);
            pool.lead_to_second(false);
            until(async || matches!(renewed_or(&store, &held, token).await, Ok(Renewal::Renewed(_)))).await;
            store.release(&held, None).await.unwrap();
            store.close().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_pool_of_a_standby_or_a_read_only_session_is_refused() {
    bounded(async {
        let primary = server().await;
        drop(client(&primary).await);
        let standby = primary.standby("one").await.unwrap();
        for pool in Theirs::each(&standby.url(), 1) {
            refusal(pool.over(patient()).await, ErrorKind::Unavailable, &["standby"]);
        }
        for pool in Theirs::each(&primary.url(), 1) {
            let store = pool.store().await;
            let held = claim("held", WaitPolicy::Try);
            let token = granted(&store, &held).await.token;
            primary
                .query("ALTER ROLE app SET default_transaction_read_only = on;
                        SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
                .await
                .unwrap();
            until(async || match store.claim(&claim("a", WaitPolicy::Try)).await {
                Ok(answer) => panic!("{answer:?}"),
                Err(e) => e.to_string().contains("read-only"),
            })
            .await;
            primary.query("ALTER ROLE app RESET default_transaction_read_only").await.unwrap();
            until(async || matches!(renewed_or(&store, &held, token).await, Ok(Renewal::Renewed(_)))).await;
            store.release(&held, None).await.unwrap();
            store.close().await.unwrap();
        }
    })
    .await;
}

/// Whoever gets it next would wait for the answer of another.
#[tokio::test]
async fn a_connection_that_did_not_answer_does_not_go_back() {
    bounded(async {
        let server = server().await;
        drop(client(&server).await);
        for nth in 0..3 {
            let proxy = Proxy::to(server.addr()).await.unwrap();
            let url = server.url().replace(server.addr(), proxy.addr());
            let [deadpool, bb8, sqlx] = Theirs::each(&url, 1);
            let pool = [deadpool, bb8, sqlx][nth].clone();
            let options = PoolOptions::new().timeout(Duration::from_millis(500));
            let store = connected(|| pool.over(options.clone())).await;
            proxy.freeze();
            let answer = store.claim(&claim("a", WaitPolicy::Try)).await;
            refusal(answer, ErrorKind::Ambiguous, &["no answer in time"]);
            // It is the only connection that the pool may have.
            let asked = async {
                let mut theirs = taken(&pool).await;
                said(&mut theirs, "SELECT 'theirs'").await
            };
            let asked = tokio::time::timeout(Duration::from_secs(20), asked).await;
            assert_eq!(
                asked.ok().flatten().as_deref(),
                Some("theirs"),
                "{}",
                pool.name()
            );
            cycle_again(&store).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_waiter_is_told_over_a_connection_of_its_own_or_polls() {
    bounded(async {
        let server = server().await;
        drop(client(&server).await);
        for pool in Theirs::each(&server.url(), 2) {
            for listens in [true, false] {
                let options = match listens {
                    true => patient().listen(Config::from_url(&server.url()).unwrap()),
                    false => patient(),
                };
                let [one, two] = [(); 2].map(|()| connected(|| pool.over(options.clone())));
                let one = one.await;
                let two = two.await;
                assert_eq!(two.guarantees().pushed_wake(), listens);
                // A waiter that is not told, and does not poll, is not served in time.
                let [one, two] =
                    [one, two].map(|store| Store::new(store).ttl(Duration::from_secs(600)));
                let guard = one.lock("a").acquire().await.unwrap();
                let waits = tokio::spawn(two.lock("a").acquire());
                until(async || one.lock("a").inspect().await.unwrap().waiters.len() == 1).await;
                guard.release().await.unwrap();
                waits.await.unwrap().unwrap().release().await.unwrap();
                one.close(Duration::from_secs(10)).await.unwrap();
                two.close(Duration::from_secs(10)).await.unwrap();
            }
        }
    })
    .await;
}

/// The names that client crates give to their statements, `s0` and `sqlx_s_1`, are here another program's, whose locks are in another schema.
#[tokio::test]
async fn no_request_executes_a_prepared_statement_of_another_program() {
    bounded(async {
        let server = server().await;
        let options = PgBouncerOptions { pool_size: 1,
            extra: vec!["ignore_startup_parameters = extra_float_digits".to_owned()], ..PgBouncerOptions::default() };
        let pooler = PgBouncer::start_with(server.addr(), &options).await.unwrap();
        let url = pooler.url();
        for pool in Theirs::each(&url, 1) {
            drop(connected(|| pool.over(patient().schema("two"))).await);
            let store = connected(|| pool.over(patient().schema("one"))).await;
            let other = leasehold_postgres::client::connect(&url, NoTls).await.unwrap();
            let (other, connection) = other;
            tokio::spawn(connection);
            let body = "(text, text, int2, int8, int8, int4, bool, int8, bytea, int8, text, int4, int8) AS
                SELECT * FROM two.claim_1($1, $2::uuid, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);";
            let prepare: String = (0..60)
                .flat_map(|n| ["s", "sqlx_s_"].map(|name| format!("PREPARE {name}{n} {body}")))
                .collect();
            other.batch_execute(&prepare).await.unwrap();
            for nth in 0..5 {
                let mine = claim(&format!("{nth}"), WaitPolicy::Try);
                // An unnamed statement of the other program, too.
                other.query_typed("SELECT two.mark_1()", &[]).await.unwrap();
                granted(&store, &mine).await;
                assert_eq!((places(&server, "one").await, places(&server, "two").await), (1, 0), "{}", pool.name());
                store.release(&mine, None).await.unwrap();
            }
            other.batch_execute("DEALLOCATE ALL").await.unwrap();
            store.close().await.unwrap();
        }
    })
    .await;
}

/// A store may be dropped by a thread without a runtime, and in the middle of a request by the end of one.
#[test]
fn the_end_of_a_runtime_loses_no_connection_of_the_pool() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let main = runtime();
    let server = main.block_on(server());
    for nth in 0..3 {
        let pool = main.block_on(async { Theirs::each(&server.url(), 2)[nth].clone() });
        let store = Arc::new(main.block_on(pool.store()));
        // Its claim waits for a row when its runtime ends.
        let blocker = main.block_on(async {
            let blocker = program(&server).await;
            let lock = "BEGIN; LOCK TABLE leasehold.lines IN ACCESS EXCLUSIVE MODE";
            blocker.batch_execute(lock).await.unwrap();
            blocker
        });
        let other = runtime();
        let claims = store.clone();
        other.spawn(async move { claims.claim(&claim("a", WaitPolicy::Try)).await });
        main.block_on(until(async || {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%claim_1%'";
            server.number(waiting).await.unwrap() > 0
        }));
        other.shutdown_background();
        main.block_on(async {
            blocker.batch_execute("COMMIT").await.unwrap();
            cycle_again(&store).await;
        });
        drop(store);
        main.block_on(async {
            let both = [taken(&pool).await, taken(&pool).await];
            for mut theirs in both {
                assert_eq!(
                    said(&mut theirs, "SELECT 'theirs'").await.as_deref(),
                    Some("theirs")
                );
            }
        });
    }
}
