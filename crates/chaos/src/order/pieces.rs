//! The acquisitions of each lock, cut where nobody holds, waits or is being answered.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap, HashSet},
};

use crate::event::{Breaks, Event, Limits, Mode, Policy, What};

/// One acquisition, as the history tells it.
#[derive(Clone, Debug)]
pub(super) struct Acquisition {
    p: u64,
    pub(super) mode: Mode,
    pub(super) owner: Option<u64>,
    pub(super) invoked: u64,
    pub(super) granted: Option<(u64, u64)>,
    pub(super) refused: Option<u64>,
    /// It has returned, and took nothing.
    pub(super) failed: Option<u64>,
    /// Until when what it had in the queue may still be there. A request that was given up may have been granted before its withdrawal
    /// arrived.
    withdrawn: Option<u64>,
    policy: Policy,
    /// Until when its guard has said that it is valid.
    valid: u64,
    pub(super) downgraded: Option<u64>,
    released: Option<u64>,
    pub(super) confirmed: Option<u64>,
    lost: Option<u64>,
    /// Since when its client knows nothing of it any more: it has left, or died, or a release was not confirmed.
    left: Option<u64>,
    /// It is of an earlier piece, and may be there still.
    pub(super) is_left: bool,
    /// It was called when there was no fault, and the store had settled.
    is_calm: bool,
}

impl Acquisition {
    fn new(
        p: u64,
        (mode, policy): (Mode, Policy),
        owner: Option<u64>,
        invoked: u64,
    ) -> Acquisition {
        let granted = None;
        let refused = None;
        let failed = None;
        let downgraded = None;
        let withdrawn = None;
        let released = None;
        let confirmed = None;
        let lost = None;
        let left = None;
        let valid = 0;
        let is_left = false;
        let is_calm = false;
        Acquisition {
            p,
            mode,
            owner,
            invoked,
            granted,
            refused,
            failed,
            withdrawn,
            policy,
            valid,
            downgraded,
            released,
            confirmed,
            lost,
            left,
            is_left,
            is_calm,
        }
    }

    fn learn(&mut self, t: u64, what: &What, limits: &Limits) {
        match *what {
            What::Ok { tok, valid, .. } => (self.granted, self.valid) = (Some((t, tok)), valid),
            What::Fail { busy, .. } => {
                self.failed = Some(t);
                self.refused = Some(t).filter(|_| busy && self.is_calm);
                // A try that was refused leaves nothing behind. One that was given up does, until then.
                let left = self.policy != Policy::Try || !busy;
                self.withdrawn = left.then(|| t.saturating_add(limits.wake));
            }
            What::Use { valid, .. } => self.valid = self.valid.max(valid),
            What::Downgrade { .. } => self.downgraded = Some(t),
            What::Release { dropped, .. } => {
                self.released = Some(t);
                self.left = if dropped {
                    self.left.or(Some(t))
                } else {
                    self.left
                };
            }
            What::Released { .. } => self.confirmed = Some(t),
            What::Lost { .. } => (self.lost, self.left) = (Some(t), self.left.or(Some(t))),
            What::Info { .. } | What::Unreleased { .. } => self.left = self.left.or(Some(t)),
            _ => {}
        }
    }

    /// From when on the store may have ended the hold.
    pub(super) fn may_end(&self) -> u64 {
        let said = if self.granted.is_some() {
            self.valid
        } else {
            self.invoked
        };
        [self.released, self.lost]
            .into_iter()
            .flatten()
            .fold(said, u64::min)
    }

    /// Its fencing token. Not each client has one.
    pub(super) fn token(&self) -> Option<u64> {
        self.granted
            .map(|(_, token)| token)
            .filter(|token| *token > 0)
    }

    /// Until when it was under way, or its withdrawal.
    pub(super) fn returned(&self) -> u64 {
        self.granted
            .map(|(t, _)| t)
            .or(self.withdrawn)
            .or(self.failed)
            .unwrap_or(u64::MAX)
    }

    /// When its client was done with it.
    fn closed(&self) -> u64 {
        self.failed
            .or(self.confirmed)
            .or(self.left)
            .unwrap_or(u64::MAX)
    }

    /// Returns whether the other one had ended when this one was granted.
    fn followed(&self, other: &Acquisition) -> bool {
        let mode = if other.downgraded.is_some() {
            Mode::Shared
        } else {
            other.mode
        };
        let tokens = self.token().zip(other.token());
        self.mode.excludes(mode) && tokens.is_some_and(|(token, before)| token > before)
    }

    /// When nothing of it is in the store any more.
    fn gone(&self, settle: u64) -> u64 {
        let left = self.left.map(|left| left.saturating_add(settle));
        self.withdrawn
            .or(self.failed)
            .or(self.confirmed)
            .or(left)
            .unwrap_or(u64::MAX)
    }
}

/// The events of a lock between two moments in which no client used it.
pub(super) struct Piece {
    pub(super) acquisitions: Vec<Acquisition>,
    pub(super) from: u64,
    /// A fault that breaks exclusion was there.
    pub(super) excused: bool,
    /// Tokens may begin anew.
    pub(super) anew: bool,
}

/// When a fault breaks the exclusion of a lock, or of all.
struct Broken {
    lock: Option<String>,
    breaks: Breaks,
    from: u64,
    to: u64,
}

/// The pieces of each lock.
pub(super) fn read(events: impl IntoIterator<Item: Borrow<Event>>) -> BTreeMap<String, Vec<Piece>> {
    let (mut locks, mut at) = (BTreeMap::<String, Vec<Acquisition>>::new(), HashMap::new());
    let mut broken = HashMap::new();
    let mut killed = HashSet::new();
    let mut said = Limits::default();
    let mut active = HashSet::new();
    let mut calm_since = 0;
    for event in events {
        let Event { t, p, what } = event.borrow();
        if killed.contains(p) {
            continue;
        }
        match what {
            What::Begin { limits, .. } => said = *limits,
            What::Invoke {
                op,
                lock,
                mode,
                policy,
                owner,
                ..
            } => {
                let all = locks.entry(lock.clone()).or_default();
                at.insert(*op, (lock.clone(), all.len()));
                let is_calm = active.is_empty() && calm_since < *t;
                all.push(Acquisition {
                    is_calm,
                    ..Acquisition::new(*p, (*mode, *policy), *owner, *t)
                });
            }
            What::Fault {
                id, breaks, lock, ..
            } => {
                active.insert(*id);
                if *breaks != Breaks::Nothing {
                    broken.insert(
                        *id,
                        Broken {
                            lock: lock.clone(),
                            breaks: *breaks,
                            from: *t,
                            to: u64::MAX,
                        },
                    );
                }
            }
            What::Healed { id } => {
                active.remove(id);
                calm_since = t.saturating_add(said.settle);
                broken
                    .get_mut(id)
                    .into_iter()
                    .for_each(|it| it.to = t.saturating_add(said.settle));
            }
            What::Killed { target } => {
                killed.insert(*target);
                let all = locks
                    .values_mut()
                    .flatten()
                    .filter(|it| it.p == *target && it.closed() == u64::MAX);
                // A store that knows of the death may end what it held at once.
                all.for_each(|it| (it.lost, it.left) = (Some(*t), Some(*t)));
            }
            _ => {
                let known = of(what).and_then(|op| at.get(&op));
                let it = known.and_then(|(lock, nth)| locks.get_mut(lock)?.get_mut(*nth));
                it.into_iter().for_each(|it| it.learn(*t, what, &said));
            }
        }
    }
    let broken: Vec<Broken> = broken.into_values().collect();
    let cut = |(lock, all)| {
        let of_it = broken
            .iter()
            .filter(|it| it.lock.as_ref().is_none_or(|of| *of == lock))
            .collect::<Vec<_>>();
        let pieces = cut(all, &of_it, said.settle);
        (lock, pieces)
    };
    locks.into_iter().map(cut).collect()
}

/// Which acquisition an event is about.
fn of(what: &What) -> Option<u64> {
    match what {
        What::Ok { op, .. }
        | What::Fail { op, .. }
        | What::Use { op, .. }
        | What::Downgrade { op } => Some(*op),
        What::Release { op, .. } | What::Released { op } | What::Unreleased { op } => Some(*op),
        What::Lost { op, .. } | What::Info { op } => Some(*op),
        _ => None,
    }
}

/// Acquisitions in the order of their calls, in pieces.
fn cut(all: Vec<Acquisition>, broken: &[&Broken], settle: u64) -> Vec<Piece> {
    let mut pieces = Vec::<Piece>::new();
    let mut left = Vec::<Acquisition>::new();
    let mut closed = 0;
    let mut before = 0;
    for it in all {
        if pieces.is_empty() || it.invoked > closed {
            before = pieces.last().map_or(0, |piece| piece.from);
            let known = pieces.last().map_or(&[][..], |piece| &piece.acquisitions);
            left.retain(|before| {
                before.gone(settle) >= it.invoked && !known.iter().any(|it| it.followed(before))
            });
            pieces.push(Piece {
                acquisitions: left.clone(),
                from: it.invoked,
                excused: false,
                anew: false,
            });
        }
        closed = closed.max(it.closed());
        if it.gone(settle) > it.closed() {
            left.push(Acquisition {
                is_left: true,
                ..it.clone()
            });
        }
        if let Some(piece) = pieces.last_mut() {
            let since = |from| {
                broken
                    .iter()
                    .filter(move |fault| fault.from <= closed && from <= fault.to)
            };
            piece.excused |= since(piece.from).next().is_some();
            piece.anew |= since(before).any(|fault| fault.breaks == Breaks::Order);
            piece.acquisitions.push(it);
        }
    }
    pieces
}
