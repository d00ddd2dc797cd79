//! Redis: an exclusive lock that is handed over by its release, and lapses.
//!
//! The rules are those of `redis/src/scripts`: `claim.lua` (a claim with a known id extends what is
//! there), `release.lua` with `queue.lua` (`admit_waiters`: the next live waiter holds until its
//! place's deadline), `renew.lua`, `records.lua` (`number`, `notify`); and of
//! `core/src/engine/claim_state/state.rs`, which counts a grant from the instant of the attempt
//! that it goes back to.
//!
//! Any message may be late, or never come, and messages pass one another. A client that crashed is
//! one that does nothing more; one that was paused is one whose messages are late. So neither needs
//! a step of its own. One instant has room for any number of steps.

mod steps;

use std::collections::BTreeSet;

use stateright::{Model, Property};

/// What may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// A pushed grant names the attempt that its lease counts from. Without: it counts from when
    /// the push comes.
    PushNamesItsAttempt,
    /// Validity counts from the send of a request. Without: from its answer.
    CountsFromTheSend,
    /// A claim that is repeated extends the lease. Without: it only answers the grant again.
    RepeatExtends,
    /// A grant to a waiter ends with its place. Without: it has a whole TTL.
    PlaceIsALease,
    /// A release says whose hold ends. Without: it ends whichever there is.
    ReleaseNamesItsClaim,
    /// A release hands over. Without: it frees the lock.
    ReleaseHandsOver,
    /// Tokens are not below the server's clock. Without: they are a counter.
    TokensFollowTheClock,
}

#[derive(Clone, Debug)]
pub(crate) struct Redis {
    pub(crate) clients: u8,
    pub(crate) ttl: u8,
    /// The last instant.
    pub(crate) end: u8,
    /// How often each client may send its claim, and a renewal; and how often all together.
    pub(crate) claims: u8,
    pub(crate) renewals: u8,
    pub(crate) requests: u8,
    /// How often the server may lose its data.
    pub(crate) losses: u8,
    pub(crate) without: Option<Rule>,
}

/// What the server keeps of a claim; a claim has the number of its client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Entry {
    client: u8,
    /// 0 while it waits.
    token: u8,
    deadline: u8,
    attempt: u8,
    /// When the server last executed a claim or a renewal of it: nothing decides by this.
    heard: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Idle,
    Asking,
    Holding { token: u8, until: u8 },
    Lost,
    Released,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    stage: Stage,
    claims: u8,
    renewals: u8,
    has_held: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Message {
    Claim { client: u8, sent: u8 },
    Renew { client: u8, sent: u8, token: u8 },
    Release { client: u8 },
    Granted { client: u8, token: u8, since: u8 },
    Pushed { client: u8, token: u8, attempt: u8 },
}
use Message::{Claim, Granted, Pushed, Release, Renew};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    now: u8,
    holder: Option<Entry>,
    queue: Vec<Entry>,
    fence: u8,
    clients: Vec<Client>,
    on_its_way: BTreeSet<Message>,
    requests: u8,
    losses: u8,
    /// The greatest token of all grants, also of those that were forgotten; one was not greater.
    greatest: u8,
    fell: bool,
    /// A release has left the lock free beside a live waiter.
    passed_over: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Tick,
    Claim(u8),
    Renew(u8),
    Release(u8),
    Comes(Message),
    LoseData,
}

/// How many tokens there are in one instant of the server's clock.
const TOKENS: u8 = 8;

impl State {
    /// Who says that it is valid, with which token.
    fn valid(&self) -> impl Iterator<Item = (u8, u8)> {
        (0..)
            .zip(&self.clients)
            .filter_map(|(at, client)| match client.stage {
                Stage::Holding { token, until } if self.now < until => Some((at, token)),
                _ => None,
            })
    }

    fn is_kept(&self, client: u8, token: u8) -> bool {
        self.holder
            .as_ref()
            .is_some_and(|e| (e.client, e.token) == (client, token) && self.now < e.deadline)
    }
}

impl Model for Redis {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            stage: Stage::Idle,
            claims: self.claims,
            renewals: self.renewals,
            has_held: false,
        };
        vec![State {
            now: 1,
            holder: None,
            queue: Vec::new(),
            fence: 0,
            clients: vec![client; usize::from(self.clients)],
            on_its_way: BTreeSet::new(),
            requests: self.requests,
            losses: self.losses,
            greatest: 0,
            fell: false,
            passed_over: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let mut idle = false;
        for (at, client) in (0..).zip(&s.clients) {
            let (asks, renews, holds) = match client.stage {
                // Clients are alike: they come in the order of their numbers.
                Stage::Idle => (!std::mem::replace(&mut idle, true), false, false),
                Stage::Asking => (true, true, true),
                Stage::Holding { .. } => (false, true, true),
                // Its release cannot free the next one's hold.
                Stage::Lost => (false, false, true),
                Stage::Released => (false, false, false),
            };
            actions
                .extend((asks && client.claims > 0 && s.requests > 0).then_some(Action::Claim(at)));
            actions.extend(
                (renews && client.renewals > 0 && s.requests > 0).then_some(Action::Renew(at)),
            );
            actions.extend(holds.then_some(Action::Release(at)));
        }
        actions.extend(s.on_its_way.iter().cloned().map(Action::Comes));
        if s.now < self.end {
            actions.push(Action::Tick);
            actions.extend((s.losses > 0).then_some(Action::LoseData));
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let (mut s, now) = (s.clone(), s.now);
        match action {
            Action::Tick => s.now += 1,
            Action::LoseData => {
                // It takes a moment to come back.
                (s.now, s.losses) = (now + 1, s.losses - 1);
                (s.holder, s.queue, s.fence) = (None, Vec::new(), 0);
            }
            Action::Claim(at) => {
                let client = &mut s.clients[usize::from(at)];
                client.claims -= 1;
                s.requests -= 1;
                if client.stage == Stage::Idle {
                    client.stage = Stage::Asking;
                }
                s.on_its_way.insert(Claim {
                    client: at,
                    sent: now,
                });
            }
            Action::Renew(at) => {
                let client = &mut s.clients[usize::from(at)];
                client.renewals -= 1;
                s.requests -= 1;
                let token = if let Stage::Holding { token, .. } = client.stage {
                    token
                } else {
                    0
                };
                s.on_its_way.insert(Renew {
                    client: at,
                    sent: now,
                    token,
                });
            }
            Action::Release(at) => {
                s.clients[usize::from(at)].stage = Stage::Released;
                s.on_its_way.insert(Release { client: at });
            }
            Action::Comes(message) => {
                s.on_its_way.remove(&message);
                match message {
                    Claim { .. } | Renew { .. } | Release { .. } => self.serve(&mut s, &message),
                    _ => self.tell(&mut s, &message),
                }
            }
        }
        settle(&mut s);
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Redis>> {
        vec![
            Property::always(super::ONE_HOLDER, |model: &Redis, s: &State| {
                s.losses < model.losses || s.valid().count() <= 1
            }),
            Property::always(super::KEPT, |model: &Redis, s: &State| {
                s.losses < model.losses || s.valid().all(|(client, token)| s.is_kept(client, token))
            }),
            Property::always(super::TOKENS_RISE, |_, s: &State| !s.fell),
            Property::always(super::ENDS_IN_A_TTL, |model: &Redis, s: &State| {
                s.holder
                    .iter()
                    .chain(&s.queue)
                    .all(|e| e.deadline <= e.heard + model.ttl)
            }),
            Property::always(super::NOT_PASSED_OVER, |_, s: &State| !s.passed_over),
            Property::sometimes("each client has held", |_, s: &State| {
                s.clients.iter().all(|it| it.has_held)
            }),
            Property::sometimes(
                "one holds after another that never released",
                |_, s: &State| {
                    s.valid().next().is_some()
                        && s.clients
                            .iter()
                            .any(|it| it.has_held && it.stage == Stage::Lost)
                },
            ),
        ]
    }
}

/// What follows from the time, and what nobody will look at any more: fewer states.
fn settle(s: &mut State) {
    for (at, client) in (0..).zip(&mut s.clients) {
        if matches!(client.stage, Stage::Holding { until, .. } if until <= s.now) {
            client.stage = Stage::Lost;
        }
        let listens = matches!(client.stage, Stage::Asking | Stage::Holding { .. });
        s.on_its_way.retain(|message| match *message {
            Granted { client, .. } | Pushed { client, .. } => client != at || listens,
            _ => true,
        });
    }
}
