//! Lua on the server: how a script is called, and taught to a server that does not know it yet.

use std::borrow::Borrow;
use std::fmt::Display;
use std::io::Write;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures_util::future::join_all;
use leasehold_core::Result;
use leasehold_core::support::{fault, locked};
use redis::{Arg, Cmd, Pipeline, RedisWrite, ServerErrorKind, Value};
use tokio::task::unconstrained;

use crate::connection::Connection;
use crate::error::again;

/// How many keys the calls have that travel together: a flight of these takes the server a few milliseconds, so that answers come
/// all the time. One call may have keys of many names.
const FLIGHT: usize = 250;
/// The space that most calls need, so that it is allocated once: in arguments, and in bytes. And what one needs for each of many keys.
const SPACE: (usize, usize) = (20, 512);
const EACH: (usize, usize) = (2, 160);

/// What scripts of both stores begin with, once they need it: the server's clock.
pub const CLOCK: &str = include_str!("clock.lua");

/// A script, known to the server by its hash once it ran there.
#[derive(Debug)]
pub struct Script {
    source: String,
    hash: String,
}

impl Script {
    /// The script that these parts make.
    pub fn new(parts: &[&str]) -> Script {
        let mut source = parts.concat();
        if fault("counter") {
            let parts = [("floor > 0 and floor or micros", "floor"), ("last = micros - 1", "last = 0")];
            source = parts.iter().fold(source, |source, (ours, faulty)| source.replace(ours, faulty));
            source = source.replace("ahead > -100000 and ", "");
        }
        Script { hash: redis::Script::new(&source).get_hash().to_owned(), source }
    }
}

/// Whether some calls are given up. Whoever gives them up may then send what undoes them, by the same connections: nothing of them is sent
/// behind that. While one of them is being sent, giving up waits.
#[derive(Clone, Debug, Default)]
pub struct GivenUp(Arc<Mutex<bool>>);

impl GivenUp {
    /// They are, from now on.
    pub fn set(&self) {
        *locked(&self.0) = true;
    }

    /// They are not while this is held. `None` also while another one of them is being sent: no thread waits here, as it may hold others.
    fn not_yet(&self) -> Option<MutexGuard<'_, bool>> {
        self.0.try_lock().ok().filter(|given_up| !**given_up)
    }
}

/// One run of a script.
#[derive(Clone)]
#[allow(missing_debug_implementations, reason = "it carries a claim's id")]
pub struct Call {
    script: &'static Script,
    /// `EVALSHA`, the hash, and the rest.
    command: Cmd,
    keys: usize,
    /// The number of the only connection that may carry it.
    over: Option<u64>,
    given_up: Option<GivenUp>,
}

impl Call {
    /// With so many keys, which come next.
    pub fn of(script: &'static Script, keys: usize) -> Call {
        let mut command = Cmd::with_capacity(SPACE.0.max(keys * EACH.0 + 5), SPACE.1.max(keys * EACH.1));
        command.arg("EVALSHA").arg(&script.hash).arg(keys);
        Call { script, command, keys, over: None, given_up: None }
    }

    /// Another key, or what it is told next.
    #[must_use]
    #[allow(clippy::needless_pass_by_value, reason = "values are named in place, as in `format!`")]
    pub fn arg(mut self, arg: impl Display) -> Call {
        // Writing to memory fails never.
        let _ = write!(self.command.writer_for_next_arg(), "{arg}");
        self
    }

    /// Sends it over the connection of this number, or not at all.
    #[must_use]
    pub fn over(mut self, nth: u64) -> Call {
        self.over = Some(nth);
        self
    }

    /// Sends it until this is set: what the server does not know by then, it is not taught.
    #[must_use]
    pub fn until(mut self, given_up: GivenUp) -> Call {
        self.given_up = Some(given_up);
        self
    }

    /// It is not given up while this is held. `None`: it is.
    fn wanted(&self) -> Option<Option<MutexGuard<'_, bool>>> {
        self.given_up.as_ref().map_or(Some(None), |it| it.not_yet().map(Some))
    }

    /// Runs it: one request, two if the server did not know the script.
    pub async fn run(&self, connection: &Connection) -> Result<Value> {
        let mut answer = connection.send_one(self.over, &self.command).await?;
        if unknown(&answer) {
            // Boxed: it is rare, and its space would be that of each call.
            let mut taught = Box::pin(together(connection, slice::from_ref(self), vec![0], true)).await?;
            answer = taught.pop().map_or(answer, |(_, taught)| taught);
        }
        connection.refusal(answer)
    }

    /// The same at a node of a Cluster, which may refuse it; `asking`: the node is to serve a slot that is not its own yet.
    pub(crate) async fn answer(&self, connection: &Connection, asking: bool) -> Result<Value> {
        let mut answer = Value::Nil;
        for command in [None, Some(self.teaching())] {
            let mut request = Pipeline::with_capacity(2);
            if asking {
                request.cmd("ASKING");
            }
            request.add_command(command.unwrap_or_else(|| self.command.clone()));
            answer = connection.send_many(self.over, &request).await?.pop().unwrap_or_default();
            if !unknown(&answer) {
                break;
            }
        }
        Ok(answer)
    }

    /// The same call with the script itself, which teaches it to the server.
    fn teaching(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.source);
        for arg in self.command.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }
}

/// Runs all of these, of one script: many in one flight, and all flights side by side; answers in the same order and number. One that is
/// given up before it is sent has the answer nil.
pub async fn run_all(connection: &Connection, calls: &[Call]) -> Vec<Result<Value>> {
    let answers = answers(connection, calls).await.into_iter();
    answers.map(|answer| answer.and_then(|answer| connection.refusal(answer))).collect()
}

/// The same, with refusals as the server said them.
pub(crate) async fn answers<C: Borrow<Call>>(connection: &Connection, calls: &[C]) -> Vec<Result<Value>> {
    let each = calls.first().map_or(1, |call| call.borrow().keys.max(1));
    let flights = calls.chunks((FLIGHT / each).max(1)).map(async |some| match fly(connection, some).await {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(e) => some.iter().map(|_| Err(again(&e))).collect::<Vec<_>>(),
    });
    join_all(flights).await.into_iter().flatten().collect()
}

/// One flight, two if the server did not know the script. `Err`: all are unknown.
async fn fly<C: Borrow<Call>>(connection: &Connection, calls: &[C]) -> Result<Vec<Value>> {
    let mut answers = vec![Value::Nil; calls.len()];
    let mut open: Vec<usize> = (0..calls.len()).collect();
    for teaches in [false, true] {
        for (i, answer) in together(connection, calls, open, teaches).await? {
            answers[i] = answer;
        }
        open = (0..answers.len()).filter(|i| unknown(&answers[*i])).collect();
        if open.is_empty() {
            break;
        }
    }
    Ok(answers)
}

/// Sends these of the calls together, but for those that are given up. Answers with their numbers.
async fn together<C: Borrow<Call>>(
    connection: &Connection,
    calls: &[C],
    which: Vec<usize>,
    teaches: bool,
) -> Result<Vec<(usize, Value)>> {
    let over = calls.iter().find_map(|call| call.borrow().over);
    let (mut flight, mut sent) = (Pipeline::with_capacity(which.len()), Vec::with_capacity(which.len()));
    let (mut request, begun);
    {
        let mut wanted = Vec::new();
        for i in which {
            let call = calls[i].borrow();
            let Some(given_up) = call.wanted() else { continue };
            wanted.extend(given_up);
            // The first one teaches the server the script; the others follow it on the same connection.
            flight.add_command(if teaches && sent.is_empty() { call.teaching() } else { call.command.clone() });
            sent.push(i);
        }
        if sent.is_empty() {
            return Ok(Vec::new());
        }
        request = Box::pin(unconstrained(connection.send_many(over, &flight)));
        // Polled, it is on the connection, behind all that are. It is polled once more at once.
        begun = request.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    let answers = match begun {
        Poll::Ready(answers) => answers,
        Poll::Pending => request.await,
    };
    Ok(sent.into_iter().zip(answers?).collect())
}

fn unknown(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(e) if e.kind() == Some(ServerErrorKind::NoScript))
}
