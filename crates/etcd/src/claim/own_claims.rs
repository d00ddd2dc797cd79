//! This client's own claims, by name. No function here waits.

use std::collections::HashMap;
#[cfg(leasehold_lab)]
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use leasehold_core::Name;
use leasehold_core::backend::{Claim, ClaimId, Moment};

use crate::claim::own::{OwnClaim, TurnKeys};
use crate::claim::slots::Slots;
use crate::client::leased_key::LeasedKey;
use crate::client::session::Session;
use crate::names;

/// In a simulation one seed is one history, so the order of the names is always the same.
#[cfg(leasehold_lab)]
type Hash = BuildHasherDefault<DefaultHasher>;
#[cfg(not(leasehold_lab))]
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
    /// The claims of this name.
    pub(crate) fn of(&mut self, name: &Name) -> impl Iterator<Item = &mut OwnClaim> {
        self.0
            .get_mut(name)
            .into_iter()
            .flat_map(|claims| claims.all.iter_mut().map(Box::as_mut))
    }

    /// The number of claims of this name.
    pub(crate) fn count(&self, name: &Name) -> usize {
        self.0.get(name).map_or(0, |claims| claims.all.len())
    }

    /// The record of this claim, if it is known.
    pub(crate) fn get(&mut self, name: &Name, id: ClaimId) -> Option<&mut OwnClaim> {
        let claims = self.0.get_mut(name)?;
        let at = claims.find(id).ok()?;
        Some(&mut claims.all[at])
    }

    /// Records that a known claim was claimed again now, and returns a copy; `None` if it is
    /// unknown or being released.
    pub(crate) fn touch(&mut self, name: &Name, id: ClaimId) -> Option<OwnClaim> {
        let own = self.get(name, id).filter(|own| !own.releasing)?;
        own.last_used = Moment::now();
        Some(own.clone())
    }

    /// All claims.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (&Name, &mut OwnClaim)> {
        self.0
            .iter_mut()
            .flat_map(|(name, claims)| claims.all.iter_mut().map(move |own| (name, &mut **own)))
    }

    /// Adds the claim, unless it is known, and returns its record.
    pub(crate) fn insert(
        &mut self,
        claim: &Claim,
        prefix: &str,
        session: &Arc<Session>,
    ) -> OwnClaim {
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

    /// Records that requests that may create the keys of these claims are sent from here on;
    /// returns the `doubt` of each before that. `None`: one of them is unknown by now, or is being
    /// released.
    pub(crate) fn begin(&mut self, claims: &[Claim], owns: &[OwnClaim]) -> Option<Vec<bool>> {
        let all = || claims.iter().zip(owns);
        let doubt = |(claim, own): (&Claim, &OwnClaim)| {
            self.same(&claim.name, own)
                .filter(|own| !own.releasing)
                .map(|own| own.doubt)
        };
        let before: Vec<bool> = all().map(doubt).collect::<Option<_>>()?;
        for (claim, own) in all() {
            self.same(&claim.name, own)
                .into_iter()
                .for_each(|own| own.doubt = true);
        }
        Some(before)
    }

    /// Records the answer to a request of this claim.
    pub(crate) fn answered(
        &mut self,
        name: &Name,
        own: &OwnClaim,
        doubt: bool,
        (created, base): (i64, i64),
        turns: Option<TurnKeys>,
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

    /// The record of this claim, unless it was removed; another claim of this id would have another
    /// key.
    fn same(&mut self, name: &Name, own: &OwnClaim) -> Option<&mut OwnClaim> {
        self.get(name, own.id)
            .filter(|known| Arc::ptr_eq(&known.key, &own.key))
    }

    /// Removes a claim that was released: the store has nothing left of it, and never will have.
    pub(crate) fn remove_released(&mut self, name: &Name, released: &OwnClaim) {
        if self.same(name, released).is_some_and(|own| own.releasing) {
            self.remove_one(name, released.id);
        }
    }

    /// Removes those of the claims of which no request was sent that may have been executed.
    pub(crate) fn remove_unsent(&mut self, claims: &[Claim]) {
        for Claim { name, id, .. } in claims {
            if self
                .get(name, *id)
                .is_some_and(|own| own.created == 0 && !own.doubt && !own.releasing)
            {
                self.remove_one(name, *id);
            }
        }
    }

    fn remove_one(&mut self, name: &Name, id: ClaimId) {
        let Some(claims) = self.0.get_mut(name) else {
            return;
        };
        if let Ok(at) = claims.find(id) {
            claims.slots.give_back(claims.all.remove(at).slot);
        }
        if claims.all.is_empty() {
            self.0.remove(name);
        }
    }

    /// Removes all claims of a session that has ended and returns their ids.
    pub(crate) fn remove_session(&mut self, session: &Session) -> Vec<ClaimId> {
        self.remove_all(|own| own.session().lease == session.lease && own.lapses_at.is_none())
    }

    /// Removes the claims that have lapsed.
    pub(crate) fn remove_lapsed(&mut self, now: Moment) {
        self.remove_all(|own| own.lapses_at.is_some_and(|end| end <= now));
    }

    fn remove_all(&mut self, over: impl Fn(&OwnClaim) -> bool) -> Vec<ClaimId> {
        let mut removed = Vec::new();
        self.0.retain(|_, OfName { all, slots }| {
            for own in all.extract_if(.., |own| over(own)) {
                slots.give_back(own.slot);
                removed.push(own.id);
            }
            !all.is_empty()
        });
        removed
    }
}
