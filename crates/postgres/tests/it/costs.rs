//! What requests cost the server: HOT renewals, tries that write nothing, and few requests.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use leasehold_core::Store;
use leasehold_core::backend::{Backend, Claim, LeaseRef, Mode, Moment, Renewal, WaitPolicy};
use leasehold_postgres::{HELD, Postgres};
use tokio::task::JoinSet;

#[tokio::test]
async fn no_index_has_what_renewals_change_and_they_are_hot() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for column in ["until", "token", "mode", "label", "sent", "said", "ttl", "parted"] {
            let indexes = format!(
                "SELECT count(*) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                 WHERE i.indrelid = 'leasehold.place'::regclass AND a.attname = '{column}'"
            );
            assert_eq!(server.number(&indexes).await.unwrap(), 0, "{column}");
        }
        let mut leases = Vec::new();
        for i in 0..200 {
            let claim = Claim::new(format!("{i}"), Mode::Exclusive, WaitPolicy::Try, Duration::from_secs(60), "test");
            let grant = granted(&store, &claim).await;
            leases.push(LeaseRef::new(Arc::new(claim), grant.place, Some(grant.token)));
        }
        // It counts what each connection has told it, now and then.
        let counts = "SELECT n_tup_upd || ' ' || n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'leasehold.place'::regclass";
        let (mut all, mut hot) = (0, 0);
        while all < 1_000 {
            let renewals = store.renew(&leases).await.unwrap();
            assert!(renewals.iter().all(|renewal| matches!(renewal, Renewal::Renewed(_))), "{renewals:?}");
            let text = server.text(counts).await.unwrap();
            let (a, h) = text.split_once(' ').unwrap();
            (all, hot) = (a.parse::<u64>().unwrap(), h.parse::<u64>().unwrap());
            sleep(200).await;
        }
        println!("{hot} of {all} updates are HOT");
        assert!(hot * 100 >= all * 97, "{hot} of {all}");
    })
    .await;
}

/// How often each statement of clients was executed: claims, releases, notifications, and all of them.
async fn calls(server: &Server) -> [u64; 4] {
    let mut calls = [0; 4];
    for (n, like) in ["%.claim_1(%", "%.release_1(%", "%pg_notify(c, p)%", "%"]
        .into_iter()
        .enumerate()
    {
        let role = format!(
            "userid = (SELECT oid FROM pg_roles WHERE rolname = '{}')",
            Server::USER
        );
        // A new connection asks who the server is, one that hears nothing is tested now and then, and what nobody uses is swept away.
        let count = format!(
            "SELECT coalesce(sum(calls), 0)::int8 FROM pg_stat_statements WHERE {role} AND query LIKE '{like}'
             AND query NOT LIKE 'SELECT $1' AND query NOT LIKE '%pg_notify($%' AND query NOT LIKE '%sweep_1(%'
             AND query NOT LIKE '%pg_control_system%'"
        );
        calls[n] = server.number(&count).await.unwrap();
    }
    calls
}

#[tokio::test]
async fn a_cycle_is_two_requests_and_a_hand_over_one_more_however_long_the_line() {
    bounded(async {
        let counted = options().set("shared_preload_libraries", "pg_stat_statements");
        let server = Server::start_with(&counted).await.unwrap();
        server
            .query("CREATE EXTENSION pg_stat_statements")
            .await
            .unwrap();
        // Nothing is renewed meanwhile.
        let ttl = Duration::from_secs(600);
        let [one, two] =
            [client(&server).await, client(&server).await].map(|store| Store::new(store).ttl(ttl));
        let before = calls(&server).await;
        for i in 0..50 {
            one.lock(("alone", i % 5))
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
        let after = calls(&server).await;
        assert_eq!([0, 1, 2, 3].map(|n| after[n] - before[n]), [50, 50, 0, 100]);
        for waiters in [4, 64] {
            let name = format!("line of {waiters}");
            let first = one.lock(&name).acquire().await.unwrap();
            let before = calls(&server).await;
            let mut line = JoinSet::new();
            for nth in 1..=waiters {
                // In turn: the next is always another client's.
                let lock = if nth % 2 == 1 {
                    two.lock(&name)
                } else {
                    one.lock(&name)
                };
                line.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
                until(async || one.lock(&name).inspect().await.unwrap().waiters.len() == nth).await;
            }
            let joined = calls(&server).await;
            assert_eq!(joined[0] - before[0], waiters as u64);
            first.release().await.unwrap();
            while let Some(served) = line.join_next().await {
                served.unwrap();
            }
            let after = calls(&server).await;
            // Nobody asked again; each release told the next, and the last one nobody.
            let hand_overs = waiters as u64;
            let each = [0, hand_overs + 1, hand_overs, 2 * hand_overs + 1];
            assert_eq!(
                [0, 1, 2, 3].map(|n| after[n] - joined[n]),
                each,
                "{waiters} waiters"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_refused_try_writes_nothing() {
    bounded(async {
        let server = server().await;
        let (one, two) = (client(&server).await, client(&server).await);
        let (held, shared) = (
            claim("a", WaitPolicy::Try),
            Claim::new("b", Mode::Shared, WaitPolicy::Try, TTL, "reader"),
        );
        granted(&one, &held).await;
        granted(&one, &shared).await;
        let several = ["a", "z"].map(|name| claim(name, WaitPolicy::Try));
        // Others write now and then: the server itself. Nobody does each time.
        let mut least = u64::MAX;
        for _ in 0..20 {
            let before = server.wal().await.unwrap();
            for _ in 0..10 {
                busy(&two, &claim("a", WaitPolicy::Try)).await;
                busy(&two, &claim("b", WaitPolicy::Try)).await;
                busy(
                    &two,
                    &Claim::new("a", Mode::Shared, WaitPolicy::Try, TTL, "reader"),
                )
                .await;
                two.claim_all(&several).await.unwrap();
            }
            least = least.min(server.wal().await.unwrap() - before);
        }
        assert_eq!(least, 0);
    })
    .await;
}

/// Its request, and a row lock in the log. `docs/transactions.md` has what it printed.
#[tokio::test]
async fn the_condition_adds_a_request_and_a_row_lock_to_a_transaction() {
    const ROUND: u32 = 50;
    bounded(async {
        // Each commit is synced, as in the databases of programs.
        let server = Server::start().await.unwrap();
        let store = client(&server).await;
        let long = Claim::new("a", Mode::Exclusive, WaitPolicy::Try, Duration::from_secs(600), "test");
        let token = granted(&store, &long).await.token.as_i64();
        let mut program = program(&server).await;
        program.batch_execute("CREATE SCHEMA app; CREATE TABLE app.orders AS SELECT 'open' AS state").await.unwrap();
        let (held, one) = (program.prepare(HELD).await.unwrap(), program.prepare("SELECT 1").await.unwrap());
        let write = program.prepare("UPDATE app.orders SET state = 'paid'").await.unwrap();
        // The least of each: others write, too, and the machine does something else now and then.
        let mut least = [(Duration::MAX, u64::MAX); 3];
        for _ in 0..10 {
            for (what, least) in least.iter_mut().enumerate() {
                let (began, wal) = (Moment::now(), server.wal().await.unwrap());
                for _ in 0..ROUND {
                    let tx = program.transaction().await.unwrap();
                    match what {
                        0 => drop(tx.execute(&held, &[&"a", &token]).await.unwrap()),
                        1 => drop(tx.execute(&one, &[]).await.unwrap()),
                        _ => {}
                    }
                    tx.execute(&write, &[]).await.unwrap();
                    tx.commit().await.unwrap();
                }
                let (took, wal) = (Moment::now().since(began) / ROUND, server.wal().await.unwrap() - wal);
                *least = (took.min(least.0), (wal / u64::from(ROUND)).min(least.1));
            }
        }
        let [held, one, alone] = least;
        println!("a transaction: {alone:?}; with SELECT 1: {one:?}; with held(): {held:?} (time, bytes of its log)");
        assert!(held.1 > alone.1 && held.1 < alone.1 + 300, "{least:?}");
    })
    .await;
}

#[tokio::test]
async fn a_thousand_wait_in_one_line_and_are_served_in_order() {
    bounded(async {
        const WAITERS: usize = 1_000;
        let server = server().await;
        let store = client(&server).await;
        let long = |label: &str| {
            Claim::new(
                "a",
                Mode::Exclusive,
                WaitPolicy::Fair,
                Duration::from_secs(600),
                label,
            )
        };
        let mut holder = long("first");
        granted(&store, &holder).await;
        let waiters: Vec<Claim> = (0..WAITERS).map(|i| long(&format!("{i}"))).collect();
        for waiter in &waiters {
            waiting(&store, waiter).await;
        }
        for next in waiters.iter().take(20) {
            store.release(&holder, None).await.unwrap();
            granted(&store, next).await;
            holder = next.clone();
        }
        assert_eq!(
            store.inspect(&"a".into()).await.unwrap().waiters.len(),
            WAITERS - 20
        );
    })
    .await;
}

/// So many cycles of one name, as statements of a session. Each of their requests is followed by this.
fn cycles(number: usize, after_each: &str) -> String {
    format!(
        "DO $$ DECLARE id uuid; BEGIN FOR i IN 1 .. {number} LOOP
            id := gen_random_uuid();
            PERFORM leasehold.claim_1('a', id, 0::int2, 1, 1, 1, true, 60000, '', 1, '', 1000, NULL); {after_each}
            PERFORM leasehold.release_1('a', id, 1000); {after_each}
        END LOOP; END $$"
    )
}

/// The places that a name has had are in the indexes until the next vacuum, and statistics of the few rows that are left say nothing of them.
#[tokio::test]
async fn a_cycle_reads_few_pages_whatever_statistics_say_and_however_often_a_name_was_used() {
    bounded(async {
        let server = Server::start_with(&options().set("autovacuum", "off")).await.unwrap();
        let store = client(&server).await;
        for name in ["b", "c", "d"] {
            granted(&store, &claim(name, WaitPolicy::Try)).await;
        }
        let session = program(&server).await;
        session.batch_execute(&cycles(4_000, "COMMIT;")).await.unwrap();
        session.batch_execute("ANALYZE leasehold.lines, leasehold.place").await.unwrap();
        // Here each statement is planned again.
        session.batch_execute(&cycles(10, "COMMIT;")).await.unwrap();
        let pages = async || {
            let fetched = "SELECT sum(pg_stat_get_xact_blocks_fetched(c.oid))::int8 FROM pg_class c WHERE c.relnamespace = 'leasehold'::regnamespace";
            session.query_one(fetched, &[]).await.unwrap().get::<_, i64>(0)
        };
        session.batch_execute("BEGIN").await.unwrap();
        let before = pages().await;
        session.batch_execute(&cycles(1, "")).await.unwrap();
        let read = pages().await - before;
        println!("{read} pages");
        assert!((1..50).contains(&read), "{read}");
    })
    .await;
}

/// A plan for these parameters may seem cheaper than one for any, and then the server would plan each statement of each call.
#[tokio::test]
async fn no_statement_of_a_verb_is_planned_for_each_call() {
    const CALLS: i64 = 50;
    bounded(async {
        let planned = options()
            .set("shared_preload_libraries", "pg_stat_statements")
            .set("pg_stat_statements.track", "all")
            .set("pg_stat_statements.track_planning", "on");
        let server = Server::start_with(&planned).await.unwrap();
        server.query("CREATE EXTENSION pg_stat_statements").await.unwrap();
        let store = client(&server).await;
        let mut leases = Vec::new();
        for i in 0..200 {
            let claim = claim(&format!("{i}"), WaitPolicy::Try);
            let grant = granted(&store, &claim).await;
            leases.push(LeaseRef::new(Arc::new(claim), grant.place, Some(grant.token)));
        }
        server.query("ANALYZE leasehold.place").await.unwrap();
        server.query("SELECT pg_stat_statements_reset()").await.unwrap();
        for _ in 0..CALLS {
            store.renew(&leases[..1]).await.unwrap();
            let next = claim("1", WaitPolicy::Fair);
            waiting(&store, &next).await;
            store.release(&next, None).await.unwrap();
        }
        let often = format!(
            "SELECT string_agg(query, '; ') FROM pg_stat_statements WHERE NOT toplevel AND query LIKE '%leasehold.%' AND plans >= {CALLS}"
        );
        assert_eq!(server.text(&format!("SELECT coalesce(({often}), '')")).await.unwrap(), "");
        let calls = format!("SELECT count(*) FROM pg_stat_statements WHERE NOT toplevel AND query LIKE '%leasehold.%' AND calls >= {CALLS}");
        assert!(server.number(&calls).await.unwrap() >= 3);
    })
    .await;
}

#[tokio::test]
async fn what_nobody_uses_is_swept_away() {
    bounded(async {
        let server = server().await;
        let store: Postgres = client(&server).await;
        for i in 0..50 {
            let claim = claim(&format!("{i}"), WaitPolicy::Try);
            granted(&store, &claim).await;
            store.release(&claim, None).await.unwrap();
        }
        let dead = Claim::new("dead", Mode::Exclusive, WaitPolicy::Fair, Duration::from_millis(100), "dead");
        granted(&store, &dead).await;
        let kept = claim("kept", WaitPolicy::Try);
        granted(&store, &kept).await;
        server.query("UPDATE leasehold.lines SET used = used - interval '1 hour'").await.unwrap();
        let left = "SELECT string_agg(name, ' ' ORDER BY name) FROM leasehold.lines";
        until(async || {
            server
                .query("UPDATE leasehold.meta SET swept = '-infinity'; SELECT leasehold.sweep_1(1000, 20)")
                .await
                .unwrap();
            server.query("UPDATE leasehold.lines SET used = used - interval '1 hour'").await.unwrap();
            server.text(left).await.unwrap() == "kept"
        })
        .await;
        assert_eq!(server.number("SELECT count(*) FROM leasehold.place").await.unwrap(), 1);
        assert!(matches!(renewed(&store, &kept, None).await, Renewal::Renewed(_) | Renewal::Granted(_)));
    })
    .await;
}

/// How many calls of this verb the server has written down as sent without a name.
fn unnamed(server: &Server, verb: &str) -> usize {
    let files = fs::read_dir(server.data().join("log"))
        .into_iter()
        .flatten();
    let text: String = files
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap_or_default())
        .collect();
    text.lines()
        .filter(|line| line.contains(verb) && line.contains("execute "))
        .inspect(|line| assert!(line.contains("execute <unnamed>"), "{line}"))
        .count()
}

/// What is prepared belongs to a session, and any session may turn out to be somebody else's.
#[tokio::test]
async fn nothing_is_prepared_in_a_session() {
    const CYCLES: usize = 5;
    bounded(async {
        let server = Server::start_with(
            &options()
                .set("logging_collector", "on")
                .set("log_statement", "all"),
        )
        .await
        .unwrap();
        let store = client(&server).await;
        for _ in 0..CYCLES {
            let claim = claim("a", WaitPolicy::Try);
            let token = granted(&store, &claim).await.token;
            renewed(&store, &claim, token).await;
            store.release(&claim, None).await.unwrap();
        }
        for verb in ["claim_1", "renew_1", "release_1"] {
            until(async || unnamed(&server, verb) == CYCLES).await;
        }
    })
    .await;
}
