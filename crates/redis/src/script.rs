//! The server's side of the store: the Lua scripts, and how they are called.

use std::sync::LazyLock;

use leasehold_core::{Error, Result};
use redis::{Cmd, Pipeline, ServerErrorKind, Value};

use crate::connection::Connection;
use crate::error;
use crate::names::{KEYS, Keys};

macro_rules! script {
    ($name:ident, $what:literal, $($part:literal),+) => {
        #[doc = $what]
        pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $part, ".lua"))),+)));
    };
}

script!(CLAIM, "Takes or keeps a place.", "keys", "claim_alone", "line", "claim");
script!(RENEW, "Extends what is still there.", "keys", "line", "renew");
script!(RELEASE, "Removes every trace of an id.", "keys", "release_alone", "line", "release");
script!(EVICT, "Ends the hold with a token.", "keys", "line", "evict");
script!(INSPECT, "Who holds and who waits.", "keys", "line", "inspect");

/// A script, known to the server by its hash once it ran there.
#[derive(Debug)]
pub struct Script {
    source: &'static str,
    hash: String,
}

/// One run of a script for one name.
#[allow(missing_debug_implementations, reason = "it carries a claim's id")]
pub struct Call {
    /// What it may touch.
    pub keys: Keys,
    /// What it is told.
    pub args: Vec<String>,
}

impl Script {
    /// The script with this source.
    pub fn new(source: &'static str) -> Script {
        Script { source, hash: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Runs it for one name: one request, two if the server did not know the script.
    pub async fn run(&self, connection: &Connection, call: Call) -> Result<Value> {
        self.run_all(connection, &[call]).await?.pop().unwrap_or_else(|| Err(error::junk("no answer")))
    }

    /// Runs it for every call, in one flight (two if the server did not know the script). `Err`: all are unknown.
    pub async fn run_all(&self, connection: &Connection, calls: &[Call]) -> Result<Vec<Result<Value>>> {
        let mut flight = Pipeline::with_capacity(calls.len());
        for call in calls {
            flight.add_command(self.by_hash(call));
        }
        let mut answers = connection.send(&flight).await?;
        let missed: Vec<usize> = (0..answers.len()).filter(|i| is_unknown_script(&answers[*i])).collect();
        if !missed.is_empty() {
            let mut flight = Pipeline::with_capacity(missed.len());
            for (nth, i) in missed.iter().enumerate() {
                // The first one teaches the server the script; the others follow it on the same connection.
                let call = &calls[*i];
                flight.add_command(if nth == 0 { self.by_source(call) } else { self.by_hash(call) });
            }
            for (i, answer) in missed.into_iter().zip(connection.send(&flight).await?) {
                answers[i] = answer;
            }
        }
        Ok(answers.into_iter().map(|answer| answer.extract_error().map_err(|e| error::of_request(&e))).collect())
    }

    fn by_hash(&self, call: &Call) -> Cmd {
        command("EVALSHA", &self.hash, call)
    }

    fn by_source(&self, call: &Call) -> Cmd {
        command("EVAL", self.source, call)
    }
}

fn command(verb: &str, body: &str, call: &Call) -> Cmd {
    let mut cmd = redis::cmd(verb);
    cmd.arg(body).arg(KEYS).arg(&call.keys).arg(&call.args);
    cmd
}

fn is_unknown_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(e) if e.kind() == Some(ServerErrorKind::NoScript))
}

/// The record in an answer. What is no UTF-8 in it was written by others, and is only shown.
pub fn record(answer: &Value) -> Result<String, Error> {
    match answer {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        _ => Err(error::junk("an answer")),
    }
}
