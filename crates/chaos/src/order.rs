//! Linearizability with leases: searches for an order in which the acquisitions of a lock could
//! have happened one at a time.
//!
//! The [`Checker`](crate::Checker) judges each promise by a rule of its own. This judges all of
//! them at once, by what a lock is: an object on which one operation happens after the other. It is
//! a second opinion on short histories only, since its time may grow with the number of possible
//! orders. A lock's history is cut into *pieces* where no client holds, waits or is being answered.
//! A hold whose release was not confirmed may still exist at any moment of the next pieces, until
//! the store has settled.
//!
//! A lock with leases is not linearizable by itself, because the end of a lease is no client's
//! operation. These steps count:
//!
//! | Step | Happens once between | and | |
//! |---|---|---|---|
//! | a grant | the call of the acquire | its return | after an unknown result, or a death: at any time, or never |
//! | a refusal of a try | its call | its return | |
//! | the end of a hold | its release's call; before, if it was reported lost, or the last validity that was said had run out | the confirmation of its release | without one: at any time, or never |
//! | a downgrade | its call | the end of the hold | or never |
//!
//! At a grant nobody holds who excludes it, permits are enough, and its token is greater than those
//! of the grants before it that it excludes; a hold that its owner enters again has one token. A
//! try is refused only while somebody holds who excludes it, or while another acquire is under way,
//! or its withdrawal, whose place in the queue may be in its way, or beside faults: a request that
//! comes late may be in its way, too.
//!
//! Events beside a fault that breaks exclusion are not judged until the store has settled after it.

mod pieces;

use std::{borrow::Borrow, collections::HashSet};

use self::pieces::{Acquisition, Piece, read};
use crate::event::{Event, Mode};

/// Steps of one piece, at most. One with more of them is not short.
const MOST: usize = 128;
/// Sets of steps that are looked at, at most: so a search takes some seconds and megabytes,
/// whatever is in the history.
const SETS: usize = 300_000;

/// The number of pieces of a history with such an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ordered {
    /// Pieces that have one.
    pub pieces: usize,
    /// Their steps together.
    pub steps: usize,
    /// Pieces that are too long to be judged, or have too many orders.
    pub too_long: usize,
    /// Pieces beside a fault that breaks exclusion.
    pub excused: usize,
}

/// There is no order in which this lock's acquisitions could have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{lock}, from {from}: its acquisitions cannot have happened one after the other; up to {reached} of {steps} steps can"
)]
#[non_exhaustive]
pub struct Disorder {
    /// The lock's name.
    pub lock: String,
    /// When the piece begins, in nanoseconds.
    pub from: u64,
    /// The number of its steps.
    pub steps: usize,
    /// The most that can be put in an order.
    pub reached: usize,
}

/// Looks for an order in which the acquisitions of each lock could have happened. The events are in
/// the order of time.
///
/// # Errors
///
/// The first piece of the first lock, by its name, that has no such order.
pub fn order(events: impl IntoIterator<Item: Borrow<Event>>) -> Result<Ordered, Disorder> {
    let mut ordered = Ordered::default();
    for (lock, pieces) in read(events) {
        let mut floor = Floor::default();
        for Piece {
            acquisitions,
            from,
            excused,
            anew,
        } in pieces
        {
            if anew {
                floor = Floor::default();
            }
            let steps = steps(&acquisitions);
            let judged = !excused && steps.len() <= MOST;
            let found = if judged {
                Search::new(&acquisitions, &steps, &floor).run()
            } else {
                Ok(false)
            };
            let lock = lock.clone();
            match found.map_err(|reached| Disorder {
                lock,
                from,
                steps: steps.len(),
                reached,
            })? {
                true => {
                    (ordered.pieces, ordered.steps) =
                        (ordered.pieces + 1, ordered.steps + steps.len());
                }
                false if excused => ordered.excused += 1,
                false => ordered.too_long += 1,
            }
            if !excused {
                floor.raise(&acquisitions);
            }
        }
    }
    Ok(ordered)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Grant,
    Refusal,
    Downgrade,
    End,
}

/// Something that happens at one instant.
#[derive(Clone, Copy, Debug)]
struct Step {
    kind: Kind,
    /// The acquisition that it belongs to.
    of: usize,
    from: u64,
    /// By when it has happened; `None`: it may never happen.
    by: Option<u64>,
}

fn steps(all: &[Acquisition]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (of, it) in all.iter().enumerate() {
        if let Some(t) = it.refused {
            let in_its_way = |(nth, other): (usize, &Acquisition)| {
                nth != of && other.invoked <= t && other.returned() >= it.invoked
            };
            if !all.iter().enumerate().any(in_its_way) {
                steps.push(Step {
                    kind: Kind::Refusal,
                    of,
                    from: it.invoked,
                    by: Some(t),
                });
            }
        } else if it.failed.is_none() {
            let granted = it.granted.filter(|_| !it.is_left).map(|(t, _)| t);
            steps.push(Step {
                kind: Kind::Grant,
                of,
                from: it.invoked,
                by: granted,
            });
            steps.extend(it.downgraded.map(|from| Step {
                kind: Kind::Downgrade,
                of,
                from,
                by: None,
            }));
            steps.push(Step {
                kind: Kind::End,
                of,
                from: it.may_end(),
                by: it.confirmed,
            });
        }
    }
    steps
}

/// A search through the sets of steps that can have happened. The state of the lock follows from
/// the set of steps, so each set is visited once, whatever the order of its steps.
struct Search<'a> {
    acquisitions: &'a [Acquisition],
    steps: &'a [Step],
    /// The bits of each acquisition.
    bits: Vec<Bits>,
    floor: &'a Floor,
}

/// The greatest tokens of the pieces before, of each mode.
#[derive(Default)]
struct Floor(Vec<(Mode, u64)>);

impl Floor {
    fn raise(&mut self, all: &[Acquisition]) {
        // A hold from an earlier piece was counted there: tokens may have begun anew since.
        for (mode, token) in all
            .iter()
            .filter(|it| !it.is_left)
            .filter_map(|it| Some((it.mode, it.token()?)))
        {
            match self.0.iter_mut().find(|(known, _)| *known == mode) {
                Some((_, greatest)) => *greatest = token.max(*greatest),
                None => self.0.push((mode, token)),
            }
        }
    }

    fn is_below(&self, it: &Acquisition) -> bool {
        let Some(token) = it.token() else { return true };
        it.is_left
            || self
                .0
                .iter()
                .all(|(mode, greatest)| !mode.excludes(it.mode) || *greatest < token)
    }
}

/// In a set of steps: its grant, its downgrade, its end; 0 if it has none.
#[derive(Clone, Copy, Default)]
struct Bits {
    grant: u128,
    downgrade: u128,
    end: u128,
}

impl<'a> Search<'a> {
    fn new(acquisitions: &'a [Acquisition], steps: &'a [Step], floor: &'a Floor) -> Search<'a> {
        let mut bits = vec![Bits::default(); acquisitions.len()];
        for (nth, step) in steps.iter().enumerate() {
            let bits = &mut bits[step.of];
            match step.kind {
                Kind::Grant => bits.grant = 1 << nth,
                Kind::Downgrade => bits.downgrade = 1 << nth,
                Kind::End => bits.end = 1 << nth,
                Kind::Refusal => {}
            }
        }
        Search {
            acquisitions,
            steps,
            bits,
            floor,
        }
    }

    /// Returns whether there is an order; `false` if the search takes too long. `Err` has the
    /// greatest number of steps that can have happened.
    fn run(&self) -> Result<bool, usize> {
        let must: u128 = (0..self.steps.len())
            .filter(|nth| self.steps[*nth].by.is_some())
            .map(|nth| 1 << nth)
            .sum();
        let mut known = HashSet::from([0]);
        let mut next = vec![0_u128];
        let mut reached = 0;
        while let Some(done) = next.pop() {
            if done & must == must {
                return Ok(true);
            }
            if known.len() > SETS {
                return Ok(false);
            }
            reached = reached.max(done.count_ones() as usize);
            let undone = |nth: &usize| done & (1 << nth) == 0;
            // A call after the return of another comes after it.
            let horizon = (0..self.steps.len())
                .filter(undone)
                .filter_map(|nth| self.steps[nth].by)
                .min();
            let ready = |nth: &usize| {
                self.steps[*nth].from <= horizon.unwrap_or(u64::MAX) && self.may_happen(done, *nth)
            };
            // The first is looked at first.
            let after = (0..self.steps.len())
                .rev()
                .filter(undone)
                .filter(ready)
                .map(|nth| done | 1 << nth);
            next.extend(after.filter(|after| known.insert(*after)));
        }
        Err(reached)
    }

    fn may_happen(&self, done: u128, nth: usize) -> bool {
        let Step { kind, of, .. } = self.steps[nth];
        match kind {
            Kind::Grant => self.has_room(done, of, true) && self.token_rises(done, of),
            // A hold that its owner may not enter again, as it is not renewed, is in its owner's
            // way.
            Kind::Refusal => !self.has_room(done, of, false),
            Kind::Downgrade | Kind::End => self.holds(done, of),
        }
    }

    fn holds(&self, done: u128, of: usize) -> bool {
        let Bits { grant, end, .. } = self.bits[of];
        done & grant != 0 && done & end == 0
    }

    /// The holders and their modes.
    fn holders(&self, done: u128) -> impl Iterator<Item = (usize, Mode)> {
        let holders = (0..self.acquisitions.len()).filter(move |of| self.holds(done, *of));
        holders.map(move |of| {
            let is_shared = done & self.bits[of].downgrade != 0;
            (
                of,
                if is_shared {
                    Mode::Shared
                } else {
                    self.acquisitions[of].mode
                },
            )
        })
    }

    /// Returns whether no holder is in the way.
    fn has_room(&self, done: u128, it: usize, reenters: bool) -> bool {
        let mode = self.acquisitions[it].mode;
        let excludes = |(holder, its): (usize, Mode)| {
            its.excludes(mode) && !(reenters && self.has_one_owner(holder, it))
        };
        if self.holders(done).any(excludes) {
            return false;
        }
        let permits = |mode| {
            if let Mode::Permits { n, of } = mode {
                (n, of)
            } else {
                (0, u32::MAX)
            }
        };
        let (n, of) = permits(mode);
        self.holders(done)
            .map(|(_, its)| permits(its).0)
            .sum::<u32>()
            + n
            <= of
    }

    fn has_one_owner(&self, a: usize, b: usize) -> bool {
        let owner = self.acquisitions[a].owner;
        owner.is_some() && owner == self.acquisitions[b].owner
    }

    fn token_rises(&self, done: u128, of: usize) -> bool {
        if !self.floor.is_below(&self.acquisitions[of]) {
            return false;
        }
        let (Some(token), mode) = (self.acquisitions[of].token(), self.acquisitions[of].mode)
        else {
            return true;
        };
        let token_of = |other: usize| self.acquisitions[other].token();
        let reenters = self
            .holders(done)
            .any(|(it, _)| self.has_one_owner(it, of) && token_of(it) == Some(token));
        let granted =
            (0..self.acquisitions.len()).filter(|other| done & self.bits[*other].grant != 0);
        granted
            .filter(|other| self.acquisitions[*other].mode.excludes(mode))
            .all(|other| {
                let same = reenters && self.has_one_owner(other, of);
                token_of(other).is_none_or(|earlier| earlier < token || same && earlier == token)
            })
    }
}
