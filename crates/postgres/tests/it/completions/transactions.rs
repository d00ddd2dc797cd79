//! Done in a transaction of the program's own: the record is committed with the effects, or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{DAY, complete, listens, request, rows, told, work};
use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Completions, Mode, WaitPolicy};
use leasehold_core::{Begun, ErrorKind, FencingToken, Keep, Store};
use leasehold_postgres::client::{Client, Error, IsolationLevel, NoTls, Transaction, connect};
use leasehold_postgres::{ALREADY_DONE, DONE, LOST, Postgres};
use leasehold_testbed::PostgresOptions;
use tokio::task::JoinSet;

/// Records in this transaction that the work `a` is done.
async fn done(tx: &Transaction<'_>, token: FencingToken) -> Result<u64, Error> {
    done_as(tx, "a", token, Some(86_400_000), None).await
}

async fn done_as(
    tx: &Transaction<'_>,
    name: &str,
    token: FencingToken,
    keep: Option<i64>,
    result: Option<&str>,
) -> Result<u64, Error> {
    tx.execute(DONE, &[&name, &token.as_i64(), &keep, &result])
        .await
}

/// A server with a table of effects, a store, and a program beside it.
async fn world(options: PostgresOptions) -> (Server, Postgres, Client) {
    let server = Server::start_with(&options).await.unwrap();
    let store = client(&server).await;
    let program = program(&server).await;
    program
        .batch_execute("CREATE SCHEMA app; CREATE TABLE app.effects (name text, token bigint)")
        .await
        .unwrap();
    (server, store, program)
}

async fn effect(tx: &Transaction<'_>, name: &str, token: FencingToken) -> Result<u64, Error> {
    let insert = "INSERT INTO app.effects VALUES ($1, $2)";
    tx.execute(insert, &[&name, &token.as_i64()]).await
}

async fn effects(server: &Server) -> u64 {
    server
        .number("SELECT count(*) FROM app.effects")
        .await
        .unwrap()
}

fn short(ms: u64) -> Claim {
    let ttl = Duration::from_millis(ms);
    Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, ttl, "test").once(0)
}

#[tokio::test]
async fn it_is_done_when_the_transaction_has_committed() {
    bounded(async {
        let (server, store, mut program) = world(options()).await;
        let other = client(&server).await;
        let [mine, waits, later] = [0, 0, 1].map(|fire| work("a", WaitPolicy::Fair, fire));
        let token = granted(&store, &mine).await.token;
        waiting(&other, &waits).await;
        waiting(&other, &later).await;
        let told_at_once = Arc::new(AtomicUsize::new(0));
        let _listening = listens(&other, std::slice::from_ref(&waits), &told_at_once);
        let tx = program.transaction().await.unwrap();
        done(&tx, token).await.unwrap();
        effect(&tx, "a", token).await.unwrap();
        // It may still be rolled back: nobody is told, nothing else completes it, and the hold stays.
        waiting(&other, &waits).await;
        assert_eq!(store.completion(&"a".into()).await.unwrap(), None);
        for _ in 0..2 {
            assert_eq!(
                kind(store.recorded(&mine, token).await),
                ErrorKind::Ambiguous
            );
            let early = store.complete(&mine, &request(token, DAY)).await;
            assert_eq!(kind(early), ErrorKind::Unavailable);
            assert!(!matches!(
                renewed(&store, &mine, None).await,
                leasehold_core::backend::Renewal::Lost(_)
            ));
        }
        tx.commit().await.unwrap();
        let completion = store.recorded(&mine, token).await.unwrap().unwrap();
        assert_eq!(
            (completion.token, &*completion.label, completion.fire),
            (token, "test", 0)
        );
        // The hold has ended with that, and all are told or served.
        until(async || told_at_once.load(Ordering::SeqCst) == 1).await;
        assert_eq!(told(&other, &waits).await.token, token);
        granted(&other, &later).await;
        // Asked again, it is the same; and a completion is answered by it.
        let again = store.recorded(&mine, token).await.unwrap().unwrap();
        assert_eq!((again.token, again.at), (token, completion.at));
        assert_eq!(complete(&store, &mine, token).await.at, completion.at);
        assert_eq!(effects(&server).await, 1);
    })
    .await;
}

#[tokio::test]
async fn what_is_rolled_back_is_left_to_the_next() {
    bounded(async {
        let (server, store, mut program) = world(options()).await;
        let other = client(&server).await;
        let mut last = FencingToken::new(0);
        for nth in 0..3 {
            let [mine, waits] = [(); 2].map(|()| work("a", WaitPolicy::Fair, 0));
            let token = granted(&store, &mine).await.token;
            assert!(token > last);
            waiting(&other, &waits).await;
            let mut tx = program.transaction().await.unwrap();
            if nth == 2 {
                // A savepoint that is rolled back takes both along.
                let savepoint = tx.transaction().await.unwrap();
                done(&savepoint, token).await.unwrap();
                effect(&savepoint, "a", token).await.unwrap();
                savepoint.rollback().await.unwrap();
                tx.commit().await.unwrap();
            } else {
                done(&tx, token).await.unwrap();
                effect(&tx, "a", token).await.unwrap();
                tx.rollback().await.unwrap();
            }
            assert_eq!(store.recorded(&mine, token).await.unwrap(), None);
            // The answer has ended the hold, so no later transaction makes it wrong.
            let tx = program.transaction().await.unwrap();
            assert_eq!(state(done(&tx, token).await), LOST);
            drop(tx);
            last = granted(&other, &waits).await.token;
            other.release(&waits, None).await.unwrap();
        }
        assert_eq!(
            (
                effects(&server).await,
                rows(&server, "completion").await,
                rows(&server, "place").await
            ),
            (0, 0, 0)
        );
    })
    .await;
}

#[tokio::test]
async fn it_is_refused_without_a_hold_and_when_it_is_done() {
    bounded(async {
        let (server, store, mut program) = world(options()).await;
        let mine = work("a", WaitPolicy::Try, 4);
        let token = granted(&store, &mine).await.token;
        let refused = async |program: &mut Client, token, says: &str| {
            let tx = program.transaction().await.unwrap();
            effect(&tx, "a", token).await.unwrap();
            assert_eq!(state(done(&tx, token).await), says);
            tx.commit().await.unwrap();
        };
        refused(&mut program, FencingToken::new(token.get() + 1), LOST).await;
        // Its own transaction, whose commit was not answered, is sent again.
        let tx = program.transaction().await.unwrap();
        done(&tx, token).await.unwrap();
        effect(&tx, "a", token).await.unwrap();
        tx.commit().await.unwrap();
        refused(&mut program, token, ALREADY_DONE).await;
        assert_eq!(effects(&server).await, 1);
        assert!(store.recorded(&mine, token).await.unwrap().is_some());
        refused(&mut program, token, LOST).await;
        // A lock's hold does the work of no fire, and not beside a completion that counts.
        let lock = claim("a", WaitPolicy::Try);
        let locked = granted(&store, &lock).await.token;
        refused(&mut program, locked, ALREADY_DONE).await;
        server.query(super::OVER).await.unwrap();
        let tx = program.transaction().await.unwrap();
        done(&tx, locked).await.unwrap();
        tx.commit().await.unwrap();
        let seen = store.completion(&"a".into()).await.unwrap().unwrap();
        assert_eq!((seen.token, seen.fire), (locked, 0));
        store.release(&lock, None).await.unwrap();
        // A later fire takes its place.
        let next = work("a", WaitPolicy::Try, 5);
        let token = granted(&store, &next).await.token;
        let tx = program.transaction().await.unwrap();
        done_as(&tx, "a", token, None, None).await.unwrap();
        tx.commit().await.unwrap();
        let seen = store.recorded(&next, token).await.unwrap().unwrap();
        assert_eq!((seen.fire, seen.left), (5, None));
        // Bad input.
        let again = work("b", WaitPolicy::Try, 0);
        let token = granted(&store, &again).await.token;
        for keep in [0, -1, i64::MAX] {
            let tx = program.transaction().await.unwrap();
            assert_eq!(
                state(done_as(&tx, "b", token, Some(keep), None).await),
                "LH004"
            );
        }
    })
    .await;
}

/// Two holds of one name are alive, as after a failover. Of both transactions one is committed.
#[tokio::test]
async fn of_two_holds_one_does_it() {
    bounded(async {
        let (server, store, mut program) = world(options()).await;
        let mut other = crate::support::program(&server).await;
        for first_commits in [true, false] {
            let name = format!("{first_commits}");
            let mine = work(&name, WaitPolicy::Try, 0);
            let token = granted(&store, &mine).await.token;
            let second = FencingToken::new(token.get() + 5);
            let double = format!(
                "INSERT INTO leasehold.place SELECT name, seq + 1, gen_random_uuid(), mode, n, of, turns, token + 5, client, label, since, ttl,
                    until, sent, said, parted, floor, once FROM leasehold.place WHERE name = '{name}';
                 UPDATE leasehold.lines SET size = 2, seq = seq + 1, token = token + 5 WHERE name = '{name}'"
            );
            server.query(&double).await.unwrap();
            let tx = program.transaction().await.unwrap();
            done_as(&tx, &name, token, None, None).await.unwrap();
            effect(&tx, &name, token).await.unwrap();
            let (waits, by) = (name.clone(), second);
            let waiting = tokio::spawn(async move {
                let tx = other.transaction().await.unwrap();
                effect(&tx, &waits, by).await.unwrap();
                let answer = done_as(&tx, &waits, by, None, None).await;
                let code = answer.as_ref().err().map(|e| e.code().unwrap().code().to_owned());
                tx.commit().await.unwrap();
                (code, other)
            });
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%.done(%' AND pid <> pg_backend_pid()";
            until(async || server.number(waits).await.unwrap() > 0).await;
            if first_commits {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
            let (code, client) = waiting.await.unwrap();
            other = client;
            assert_eq!(code.as_deref(), first_commits.then_some(ALREADY_DONE));
            let expected = if first_commits { token } else { second };
            let seen = store.completion(&name.as_str().into()).await.unwrap().unwrap();
            assert_eq!(seen.token, expected);
            let tokens = format!("SELECT string_agg(token::text, ' ') FROM app.effects WHERE name = '{name}'");
            assert_eq!(server.text(&tokens).await.unwrap(), expected.to_string());
        }
    })
    .await;
}

/// The lease has ended while its transaction is open. Whoever settles the queue after the commit sees what it has committed.
#[tokio::test]
async fn nobody_is_granted_after_the_commit_of_a_lapsed_hold() {
    bounded(async {
        let (server, store, mut program) = world(options()).await;
        let mut others = Vec::new();
        for _ in 0..3 {
            others.push(Arc::new(client(&server).await));
        }
        for round in 0..60_u64 {
            let mine = work("a", WaitPolicy::Fair, 0);
            let token = granted(&store, &mine).await.token;
            let tx = program.transaction().await.unwrap();
            done(&tx, token).await.unwrap();
            effect(&tx, "a", token).await.unwrap();
            let lapse =
                "UPDATE leasehold.place SET until = clock_timestamp() WHERE token IS NOT NULL";
            server.query(lapse).await.unwrap();
            let mut asking = JoinSet::new();
            for other in &others {
                let (other, waits) = (other.clone(), work("a", WaitPolicy::Fair, 0));
                asking.spawn(async move {
                    loop {
                        match other.claim(&waits).await.unwrap() {
                            Claimed::Done(done) => return done.token,
                            Claimed::Waiting(_) => {}
                            granted => panic!("after the commit: {granted:?}"),
                        }
                    }
                });
            }
            sleep(round % 7).await;
            tx.commit().await.unwrap();
            assert!(asking.join_all().await.iter().all(|seen| *seen == token));
            assert!(store.recorded(&mine, token).await.unwrap().is_some());
            assert!(store.forget(&"a".into(), token).await.unwrap());
        }
        assert_eq!(
            (effects(&server).await, rows(&server, "place").await),
            (60, 0)
        );
    })
    .await;
}

/// The lease has ended, and the transaction is rolled back: the next waiter is granted.
#[tokio::test]
async fn the_next_is_granted_after_a_lapsed_hold_that_was_rolled_back() {
    bounded(async {
        let (server, store, mut program) = world(options()).await;
        let mine = short(2_000);
        let token = granted(&store, &mine).await.token;
        let tx = program.transaction().await.unwrap();
        done(&tx, token).await.unwrap();
        effect(&tx, "a", token).await.unwrap();
        let waits = work("a", WaitPolicy::Fair, 0);
        let lapse = "UPDATE leasehold.place SET until = clock_timestamp() WHERE token IS NOT NULL";
        server.query(lapse).await.unwrap();
        waiting(&store, &waits).await;
        // Its program has gone, and the server ends the transaction after a lease.
        until(async || matches!(store.claim(&waits).await, Ok(Claimed::Granted(_)))).await;
        assert!(tx.commit().await.is_err());
        assert_eq!(store.recorded(&mine, token).await.unwrap(), None);
        assert_eq!(
            (effects(&server).await, rows(&server, "completion").await),
            (0, 0)
        );
    })
    .await;
}

#[tokio::test]
async fn every_isolation_serves_and_a_prepared_transaction_too() {
    bounded(async {
        let (server, store, mut program) =
            world(options().set("max_prepared_transactions", "4")).await;
        for (nth, level) in [
            IsolationLevel::ReadCommitted,
            IsolationLevel::RepeatableRead,
            IsolationLevel::Serializable,
        ]
        .into_iter()
        .enumerate()
        {
            let mine = work("a", WaitPolicy::Try, nth as u64);
            let token = granted(&store, &mine).await.token;
            let tx = program
                .build_transaction()
                .isolation_level(level)
                .start()
                .await
                .unwrap();
            done(&tx, token).await.unwrap();
            effect(&tx, "a", token).await.unwrap();
            tx.commit().await.unwrap();
            let seen = store.recorded(&mine, token).await.unwrap().unwrap();
            assert_eq!((seen.token, seen.fire), (token, nth as u64));
            // One that had begun before cannot do it again.
            let tx = program
                .build_transaction()
                .isolation_level(level)
                .start()
                .await
                .unwrap();
            assert_eq!(state(done(&tx, token).await), LOST);
        }
        let mine = work("a", WaitPolicy::Try, 9);
        let token = granted(&store, &mine).await.token;
        let tx = program.transaction().await.unwrap();
        done(&tx, token).await.unwrap();
        effect(&tx, "a", token).await.unwrap();
        tx.batch_execute("PREPARE TRANSACTION 'kept'")
            .await
            .unwrap();
        drop(tx);
        assert_eq!(
            kind(store.recorded(&mine, token).await),
            ErrorKind::Ambiguous
        );
        program
            .batch_execute("COMMIT PREPARED 'kept'")
            .await
            .unwrap();
        assert_eq!(store.recorded(&mine, token).await.unwrap().unwrap().fire, 9);
        assert_eq!(effects(&server).await, 4);
    })
    .await;
}

#[tokio::test]
async fn a_long_result_is_cut_between_two_characters() {
    bounded(async {
        let (_server, store, mut program) = world(options()).await;
        for (nth, (text, kept)) in [
            ("x".repeat(4_096), 4_096),
            ("x".repeat(3_000_000), 4_096),
            (format!("x{}", "é".repeat(5_000)), 4_095),
            (format!("xyz{}", "\u{1f600}".repeat(9_000)), 4_095),
            (String::new(), 0),
        ]
        .into_iter()
        .enumerate()
        {
            let mine = work("a", WaitPolicy::Try, nth as u64);
            let token = granted(&store, &mine).await.token;
            let tx = program.transaction().await.unwrap();
            done_as(&tx, "a", token, None, Some(&text)).await.unwrap();
            tx.commit().await.unwrap();
            let seen = store.recorded(&mine, token).await.unwrap().unwrap();
            let result = seen.result.unwrap();
            assert!(
                text.starts_with(&*result) && result.len() == kept,
                "{} of {}",
                result.len(),
                text.len()
            );
            assert_eq!(seen.is_cut, kept < text.len());
        }
    })
    .await;
}

/// Others are told of it once it is visible, so it is stored before.
#[tokio::test]
async fn it_waits_for_the_disk_whatever_the_role_says() {
    bounded(async {
        let (_server, store, mut program) = world(options()).await;
        program
            .batch_execute("SET synchronous_commit = off")
            .await
            .unwrap();
        let mine = work("a", WaitPolicy::Try, 0);
        let token = granted(&store, &mine).await.token;
        let tx = program.transaction().await.unwrap();
        done(&tx, token).await.unwrap();
        let set = tx.query_one("SHOW synchronous_commit", &[]).await.unwrap();
        assert_eq!(set.get::<_, &str>(0), "on");
        tx.rollback().await.unwrap();
        let after = program
            .query_one("SHOW synchronous_commit", &[])
            .await
            .unwrap();
        assert_eq!(after.get::<_, &str>(0), "off");
    })
    .await;
}

#[tokio::test]
async fn a_guard_says_the_statement_and_its_parameters() {
    bounded(async {
        let (server, store, mut program) = world(options()).await;
        let locks = Arc::new(store);
        let store = Store::new(locks.clone()).namespace("prod");
        let once = store.once("a").keep(DAY);
        let Begun::Attempt(guard) = once.begin().await.unwrap() else {
            panic!("nobody has done it")
        };
        let done = locks
            .done(&*guard.attempt(), Keep::For(DAY))
            .unwrap()
            .result("a\0b");
        assert_eq!(done.sql(), DONE);
        let (name, token, keep, result) = done.params();
        assert_eq!(
            (name, keep, result),
            ("prod/a", Some(86_400_000), Some("a\u{fffd}b"))
        );
        let tx = program.transaction().await.unwrap();
        tx.execute(done.sql(), &[&name, &token, &keep, &result])
            .await
            .unwrap();
        tx.commit().await.unwrap();
        let completion = guard.complete().await.unwrap();
        assert_eq!(
            (completion.token.as_i64(), completion.result.as_deref()),
            (token, Some("a\u{fffd}b"))
        );
        let seen = once.done().await.unwrap().unwrap();
        assert_eq!((seen.token, seen.at), (completion.token, completion.at));
        assert_eq!(rows(&server, "place").await, 0);
        let guard = store.lock("b").acquire().await.unwrap();
        let other = locks.done(&guard, Keep::Forever).unwrap();
        assert_eq!(other.params().2, None);
    })
    .await;
}

/// The end of a transaction that does work once.
#[derive(Clone, Copy, Debug)]
enum End {
    Commits,
    RollsBack,
    /// The server ends its session, before, while or after it commits.
    IsEnded,
    /// The program leaves.
    IsDropped,
}

/// What each name has: the tokens of its effects.
async fn agreement(server: &Server) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let read = async |sql: &str| {
        let rows = server.query(sql).await.unwrap();
        let named = rows.into_iter().map(|row| {
            let mut row = row.into_iter().flatten();
            (row.next().unwrap(), row.next().unwrap())
        });
        named.collect::<BTreeMap<_, _>>()
    };
    (
        read("SELECT name, string_agg(token::text, ' ') FROM app.effects GROUP BY name").await,
        read("SELECT name, token::text FROM leasehold.completion").await,
    )
}

/// A thousand transactions and more of eight programs, which commit, are rolled back, leave, and are ended by the server; and the server is
/// killed among them. Each effect has its completion, each completion its one effect, and so does each answer.
#[tokio::test]
async fn effects_and_completions_agree_whatever_fails() {
    const PROGRAMS: usize = 8;
    let is_whole = std::env::var_os("LEASEHOLD_WHOLE").is_some();
    let transactions = if is_whole { 1_000 } else { 200 };
    within(900, async {
        let durable = PostgresOptions::default().set("wal_writer_delay", "10000");
        let (server, _, _) = world(durable).await;
        let server = Arc::new(server);
        let begun = Arc::new(AtomicUsize::new(0));
        let [committed, none, doubts] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let goes_on = Arc::new(AtomicBool::new(true));
        let mut programs = JoinSet::new();
        for nth in 0..PROGRAMS {
            let (server, begun) = (server.clone(), begun.clone());
            let (committed, none, doubts) = (committed.clone(), none.clone(), doubts.clone());
            programs.spawn(async move {
                let store = client(&server).await;
                let mut program: Option<Client> = None;
                let mut n = nth;
                while begun.load(Ordering::SeqCst) < transactions {
                    // Each name is tried by several.
                    n += 1;
                    let name = format!("n{}", n / 3);
                    let mut mine = work(&name, WaitPolicy::Try, 0);
                    mine.ttl = Duration::from_secs(2);
                    let token = match store.claim(&mine).await {
                        Ok(Claimed::Granted(grant)) => grant.token,
                        Ok(_) | Err(_) => {
                            let _ = store.release(&mine, None).await;
                            continue;
                        }
                    };
                    begun.fetch_add(1, Ordering::SeqCst);
                    let end = [
                        End::Commits,
                        End::RollsBack,
                        End::IsEnded,
                        End::IsDropped,
                        End::Commits,
                        End::IsEnded,
                    ][n % 6];
                    if program.as_ref().is_none_or(Client::is_closed) {
                        program = connect(&server.url(), NoTls).await.ok().map(
                            |(program, connection)| {
                                tokio::spawn(connection);
                                program
                            },
                        );
                    }
                    let Some(session) = &mut program else {
                        let _ = store.release(&mine, None).await;
                        continue;
                    };
                    let said = transaction(&server, session, &name, token, end).await;
                    if matches!(end, End::IsDropped) {
                        program = None;
                    }
                    // What core asks after the body, however it has ended.
                    let recorded = loop {
                        match store.recorded(&mine, token).await {
                            Ok(recorded) => break recorded,
                            Err(e) => {
                                doubts.fetch_add(1, Ordering::SeqCst);
                                assert!(
                                    e.is_retryable() || e.kind() == ErrorKind::Ambiguous,
                                    "{e:?}"
                                );
                            }
                        }
                        sleep(5).await;
                    };
                    let there = format!(
                        "SELECT count(*) FROM app.effects WHERE name = '{name}' AND token = {}",
                        token.get()
                    );
                    let there = loop {
                        match server.number(&there).await {
                            Ok(number) => break number,
                            Err(_) => sleep(20).await,
                        }
                    };
                    assert_eq!(
                        there,
                        u64::from(recorded.is_some()),
                        "{name} {token} {end:?} {said:?}"
                    );
                    match (said, &recorded) {
                        (Some(true), Some(_)) | (Some(false), None) | (None, _) => {}
                        other => panic!("{name} {token} {end:?}: {other:?}"),
                    }
                    let counted = if recorded.is_some() {
                        &committed
                    } else {
                        &none
                    };
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let kills = {
            let (server, goes_on, begun) = (server.clone(), goes_on.clone(), begun.clone());
            tokio::spawn(async move {
                let mut kills = 0;
                while goes_on.load(Ordering::SeqCst) && kills < 6 {
                    let at = begun.load(Ordering::SeqCst) + transactions / 8;
                    until(async || {
                        begun.load(Ordering::SeqCst) >= at || !goes_on.load(Ordering::SeqCst)
                    })
                    .await;
                    if goes_on.load(Ordering::SeqCst) {
                        server.restart_with_data().await.unwrap();
                        kills += 1;
                    }
                }
                kills
            })
        };
        programs.join_all().await;
        goes_on.store(false, Ordering::SeqCst);
        let kills = kills.await.unwrap();
        let (effects, completions) = agreement(&server).await;
        println!(
            "{} transactions, {} done, {} not, {} answers in doubt, {kills} kills; {} names",
            begun.load(Ordering::SeqCst),
            committed.load(Ordering::SeqCst),
            none.load(Ordering::SeqCst),
            doubts.load(Ordering::SeqCst),
            completions.len()
        );
        assert!(
            kills >= 3
                && committed.load(Ordering::SeqCst) > transactions / 10
                && none.load(Ordering::SeqCst) > transactions / 10
        );
        assert_eq!(effects, completions);
    })
    .await;
}

/// One transaction that does the work and ends in this way. Returns whether it has committed, as far as its program knows.
async fn transaction(
    server: &Server,
    program: &mut Client,
    name: &str,
    token: FencingToken,
    end: End,
) -> Option<bool> {
    let Ok(row) = program.query_one("SELECT pg_backend_pid()", &[]).await else {
        return Some(false);
    };
    let pid: i32 = row.get(0);
    let Ok(tx) = program.transaction().await else {
        return Some(false);
    };
    if done_as(&tx, name, token, None, None).await.is_err()
        || effect(&tx, name, token).await.is_err()
    {
        return Some(false);
    }
    match end {
        End::Commits => tx.commit().await.ok().map(|()| true),
        End::RollsBack => tx.rollback().await.ok().map(|()| false).or(Some(false)),
        End::IsEnded => {
            let kill = format!("SELECT pg_terminate_backend({pid})");
            let (committed, _) = tokio::join!(tx.commit(), server.query(&kill));
            committed.ok().map(|()| true)
        }
        End::IsDropped => {
            // The server finds out by itself, and rolls it back.
            std::mem::forget(tx);
            Some(false)
        }
    }
}
