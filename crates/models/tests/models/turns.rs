//! A long queue of etcd: whom a release names, beside claims and releases that are late, lost or
//! repeated.
//!
//! The rules are those of `etcd/src/claim/turns.rs`. Each client has one key, and uses it again.
//! Its claim is answered at once: what becomes of late ones is the matter of `queue.rs`. A removal,
//! and the request that names the first of the queue, may be executed late, twice or never, and
//! answered or not. A client hears at any time that it was named, also long after. It may claim
//! again at any time. Anybody's entry may be deleted by somebody else, by hand or with its lease;
//! the key that names it may stay.
//!
//! Time plays no part: how long a hold is valid is the matter of `etcd.rs`. So who holds, and whose
//! entry is there, counts as valid.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

/// What may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// Who is named, is named by the number of its entry. Without: by its key alone.
    NamesTheNumber,
    /// The transaction that deletes an entry names the next. Without: that is another request.
    OneTransaction,
    /// The line ends before an entry that takes no turns. Without: it goes on behind it.
    LineHasNoGaps,
    /// Who is told of nobody names the first of the queue. Without: the first behind itself.
    NamesTheFirst,
}

#[derive(Clone, Debug)]
pub(crate) struct Turns {
    pub(crate) clients: u8,
    /// The last so many of them take no turns.
    pub(crate) plain: u8,
    /// How often each joins.
    pub(crate) claims: u8,
    /// How many entries are deleted by others, and how many requests are executed twice.
    pub(crate) deletions: u8,
    pub(crate) repeats: u8,
    pub(crate) without: Option<Rule>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Entry {
    client: u8,
    created: u8,
}

/// That this one is named, and who stand behind it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Turn {
    created: u8,
    behind: Vec<Entry>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Request {
    Remove { own: Entry, line: Vec<Entry> },
    Name { line: Vec<Entry> },
}
use Request::{Name, Remove};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Idle,
    Waiting { created: u8 },
    Holding { created: u8 },
    Leaving { created: u8 },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    stage: Stage,
    left: u8,
    has_held: bool,
    /// It has heard of these.
    was_named: BTreeSet<Turn>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    queue: Vec<Entry>,
    /// The keys that name an entry, by the client's key. And all that were ever written: what a
    /// watch reports late.
    named: BTreeMap<u8, Turn>,
    written: BTreeSet<(u8, Turn)>,
    revision: u8,
    clients: Vec<Client>,
    on_their_way: BTreeSet<Request>,
    deletions: u8,
    repeats: u8,
    /// Somebody was named with the deletion of the entry before it.
    told: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Join(u8),
    ClaimAgain(u8),
    HearsOfTurn(u8, Turn),
    Leave(u8),
    Comes {
        request: Request,
        answered: bool,
        again: bool,
    },
    Delete(Entry),
}

impl Turns {
    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn takes_turns(&self, entry: &Entry) -> bool {
        entry.client < self.clients - self.plain
    }

    /// The entry ends by its client: a hold, or a waiter that gives up.
    fn leave(&self, s: &mut State, at: u8) {
        let client = &mut s.clients[usize::from(at)];
        let (Stage::Waiting { created } | Stage::Holding { created }) = client.stage else {
            return;
        };
        let own = Entry {
            client: at,
            created,
        };
        let told = client.was_named.iter().find(|turn| turn.created == created);
        let mut line = told.map(|turn| turn.behind.clone()).unwrap_or_default();
        client.stage = Stage::Leaving { created };
        if !self.has(Rule::OneTransaction) && !line.is_empty() {
            s.on_their_way.insert(Name {
                line: std::mem::take(&mut line),
            });
        }
        s.on_their_way.insert(Remove { own, line });
    }

    /// It is executed; answers what its sender sends next if it hears of it.
    fn execute(&self, s: &mut State, request: &Request) -> Option<Request> {
        match request {
            Name { line } => {
                s.names(line);
                None
            }
            Remove { own, line } => {
                let was_there = s.queue.contains(own);
                s.queue.retain(|entry| entry != own);
                if was_there {
                    s.named.remove(&own.client);
                }
                if was_there && line.first().is_some_and(|next| s.queue.contains(next)) {
                    s.names(line);
                    s.told = true;
                    return None;
                }
                let behind =
                    |entry: &&Entry| self.has(Rule::NamesTheFirst) || entry.created > own.created;
                let read: Vec<Entry> = s.queue.iter().filter(behind).copied().collect();
                let ours = |entry: &Entry| self.takes_turns(entry);
                let line: Vec<Entry> = if self.has(Rule::LineHasNoGaps) {
                    read.into_iter().take_while(ours).collect()
                } else {
                    read.into_iter().filter(ours).collect()
                };
                let first = line
                    .first()
                    .is_some_and(|first| first.created > own.created);
                // One that takes no turns is removed by a plain deletion.
                (first && self.takes_turns(own)).then_some(Name { line })
            }
        }
    }
}

impl State {
    fn names(&mut self, line: &[Entry]) {
        let Some((next, behind)) = line
            .split_first()
            .filter(|(next, _)| self.queue.contains(next))
        else {
            return;
        };
        let turn = Turn {
            created: next.created,
            behind: behind.to_vec(),
        };
        self.written.insert((next.client, turn.clone()));
        self.named.insert(next.client, turn);
    }

    fn is_first(&self, client: u8) -> bool {
        self.queue
            .first()
            .is_some_and(|first| first.client == client)
    }

    fn hold(&mut self, at: u8) {
        let client = &mut self.clients[usize::from(at)];
        if let Stage::Waiting { created } = client.stage {
            (client.stage, client.has_held) = (Stage::Holding { created }, true);
        }
    }

    /// Those that hold, and whose entries are there.
    fn valid(&self) -> impl Iterator<Item = Entry> {
        let holds = |(at, client): (u8, &Client)| match client.stage {
            Stage::Holding { created } => Some(Entry {
                client: at,
                created,
            }),
            _ => None,
        };
        (0..)
            .zip(&self.clients)
            .filter_map(holds)
            .filter(|entry| self.queue.contains(entry))
    }
}

impl Model for Turns {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client {
            stage: Stage::Idle,
            left: self.claims,
            has_held: false,
            was_named: BTreeSet::new(),
        };
        vec![State {
            queue: Vec::new(),
            named: BTreeMap::new(),
            written: BTreeSet::new(),
            revision: 0,
            clients: vec![client; usize::from(self.clients)],
            on_their_way: BTreeSet::new(),
            deletions: self.deletions,
            repeats: self.repeats,
            told: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for (at, client) in (0..).zip(&s.clients) {
            match client.stage {
                Stage::Idle if client.left > 0 => actions.push(Action::Join(at)),
                Stage::Waiting { .. } => {
                    actions.extend([Action::ClaimAgain(at), Action::Leave(at)]);
                }
                Stage::Holding { .. } => actions.push(Action::Leave(at)),
                Stage::Idle | Stage::Leaving { .. } => {}
            }
        }
        let heard = |(at, turn): &&(u8, Turn)| s.clients[usize::from(*at)].was_named.contains(turn);
        let unheard = s.written.iter().filter(|it| !heard(it));
        actions.extend(unheard.map(|(at, turn)| Action::HearsOfTurn(*at, turn.clone())));
        for request in &s.on_their_way {
            for (answered, again) in [(true, false), (false, true), (true, true)] {
                if !again || s.repeats > 0 {
                    actions.push(Action::Comes {
                        request: request.clone(),
                        answered,
                        again,
                    });
                }
            }
        }
        if s.deletions > 0 {
            actions.extend(s.queue.iter().copied().map(Action::Delete));
        }
    }

    fn next_state(&self, s: &State, action: Action) -> Option<State> {
        let mut s = s.clone();
        match action {
            Action::Join(at) => {
                s.revision += 1;
                let (client, created) = (&mut s.clients[usize::from(at)], s.revision);
                (client.stage, client.left) = (Stage::Waiting { created }, client.left - 1);
                s.queue.push(Entry {
                    client: at,
                    created,
                });
                if s.is_first(at) {
                    s.hold(at);
                }
            }
            Action::ClaimAgain(at) if s.is_first(at) => s.hold(at),
            Action::ClaimAgain(at) => {
                let there = s.queue.iter().any(|entry| entry.client == at);
                let client = &mut s.clients[usize::from(at)];
                (!there).then(|| client.stage = Stage::Idle)?;
            }
            Action::HearsOfTurn(at, turn) => {
                s.clients[usize::from(at)].was_named.insert(turn);
            }
            Action::Leave(at) => self.leave(&mut s, at),
            Action::Comes {
                request,
                answered,
                again,
            } => {
                if again {
                    s.repeats -= 1;
                } else {
                    s.on_their_way.remove(&request);
                }
                let next = self.execute(&mut s, &request);
                if answered {
                    s.on_their_way.extend(next);
                    if let Remove {
                        own: Entry { client, created },
                        ..
                    } = request
                    {
                        let client = &mut s.clients[usize::from(client)];
                        if client.stage == (Stage::Leaving { created }) {
                            client.stage = Stage::Idle;
                        }
                    }
                }
            }
            Action::Delete(entry) => {
                s.deletions -= 1;
                s.queue.retain(|other| *other != entry);
            }
        }
        for at in 0..self.clients {
            let client = &s.clients[usize::from(at)];
            let Stage::Waiting { created } = client.stage else {
                continue;
            };
            if client
                .was_named
                .iter()
                .any(|turn| turn.created == created || !self.has(Rule::NamesTheNumber))
            {
                s.hold(at);
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Turns>> {
        vec![
            Property::always(super::ONE_HOLDER, |_, s: &State| s.valid().count() <= 1),
            Property::always(super::KEPT, |_, s: &State| {
                s.valid().all(|entry| s.queue.first() == Some(&entry))
            }),
            Property::sometimes("each client has held", |_, s: &State| {
                s.clients.iter().all(|it| it.has_held)
            }),
            Property::sometimes(
                "one is named with the deletion before it",
                |_, s: &State| s.told,
            ),
        ]
    }
}
