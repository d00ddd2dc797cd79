//! ZooKeeper: what proves a hold, over connections to servers that allow a session different times.
//!
//! The rule is not written down again: it is `zookeeper/src/client/liveness.rs` itself, which is
//! pure. Around it is what `keep_alive.rs` (`reconnect_once`), `session.rs` (`ask_server`,
//! `negotiated`, `reconnected`), `claim/handler.rs` (`extended`, `shortened`) and `renew.rs`
//! (`verify_entries`) do with it. Each client has one session, with one node.
//!
//! What is assumed of ZooKeeper, as `liveness.rs` says it: the leader alone ends sessions. A server
//! reports every half tick, which is one instant here, which sessions it has heard of. What it has
//! not reported dies with it. A server that is cut off still answers reads, and no writes. The
//! leader takes over a server's limit as soon as that asks for a session, whether its answer
//! arrives or not.
//!
//! Requests are answered at once or not at all, but for a connect request, which may also come
//! late: an answer that is late counts from the same send. All this happens to the first client,
//! which holds at first. The others come when they like, are with the leader, and renew nothing.

#[path = "../../../zookeeper/src/client/liveness.rs"]
mod liveness;
mod steps;

use std::time::Duration;

use leasehold_core::backend::Moment;
use stateright::{Model, Property};

use liveness::Liveness;

/// What may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// A server's limit counts for what was promised. Without (Z2): the first server's does.
    LimitIsTakenOver,
    /// A server is asked for its limit before the session is taken there. Without: its answer to
    /// that says it.
    LimitIsAskedFirst,
    /// A server that allows less than was promised is not taken while that lasts. Without: the
    /// promise is taken back.
    PromiseIsKept,
    /// A touch counts once a write that came after its report was answered. Without: once it was
    /// answered.
    TouchIsReported,
    /// Reads verify nothing. Without: as writes do.
    ReadsVerifyNothing,
    /// A hold is verified by its own node. Without: by its session.
    NodesProve,
}

#[derive(Clone, Debug)]
pub(crate) struct Zookeeper {
    pub(crate) clients: u8,
    /// What each server allows a session, in half ticks. The last one is the leader, of which the
    /// first client does not know.
    pub(crate) limits: [u8; 3],
    /// The last instant.
    pub(crate) end: u8,
    /// How many requests, connect requests, faults of servers, and deletions by hand there may be,
    /// of all together; and how many connect requests may be late.
    pub(crate) requests: u8,
    pub(crate) connects: u8,
    pub(crate) faults: u8,
    pub(crate) deletions: u8,
    pub(crate) late: usize,
    pub(crate) without: Option<Rule>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Link {
    /// With the leader.
    Joined,
    CutOff,
    Dead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Server {
    link: Link,
    /// Of whom it has heard, and not reported it yet.
    touched: Vec<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Idle,
    Waiting,
    /// Until then, and at first it was told that it does until `told`.
    Holding {
        until: u8,
        told: u8,
    },
    Lost {
        told: u8,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    stage: Stage,
    liveness: Liveness,
    server: Option<usize>,
    /// Which server was asked for its limit.
    asked: Option<usize>,
    /// When its node was last verified.
    verified: u8,
    /// Somebody else deleted its node at that instant.
    deleted_at: Option<u8>,
    /// A write over this connection was answered since then: what is read after it is no older.
    wrote_since: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    now: u8,
    /// When each session ends, as the leader has it.
    sessions: Vec<Option<u8>>,
    /// Whose nodes there are, in the order in which they came.
    queue: Vec<usize>,
    servers: Vec<Server>,
    clients: Vec<Client>,
    /// Connect requests that come later: of whom, to which server.
    late: Vec<(usize, usize)>,
    requests: u8,
    connects: u8,
    faults: u8,
    deletions: u8,
}

/// What becomes of a connect request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Answered,
    AnswerLost,
    Late,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Tick,
    Enter {
        client: usize,
    },
    Write {
        client: usize,
    },
    Read {
        client: usize,
    },
    Take {
        client: usize,
    },
    ListNodes {
        client: usize,
        old: bool,
    },
    AskForLimit {
        client: usize,
        server: usize,
    },
    Connect {
        client: usize,
        server: usize,
        outcome: Outcome,
    },
    ComesLate {
        client: usize,
        server: usize,
    },
    LeavesServer {
        client: usize,
    },
    SessionEnds {
        client: usize,
    },
    CutOff {
        server: usize,
    },
    Dies {
        server: usize,
    },
    DeleteByHand,
}

const LEADER: usize = 2;

fn at(instant: u8) -> Moment {
    Moment::from_nanos(u64::from(instant) * 1_000_000_000)
}

fn long(instants: u8) -> Duration {
    Duration::from_secs(instants.into())
}

impl State {
    /// Who acts as a holder, and until when: also who stands still, and has not heard that it is
    /// one no longer.
    fn valid(&self) -> impl Iterator<Item = (usize, u8)> {
        self.clients
            .iter()
            .enumerate()
            .filter_map(|(at, client)| match client.stage {
                Stage::Holding { told, .. } | Stage::Lost { told } if self.now < told => {
                    Some((at, told))
                }
                _ => None,
            })
    }

    fn is_deleted(&self, client: usize) -> bool {
        self.clients[client].deleted_at.is_some()
    }
}

impl Model for Zookeeper {
    type State = State;
    type Action = Action;

    /// The first one has asked for a session, made its node, and holds.
    fn init_states(&self) -> Vec<State> {
        let all = usize::from(self.clients);
        let client = Client {
            stage: Stage::Idle,
            liveness: Liveness::new(at(0), long(1)),
            server: None,
            asked: None,
            verified: 0,
            deleted_at: None,
            wrote_since: false,
        };
        let mut state = State {
            now: 0,
            sessions: vec![None; all],
            queue: Vec::new(),
            servers: vec![
                Server {
                    link: Link::Joined,
                    touched: vec![false; all]
                };
                self.limits.len()
            ],
            clients: vec![client; all],
            late: Vec::new(),
            requests: self.requests,
            connects: self.connects,
            faults: self.faults,
            deletions: self.deletions,
        };
        self.enter(&mut state, 0);
        vec![state]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        (0..s.clients.len()).for_each(|client| self.of_client(s, client, actions));
        for (server, it) in s.servers.iter().enumerate() {
            if s.faults > 0 && it.link == Link::Joined && server != LEADER {
                actions.extend([Action::CutOff { server }, Action::Dies { server }]);
            }
        }
        let comes = |&(client, server): &(usize, usize)| Action::ComesLate { client, server };
        actions.extend(s.late.iter().map(comes));
        actions.extend((s.deletions > 0 && !s.queue.is_empty()).then_some(Action::DeleteByHand));
        actions.extend((s.now < self.end).then_some(Action::Tick));
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let (mut s, now) = (s.clone(), s.now);
        match action {
            Action::Tick => self.tick(&mut s),
            Action::Enter { client } => self.enter(&mut s, client),
            Action::Write { client } => {
                s.requests -= 1;
                self.write(&mut s, client);
            }
            Action::Read { client } => {
                s.requests -= 1;
                self.read(&mut s, client)?;
            }
            Action::Take { client } => {
                self.write(&mut s, client);
                let it = &mut s.clients[client];
                it.verified = now;
                it.take();
            }
            Action::ListNodes { client, old } => {
                s.requests -= 1;
                self.list_nodes(&mut s, client, old);
            }
            Action::AskForLimit { client, server } => {
                s.connects -= 1;
                self.ask_for_limit(&mut s.clients[client], server, now);
            }
            Action::Connect {
                client,
                server,
                outcome,
            } => {
                s.connects -= u8::from(!self.has(Rule::LimitIsAskedFirst));
                self.connect(&mut s, client, server, outcome);
            }
            Action::ComesLate { client, server } => {
                s.late.retain(|it| *it != (client, server));
                self.touch(&mut s, client, server, now);
            }
            Action::LeavesServer { client } => s.clients[client].server = None,
            Action::SessionEnds { client } => {
                s.sessions[client] = None;
                s.queue.retain(|it| *it != client);
            }
            Action::CutOff { server } | Action::Dies { server } => {
                s.faults -= 1;
                let dead = matches!(action, Action::Dies { .. });
                let it = &mut s.servers[server];
                it.link = if dead { Link::Dead } else { Link::CutOff };
                it.touched.fill(false);
                s.clients
                    .iter_mut()
                    .for_each(|it| it.server = it.server.filter(|at| !dead || *at != server));
            }
            Action::DeleteByHand => {
                s.deletions -= 1;
                let client = s.queue.remove(0);
                (s.clients[client].deleted_at, s.clients[client].wrote_since) = (Some(now), false);
            }
        }
        settle(&mut s);
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Zookeeper>> {
        vec![
            // Where somebody else deleted the node of one, only the token protects.
            Property::always(super::ONE_HOLDER, |_, s: &State| {
                s.valid()
                    .filter(|(client, _)| !s.is_deleted(*client))
                    .count()
                    <= 1
            }),
            Property::always(super::KEPT, |_, s: &State| {
                s.valid()
                    .all(|(client, _)| s.is_deleted(client) || s.queue.first() == Some(&client))
            }),
            Property::always(
                super::DELETED_ENDS_IN_A_TTL,
                |model: &Zookeeper, s: &State| {
                    let deleted = |client: usize| s.clients[client].deleted_at;
                    s.valid().all(|(client, until)| {
                        deleted(client).is_none_or(|at| until <= at + model.limits[0])
                    })
                },
            ),
            Property::sometimes("one holds after another's session ended", |_, s: &State| {
                s.valid().any(|(client, _)| client > 0) && s.sessions[0].is_none()
            }),
            Property::sometimes(
                "a hold lasts longer than it did at first",
                |model: &Zookeeper, s: &State| {
                    s.valid().any(|(client, _)| client == 0) && s.now >= model.limits[0]
                },
            ),
        ]
    }
}

/// What follows from the time, and what nobody will look at any more: fewer states.
fn settle(s: &mut State) {
    for (nth, client) in s.clients.iter_mut().enumerate() {
        match client.stage {
            Stage::Holding { until, told } if until <= s.now => client.stage = Stage::Lost { told },
            _ => {}
        }
        if let Stage::Lost { told } = &mut client.stage {
            *told = if *told <= s.now { 0 } else { *told };
            client.liveness = Liveness::new(at(0), long(1));
            (
                client.server,
                client.asked,
                client.verified,
                client.wrote_since,
            ) = (None, None, 0, false);
            s.servers
                .iter_mut()
                .for_each(|server| server.touched[nth] = false);
        }
    }
}
