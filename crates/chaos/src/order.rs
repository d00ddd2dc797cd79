//! Whether there is an order in which the acquisitions of a lock could have happened one at a time: linearizability, with leases.
//!
//! The [`Checker`](crate::Checker) judges each promise by a rule of its own. This judges all of them at once, by what a lock is: an
//! object on which one thing happens after the other. It is a second opinion, and on short histories only, as the time that it takes
//! may grow with all orders there are. So a lock's history is cut into *pieces* where nobody holds, waits or is being answered. What
//! may be left of before then, as its release was not confirmed, may be there at any moment of the next pieces, until the store has
//! settled.
//!
//! A lock with leases is not linearizable by itself: that a lease ends is nobody's operation. So what counts is this:
//!
//! | Step | Happens once between | and | |
//! |---|---|---|---|
//! | a grant | the call of the acquire | its return | after an unknown result, or a death: at any time, or never |
//! | a refusal of a try | its call | its return | |
//! | the end of a hold | its release's call; before, if it was reported lost, or the last validity that was said had run out | the confirmation of its release | without one: at any time, or never |
//! | a downgrade | its call | the end of the hold | or never |
//!
//! At a grant nobody holds who excludes it, permits are enough, and its token is greater than those of the grants before it that it
//! excludes; a hold that its owner enters again has one token. A try is refused only while somebody holds who excludes it, or while another
//! acquire is under way, or its withdrawal, whose place in the queue may be in its way, or beside faults: a request that comes late may be in its way, too.
//!
//! What happens to a lock beside a fault that breaks exclusion is not judged, until the store has settled after it.

mod pieces;

use std::{borrow::Borrow, collections::HashSet};

use self::pieces::{Acquisition, Piece, read};
use crate::event::{Event, Mode};

/// Steps of one piece, at most. One with more of them is not short.
const MOST: usize = 128;
/// Sets of steps that are looked at, at most: so a search takes some seconds and megabytes, whatever is in the history.
const SETS: usize = 300_000;

/// How many pieces of a history have such an order.
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
    /// How many steps it has.
    pub steps: usize,
    /// The most that can be put in an order.
    pub reached: usize,
}

/// Looks for an order in which the acquisitions of each lock could have happened. The events are in the order of time.
///
/// # Errors
///
/// The first piece of the first lock, by its name, that has no such order.
pub fn order(events: impl IntoIterator<Item: Borrow<Event>>) -> Result<Ordered, Disorder> {
    let mut ordered = Ordered::default();
    for (lock, pieces) in read(events) {
        let mut floor = Floor::default();
        for Piece { acquisitions, from, excused, anew } in pieces {
            if anew {
                floor = Floor::default();
            }
            let steps = steps(&acquisitions);
            let judged = !excused && steps.len() <= MOST;
            let found = if judged { Search::new(&acquisitions, &steps, &floor).run() } else { Ok(false) };
            let lock = lock.clone();
            match found.map_err(|reached| Disorder { lock, from, steps: steps.len(), reached })? {
                true => (ordered.pieces, ordered.steps) = (ordered.pieces + 1, ordered.steps + steps.len()),
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
    /// Of which acquisition.
    of: usize,
    from: u64,
    /// By when it has happened; `None`: it may never happen.
    by: Option<u64>,
}

fn steps(all: &[Acquisition]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (of, it) in all.iter().enumerate() {
        if let Some(t) = it.refused {
            let in_its_way =
                |(nth, other): (usize, &Acquisition)| nth != of && other.invoked <= t && other.returned() >= it.invoked;
            if !all.iter().enumerate().any(in_its_way) {
                steps.push(Step { kind: Kind::Refusal, of, from: it.invoked, by: Some(t) });
            }
        } else if it.failed.is_none() {
            let granted = it.granted.filter(|_| !it.is_left).map(|(t, _)| t);
            steps.push(Step { kind: Kind::Grant, of, from: it.invoked, by: granted });
            steps.extend(it.downgraded.map(|from| Step { kind: Kind::Downgrade, of, from, by: None }));
            steps.push(Step { kind: Kind::End, of, from: it.may_end(), by: it.confirmed });
        }
    }
    steps
}

/// A search through the sets of steps that can have happened. What the lock is after some steps is known from which they were, so each
/// set is looked at once, in whatever order it came about.
struct Search<'a> {
    acquisitions: &'a [Acquisition],
    steps: &'a [Step],
    /// Of each acquisition.
    bits: Vec<Bits>,
    floor: &'a Floor,
}

/// The greatest tokens of the pieces before, of each mode.
#[derive(Default)]
struct Floor(Vec<(Mode, u64)>);

impl Floor {
    fn raise(&mut self, all: &[Acquisition]) {
        // What is left of an earlier piece was counted there, if it counts: tokens may have begun anew since.
        for (mode, token) in all.iter().filter(|it| !it.is_left).filter_map(|it| Some((it.mode, it.token()?))) {
            match self.0.iter_mut().find(|(known, _)| *known == mode) {
                Some((_, greatest)) => *greatest = token.max(*greatest),
                None => self.0.push((mode, token)),
            }
        }
    }

    fn is_below(&self, it: &Acquisition) -> bool {
        let Some(token) = it.token() else { return true };
        it.is_left || self.0.iter().all(|(mode, greatest)| !mode.excludes(it.mode) || *greatest < token)
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
        Search { acquisitions, steps, bits, floor }
    }

    /// Whether there is an order; `false` if that takes too long to say. `Err`: the most steps that can have happened.
    fn run(&self) -> Result<bool, usize> {
        let must: u128 = (0..self.steps.len()).filter(|nth| self.steps[*nth].by.is_some()).map(|nth| 1 << nth).sum();
        let (mut known, mut next, mut reached) = (HashSet::from([0]), vec![0_u128], 0);
        while let Some(done) = next.pop() {
            if done & must == must {
                return Ok(true);
            }
            if known.len() > SETS {
                return Ok(false);
            }
            reached = reached.max(done.count_ones() as usize);
            let undone = |nth: &usize| done & (1 << nth) == 0;
            // What is called after another has returned comes after it.
            let horizon = (0..self.steps.len()).filter(undone).filter_map(|nth| self.steps[nth].by).min();
            let ready =
                |nth: &usize| self.steps[*nth].from <= horizon.unwrap_or(u64::MAX) && self.may_happen(done, *nth);
            // The first is looked at first.
            let after = (0..self.steps.len()).rev().filter(undone).filter(ready).map(|nth| done | 1 << nth);
            next.extend(after.filter(|after| known.insert(*after)));
        }
        Err(reached)
    }

    fn may_happen(&self, done: u128, nth: usize) -> bool {
        let Step { kind, of, .. } = self.steps[nth];
        match kind {
            Kind::Grant => self.has_room(done, of, true) && self.token_rises(done, of),
            // A hold that its owner may not enter again, as it is not renewed, is in its owner's way.
            Kind::Refusal => !self.has_room(done, of, false),
            Kind::Downgrade | Kind::End => self.holds(done, of),
        }
    }

    fn holds(&self, done: u128, of: usize) -> bool {
        let Bits { grant, end, .. } = self.bits[of];
        done & grant != 0 && done & end == 0
    }

    /// Who holds, and as what.
    fn holders(&self, done: u128) -> impl Iterator<Item = (usize, Mode)> {
        let holders = (0..self.acquisitions.len()).filter(move |of| self.holds(done, *of));
        holders.map(move |of| {
            let is_shared = done & self.bits[of].downgrade != 0;
            (of, if is_shared { Mode::Shared } else { self.acquisitions[of].mode })
        })
    }

    /// Whether nobody who holds is in the way.
    fn has_room(&self, done: u128, it: usize, reenters: bool) -> bool {
        let mode = self.acquisitions[it].mode;
        let excludes =
            |(holder, its): (usize, Mode)| its.excludes(mode) && !(reenters && self.has_one_owner(holder, it));
        if self.holders(done).any(excludes) {
            return false;
        }
        let permits = |mode| if let Mode::Permits { n, of } = mode { (n, of) } else { (0, u32::MAX) };
        let (n, of) = permits(mode);
        self.holders(done).map(|(_, its)| permits(its).0).sum::<u32>() + n <= of
    }

    fn has_one_owner(&self, a: usize, b: usize) -> bool {
        let owner = self.acquisitions[a].owner;
        owner.is_some() && owner == self.acquisitions[b].owner
    }

    fn token_rises(&self, done: u128, of: usize) -> bool {
        if !self.floor.is_below(&self.acquisitions[of]) {
            return false;
        }
        let (Some(token), mode) = (self.acquisitions[of].token(), self.acquisitions[of].mode) else { return true };
        let token_of = |other: usize| self.acquisitions[other].token();
        let reenters = self.holders(done).any(|(it, _)| self.has_one_owner(it, of) && token_of(it) == Some(token));
        let granted = (0..self.acquisitions.len()).filter(|other| done & self.bits[*other].grant != 0);
        granted.filter(|other| self.acquisitions[*other].mode.excludes(mode)).all(|other| {
            let same = reenters && self.has_one_owner(other, of);
            token_of(other).is_none_or(|earlier| earlier < token || same && earlier == token)
        })
    }
}
