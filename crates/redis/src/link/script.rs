//! Lua on the server: calls a script, and sends it to a server that does not know it yet.

use std::borrow::Borrow;
use std::fmt::Display;
use std::io::Write;
use std::iter::zip;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures_util::future::join_all;
use leasehold_core::Result;
use leasehold_core::support::fault;
use redis::{Arg, Cmd, Pipeline, RedisWrite, ServerErrorKind, Value};
use tokio::task::unconstrained;

use crate::link::connection::Connection;
use crate::link::error::{again, is_denied};
use crate::link::rights::{Needs, missing};

#[cfg(all(test, feature = "redlock"))]
mod taken_back;

/// The number of names in calls that travel together: the server needs a few milliseconds for such a
/// flight, so answers come all the time. One call may be for many names.
const FLIGHT: usize = 125;
/// The space that most calls need, so that it is allocated once: in arguments, and in bytes. Below
/// it, the space for each key of a call with many.
const SPACE: (usize, usize) = (24, 768);
const EACH: (usize, usize) = (2, 64);

/// The beginning of scripts of both stores that need the server's clock.
pub(crate) const CLOCK: &str = include_str!("clock.lua");

/// A script, known to the server by its hash once it ran there.
#[derive(Debug)]
pub(crate) struct Script {
    source: String,
    hash: String,
    needs: Option<&'static Needs>,
}

impl Script {
    /// The script that these parts make up.
    pub(crate) fn new(parts: &[&str]) -> Script {
        let mut source = parts.concat();
        if fault("counter") {
            let parts = [
                ("floor > 0 and floor or micros", "floor"),
                ("last = micros - 1", "last = 0"),
                ("math.max(last + 1, micros)", "last + 1"),
            ];
            source = parts.iter().fold(source, |source, (ours, faulty)| {
                source.replace(ours, faulty)
            });
        }
        if fault("any-list") {
            source = source.replace("if not serves then", "if false then");
        }
        Script {
            hash: redis::Script::new(&source).get_hash().to_owned(),
            source,
            needs: None,
        }
    }

    /// The commands that the script calls, each as often as the script names it.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> impl Iterator<Item = String> {
        let quoted = self.source.split("call('").skip(1);
        quoted.filter_map(|rest| Some(rest.split_once('\'')?.0.to_lowercase()))
    }

    /// Declares the script's needs, which are named where a server refuses it.
    #[must_use]
    pub(crate) fn needing(self, needs: &'static Needs) -> Script {
        Script {
            needs: Some(needs),
            ..self
        }
    }
}

/// A flag by which some calls are given up. Its owner may then send requests that undo the calls
/// over the connections of those calls: none of the calls is sent behind that. While one of the
/// calls is being sent, giving up waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp(Arc<Mutex<bool>>);

impl GivenUp {
    /// Gives the calls up.
    #[cfg(feature = "redlock")]
    pub(crate) fn set(&self) {
        *leasehold_core::support::locked(&self.0) = true;
    }

    /// Returns a guard: the calls are not given up while it is held. `None` if they are given up,
    /// or while another of them is being sent: no thread waits here, since it may hold other
    /// guards.
    fn not_yet(&self) -> Option<MutexGuard<'_, bool>> {
        self.0.try_lock().ok().filter(|given_up| !**given_up)
    }
}

/// One run of a script.
#[derive(Clone)]
#[allow(missing_debug_implementations, reason = "it carries a claim's id")]
pub(crate) struct Call {
    script: &'static Script,
    /// `EVALSHA`, the hash, and the arguments.
    command: Cmd,
    keys: usize,
    names: usize,
    /// The number of the only connection that may carry the call.
    over: Option<u64>,
    given_up: Option<GivenUp>,
}

impl Call {
    /// A call with this number of keys, which are the next arguments.
    pub(crate) fn of(script: &'static Script, keys: usize) -> Call {
        let mut command =
            Cmd::with_capacity(SPACE.0.max(keys * EACH.0 + 5), SPACE.1.max(keys * EACH.1));
        command.arg("EVALSHA").arg(&script.hash).arg(keys);
        Call {
            script,
            command,
            keys,
            names: 1,
            over: None,
            given_up: None,
        }
    }

    /// Adds a key, or an argument after the keys.
    #[must_use]
    #[allow(
        clippy::needless_pass_by_value,
        reason = "values are named in place, as in `format!`"
    )]
    pub(crate) fn arg(mut self, arg: impl Display) -> Call {
        // Writing to memory fails never.
        let _ = write!(self.command.writer_for_next_arg(), "{arg}");
        self
    }

    /// Adds the keys of a lock: the lock itself, and those beside it with these endings.
    #[must_use]
    pub(crate) fn lock(self, lock: &str, beside: &[&str]) -> Call {
        let beside = beside.iter();
        beside.fold(self.arg(lock), |call, end| {
            call.arg(format_args!("{{{lock}}}:{end}"))
        })
    }

    /// Notes that the call is for this number of names.
    #[must_use]
    pub(crate) fn names(mut self, names: usize) -> Call {
        self.names = names;
        self
    }

    /// Sends the call over the connection of this number, or not at all.
    #[must_use]
    pub(crate) fn over(mut self, nth: u64) -> Call {
        self.over = Some(nth);
        self
    }

    /// Gives the call up once this flag is set: a server that does not know the script by then is
    /// not taught it.
    #[cfg(feature = "redlock")]
    #[must_use]
    pub(crate) fn until(mut self, given_up: GivenUp) -> Call {
        self.given_up = Some(given_up);
        self
    }

    /// Returns a guard, if the call can be given up: it is not while the guard is held. `None` if
    /// it is given up.
    fn wanted(&self) -> Option<Option<MutexGuard<'_, bool>>> {
        self.given_up
            .as_ref()
            .map_or(Some(None), |it| it.not_yet().map(Some))
    }

    /// Runs the call: one request, or two if the server did not know the script.
    pub(crate) async fn run(&self, connection: &Connection) -> Result<Value> {
        let answer = self.said(connection).await?;
        self.refusal(connection, answer).await
    }

    /// Turns a refusal by the server into an error in our words, with the right that is missing.
    pub(crate) async fn refusal(&self, connection: &Connection, answer: Value) -> Result<Value> {
        if let Some(needs) = self.script.needs
            && is_denied(&answer)
        {
            let keys = self.all_keys();
            let absent = format!("{{{}}}:-", keys.first().map_or("", String::as_str));
            // Boxed: this is rare, and unboxed it would enlarge every call's future.
            let missing = Box::pin(missing(connection, needs, &keys, &absent)).await;
            if let Ok(Some(e)) = missing {
                return Err(e);
            }
        }
        connection.refusal(answer)
    }

    fn all_keys(&self) -> Vec<String> {
        let declared = self.command.args_iter().skip(3).take(self.keys);
        let text = |arg| match arg {
            Arg::Simple(arg) => Some(String::from_utf8_lossy(arg).into_owned()),
            _ => None,
        };
        declared.filter_map(text).collect()
    }

    /// Returns the server's answer: one request, or two if the server did not know the script.
    pub(crate) async fn said(&self, connection: &Connection) -> Result<Value> {
        let mut answer = connection.send_one(self.over, &self.command).await?;
        if unknown(&answer) {
            // Boxed: this is rare, and unboxed it would enlarge every call's future.
            let mut taught =
                Box::pin(together(connection, slice::from_ref(self), vec![0], true)).await?;
            answer = taught.pop().map_or(answer, |(_, taught)| taught);
        }
        Ok(answer)
    }

    /// Returns the answer of a Cluster's node, which may refuse the call. With `asking`, the node
    /// is to serve a slot that is not its own yet.
    pub(crate) async fn answer(&self, connection: &Connection, asking: bool) -> Result<Value> {
        let mut answer = Value::Nil;
        for command in [None, Some(self.teaching())] {
            let mut request = Pipeline::with_capacity(2);
            if asking {
                request.cmd("ASKING");
            }
            request.add_command(command.unwrap_or_else(|| self.command.clone()));
            answer = connection
                .send_many(self.over, &request)
                .await?
                .pop()
                .unwrap_or_default();
            if !unknown(&answer) {
                break;
            }
        }
        Ok(answer)
    }

    /// This call with the script itself in place of its hash, which teaches the script to the
    /// server.
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

/// Runs these calls of one script: many in one flight, and all flights side by side. Each call has
/// its answer at its position. A call that is given up before it is sent has the answer nil.
pub(crate) async fn run_all(connection: &Connection, calls: &[Call]) -> Vec<Result<Value>> {
    let mut results = Vec::with_capacity(calls.len());
    let mut is_explained = false;
    for (call, answer) in zip(calls, answers(connection, calls).await) {
        results.push(match answer {
            // The server is asked once which right is missing, for all calls.
            Ok(answer) if !is_explained && is_denied(&answer) => {
                is_explained = true;
                call.refusal(connection, answer).await
            }
            answer => answer.and_then(|answer| connection.refusal(answer)),
        });
    }
    results
}

/// Sends these calls in flights. Returns the answers, with refusals in the server's words.
pub(crate) async fn answers<C: Borrow<Call>>(
    connection: &Connection,
    calls: &[C],
) -> Vec<Result<Value>> {
    let each = calls.first().map_or(1, |call| call.borrow().names.max(1));
    let flights =
        calls
            .chunks((FLIGHT / each).max(1))
            .map(async |some| match fly(connection, some).await {
                Ok(answers) => answers.into_iter().map(Ok).collect(),
                Err(e) => some.iter().map(|_| Err(again(&e))).collect::<Vec<_>>(),
            });
    join_all(flights).await.into_iter().flatten().collect()
}

/// Sends one flight, or two if the server did not know the script. `Err`: the outcome of all its
/// calls is unknown.
async fn fly<C: Borrow<Call>>(connection: &Connection, calls: &[C]) -> Result<Vec<Value>> {
    let mut answers = vec![Value::Nil; calls.len()];
    let mut open: Vec<usize> = (0..calls.len()).collect();
    for teaches in [false, true] {
        for (i, answer) in together(connection, calls, open, teaches).await? {
            answers[i] = answer;
        }
        open = (0..answers.len())
            .filter(|i| unknown(&answers[*i]))
            .collect();
        if open.is_empty() {
            break;
        }
    }
    Ok(answers)
}

/// Sends these of the calls together, except those that are given up. Returns the answers with the
/// numbers of their calls.
async fn together<C: Borrow<Call>>(
    connection: &Connection,
    calls: &[C],
    which: Vec<usize>,
    teaches: bool,
) -> Result<Vec<(usize, Value)>> {
    let over = calls.iter().find_map(|call| call.borrow().over);
    let mut flight = Pipeline::with_capacity(which.len());
    let mut sent = Vec::with_capacity(which.len());
    let (mut request, begun);
    {
        let mut wanted = Vec::new();
        for i in which {
            let call = calls[i].borrow();
            let Some(given_up) = call.wanted() else {
                continue;
            };
            wanted.extend(given_up);
            // The first one teaches the server the script; the others follow it on the same connection.
            flight.add_command(if teaches && sent.is_empty() {
                call.teaching()
            } else {
                call.command.clone()
            });
            sent.push(i);
        }
        if sent.is_empty() {
            return Ok(Vec::new());
        }
        request = Box::pin(unconstrained(connection.send_many(over, &flight)));
        // The first poll puts the request on the connection, behind all earlier ones. It is polled
        // again right after.
        begun = request
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
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
