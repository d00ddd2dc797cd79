//! This client's own claims, by the lines that they stand in. Nothing here waits.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use leasehold_core::Name;
use leasehold_core::seam::{Claim, ClaimId, Moment};
use leasehold_etcd_client::{LeasedKey, Session};

use crate::line::Own;
use crate::names;

#[derive(Default, Debug)]
pub(crate) struct Lines(HashMap<Name, Ours>);

/// Our claims in one line.
#[derive(Default, Debug)]
struct Ours {
    all: HashMap<ClaimId, Own>,
    /// The slots that are free below those that were never used.
    free: BinaryHeap<Reverse<u32>>,
    unused: u32,
}

impl Ours {
    /// The lowest slot that is free: keys are used again, because etcd keeps a tombstone of each.
    fn slot(&mut self) -> u32 {
        let fresh = || {
            self.unused += 1;
            self.unused - 1
        };
        self.free.pop().map_or_else(fresh, |Reverse(slot)| slot)
    }
}

impl Lines {
    /// Those in this line.
    pub(crate) fn line(&mut self, name: &Name) -> impl Iterator<Item = &mut Own> {
        self.0.get_mut(name).into_iter().flat_map(|ours| ours.all.values_mut())
    }

    /// What is known of this claim.
    pub(crate) fn own(&mut self, name: &Name, id: ClaimId) -> Option<&mut Own> {
        self.0.get_mut(name)?.all.get_mut(&id)
    }

    /// The same of one that is claimed again; `None` also if it is being released.
    pub(crate) fn tend(&mut self, name: &Name, id: ClaimId) -> Option<Own> {
        let own = self.own(name, id).filter(|own| !own.leaving)?;
        own.tended = Moment::now();
        Some(own.clone())
    }

    /// All claims.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (&Name, &mut Own)> {
        self.0.iter_mut().flat_map(|(name, ours)| ours.all.values_mut().map(move |own| (name, own)))
    }

    /// Takes the claim in.
    pub(crate) fn enroll(&mut self, claim: &Claim, prefix: &str, session: &Arc<Session>) -> Own {
        let ours = self.0.entry(claim.name.clone()).or_default();
        if let Some(known) = ours.all.get(&claim.id) {
            return known.clone();
        }
        let slot = ours.slot();
        let key = LeasedKey::new(session.clone(), names::place(prefix, session.lease, slot));
        let new = Own::new(claim, Arc::new(key), slot);
        ours.all.insert(claim.id, new.clone());
        new
    }

    /// Removes a claim that was released: the store surely has nothing left of it, and never will.
    pub(crate) fn strike(&mut self, name: &Name, id: ClaimId) {
        self.remove(name, |own| own.id == id && own.leaving);
    }

    /// Removes all claims of a session that has ended; answers which.
    pub(crate) fn end(&mut self, session: &Session) -> Vec<ClaimId> {
        let names: Vec<Name> = self.0.keys().cloned().collect();
        let ended = |own: &Own| own.session().lease == session.lease && own.rests.is_none();
        names.iter().flat_map(|name| self.remove(name, ended)).collect()
    }

    /// Removes those that have ended by themselves.
    pub(crate) fn forget_rested(&mut self, now: Moment) {
        let rested = |own: &Own| own.rests.is_some_and(|end| end <= now);
        let names: Vec<Name> = self.all().filter(|(_, own)| rested(own)).map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| drop(self.remove(name, rested)));
    }

    fn remove(&mut self, name: &Name, over: impl Fn(&Own) -> bool) -> Vec<ClaimId> {
        let Some(ours) = self.0.get_mut(name) else { return Vec::new() };
        let removed: Vec<Own> = ours.all.extract_if(|_, own| over(own)).map(|(_, own)| own).collect();
        ours.free.extend(removed.iter().map(|own| Reverse(own.slot)));
        if ours.all.is_empty() {
            self.0.remove(name);
        }
        removed.into_iter().map(|own| own.id).collect()
    }
}
