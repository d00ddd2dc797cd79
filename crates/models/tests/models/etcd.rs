//! etcd: what proves a hold, beside members that led before.
//!
//! The rules are those of `etcd/src/client/liveness.rs` (a keep-alive counts only if a transaction
//! after it, answered in the same `raft_term`, has found the keys), of `etcd/src/claim.rs`
//! (`stand`: an eviction that is known already takes the grant with it) and of
//! `etcd/src/claim/own.rs` (a grant lasts from its session's last verified renewal). Each client
//! has one session, with one key.
//!
//! What is assumed of etcd, as `liveness.rs` says it: a member that led renews leases in a table of
//! its own until it applies an entry of a later leader, and answers with its own term; a later
//! leader gives every lease its whole TTL again; a transaction with a read is answered by a leader
//! that a majority confirms. So its keys are one list here, and its answer has the term of now.
//!
//! A keep-alive and its transaction may be late, or never come. Their answers come at once or
//! never: one that is late tells the same, when less of it is left. The answer to a claim, and the
//! note of an eviction, may come in any order, late or never. A claim and a release are executed at
//! once: what becomes of late ones is the matter of `queue.rs`. A waiter hears at any time that it
//! is the first. All this happens to the first client; the others come when they like, are answered
//! at once, and renew nothing.

mod steps;

use std::collections::BTreeSet;

use stateright::{Model, Property};

/// What may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// A renewal counts in one term. Without (E2): whoever answered the keep-alive.
    OneTerm,
    /// The transaction has a read. Without: a member that led before answers it from what it knows.
    ReadsTheLeader,
    /// The keys are compared. Without (E4): the lease alone proves the hold.
    KeysProve,
    /// Who was evicted before the claim's answer came is not granted. Without (E3): the answer
    /// grants.
    EvictionComesFirst,
    /// A grant lasts from its session's last renewal. Without: from the send of the claim.
    CountsFromTheRenewal,
    /// And no longer than a TTL from when it was last asked for. Without: a renewal that did not
    /// know of the key counts for it.
    CountsFromTheClaim,
}

#[derive(Clone, Debug)]
pub(crate) struct Etcd {
    pub(crate) clients: u8,
    pub(crate) ttl: u8,
    /// The last instant.
    pub(crate) end: u8,
    /// How many elections there may be, how many keys may be deleted by others, and how many
    /// keep-alives are sent, by all together.
    pub(crate) elections: u8,
    pub(crate) deletions: u8,
    pub(crate) keep_alives: u8,
    pub(crate) without: Option<Rule>,
}

/// A member that led, and has not heard of a later leader.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Former {
    term: u8,
    /// Which sessions it renews.
    renews: Vec<bool>,
    keys: Vec<Key>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Key {
    client: u8,
    created: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Idle,
    Opened,
    Asking,
    Waiting { created: u8 },
    Holding { created: u8, since: u8 },
    Ended,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    stage: Stage,
    /// The send of the latest renewal that counted, and of the latest request for the claim.
    verified: u8,
    used: u8,
    /// Which of its keys it knows to be evicted.
    evicted: Option<u8>,
    /// Which of its keys somebody else deleted, and when.
    deleted: Option<(u8, u8)>,
    has_held: bool,
}

/// A hold that says to be valid.
struct Valid<'a> {
    key: Key,
    /// From when its TTL counts.
    since: u8,
    deleted_at: Option<u8>,
    client: &'a Client,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Message {
    Claimed {
        client: u8,
        created: u8,
        first: bool,
    },
    KeepAlive {
        client: u8,
        sent: u8,
    },
    Compare {
        client: u8,
        sent: u8,
        term: u8,
    },
    Evicted {
        client: u8,
        created: u8,
    },
}
use Message::{Claimed, Compare, Evicted, KeepAlive};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    now: u8,
    term: u8,
    /// When each session's lease ends, by the leader's table.
    leases: Vec<Option<u8>>,
    keys: Vec<Key>,
    revision: u8,
    formers: Vec<Former>,
    clients: Vec<Client>,
    on_its_way: BTreeSet<Message>,
    deletions: u8,
    keep_alives: u8,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Tick,
    OpenSession(u8),
    Enter(u8),
    Claim(u8),
    /// Nothing is before its key any more.
    IsFirst(u8),
    KeepAlive(u8),
    Release(u8),
    Comes(Message),
    /// The same, to a member that led before.
    ComesToFormer(Message, usize),
    LeaseEnds(u8),
    Elect,
    HearsOfElection(usize),
    Evict,
    DeleteByHand,
}

impl Model for Etcd {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            stage: Stage::Idle,
            verified: 0,
            used: 0,
            evicted: None,
            deleted: None,
            has_held: false,
        };
        vec![State {
            now: 0,
            term: 1,
            leases: vec![None; usize::from(self.clients)],
            keys: Vec::new(),
            revision: 0,
            formers: Vec::new(),
            clients: vec![client; usize::from(self.clients)],
            on_its_way: BTreeSet::new(),
            deletions: self.deletions,
            keep_alives: self.keep_alives,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let mut idle = false;
        for (at, client) in (0..).zip(&s.clients) {
            match client.stage {
                Stage::Idle if at == 0 => actions.push(Action::OpenSession(at)),
                // They are alike, and come in the order of their numbers.
                Stage::Idle if !idle => actions.push(Action::Enter(at)),
                Stage::Opened => actions.push(Action::Claim(at)),
                Stage::Waiting { .. } if s.is_first(at) => actions.push(Action::IsFirst(at)),
                Stage::Holding { .. } => actions.push(Action::Release(at)),
                _ => {}
            }
            idle |= client.stage == Stage::Idle && at > 0;
            if at == 0 && s.keep_alives > 0 && !matches!(client.stage, Stage::Idle | Stage::Ended) {
                actions.push(Action::KeepAlive(at));
            }
            if s.leases[usize::from(at)].is_some_and(|end| end <= s.now) {
                actions.push(Action::LeaseEnds(at));
            }
        }
        for message in &s.on_its_way {
            actions.push(Action::Comes(message.clone()));
            let to_former = matches!(message, KeepAlive { .. })
                || (matches!(message, Compare { .. }) && !self.has(Rule::ReadsTheLeader));
            if to_former {
                actions.extend(
                    (0..s.formers.len()).map(|at| Action::ComesToFormer(message.clone(), at)),
                );
            }
        }
        actions.extend((0..s.formers.len()).map(Action::HearsOfElection));
        actions.extend((s.term <= self.elections).then_some(Action::Elect));
        if s.deletions > 0 && !s.keys.is_empty() {
            actions.extend([Action::Evict, Action::DeleteByHand]);
        }
        actions.extend((s.now < self.end).then_some(Action::Tick));
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut s = s.clone();
        match action {
            Action::Tick => s.now += 1,
            Action::OpenSession(client) => self.open_session(&mut s, client),
            Action::Enter(client) => self.enter(&mut s, client),
            Action::Claim(client) => self.claim(&mut s, client),
            Action::IsFirst(client) => self.hold(&mut s, client),
            Action::KeepAlive(client) => {
                s.keep_alives -= 1;
                s.on_its_way.insert(KeepAlive {
                    client,
                    sent: s.now,
                });
                s.clients[usize::from(client)].renews(s.now);
            }
            Action::Release(client) => {
                s.end(client);
                s.keys.retain(|key| key.client != client);
                s.leases[usize::from(client)] = None;
            }
            Action::Comes(message) => {
                s.on_its_way.remove(&message);
                self.tell(&mut s, &message);
                self.serve(&mut s, &message);
            }
            Action::ComesToFormer(message, at) => {
                s.on_its_way.remove(&message);
                let former = s.formers[at].clone();
                match message {
                    KeepAlive { client, sent } if former.renews[usize::from(client)] => {
                        self.renewed(&mut s, client, sent, former.term);
                    }
                    Compare { client, sent, term } => {
                        self.compared(&mut s, client, sent, (term, former.term), &former.keys);
                    }
                    _ => return None,
                }
            }
            Action::LeaseEnds(client) => {
                s.leases[usize::from(client)] = None;
                s.keys.retain(|key| key.client != client);
            }
            Action::Elect => {
                let renews = s.leases.iter().map(Option::is_some).collect();
                s.formers.push(Former {
                    term: s.term,
                    renews,
                    keys: s.keys.clone(),
                });
                s.term += 1;
                let end = s.now + self.ttl;
                s.leases.iter_mut().flatten().for_each(|lease| *lease = end);
            }
            Action::HearsOfElection(at) => drop(s.formers.remove(at)),
            Action::Evict => {
                let Key { client, created } = s.delete_first();
                s.on_its_way.insert(Evicted { client, created });
            }
            Action::DeleteByHand => drop(s.delete_first()),
        }
        settle(&mut s);
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Etcd>> {
        vec![
            // Where somebody else deleted the key of one, only the token protects.
            Property::always(super::ONE_HOLDER, |model: &Etcd, s: &State| {
                model.valid(s).filter(|it| it.deleted_at.is_none()).count() <= 1
            }),
            Property::always(super::KEPT, |model: &Etcd, s: &State| {
                model
                    .valid(s)
                    .all(|it| it.deleted_at.is_some() || s.keys.first() == Some(&it.key))
            }),
            Property::always(super::DELETED_ENDS_IN_A_TTL, |model: &Etcd, s: &State| {
                model
                    .valid(s)
                    .all(|it| it.deleted_at.is_none_or(|at| it.since <= at))
            }),
            Property::always(super::EVICTED_KNOWS, |model: &Etcd, s: &State| {
                model
                    .valid(s)
                    .all(|it| it.client.evicted != Some(it.key.created))
            }),
            Property::sometimes("each client has held", |_, s: &State| {
                s.clients.iter().all(|it| it.has_held)
            }),
            Property::sometimes(
                "a renewal counts after an election",
                |model: &Etcd, s: &State| {
                    s.term > 1 && model.valid(s).any(|it| s.now >= model.ttl && it.since > 0)
                },
            ),
        ]
    }
}

/// What nobody will look at any more: fewer states.
fn settle(s: &mut State) {
    let State {
        clients,
        on_its_way,
        formers,
        ..
    } = s;
    let listens = |client: u8| clients[usize::from(client)].stage != Stage::Ended;
    on_its_way.retain(|message| match *message {
        Claimed { client, .. }
        | Compare { client, .. }
        | Evicted { client, .. }
        | KeepAlive { client, .. } => listens(client),
    });
    for former in formers {
        (0..)
            .zip(&mut former.renews)
            .for_each(|(at, renews)| *renews &= listens(at));
    }
}
