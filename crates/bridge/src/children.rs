//! The claims of core, called *parents*, and the parts of each in the two stores.
//!
//! A *part* is a claim of the bridge in one store, with an id of its own. After a parent has left a
//! store, or may have, that id is never used again: a late withdrawal of it must not end a later
//! part.
//!
//! A part is recorded before its request is sent. A caller may drop a request at any await, and the
//! store may execute it all the same; a release therefore finds everything that may be in a store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{Backend, Claim, ClaimId, Moment, Notifier, Subscription};
use leasehold_core::support::locked;
use leasehold_core::{FencingToken, Loss};

use crate::claim_in_store::{Asked, ClaimInStore, Former};
use crate::pair::Side;

/// All parents that may have something in a store.
#[derive(Debug, Default)]
pub(crate) struct Children(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    parents: HashMap<ClaimId, Arc<Parent>>,
    /// The number of parents at which the table is searched for those that core has not asked about
    /// for long.
    sweep_at: usize,
}

/// The table is not searched while it has fewer parents than this.
const SWEEP_AT: usize = 64;

impl Children {
    /// Returns the parent of this claim, which is made if there is none, and its epoch. A later
    /// call with that epoch fails if the parent was released in between.
    pub(crate) fn of(&self, claim: &Claim, now: Moment) -> (Arc<Parent>, u64) {
        let mut table = locked(&self.0);
        if table.parents.len() >= table.sweep_at.max(SWEEP_AT) {
            table
                .parents
                .retain(|_, parent| locked(&parent.parts).remembered_until > now);
            table.sweep_at = table.parents.len() * 2;
        }
        let parent = table
            .parents
            .entry(claim.id)
            .or_insert_with(|| Arc::new(Parent::new(claim.id)))
            .clone();
        let epoch = parent.with(|parts| {
            parts.touched(now, claim.ttl);
            parts.epoch
        });
        (parent, epoch)
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<Parent>> {
        locked(&self.0).parents.get(&id).cloned()
    }

    /// Forgets this parent if nothing of it is left in a store.
    pub(crate) fn forget_if_gone(&self, parent: &Arc<Parent>) {
        let mut table = locked(&self.0);
        let gone = parent.with(|parts| parts.is_gone().then(|| parts.end()));
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
    parts: Mutex<Parts>,
}

/// The parts of a parent in the two stores.
#[derive(Debug)]
pub(crate) struct Parts {
    old: Option<ClaimInStore>,
    new: Option<ClaimInStore>,
    /// The former parts that may still be in a store, because their withdrawal was not confirmed.
    pub(crate) former: Vec<Former>,
    /// The token of the grant that core was told of.
    pub(crate) told: Option<FencingToken>,
    /// The number of its releases, and of the times that it was forgotten. An attempt of an earlier
    /// epoch does not go on.
    pub(crate) epoch: u64,
    /// Core asks about each claim that it has before this moment. After it, core has forgotten the
    /// claim.
    remembered_until: Moment,
}

impl Parent {
    fn new(id: ClaimId) -> Parent {
        let remembered_until = Moment::from_nanos(0);
        let parts = Parts {
            old: None,
            new: None,
            former: Vec::new(),
            told: None,
            epoch: 0,
            remembered_until,
        };
        Parent {
            id,
            parts: Mutex::new(parts),
        }
    }

    /// Runs `work` on the parts. `work` returns everything that it takes out of them, so that the
    /// caller drops it after the mutex is free again.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Parts) -> T) -> T {
        work(&mut locked(&self.parts))
    }

    /// Makes a request for the part in a store. The part is made if there is none. `None` if the
    /// parent was released since `epoch`.
    pub(crate) fn stand(
        self: &Arc<Parent>,
        (side, store): (Side, &dyn Backend),
        claim: &Claim,
        floor: Option<FencingToken>,
        (epoch, upper): (u64, &Notifier),
    ) -> Option<Asked> {
        let missing = self.with(|parts| parts.epoch == epoch && parts.on(side).is_none());
        // The part listens before its request is sent.
        let mut fresh = missing.then(|| ClaimInStore::new(self, (side, store), claim, upper));
        let asked = self.with(|parts| {
            let standing = Some(parts).filter(|parts| parts.epoch == epoch)?.on(side);
            if standing.is_none() {
                *standing = fresh
                    .take()
                    .or_else(|| Some(ClaimInStore::new(self, (side, store), claim, upper)));
            }
            standing.as_mut().map(|part| part.asked(claim, floor))
        });
        drop(fresh);
        asked
    }
}

impl Parts {
    pub(crate) fn on(&mut self, side: Side) -> &mut Option<ClaimInStore> {
        match side {
            Side::Old => &mut self.old,
            Side::New => &mut self.new,
        }
    }

    /// The part in this store, if it is still the one with this id.
    pub(crate) fn current(&mut self, side: Side, id: ClaimId) -> Option<&mut ClaimInStore> {
        self.on(side).as_mut().filter(|part| part.claim.id == id)
    }

    /// Both parts, if there are two.
    pub(crate) fn both(&self) -> Option<(&ClaimInStore, &ClaimInStore)> {
        self.old.as_ref().zip(self.new.as_ref())
    }

    /// The earlier end of the parts.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.standing().map(|part| part.until).min()
    }

    /// The shorter lease of the parts.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.standing().map(|part| part.ttl).min()
    }

    /// The reason for which one of the parts was lost.
    pub(crate) fn lost(&self) -> Option<Loss> {
        self.standing().find_map(|part| part.lost)
    }

    fn standing(&self) -> impl Iterator<Item = &ClaimInStore> {
        self.old.iter().chain(&self.new)
    }

    /// Returns whether core was told of a grant that may still be good.
    pub(crate) fn holds(&self, now: Moment) -> bool {
        let good = |(old, new): (&ClaimInStore, &ClaimInStore)| old.until.min(new.until) > now;
        self.told.is_some() && self.both().is_some_and(good)
    }

    /// Ends the part in this store. If it may have left something there, that is to be withdrawn.
    pub(crate) fn leave(&mut self, side: Side, now: Moment) -> Option<Subscription> {
        let part = self.on(side).take()?;
        if part.traces {
            let give_up_at = now + part.claim.ttl.max(part.ttl);
            self.former.push(Former {
                side,
                claim: part.claim,
                place: part.place,
                give_up_at,
            });
        }
        part.listens
    }

    /// Records that core has asked about this claim.
    pub(crate) fn touched(&mut self, now: Moment, rest: Duration) {
        self.remembered_until = self
            .remembered_until
            .max(now + rest * 4 + Duration::from_secs(1));
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.former.is_empty() && self.standing().all(|part| !part.traces)
    }

    /// Ends both parts, and all attempts of this epoch.
    fn end(&mut self) -> [Option<ClaimInStore>; 2] {
        self.epoch += 1;
        self.told = None;
        [self.old.take(), self.new.take()]
    }

    /// Ends both parts. Everything that may be in a store is to be withdrawn.
    pub(crate) fn release(&mut self, now: Moment) -> [Option<Subscription>; 2] {
        let left = [Side::New, Side::Old].map(|side| self.leave(side, now));
        self.end();
        left
    }
}
