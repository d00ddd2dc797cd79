//! What this client knows: its own claims, by the lines that they stand in, and which lines it follows. Nothing here waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use leasehold_core::Name;
use leasehold_core::seam::{Claim, ClaimId, Moment};
use leasehold_etcd_client::{LeasedKey, Session};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::line::{Copy, Line, Own};
use crate::names;

#[derive(Debug)]
pub(crate) struct Lines {
    lines: HashMap<Name, Line>,
    /// Tells the watcher to watch this line.
    orders: UnboundedSender<Name>,
}

impl Lines {
    pub(crate) fn new(orders: UnboundedSender<Name>) -> Lines {
        Lines { lines: HashMap::new(), orders }
    }

    pub(crate) fn line(&mut self, name: &Name) -> Option<&mut Line> {
        self.lines.get_mut(name)
    }

    /// What is known of this claim.
    pub(crate) fn own(&mut self, name: &Name, id: ClaimId) -> Option<&mut Own> {
        self.line(name)?.own(id)
    }

    /// The same of one that is claimed again; `None` also if it is being released.
    pub(crate) fn tend(&mut self, name: &Name, id: ClaimId) -> Option<Own> {
        let own = self.own(name, id).filter(|own| !own.leaving)?;
        own.tended = Moment::now();
        Some(own.clone())
    }

    /// The copy of this line, while it is followed.
    pub(crate) fn copy(&mut self, name: &Name) -> Option<&mut Copy> {
        self.line(name)?.copy.as_deref_mut()
    }

    /// All claims.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (&Name, &mut Own)> {
        self.lines.iter_mut().flat_map(|(name, line)| line.own.iter_mut().map(move |own| (name, own)))
    }

    /// Takes the claim in, on the lowest slot that is free: keys are used again, because etcd keeps a tombstone of each.
    pub(crate) fn enroll(&mut self, claim: &Claim, prefix: &str, session: &Arc<Session>) -> Own {
        let line = self.lines.entry(claim.name.clone()).or_default();
        if let Some(known) = line.own(claim.id) {
            return known.clone();
        }
        let used: HashSet<&str> = line.own.iter().map(|other| &*other.key.path).collect();
        let mut slots = (0..).map(|slot| names::place(prefix, session.lease, slot));
        let path = slots.find(|path| !used.contains(&**path)).unwrap_or_default();
        let key = Arc::new(LeasedKey::new(session.clone(), path));
        let (id, tended) = (claim.id, Moment::now());
        let new = Own { id, key, created: 0, ahead: None, granted: false, leaving: false, tended };
        line.own.push(new.clone());
        new
    }

    /// Removes a claim that was released: the store surely has nothing left of it, and never will.
    pub(crate) fn strike(&mut self, name: &Name, id: ClaimId) {
        let Some(line) = self.line(name) else { return };
        line.own.retain(|own| own.id != id || !own.leaving);
        if line.is_nobodys() {
            self.lines.remove(name);
        }
    }

    /// Removes all claims of a session that has ended; answers which.
    pub(crate) fn end(&mut self, session: &Session) -> Vec<ClaimId> {
        let ended = |own: &mut Own| own.session().lease == session.lease;
        self.lines.values_mut().flat_map(|line| line.own.extract_if(.., ended)).map(|own| own.id).collect()
    }

    /// From now on the line is watched, until nobody waits in it or observes it.
    pub(crate) fn follow(&mut self, name: &Name) -> &mut Line {
        let line = self.lines.entry(name.clone()).or_default();
        line.copy.get_or_insert_with(|| {
            // Fails only after the watcher has ended with the store.
            let _ = self.orders.send(name.clone());
            Box::default()
        });
        line
    }

    /// Begins anew with all lines that are watched: no watch stands any more. All of them are ordered, and no order is left.
    pub(crate) fn follow_anew(&mut self, orders: &mut UnboundedReceiver<Name>) {
        while orders.try_recv().is_ok() {}
        for (name, line) in &mut self.lines {
            if let Some(copy) = &mut line.copy {
                **copy = Copy::default();
                let _ = self.orders.send(name.clone());
            }
        }
    }

    /// Gives up the copies of lines in which nobody waits any more, and tells which; and lines that are nobody's.
    pub(crate) fn unfollow(&mut self) -> HashSet<Name> {
        let mut over = HashSet::new();
        self.lines.retain(|name, line| {
            let wanted = line.own.iter().any(Own::waits) || line.observers.strong_count() > 0;
            // What was ordered for this copy, a watch and a read, must not meet the next one.
            let copy = line.copy.take_if(|copy| !wanted && copy.read_at.is_some());
            over.extend(copy.map(|_| name.clone()));
            !line.is_nobodys()
        });
        over
    }
}
