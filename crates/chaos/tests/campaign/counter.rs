//! A counter that nothing protects but the lock, in the database of the locks: each write is a transaction that reads it, waits, and writes
//! one more. It begins with `held()`; that of naive clients does not. Each leaves a row as well: there are as many as were counted, or two
//! have counted at a time. Readers read it twice in one transaction, and must find the same.

use std::{collections::BTreeMap, fmt, fs, path::Path, time::Duration};

use leasehold::{
    FencingToken,
    postgres::{HELD, LOST},
};
use leasehold_testbed::Postgres;
use tokio::sync::Notify;
use tokio_postgres::{
    Client, Error, NoTls, Transaction,
    types::{ToSql, Type},
};

use super::{
    recorder::now,
    work::{LOCKS, NAIVE},
};

/// The first client makes them. Some commits take a while, so that callers leave while one is under way.
const TABLES: &str = "SELECT pg_advisory_xact_lock(1); CREATE SCHEMA IF NOT EXISTS counted;
    CREATE TABLE IF NOT EXISTS counted.counter (lock text PRIMARY KEY, n int8 NOT NULL);
    CREATE TABLE IF NOT EXISTS counted.writes (lock text NOT NULL, n int8 NOT NULL, token int8 NOT NULL,
        op int8 NOT NULL, began int8 NOT NULL, wrote int8 NOT NULL);
    CREATE TABLE IF NOT EXISTS counted.looks (lock text NOT NULL, differ bool NOT NULL);
    CREATE OR REPLACE FUNCTION counted.commit_late() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF random() < 0.25 THEN PERFORM pg_sleep(0.2 * random()); END IF; RETURN NULL; END $$;
    DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'commit_late') THEN
        CREATE CONSTRAINT TRIGGER commit_late AFTER INSERT ON counted.writes DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION counted.commit_late();
    END IF; END $$";
const READ: &str = "SELECT n FROM counted.counter WHERE lock = $1";
const WRITE: &str =
    "WITH w AS (INSERT INTO counted.counter VALUES ($1, $2) ON CONFLICT (lock) DO UPDATE SET n = excluded.n)
    INSERT INTO counted.writes VALUES ($1, $2, $3, $4, $5, $6)";
/// How each lock was counted, how often it was written, and how often a token was smaller than one that had counted before it.
const JUDGE: &str = "SELECT c.lock, c.n, count(w.n), coalesce(sum(w.falls), 0) FROM counted.counter c LEFT JOIN (
        SELECT lock, n, CASE WHEN token < max(token) OVER (PARTITION BY lock ORDER BY n ROWS UNBOUNDED PRECEDING) THEN 1 ELSE 0 END AS falls
        FROM counted.writes
    ) w USING (lock) GROUP BY 1, 2";
/// The transactions that counted the same as another one, or with a smaller token than an earlier one, and those around them.
const WRONG: &str = "WITH w AS (
        SELECT *, max(token) OVER (PARTITION BY lock ORDER BY n, wrote ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,
        count(*) OVER (PARTITION BY lock, n) > 1 AS twice FROM counted.writes WHERE lock <> 'NAIVE'
    ), wrong AS (SELECT * FROM w WHERE twice OR token < before ORDER BY lock, n LIMIT 40)
    SELECT DISTINCT w.lock, w.n, w.token, w.op, w.began, w.wrote FROM w JOIN wrong x ON x.lock = w.lock AND abs(x.n - w.n) <= 3
    ORDER BY w.lock, w.n, w.wrote";
/// A reader leaves a row, too.
const LOOKED: &str = "INSERT INTO counted.looks VALUES ($1, $2)";
const JUDGE_LOOKS: &str = "SELECT count(*), count(*) FILTER (WHERE differ) FROM counted.looks";
/// In how many parts the time for one write is.
const TICKS: u32 = 16;
/// What processes say of what was not written, before the SQLSTATE.
const SAYS: &str = "counter: ";

/// One transaction.
pub(crate) struct Job<'a> {
    pub(crate) op: u64,
    pub(crate) lock: &'a str,
    pub(crate) token: FencingToken,
    /// It begins with the condition.
    pub(crate) is_held: bool,
    /// It reads the counter twice, and does not write it.
    pub(crate) looks: bool,
    /// The time between its read and its end.
    pub(crate) pause: Duration,
    /// Is notified once it has the condition.
    pub(crate) begun: &'a Notify,
}

/// A client's connection to it.
pub(crate) struct Counter {
    url: String,
    client: Option<Client>,
    /// The last transaction was to be committed, and no answer came.
    is_unknown: bool,
}

impl Counter {
    /// Where the locks are, if they are in one database. Of two servers it would have to find the right one itself.
    pub(crate) fn at(url: &str) -> Option<Counter> {
        let url = url
            .split('?')
            .next()
            .filter(|url| url.starts_with("postgres:") && !url.contains(','))?;
        Some(Counter {
            url: url.to_owned(),
            client: None,
            is_unknown: false,
        })
    }

    /// Counts one more, or looks. The log says why it was not committed. What takes longer than `limit`, in which its process runs, is given
    /// up. Returns whether it has ended: otherwise it may be committed later.
    pub(crate) async fn run(&mut self, job: &Job<'_>, limit: Duration) -> bool {
        self.is_unknown = false;
        let said = {
            let mut one = std::pin::pin!(self.one(job));
            let (mut left, tick) = (TICKS, limit / TICKS);
            loop {
                match tokio::time::timeout(tick, &mut one).await {
                    Ok(Ok(())) => return true,
                    Ok(Err(error)) => {
                        break error
                            .code()
                            .map_or_else(|| "none".to_owned(), |code| code.code().to_owned());
                    }
                    Err(_) if left == 0 => break "late".to_owned(),
                    // A process that was paused goes on where it was.
                    Err(_) => left -= 1,
                }
            }
        };
        eprintln!("{SAYS}{said}");
        !self.is_unknown
    }

    async fn one(&mut self, job: &Job<'_>) -> Result<(), Error> {
        let lock: &(dyn ToSql + Sync) = &job.lock;
        let token = job.token.as_i64();
        let mut client = match self.client.take() {
            Some(client) if !client.is_closed() => client,
            _ => {
                let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
                tokio::spawn(connection);
                client.batch_execute(TABLES).await?;
                client
            }
        };
        // Typed: a pooler has no prepared statements.
        let counted = async {
            let began = now().cast_signed();
            let tx = client.transaction().await?;
            if job.is_held {
                tx.query_typed(HELD, &[(lock, Type::TEXT), (&token, Type::INT8)])
                    .await?;
            }
            job.begun.notify_one();
            let n = read(&tx, lock).await?;
            tokio::time::sleep(job.pause).await;
            if job.looks {
                let differ = read(&tx, lock).await? != n;
                tx.query_typed(LOOKED, &[(lock, Type::TEXT), (&differ, Type::BOOL)])
                    .await?;
            } else {
                tx.query_typed(
                    WRITE,
                    &[
                        (lock, Type::TEXT),
                        (&(n + 1), Type::INT8),
                        (&token, Type::INT8),
                        (&job.op.cast_signed(), Type::INT8),
                        (&began, Type::INT8),
                        (&now().cast_signed(), Type::INT8),
                    ],
                )
                .await?;
            }
            self.is_unknown = true;
            let committed = tx.commit().await;
            let is_answer = |error: &Error| error.code().is_some();
            self.is_unknown = committed.as_ref().is_err_and(|error| !is_answer(error));
            committed
        }
        .await;
        if counted
            .as_ref()
            .err()
            .is_none_or(|error| error.code().is_some_and(|code| code.code() == LOST))
        {
            self.client = Some(client);
        }
        counted
    }
}

async fn read(tx: &Transaction<'_>, lock: &(dyn ToSql + Sync)) -> Result<i64, Error> {
    let rows = tx.query_typed(READ, &[(lock, Type::TEXT)]).await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// What was counted.
#[derive(Default)]
pub(crate) struct Counted {
    /// Of the locks, and of that of the naive clients: how often it was written, and how much of it was lost or out of order.
    locks: (i64, i64),
    naive: (i64, i64),
    /// How often readers looked, and how often the counter changed under them.
    looks: (i64, i64),
    /// The transactions that are wrong, a line each.
    pub(crate) wrong: String,
}

impl Counted {
    pub(crate) async fn in_database(server: &Postgres) -> Counted {
        let mut counted = Counted::default();
        // Nobody has counted yet, or the server is away.
        for row in server.query(JUDGE).await.unwrap_or_default() {
            let lock = row[0].clone().unwrap_or_default();
            let numbers: Vec<i64> = row[1..]
                .iter()
                .map(|n| n.as_ref().map_or(0, |n| n.parse().unwrap()))
                .collect();
            let all = if lock == NAIVE {
                &mut counted.naive
            } else {
                &mut counted.locks
            };
            *all = (
                all.0 + numbers[1],
                all.1 + (numbers[1] - numbers[0]).abs() + numbers[2],
            );
        }
        for row in server.query(JUDGE_LOOKS).await.unwrap_or_default() {
            let number = |n: usize| row[n].as_ref().map_or(0, |n| n.parse().unwrap());
            counted.looks = (number(0), number(1));
        }
        if counted.locks.1 > 0 {
            let wrong = server.query(&WRONG.replace("NAIVE", NAIVE)).await;
            for row in wrong.unwrap_or_default() {
                let row: Vec<&str> = row.iter().map(|c| c.as_deref().unwrap_or("-")).collect();
                counted.wrong.push_str(&row.join(" "));
                counted.wrong.push('\n');
            }
        }
        counted
    }

    /// Whether it shows what happens with the condition, and without.
    pub(crate) fn is_caught(&self) -> bool {
        self.locks.0 > 0 && self.naive.1 > 0
    }

    /// What is wrong with it.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        if self.locks.1 > 0 {
            troubles.push(format!("the counter of {} locks: {self}", LOCKS.len()));
        }
        if self.looks.1 > 0 {
            troubles.push(format!("it changed while a reader had its lock: {self}"));
        }
        if !self.is_caught() {
            troubles.push(format!("void: the counter shows nothing: {self}"));
        }
        troubles
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (written, wrong) = self.locks;
        let (naive, caught) = self.naive;
        let (looks, changed) = self.looks;
        write!(
            f,
            "{written} transactions under held(), {wrong} of them lost or out of order; {looks} of readers, under {changed} of which it \
             changed; {naive} of naive clients, {caught}"
        )
    }
}

/// Why transactions were not committed, by the logs of the processes.
pub(crate) fn refused(folder: &Path) -> String {
    let mut codes: BTreeMap<String, u64> = BTreeMap::new();
    for log in fs::read_dir(folder)
        .unwrap()
        .flatten()
        .filter(|file| file.path().extension().is_some_and(|it| it == "log"))
    {
        let text = fs::read_to_string(log.path()).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.strip_prefix(SAYS))
            .for_each(|code| *codes.entry(code.to_owned()).or_default() += 1);
    }
    codes
        .iter()
        .map(|(code, times)| format!(" {code} {times}"))
        .collect()
}
