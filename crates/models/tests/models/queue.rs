//! A queue whose places are carried by sessions, when replies are lost: claim, retry and withdraw.
//!
//! The rules are those of etcd, where what a late request leaves would stay for as long as its
//! session is renewed: `etcd/src/client/leased_key.rs` (`create`, `remove`: a withdrawal in doubt
//! writes the session's key, and then nothing is created in the session),
//! `etcd/src/claim/own_claims.rs` with `own.rs` (`begin`, `answered`: an attempt that was not
//! answered is a doubt for good; `begin_release`: a release that is sent again closes the session
//! in this client; a number is used again once its claim is forgotten) and `etcd/src/claim.rs`
//! (`register`, `enter`: a claim that is sent again names the same key).
//!
//! Leases live as long as their clients, so time plays no part. Any request may be late, or never
//! come, and requests pass one another. Its answer comes at once or never.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

/// What may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// A claim that is sent again names the same key. Without: another one.
    RepeatNamesTheKey,
    /// A withdrawal in doubt writes the session's key. Without: it deletes its own only.
    DoubtClosesTheSession,
    /// An attempt that was not answered is a doubt for good. Without: until a later one is
    /// answered.
    DoubtStays,
    /// A release that is sent again takes no new claim into its session. Without: it may.
    SecondReleaseCloses,
    /// A claim is forgotten once its release was answered. Without: once that was sent.
    ForgottenWhenReleased,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) clients: u8,
    /// How many locks each client asks for, one after the other: the first client so many, each
    /// other the second number.
    pub(crate) claims: [u8; 2],
    /// How often a claim is sent, and a release of it.
    pub(crate) sends: u8,
    pub(crate) releases: u8,
    /// How many requests all clients send together.
    pub(crate) requests: u8,
    /// How many clients may crash.
    pub(crate) crashes: u8,
    pub(crate) without: Option<Rule>,
}

/// A key: a session, and the number of a place in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key {
    client: u8,
    session: u8,
    slot: u8,
}

/// Creates the key for a claim, or deletes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Request {
    Create {
        key: Key,
        claim: u8,
        attempt: u8,
    },
    Delete {
        key: Key,
        claim: u8,
        attempt: u8,
        closing: bool,
    },
}

/// What a client knows of its claim.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Own {
    claim: u8,
    key: Key,
    /// The number of its key, 0 if none is known.
    created: u8,
    /// A request that may create its key was sent, and not answered; and whether one before the
    /// latest was.
    doubt: bool,
    doubt_before: bool,
    granted: bool,
    releasing: bool,
    sends: u8,
    releases: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    /// The claim of now; what is asked for next.
    own: Option<Own>,
    left: u8,
    session: u8,
    /// It takes no more claims into its session.
    is_closed: bool,
    has_crashed: bool,
    has_held: bool,
}

/// A key of the server: for which claim it was created, and when.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    claim: u8,
    created: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    keys: BTreeMap<Key, Place>,
    /// Sessions whose key was written, or whose lease has ended.
    closed: BTreeSet<(u8, u8)>,
    revision: u8,
    clients: Vec<Client>,
    on_their_way: BTreeSet<Request>,
    requests: u8,
    crashes: u8,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Claim(u8),
    Release(u8),
    Comes { request: Request, answered: bool },
    Crash(u8),
    LeaseEnds(u8),
}

impl Request {
    fn key(self) -> Key {
        let (Request::Create { key, .. } | Request::Delete { key, .. }) = self;
        key
    }
}

impl Queue {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// The claim of now is sent (again), or a new one.
    fn claim(&self, s: &mut State, at: u8) {
        let client = &mut s.clients[usize::from(at)];
        let own = client.own.get_or_insert_with(|| {
            if client.is_closed {
                (client.session, client.is_closed) = (client.session + 1, false);
            }
            client.left -= 1;
            let key = Key {
                client: at,
                session: client.session,
                slot: 0,
            };
            let (sends, releases) = (self.sends, self.releases);
            let (created, claim) = (0, client.left);
            let (doubt, doubt_before, granted, releasing) = (false, false, false, false);
            Own {
                claim,
                key,
                created,
                doubt,
                doubt_before,
                granted,
                releasing,
                sends,
                releases,
            }
        });
        own.sends -= 1;
        s.requests -= 1;
        if own.doubt && !self.has(Rule::RepeatNamesTheKey) {
            own.key.slot += 1;
        }
        let request = Request::Create {
            key: own.key,
            claim: own.claim,
            attempt: own.sends,
        };
        (own.doubt_before, own.doubt) = (own.doubt, true);
        s.on_their_way.insert(request);
    }

    fn release(&self, s: &mut State, at: u8) -> Option<()> {
        let client = &mut s.clients[usize::from(at)];
        let own = client.own.as_mut()?;
        if own.releasing && self.has(Rule::SecondReleaseCloses) {
            client.is_closed = true;
        }
        (own.releasing, own.granted) = (true, false);
        own.releases -= 1;
        let closing = own.doubt && self.has(Rule::DoubtClosesTheSession);
        client.is_closed |= closing;
        let request = Request::Delete {
            key: own.key,
            claim: own.claim,
            attempt: own.releases,
            closing,
        };
        if own.created == 0 && !own.doubt {
            // Nothing of it can be there.
            client.own = None;
        } else {
            s.requests -= 1;
            s.on_their_way.insert(request);
            if !self.has(Rule::ForgottenWhenReleased) {
                client.own = None;
            }
        }
        Some(())
    }

    /// What a request does to the server; and to its client, if its answer comes.
    fn serve(&self, s: &mut State, request: Request, answered: bool) {
        let key = request.key();
        let session = (key.client, key.session);
        match request {
            Request::Create { claim, .. } => {
                if !s.keys.contains_key(&key) && !s.closed.contains(&session) {
                    s.revision += 1;
                    s.keys.insert(
                        key,
                        Place {
                            claim,
                            created: s.revision,
                        },
                    );
                }
            }
            Request::Delete { closing, .. } => {
                s.keys.remove(&key);
                if closing {
                    s.closed.insert(session);
                }
            }
        }
        let place = s.keys.get(&key).copied();
        let first = s.keys.values().map(|it| it.created).min();
        let client = &mut s.clients[usize::from(key.client)];
        let Some(own) = client.own.as_mut().filter(|_| answered) else {
            return;
        };
        match request {
            Request::Create { .. } => {
                own.created = place.map_or(0, |it| it.created);
                own.doubt = own.doubt_before && self.has(Rule::DoubtStays);
                own.granted = own.created != 0 && first == Some(own.created) && !own.releasing;
                client.has_held |= own.granted;
            }
            Request::Delete { .. } => client.own = None,
        }
    }
}

impl Model for Queue {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |nth: u8| Client {
            own: None,
            left: self.claims[usize::from(nth > 0)],
            session: 0,
            is_closed: false,
            has_crashed: false,
            has_held: false,
        };
        vec![State {
            keys: BTreeMap::new(),
            closed: BTreeSet::new(),
            revision: 0,
            clients: (0..self.clients).map(client).collect(),
            on_their_way: BTreeSet::new(),
            requests: self.requests,
            crashes: self.crashes,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let mut idle = false;
        for (at, client) in (0..).zip(&s.clients) {
            if client.has_crashed {
                let has_keys = s.keys.keys().any(|key| key.client == at);
                actions.extend(has_keys.then_some(Action::LeaseEnds(at)));
                continue;
            }
            // Clients but for the first are alike: they come in the order of their numbers.
            let is_new = client.own.is_none() && client.left == self.claims[usize::from(at > 0)];
            let may_send = s.requests > 0 && !(is_new && idle);
            idle |= is_new && at > 0;
            let may_claim = client.own.as_ref().map_or(client.left > 0, |own| {
                own.sends > 0 && !own.releasing && !own.granted
            });
            actions.extend((may_send && may_claim).then_some(Action::Claim(at)));
            let may_release = client.own.as_ref().is_some_and(|own| own.releases > 0);
            actions.extend((may_send && may_release).then_some(Action::Release(at)));
            actions.extend((s.crashes > 0).then_some(Action::Crash(at)));
        }
        for &request in &s.on_their_way {
            let listens = [true, false]
                .into_iter()
                .filter(|answered| !answered || s.is_awaited(request));
            actions.extend(listens.map(|answered| Action::Comes { request, answered }));
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut s = s.clone();
        match action {
            Action::Claim(at) => self.claim(&mut s, at),
            Action::Release(at) => self.release(&mut s, at)?,
            Action::Comes { request, answered } => {
                s.on_their_way.remove(&request);
                self.serve(&mut s, request, answered);
            }
            Action::Crash(at) => {
                s.crashes -= 1;
                let client = &mut s.clients[usize::from(at)];
                (client.own, client.has_crashed) = (None, true);
            }
            Action::LeaseEnds(at) => {
                s.keys.retain(|key, _| key.client != at);
                s.closed
                    .extend((0..=s.clients[usize::from(at)].session).map(|session| (at, session)));
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Queue>> {
        vec![
            Property::always(super::ONE_HOLDER, |_, s: &State| s.holders().count() <= 1),
            Property::always(super::KEPT, |_, s: &State| {
                let first = s.keys.values().map(|place| place.created).min();
                s.holders().all(|own| {
                    s.keys
                        .get(&own.key)
                        .is_some_and(|it| Some(it.created) == first && it.created == own.created)
                })
            }),
            Property::always(super::NOTHING_FORGOTTEN, |_, s: &State| {
                s.keys.iter().all(|(key, place)| {
                    let client = &s.clients[usize::from(key.client)];
                    let knows = |own: &Own| (own.key, own.claim) == (*key, place.claim);
                    client.has_crashed || client.own.as_ref().is_some_and(knows)
                })
            }),
            Property::sometimes("each client has held", |_, s: &State| {
                s.clients.iter().all(|it| it.has_held)
            }),
            Property::sometimes("one holds in a later session", |_, s: &State| {
                s.holders().any(|own| own.key.session > 0)
            }),
        ]
    }
}

impl State {
    /// Whether its client looks at the answer: to its latest claim, and to each release of it.
    fn is_awaited(&self, request: Request) -> bool {
        let own = self.clients[usize::from(request.key().client)].own.as_ref();
        own.is_some_and(|own| match request {
            Request::Create {
                key,
                claim,
                attempt,
            } => (key, claim, attempt) == (own.key, own.claim, own.sends),
            Request::Delete { key, claim, .. } => (key, claim) == (own.key, own.claim),
        })
    }

    fn holders(&self) -> impl Iterator<Item = &Own> {
        self.clients
            .iter()
            .filter_map(|client| client.own.as_ref())
            .filter(|own| own.granted)
    }
}
