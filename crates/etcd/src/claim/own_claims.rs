//! This client's own claims, by name. Nothing here waits.

use std::collections::HashMap;
#[cfg(feature = "simulation")]
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use leasehold_core::Name;
use leasehold_core::seam::{Claim, ClaimId, Moment};

use crate::claim::own::{OwnClaim, Turns};
use crate::claim::slots::Slots;
use crate::client::leased_key::LeasedKey;
use crate::client::session::Session;
use crate::names;

/// In a simulation one seed is one history, so the order of the names is always the same.
#[cfg(feature = "simulation")]
type Hash = BuildHasherDefault<DefaultHasher>;
#[cfg(not(feature = "simulation"))]
type Hash = std::hash::RandomState;

#[derive(Default, Debug)]
pub(crate) struct OwnClaims(HashMap<Name, OfName, Hash>);

/// The own claims of one name.
#[derive(Default, Debug)]
struct OfName {
    /// In the order of their ids.
    #[allow(clippy::vec_box, reason = "of many, few bytes are moved")]
    all: Vec<Box<OwnClaim>>,
    slots: Slots,
}

impl OfName {
    fn find(&self, id: ClaimId) -> Result<usize, usize> {
        self.all.binary_search_by_key(&id, |own| own.id)
    }
}

impl OwnClaims {
    /// Those of this name.
    pub(crate) fn of(&mut self, name: &Name) -> impl Iterator<Item = &mut OwnClaim> {
        self.0.get_mut(name).into_iter().flat_map(|claims| claims.all.iter_mut().map(Box::as_mut))
    }

    /// How many there are of this name.
    pub(crate) fn count(&self, name: &Name) -> usize {
        self.0.get(name).map_or(0, |claims| claims.all.len())
    }

    /// What is known of this claim.
    pub(crate) fn get(&mut self, name: &Name, id: ClaimId) -> Option<&mut OwnClaim> {
        let claims = self.0.get_mut(name)?;
        let at = claims.find(id).ok()?;
        Some(&mut claims.all[at])
    }

    /// The same of one that is claimed again; `None` also if it is being released.
    pub(crate) fn touch(&mut self, name: &Name, id: ClaimId) -> Option<OwnClaim> {
        let own = self.get(name, id).filter(|own| !own.releasing)?;
        own.last_used = Moment::now();
        Some(own.clone())
    }

    /// All claims.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (&Name, &mut OwnClaim)> {
        self.0.iter_mut().flat_map(|(name, claims)| claims.all.iter_mut().map(move |own| (name, &mut **own)))
    }

    /// Adds the claim, unless it is known.
    pub(crate) fn insert(&mut self, claim: &Claim, prefix: &str, session: &Arc<Session>) -> OwnClaim {
        let claims = self.0.entry(claim.name.clone()).or_default();
        let at = match claims.find(claim.id) {
            Ok(known) => return OwnClaim::clone(&claims.all[known]),
            Err(at) => at,
        };
        let slot = claims.slots.take();
        let key = LeasedKey::new(session.clone(), names::place(prefix, session.lease, slot));
        let new = OwnClaim::new(claim, Arc::new(key), slot);
        if claims.all.is_empty() {
            claims.all.reserve_exact(1);
        }
        claims.all.insert(at, Box::new(new.clone()));
        new
    }

    /// Requests that may create their keys are sent from here on. `None`: one of them is known no more, or is being released.
    pub(crate) fn begin(&mut self, claims: &[Claim], owns: &[OwnClaim]) -> Option<Vec<bool>> {
        let all = || claims.iter().zip(owns);
        let doubt = |(claim, own): (&Claim, &OwnClaim)| {
            self.same(&claim.name, own).filter(|own| !own.releasing).map(|own| own.doubt)
        };
        let before: Vec<bool> = all().map(doubt).collect::<Option<_>>()?;
        for (claim, own) in all() {
            self.same(&claim.name, own).into_iter().for_each(|own| own.doubt = true);
        }
        Some(before)
    }

    /// This was answered.
    pub(crate) fn answered(
        &mut self,
        name: &Name,
        own: &OwnClaim,
        doubt: bool,
        (created, base): (i64, i64),
        turns: Option<Turns>,
    ) {
        if let Some(own) = self.same(name, own) {
            own.doubt = doubt;
            if created != 0 {
                if own.created != created {
                    own.base = base;
                }
                own.set_created(created);
                own.turns = turns;
            }
        }
    }

    /// This claim, unless it was removed; another one of the same id has another key.
    fn same(&mut self, name: &Name, own: &OwnClaim) -> Option<&mut OwnClaim> {
        self.get(name, own.id).filter(|known| Arc::ptr_eq(&known.key, &own.key))
    }

    /// Removes a claim that was released: the store surely has nothing left of it, and never will.
    pub(crate) fn remove_released(&mut self, name: &Name, released: &OwnClaim) {
        if self.same(name, released).is_some_and(|own| own.releasing) {
            self.remove_one(name, released.id);
        }
    }

    /// Removes those of which nothing was ever sent that may have been executed.
    pub(crate) fn remove_unsent(&mut self, claims: &[Claim]) {
        for Claim { name, id, .. } in claims {
            if self.get(name, *id).is_some_and(|own| own.created == 0 && !own.doubt && !own.releasing) {
                self.remove_one(name, *id);
            }
        }
    }

    fn remove_one(&mut self, name: &Name, id: ClaimId) {
        let Some(claims) = self.0.get_mut(name) else { return };
        if let Ok(at) = claims.find(id) {
            claims.slots.give_back(claims.all.remove(at).slot);
        }
        if claims.all.is_empty() {
            self.0.remove(name);
        }
    }

    /// Removes all claims of a session that has ended; answers which.
    pub(crate) fn remove_session(&mut self, session: &Session) -> Vec<ClaimId> {
        self.remove_all(|own| own.session().lease == session.lease && own.lapses_at.is_none())
    }

    /// Removes those that have lapsed.
    pub(crate) fn remove_lapsed(&mut self, now: Moment) {
        self.remove_all(|own| own.lapses_at.is_some_and(|end| end <= now));
    }

    fn remove_all(&mut self, over: impl Fn(&OwnClaim) -> bool) -> Vec<ClaimId> {
        let names: Vec<Name> = self.all().filter(|(_, own)| over(own)).map(|(name, _)| name.clone()).collect();
        names.iter().flat_map(|name| self.remove(name, &over)).collect()
    }

    fn remove(&mut self, name: &Name, over: impl Fn(&OwnClaim) -> bool) -> Vec<ClaimId> {
        let Some(claims) = self.0.get_mut(name) else { return Vec::new() };
        let removed: Vec<_> = claims.all.extract_if(.., |own| over(own)).collect();
        removed.iter().for_each(|own| claims.slots.give_back(own.slot));
        if claims.all.is_empty() {
            self.0.remove(name);
        }
        removed.into_iter().map(|own| own.id).collect()
    }
}
