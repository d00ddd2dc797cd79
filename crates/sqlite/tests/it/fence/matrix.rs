//! Who can begin before the commit? Each way in which a hold ends, beside each state of the transaction that depends on it: a real
//! transaction, and a next holder that reads what it has written. The table of `docs/transactions.md`.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use leasehold_core::Owner;
use leasehold_testbed::fence_matrix::{self, EVENTS, Event, Holds, TRANSACTIONS, Transaction};
use rusqlite::TransactionBehavior::Immediate;
use tokio::task::{JoinHandle, LocalSet};

use super::*;

const COUNTERS: &str = "CREATE TABLE counter (name TEXT PRIMARY KEY, v INTEGER NOT NULL);
    INSERT INTO counter VALUES ('a', 0), ('b', 0);";
const COUNT: &str = "UPDATE counter SET v = v + 1";

/// The file of the locks, the data, and two clients.
#[derive(Clone)]
struct World {
    locks: PathBuf,
    data: PathBuf,
    client: Arc<Sqlite>,
    first: Store,
    second: Store,
}

impl World {
    async fn new(folder: &Path) -> World {
        let (locks, data) = (folder.join("locks.db"), folder.join("data.db"));
        let client = Arc::new(Sqlite::with_config(Config::new(&locks)).await.unwrap());
        let another = Sqlite::with_config(Config::new(&locks)).await.unwrap();
        let db = Connection::open(&data).unwrap();
        db.execute_batch(COUNTERS).unwrap();
        World {
            locks,
            data,
            first: Store::new(client.clone()),
            second: Store::new(another),
            client,
        }
    }

    /// The hold ends, as far as that is up to its client, an operator or the clock. The file is locked meanwhile: what asks it waits.
    async fn happens(self, event: Event, holds: Option<Holds>) {
        let Some(holds) = holds else {
            return;
        };
        match (event, holds) {
            (Event::Drop, holds) => drop(holds),
            (Event::Downgrade, Holds::One(guard)) => {
                while guard.downgrade().await.is_err() && guard.is_valid() {}
                // It goes on as a reader's.
                guard.lost().await;
            }
            (Event::Evict, holds) => {
                let token = holds.guard("a").fencing_token();
                while self.second.evict("a", token).await.is_err() {}
                drop(holds);
            }
            (Event::Expiry, holds) => {
                holds.guard("a").lost().await;
                // Not even a request of its client follows.
                std::mem::forget(holds);
            }
            (_, Holds::One(guard) | Holds::Entered(_, guard)) => drop(guard.release().await),
            (_, Holds::Several(guards)) => drop(guards.release().await),
        }
    }

    /// Who wants the lock next, and what it reads as soon as it has it.
    fn next(&self, event: Event, name: &'static str, me: &Owner) -> JoinHandle<i64> {
        let (world, me) = (self.clone(), me.clone());
        tokio::spawn(async move {
            loop {
                let [first, second] = [&world.first, &world.second];
                let next = fence_matrix::next(event, name, [first, second], &me).await;
                // The file may be locked for longer than a request waits for it.
                if let Ok(guard) = next {
                    let db = Connection::open(&world.data).unwrap();
                    let read = "SELECT v FROM counter WHERE name = ?1";
                    let v = db.query_row(read, [name], |row| row.get(0)).unwrap();
                    drop(guard);
                    break v;
                }
            }
        })
    }

    fn connection(&self) -> Connection {
        let db = Connection::open(&self.data).unwrap();
        db.busy_timeout(Duration::from_secs(60)).unwrap();
        let locks = self.locks.to_str();
        db.execute("ATTACH ?1 AS locks", [locks]).unwrap();
        db.execute_batch("PRAGMA locks.synchronous = OFF").unwrap();
        db
    }

    /// The guards of an owner go one by one, here: whoever of its tasks comes before the last of them has gone, enters the same hold.
    async fn leave(&self, holds: Holds, me: &Owner) -> Option<Holds> {
        let Holds::Entered(outer, inner) = holds else {
            return Some(holds);
        };
        drop(inner);
        let again = self.first.lock("a").owner(me).acquire().await.unwrap();
        assert_eq!(again.fencing_token(), outer.fencing_token());
        drop((again, outer));
        None
    }

    async fn cell(self, event: Event, transaction: Transaction) -> &'static str {
        let me = Owner::new();
        let ttl = Duration::from_millis(if event == Event::Expiry {
            1_500
        } else {
            10_000
        });
        let min_hold = Duration::from_millis(100);
        let holds = Holds::take(&self.first, event, "a", ttl, min_hold, &me).await;
        let condition = match self.client.still_holds(holds.guard("a")) {
            Err(refused) => {
                assert_eq!(event, Event::FastTurn);
                assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
                return "refused";
            }
            Ok(condition) => condition,
        };
        assert_ne!(event, Event::FastTurn, "a turn was let in");
        let other = self.first.lock("b").ttl(ttl).acquire().await.unwrap();
        let condition_of_other = self.client.still_holds(&other).unwrap();
        if transaction == Transaction::Stopped {
            return self
                .beside_one_that_stops(event, holds, &condition, &me)
                .await;
        }

        let tx = self.connection();
        tx.execute_batch("BEGIN IMMEDIATE").unwrap();
        let held = tx.execute(&condition.sql("locks"), condition.params());
        assert_eq!(held.unwrap(), 1);
        if transaction == Transaction::TwoHolds {
            let held = tx.execute(
                &condition_of_other.sql("locks"),
                condition_of_other.params(),
            );
            assert_eq!(held.unwrap(), 1);
        }
        tx.execute(COUNT, []).unwrap();
        let mut nexts = Vec::new();
        let expiry = (event == Event::Expiry).then(|| holds.guard("a").view());
        let holds = self.leave(holds, &me).await;
        tokio::spawn(self.clone().happens(event, holds));
        nexts.push(self.next(event, "a", &me));
        if transaction == Transaction::TwoHolds {
            drop(other);
            nexts.push(self.next(Event::Drop, "b", &me));
        }
        if let Some(held) = expiry {
            held.lost().await;
        }
        let committed = match transaction {
            Transaction::RolledBack => {
                self.none_begins(event, &mut nexts).await;
                tx.execute_batch("ROLLBACK").unwrap();
                0
            }
            Transaction::Committing => {
                // A reader of the data keeps a commit waiting.
                let mut reader = Connection::open(&self.data).unwrap();
                let reads = reader.transaction().unwrap();
                let count = "SELECT count(*) FROM counter";
                reads.query_row(count, [], |_| Ok(())).unwrap();
                let commit = tokio::task::spawn_blocking(move || tx.execute_batch("COMMIT"));
                self.none_begins(event, &mut nexts).await;
                assert!(!commit.is_finished());
                drop(reads);
                commit.await.unwrap().unwrap();
                1
            }
            _ => {
                self.none_begins(event, &mut nexts).await;
                tx.execute_batch("COMMIT").unwrap();
                1
            }
        };
        for next in nexts {
            assert_eq!(next.await.unwrap(), committed, "{event:?} {transaction:?}");
        }
        "waits"
    }

    /// Long enough that who could begin has begun.
    async fn none_begins(&self, event: Event, nexts: &mut [JoinHandle<i64>]) {
        tokio::time::sleep(Duration::from_millis(30)).await;
        for next in nexts {
            if next.is_finished() {
                panic!("{event:?}: the next has begun, and read {:?}", next.await);
            }
        }
    }

    /// A program of its own that stops inside of its transaction, and is killed in the end.
    async fn beside_one_that_stops(
        &self,
        event: Event,
        holds: Holds,
        condition: &StillHolds,
        me: &Owner,
    ) -> &'static str {
        let mut program = self.program(condition);
        let view = holds.guard("a").view();
        let holds = self.leave(holds, me).await;
        tokio::spawn(self.clone().happens(event, holds));
        let mut next = self.next(event, "a", me);
        if event == Event::Expiry {
            view.lost().await;
        }
        self.none_begins(event, std::slice::from_mut(&mut next))
            .await;
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(next.await.unwrap(), 0, "{event:?}");
        "waits"
    }

    fn program(&self, condition: &StillHolds) -> Child {
        let (seq, name, token) = condition.params();
        let mut program = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "fence::matrix::a_program_that_stops",
                "--nocapture",
            ])
            .env("FENCE_LOCKS", &self.locks)
            .env("FENCE_DATA", &self.data)
            .env("FENCE_SQL", condition.sql("locks"))
            .env("FENCE_PARAMS", format!("{seq} {name} {token}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(program.stdout.take().unwrap());
        let stopped = said.lines().any(|line| line.unwrap().contains("stopped"));
        assert!(stopped, "it did not come so far");
        program
    }
}

/// The program of a test below: nothing, unless that has started it.
#[test]
fn a_program_that_stops() {
    let Ok(params) = std::env::var("FENCE_PARAMS") else {
        return;
    };
    let said = |name: &str| std::env::var(name).unwrap();
    let mut params = params.split(' ');
    let mut param = || params.next().unwrap().to_owned();
    let (seq, name, token) = (param(), param(), param());
    let number = |text: &str| text.parse::<i64>().unwrap();
    let mut db = Connection::open(said("FENCE_DATA")).unwrap();
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    db.execute("ATTACH ?1 AS locks", [said("FENCE_LOCKS")])
        .unwrap();
    let tx = db.transaction_with_behavior(Immediate).unwrap();
    let held = tx.execute(
        &said("FENCE_SQL"),
        params![number(&seq), name, number(&token)],
    );
    assert_eq!(held.unwrap(), 1);
    tx.execute(COUNT, []).unwrap();
    println!("stopped");
    // Until it is killed.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// One cell of the table, in files of its own.
async fn cell(event: Event, transaction: Transaction) -> &'static str {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new(folder.path()).await;
    tokio::time::timeout(Duration::from_secs(60), world.cell(event, transaction))
        .await
        .unwrap_or_else(|_| panic!("{event:?} beside {transaction:?} hangs"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_can_begin_before_the_commit() {
    let all = LocalSet::new();
    let rows = EVENTS
        .map(|event| TRANSACTIONS.map(|transaction| all.spawn_local(cell(event, transaction))));
    all.run_until(async {
        let mut cells = Vec::new();
        for row in rows {
            let mut told = Vec::new();
            for cell in row {
                told.push(cell.await.unwrap());
            }
            cells.push(told);
        }
        println!("{}", fence_matrix::table(&cells));
    })
    .await;
}
