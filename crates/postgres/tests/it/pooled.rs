//! Behind PgBouncer: what its modes let through, and what a store says of it.

use leasehold_core::backend::TokenFloor;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crate::failover::{pair, start_as_copy};
use crate::support::*;
use leasehold_core::backend::{Backend, Claimed, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Store};
use leasehold_postgres::Postgres;
use leasehold_postgres::client::{Client, NoTls, connect};
use leasehold_testbed::{PgBouncer, PgBouncerOptions};
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
            !deaf.pushed_wake()
                && deaf
                    .warnings()
                    .iter()
                    .any(|warning| warning.contains("listen=host:port")),
            "{deaf:?}"
        );
        let off = behind(&pooler, "&listen=off").await.guarantees();
        assert!(
            !off.pushed_wake()
                && !off
                    .warnings()
                    .iter()
                    .any(|warning| warning.contains("listen=")),
            "{off:?}"
        );
        let listen = behind(&pooler, &format!("&listen={}", server.addr()))
            .await
            .guarantees();
        assert!(
            listen.pushed_wake()
                && !listen
                    .warnings()
                    .iter()
                    .any(|warning| warning.contains("listen=")),
            "{listen:?}"
        );
        // One that hands out a connection for as long as its client stays lets everything through.
        let options = PgBouncerOptions {
            pool_mode: "session",
            pool_size: 20,
            ..PgBouncerOptions::default()
        };
        let session = PgBouncer::start_with(server.addr(), &options)
            .await
            .unwrap();
        assert!(behind(&session, "").await.guarantees().pushed_wake());
    })
    .await;
}

#[tokio::test]
async fn more_clients_than_it_has_connections_take_turns() {
    bounded(async {
        let server = server().await;
        for pool_mode in ["transaction", "statement"] {
            let options = PgBouncerOptions {
                pool_mode,
                pool_size: 2,
                ..PgBouncerOptions::default()
            };
            let pooler = PgBouncer::start_with(server.addr(), &options)
                .await
                .unwrap();
            let mut tasks = JoinSet::new();
            for _ in 0..4 {
                let store =
                    Store::new(behind(&pooler, "&listen=off").await).ttl(Duration::from_secs(20));
                tasks.spawn(async move {
                    for _ in 0..10 {
                        store
                            .lock("a")
                            .acquire()
                            .await
                            .unwrap()
                            .release()
                            .await
                            .unwrap();
                    }
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.unwrap();
            }
        }
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
async fn one_that_is_restarted_is_connected_to_again() {
    bounded(async {
        let server = server().await;
        let pooler = PgBouncer::start(&server).await.unwrap();
        let store = behind(&pooler, "&listen=off").await;
        let mine = claim("a", WaitPolicy::Try);
        granted(&store, &mine).await;
        pooler.restart_with_data().await.unwrap();
        until(async || store.release(&mine, None).await.is_ok()).await;
    })
    .await;
}

/// Points a pooler at another server. The links of its clients stay.
async fn lead(pooler: &PgBouncer, from: &Server, to: &Server) {
    let port = |server: &Server| format!("port={}\n", server.port());
    configure(pooler, &port(from), &port(to));
    pooler.console("RELOAD").await.unwrap();
    pooler.console("RECONNECT").await.unwrap();
}

/// The pooler is pointed at another database while programs are connected: their links to it stay, and lead there.
#[tokio::test]
async fn an_answer_of_another_database_behind_the_pooler_is_not_taken() {
    bounded(async {
        for is_installed in [true, false] {
            let [right, other] = [server().await, server().await];
            if is_installed {
                drop(client(&other).await);
            }
            let pooler = PgBouncer::start(&right).await.unwrap();
            let store = behind(&pooler, "&listen=off").await;
            let held = claim("held", WaitPolicy::Try);
            let token = granted(&store, &held).await.token;
            lead(&pooler, &right, &other).await;
            // What is sent until the pooler has closed its connections is still at the right one.
            let mine = claim("b", WaitPolicy::Try);
            until(async || match store.claim(&mine).await {
                Ok(_) => false,
                Err(e) if e.kind() == ErrorKind::OtherStore => true,
                Err(e) => {
                    assert!(e.is_retryable(), "{e}");
                    false
                }
            })
            .await;
            let renewal = store.renew(&[lease(&held, token)]).await;
            assert_eq!(renewal.unwrap_err().kind(), ErrorKind::OtherStore);
            let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold'";
            assert_eq!(
                other.number(schemas).await.unwrap(),
                u64::from(is_installed)
            );
            lead(&pooler, &other, &right).await;
            until(async || {
                let answer = store.renew(&[lease(&held, token)]).await;
                answer.is_ok_and(|answer| matches!(answer[0], Renewal::Renewed(_)))
            })
            .await;
        }
    })
    .await;
}

/// A copy of the data was started, and the pooler leads back to the server that it was made of: nothing broke, so that was not restarted.
#[tokio::test]
async fn no_answer_of_a_server_that_was_copied_is_taken_however_often_it_is_asked() {
    bounded(async {
        let (primary, copy) = pair().await;
        start_as_copy(&copy).await;
        let pooler = PgBouncer::start(&copy).await.unwrap();
        // An answer that is late would break a link.
        let url = format!("{}?timeout=60000&listen=off", pooler.url());
        let store = client_at(&url).await;
        granted(&store, &claim("held", WaitPolicy::Try)).await;
        lead(&pooler, &copy, &primary).await;
        let asked = async |name: String| {
            let mine = claim(&name, WaitPolicy::Try);
            let places = format!("SELECT count(*) FROM leasehold.place WHERE name = '{name}'");
            match store.claim(&mine).await {
                // Some connection of the pooler still leads to the copy.
                Ok(_) => {
                    assert_eq!(copy.number(&places).await.unwrap(), 1, "{name}");
                    false
                }
                Err(e) => {
                    let is_refused = e.kind() == ErrorKind::OtherStore;
                    assert!(is_refused || e.is_retryable(), "{e}");
                    is_refused
                }
            }
        };
        let mut refused = 0;
        for n in 0.. {
            refused += u32::from(asked(format!("free-{n}")).await);
            if refused == 10 {
                break;
            }
        }
        lead(&pooler, &primary, &copy).await;
        until(async || !asked("last".to_owned()).await).await;
    })
    .await;
}

/// A server behind the pooler is restarted: it is the same one.
#[tokio::test]
async fn a_server_behind_the_pooler_may_be_restarted() {
    bounded(async {
        let server = server().await;
        let pooler = PgBouncer::start(&server).await.unwrap();
        let store = behind(&pooler, "&listen=off").await;
        let held = claim("held", WaitPolicy::Try);
        let token = granted(&store, &held).await.token;
        for _ in 0..2 {
            server.restart_with_data().await.unwrap();
            until(async || {
                let answer = store.renew(&[lease(&held, token)]).await;
                answer.is_ok_and(|answer| matches!(answer[0], Renewal::Renewed(_)))
            })
            .await;
        }
    })
    .await;
}

/// Another program's connection by way of the pooler.
async fn program_behind(pooler: &PgBouncer) -> Client {
    let (client, connection) = connect(&pooler.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A pooler that hands out connections for as long as a client stays.
async fn in_session_mode(server: &Server) -> PgBouncer {
    let options = PgBouncerOptions {
        pool_mode: "session",
        pool_size: 20,
        ..PgBouncerOptions::default()
    };
    PgBouncer::start_with(server.addr(), &options)
        .await
        .unwrap()
}

/// Changes its configuration; `RELOAD` or a restart brings it into force.
fn configure(pooler: &PgBouncer, from: &str, to: &str) {
    let file = pooler.data().join("pgbouncer.ini");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(&file, text.replace(from, to)).unwrap();
}

/// The pooler gets another mode while the program is connected, or while it connects anew. In the connections to the server there are
/// statements of another program, whose locks are in another schema; it has given them the names that a client crate numbers.
#[tokio::test]
async fn no_claim_is_executed_in_the_schema_of_another_program() {
    bounded(async {
        for restarts in [false, true] {
            let server = server().await;
            let pooler = in_session_mode(&server).await;
            drop(behind(&pooler, "&schema=two").await);
            let store = behind(&pooler, "&schema=one").await;
            let cycle = async || {
                let mine = claim("a", WaitPolicy::Try);
                until(async || matches!(store.claim(&mine).await, Ok(Claimed::Granted(_)))).await;
                until(async || store.release(&mine, None).await.is_ok()).await;
            };
            for _ in 0..3 {
                cycle().await;
            }
            let prepare: String = (0..300)
                .map(|n| {
                    format!(
                        "PREPARE s{n} (text, text, int2, int8, int8, int4, bool, int8, bytea, int8, text, int4, int8) AS
                         SELECT * FROM two.claim_1($1, $2::uuid, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);"
                    )
                })
                .collect();
            configure(&pooler, "pool_mode = session", "pool_mode = transaction");
            let other = if restarts {
                pooler.restart_with_data().await.unwrap();
                for _ in 0..3 {
                    cycle().await;
                }
                // Not the connection in which the store has sent everything so far.
                let [busy, other] = [program_behind(&pooler).await, program_behind(&pooler).await];
                busy.batch_execute("BEGIN").await.unwrap();
                other.batch_execute(&format!("BEGIN; {prepare}")).await.unwrap();
                busy.batch_execute("COMMIT").await.unwrap();
                other.batch_execute("COMMIT").await.unwrap();
                other
            } else {
                let other = program_behind(&pooler).await;
                other.batch_execute(&prepare).await.unwrap();
                pooler.console("RELOAD").await.unwrap();
                store.mark().await.unwrap();
                other
            };
            // The pooler hands out next what was given back last.
            other.batch_execute("SELECT 1").await.unwrap();
            let mine = claim("a", WaitPolicy::Try);
            until(async || matches!(store.claim(&mine).await, Ok(Claimed::Granted(_)))).await;
            let places = async |schema: &str| {
                let count = format!("SELECT count(*) FROM {schema}.place");
                server.number(&count).await.unwrap()
            };
            assert_eq!((places("one").await, places("two").await), (1, 0), "restarts: {restarts}");
        }
    })
    .await;
}

#[tokio::test]
async fn no_request_fails_when_a_pooler_gets_another_mode() {
    bounded(async {
        let server = server().await;
        let pooler = in_session_mode(&server).await;
        let stores = [
            behind(&pooler, "&schema=one").await,
            behind(&pooler, "&schema=two").await,
        ];
        let cycle = async |store: &Postgres| {
            let mine = claim("a", WaitPolicy::Try);
            let token = granted(store, &mine).await.token;
            assert!(matches!(
                renewed(store, &mine, token).await,
                Renewal::Renewed(_)
            ));
            store.release(&mine, None).await.unwrap();
        };
        for round in 0..6 {
            if round == 3 {
                configure(&pooler, "pool_mode = session", "pool_mode = transaction");
                pooler.console("RELOAD").await.unwrap();
            }
            for store in &stores {
                cycle(store).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn clients_that_come_and_go_leave_no_channel_in_the_connections_of_a_pooler() {
    bounded(async {
        let server = server().await;
        let options = PgBouncerOptions {
            pool_size: 1,
            ..PgBouncerOptions::default()
        };
        let pooler = PgBouncer::start_with(server.addr(), &options)
            .await
            .unwrap();
        let mut clients = JoinSet::new();
        for _ in 0..40 {
            let url = format!("{}?timeout=2000", pooler.url());
            clients.spawn(async move { connected(|| Postgres::connect(&url)).await });
        }
        while let Some(client) = clients.join_next().await {
            client.unwrap().close().await.unwrap();
        }
        let program = program_behind(&pooler).await;
        let channels = "SELECT count(*) FROM pg_listening_channels()";
        until(async || program.query_typed(channels, &[]).await.unwrap()[0].get::<_, i64>(0) == 0)
            .await;
    })
    .await;
}

/// What a program sets for its session, a pooler in transaction mode hands to everybody.
#[tokio::test]
async fn what_another_program_has_set_in_a_connection_of_the_pooler_ends_no_hold() {
    bounded(async {
        let server = server().await;
        let options = PgBouncerOptions {
            pool_size: 1,
            ..PgBouncerOptions::default()
        };
        let pooler = PgBouncer::start_with(server.addr(), &options)
            .await
            .unwrap();
        let early = behind(&pooler, "&listen=off").await;
        let held = claim("held", WaitPolicy::Try);
        let token = granted(&early, &held).await.token;
        let other = program_behind(&pooler).await;
        for level in ["serializable", "repeatable read"] {
            other
                .batch_execute(&format!("SET default_transaction_isolation = '{level}'"))
                .await
                .unwrap();
            assert!(matches!(
                renewed(&early, &held, token).await,
                Renewal::Renewed(_)
            ));
            let late = behind(&pooler, "&listen=off").await;
            busy(&late, &claim("held", WaitPolicy::Try)).await;
            let next = claim("next", WaitPolicy::Fair);
            granted(&late, &next).await;
            late.release(&next, None).await.unwrap();
        }
        early.release(&held, None).await.unwrap();
    })
    .await;
}

/// Leases are so long that a waiter who hears nothing, and does not poll, is not served in time.
const LONG: Duration = Duration::from_secs(600);

async fn hand_over(from: &Store, to: &Store) {
    let guard = from.lock("a").acquire().await.unwrap();
    let waits = tokio::spawn(to.lock("a").acquire());
    until(async || {
        from.lock("a")
            .inspect()
            .await
            .is_ok_and(|queue| queue.waiters.len() == 1)
    })
    .await;
    guard.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn waiters_are_served_when_a_pooler_that_let_notifications_through_gets_another_mode() {
    within(60, async {
        let server = server().await;
        let pooler = in_session_mode(&server).await;
        let url = pooler.url();
        let [one, two] = [(); 2].map(|()| connected(|| Postgres::connect(&url)));
        let (one, two) = (Arc::new(one.await), Arc::new(two.await));
        assert!(one.guarantees().pushed_wake() && two.guarantees().pushed_wake());
        configure(&pooler, "pool_mode = session", "pool_mode = transaction");
        pooler.console("RELOAD").await.unwrap();
        let stores = [&one, &two].map(|store| Store::new(store.clone()).ttl(LONG));
        let guard = stores[0].lock("a").acquire().await.unwrap();
        let waits = tokio::spawn(stores[1].lock("a").acquire());
        // Whoever waits finds it out, and polls.
        until(async || !two.guarantees().pushed_wake()).await;
        guard.release().await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn waiters_are_served_when_the_pooler_goes_to_another_server_than_notifications() {
    within(60, async {
        let primary = server().await;
        let pooler = PgBouncer::start(&primary).await.unwrap();
        let url = format!("{}?listen={}", pooler.url(), primary.addr());
        let [one, two] = [(); 2].map(|()| connected(|| Postgres::connect(&url)));
        let (one, two) = (one.await, two.await);
        assert!(one.guarantees().pushed_wake() && two.guarantees().pushed_wake());
        let standby = primary.standby("one").await.unwrap();
        let behind_by = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_flush_lsn()";
        until(async || primary.number(behind_by).await.unwrap() == 1).await;
        standby.promote().await.unwrap();
        let port = |server: &Server| format!("port={}\n", server.port());
        configure(&pooler, &port(&primary), &port(&standby));
        pooler.console("RELOAD").await.unwrap();
        pooler.console("RECONNECT").await.unwrap();
        let [one, two] = [one, two].map(|store| Store::new(store).ttl(LONG));
        until(async || one.lock("b").acquire().await.is_ok()).await;
        assert_eq!(standby.number("SELECT count(*) FROM leasehold.lines WHERE name = 'b'").await.unwrap(), 1);
        hand_over(&one, &two).await;
    })
    .await;
}
