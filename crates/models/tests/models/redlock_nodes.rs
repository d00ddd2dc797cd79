//! Redlock: the list of nodes changes while programs run.
//!
//! The rules are those of `redis/src/redlock` (`node.lua`: which attempts a node serves, and when
//! their leases end; `list.lua`: promise, close and open; `change.rs`: the operator's run that
//! sends them; `client/list.rs`: the number that a program goes by). Lists are numbered. Change k
//! goes from list k-1, OLD, to list k, NEW; a majority is one of a whole list. An attempt carries
//! one number, and a node compares it: open at k it serves k and k-1, closed for k+1 only k, and
//! without a record it serves none. An operator's run reads the records of the nodes that answer,
//! and goes by the newest. It opens OLD at nodes that have missed it, gets promises for its ballot
//! from a majority of OLD, closes a majority of OLD for the proposal, waits until the leases that
//! any of those has granted to lists before OLD have ended, and opens all nodes of OLD and NEW. It
//! ends where NEW is open already. What is open anywhere may be opened everywhere, which is all
//! that a run does that finds NEW open.
//!
//! Number 1 goes to a list as it is. The run needs an answer from every node that it has no number.
//! It leaves a text of its own at every node, in place of that of another run, and reads every
//! record again. Then it needs a promise from every node: one without a record promises if it has
//! kept the text, and has list 0 from then on. No other run gets a promise from a node without a
//! record.
//!
//! Serving and agreement are one state space. A request is executed and answered at once or never,
//! at any moment: an answer that is lost is a run that dies, or a vote that is not counted, and a
//! request that comes late is one of a run that still goes on beside another. A run may end after
//! any of its requests, and be repeated. Clocks run at one rate (a margin covers the difference); a
//! node answers the time that is left, and not a deadline. A node loses all of its data or nothing,
//! and is known as another one from then on, by a random mark that it keeps among them.
//!
//! Not here: several names, shared holds, waiters, evictions, stepped clocks, older data that come
//! back. Records are read at one instant, but for the second reading before number 1. No run is
//! refused because too few nodes of NEW have their data.

mod steps;

use std::fmt;

use stateright::{Model, Property};

/// What may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// A majority of OLD closes. Without: one of NEW.
    ClosesOld,
    /// Without: one node less than a majority.
    ClosesMajority,
    /// A node refuses list k-2 when it closes. Without: when it opens.
    RefusesFromClosing,
    /// The operator opens, after it has waited for all. Without: a node that has closed opens by
    /// itself after its own leases.
    OperatorOpens,
    /// It waits for the leases. Without: it opens at once.
    Waits,
    /// When a list is opened at a node, leases of the list that was open there count as those of
    /// the lists before. Without: they are forgotten.
    FoldsDeadlines,
    /// A node refuses a number that is greater than its own. Without: it serves those of proposals
    /// too, which a program has heard of.
    RefusesNewer,
    /// A program learns numbers from what is open. Without: from proposals too.
    LearnsFromRecords,
    /// Without: it serves all numbers before its own but one that it has closed.
    RefusesOlder,
    /// Without: a node that has no record serves every number.
    RefusesWithoutRecord,
    /// Each attempt carries a number. Without: those over a connection of list 0 are compared when
    /// it connects.
    EveryAttempt,
    /// Renewals too.
    Renewals,
    /// Numbers are compared. Without: lists, as sets of nodes.
    ComparesNumbers,
    /// A node that was emptied is listed as absent in one change, and opened in the next. Without:
    /// it is opened at once.
    AbsentFirst,
    /// It is opened if it has not been emptied again since.
    SameLife,
    /// A node that was to be opened with OLD, and has not been, is opened with NEW. Without: it is
    /// absent there.
    FreshAgain,
    /// A node that is absent in OLD, or was to be opened with it, is opened with NEW also if it is
    /// silent when NEW is proposed. Without: it is not opened then.
    FreshIfSilent,
    /// A node that was emptied has no record. Without: it is as in the beginning.
    EmptiedIsNotZero,
    /// It promises nothing, and closes for nothing.
    EmptiedHasNoVote,
    /// A run gives the first number if every node has answered that it has none. Without: if those
    /// that answer have none.
    FirstHearsAll,
    /// A run that hears that number 1 is open opens it, and no more. Without: it asks for the first
    /// promises again, and counts the nodes where number 1 is open.
    FirstOnce,
    /// For number 1 every node of OLD promises. Without: a majority.
    FirstByAll,
    /// A node without a record promises for number 1 if it has kept the text of the run. Without:
    /// in any case.
    FirstKeepsText,
    /// A run for number 1 reads the records again when every node has its text.
    FirstReadsAgain,
    /// A node that has promised a ballot refuses smaller ones.
    KeepsPromises,
    /// A run goes on with what was accepted by the greatest ballot. Without: with its own NEW.
    Adopts,
    /// A run ends where a node says that NEW is open. Without: it counts that node, and goes on
    /// with what it has proposed.
    EndsWhereOpen,
    /// Runs have ballots. Without: nobody promises anything, and what a node accepts first stays.
    HasBallots,
    /// A change starts when the list before it is open somewhere. Without: when a majority has
    /// closed for it.
    StartsWhenOpen,
    /// Who opens tells the greatest token of those that have closed.
    OpensWithToken,
    /// Who opens OLD at a node that has missed it tells the token of a node that has it.
    LearnsWithToken,
    /// A run that finds NEW open at a node opens it elsewhere with the token of that node.
    ResumesWithToken,
}

/// A set of nodes, a bit for each.
pub(crate) type Set = u8;

/// The nodes of these letters.
pub(crate) const fn list(names: &str) -> Set {
    let (names, mut set, mut at) = (names.as_bytes(), 0, 0);
    while at < names.len() {
        set |= 1 << (names[at] - b'a');
        at += 1;
    }
    set
}

/// OLD and NEW of changes.
pub(crate) type Changes = &'static [(Set, Set)];

/// A program: its list, how long its leases are, whether its attempts carry numbers, and the least
/// of them: it starts when that is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) list: Set,
    pub(crate) lease: u8,
    pub(crate) is_numbered: bool,
    pub(crate) least: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RedlockNodes {
    /// List 0; whether no node has a record of it yet, so that nodes without one serve number 0.
    pub(crate) first: Set,
    pub(crate) unnumbered: bool,
    /// The number of the last list.
    pub(crate) last: u8,
    pub(crate) programs: [Program; CLIENTS],
    /// What each operator wants, and how many ballots it has.
    pub(crate) wants: [Changes; OPERATORS],
    pub(crate) ballots: [u8; OPERATORS],
    /// How often a node may lose its data, and the least number of a list that is open at another
    /// node then.
    pub(crate) empties: u8,
    pub(crate) empties_from: u8,
    /// Nodes of OLD and NEW that have no record, or had none when OLD was proposed, may be silent
    /// to a run that goes from a list with a number.
    pub(crate) silent: bool,
    /// How many answers to operators may be lost while their run goes on.
    pub(crate) lost: u8,
    pub(crate) releases: bool,
    /// If tokens matter: how many holds there are in all, and a majority grants each at once.
    pub(crate) holds: Option<u8>,
    /// A run that comes last and is alone must end without these nodes. `None`: it need not, as too
    /// few nodes may be left.
    pub(crate) down: Option<Set>,
    /// Nodes that are in the same lists: states that differ only in their order are one state.
    pub(crate) alike: &'static [Set],
    pub(crate) without: Option<Rule>,
}

pub(crate) const NODES: usize = 5;
pub(crate) const CLIENTS: usize = 2;
pub(crate) const OPERATORS: usize = 2;
/// The number of an attempt that has none.
const NO_NUMBER: u8 = u8::MAX;

/// What operators agree on for a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct List {
    nodes: Set,
    /// Of each node that had no record when this was proposed: its life then. 0: it had one.
    empty: [u8; NODES],
    /// Those of them that may be opened; the others are absent.
    fresh: Set,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Record {
    number: u8,
    list: List,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Entry {
    client: u8,
    left: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Node {
    /// What it was opened with.
    record: Option<Record>,
    /// For the next number: the greatest ballot promised; and what was accepted by which. It has
    /// closed if it has accepted.
    promised: u8,
    accepted: Option<(u8, List)>,
    /// Without a record: the ballot of the run for number 1 that has left its text here. 0: none
    /// has.
    text: u8,
    /// Until the latest deadline that it granted to the list that is open, and to those before.
    until: u8,
    until_before: u8,
    token: u8,
    entry: Option<Entry>,
    life: u8,
    /// The clients whose attempt has its vote, and the runs whose phase has its answer.
    voted: Set,
    answered: Set,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Client {
    valid: u8,
    /// Of the attempt under way. 0: there is none.
    left: u8,
    number: u8,
    token: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// Only for number 1.
    Text,
    ReadAgain,
    Promise,
    Close,
    Open,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Run {
    /// Of NEW.
    number: u8,
    old: List,
    new: List,
    ballot: u8,
    /// By which NEW was accepted.
    best: u8,
    phase: Phase,
    wait: u8,
    token: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    /// The ballots that are left to each operator, and its run.
    ballots: [u8; OPERATORS],
    runs: [Option<Run>; OPERATORS],
    empties: u8,
    lost: u8,
    holds: u8,
    /// The first list that was opened by each number, and whether there was another one.
    opened: [Option<List>; NUMBERS],
    two_lists: bool,
    /// The greatest token of a hold; one was not greater.
    greatest: u8,
    fell: bool,
}

const NUMBERS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name(usize);

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["a", "b", "c", "d", "e"][self.0])
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Names(Set);

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each(self.0).try_for_each(|node| Name(node).fmt(f))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Tick,
    /// A node grants what an attempt with this number asks for.
    Vote {
        client: u8,
        node: Name,
        number: u8,
    },
    Attempt {
        client: u8,
        voters: Names,
        number: u8,
    },
    Release(u8),
    /// No node has a number.
    First(u8),
    /// The record of this node is the newest of those that are read, or what it has accepted is.
    Start {
        operator: u8,
        want: u8,
        at: Name,
        silent: Names,
        accepted: bool,
    },
    /// NEW is open at this node.
    Resume {
        operator: u8,
        want: u8,
        at: Name,
    },
    /// A node that has missed OLD gets it.
    BringUp(u8, Name),
    Text(u8, Name),
    ReadAgain(u8, Name),
    Promise(u8, Name),
    Close(u8, Name),
    Open(u8, Name),
    /// The node does what it is asked, and the run does not hear of it.
    AnswerLost(u8, Name),
    /// It dies, or is done.
    End(u8),
    OpensByItself(Name),
    Emptied(Name),
}

/// Each node of the set.
fn each(set: Set) -> impl Iterator<Item = usize> {
    (0..NODES).filter(move |node| set & (1 << node) != 0)
}

fn majority(set: Set) -> usize {
    set.count_ones() as usize / 2 + 1
}

impl Model for RedlockNodes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let list = List {
            nodes: self.first,
            empty: [0; NODES],
            fresh: 0,
        };
        let node = |at: usize| Node {
            record: (!self.unnumbered && self.first & (1 << at) != 0)
                .then_some(Record { number: 0, list }),
            promised: 0,
            accepted: None,
            text: 0,
            until: 0,
            until_before: 0,
            token: 0,
            entry: None,
            life: 1,
            voted: 0,
            answered: 0,
        };
        let mut opened = [None; NUMBERS];
        opened[0] = Some(list);
        vec![State {
            nodes: std::array::from_fn(node),
            clients: [Client {
                valid: 0,
                left: 0,
                number: 0,
                token: 0,
            }; CLIENTS],
            ballots: self.ballots,
            runs: [None; OPERATORS],
            empties: self.empties,
            lost: self.lost,
            holds: self.holds.unwrap_or_default(),
            opened,
            two_lists: false,
            greatest: 0,
            fell: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let runs = s.runs.iter().flatten();
        if s.nodes
            .iter()
            .any(|it| it.until + it.until_before > 0 || it.entry.is_some())
            || s.clients.iter().any(|it| it.valid > 0 || it.left > 0)
            || runs.clone().any(|it| it.wait > 0)
        {
            actions.push(Action::Tick);
        }
        for (client, program) in (0..).zip(&self.programs) {
            self.votes(s, client, program, actions);
        }
        for (operator, run) in (0..).zip(&s.runs) {
            match run {
                None => self.starts(s, operator, actions),
                Some(run) => self.steps_of(s, operator, run, actions),
            }
        }
        for (at, node) in s.nodes.iter().enumerate() {
            if !self.has(Rule::OperatorOpens) && node.accepted.is_some() && node.until_before == 0 {
                actions.push(Action::OpensByItself(Name(at)));
            }
            let mut others = (0..NODES).filter(|other| *other != at);
            let is_numbered = |it: usize| s.nodes[it].number() >= Some(self.empties_from);
            let has_data = node.record.is_some() || node.entry.is_some();
            if s.empties > 0 && has_data && others.any(is_numbered) {
                actions.push(Action::Emptied(Name(at)));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut s = *before;
        match action {
            Action::Tick => s.tick(),
            Action::Vote {
                client,
                node,
                number,
            } => self.vote(&mut s, client, node.0, number),
            Action::Attempt {
                client,
                voters,
                number,
            } => self.attempt(&mut s, client, voters.0, number),
            Action::Release(client) => s.release(client),
            Action::First(operator) => self.first(&mut s, operator),
            Action::Start {
                operator,
                want,
                at,
                silent,
                accepted,
            } => self.start(&mut s, operator, want, at.0, silent.0, accepted),
            Action::Resume { operator, want, at } => self.resume(&mut s, operator, want, at.0),
            Action::BringUp(operator, at) => self.bring_up(&mut s, operator, at.0),
            Action::Text(operator, at) => self.leave_text(&mut s, operator, at.0),
            Action::ReadAgain(operator, at) => self.read_again(&mut s, operator, at.0),
            Action::Promise(operator, at) => self.ask_promise(&mut s, operator, at.0),
            Action::Close(operator, at) => self.ask_close(&mut s, operator, at.0),
            Action::Open(operator, at) => {
                let run = s.runs[usize::from(operator)]?;
                self.open(&mut s, at.0, run.record(), run.token);
            }
            Action::AnswerLost(operator, at) => self.answer_lost(&mut s, operator, at.0),
            Action::End(operator) => s.end(operator),
            Action::OpensByItself(at) => {
                let node = s.nodes[at.0];
                let (number, (_, list)) = (node.record?.number + 1, node.accepted?);
                self.open(&mut s, at.0, Record { number, list }, 0);
            }
            Action::Emptied(at) => self.empty(&mut s, at.0),
        }
        self.settle(&mut s);
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<RedlockNodes>> {
        let mut properties = vec![
            Property::always(super::ONE_HOLDER, |_, s: &State| {
                s.clients.iter().filter(|it| it.valid > 0).count() <= 1
            }),
            Property::always(super::ONE_LIST, |_, s: &State| !s.two_lists),
            Property::sometimes(
                "the last list is opened",
                |model: &RedlockNodes, s: &State| s.opened[usize::from(model.last)].is_some(),
            ),
            Property::sometimes("the first program holds", |_, s: &State| {
                s.clients[0].valid > 0
            }),
            Property::sometimes("the second program holds", |_, s: &State| {
                s.clients[1].valid > 0
            }),
        ];
        if self.holds.is_some() {
            properties.push(Property::always(super::TOKENS_RISE, |_, s: &State| !s.fell));
        }
        if self.down.is_some() {
            properties.push(Property::always(
                super::NOBODY_STUCK,
                |model: &RedlockNodes, s| model.ends_alone(s),
            ));
        }
        properties
    }
}
