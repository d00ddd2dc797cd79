//! A counter that nothing protects but the lock, in the database of the locks: each write is a transaction that reads it, waits, and writes
//! one more. It begins with `held()`; that of naive clients does not. Each leaves a row as well: there are as many as were counted, or two
//! have counted at a time.

use std::{collections::BTreeMap, fmt, fs, path::Path, time::Duration};

use leasehold::{
    FencingToken,
    postgres::{HELD, LOST},
};
use leasehold_testbed::Postgres;
use tokio_postgres::{
    Client, Error, NoTls,
    types::{ToSql, Type},
};

use super::work::{LOCKS, NAIVE};

/// Whoever comes first makes them.
const TABLES: &str = "SELECT pg_advisory_xact_lock(1); CREATE SCHEMA IF NOT EXISTS counted;
    CREATE TABLE IF NOT EXISTS counted.counter (lock text PRIMARY KEY, n int8 NOT NULL);
    CREATE TABLE IF NOT EXISTS counted.writes (lock text NOT NULL, n int8 NOT NULL, token int8 NOT NULL)";
const READ: &str = "SELECT n FROM counted.counter WHERE lock = $1";
const WRITE: &str =
    "WITH w AS (INSERT INTO counted.counter VALUES ($1, $2) ON CONFLICT (lock) DO UPDATE SET n = excluded.n)
    INSERT INTO counted.writes VALUES ($1, $2, $3)";
/// How each lock was counted, how often it was written, and how often a token was smaller than one that had counted before it.
const JUDGE: &str = "SELECT c.lock, c.n, count(w.n), coalesce(sum(w.falls), 0) FROM counted.counter c LEFT JOIN (
        SELECT lock, n, CASE WHEN token < max(token) OVER (PARTITION BY lock ORDER BY n ROWS UNBOUNDED PRECEDING) THEN 1 ELSE 0 END AS falls
        FROM counted.writes
    ) w USING (lock) GROUP BY 1, 2";
/// In how many parts the time for one write is.
const TICKS: u32 = 16;
/// What processes say of what was not written, before the SQLSTATE.
const SAYS: &str = "counter: ";

/// A client's connection to it.
pub(crate) struct Counter {
    url: String,
    client: Option<Client>,
}

impl Counter {
    /// Where the locks are, if they are in a database.
    pub(crate) fn at(url: &str) -> Option<Counter> {
        let url = url.split('?').next().filter(|url| url.starts_with("postgres:"))?;
        Some(Counter { url: url.to_owned(), client: None })
    }

    /// Counts one more, and takes this long. Why it was not counted is said. What takes longer than `limit`, in which its process runs, is
    /// given up: it may be counted.
    pub(crate) async fn count(
        &mut self,
        lock: &str,
        token: FencingToken,
        is_held: bool,
        pause: Duration,
        limit: Duration,
    ) {
        let said = {
            let mut one = std::pin::pin!(self.one(lock, token, is_held, pause));
            let (mut left, tick) = (TICKS, limit / TICKS);
            loop {
                match tokio::time::timeout(tick, &mut one).await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => {
                        break error.code().map_or_else(|| "none".to_owned(), |code| code.code().to_owned());
                    }
                    Err(_) if left == 0 => break "late".to_owned(),
                    // A process that was paused goes on where it was.
                    Err(_) => left -= 1,
                }
            }
        };
        eprintln!("{SAYS}{said}");
    }

    async fn one(&mut self, lock: &str, token: FencingToken, is_held: bool, pause: Duration) -> Result<(), Error> {
        let (lock, token): (&(dyn ToSql + Sync), _) = (&lock, token.as_i64());
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
            let tx = client.transaction().await?;
            if is_held {
                tx.query_typed(HELD, &[(lock, Type::TEXT), (&token, Type::INT8)]).await?;
            }
            let n: i64 = tx.query_typed(READ, &[(lock, Type::TEXT)]).await?.first().map_or(0, |row| row.get(0));
            tokio::time::sleep(pause).await;
            tx.query_typed(WRITE, &[(lock, Type::TEXT), (&(n + 1), Type::INT8), (&token, Type::INT8)]).await?;
            tx.commit().await
        }
        .await;
        if counted.as_ref().err().is_none_or(|error| error.code().is_some_and(|code| code.code() == LOST)) {
            self.client = Some(client);
        }
        counted
    }
}

/// What was counted.
#[derive(Default)]
pub(crate) struct Counted {
    /// Of the locks, and of that of the naive clients: how often it was written, and how much of it was lost or out of order.
    locks: (i64, i64),
    naive: (i64, i64),
}

impl Counted {
    pub(crate) async fn in_database(server: &Postgres) -> Counted {
        let mut counted = Counted::default();
        // Nobody has counted yet, or the server is away.
        for row in server.query(JUDGE).await.unwrap_or_default() {
            let lock = row[0].clone().unwrap_or_default();
            let numbers: Vec<i64> = row[1..].iter().map(|n| n.as_ref().map_or(0, |n| n.parse().unwrap())).collect();
            let all = if lock == NAIVE { &mut counted.naive } else { &mut counted.locks };
            *all = (all.0 + numbers[1], all.1 + (numbers[1] - numbers[0]).abs() + numbers[2]);
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
        if !self.is_caught() {
            troubles.push(format!("void: the counter shows nothing: {self}"));
        }
        troubles
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((written, wrong), (naive, caught)) = (self.locks, self.naive);
        write!(
            f,
            "{written} transactions under held(), {wrong} of them lost or out of order; {naive} of naive clients, {caught}"
        )
    }
}

/// Why transactions were not committed, by the logs of the processes.
pub(crate) fn refused(folder: &Path) -> String {
    let mut codes: BTreeMap<String, u64> = BTreeMap::new();
    for log in
        fs::read_dir(folder).unwrap().flatten().filter(|file| file.path().extension().is_some_and(|it| it == "log"))
    {
        let text = fs::read_to_string(log.path()).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.strip_prefix(SAYS))
            .for_each(|code| *codes.entry(code.to_owned()).or_default() += 1);
    }
    codes.iter().map(|(code, times)| format!(" {code} {times}")).collect()
}
