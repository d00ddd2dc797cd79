//! `WATCH`, and `MULTI` to `EXEC`, over the store's one connection.
//!
//! Other requests use the connection too. They do not disturb a transaction: `MULTI` to `EXEC` is
//! one write, and none of them watches or executes anything. Two transactions would, because `EXEC`
//! ends every `WATCH` of its connection. They therefore take turns. A transaction that is dropped
//! leaves its `WATCH` to the next one, which ends it first. One whose connection was replaced sends
//! nothing over the next connection, where nothing is watched.
//!
//! Claims first wait for one another, and so do releases. A renewal therefore waits for one of each
//! at most, however many are under way, and a release for one claim.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use redis::{Cmd, Pipeline, Value};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use crate::link::{Connection, judged, junk};

/// The turns of one connection.
#[derive(Debug)]
pub(super) struct Turns {
    turn: Mutex<()>,
    /// The claim that takes turns, and the release that does.
    claim: Mutex<()>,
    release: Mutex<()>,
    /// The time for which a transaction waits for its turn, and before that for its like.
    patience: Duration,
    /// The number of the connection over which transactions are known to work.
    tested: AtomicU64,
    /// A key for this test.
    key: String,
}

impl Turns {
    pub(super) fn new(patience: Duration, key: String) -> Turns {
        Turns {
            turn: Mutex::default(),
            claim: Mutex::default(),
            release: Mutex::default(),
            patience,
            tested: AtomicU64::new(0),
            key,
        }
    }

    /// Waits until no other claim takes turns. Each claim holds this while it does.
    pub(super) async fn as_claim(&self, connection: &Connection) -> Result<MutexGuard<'_, ()>> {
        self.patiently(&self.claim, connection).await
    }

    /// Waits until no other release takes turns. Each release holds this while it does.
    pub(super) async fn as_release(&self, connection: &Connection) -> Result<MutexGuard<'_, ()>> {
        self.patiently(&self.release, connection).await
    }

    async fn patiently<'a>(
        &self,
        what: &'a Mutex<()>,
        connection: &Connection,
    ) -> Result<MutexGuard<'a, ()>> {
        let got = timeout(self.patience, what.lock()).await;
        got.map_err(|_| {
            let what = "other requests of this client took too long, and nothing was sent";
            connection.at(&Error::new(ErrorKind::Unavailable, what))
        })
    }

    /// Takes a turn. The first one over a connection makes sure that transactions work there.
    pub(super) async fn next<'a>(&'a self, connection: &'a Connection) -> Result<Turn<'a>> {
        let turn = self.patiently(&self.turn, connection).await?;
        let nth = connection.nth()?;
        let turn = Turn {
            connection,
            nth,
            _turn: turn,
        };
        let tested = self.tested.load(Ordering::Relaxed);
        if tested != nth {
            turn.test(&self.key).await.map_err(|e| match e.kind() {
                // What worked before may be in the middle of being replaced.
                ErrorKind::Unsupported if tested > 0 => {
                    Error::new(ErrorKind::Unavailable, e.to_string())
                }
                _ => e,
            })?;
            self.tested.store(nth, Ordering::Relaxed);
        }
        Ok(turn)
    }
}

/// A turn: nothing else is watched or executed on the connection while it lives.
pub(super) struct Turn<'a> {
    connection: &'a Connection,
    /// The number of the connection.
    nth: u64,
    _turn: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// The number of the connection.
    pub(super) fn nth(&self) -> u64 {
        self.nth
    }

    /// Watches these keys from now on, and asks: the answers follow the watching. The answer to
    /// `aside` does not matter.
    pub(super) async fn watch(
        &self,
        keys: &[String],
        questions: &Pipeline,
        aside: Option<Cmd>,
    ) -> Result<Vec<Value>> {
        let mut requests = Pipeline::with_capacity(questions.len() + 3);
        requests.cmd("UNWATCH");
        requests.cmd("WATCH").arg(keys);
        for question in questions.cmd_iter() {
            requests.add_command(question.clone());
        }
        let matter = requests.len();
        if let Some(aside) = aside {
            requests.add_command(aside);
        }
        let mut answers = ask(self.connection, Some(self.nth), &requests).await?;
        answers.truncate(matter);
        let each = answers.into_iter();
        let answers: Result<Vec<Value>> = each.map(|it| self.connection.refusal(it)).collect();
        Ok(answers?.split_off(2))
    }

    /// Sends a request that changes nothing that counts.
    pub(super) async fn ask(&self, request: Cmd) -> Result<Value> {
        let mut requests = redis::pipe();
        requests.add_command(request);
        let mut answers = ask(self.connection, Some(self.nth), &requests).await?;
        self.connection.refusal(answers.pop().unwrap_or_default())
    }

    /// Executes these commands in one step, and returns their answers; `None` if a watched key has
    /// changed, and nothing was executed. The answer to `aside` does not matter.
    pub(super) async fn execute(
        &self,
        commands: &[Cmd],
        aside: Option<Cmd>,
    ) -> Result<Option<Vec<Value>>> {
        let all = commands.iter().chain(&aside);
        let mut answers = self.transact(all, "EXEC").await?;
        let executed = answers.pop().unwrap_or_default();
        // A command that is refused before it is executed is refused with a reason, and `EXEC`
        // without one.
        for answer in answers {
            self.connection.refusal(answer)?;
        }
        match executed {
            Value::Nil => Ok(None),
            Value::Array(mut answers) => {
                answers.truncate(commands.len());
                // Where one command of a transaction fails, Redis executes the others.
                let in_doubt = |e: Error| Error::new(ErrorKind::Ambiguous, e.to_string());
                let each = answers.into_iter();
                let each = each.map(|answer| self.connection.refusal(answer).map_err(in_doubt));
                each.collect::<Result<Vec<_>>>().map(Some)
            }
            refused => {
                self.connection.refusal(refused)?;
                Err(junk("the answer to EXEC"))
            }
        }
    }

    async fn transact<'a>(
        &self,
        commands: impl IntoIterator<Item = &'a Cmd>,
        end: &str,
    ) -> Result<Vec<Value>> {
        let mut requests = redis::pipe();
        requests.cmd("MULTI");
        for command in commands {
            requests.add_command(command.clone());
        }
        requests.cmd(end);
        self.connection.send_over(self.nth, &requests).await
    }

    /// Fails where transactions are refused: there the commands of one would be executed all the same.
    /// And where `WATCH` has no effect, as behind some proxies.
    async fn test(&self, key: &str) -> Result<()> {
        let mut requests = redis::pipe();
        requests.cmd("UNWATCH");
        requests.cmd("WATCH").arg(key);
        requests.cmd("SET").arg(key).arg("").arg("PX").arg(1000);
        requests.cmd("MULTI");
        requests.cmd("GET").arg(key);
        requests.cmd("EXEC");
        requests.cmd("DEL").arg(key);
        let answers = self.connection.send_over(self.nth, &requests).await?;
        let names = ["unwatch", "watch", "set", "multi", "get", "exec", "del"];
        // The reason why `EXEC` is refused is that of another command.
        self.refused(names.iter().zip(&answers[..]), key)?;
        let said = |n: usize, word: &str| match answers.get(n) {
            Some(Value::Okay) => word == "OK",
            Some(Value::SimpleString(said)) => said == word,
            _ => false,
        };
        if said(3, "OK") && said(4, "QUEUED") && answers.get(5) == Some(&Value::Nil) {
            return Ok(());
        }
        let what = "this server, or the proxy before it, executes a transaction though a key that it watches has changed: \
                    without scripts, locks need WATCH and MULTI as Redis has them";
        let e = Error::new(ErrorKind::Unsupported, what);
        Err(self.connection.at(&e))
    }

    /// Fails if the user lacks a right for one of these commands, of which none is executed. Each is
    /// on this key.
    pub(super) async fn check(&self, commands: &[Cmd], key: &str) -> Result<()> {
        let answers = self.transact(commands, "DISCARD").await?;
        let name = |command: &Cmd| match command.args_iter().next() {
            Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).to_lowercase(),
            _ => String::new(),
        };
        let names: Vec<String> = commands.iter().map(name).collect();
        let answers = answers.get(1..).unwrap_or_default();
        self.refused(names.iter().zip(answers), key)
    }

    /// The error for the commands that were refused, in the words of the check of scripts; if there
    /// is no better one, in the server's.
    fn refused<'a>(
        &self,
        answers: impl Iterator<Item = (impl std::fmt::Display, &'a Value)>,
        key: &str,
    ) -> Result<()> {
        let mut lines = Vec::new();
        let mut first = None;
        for (name, answer) in answers {
            let Value::ServerError(e) = answer else {
                continue;
            };
            let why = format!("{} {}", e.code(), e.details().unwrap_or_default());
            lines.push(format!("{name}\n{why}"));
            lines.push(format!("~{key}\n{why}"));
            first = first.or(Some(answer.clone()));
        }
        if let Some(e) = judged(&lines) {
            return Err(self.connection.at(&e));
        }
        first.map_or(Ok(()), |first| self.connection.refusal(first).map(drop))
    }
}

/// Asks what changes nothing that counts: without an answer nothing is in doubt. A refusal is a
/// [`Value::ServerError`] among the answers.
pub(super) async fn ask(
    connection: &Connection,
    over: Option<u64>,
    requests: &Pipeline,
) -> Result<Vec<Value>> {
    let answers = connection.send_many(over, requests).await;
    let answers = answers.map_err(|e| match e.kind() {
        ErrorKind::Ambiguous => Error::new(ErrorKind::Unavailable, e.to_string()),
        _ => e,
    })?;
    match answers.len() == requests.len() {
        true => Ok(answers),
        false => Err(junk("an answer")),
    }
}
