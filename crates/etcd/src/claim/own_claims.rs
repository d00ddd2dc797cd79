//! This client's own claims, by name. Nothing here waits.

use std::collections::HashMap;
use std::sync::Arc;

use leasehold_core::Name;
use leasehold_core::seam::{Claim, ClaimId, Moment};
use slab::Slab;

use crate::claim::own::OwnClaim;
use crate::client::leased_key::LeasedKey;
use crate::client::session::Session;
use crate::names;

#[derive(Default, Debug)]
pub(crate) struct OwnClaims(HashMap<Name, OfName>);

/// The own claims of one name.
#[derive(Default, Debug)]
struct OfName {
    all: HashMap<ClaimId, OwnClaim>,
    /// The numbers of their keys. They are used again, because etcd keeps a tombstone of each key.
    slots: Slab<()>,
}

impl OwnClaims {
    /// Those of this name.
    pub(crate) fn of(&mut self, name: &Name) -> impl Iterator<Item = &mut OwnClaim> {
        self.0.get_mut(name).into_iter().flat_map(|claims| claims.all.values_mut())
    }

    /// What is known of this claim.
    pub(crate) fn get(&mut self, name: &Name, id: ClaimId) -> Option<&mut OwnClaim> {
        self.0.get_mut(name)?.all.get_mut(&id)
    }

    /// The same of one that is claimed again; `None` also if it is being released.
    pub(crate) fn touch(&mut self, name: &Name, id: ClaimId) -> Option<OwnClaim> {
        let own = self.get(name, id).filter(|own| !own.releasing)?;
        own.last_used = Moment::now();
        Some(own.clone())
    }

    /// All claims.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (&Name, &mut OwnClaim)> {
        self.0.iter_mut().flat_map(|(name, claims)| claims.all.values_mut().map(move |own| (name, own)))
    }

    /// Adds the claim, unless it is known.
    pub(crate) fn insert(&mut self, claim: &Claim, prefix: &str, session: &Arc<Session>) -> OwnClaim {
        let claims = self.0.entry(claim.name.clone()).or_default();
        if let Some(known) = claims.all.get(&claim.id) {
            return known.clone();
        }
        let slot = claims.slots.insert(());
        let key = LeasedKey::new(session.clone(), names::place(prefix, session.lease, slot));
        let new = OwnClaim::new(claim, Arc::new(key), slot);
        claims.all.insert(claim.id, new.clone());
        new
    }

    /// Removes a claim that was released: the store surely has nothing left of it, and never will.
    pub(crate) fn remove_released(&mut self, name: &Name, id: ClaimId) {
        self.remove(name, |own| own.id == id && own.releasing);
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
        let removed: Vec<OwnClaim> = claims.all.extract_if(|_, own| over(own)).map(|(_, own)| own).collect();
        removed.iter().for_each(|own| claims.slots.remove(own.slot));
        if claims.all.is_empty() {
            self.0.remove(name);
        }
        removed.into_iter().map(|own| own.id).collect()
    }
}
