//! What the stores do with a request, and which one a client sends next.

use super::{
    At, Bridge, Client, Does, Entry, How, Kind, Known, NEW, OLD, Phase, Request, Rule, Stage,
    State, Store,
};

/// How much further places are raised than they must be.
const AHEAD: u8 = 12;

/// What a client does next.
enum Next {
    Ask(At, Request),
    /// The places to come have greater numbers than this.
    Raise(At, u8),
    /// A guard.
    Guard(u8),
    Done,
}

impl Bridge {
    pub(super) fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn stage(&self, client: u8) -> Stage {
        self.clients[usize::from(client)].0
    }

    /// Its stores, in the order in which it takes them.
    pub(super) fn parts(&self, client: u8) -> &'static [At] {
        match self.stage(client) {
            Stage::One => &[OLD],
            Stage::Three => &[NEW],
            Stage::Bridge if client > 0 && !self.has(Rule::OneOrder) => &[NEW, OLD],
            Stage::Bridge => &[OLD, NEW],
        }
    }

    pub(super) fn may_run(&self, s: &State, client: u8) -> bool {
        match self.stage(client) {
            Stage::Bridge => true,
            Stage::One => {
                !self.has(Rule::NeverOneAndThree)
                    || matches!(s.phase, Phase::OneAndTwo | Phase::Back)
            }
            Stage::Three => !self.has(Rule::NeverOneAndThree) || s.phase == Phase::TwoAndThree,
        }
    }

    pub(super) fn next_phase(&self, s: &mut State) -> Option<Phase> {
        let gone = |stage| {
            let of_stage = (0..)
                .zip(&s.clients)
                .filter(|(at, _)| self.stage(*at) == stage);
            of_stage
                .clone()
                .all(|(_, client)| client.does == Does::Nothing)
        };
        let sealed = |mark| if self.has(Rule::Seal) { mark } else { 0 };
        Some(match s.phase {
            Phase::OneAndTwo if gone(Stage::One) => Phase::Sealing(sealed(s.stores[OLD].mark())),
            Phase::Sealing(mark) => {
                self.raise(s, NEW, mark);
                Phase::TwoAndThree
            }
            Phase::TwoAndThree if self.back && gone(Stage::Three) => {
                Phase::SealingBack(sealed(s.stores[NEW].mark()))
            }
            Phase::SealingBack(mark) => {
                self.raise(s, OLD, mark);
                Phase::Back
            }
            _ => return None,
        })
    }

    fn raise(&self, s: &mut State, at: At, number: u8) {
        let store = &mut s.stores[at];
        match self.kinds[at] {
            Kind::Holds => store.number = store.number.max(number),
            Kind::Places if self.has(Rule::Base) => {
                store.base = store.base.max(number.saturating_sub(store.number));
            }
            Kind::Places => {}
        }
    }

    /// The first of the queue holds.
    pub(super) fn admit(&self, store: &mut Store, at: At) {
        let Some(first) = store.queue.first_mut().filter(|first| first.token == 0) else {
            return;
        };
        debug_assert_eq!(self.kinds[at], Kind::Holds, "places have numbers");
        first.token = (store.number + 1).max(first.floor);
        store.number = first.token;
    }

    /// What a request does in a store: what its client would know of its stay there.
    pub(super) fn execute(
        &self,
        s: &mut State,
        at: At,
        (client, stay): (u8, u8),
        request: Request,
    ) -> Known {
        let known = s.place(at, client, stay);
        let store = &mut s.stores[at];
        let Request::Claim { floor } = request else {
            store
                .queue
                .retain(|entry| (entry.client, entry.stay) != (client, stay));
            return Known::Nothing;
        };
        let place = known.unwrap_or_else(|| {
            let token = match self.kinds[at] {
                Kind::Holds => 0,
                Kind::Places => {
                    store.number += 1;
                    store.base + store.number
                }
            };
            store.queue.push(Entry {
                client,
                stay,
                token,
                floor: 0,
            });
            store.queue.len() - 1
        });
        let entry = &mut store.queue[place];
        entry.floor = entry.floor.max(floor);
        if self.kinds[at] == Kind::Holds && entry.token > 0 {
            if self.has(Rule::NeverLower) || floor == 0 {
                entry.token = entry.token.max(floor);
            } else {
                entry.token = floor;
            }
            store.number = store.number.max(entry.token);
        }
        self.admit(store, at);
        if place == 0 {
            Known::Holds(store.queue[0].token)
        } else {
            Known::Waits
        }
    }

    /// The next request of a client that acquires or leaves. `None`: this cannot happen to it.
    pub(super) fn send(&self, s: &mut State, client: u8, how: How) -> Option<()> {
        let next = self.next(client, &s.clients[usize::from(client)]);
        let Next::Ask(at, request) = next else {
            if how != How::Answered {
                return None;
            }
            match next {
                Next::Raise(at, number) => self.raises(s, client, at, number),
                Next::Guard(token) => {
                    // One that was evicted on the way has its turn in the order behind it.
                    s.fell |= token <= s.token && !s.clients[usize::from(client)].evicted;
                    s.token = s.token.max(token);
                    let it = s.client(client);
                    (it.does, it.has_held) = (Does::Holds(token), true);
                }
                _ => {
                    let it = s.client(client);
                    (it.does, it.evicted) = (Does::Nothing, false);
                    // Another acquisition has another id in any case.
                    it.stays
                        .iter_mut()
                        .for_each(|stay| *stay += u8::from(!self.has(Rule::IdPerStay)));
                }
            }
            return Some(());
        };
        let stay = s.clients[usize::from(client)].stays[at];
        let mut known = Known::Unclear;
        match how {
            How::Answered => known = self.execute(s, at, (client, stay), request),
            // Nobody waits for the answer to a release.
            How::ReplyLost if request == Request::Release => return None,
            How::ReplyLost => {
                s.faults.lost -= 1;
                self.execute(s, at, (client, stay), request);
            }
            How::Late => {
                s.faults.late -= 1;
                s.late.insert((client, at, stay, request));
            }
        }
        let forgets = request == Request::Release;
        let it = s.client(client);
        it.known[at] = if forgets { Known::Nothing } else { known };
        it.stays[at] += u8::from(forgets && self.has(Rule::IdPerStay));
        Some(())
    }

    /// It raises the numbers of places to come, and gives up the one that it has.
    fn raises(&self, s: &mut State, client: u8, at: At, number: u8) {
        self.raise(
            s,
            at,
            number
                + if self.has(Rule::RaisesByMore) {
                    AHEAD
                } else {
                    0
                },
        );
        let anew = self.has(Rule::StandsAnew) && self.has(Rule::Base);
        s.client(client).known[at] = if anew {
            Known::Stale
        } else {
            Known::Holds(number)
        };
    }

    fn next(&self, client: u8, it: &Client) -> Next {
        if it.does == Does::Leaves {
            let stays = [NEW, OLD]
                .into_iter()
                .find(|at| it.known[*at] != Known::Nothing);
            return stays.map_or(Next::Done, |at| Next::Ask(at, Request::Release));
        }
        let claim = |at, floor| Next::Ask(at, Request::Claim { floor });
        let &[first, second] = self.parts(client) else {
            let at = self.parts(client)[0];
            return if let Known::Holds(token) = it.known[at] {
                Next::Guard(token)
            } else {
                claim(at, 0)
            };
        };
        let leaves_second = it.known[second] != Known::Nothing;
        match (it.known[first], it.known[second]) {
            (Known::Stale, _) if leaves_second => Next::Ask(second, Request::Release),
            (Known::Waits, _) if leaves_second && self.has(Rule::WithdrawsFromNew) => {
                Next::Ask(second, Request::Release)
            }
            (Known::Stale, _) => Next::Ask(first, Request::Release),
            (_, Known::Stale) => Next::Ask(second, Request::Release),
            (Known::Holds(a), Known::Holds(b)) => {
                let token = a.max(b);
                let behind = [(first, a), (second, b)].into_iter();
                let told = |at| {
                    self.has(if at == OLD {
                        Rule::FloorInOld
                    } else {
                        Rule::FloorInNew
                    })
                };
                match behind
                    .filter(|(at, own)| *own < token && told(*at))
                    .map(|(at, _)| at)
                    .next()
                {
                    None => Next::Guard(token),
                    Some(at) if self.kinds[at] == Kind::Holds => claim(at, token),
                    Some(at) => Next::Raise(at, token),
                }
            }
            (Known::Holds(a), _) => claim(second, if self.has(Rule::FloorInNew) { a } else { 0 }),
            _ => claim(first, 0),
        }
    }

    pub(super) fn lease_ends(&self, s: &mut State, at: At, client: u8, stay: u8) {
        let is_kept = s.stores[at]
            .queue
            .iter()
            .any(|it| (it.client, it.stay) == (client, stay) && s.is_kept(at, it));
        s.stores[at]
            .queue
            .retain(|it| (it.client, it.stay) != (client, stay));
        if !is_kept {
            return;
        }
        s.faults.ends -= 1;
        let both = self.parts(client).iter().all(|part| {
            *part == at || s.clients[usize::from(client)].known[*part] == Known::Unclear
        });
        let it = s.client(client);
        if it.known[at] != Known::Stale {
            it.known[at] = Known::Unclear;
        }
        if matches!(it.does, Does::Holds(_)) && (self.has(Rule::EarlierEnd) || both) {
            s.ends(client);
        }
    }

    /// Somebody is at work, and without a fault nothing will happen any more.
    pub(super) fn is_stuck(&self, s: &State) -> bool {
        let works = |it: &Client| matches!(it.does, Does::Acquires | Does::Leaves);
        let moves = !s.late.is_empty()
            || s.clients.iter().any(|it| matches!(it.does, Does::Holds(_)))
            || [OLD, NEW].iter().any(|at| {
                s.stores[*at]
                    .queue
                    .iter()
                    .any(|entry| !s.is_kept(*at, entry))
            });
        !moves
            && s.clients.iter().any(works)
            && (0..)
                .zip(&s.clients)
                .filter(|(_, it)| works(it))
                .all(|(at, _)| {
                    let mut next = s.clone();
                    self.send(&mut next, at, How::Answered).is_none() || next == *s
                })
    }
}

impl Store {
    /// No token that it gave is greater.
    fn mark(&self) -> u8 {
        self.base + self.number
    }
}

impl State {
    pub(super) fn client(&mut self, client: u8) -> &mut Client {
        &mut self.clients[usize::from(client)]
    }

    pub(super) fn place(&self, at: At, client: u8, stay: u8) -> Option<usize> {
        self.stores[at]
            .queue
            .iter()
            .position(|it| (it.client, it.stay) == (client, stay))
    }

    /// Its client knows of this stay, and renews it.
    pub(super) fn is_kept(&self, at: At, entry: &Entry) -> bool {
        let client = &self.clients[usize::from(entry.client)];
        client.stays[at] == entry.stay && client.known[at] != Known::Nothing
    }

    /// It acquires or holds no more, and gives back what it has.
    pub(super) fn ends(&mut self, client: u8) {
        self.client(client).does = Does::Leaves;
    }

    /// Who says to be valid, with which token.
    pub(super) fn valid(&self) -> impl Iterator<Item = (u8, &Client, u8)> {
        (0..)
            .zip(&self.clients)
            .filter_map(|(at, it)| match it.does {
                Does::Holds(token) => Some((at, it, token)),
                _ => None,
            })
    }
}
