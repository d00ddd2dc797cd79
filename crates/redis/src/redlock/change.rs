//! The change of the list of nodes while programs run.
//!
//! # The algorithm
//!
//! Change *k* leads from list *k* - 1, `old`, to list *k*, `new`, which differ in one node at most, so
//! that a majority of one and a majority of the other share a node. A program may go by the list before
//! the newest one. It has to be impossible that it goes by an older one.
//!
//! 1. **Promise.** A majority of `old`, for the first number all of it, promises to accept no proposal of a lower ballot. If one was
//!    accepted before, this run carries it through in place of its own (Paxos, for each number), so
//!    that two operators never open two lists under one number.
//! 2. **Close.** A majority of `old` accepts the proposal, and serves list *k* - 2 no longer. Each
//!    node answers when the last lease ends that it granted to that list, and a bound of its tokens.
//! 3. **Wait** for the last of those ends: no client holds by list *k* - 2 any more.
//! 4. **Open.** Every node of both lists serves list *k*, and *k* - 1. Its tokens begin above the
//!    bound. The change is done when a majority of `new` is open.
//!
//! A run that dies is repeated from the beginning. A node that was away is left behind: it serves no
//! current number, and is brought up by the next change.
//!
//! A node without data has no record, so it serves no list that has a number, promises nothing, and is
//! not opened by the change that finds it: its votes may be parts of holds that go on elsewhere. It is
//! listed as absent, with a random text that it keeps and that goes with its data, and the next change
//! opens it if it still has that text. So does the same change for a new node.
//!
//! Each rule was found with a model, in which its absence gives two holders: `crates/models`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::backend::ClaimId;
use leasehold_core::{Error, ErrorKind, Result};
use redis::{Value, from_redis_value_ref};
use tokio::time::sleep;

use crate::link::{CLOCK, Call, Connection, Inbox, Names, Script, Server, StoreMark, junk};
use crate::redlock::client::list::{address, canonical, record_of};
use crate::redlock::config::check;
use crate::redlock::{BESIDE, Config, invalid};

/// The number of ballots that are lost to other runs before this one gives up.
const BALLOTS: usize = 8;

static LIST: std::sync::LazyLock<Script> =
    std::sync::LazyLock::new(|| Script::new(&[CLOCK, include_str!("list.lua")]));

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
/// It can be repeated, and does nothing if all is done. Equal lists get one more number then.
///
/// # Errors
///
/// `Invalid` if the lists differ in more than one node, if one has fewer than two, or names a server
/// twice, if their prefixes or databases differ, if `old` is not the newest list, or has no number and is to change; `Unavailable` if a majority of `old` (for the
/// first number all of it), or a new node, does not answer, or a majority of `new` cannot be opened. Nothing is lost then: it is to be
/// repeated.
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
    let plan = plan(&lists, &records)?;
    nodes.bring_up(&plan, &records).await;
    let proposal = nodes.propose(&lists, &plan, &records).await?;
    let (accepted, closed) = nodes.agree(&lists.old, &plan, proposal.clone()).await?;
    if plan.number > 1 && !closed.left.is_zero() {
        // Clocks that run at different rates are within a fiftieth of one another.
        let rest = closed.left + closed.left / 50 + Duration::from_millis(10);
        waits(rest);
        sleep(rest).await;
    }
    nodes
        .open(&lists, &plan, &accepted, &closed.bound, &proposal)
        .await
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

/// A node's record.
#[derive(Clone, Debug, Default)]
struct Record {
    number: Option<u64>,
    nodes: String,
    before: String,
    absent: Blanks,
    fresh: Blanks,
    bound: String,
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
struct Plan {
    /// The number of the new list.
    number: u64,
    /// The newest list that is open, if it is the one before: it and its record.
    open: Option<Record>,
    /// No node has a number: one without a record has its data, as far as anybody can know.
    is_first: bool,
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
    let is_asked = newest.nodes == lists.new && newest.before == lists.old && top > 0;
    if is_asked && (lists.old != lists.new || !is_complete) {
        return Ok(Plan {
            number: top,
            open: None,
            is_first: false,
        });
    }
    if newest.nodes == lists.old {
        return Ok(Plan {
            number: top + 1,
            open: Some(newest),
            is_first: false,
        });
    }
    Err(invalid(&format!(
        "the nodes are {} (list {top}), and OLD is {}",
        newest.nodes, lists.old
    )))
}

/// The change that gives a list its first number. A node that does not answer may have one, and one
/// without a record has lost its data then.
fn first(lists: &Lists, records: &BTreeMap<String, Result<Record>>) -> Result<Plan> {
    let failed: Vec<String> = records
        .values()
        .filter_map(|record| Some(record.as_ref().err()?.to_string()))
        .collect();
    if !failed.is_empty() {
        let what = format!(
            "redlock: no node that answered has a number, and those that did not may have one: {}",
            failed.join("; ")
        );
        return Err(Error::new(ErrorKind::Unavailable, what));
    }
    if lists.old != lists.new {
        return Err(invalid(
            "the list of nodes has no number yet: give it one first, by a change from OLD to OLD",
        ));
    }
    Ok(Plan {
        number: 1,
        open: None,
        is_first: true,
    })
}

/// The connections to the nodes of both lists.
struct Nodes {
    each: BTreeMap<String, Result<Connection>>,
    record: String,
    tokens: String,
}

impl Nodes {
    async fn connect(old: &Config, new: &Config) -> Result<Nodes> {
        let mark = Names::new(&old.prefix, &BESIDE)?.mark();
        let servers = old.nodes.iter().chain(&new.nodes);
        let servers: BTreeMap<String, &Server> =
            servers.map(|server| (address(server), server)).collect();
        let inbox = Inbox::new(false);
        let marks = StoreMark::of_nodes(servers.len(), &mark);
        let connecting = servers
            .into_iter()
            .zip(&marks)
            .map(async |((node, server), mark)| {
                let connected = async {
                    let server = Server {
                        mark: Some(mark.clone()),
                        ..server.clone()
                    };
                    let connection = Connection::new(server, old.timeout, Duration::ZERO, &inbox)?;
                    connection.connect().await?;
                    Ok(connection)
                };
                (node, connected.await)
            });
        let each: BTreeMap<String, Result<Connection>> =
            join_all(connecting).await.into_iter().collect();
        let mut failed = each.values().filter_map(|it| it.as_ref().err());
        // One server under two names.
        if let Some(e) = failed.find(|e| e.kind() == ErrorKind::OtherStore) {
            return Err(invalid(&e.to_string()));
        }
        let tokens = format!("{{{}}}:rt", old.prefix);
        Ok(Nodes {
            each,
            record: record_of(&tokens),
            tokens,
        })
    }

    /// Asks one node. `args` are a verb and what it takes.
    async fn ask(&self, node: &str, args: &[&str]) -> Result<Vec<String>> {
        let connection = match self.each.get(node) {
            Some(Ok(connection)) => connection,
            Some(Err(e)) => return Err(Error::new(e.kind(), e.to_string())),
            None => return Err(invalid(&format!("{node} is in neither list"))),
        };
        let call = Call::of(&LIST, 2).arg(&self.record).arg(&self.tokens);
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

    /// Opens the old list at its nodes that were away when it was opened: they can promise then.
    async fn bring_up(&self, plan: &Plan, records: &BTreeMap<String, Result<Record>>) {
        let Some(open) = &plan.open else {
            return;
        };
        let is_behind = |node: &&str| match records.get(*node) {
            Some(Ok(record)) => record.number.is_some_and(|number| number + 1 < plan.number),
            _ => false,
        };
        let behind: Vec<&str> = open.nodes.split(',').filter(is_behind).collect();
        let number = (plan.number - 1).to_string();
        let absent = pairs(&open.absent);
        let fresh = pairs(&open.fresh);
        let args = [
            "open",
            &number,
            &open.nodes,
            &open.before,
            &absent,
            &fresh,
            "",
            &open.bound,
        ];
        // A node that fails is behind still, and does not promise.
        self.ask_all(behind, &args).await;
    }

    /// The list to propose. Each node without a number gets a text that goes with its data.
    async fn propose(
        &self,
        lists: &Lists,
        plan: &Plan,
        records: &BTreeMap<String, Result<Record>>,
    ) -> Result<Proposal> {
        let mut proposal = Proposal {
            nodes: lists.new.clone(),
            fresh: Blanks::new(),
            absent: Blanks::new(),
        };
        for node in lists.new.split(',') {
            let is_new = !lists.old.split(',').any(|old| old == node);
            let record = match records.get(node) {
                Some(Ok(record)) => record,
                Some(Err(e)) if is_new => {
                    return Err(Error::new(
                        e.kind(),
                        format!("the new node has to answer: {e}"),
                    ));
                }
                _ => continue,
            };
            if record.number.is_some() || plan.number == 1 {
                continue;
            }
            let text = ClaimId::fresh().to_string();
            let number = plan.number.to_string();
            let blank = match self.ask(node, &["blank", &number, &text]).await {
                Ok(blank) => blank.into_iter().next().unwrap_or_default(),
                Err(e) if is_new => return Err(e),
                // It is not opened, and that is reported.
                Err(_) => continue,
            };
            let was_absent = plan.open.as_ref().and_then(|open| open.absent.get(node));
            if is_new || was_absent == Some(&blank) {
                proposal.fresh.insert(node.to_owned(), blank);
            } else {
                proposal.absent.insert(node.to_owned(), blank);
            }
        }
        // A list without such a majority can neither be completed nor changed again.
        let can_open = |node: &&str| {
            proposal.fresh.contains_key(*node)
                || matches!(records.get(*node), Some(Ok(record)) if record.number.is_some())
        };
        let open = lists.new.split(',').filter(can_open).count();
        if plan.open.is_some() && open < majority(&lists.new) {
            let what = format!(
                "redlock: only {open} of the nodes {} answer and have their data, which is no majority: bring others back before",
                lists.new
            );
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        Ok(proposal)
    }

    /// Makes a majority of the old list accept one proposal, which may be that of an earlier run.
    async fn agree(&self, old: &str, plan: &Plan, own: Proposal) -> Result<(Proposal, Closed)> {
        let number = plan.number.to_string();
        let id = ClaimId::fresh().to_string();
        let mut ballot = 1;
        for _ in 0..BALLOTS {
            let mut proposal = own.clone();
            let first = if plan.is_first { "first" } else { "" };
            let args = ["promise", &number, old, &ballot.to_string(), &id, first];
            let promised = self.ask_all(old.split(','), &args).await;
            let mut answers = Answers::new(old, plan.number);
            if plan.is_first {
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
                &id,
                &proposal.to_string(),
            ];
            let closed = self.ask_all(old.split(','), &args).await;
            let mut answers = Answers::new(old, plan.number);
            for (node, answer) in closed {
                answers.enter(node, answer)?;
            }
            if let Some(later) = answers.later {
                ballot = later + 1;
                continue;
            }
            answers.suffice()?;
            if answers.is_open {
                // A run has waited before it opened the list.
                answers.closed.left = Duration::ZERO;
            }
            return Ok((proposal, answers.closed));
        }
        let what = "redlock: somebody else changes the list of nodes at the same time: repeat it";
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    async fn open(
        &self,
        lists: &Lists,
        plan: &Plan,
        proposal: &Proposal,
        bound: &str,
        asked: &Proposal,
    ) -> Result<NodesChange> {
        let number = plan.number.to_string();
        let absent = pairs(&proposal.absent);
        let fresh = pairs(&proposal.fresh);
        let all: BTreeSet<&str> = lists
            .old
            .split(',')
            .chain(proposal.nodes.split(','))
            .collect();
        let opening = all.into_iter().map(async |node| {
            if proposal.absent.contains_key(node) {
                let what = "it has lost its data: repeat the change from this list to itself";
                return (node, Err(Error::new(ErrorKind::OtherStore, what)));
            }
            if !self.each.contains_key(node) {
                let what = format!("it was not named: repeat the change, to {}", proposal.nodes);
                return (node, Err(Error::new(ErrorKind::OtherStore, what)));
            }
            let blank = proposal.fresh.get(node).map_or("", String::as_str);
            let args = [
                "open",
                &number,
                &proposal.nodes,
                &lists.old,
                &absent,
                &fresh,
                blank,
                bound,
            ];
            let opened = match self.ask(node, &args).await {
                Ok(said) if said == ["open"] => Ok(()),
                Ok(_) => {
                    let what = "it has no data: repeat the change from this list to itself, twice";
                    Err(Error::new(ErrorKind::OtherStore, what))
                }
                Err(e) => Err(e),
            };
            (node, opened)
        });
        let mut without_vote = Vec::new();
        let mut open = 0;
        for (node, opened) in join_all(opening).await {
            match opened {
                Ok(()) if proposal.nodes.split(',').any(|it| it == node) => open += 1,
                Ok(()) => {}
                Err(e) => without_vote.push((node.to_owned(), e.to_string())),
            }
        }
        if open < majority(&proposal.nodes) {
            let each: Vec<String> = without_vote
                .iter()
                .map(|(node, why)| format!("{node}: {why}"))
                .collect();
            let what = format!(
                "redlock: list {number} is open at {open} of its nodes, which is no majority ({}): repeat the change, to {}",
                each.join("; "),
                proposal.nodes
            );
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        without_vote.retain(|(node, _)| proposal.nodes.split(',').any(|it| it == node));
        Ok(NodesChange {
            number: plan.number,
            nodes: proposal.nodes.split(',').map(str::to_owned).collect(),
            was_another: proposal.nodes != asked.nodes,
            without_vote,
        })
    }
}

/// The answers of the old list's nodes to one question.
struct Answers {
    needed: usize,
    of: usize,
    number: u64,
    counted: usize,
    /// The greatest ballot that somebody else has.
    later: Option<u64>,
    /// What was accepted, and by which ballot.
    accepted: Option<((u64, String), Proposal)>,
    closed: Closed,
    /// A node has opened the new list already.
    is_open: bool,
    failed: Vec<String>,
}

impl Answers {
    fn new(old: &str, number: u64) -> Answers {
        Answers {
            needed: majority(old),
            of: old.split(',').count(),
            number,
            counted: 0,
            later: None,
            accepted: None,
            closed: Closed {
                left: Duration::ZERO,
                bound: "0".into(),
            },
            is_open: false,
            failed: Vec::new(),
        }
    }

    fn enter(&mut self, node: &str, answer: Result<Vec<String>>) -> Result<()> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(e) => {
                self.failed.push(e.to_string());
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
            ["open", bound, number, nodes, fresh, absent] => {
                let number: u64 = number.parse().map_err(|_| junk("a record"))?;
                if number > self.number {
                    let what = format!("the nodes are {nodes} by now (list {number})");
                    return Err(invalid(&what));
                }
                self.counted += 1;
                self.is_open = true;
                self.close("0", bound)?;
                let decided = Proposal {
                    nodes: nodes.to_owned(),
                    fresh: blanks(fresh),
                    absent: blanks(absent),
                };
                self.accept((u64::MAX, String::new()), decided);
            }
            ["later", ballot] => {
                let ballot = ballot.parse().map_err(|_| junk("a ballot"))?;
                self.later = self.later.max(Some(ballot));
            }
            ["none"] => self.failed.push(format!("{node}: it has lost its data")),
            ["behind"] => self.failed.push(format!("{node}: it was left behind")),
            ["other", nodes] => {
                let first = if self.number == 1 {
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
            "redlock: {} of {} nodes of the old list answered, and {} are needed: {}",
            self.counted,
            self.of,
            self.needed,
            self.failed.join("; ")
        );
        Err(Error::new(ErrorKind::Unavailable, what))
    }
}
