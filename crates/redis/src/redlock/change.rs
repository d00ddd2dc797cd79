//! The change of the list of nodes while programs run.
//!
//! # The algorithm
//!
//! Change *k* leads from list *k* - 1, `old`, to list *k*, `new`, which differ in one node at most, so
//! that a majority of one and a majority of the other share a node. A program may go by the list before
//! the newest one. It has to be impossible that it goes by an older one.
//!
//! 1. **Promise.** A majority of `old`, for the first number all of it, promises to accept no proposal
//!    of a lower ballot. If one was accepted before, this run carries it through in place of its own
//!    (Paxos, for each number), so that two operators never open two lists under one number.
//! 2. **Close.** A majority of `old` accepts the proposal, and serves list *k* - 2 no longer. Each
//!    node answers when the last lease ends that it granted to that list, and a bound of its tokens.
//! 3. **Wait** for the last of those ends: no client holds by list *k* - 2 any more.
//! 4. **Open.** Every node of both lists serves list *k*, and *k* - 1. Its tokens begin above the
//!    bound. The change is done when a majority of `new` is open.
//!
//! A run that dies is repeated from the beginning; a list that is open at some node needs the last step
//! only. A node that was away is left behind: it serves no current number, and is brought up by the
//! next change. It never learns a list without the bound of a node that has it.
//!
//! A node without data has no record, so it serves no list that has a number, promises nothing, and is
//! not opened by the change that finds it: its votes may be parts of holds that go on elsewhere. It is
//! listed as absent, with a random text that it keeps and that goes with its data, and the next change
//! opens it if it still has that text. A new node has such a text, too, and is opened at once. Programs
//! that still send the number 0 are served by a node without a record, as if nothing had happened.
//!
//! Each rule was found with a model, in which its absence gives two holders, two lists of one number, a
//! token that falls, or a change that cannot end: `crates/models`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::backend::ClaimId;
use leasehold_core::{Error, ErrorKind, Result};
use redis::{Value, from_redis_value_ref};
use tokio::time::sleep;

use crate::link::{CLOCK, Call, Connection, Inbox, Names, Script, Server, StoreMark, junk};
use crate::redlock::client::list::{address, canonical};
use crate::redlock::client::nodes::BOUND;
use crate::redlock::config::check;
use crate::redlock::{BESIDE, Config, invalid, keys_of_all};

/// The number of ballots that are lost to other runs before this one gives up.
const BALLOTS: usize = 8;

const OVERTAKEN: &str = "redlock: somebody else has opened the next list meanwhile: repeat it";

static LIST: std::sync::LazyLock<Script> =
    std::sync::LazyLock::new(|| Script::new(&[CLOCK, BOUND, include_str!("list.lua")]));

/// The outcome of [`change_nodes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodesChange {
    /// The number of the list that is open now.
    pub number: u64,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// An earlier change to other nodes was not complete: it was carried through, and the one that
    /// was asked for was not begun.
    pub was_another: bool,
    /// The nodes of the list that are not open yet, and why. They have no vote.
    pub without_vote: Vec<(String, String)>,
}

/// Changes the list of nodes from `old` to `new` while programs run, as an operator does it. Both
/// lists may be equal: that gives today's list a number, or brings back nodes that were away or have
/// lost their data. `waits` is called with the time to wait for leases, before the wait.
///
/// Programs that were started with `old` go on, and programs may be started with `new` from then on.
/// Before the next change no program may use `old` any more: from then on its claims fail.
///
/// Other tools on the same locks know nothing of it. They have to go by `old` or `new`, and by the
/// newer list before the next change.
///
/// It can be repeated: between two different lists it completes what is left to do.
///
/// # Errors
///
/// `Invalid` if the lists differ in more than one node, if one has fewer than two or names a server
/// twice, if their prefixes or databases differ, if `old` is not the newest list, or has no number and
/// is to change; `Unavailable` if a majority of `old` (for the first number all of it), or a new node,
/// does not answer, or a majority of `new` cannot be opened; `Denied` if those refuse the password or lack a
/// right. Nothing is lost then: it is to be repeated.
///
/// # Cancel safety
///
/// A change that is dropped half-way is not complete. Locks go on. It is to be repeated.
pub async fn change_nodes(
    old: &Config,
    new: &Config,
    waits: impl FnOnce(Duration),
) -> Result<NodesChange> {
    let lists = Lists::of(old, new)?;
    let nodes = Nodes::connect(old, new).await?;
    let records = nodes.records().await;
    let id = ClaimId::fresh().to_string();
    let (number, before) = match plan(&lists, &records)? {
        Plan::First => {
            nodes.begin_life(&lists, &id).await?;
            (1, None)
        }
        Plan::Next(before) => (before.number.unwrap_or_default() + 1, Some(before)),
        Plan::Finish(open) => return nodes.open(&lists, &open, &lists.new).await,
    };
    let behind = match &before {
        Some(before) => nodes.bring_up(before, &records).await,
        None => BTreeMap::new(),
    };
    let own = nodes
        .propose(&lists, number, before.as_ref(), &records)
        .await?;
    let (accepted, closed) = nodes.agree(&lists.old, number, own, &id, &behind).await?;
    if number > 1 && !closed.left.is_zero() {
        // Clocks that run at different rates are within a fiftieth of one another.
        let rest = closed.left + closed.left / 50 + Duration::from_millis(10);
        waits(rest);
        sleep(rest).await;
    }
    let open = Record {
        number: Some(number),
        before: lists.old.clone(),
        bound: closed.bound,
        ..Record::of(accepted)
    };
    nodes.open(&lists, &open, &lists.new).await
}

/// The two lists, as records name them.
struct Lists {
    old: String,
    new: String,
}

impl Lists {
    fn of(old: &Config, new: &Config) -> Result<Lists> {
        check(&old.nodes)?;
        check(&new.nodes)?;
        let set = |config: &Config| config.nodes.iter().map(address).collect::<BTreeSet<_>>();
        let (from, to) = (set(old), set(new));
        if from.symmetric_difference(&to).count() > 1 {
            return Err(invalid(
                "one node at a time: add it or remove it, and replace one by a list in which both are",
            ));
        }
        if old.prefix != new.prefix {
            return Err(invalid("both lists have to have one prefix"));
        }
        // A database is no part of a node's name.
        let databases = |config: &Config| -> BTreeMap<String, i64> {
            let each = config.nodes.iter();
            each.map(|it| (address(it), it.info.redis_settings().db()))
                .collect()
        };
        let new_databases = databases(new);
        let is_same =
            |(node, db): (&String, &i64)| new_databases.get(node).is_none_or(|it| it == db);
        if !databases(old).iter().all(is_same) {
            return Err(invalid("both lists have to have one database"));
        }
        Ok(Lists {
            old: canonical(&old.nodes),
            new: canonical(&new.nodes),
        })
    }
}

/// A node's record: the newest list that is open there, and a bound of its tokens.
#[derive(Clone, Debug, Default)]
struct Record {
    number: Option<u64>,
    nodes: String,
    before: String,
    absent: Blanks,
    fresh: Blanks,
    bound: String,
}

impl Record {
    /// The record of a node at which this list is open.
    fn of(accepted: Proposal) -> Record {
        Record {
            nodes: accepted.nodes,
            fresh: accepted.fresh,
            absent: accepted.absent,
            ..Record::default()
        }
    }
}

/// Nodes without a number, and the text that each of them keeps.
type Blanks = BTreeMap<String, String>;

/// A list to open, and the nodes without a number in it: those that are opened with it, and those that
/// are not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Proposal {
    nodes: String,
    fresh: Blanks,
    absent: Blanks,
}

/// The change to make.
enum Plan {
    /// The list gets the number 1.
    First,
    /// The old list is the newest one, with this record.
    Next(Record),
    /// The new list is open at some node, with this record: an earlier run has agreed and waited.
    Finish(Record),
}

/// The answers of the nodes that serve the list before the old one no longer.
struct Closed {
    left: Duration,
    bound: String,
}

/// A majority of a list.
fn majority(nodes: &str) -> usize {
    nodes.split(',').count() / 2 + 1
}

/// Returns whether this list has this node.
fn names(list: &str, node: &str) -> bool {
    list.split(',').any(|it| it == node)
}

fn blanks(text: &str) -> Blanks {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(node, blank)| (node.into(), blank.into()))
        .collect()
}

fn pairs(blanks: &Blanks) -> String {
    let pairs: Vec<String> = blanks
        .iter()
        .map(|(node, blank)| format!("{node}={blank}"))
        .collect();
    pairs.join(",")
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {}",
            self.nodes,
            pairs(&self.fresh),
            pairs(&self.absent)
        )
    }
}

impl Proposal {
    fn read(text: &str) -> Option<Proposal> {
        let mut words = text.split(' ');
        let nodes = words.next().filter(|nodes| !nodes.is_empty())?.to_owned();
        let fresh = blanks(words.next()?);
        let absent = blanks(words.next()?);
        Some(Proposal {
            nodes,
            fresh,
            absent,
        })
    }
}

/// Finds which change the lists mean.
fn plan(lists: &Lists, records: &BTreeMap<String, Result<Record>>) -> Result<Plan> {
    let known = records.values().flatten();
    let newest = known
        .filter(|record| record.number > Some(0))
        .max_by_key(|it| it.number);
    let Some(newest) = newest.cloned() else {
        return first(lists, records);
    };
    let top = newest.number.unwrap_or_default();
    let open_at_top = records.iter().filter(|(node, record)| {
        let is_open = record
            .as_ref()
            .is_ok_and(|record| record.number == Some(top));
        is_open && newest.nodes.split(',').any(|other| other == *node)
    });
    let is_complete = open_at_top.count() >= majority(&newest.nodes);
    let is_asked = newest.nodes == lists.new && newest.before == lists.old;
    if is_asked && (lists.old != lists.new || !is_complete) {
        return Ok(Plan::Finish(newest));
    }
    if newest.nodes == lists.old {
        return Ok(Plan::Next(newest));
    }
    // Those that answered may all have been left behind.
    let answered = |node: &&str| matches!(records.get(*node), Some(Ok(_)));
    let count = lists.old.split(',').filter(answered).count();
    if count < majority(&lists.old) {
        let what = format!(
            "redlock: {count} of the nodes {} answered, which is no majority, so the list in use is not known",
            lists.old
        );
        return Err(Error::new(ErrorKind::Unavailable, what));
    }
    Err(invalid(&format!(
        "the nodes are {} (list {top}), and OLD is {}",
        newest.nodes, lists.old
    )))
}

/// The change that gives a list its first number. A node that does not answer may have one, and one
/// without a record has lost its data then.
fn first(lists: &Lists, records: &BTreeMap<String, Result<Record>>) -> Result<Plan> {
    let failed = records.values().filter_map(|it| it.as_ref().err());
    let failed: Vec<&Error> = failed.collect();
    if !failed.is_empty() {
        let what = match failed.len() < records.len() {
            true => "no node that answered has a number, and those that did not may have one",
            false => "no node answered",
        };
        return Err(failure(what, failed));
    }
    if lists.old != lists.new {
        return Err(invalid(
            "the list of nodes has no number yet: give it one first, by a change from OLD to OLD",
        ));
    }
    Ok(Plan::First)
}

/// One error for these, of their kind if all have one: a refused password does not get better with
/// time. A node that has lost its data does, by a repetition.
fn failure<'a>(what: &str, failed: impl IntoIterator<Item = &'a Error>) -> Error {
    let failed: Vec<&Error> = failed.into_iter().collect();
    let kind = match failed.first().map(|e| e.kind()) {
        Some(kind) if kind != ErrorKind::OtherStore && failed.iter().all(|e| e.kind() == kind) => {
            kind
        }
        _ => ErrorKind::Unavailable,
    };
    let each: Vec<String> = failed.iter().map(ToString::to_string).collect();
    Error::new(kind, format!("redlock: {what}: {}", each.join("; ")))
}

/// The connections to the nodes of both lists.
struct Nodes {
    each: BTreeMap<String, Result<Connection>>,
    of_all: [String; 4],
}

impl Nodes {
    async fn connect(old: &Config, new: &Config) -> Result<Nodes> {
        let mark = Names::new(&old.prefix, &BESIDE)?.mark();
        let servers = old.nodes.iter().chain(&new.nodes);
        let servers: BTreeMap<String, &Server> =
            servers.map(|server| (address(server), server)).collect();
        let inbox = Inbox::new(false);
        let marks = StoreMark::of_nodes(servers.len(), &mark);
        let connect = async |server: &Server, mark| {
            let server = Server {
                mark: Some(mark),
                ..server.clone()
            };
            let connection = Connection::new(server, old.timeout, Duration::ZERO, &inbox)?;
            connection.connect().await?;
            Ok(connection)
        };
        let each = servers.into_iter().zip(marks);
        let connecting = each.map(async |((node, server), mark)| {
            let connected: Result<Connection> = connect(server, mark).await;
            (node, connected)
        });
        let each: BTreeMap<String, Result<Connection>> =
            join_all(connecting).await.into_iter().collect();
        let mut failed = each.values().filter_map(|it| it.as_ref().err());
        // One server under two names.
        if let Some(e) = failed.find(|e| e.kind() == ErrorKind::OtherStore) {
            return Err(invalid(&e.to_string()));
        }
        Ok(Nodes {
            each,
            of_all: keys_of_all(&old.prefix),
        })
    }

    /// Asks one node. `args` are a verb and what it takes.
    async fn ask(&self, node: &str, args: &[&str]) -> Result<Vec<String>> {
        let connection = match self.each.get(node) {
            Some(Ok(connection)) => connection,
            Some(Err(e)) => return Err(Error::new(e.kind(), e.to_string())),
            None => return Err(invalid(&format!("{node} is in neither list"))),
        };
        let [tokens, older, bound, record] = &self.of_all;
        let keys = [record, tokens, older, bound];
        let call = keys.iter().fold(Call::of(&LIST, keys.len()), Call::arg);
        let call = args.iter().fold(call, |call, arg| call.arg(arg));
        let text =
            |value: &Value| from_redis_value_ref::<String>(value).map_err(|_| junk("a record"));
        match call.run(connection).await? {
            Value::Array(fields) => fields.iter().map(text).collect(),
            one => Ok(vec![text(&one)?]),
        }
    }

    /// Asks these nodes at once.
    async fn ask_all<'a>(
        &self,
        nodes: impl IntoIterator<Item = &'a str>,
        args: &[&str],
    ) -> Vec<(&'a str, Result<Vec<String>>)> {
        join_all(
            nodes
                .into_iter()
                .map(async |node| (node, self.ask(node, args).await)),
        )
        .await
    }

    async fn records(&self) -> BTreeMap<String, Result<Record>> {
        let answers = self
            .ask_all(self.each.keys().map(String::as_str), &["read"])
            .await;
        let record = |fields: Vec<String>| {
            let [number, nodes, before, absent, fresh, bound] =
                <[String; 6]>::try_from(fields).map_err(|_| junk("a record"))?;
            Ok(Record {
                number: number.parse().ok(),
                nodes,
                before,
                absent: blanks(&absent),
                fresh: blanks(&fresh),
                bound,
            })
        };
        answers
            .into_iter()
            .map(|(node, answer)| (node.to_owned(), answer.and_then(record)))
            .collect()
    }

    /// Leaves this text at each node for the first number: a node that loses its data from here on
    /// does not promise. No node has a number after that.
    async fn begin_life(&self, lists: &Lists, text: &str) -> Result<()> {
        for (_, answer) in self
            .ask_all(lists.old.split(','), &["life", "1", text])
            .await
        {
            answer?;
        }
        match plan(lists, &self.records().await)? {
            Plan::First => Ok(()),
            _ => Err(Error::new(ErrorKind::Unavailable, OVERTAKEN)),
        }
    }

    /// Opens the old list at its nodes that were away when it was opened: they can promise then.
    /// Returns why that failed, for each node that is still behind.
    async fn bring_up(
        &self,
        old: &Record,
        records: &BTreeMap<String, Result<Record>>,
    ) -> BTreeMap<String, String> {
        let is_behind = |node: &&str| match records.get(*node) {
            Some(Ok(record)) => record.number.is_some() && record.number < old.number,
            _ => false,
        };
        let behind = old.nodes.split(',').filter(is_behind);
        let opened = behind.map(async |node| {
            let why = self.open_at(node, old).await.err()?;
            Some((node.to_owned(), why.to_string()))
        });
        join_all(opened).await.into_iter().flatten().collect()
    }

    /// The list to propose. Each node without a number gets a text that goes with its data.
    async fn propose(
        &self,
        lists: &Lists,
        number: u64,
        before: Option<&Record>,
        records: &BTreeMap<String, Result<Record>>,
    ) -> Result<Proposal> {
        let mut proposal = Proposal {
            nodes: lists.new.clone(),
            fresh: Blanks::new(),
            absent: Blanks::new(),
        };
        let Some(before) = before else {
            return Ok(proposal);
        };
        for node in lists.new.split(',') {
            let is_new = !names(&lists.old, node);
            // Absent in the old list, or to be opened with it, and not reached.
            let was = before.absent.get(node).or_else(|| before.fresh.get(node));
            let blank = match records.get(node) {
                Some(Ok(record)) if record.number.is_some() => continue,
                Some(Ok(_)) => self.blank(node, number).await,
                Some(Err(e)) => Err(Error::new(e.kind(), e.to_string())),
                None => continue,
            };
            match blank {
                // Another run has given it a number meanwhile.
                Ok(blank) if blank.is_empty() => {}
                Ok(blank) if is_new || was == Some(&blank) => {
                    proposal.fresh.insert(node.to_owned(), blank);
                }
                Ok(blank) => {
                    proposal.absent.insert(node.to_owned(), blank);
                }
                Err(e) if is_new => {
                    let what = format!("redlock: the new node has to answer: {e}");
                    return Err(Error::new(e.kind(), what));
                }
                // It is opened if it still has the text that it had, and otherwise that is reported.
                Err(_) => proposal
                    .fresh
                    .extend(was.map(|was| (node.to_owned(), was.clone()))),
            }
        }
        let answers = |node: &str| matches!(records.get(node), Some(Ok(_)));
        // A list without such a majority can neither be completed nor changed again.
        let can_open = |node: &&str| {
            proposal.fresh.contains_key(*node) && answers(node)
                || matches!(records.get(*node), Some(Ok(record)) if record.number.is_some())
        };
        let open = lists.new.split(',').filter(can_open).count();
        if open < majority(&lists.new) {
            let what = format!(
                "only {open} of the nodes {} answer and have their data, which is no majority: bring others back before",
                lists.new
            );
            let others = lists.new.split(',').filter(|node| !can_open(node));
            let without = others.map(|node| match records.get(node) {
                Some(Err(e)) => Error::new(e.kind(), e.to_string()),
                _ => Error::new(
                    ErrorKind::Unavailable,
                    format!("{node}: it has lost its data"),
                ),
            });
            return Err(failure(&what, &without.collect::<Vec<_>>()));
        }
        Ok(proposal)
    }

    /// The text of a node without a number, which goes with its data; empty if it has a number.
    async fn blank(&self, node: &str, number: u64) -> Result<String> {
        let text = ClaimId::fresh().to_string();
        let answer = self
            .ask(node, &["blank", &number.to_string(), &text])
            .await?;
        Ok(answer.into_iter().next().unwrap_or_default())
    }

    /// Makes a majority of the old list accept one proposal, which may be that of an earlier run.
    async fn agree(
        &self,
        old: &str,
        number: u64,
        own: Proposal,
        id: &str,
        behind: &BTreeMap<String, String>,
    ) -> Result<(Proposal, Closed)> {
        let is_first = number == 1;
        let number = number.to_string();
        let mut ballot = 1;
        for _ in 0..BALLOTS {
            let mut proposal = own.clone();
            let life = if is_first { id } else { "" };
            let args = ["promise", &number, old, &ballot.to_string(), id, life];
            let promised = self.ask_all(old.split(','), &args).await;
            let mut answers = Answers::new(old, is_first, behind);
            if is_first {
                // A node that was emptied cannot be told from the others yet, so all have to agree.
                answers.needed = answers.of;
            }
            for (node, answer) in promised {
                answers.enter(node, answer)?;
            }
            if let Some(later) = answers.later {
                ballot = later + 1;
                sleep(Duration::from_millis(fastrand::u64(5..100))).await;
                continue;
            }
            answers.suffice()?;
            if let Some((_, accepted)) = answers.accepted.take() {
                proposal = accepted;
            }
            let args = [
                "close",
                &number,
                old,
                &ballot.to_string(),
                id,
                &proposal.to_string(),
            ];
            let closed = self.ask_all(old.split(','), &args).await;
            let mut answers = Answers::new(old, is_first, behind);
            for (node, answer) in closed {
                answers.enter(node, answer)?;
            }
            if let Some(later) = answers.later {
                ballot = later + 1;
                continue;
            }
            answers.suffice()?;
            return Ok((proposal, answers.closed));
        }
        let what = "redlock: somebody else changes the list of nodes at the same time: repeat it";
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    /// Opens a list at every node of it and of the old one.
    async fn open(&self, lists: &Lists, open: &Record, asked: &str) -> Result<NodesChange> {
        let number = open.number.unwrap_or_default();
        let all: BTreeSet<&str> = lists.old.split(',').chain(open.nodes.split(',')).collect();
        let opening = all
            .into_iter()
            .map(async |node| (node, self.open_at(node, open).await));
        let opened = join_all(opening).await.into_iter();
        let of_the_list = opened.filter(|(node, _)| names(&open.nodes, node));
        let (has_vote, without): (Vec<_>, Vec<_>) =
            of_the_list.partition(|(_, opened)| opened.is_ok());
        if has_vote.len() < majority(&open.nodes) {
            let what = format!(
                "list {number} is open at {} of its nodes, which is no majority: repeat the change, to {}",
                has_vote.len(),
                open.nodes
            );
            let failed = without.iter().filter_map(|(node, opened)| {
                let e = opened.as_ref().err()?;
                Some(Error::new(e.kind(), format!("{node}: {e}")))
            });
            return Err(failure(&what, &failed.collect::<Vec<_>>()));
        }
        let without_vote = without
            .into_iter()
            .filter_map(|(node, opened)| Some((node.to_owned(), opened.err()?.to_string())))
            .collect();
        Ok(NodesChange {
            number,
            nodes: open.nodes.split(',').map(str::to_owned).collect(),
            was_another: open.nodes != asked,
            without_vote,
        })
    }

    /// Opens a list at one node.
    async fn open_at(&self, node: &str, open: &Record) -> Result<()> {
        if open.absent.contains_key(node) {
            let what = "it has lost its data: repeat the change from this list to itself";
            return Err(Error::new(ErrorKind::OtherStore, what));
        }
        if !self.each.contains_key(node) {
            let what = format!("it was not named: repeat the change, to {}", open.nodes);
            return Err(Error::new(ErrorKind::OtherStore, what));
        }
        let number = open.number.unwrap_or_default().to_string();
        let absent = pairs(&open.absent);
        let fresh = pairs(&open.fresh);
        let blank = open.fresh.get(node).map_or("", String::as_str);
        let args = [
            "open",
            &number,
            &open.nodes,
            &open.before,
            &absent,
            &fresh,
            blank,
            &open.bound,
        ];
        if self.ask(node, &args).await? == ["open"] {
            return Ok(());
        }
        let what = "it has no data: repeat the change from this list to itself, twice";
        Err(Error::new(ErrorKind::OtherStore, what))
    }
}

/// The answers of the old list's nodes to one question.
struct Answers<'a> {
    needed: usize,
    of: usize,
    /// The list gets its first number.
    is_first: bool,
    /// Why nodes could not be brought up.
    behind: &'a BTreeMap<String, String>,
    counted: usize,
    /// The greatest ballot that somebody else has.
    later: Option<u64>,
    /// What was accepted, and by which ballot.
    accepted: Option<((u64, String), Proposal)>,
    closed: Closed,
    failed: Vec<Error>,
}

impl<'a> Answers<'a> {
    fn new(old: &str, is_first: bool, behind: &'a BTreeMap<String, String>) -> Answers<'a> {
        Answers {
            needed: majority(old),
            of: old.split(',').count(),
            is_first,
            behind,
            counted: 0,
            later: None,
            accepted: None,
            closed: Closed {
                left: Duration::ZERO,
                bound: "0".into(),
            },
            failed: Vec::new(),
        }
    }

    fn enter(&mut self, node: &str, answer: Result<Vec<String>>) -> Result<()> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(e) => {
                self.failed.push(e);
                return Ok(());
            }
        };
        let words: Vec<&str> = answer.iter().map(String::as_str).collect();
        match words[..] {
            ["promised", accepted, proposal] => {
                self.counted += 1;
                let by = accepted
                    .split_once(' ')
                    .and_then(|(n, id)| Some((n.parse().ok()?, id.to_owned())));
                if let (Some(by), Some(proposal)) = (by, Proposal::read(proposal)) {
                    self.accept(by, proposal);
                }
            }
            ["closed", left, bound] => {
                self.counted += 1;
                self.close(left, bound)?;
            }
            ["open", _] => {
                return Err(Error::new(ErrorKind::Unavailable, OVERTAKEN));
            }
            ["later", ballot] => {
                let ballot = ballot.parse().map_err(|_| junk("a ballot"))?;
                self.later = self.later.max(Some(ballot));
            }
            ["none"] if self.is_first => {
                let what = "it has lost its data since this run began, or the run took longer than a minute: repeat it";
                self.fail(node, what);
            }
            ["none"] => self.fail(node, "it has lost its data"),
            ["behind"] => {
                let why = self
                    .behind
                    .get(node)
                    .map_or("repeat the change", String::as_str);
                self.fail(
                    node,
                    &format!("it was left behind, and is not brought up yet: {why}"),
                );
            }
            ["other", nodes] => {
                let first = if self.is_first {
                    ", which were named when a first number was begun: name them, or delete the record there and begin again after the longest lease"
                } else {
                    ""
                };
                let what = format!("{node} goes by other nodes: {nodes}{first}");
                return Err(invalid(&what));
            }
            _ => return Err(junk("a record")),
        }
        Ok(())
    }

    fn fail(&mut self, node: &str, what: &str) {
        let what = format!("{node}: {what}");
        self.failed.push(Error::new(ErrorKind::Unavailable, what));
    }

    fn accept(&mut self, by: (u64, String), proposal: Proposal) {
        if self.accepted.as_ref().is_none_or(|(known, _)| *known < by) {
            self.accepted = Some((by, proposal));
        }
    }

    fn close(&mut self, left: &str, bound: &str) -> Result<()> {
        let left: f64 = left.parse().map_err(|_| junk("a lease"))?;
        self.closed.left = self
            .closed
            .left
            .max(Duration::from_secs_f64(left.max(0.0) / 1000.0));
        // Bounds are whole numbers without a sign.
        let is_greater = (bound.len(), bound) > (self.closed.bound.len(), &*self.closed.bound);
        if is_greater {
            self.closed.bound = bound.to_owned();
        }
        Ok(())
    }

    /// Fails unless a majority of the old list has answered.
    fn suffice(&self) -> Result<()> {
        if self.counted >= self.needed {
            return Ok(());
        }
        let what = format!(
            "{} of {} nodes of the old list agreed, and {} are needed",
            self.counted, self.of, self.needed
        );
        Err(failure(&what, &self.failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_stalled_is_not_told_that_a_node_has_lost_its_data() {
        let behind = BTreeMap::new();
        for (is_first, stalled) in [(true, true), (false, false)] {
            let mut answers = Answers::new("a,b,c", is_first, &behind);
            answers.enter("a", Ok(vec!["none".into()])).unwrap();
            let text = answers.suffice().unwrap_err().to_string();
            assert_eq!(text.contains("longer than a minute"), stalled, "{text}");
        }
    }
}
