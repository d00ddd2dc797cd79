//! The nodes: sends one request to all of them at once, takes their answers as they come, and makes
//! one error of several failures.

use std::future::{Future, ready};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::link::{
    CLOCK, Call, Connection, Fields, Inbox, Needs, Script, Server, StoreMark, check, junk, record,
    run_all, warnings,
};
use crate::redlock::client::list::{List, Served};
use crate::redlock::config::suffices_alone;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::support::wall;
use leasehold_core::{Error, ErrorKind, Result};
use redis::{Value, from_redis_value_ref, pipe};

/// The part of a node's scripts that writes the bound of its tokens.
pub(crate) const BOUND: &str = include_str!("../bound.lua");

pub(crate) static NODE: LazyLock<Script> = LazyLock::new(|| {
    let parts = [
        CLOCK,
        BOUND,
        include_str!("../node.lua"),
        include_str!("../operator.lua"),
    ];
    Script::new(&parts).needing(&NEEDS)
});

/// The commands that the script calls.
const NEEDS: Needs = Needs {
    calls: &[
        "exists #",
        "get #",
        "set # x y",
        "pexpire # x",
        "pttl #",
        "del -",
        "unlink -",
        "rename - -",
        "hset # x y z",
        "hget # x",
        "hmget # x",
        "hgetall #",
        "hdel # {}",
        "zadd # x x",
        "zcard #",
        "zscore # x",
        "zrange # 0 0",
        "zrevrange # 0 0",
        "zrangebyscore # 0 0",
        "zrem # x",
        "zremrangebyscore # x y",
        "publish leasehold:name: x",
        "time",
    ],
};

/// The greatest lead of a node's clock, in microseconds, that proposals follow.
const MOST_AHEAD: i64 = 60_000_000;
/// The number of microseconds that a request may be under way before nodes with equal state answer
/// differently. It is only added to a number: no client waits for it to pass.
const LEAD: u64 = 100_000;

/// The independent servers.
#[derive(Debug)]
pub(crate) struct Nodes {
    each: Vec<Node>,
    pub(crate) list: List,
}

#[derive(Debug)]
struct Node {
    connection: Arc<Connection>,
    /// The lead of the node's clock over ours when it was last seen, in microseconds, less the
    /// travel time of the answer.
    ahead: AtomicI64,
}

/// Requests under way, one for each node: the answers as they come, with the number of the node.
/// All requests that can be sent have been sent before the first answer comes back.
pub(crate) type InFlight<T> = FuturesUnordered<BoxFuture<'static, (usize, T)>>;

/// Takes one answer after another, until `enough` returns `true`.
pub(crate) async fn each_answer<T>(
    requests: &mut InFlight<T>,
    mut enough: impl FnMut(usize, T) -> bool,
) {
    while let Some((nth, answer)) = requests.next().await {
        if enough(nth, answer) {
            return;
        }
    }
}

/// Awaits answers that do not matter any more, in the background: a dropped request makes its
/// connection suspect.
pub(crate) fn await_later<T: Send + 'static>(requests: InFlight<T>) {
    if !requests.is_empty() {
        tokio::spawn(requests.for_each(|_| ready(())));
    }
}

impl Nodes {
    /// Connects to all nodes at once. A minority that cannot be reached is tried again in the
    /// background. Returns also warnings for people.
    pub(crate) async fn connect(
        servers: Vec<Server>,
        timeout: Duration,
        inbox: &Inbox,
        ([tokens, .., record], absent, mark): (&[String; 4], &str, &str),
    ) -> Result<(Nodes, Vec<String>)> {
        let list = List::new(&servers);
        let marks = StoreMark::of_nodes(servers.len(), mark);
        let node = |(server, mark)| {
            let mark = Some(mark);
            let server = Server { mark, ..server };
            let connection = Arc::new(Connection::new(server, timeout, Duration::ZERO, inbox)?);
            Ok(Node {
                connection,
                ahead: AtomicI64::new(0),
            })
        };
        let all = servers.into_iter().zip(marks);
        let each = all.map(node).collect::<Result<_>>()?;
        let nodes = Nodes { each, list };
        let connecting = nodes.connections().map(async |connection| {
            connection.connect().await?;
            check(connection, &NEEDS, tokens, absent).await
        });
        let connected = join_all(connecting).await.into_iter().enumerate();
        let mut failed: Vec<_> = connected
            .filter_map(|(nth, made)| Some((nth, made.err()?)))
            .collect();
        // One server under two names, or a replica beside its primary, is a mistake in the list.
        if let Some((_, e)) = failed
            .iter()
            .find(|(_, e)| e.kind() == ErrorKind::OtherStore)
        {
            return Err(Error::new(ErrorKind::Invalid, format!("redlock: {e}")));
        }
        // A refused password, or a missing right, does not get better with time.
        if let Some(at) = failed
            .iter()
            .position(|(_, e)| e.kind() != ErrorKind::Unavailable)
        {
            return Err(nodes.failure(vec![failed.swap_remove(at)]));
        }
        if nodes.len() - failed.len() < nodes.majority() {
            return Err(nodes.failure(failed));
        }
        nodes.are_different(&inbox.channel).await?;
        let (served, silent) = nodes.served(record).await;
        nodes.list.begin(&served)?;
        let alone = match nodes.list.number() {
            0 => suffices_alone(nodes.len()),
            _ => Ok(()),
        };
        // Nodes that did not answer may know a number of the list.
        if alone.is_err() && served.len() < nodes.majority() {
            return Err(nodes.failure(silent));
        }
        alone?;
        let mut all = nodes.warnings().await;
        all.extend(
            silent
                .into_iter()
                .map(|(_, e)| format!("{e} (so the list of nodes that it serves is not known)")),
        );
        Ok((nodes, all))
    }

    /// The lists that the nodes serve, and an error for each node that does not tell: it refuses
    /// claims too.
    async fn served(&self, record: &str) -> (Vec<Served>, Vec<(usize, Error)>) {
        let mut question = pipe();
        let fields = ["number", "nodes", "before", "closed"];
        question.cmd("HMGET").arg(record).arg(&fields);
        let asked = self.connections().map(async |connection| {
            let answer = connection.send(&question).await?.pop();
            match connection.refusal(answer.unwrap_or_default())? {
                Value::Array(fields) => Ok(fields),
                _ => Err(connection.at(&junk("a record"))),
            }
        });
        let mut served = Vec::new();
        let mut silent = Vec::new();
        for (nth, answer) in join_all(asked).await.into_iter().enumerate() {
            let fields = match answer {
                Ok(fields) => fields,
                Err(e) => {
                    let kind = match e.kind() {
                        // It is a question only.
                        ErrorKind::Ambiguous => ErrorKind::Unavailable,
                        kind => kind,
                    };
                    silent.push((nth, e.with_kind(kind)));
                    continue;
                }
            };
            let text =
                |nth: usize| from_redis_value_ref::<Option<String>>(fields.get(nth)?).ok()?;
            served.push(Served {
                number: text(0).and_then(|number| number.parse().ok()),
                nodes: text(1).unwrap_or_default(),
                before: text(2).unwrap_or_default(),
                is_closed: text(3).is_some(),
            });
        }
        (served, silent)
    }

    /// Reads a node's answer to a claim or a renewal. A refusal of the list is an error.
    pub(crate) fn record(&self, nth: usize, answer: &Value) -> Result<String> {
        let answer = record(answer)?;
        let mut fields = Fields::of(&answer);
        if fields.word() != "list" {
            return Ok(answer);
        }
        let refused = self.list.refused(&Served::of(fields)?);
        Err(self.each[nth].connection.at(&refused).answered())
    }

    /// Refuses one server under two names: it would have two subscribers of our channel.
    async fn are_different(&self, channel: &str) -> Result<()> {
        let mut question = pipe();
        question.cmd("PUBSUB").arg("NUMSUB").arg(channel);
        let answers = join_all(
            self.connections()
                .map(|connection| connection.send(&question)),
        )
        .await;
        let has_two = |answer: &Result<Vec<Value>>| match answer.as_deref() {
            Ok([Value::Array(counts)]) => matches!(counts[..], [_, Value::Int(2..)]),
            _ => false,
        };
        let twice = self
            .connections()
            .zip(&answers)
            .filter(|(_, answer)| has_two(answer));
        let twice: Vec<&str> = twice.map(|(connection, _)| connection.address()).collect();
        // One address alone was reached twice: a former connection is not closed there yet.
        if twice.len() < 2 {
            return Ok(());
        }
        let what = "are one and the same server, which has only one vote";
        Err(Error::new(
            ErrorKind::Invalid,
            format!("redlock: {} {what}", twice.join(" and ")),
        ))
    }

    /// The warnings about the settings of each node.
    async fn warnings(&self) -> Vec<String> {
        let found = self.connections().map(|node| warnings(node, false));
        let found = join_all(found).await;
        let each = self.connections().zip(found);
        each.flat_map(|(node, found)| {
            found
                .into_iter()
                .map(|it| format!("{}: {it}", node.address()))
        })
        .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    pub(crate) fn majority(&self) -> usize {
        self.each.len() / 2 + 1
    }

    /// Asks every node one question.
    pub(crate) fn ask<T, F>(&self, question: impl Fn(Arc<Connection>) -> F) -> InFlight<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let one = |(nth, node): (usize, &Node)| -> BoxFuture<'static, _> {
            let answer = question(node.connection.clone());
            Box::pin(async move { (nth, answer.await) })
        };
        self.each.iter().enumerate().map(one).collect()
    }

    /// Sends these calls to every node.
    pub(crate) fn send_all(&self, calls: Vec<Call>) -> InFlight<Vec<Result<Value>>> {
        let calls = Arc::new(calls);
        self.ask(|connection| {
            let calls = calls.clone();
            async move { run_all(&connection, &calls).await }
        })
    }

    /// Sends one call to every node.
    pub(crate) fn send(&self, call: Call) -> InFlight<Result<Value>> {
        let call = Arc::new(call);
        self.ask(|connection| {
            let call = call.clone();
            async move { call.run(&connection).await }
        })
    }

    /// Sends calls to one node and ignores the answers.
    pub(crate) async fn send_to(&self, nth: usize, calls: Vec<Call>) {
        drop(run_all(&self.each[nth].connection, &calls).await);
    }

    /// Returns the answers of at least a majority. With `all`, it waits for every node.
    pub(crate) async fn majority_of<T: Send + 'static>(
        &self,
        mut requests: InFlight<Result<T>>,
        all: bool,
    ) -> Result<Vec<T>> {
        let mut answers = Vec::new();
        let mut failed = Vec::new();
        each_answer(&mut requests, |nth, answer| {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(e) => failed.push((nth, e)),
            }
            !all && answers.len() >= self.majority()
        })
        .await;
        await_later(requests);
        if answers.len() >= self.majority() {
            Ok(answers)
        } else {
            Err(self.failure(failed))
        }
    }

    pub(crate) fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.each.iter().map(|node| &*node.connection)
    }

    /// A number that every node will most likely take as it is, so that a majority answers alike:
    /// the reading of the leading clock when the last node has got it.
    pub(crate) fn proposal(&self) -> u64 {
        let ahead = self
            .each
            .iter()
            .map(|node| node.ahead.load(Ordering::Relaxed))
            .max()
            .unwrap_or_default();
        wall()
            .saturating_add_signed(ahead.clamp(0, MOST_AHEAD))
            .saturating_add(LEAD)
    }

    /// Notes that the node's clock had this reading just now.
    pub(crate) fn learn(&self, nth: usize, micros: u64) {
        self.each[nth]
            .ahead
            .store(micros.wrapping_sub(wall()).cast_signed(), Ordering::Relaxed);
    }

    /// The error for failures of so many nodes that no majority is left.
    pub(crate) fn failure(&self, mut failed: Vec<(usize, Error)>) -> Error {
        failed.sort_by_key(|(nth, _)| *nth);
        let unsure = failed.iter().any(|(_, e)| e.kind() == ErrorKind::Ambiguous);
        let mut kinds = failed.iter().map(|(_, e)| e.kind());
        let kind = match kinds.next() {
            _ if unsure => ErrorKind::Ambiguous,
            Some(kind) if kinds.all(|other| other == kind) => kind,
            _ => ErrorKind::Unavailable,
        };
        let is_answer = failed.iter().all(|(_, e)| e.is_answer());
        let each: Vec<String> = failed.iter().map(|(_, e)| e.to_string()).collect();
        let what = format!(
            "{} of {} nodes failed: {}",
            failed.len(),
            self.len(),
            each.join("; ")
        );
        let error = Error::new(kind, what);
        if is_answer { error.answered() } else { error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every right that is checked is used, and every right that is used is checked.
    #[test]
    fn what_is_needed_is_what_the_script_calls() {
        let mut called: Vec<String> = NODE.calls().collect();
        called.sort_unstable();
        called.dedup();
        let calls = NEEDS.calls.iter();
        let mut needed: Vec<&str> = calls.filter_map(|call| call.split(' ').next()).collect();
        needed.sort_unstable();
        assert_eq!(called, needed);
    }
}
