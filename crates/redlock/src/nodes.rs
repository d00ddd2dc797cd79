//! The nodes: one request to all of them at once, answers as they land, and one word for several failures.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use leasehold_core::seam::Bells;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_redis::client::{ConnectionInfo, Value, pipe};
use leasehold_redis::parts::{Call, Connection, Script, junk};

static NODE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("node.lua")));

/// How far a node's clock may lead our proposals.
const MOST_AHEAD: i64 = 60_000_000;

/// The independent servers.
pub(crate) struct Nodes(Vec<Node>);

struct Node {
    connection: Arc<Connection>,
    /// By how many microseconds the node's clock was seen ahead of ours; less by the way of the answer.
    ahead: AtomicI64,
}

impl Nodes {
    /// Connects to all at once. A minority that cannot be reached is tried again in the background.
    pub(crate) async fn connect(
        infos: Vec<ConnectionInfo>,
        timeout: Duration,
        channel: &str,
        bells: &Bells,
    ) -> Result<Nodes> {
        let opened = infos.into_iter().map(|info| {
            let (channel, bells) = (channel.to_owned(), bells.clone());
            async move { Connection::open_or_repair(info, timeout, &channel, &bells).await }
        });
        let (mut nodes, mut failed) = (Vec::new(), Vec::new());
        let mut opened = Flight::of(opened);
        while let Some((nth, answer)) = opened.next().await {
            let (connection, dialled) = answer?;
            let node = Node { connection: Arc::new(connection), ahead: AtomicI64::new(0) };
            if let Err(e) = dialled {
                // A password that one of them refuses will not get better.
                if e.kind() != ErrorKind::Unavailable {
                    return Err(Error::new(e.kind(), format!("{}: {e}", node.connection.address())));
                }
                failed.push((nth, e));
            }
            nodes.push((nth, node));
        }
        nodes.sort_by_key(|(nth, _)| *nth);
        let nodes = Nodes(nodes.into_iter().map(|(_, node)| node).collect());
        if nodes.len() - failed.len() < nodes.majority() {
            return Err(nodes.failure(failed));
        }
        nodes.are_different(channel).await?;
        Ok(nodes)
    }

    /// Refuses one server under two names: it would hear our channel twice.
    async fn are_different(&self, channel: &str) -> Result<()> {
        let asked = self.0.iter().map(|node| {
            let (connection, channel) = (node.connection.clone(), channel.to_owned());
            async move {
                let mut question = pipe();
                question.cmd("PUBSUB").arg("NUMSUB").arg(channel);
                connection.send(&question).await
            }
        });
        let mut asked = Flight::of(asked);
        let mut twice = Vec::new();
        while let Some((nth, answer)) = asked.next().await {
            let Ok([Value::Array(counts)]) = answer.as_deref() else { continue };
            if matches!(counts[..], [_, Value::Int(2..)]) {
                twice.push(self.0[nth].connection.address());
            }
        }
        if twice.is_empty() {
            return Ok(());
        }
        twice.sort_unstable();
        let what = "are one and the same server, which has only one vote";
        Err(Error::new(ErrorKind::Invalid, format!("redlock: {} {what}", twice.join(" and "))))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn majority(&self) -> usize {
        self.0.len() / 2 + 1
    }

    /// Sends the same calls to every node.
    pub(crate) fn send(&self, calls: Vec<Call>) -> Flight<Result<Vec<Result<Value>>>> {
        let calls = Arc::new(calls);
        Flight::of(self.0.iter().map(|node| run(node.connection.clone(), calls.clone())))
    }

    /// Sends one call to every node.
    pub(crate) fn send_one(&self, call: Call) -> Flight<Result<Value>> {
        let call = Arc::new(vec![call]);
        Flight::of(self.0.iter().map(|node| {
            let answer = run(node.connection.clone(), call.clone());
            async move { answer.await?.pop().unwrap_or_else(|| Err(junk("no answer"))) }
        }))
    }

    /// Sends calls to one node; what it answers matters to nobody.
    pub(crate) async fn tell(&self, nth: usize, calls: Vec<Call>) {
        drop(run(self.0[nth].connection.clone(), Arc::new(calls)).await);
    }

    pub(crate) fn connection(&self, nth: usize) -> Arc<Connection> {
        self.0[nth].connection.clone()
    }

    pub(crate) fn close(&self) {
        self.0.iter().for_each(|node| node.connection.close());
    }

    /// A number that every node will most likely take as it is: the leading clock's, so that a majority answers the same.
    pub(crate) fn proposal(&self) -> u64 {
        let ahead = self.0.iter().map(|node| node.ahead.load(Ordering::Relaxed)).max().unwrap_or_default();
        wall().saturating_add_signed(ahead.clamp(0, MOST_AHEAD)).saturating_add(1000)
    }

    /// The node's clock said so just now.
    pub(crate) fn learn(&self, nth: usize, micros: u64) {
        self.0[nth].ahead.store(micros.wrapping_sub(wall()).cast_signed(), Ordering::Relaxed);
    }

    /// What the failures of so many nodes that no majority is left come to.
    pub(crate) fn failure(&self, mut failed: Vec<(usize, Error)>) -> Error {
        failed.sort_by_key(|(nth, _)| *nth);
        let unsure = failed.iter().any(|(_, e)| e.kind() == ErrorKind::Ambiguous);
        let mut kinds = failed.iter().map(|(_, e)| e.kind());
        let kind = match kinds.next() {
            _ if unsure => ErrorKind::Ambiguous,
            Some(kind) if kinds.all(|other| other == kind) => kind,
            _ => ErrorKind::Unavailable,
        };
        let each: Vec<String> =
            failed.iter().map(|(nth, e)| format!("{}: {e}", self.0[*nth].connection.address())).collect();
        Error::new(kind, format!("{} of {} nodes failed: {}", failed.len(), self.len(), each.join("; ")))
    }
}

/// Microseconds of this machine's wall clock: only ever proposed, nothing is judged by it.
fn wall() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

async fn run(connection: Arc<Connection>, calls: Arc<Vec<Call>>) -> Result<Vec<Result<Value>>> {
    NODE.run_all(&connection, &calls).await
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.0.iter().map(|node| format!("{}: {:?}", node.connection.address(), node.connection));
        f.write_str(&each.collect::<Vec<_>>().join("; "))
    }
}

type Request<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Requests under way, one for each node.
pub(crate) struct Flight<T> {
    requests: Vec<(usize, Request<T>)>,
    landed: VecDeque<(usize, T)>,
}

impl<T: Send + 'static> Flight<T> {
    pub(crate) fn of(requests: impl Iterator<Item = impl Future<Output = T> + Send + 'static>) -> Flight<T> {
        let requests = requests.enumerate().map(|(nth, request)| (nth, Box::pin(request) as Request<T>));
        Flight { requests: requests.collect(), landed: VecDeque::new() }
    }

    /// The next answer, and whose it is. All requests are polled before any answer is given out: so all have been sent,
    /// and in their order, before anybody can act on an answer.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            self.requests.retain_mut(|(nth, request)| match request.as_mut().poll(cx) {
                Poll::Ready(answer) => {
                    self.landed.push_back((*nth, answer));
                    false
                }
                Poll::Pending => true,
            });
            match self.landed.pop_front() {
                Some(answer) => Poll::Ready(Some(answer)),
                None if self.requests.is_empty() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Whether answers are still out.
    pub(crate) fn is_open(&self) -> bool {
        !(self.requests.is_empty() && self.landed.is_empty())
    }

    /// The answers that are still out matter no more. They are waited for all the same: a request that is dropped makes
    /// its connection suspect.
    pub(crate) fn let_land(mut self) {
        if !self.requests.is_empty() {
            tokio::spawn(async move { while self.next().await.is_some() {} });
        }
    }
}
