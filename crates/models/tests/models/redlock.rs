//! Redlock: a majority of nodes, and a token that a majority knows before it is given out.
//!
//! The rules are those of `redis/src/redlock/node.lua` (`claim`, `renew`, `release`: what comes
//! late is told by its attempt) and of `redis/src/redlock/claim.rs` (`poll`, `agree`: the greatest
//! token of a majority, written back where the claim still holds; `give_back`) with `renew.rs`
//! (`extend`, `Count::verdict`).
//!
//! Clocks do not help: a node proposes nothing but one more than the greatest token it knows, and
//! what nodes know at first differs. A request may come late, or never, and pass others; its answer
//! may be lost. An answer that is late is one that comes at once: the client decides when the last
//! one that it needs has come, and validity counts from the send. Nodes are alike, so states that
//! differ only in the order of the nodes are one state.

mod steps;

use stateright::{Model, Property};

/// What may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// A token that no majority has answered is written back. Without: it is given out as it is.
    WriteBack,
    /// It is written back where the claim still holds. Without: on any node.
    OnlyWhereItHolds,
    /// A release ends nothing that a later attempt took. Without: it ends the hold of its claim.
    ReleaseNamesItsAttempt,
    /// Validity counts from the send of the claim. Without: from the last answer.
    CountsFromTheSend,
    /// A majority must grant. Without: one node less.
    Majority,
}

#[derive(Clone, Debug)]
pub(crate) struct Redlock {
    pub(crate) clients: u8,
    pub(crate) ttl: u8,
    /// The last instant.
    pub(crate) end: u8,
    /// How many attempts the clients may make together, and how many each.
    pub(crate) attempts: u8,
    pub(crate) attempts_of_one: u8,
    /// How often a node may lose its data.
    pub(crate) losses: u8,
    /// A request comes to a node at once or never, so that there are fewer states.
    pub(crate) at_once: bool,
    pub(crate) without: Option<Rule>,
}

const NODES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Verb {
    Claim,
    WriteBack { token: u8 },
    Release,
}

/// The attempt is the number of the request, which rises with each that its client sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Request {
    client: u8,
    attempt: u8,
    verb: Verb,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Hold {
    client: u8,
    token: u8,
    attempt: u8,
    deadline: u8,
}

/// What a client knows of a node in the request that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Said {
    Nothing,
    No,
    Token(u8),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Node {
    /// The greatest token that was given out or written back here.
    last: u8,
    hold: Option<Hold>,
    on_their_way: Vec<Request>,
    /// To each client.
    said: Vec<Said>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Idle,
    Claiming { attempt: u8, sent: u8 },
    WritingBack { attempt: u8, sent: u8, token: u8 },
    Holding { token: u8, until: u8 },
    Ended,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    stage: Stage,
    /// The number of its latest request.
    latest: u8,
    claims: u8,
    has_held: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    now: u8,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    attempts: u8,
    losses: u8,
    /// The greatest token that any client was given; one was not greater.
    greatest: u8,
    fell: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Tick,
    Claim(u8),
    GiveUp(u8),
    Release(u8),
    Comes {
        node: usize,
        request: Request,
        answered: bool,
    },
    NeverComes {
        node: usize,
        request: Request,
    },
    LoseData {
        node: usize,
    },
}

impl State {
    fn valid(&self) -> impl Iterator<Item = u8> {
        (0..)
            .zip(&self.clients)
            .filter_map(|(at, client)| match client.stage {
                Stage::Holding { until, .. } if self.now < until => Some(at),
                _ => None,
            })
    }

    /// How many nodes keep the hold of this client.
    fn keep(&self, client: u8) -> usize {
        let keeps = |node: &&Node| {
            node.hold
                .as_ref()
                .is_some_and(|it| it.client == client && self.now < it.deadline)
        };
        self.nodes.iter().filter(keeps).count()
    }
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            stage: Stage::Idle,
            latest: 0,
            claims: self.attempts_of_one,
            has_held: false,
        };
        let node = |last| Node {
            last,
            hold: None,
            on_their_way: Vec::new(),
            said: vec![Said::Nothing; usize::from(self.clients)],
        };
        let state = |last: [u8; NODES]| State {
            now: 0,
            nodes: last.map(node).to_vec(),
            clients: vec![client.clone(); usize::from(self.clients)],
            attempts: self.attempts,
            losses: self.losses,
            greatest: 0,
            fell: false,
        };
        // A minority may know a token that was never given out.
        vec![state([0, 0, 0]), state([0, 0, 4])]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let first = s
            .nodes
            .iter()
            .enumerate()
            .find_map(|(node, it)| Some((node, *it.on_their_way.first()?)));
        if let (true, Some((node, request))) = (self.at_once, first) {
            let listens = [true, false]
                .into_iter()
                .filter(|answered| *answered == s.awaits(request) || !answered);
            actions.extend(listens.map(|answered| Action::Comes {
                node,
                request,
                answered,
            }));
            return actions.push(Action::NeverComes { node, request });
        }
        let mut idle = false;
        for (at, client) in (0..).zip(&s.clients) {
            match client.stage {
                // Clients are alike: they come in the order of their numbers.
                Stage::Idle if client.claims > 0 && s.attempts > 0 && !idle => {
                    actions.push(Action::Claim(at));
                }
                Stage::Claiming { .. } | Stage::WritingBack { .. } => {
                    actions.push(Action::GiveUp(at));
                }
                Stage::Holding { .. } => actions.push(Action::Release(at)),
                _ => {}
            }
            idle |= client.latest == 0;
        }
        for (node, it) in s.nodes.iter().enumerate() {
            for &request in &it.on_their_way {
                actions.push(Action::Comes {
                    node,
                    request,
                    answered: false,
                });
                if s.awaits(request) {
                    actions.push(Action::Comes {
                        node,
                        request,
                        answered: true,
                    });
                }
            }
            if s.losses > 0 && it.hold.is_some() {
                actions.push(Action::LoseData { node });
            }
        }
        if s.now < self.end {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let (mut s, now) = (s.clone(), s.now);
        match action {
            Action::Tick => s.now += 1,
            Action::LoseData { node } => {
                (s.nodes[node].last, s.nodes[node].hold, s.losses) = (0, None, s.losses - 1);
            }
            Action::Claim(at) => {
                s.attempts -= 1;
                s.clients[usize::from(at)].claims -= 1;
                let attempt = Redlock::send(&mut s, at, Verb::Claim);
                s.clients[usize::from(at)].stage = Stage::Claiming { attempt, sent: now };
            }
            Action::GiveUp(at) => self.give_back(&mut s, at),
            Action::Release(at) => {
                Redlock::send(&mut s, at, Verb::Release);
                s.clients[usize::from(at)].stage = Stage::Ended;
            }
            Action::NeverComes { node, request } => {
                s.nodes[node].on_their_way.retain(|it| *it != request);
            }
            Action::Comes {
                node,
                request,
                answered,
            } => {
                let it = &mut s.nodes[node];
                it.on_their_way.retain(|other| *other != request);
                let said = self.serve(it, now, request);
                if answered {
                    it.said[usize::from(request.client)] = said;
                    self.decide(&mut s, request.client);
                }
            }
        }
        settle(&mut s);
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Redlock>> {
        vec![
            Property::always(super::ONE_HOLDER, |_, s: &State| s.valid().count() <= 1),
            Property::always(super::KEPT, |_, s: &State| {
                s.valid().all(|client| s.keep(client) > NODES / 2)
            }),
            Property::always(super::TOKENS_RISE, |_, s: &State| !s.fell),
            Property::sometimes("one holds after another", |_, s: &State| {
                s.clients.iter().filter(|it| it.has_held).count() > 1
            }),
        ]
    }
}

impl State {
    /// Whether its client waits for the answer to this request.
    fn awaits(&self, request: Request) -> bool {
        match self.clients[usize::from(request.client)].stage {
            Stage::Claiming { attempt, .. } | Stage::WritingBack { attempt, .. } => {
                attempt == request.attempt
            }
            _ => false,
        }
    }
}

/// What follows from the time, and what makes no difference any more: fewer states.
fn settle(s: &mut State) {
    let now = s.now;
    for (at, client) in s.clients.iter_mut().enumerate() {
        if matches!(client.stage, Stage::Holding { until, .. } if until <= now) {
            client.stage = Stage::Ended;
        }
        if !matches!(
            client.stage,
            Stage::Claiming { .. } | Stage::WritingBack { .. }
        ) {
            s.nodes
                .iter_mut()
                .for_each(|node| node.said[at] = Said::Nothing);
        }
    }
    for node in &mut s.nodes {
        node.hold.take_if(|hold| hold.deadline <= now);
        node.on_their_way.sort_unstable();
    }
    s.nodes.sort_unstable();
}
