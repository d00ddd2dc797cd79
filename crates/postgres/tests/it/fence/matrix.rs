//! Who can begin before the commit? Each way in which a hold ends, beside each state of the transaction that depends on it: a real
//! transaction, and a next holder that reads what it has written. The table of `docs/transactions.md`.

use std::sync::Arc;

use futures_util::future::join_all;
use leasehold_core::{Guard, Owner};
use leasehold_testbed::fence_matrix::{
    EVENTS, Event, Holds, TRANSACTIONS, Transaction, next, table,
};
use tokio::task::JoinHandle;

use super::*;

/// A `min_hold` that most releases come before.
const SHORT: Duration = Duration::from_millis(500);

struct World {
    server: Server,
    /// The client that holds, and another one.
    first: Store,
    second: Store,
}

impl World {
    async fn new() -> World {
        let many = options().set("max_connections", "300");
        let server = Server::start_with(&many).await.unwrap();
        let first = Store::new(client(&server).await);
        let second = Store::new(client(&server).await);
        // A commit waits in a deferred trigger while somebody else has the advisory lock of its row.
        let tables = "CREATE SCHEMA app; CREATE TABLE app.counter (name text PRIMARY KEY, v bigint NOT NULL);
            CREATE FUNCTION app.gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_advisory_xact_lock(hashtext(NEW.name)); RETURN NULL;
            END $$;
            CREATE CONSTRAINT TRIGGER gate AFTER UPDATE ON app.counter DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION app.gate()";
        program(&server).await.batch_execute(tables).await.unwrap();
        World {
            server,
            first,
            second,
        }
    }

    /// The hold ends, as far as that is up to its client, an operator or the clock.
    async fn happens(&self, event: Event, name: &str, holds: Holds) -> Option<Holds> {
        let refused_by_transaction = |answer: leasehold_core::Result<()>| {
            let refused = answer.unwrap_err();
            // A busy server may not answer in time.
            if refused.kind() != ErrorKind::Ambiguous {
                assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
                assert!(refused.to_string().contains("transaction"), "{refused}");
            }
        };
        match (event, holds) {
            (Event::Drop, holds) => drop(holds),
            (Event::Downgrade, Holds::One(guard)) => {
                refused_by_transaction(guard.downgrade().await);
                return Some(Holds::One(guard));
            }
            (Event::Evict, holds) => {
                let token = holds.guard(name).fencing_token();
                assert!(self.second.evict(name, token).await.unwrap());
                return Some(holds);
            }
            (Event::Expiry, holds) => {
                let past = "UPDATE leasehold.place SET until = clock_timestamp() - interval '1 s'";
                let past = format!("{past} WHERE name = '{name}' AND token IS NOT NULL");
                self.server.query(&past).await.unwrap();
                return Some(holds);
            }
            (Event::MinHold, Holds::One(guard)) => {
                // It is confirmed, unless its time was over before or the server was late, and the hold ends when it is.
                if let Err(refused) = guard.release().await {
                    let by_transaction = refused.to_string().contains("transaction");
                    assert!(by_transaction || refused.is_retryable(), "{refused}");
                }
                let lives = "SELECT count(*) FROM leasehold.place WHERE until > clock_timestamp()";
                let lives = format!("{lives} AND name = '{name}' AND token IS NOT NULL");
                until(async || self.server.number(&lives).await.unwrap() == 0).await;
            }
            (Event::Owner, Holds::Entered(outer, inner)) => {
                // The first to go is any guard of a hold that others have.
                outer.release().await.unwrap();
                refused_by_transaction(inner.release().await);
            }
            (_, Holds::One(guard) | Holds::Entered(_, guard)) => {
                refused_by_transaction(guard.release().await);
            }
            (_, Holds::Several(guards)) => refused_by_transaction(guards.release().await),
        }
        None
    }

    /// Who wants the lock next, and what it reads as soon as it has it.
    fn next(&self, event: Event, name: &str, me: &Owner) -> JoinHandle<i64> {
        let (url, name, me) = (self.server.url(), name.to_owned(), me.clone());
        let (first, second) = (self.first.clone(), self.second.clone());
        tokio::spawn(async move {
            let (reader, connection) =
                leasehold_postgres::client::connect(&url, leasehold_postgres::client::NoTls)
                    .await
                    .unwrap();
            tokio::spawn(connection);
            let guard = next(event, &name, [&first, &second], &me).await;
            let read = "SELECT v FROM app.counter WHERE name = $1";
            let v = reader.query_one(read, &[&name]).await.unwrap().get(0);
            guard.unwrap().release().await.unwrap();
            v
        })
    }

    /// Nobody is let in who asks now.
    async fn is_taken(&self, event: Event, name: &str) {
        for _ in 0..3 {
            let refused = match event {
                Event::Downgrade => self.second.rw_lock(name).read().try_acquire().await,
                _ => self.second.lock(name).try_acquire().await,
            };
            let refused = refused.unwrap_err();
            assert!(refused.is_contended(), "{refused}");
        }
    }

    async fn cell(&self, event: Event, transaction: Transaction) -> &'static str {
        let name = format!("{event:?} beside {transaction:?}");
        let other = format!("{name}, the other hold");
        let me = Owner::new();
        let committed = match transaction {
            Transaction::Stopped | Transaction::RolledBack => 0,
            _ => 1,
        };
        let holds = Holds::take(&self.first, event, &name, TTL, SHORT, &me).await;
        let program = Arc::new(program(&self.server).await);
        let insert = "INSERT INTO app.counter VALUES ($1, 0), ($2, 0)";
        program.execute(insert, &[&name, &other]).await.unwrap();
        program.batch_execute("BEGIN").await.unwrap();
        let held = async |name: &str, guard: &Guard| {
            let token = guard.fencing_token().as_i64();
            program.execute(HELD, &[&name, &token]).await
        };
        let condition = held(&name, holds.guard(&name)).await;
        if event == Event::FastTurn {
            let refused = condition.unwrap_err();
            assert_eq!(refused.code().unwrap().code(), PASSED_ON, "{refused}");
            return "refused";
        }
        condition.unwrap();
        let second_hold = match transaction {
            Transaction::TwoHolds => {
                let guard = self.first.lock(&*other).acquire().await.unwrap();
                held(&other, &guard).await.unwrap();
                Some(guard)
            }
            _ => None,
        };
        let write = "UPDATE app.counter SET v = v + 1 WHERE name = $1 OR name = $2";
        program.execute(write, &[&name, &other]).await.unwrap();
        let commit = match transaction {
            Transaction::Committing => {
                let gate = self::program(&self.server).await;
                let shut = "SELECT pg_advisory_lock(hashtext($1))";
                gate.execute(shut, &[&name]).await.unwrap();
                let program = program.clone();
                let commit = tokio::spawn(async move { program.batch_execute("COMMIT").await });
                let at_gate =
                    "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'
                    AND objid::bigint = hashtext($1)::bigint & 4294967295";
                until(async || {
                    gate.query_one(at_gate, &[&name])
                        .await
                        .unwrap()
                        .get::<_, i64>(0)
                        == 1
                })
                .await;
                Some((gate, commit))
            }
            _ => None,
        };

        if let Holds::Entered(outer, _) = &holds {
            // As long as a guard is there, its owner enters: it is the same hold.
            let again = self.first.lock(&*name).owner(&me).acquire().await.unwrap();
            assert_eq!(again.fencing_token(), outer.fencing_token());
            again.release().await.unwrap();
        }
        let left = self.happens(event, &name, holds).await;
        let next = self.next(event, &name, &me);
        self.is_taken(event, &name).await;
        let next_of_other = second_hold.map(|guard| {
            drop(guard);
            self.next(Event::Drop, &other, &me)
        });
        if next_of_other.is_some() {
            self.is_taken(Event::Drop, &other).await;
        }
        self.is_taken(event, &name).await;
        assert!(!next.is_finished(), "{name}");
        match commit {
            Some((gate, commit)) => {
                assert!(!commit.is_finished());
                drop(gate);
                commit.await.unwrap().unwrap();
            }
            None if transaction == Transaction::RolledBack => {
                program.batch_execute("ROLLBACK").await.unwrap();
            }
            None if transaction == Transaction::Stopped => {
                // It would be a lease.
                let soon = "SET LOCAL idle_in_transaction_session_timeout = 50";
                program.batch_execute(soon).await.unwrap();
                until(async || program.is_closed()).await;
            }
            None => program.batch_execute("COMMIT").await.unwrap(),
        }
        if let (Event::Downgrade, Some(Holds::One(guard))) = (event, &left) {
            until(async || guard.downgrade().await.is_ok()).await;
        }
        assert_eq!(next.await.unwrap(), committed, "{name}");
        if let Some(next) = next_of_other {
            assert_eq!(next.await.unwrap(), 1, "{other}");
        }
        drop(left);
        "waits"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_can_begin_before_the_commit() {
    bounded(async {
        let world = World::new().await;
        let row = async |event| {
            join_all(TRANSACTIONS.map(|transaction| world.cell(event, transaction))).await
        };
        let rows = within(60, join_all(EVENTS.map(row))).await;
        println!("{}", table(&rows));
    })
    .await;
}

/// Tasks of two clients count, each by what it has read before its transaction, and are dropped at any moment, most of them while they
/// commit: a count that is committed is never lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_a_task_is_dropped_no_count_is_lost() {
    bounded(async {
        let World {
            server,
            first,
            second,
        } = World::new().await;
        // A commit takes its time.
        let tables = "INSERT INTO app.counter VALUES ('a', 0); CREATE TABLE app.counted (v bigint);
            CREATE OR REPLACE FUNCTION app.gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_sleep(0.005); RETURN NULL;
            END $$";
        program(&server).await.batch_execute(tables).await.unwrap();
        let counts = async |store: &Store, seed: u64| {
            let mut random = fastrand::Rng::with_seed(seed);
            let lock = store.lock("a");
            for nth in 0..20 {
                let mut program = program(&server).await;
                let begun = tokio::sync::Notify::new();
                let count = async {
                    let guard = lock.acquire().await.unwrap();
                    begun.notify_one();
                    let read = "SELECT v FROM app.counter WHERE name = 'a'";
                    let v: i64 = program.query_one(read, &[]).await.unwrap().get(0);
                    let tx = program.transaction().await.unwrap();
                    let write = "UPDATE app.counter SET v = $1 WHERE name = 'a'";
                    tx.execute(write, &[&(v + 1)]).await.unwrap();
                    let insert = "INSERT INTO app.counted VALUES ($1)";
                    tx.execute(insert, &[&(v + 1)]).await.unwrap();
                    held(&tx, guard.fencing_token().as_i64()).await.unwrap();
                    tx.commit().await.unwrap();
                    drop(guard.release().await);
                };
                let stop = async {
                    begun.notified().await;
                    sleep(random.u64(2..15)).await;
                    // Also on a slow machine some come to their end.
                    if nth % 4 == 0 {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    () = count => {}
                    () = stop => {}
                }
            }
        };
        tokio::join!(
            Box::pin(counts(&first, 1)),
            Box::pin(counts(&first, 2)),
            Box::pin(counts(&second, 3)),
            Box::pin(counts(&second, 4)),
        );
        // The last may be on its way.
        drop(first.lock("a").acquire().await.unwrap());
        let number = async |sql| server.number(sql).await.unwrap();
        let v = number("SELECT v FROM app.counter WHERE name = 'a'").await;
        let counted = number("SELECT count(*) FROM app.counted").await;
        println!("{counted} of 80 were counted");
        assert!(v == counted && counted > 0, "{v} of {counted}");
    })
    .await;
}
