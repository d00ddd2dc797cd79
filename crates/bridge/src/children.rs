//! The claims of core, the *parents*, and what each has in the two stores.
//!
//! A *stay* is a claim of ours in one of them, with an id of its own. Whenever a parent has left a store, or may have, that id is never
//! used again: a late withdrawal of it must not end what stands there later.
//!
//! A stay is written down before its request is sent. A caller may drop a request at any await, and the store may execute it all
//! the same: a release finds all that may be there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::seam::{Backend, Claim, ClaimId, Moment, Notifier, Subscription};
use leasehold_core::support::locked;
use leasehold_core::{FencingToken, Loss};

use crate::pair::Side;
use crate::stay::{Asked, Former, Stay};

/// All parents that may have something in a store.
#[derive(Debug, Default)]
pub(crate) struct Children(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    parents: HashMap<ClaimId, Arc<Parent>>,
    /// With so many of them, those are looked for of which core has said nothing for long.
    sweep_at: usize,
}

/// Fewer are not worth looking through.
const SWEEP_AT: usize = 64;

impl Children {
    /// The parent of this id, which is there from now on, and how often it was released. Whoever asks for it later is told.
    pub(crate) fn of(&self, claim: &Claim, now: Moment) -> (Arc<Parent>, u64) {
        let mut table = locked(&self.0);
        if table.parents.len() >= table.sweep_at.max(SWEEP_AT) {
            table.parents.retain(|_, parent| locked(&parent.stays).remembered_until > now);
            table.sweep_at = table.parents.len() * 2;
        }
        let parent = table.parents.entry(claim.id).or_insert_with(|| Arc::new(Parent::new(claim.id))).clone();
        let epoch = parent.with(|stays| {
            stays.touched(now, claim.ttl);
            stays.epoch
        });
        (parent, epoch)
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<Parent>> {
        locked(&self.0).parents.get(&id).cloned()
    }

    /// Forgets this parent if nothing of it is left anywhere.
    pub(crate) fn forget_if_gone(&self, parent: &Arc<Parent>) {
        let mut table = locked(&self.0);
        let gone = parent.with(|stays| stays.is_gone().then(|| stays.end()));
        let parent = gone.is_some().then(|| table.parents.remove(&parent.id));
        drop(table);
        drop((gone, parent));
    }

    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *locked(&self.0));
        drop(all);
    }
}

/// A claim of core.
#[derive(Debug)]
pub(crate) struct Parent {
    pub(crate) id: ClaimId,
    stays: Mutex<Stays>,
}

/// What a parent has in the two stores.
#[derive(Debug)]
pub(crate) struct Stays {
    old: Option<Stay>,
    new: Option<Stay>,
    /// What was left, or may have been, and was not confirmed as withdrawn.
    pub(crate) former: Vec<Former>,
    /// The token of the grant that core was told.
    pub(crate) told: Option<FencingToken>,
    /// How often it was released. What was asked for before that is not gone on with.
    pub(crate) epoch: u64,
    /// Core asks for what it has within this time: later it has forgotten it.
    remembered_until: Moment,
}

impl Parent {
    fn new(id: ClaimId) -> Parent {
        let remembered_until = Moment::from_nanos(0);
        let stays = Stays { old: None, new: None, former: Vec::new(), told: None, epoch: 0, remembered_until };
        Parent { id, stays: Mutex::new(stays) }
    }

    /// Works on its stays. What `work` takes out of them is dropped by the caller: the mutex is free again by then.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Stays) -> T) -> T {
        work(&mut locked(&self.stays))
    }

    /// The stay in that store, a new one if there is none; `None` if the parent was released since `epoch`. It is asked for from now on.
    pub(crate) fn stand(
        self: &Arc<Parent>,
        (side, store): (Side, &dyn Backend),
        claim: &Claim,
        floor: Option<FencingToken>,
        (epoch, upper): (u64, &Notifier),
    ) -> Option<Asked> {
        let missing = self.with(|stays| stays.epoch == epoch && stays.on(side).is_none());
        // It listens before its request is sent.
        let mut fresh = missing.then(|| Stay::new(self, (side, store), claim, upper));
        let asked = self.with(|stays| {
            let standing = Some(stays).filter(|stays| stays.epoch == epoch)?.on(side);
            if standing.is_none() {
                *standing = fresh.take().or_else(|| Some(Stay::new(self, (side, store), claim, upper)));
            }
            standing.as_mut().map(|stay| stay.asked(claim, floor))
        });
        drop(fresh);
        asked
    }
}

impl Stays {
    pub(crate) fn on(&mut self, side: Side) -> &mut Option<Stay> {
        match side {
            Side::Old => &mut self.old,
            Side::New => &mut self.new,
        }
    }

    /// The stay there, if it still is the one with this id.
    pub(crate) fn current(&mut self, side: Side, id: ClaimId) -> Option<&mut Stay> {
        self.on(side).as_mut().filter(|stay| stay.claim.id == id)
    }

    /// Both, if it stands in both.
    pub(crate) fn both(&self) -> Option<(&Stay, &Stay)> {
        self.old.as_ref().zip(self.new.as_ref())
    }

    /// The earlier end of those that it has.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.standing().map(|stay| stay.until).min()
    }

    /// The shorter lease of those that it has.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.standing().map(|stay| stay.ttl).min()
    }

    /// Why one of them is gone.
    pub(crate) fn lost(&self) -> Option<Loss> {
        self.standing().find_map(|stay| stay.lost)
    }

    fn standing(&self) -> impl Iterator<Item = &Stay> {
        self.old.iter().chain(&self.new)
    }

    /// Core was told of a grant, and may still believe it.
    pub(crate) fn holds(&self, now: Moment) -> bool {
        let good = |(old, new): (&Stay, &Stay)| old.until.min(new.until) > now;
        self.told.is_some() && self.both().is_some_and(good)
    }

    /// Its stay there ends. What it may have left is to be withdrawn.
    pub(crate) fn leave(&mut self, side: Side, now: Moment) -> Option<Subscription> {
        let stay = self.on(side).take()?;
        if stay.traces {
            let give_up_at = now + stay.claim.ttl.max(stay.ttl);
            self.former.push(Former { side, claim: stay.claim, place: stay.place, give_up_at });
        }
        stay.listens
    }

    /// Core has asked for it.
    pub(crate) fn touched(&mut self, now: Moment, rest: Duration) {
        self.remembered_until = self.remembered_until.max(now + rest * 4 + Duration::from_secs(1));
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.former.is_empty() && self.standing().all(|stay| !stay.traces)
    }

    /// Nothing is gone on with.
    fn end(&mut self) -> [Option<Stay>; 2] {
        self.epoch += 1;
        self.told = None;
        [self.old.take(), self.new.take()]
    }

    /// All that it may have is to be withdrawn.
    pub(crate) fn release(&mut self, now: Moment) -> [Option<Subscription>; 2] {
        let left = [Side::New, Side::Old].map(|side| self.leave(side, now));
        self.end();
        left
    }
}
