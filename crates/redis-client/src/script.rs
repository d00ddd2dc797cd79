//! Lua on the server: how a script is called, and taught to a server that does not know it yet.

use std::slice::from_ref;

use futures_util::future::join_all;
use leasehold_core::Result;
use redis::{Cmd, Pipeline, ServerErrorKind, Value};

use crate::connection::Connection;
use crate::error::{again, junk};

/// How many keys the calls have that travel together: a flight of these takes the server a few milliseconds, so that answers come
/// all the time. One call may have keys for many names.
const FLIGHT: usize = 1200;

/// What scripts of both stores begin with, once they need it: the server's clock.
pub const CLOCK: &str = include_str!("clock.lua");

/// A script, known to the server by its hash once it ran there.
#[derive(Debug)]
pub struct Script {
    source: String,
    hash: String,
}

/// One run of a script.
#[allow(missing_debug_implementations, reason = "it carries a claim's id")]
pub struct Call {
    keys: Vec<String>,
    args: Vec<String>,
    /// The number of the only connection that may carry it.
    over: Option<u64>,
}

impl Call {
    /// What it may touch.
    pub fn on(keys: impl Into<Vec<String>>) -> Call {
        Call { keys: keys.into(), args: Vec::with_capacity(8), over: None }
    }

    /// What it is told next.
    #[must_use]
    #[allow(clippy::needless_pass_by_value, reason = "values are named in place, as in `format!`")]
    pub fn arg(mut self, arg: impl ToString) -> Call {
        self.args.push(arg.to_string());
        self
    }

    /// The same, for a text that need not be copied.
    #[must_use]
    pub fn text(mut self, text: String) -> Call {
        self.args.push(text);
        self
    }

    /// Sends it over the connection of this number, or not at all.
    #[must_use]
    pub fn over(mut self, nth: u64) -> Call {
        self.over = Some(nth);
        self
    }

    fn command(&self, verb: &str, body: &str) -> Cmd {
        let mut cmd = redis::cmd(verb);
        cmd.arg(body).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        cmd
    }
}

impl Script {
    /// The script that these parts make.
    pub fn new(parts: &[&str]) -> Script {
        let source = parts.concat();
        Script { hash: redis::Script::new(&source).get_hash().to_owned(), source }
    }

    /// Runs it once: one request, two if the server did not know the script.
    pub async fn run(&self, connection: &Connection, call: &Call) -> Result<Value> {
        self.run_all(connection, from_ref(call)).await.pop().unwrap_or_else(|| Err(junk("no answer")))
    }

    /// Runs it for every call, many in one flight, and all flights side by side; answers in the same order and number.
    pub async fn run_all(&self, connection: &Connection, calls: &[Call]) -> Vec<Result<Value>> {
        let each = calls.first().map_or(1, |call| call.keys.len().max(1));
        let flights = calls.chunks((FLIGHT / each).max(1)).map(async |some| match self.fly(connection, some).await {
            Ok(answers) => answers,
            Err(e) => some.iter().map(|_| Err(again(&e))).collect(),
        });
        join_all(flights).await.into_iter().flatten().collect()
    }

    /// One flight, two if the server did not know the script. `Err`: all are unknown.
    async fn fly(&self, connection: &Connection, calls: &[Call]) -> Result<Vec<Result<Value>>> {
        let mut flight = Pipeline::with_capacity(calls.len());
        for call in calls {
            flight.add_command(call.command("EVALSHA", &self.hash));
        }
        let over = calls.iter().find_map(|call| call.over);
        let mut answers = connection.send_over(over, &flight).await?;
        let unknown =
            |answer: &Value| matches!(answer, Value::ServerError(e) if e.kind() == Some(ServerErrorKind::NoScript));
        let missed: Vec<usize> = (0..answers.len()).filter(|i| unknown(&answers[*i])).collect();
        if !missed.is_empty() {
            let mut flight = Pipeline::with_capacity(missed.len());
            for (nth, i) in missed.iter().enumerate() {
                // The first one teaches the server the script; the others follow it on the same connection.
                let (verb, body) = if nth == 0 { ("EVAL", &self.source) } else { ("EVALSHA", &self.hash) };
                flight.add_command(calls[*i].command(verb, body));
            }
            for (i, answer) in missed.into_iter().zip(connection.send_over(over, &flight).await?) {
                answers[i] = answer;
            }
        }
        Ok(answers.into_iter().map(|answer| connection.refusal(answer)).collect())
    }
}
