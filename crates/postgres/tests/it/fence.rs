//! The fence in the user's own transaction, with tokio-postgres: at every isolation, in savepoints, and when its program stops.

mod matrix;

use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Mode, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Fenced, Store};
use leasehold_postgres::client::{Client, IsolationLevel, Transaction};
use leasehold_postgres::{HELD, LOST, PASSED_ON, Postgres};

/// Executes the condition.
async fn held(tx: &Transaction<'_>, token: i64) -> Result<u64, leasehold_postgres::client::Error> {
    tx.execute(HELD, &[&"a", &token]).await
}

/// A hold, its token, and a program beside it.
async fn world(ttl: Duration) -> (Server, Postgres, Claim, i64, Client) {
    let server = server().await;
    let store = client(&server).await;
    let program = program(&server).await;
    program
        .batch_execute("CREATE SCHEMA app; CREATE TABLE app.orders (state text)")
        .await
        .unwrap();
    let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, ttl, "first");
    let token = granted(&store, &claim).await.token.as_i64();
    (server, store, claim, token, program)
}

async fn orders(server: &Server) -> u64 {
    server
        .number("SELECT count(*) FROM app.orders")
        .await
        .unwrap()
}

#[tokio::test]
async fn a_late_transaction_is_refused_and_writes_nothing() {
    bounded(async {
        let (server, store, claim, token, mut program) = world(Duration::from_millis(200)).await;
        let next = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "next");
        until(async || matches!(store.claim(&next).await, Ok(Claimed::Granted(_)))).await;
        let tx = program.transaction().await.unwrap();
        tx.execute("INSERT INTO app.orders VALUES ('late')", &[])
            .await
            .unwrap();
        assert_eq!(state(held(&tx, token).await), LOST);
        // It is aborted, whether its program has looked or not.
        assert_eq!(
            state(
                tx.execute("INSERT INTO app.orders VALUES ('late')", &[])
                    .await
            ),
            "25P02"
        );
        tx.commit().await.unwrap();
        assert_eq!(orders(&server).await, 0);
        assert!(matches!(
            renewed(&store, &claim, None).await,
            Renewal::Lost(_)
        ));
    })
    .await;
}

#[tokio::test]
async fn nobody_is_granted_while_the_transaction_is_open() {
    bounded(async {
        let (server, store, claim, token, mut program) = world(TTL).await;
        let other = client(&server).await;
        let next = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "next");
        let tx = program.transaction().await.unwrap();
        held(&tx, token).await.unwrap();
        // A renewal passes.
        assert!(matches!(
            renewed(&store, &claim, None).await,
            Renewal::Renewed(_) | Renewal::Granted(_)
        ));
        waiting(&other, &next).await;
        // A release is to be asked again, and is none the less the end of the hold.
        let released = store.release(&claim, None).await.unwrap_err();
        assert!(
            released.kind() == ErrorKind::Unavailable
                && released.to_string().contains("transaction"),
            "{released}"
        );
        waiting(&other, &next).await;
        assert!(matches!(
            renewed(&store, &claim, None).await,
            Renewal::Lost(_)
        ));
        tx.execute("INSERT INTO app.orders VALUES ('in time')", &[])
            .await
            .unwrap();
        tx.commit().await.unwrap();
        // The next sees what was written.
        store.release(&claim, None).await.unwrap();
        let grant = granted(&other, &next).await;
        assert!(grant.token.as_i64() > token);
        assert_eq!(orders(&server).await, 1);
        let tx = program.transaction().await.unwrap();
        assert_eq!(state(held(&tx, token).await), LOST);
    })
    .await;
}

/// A release waits for no disk. A program that releases in a transaction of its own, after what it wrote, waits as it has said.
#[tokio::test]
async fn a_transaction_that_releases_is_stored_as_its_program_says() {
    bounded(async {
        let (server, _store, claim, token, mut program) = world(TTL).await;
        let released = async |tx: &Transaction<'_>| {
            let release = format!(
                "SELECT what FROM leasehold.release_1('a', '{}'::uuid, 1000)",
                claim.id
            );
            assert_eq!(
                tx.query_one(&release, &[]).await.unwrap().get::<_, &str>(0),
                "done"
            );
            let commit = tx.query_one("SHOW synchronous_commit", &[]).await.unwrap();
            commit.get::<_, String>(0)
        };
        let tx = program.transaction().await.unwrap();
        assert_eq!(released(&tx).await, "off");
        tx.rollback().await.unwrap();
        for said in ["on", "local"] {
            program
                .batch_execute(&format!("SET synchronous_commit = {said}"))
                .await
                .unwrap();
            let tx = program.transaction().await.unwrap();
            tx.execute("INSERT INTO app.orders VALUES ('paid')", &[])
                .await
                .unwrap();
            assert_eq!(released(&tx).await, said);
            tx.rollback().await.unwrap();
        }
        let tx = program.transaction().await.unwrap();
        held(&tx, token).await.unwrap();
        assert_eq!(released(&tx).await, "local");
        tx.commit().await.unwrap();
        assert_eq!(
            server
                .number("SELECT count(*) FROM leasehold.place")
                .await
                .unwrap(),
            0
        );
    })
    .await;
}

#[tokio::test]
async fn a_program_that_stops_inside_keeps_others_out_for_a_lease_and_not_longer() {
    bounded(async {
        let (server, store, _, token, mut program) = world(Duration::from_secs(4)).await;
        let next = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "next");
        let tx = program.transaction().await.unwrap();
        tx.execute("INSERT INTO app.orders VALUES ('late')", &[]).await.unwrap();
        held(&tx, token).await.unwrap();
        let rows = tx.query("SHOW idle_in_transaction_session_timeout", &[]).await.unwrap();
        assert_eq!(rows[0].get::<_, &str>(0), "4s");
        let ends = "SELECT (extract(epoch FROM until) * 1000)::int8 FROM leasehold.place WHERE token IS NOT NULL";
        let lease = server.number(ends).await.unwrap();
        // It goes on for a while, so that its end is not the end of the lease.
        tx.execute("SELECT pg_sleep(1)", &[]).await.unwrap();
        let last = tx.query_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8", &[]).await.unwrap();
        let stopped = last.get::<_, i64>(0) as u64;
        // Nothing of it runs any more, and nobody renews. The server ends it: nothing else does.
        until(async || matches!(store.claim(&next).await, Ok(Claimed::Granted(_)))).await;
        let since = "SELECT (extract(epoch FROM since) * 1000)::int8 FROM leasehold.place WHERE token IS NOT NULL";
        let since = server.number(since).await.unwrap();
        println!("granted {} ms after it stopped, {} ms after its lease", since - stopped, since - lease);
        // After a lease, as far as the machine's clock is even, and not longer than a busy machine takes to ask.
        assert!(since >= stopped + 3_900 && since < stopped + 4_000 + 10_000, "{since} after {stopped}");
        assert!(tx.commit().await.is_err());
        assert_eq!(orders(&server).await, 0);
    })
    .await;
}

/// With several holds in it, a transaction may stand still for the least of their leases; a time of its program's own, or of its role,
/// counts if it is shorter.
#[tokio::test]
async fn the_shortest_lease_bounds_a_transaction_with_several_holds() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let mut program = program(&server).await;
        let mut tokens = Vec::new();
        for (name, ms) in [("a", 15_000), ("b", 500), ("c", 4_000)] {
            let ttl = Duration::from_millis(ms);
            let claim = Claim::new(name, Mode::Exclusive, WaitPolicy::Fair, ttl, "test");
            tokens.push((name, granted(&store, &claim).await.token.as_i64()));
        }
        let limit = async |tx: &Transaction<'_>| {
            let row = tx
                .query_one("SHOW idle_in_transaction_session_timeout", &[])
                .await;
            row.unwrap().get::<_, String>(0)
        };
        let tcp = async |tx: &Transaction<'_>| {
            let names = [
                "tcp_user_timeout",
                "tcp_keepalives_idle",
                "tcp_keepalives_interval",
            ];
            let all = "SELECT array_agg(current_setting(n)::bigint ORDER BY nr)
                FROM unnest($1::text[]) WITH ORDINALITY a(n, nr)";
            tx.query_one(all, &[&&names[..]])
                .await
                .unwrap()
                .get::<_, Vec<i64>>(0)
        };
        let before = tcp(&program.transaction().await.unwrap()).await;
        for (own, after) in [
            ("0", ["15s", "500ms", "500ms"]),
            ("300ms", ["300ms"; 3]),
            ("2h", ["15s", "500ms", "500ms"]),
        ] {
            let set = format!("SET idle_in_transaction_session_timeout = '{own}'");
            program.batch_execute(&set).await.unwrap();
            let tx = program.transaction().await.unwrap();
            let connection = [[15_000, 5, 5], [1_000, 1, 1], [1_000, 1, 1]];
            for (((name, token), after), connection) in tokens.iter().zip(after).zip(connection) {
                tx.execute(HELD, &[name, token]).await.unwrap();
                assert_eq!(limit(&tx).await, after, "{name} beside {own}");
                assert_eq!(tcp(&tx).await, connection, "{name}");
            }
            tx.rollback().await.unwrap();
            let tx = program.transaction().await.unwrap();
            assert_eq!(limit(&tx).await, own);
            assert_eq!(tcp(&tx).await, before);
        }
    })
    .await;
}

/// The server is busy for such a transaction: it sends rows that nobody reads. Its connection ends when the program has taken
/// nothing for a lease.
#[tokio::test]
async fn a_program_that_stops_before_it_has_read_all_rows_is_ended_as_well() {
    bounded(async {
        let (server, store, _, token, mut program) = world(Duration::from_millis(500)).await;
        let set = "SET tcp_user_timeout = 0; SET tcp_keepalives_idle = 0";
        program.batch_execute(set).await.unwrap();
        let tx = program.transaction().await.unwrap();
        tx.execute("INSERT INTO app.orders VALUES ('late')", &[])
            .await
            .unwrap();
        held(&tx, token).await.unwrap();
        let many = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)";
        let rows = tx
            .query_raw(many, std::iter::empty::<&str>())
            .await
            .unwrap();
        let sending = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'";
        until(async || server.number(sending).await.unwrap() == 1).await;
        let next = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "next");
        until(async || matches!(store.claim(&next).await, Ok(Claimed::Granted(_)))).await;
        drop(rows);
        assert!(tx.commit().await.is_err());
        assert_eq!(orders(&server).await, 0);
    })
    .await;
}

/// While it waits for rows to copy, the server goes by no time-out: such a program is ended by hand, as the page of the store says.
#[tokio::test]
async fn a_program_that_stops_in_a_copy_is_ended_by_hand() {
    bounded(async {
        let (server, store, _, token, mut program) = world(Duration::from_millis(500)).await;
        let next = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "next");
        let tx = program.transaction().await.unwrap();
        held(&tx, token).await.unwrap();
        tx.batch_execute("SET LOCAL statement_timeout = 100")
            .await
            .unwrap();
        let copy = "COPY app.orders FROM STDIN";
        let rows = tx.copy_in::<_, &'static [u8]>(copy).await.unwrap();
        let over = "SELECT count(*) FROM leasehold.place WHERE until <= clock_timestamp()";
        until(async || server.number(over).await.unwrap() == 1).await;
        waiting(&store, &next).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE state = 'active' AND wait_event = 'ClientRead'";
        assert_eq!(server.query(end).await.unwrap().len(), 1);
        until(async || matches!(store.claim(&next).await, Ok(Claimed::Granted(_)))).await;
        drop(rows);
    })
    .await;
}

#[tokio::test]
async fn an_evicted_holder_finishes_what_it_began_and_begins_nothing() {
    bounded(async {
        let (server, store, _, token, mut program) = world(TTL).await;
        let next = claim("a", WaitPolicy::Fair);
        let tx = program.transaction().await.unwrap();
        held(&tx, token).await.unwrap();
        assert!(
            store
                .evict(&"a".into(), leasehold_core::FencingToken::new(token as u64))
                .await
                .unwrap()
        );
        waiting(&store, &next).await;
        assert_eq!(state(held(&tx, token).await), LOST);
        drop(tx);
        until(async || matches!(store.claim(&next).await, Ok(Claimed::Granted(_)))).await;
        assert_eq!(orders(&server).await, 0);
    })
    .await;
}

#[tokio::test]
async fn every_isolation_serves() {
    bounded(async {
        let (server, store, claim, token, mut program) = world(TTL).await;
        let mut written = 0;
        for level in [
            IsolationLevel::ReadCommitted,
            IsolationLevel::RepeatableRead,
            IsolationLevel::Serializable,
        ] {
            let tx = program
                .build_transaction()
                .isolation_level(level)
                .start()
                .await
                .unwrap();
            // Its snapshot is taken, and the hold is renewed after that.
            tx.query("SELECT * FROM app.orders", &[]).await.unwrap();
            assert!(matches!(
                renewed(&store, &claim, None).await,
                Renewal::Renewed(_) | Renewal::Granted(_)
            ));
            held(&tx, token).await.unwrap();
            assert!(matches!(
                renewed(&store, &claim, None).await,
                Renewal::Renewed(_) | Renewal::Granted(_)
            ));
            tx.execute("INSERT INTO app.orders VALUES ('x')", &[])
                .await
                .unwrap();
            tx.commit().await.unwrap();
            written += 1;
            assert_eq!(orders(&server).await, written);
        }
        // A snapshot from before the grant knows of no such hold.
        let tx = program
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead)
            .start()
            .await
            .unwrap();
        tx.query("SELECT * FROM app.orders", &[]).await.unwrap();
        store.release(&claim, None).await.unwrap();
        let later = granted(&store, &self::claim("a", WaitPolicy::Try))
            .await
            .token
            .as_i64();
        assert_eq!(state(held(&tx, later).await), LOST);
        drop(tx);
        // One from before the release cannot be served any more.
        let tx = program
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead)
            .start()
            .await
            .unwrap();
        tx.query("SELECT * FROM app.orders", &[]).await.unwrap();
        assert!(
            store
                .evict(&"a".into(), leasehold_core::FencingToken::new(later as u64))
                .await
                .unwrap()
        );
        assert_eq!(state(held(&tx, later).await), "40001");
    })
    .await;
}

/// To read the hold is not enough: whoever did so is overtaken.
#[tokio::test]
async fn a_look_at_the_hold_without_the_condition_lets_the_next_begin() {
    bounded(async {
        let (server, store, _, token, mut program) = world(Duration::from_millis(500)).await;
        let look = "SELECT 1 FROM leasehold.place WHERE name = 'a' AND token = $1 AND until > clock_timestamp()";
        let tx = program.transaction().await.unwrap();
        assert_eq!(tx.query(look, &[&token]).await.unwrap().len(), 1);
        let next = claim("a", WaitPolicy::Fair);
        until(async || matches!(store.claim(&next).await, Ok(Claimed::Granted(_)))).await;
        tx.execute("INSERT INTO app.orders VALUES ('stale')", &[]).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(orders(&server).await, 1);
    })
    .await;
}

/// What its documentation warns of.
#[tokio::test]
async fn a_savepoint_that_is_rolled_back_gives_it_up() {
    bounded(async {
        let (_server, store, claim, token, mut program) = world(TTL).await;
        let mut tx = program.transaction().await.unwrap();
        let savepoint = tx.transaction().await.unwrap();
        held(&savepoint, token).await.unwrap();
        assert_eq!(
            store.release(&claim, None).await.unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        savepoint.rollback().await.unwrap();
        store.release(&claim, None).await.unwrap();
        granted(&store, &self::claim("a", WaitPolicy::Try)).await;
        // Outside of it, it is kept.
        assert_eq!(state(held(&tx, token).await), LOST);
    })
    .await;
}

#[tokio::test]
async fn a_prepared_transaction_keeps_others_out_until_it_is_resolved() {
    bounded(async {
        let server = Server::start_with(&options().set("max_prepared_transactions", "4"))
            .await
            .unwrap();
        let store = client(&server).await;
        let mut program = program(&server).await;
        let mine = Claim::new(
            "a",
            Mode::Exclusive,
            WaitPolicy::Fair,
            Duration::from_secs(4),
            "first",
        );
        let next = claim("a", WaitPolicy::Fair);
        let token = granted(&store, &mine).await.token.as_i64();
        let tx = program.transaction().await.unwrap();
        held(&tx, token).await.unwrap();
        tx.batch_execute("PREPARE TRANSACTION 'kept'")
            .await
            .unwrap();
        drop(tx);
        until(async || {
            matches!(renewed(&store, &mine, None).await, Renewal::Lost(_))
                || store.release(&mine, None).await.is_err()
        })
        .await;
        waiting(&store, &next).await;
        program
            .batch_execute("COMMIT PREPARED 'kept'")
            .await
            .unwrap();
        until(async || matches!(store.claim(&next).await, Ok(Claimed::Granted(_)))).await;
    })
    .await;
}

#[tokio::test]
async fn a_guard_says_its_parameters_and_a_hold_that_has_ended_none() {
    bounded(async {
        let server = server().await;
        let locks = std::sync::Arc::new(client(&server).await);
        let store = Store::new(locks.clone()).namespace("prod");
        let mut program = program(&server).await;
        let guard = store.lock("a").acquire().await.unwrap();
        let still_holds = locks.still_holds(&guard).unwrap();
        let (name, token) = still_holds.params();
        assert_eq!(
            (still_holds.sql(), name),
            (HELD, guard.full_name().as_str())
        );
        let tx = program.transaction().await.unwrap();
        tx.execute(still_holds.sql(), &[&name, &token])
            .await
            .unwrap();
        tx.commit().await.unwrap();
        let view = guard.view();
        guard.release().await.unwrap();
        assert_eq!(kind(locks.still_holds(&view)), ErrorKind::Lost);
        let tx = program.transaction().await.unwrap();
        assert_eq!(state(tx.execute(HELD, &[&name, &token]).await), LOST);
    })
    .await;
}

/// Who asks for the lock, who looks at it and who evicts its holder are told of one thing, and by which transaction it is kept.
#[tokio::test]
async fn a_hold_that_a_transaction_keeps_beyond_its_lease_is_told_with_that_transaction() {
    bounded(async {
        let server = Server::start_with(&options().set("max_prepared_transactions", "4"))
            .await
            .unwrap();
        let store = client(&server).await;
        for is_prepared in [true, false] {
            let mut program = program(&server).await;
            let pid: i32 = program
                .query_one("SELECT pg_backend_pid()", &[])
                .await
                .unwrap()
                .get(0);
            let ttl = Duration::from_millis(500);
            let mine = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, ttl, "first");
            let token = granted(&store, &mine).await.token;
            let tx = program.transaction().await.unwrap();
            held(&tx, token.as_i64()).await.unwrap();
            tx.batch_execute("SET LOCAL idle_in_transaction_session_timeout = '1min'")
                .await
                .unwrap();
            let by = if is_prepared {
                tx.batch_execute("PREPARE TRANSACTION 'orders-7'")
                    .await
                    .unwrap();
                "prepared transaction 'orders-7'".to_owned()
            } else {
                format!("open transaction of process {pid}")
            };
            let says = |label: Option<String>| {
                label.is_some_and(|label| label.starts_with("first") && label.contains(&by))
            };
            until(async || says(busy(&store, &claim("a", WaitPolicy::Try)).await.label)).await;
            let seen = store.inspect(&"a".into()).await.unwrap();
            let [holder] = &seen.holders[..] else {
                panic!("{seen:?}")
            };
            assert!(
                says(holder.label.clone()) && holder.token == Some(token),
                "{seen:?}"
            );
            let told = store.evict(&"a".into(), token).await.unwrap_err();
            assert!(
                told.kind() == ErrorKind::Unavailable && told.to_string().contains(&by),
                "{told}"
            );
            if is_prepared {
                drop(tx);
                program
                    .batch_execute("COMMIT PREPARED 'orders-7'")
                    .await
                    .unwrap();
            } else {
                tx.commit().await.unwrap();
            }
            assert!(store.inspect(&"a".into()).await.unwrap().holders.is_empty());
            assert!(!store.evict(&"a".into(), token).await.unwrap());
            let next = claim("a", WaitPolicy::Try);
            granted(&store, &next).await;
            store.release(&next, None).await.unwrap();
        }
    })
    .await;
}
