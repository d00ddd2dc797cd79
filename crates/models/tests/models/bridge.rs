//! The bridge: a fleet moves from one store to another, by stages, and back.
//!
//! The rules are those of `bridge/src` (a hold of two stores, by one token) and of `docs/bridge.md`
//! (which stages may run beside one another, and the seal). Stage 1 holds in the old store, the
//! bridge in both, stage 3 in the new one.
//!
//! A store is a queue with numbers: it gives them to holds when they are granted (`Holds`), or to
//! places when they are taken (`Places`), as `Raises` says it of a store. What it does with a floor
//! and with `raise` is S16 and S17 of `TokenFloor`.
//!
//! A request is executed and answered at once; or its answer is lost; or it comes later, and its
//! answer to nobody. The client goes on meanwhile. There is no clock: an entry may end at any
//! moment, and its client has counted it as over by then, as a validity counts from before the
//! send. An entry of which no client knows ends for nothing; one that is kept, a client that dies,
//! one that leaves its acquisition, an eviction in one store, a jump of a store's clock have a
//! number each. What has been evicted is protected by its token only.
//!
//! Not here: modes other than exclusive, turns, several names, data that are lost, a frozen process
//! of stage 1 (it is *never 1 and 3*).

mod steps;

use std::collections::BTreeSet;

use stateright::{Model, Property};

/// What may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// All bridges take old first. Without: the second one takes new first.
    OneOrder,
    /// Who no longer holds in old withdraws from new. Without: it keeps what it has there.
    WithdrawsFromNew,
    /// A guard is over with the first of its two leases. Without: with the second one.
    EarlierEnd,
    /// Old is told the token of new, if it is the greater one.
    FloorInOld,
    /// New is told the token of old.
    FloorInNew,
    /// A floor raises. Without: the token of a hold is set to it.
    NeverLower,
    /// The mark of the store that is left is the floor of all names in the other one.
    Seal,
    /// A store that numbers places can raise those to come.
    Base,
    /// Who has raised them stands anew. Without: it goes on with the place that it has.
    StandsAnew,
    /// It raises them further than it must. Without: two bridges overtake each other for ever.
    RaisesByMore,
    /// Stage 3 comes when the last of stage 1 has gone, and the reverse.
    NeverOneAndThree,
    /// Each stay in a store has an id of its own. Without: a client has one.
    IdPerStay,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    One,
    Bridge,
    Three,
}

/// When a store gives a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Holds,
    Places,
}

/// How often each may happen, in all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Faults {
    pub(crate) ends: u8,
    pub(crate) crashes: u8,
    pub(crate) lost: u8,
    pub(crate) late: u8,
    pub(crate) cancels: u8,
    pub(crate) evictions: u8,
    pub(crate) jumps: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct Bridge {
    /// The clients, and how many acquisitions each makes.
    pub(crate) clients: &'static [(Stage, u8)],
    /// Old and new: when they give numbers, and how far these are in the beginning.
    pub(crate) kinds: [Kind; 2],
    pub(crate) marks: [u8; 2],
    /// The fleet may go back.
    pub(crate) back: bool,
    pub(crate) faults: Faults,
    pub(crate) without: Option<Rule>,
}

/// More places than that nobody takes one after the other in a store.
const MANY: u8 = 12;

/// Old or new.
type At = usize;
const OLD: At = 0;
const NEW: At = 1;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Entry {
    client: u8,
    stay: u8,
    /// 0: none yet.
    token: u8,
    floor: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Store {
    queue: Vec<Entry>,
    /// The last number, and what is added to it in a place.
    number: u8,
    base: u8,
}

/// What a client knows of its stay in a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Known {
    /// It has none.
    Nothing,
    /// Whether it has one, or still has it.
    Unclear,
    Waits,
    Holds(u8),
    /// It gives the place up, for a greater number.
    Stale,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Does {
    Nothing,
    Acquires,
    Holds(u8),
    Leaves,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    does: Does,
    known: [Known; 2],
    stays: [u8; 2],
    /// Acquisitions that it will make.
    left: u8,
    /// Somebody evicted the hold in one of its stores.
    evicted: bool,
    has_held: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Request {
    Claim { floor: u8 },
    Release,
}

/// A request that comes later: of which client, to which store, of which of its stays.
type Late = (u8, At, u8, Request);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    OneAndTwo,
    /// No stage 1 any more; the mark of old.
    Sealing(u8),
    TwoAndThree,
    /// No stage 3 any more; the mark of new.
    SealingBack(u8),
    Back,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    stores: [Store; 2],
    clients: Vec<Client>,
    late: BTreeSet<Late>,
    phase: Phase,
    faults: Faults,
    /// The greatest token that a guard had, and whether a later one had no greater one.
    token: u8,
    fell: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    Answered,
    ReplyLost,
    Late,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Begins(u8),
    /// The next request of its acquisition or of its end.
    Sends(u8, How),
    /// It asks whether it still holds there.
    Renews(u8, At),
    Releases(u8),
    Cancels(u8),
    Dies(u8),
    Comes(Late),
    /// Of a client's stay in a store.
    LeaseEnds(At, u8, u8),
    Evict(At),
    ClockJumps(At),
    NextPhase,
}

impl Model for Bridge {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let store = |at: At| Store {
            queue: Vec::new(),
            number: self.marks[at],
            base: 0,
        };
        let client = |left| Client {
            does: Does::Nothing,
            known: [Known::Nothing; 2],
            stays: [0; 2],
            left,
            evicted: false,
            has_held: false,
        };
        vec![State {
            stores: [store(OLD), store(NEW)],
            clients: self
                .clients
                .iter()
                .map(|(_, claims)| client(*claims))
                .collect(),
            late: BTreeSet::new(),
            phase: Phase::OneAndTwo,
            faults: self.faults,
            token: 0,
            fell: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let f = &s.faults;
        for (at, client) in (0..).zip(&s.clients) {
            match client.does {
                Does::Nothing if client.left > 0 && self.may_run(s, at) => {
                    actions.push(Action::Begins(at));
                }
                Does::Nothing => {}
                Does::Holds(_) => {
                    actions.push(Action::Releases(at));
                    actions.extend(
                        self.parts(at)
                            .iter()
                            .map(|store| Action::Renews(at, *store)),
                    );
                }
                Does::Acquires | Does::Leaves => {
                    actions.push(Action::Sends(at, How::Answered));
                    actions.extend((f.lost > 0).then_some(Action::Sends(at, How::ReplyLost)));
                    actions.extend((f.late > 0).then_some(Action::Sends(at, How::Late)));
                }
            }
            actions.extend(
                (client.does == Does::Acquires && f.cancels > 0).then_some(Action::Cancels(at)),
            );
            actions.extend(
                (client.does != Does::Nothing && f.crashes > 0).then_some(Action::Dies(at)),
            );
        }
        actions.extend(s.late.iter().copied().map(Action::Comes));
        for (at, store) in s.stores.iter().enumerate() {
            for entry in &store.queue {
                if f.ends > 0 || !s.is_kept(at, entry) {
                    actions.push(Action::LeaseEnds(at, entry.client, entry.stay));
                }
            }
            actions
                .extend((f.evictions > 0 && !store.queue.is_empty()).then_some(Action::Evict(at)));
            actions.extend(
                (f.jumps > 0 && self.kinds[at] == Kind::Holds).then_some(Action::ClockJumps(at)),
            );
        }
        actions.push(Action::NextPhase);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut s = before.clone();
        match action {
            Action::Begins(at) => {
                let client = s.client(at);
                (client.does, client.left) = (Does::Acquires, client.left - 1);
            }
            Action::Sends(at, how) => self.send(&mut s, at, how)?,
            Action::Renews(at, store) => {
                if s.place(store, at, s.clients[usize::from(at)].stays[store])
                    .is_none()
                {
                    s.ends(at);
                }
            }
            Action::Releases(at) => s.ends(at),
            Action::Cancels(at) => {
                s.faults.cancels -= 1;
                s.ends(at);
            }
            Action::Dies(at) => {
                s.faults.crashes -= 1;
                s.ends(at);
                let client = s.client(at);
                (client.does, client.known, client.left) = (Does::Nothing, [Known::Nothing; 2], 0);
            }
            Action::Comes(late) => {
                s.late.remove(&late);
                let (client, at, stay, request) = late;
                self.execute(&mut s, at, (client, stay), request);
            }
            Action::LeaseEnds(at, client, stay) => self.lease_ends(&mut s, at, client, stay),
            Action::Evict(at) => {
                s.faults.evictions -= 1;
                let entry = s.stores[at].queue.remove(0);
                let is_of_now = s.clients[usize::from(entry.client)].stays[at] == entry.stay;
                s.client(entry.client).evicted |= is_of_now;
            }
            Action::ClockJumps(at) => {
                s.faults.jumps -= 1;
                s.stores[at].number += 2;
            }
            Action::NextPhase => s.phase = self.next_phase(&mut s)?,
        }
        for at in [OLD, NEW] {
            self.admit(&mut s.stores[at], at);
        }
        (s != *before).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Bridge>> {
        vec![
            Property::always(super::ONE_HOLDER, |_, s: &State| {
                s.valid().filter(|(_, it, _)| !it.evicted).count() <= 1
            }),
            Property::always(super::TOKENS_RISE, |_, s: &State| !s.fell),
            Property::always(super::KNOWN_IN_ALL, |model: &Bridge, s: &State| {
                s.valid()
                    .filter(|(_, it, _)| !it.evicted)
                    .all(|(at, it, token)| {
                        model.parts(at).iter().all(|store| {
                            s.stores[*store].queue.first().is_some_and(|first| {
                                (first.client, first.stay, first.token)
                                    == (at, it.stays[*store], token)
                            })
                        })
                    })
            }),
            Property::always(super::NOBODY_STUCK, |model: &Bridge, s: &State| {
                !model.is_stuck(s)
            }),
            Property::always(super::NOT_FOR_EVER, |model: &Bridge, s: &State| {
                !model.has(Rule::IdPerStay)
                    || s.clients
                        .iter()
                        .all(|it| it.stays.iter().all(|stays| *stays < MANY))
            }),
            Property::sometimes("each client has held", |_, s: &State| {
                s.clients.iter().all(|it| it.has_held)
            }),
            Property::sometimes("the fleet has moved", |model: &Bridge, s: &State| {
                let end = if model.back {
                    Phase::Back
                } else {
                    Phase::TwoAndThree
                };
                s.phase == end && s.clients.iter().all(|it| it.has_held)
            }),
        ]
    }
}
