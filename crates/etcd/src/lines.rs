//! This client's own claims, by the lines that they stand in. Nothing here waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use leasehold_core::Name;
use leasehold_core::seam::{Claim, ClaimId, Moment};
use leasehold_etcd_client::{LeasedKey, Session};

use crate::line::Own;
use crate::names;

#[derive(Default, Debug)]
pub(crate) struct Lines(HashMap<Name, Vec<Own>>);

impl Lines {
    /// Those in this line.
    pub(crate) fn line(&mut self, name: &Name) -> &mut [Own] {
        self.0.get_mut(name).map_or(&mut [], Vec::as_mut_slice)
    }

    /// What is known of this claim.
    pub(crate) fn own(&mut self, name: &Name, id: ClaimId) -> Option<&mut Own> {
        self.line(name).iter_mut().find(|own| own.id == id)
    }

    /// The same of one that is claimed again; `None` also if it is being released.
    pub(crate) fn tend(&mut self, name: &Name, id: ClaimId) -> Option<Own> {
        let own = self.own(name, id).filter(|own| !own.leaving)?;
        own.tended = Moment::now();
        Some(own.clone())
    }

    /// All claims.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (&Name, &mut Own)> {
        self.0.iter_mut().flat_map(|(name, line)| line.iter_mut().map(move |own| (name, own)))
    }

    /// Takes the claim in, on the lowest slot that is free: keys are used again, because etcd keeps a tombstone of each.
    pub(crate) fn enroll(&mut self, claim: &Claim, prefix: &str, session: &Arc<Session>) -> Own {
        if let Some(known) = self.own(&claim.name, claim.id) {
            return known.clone();
        }
        let line = self.0.entry(claim.name.clone()).or_default();
        let used: HashSet<&str> = line.iter().map(|other| &*other.key.path).collect();
        let mut slots = (0..).map(|slot| names::place(prefix, session.lease, slot));
        let path = slots.find(|path| !used.contains(&**path)).unwrap_or_default();
        let key = Arc::new(LeasedKey::new(session.clone(), path));
        let (id, tended) = (claim.id, Moment::now());
        let new = Own { id, key, created: 0, ahead: None, granted: false, leaving: false, tended, mirror: None };
        line.push(new.clone());
        new
    }

    /// Removes a claim that was released: the store surely has nothing left of it, and never will.
    pub(crate) fn strike(&mut self, name: &Name, id: ClaimId) {
        let Some(line) = self.0.get_mut(name) else { return };
        line.retain(|own| own.id != id || !own.leaving);
        if line.is_empty() {
            self.0.remove(name);
        }
    }

    /// Removes all claims of a session that has ended; answers which.
    pub(crate) fn end(&mut self, session: &Session) -> Vec<ClaimId> {
        let ended = |own: &mut Own| own.session().lease == session.lease;
        let lost = self.0.values_mut().flat_map(|line| line.extract_if(.., ended)).map(|own| own.id).collect();
        self.0.retain(|_, line| !line.is_empty());
        lost
    }
}
