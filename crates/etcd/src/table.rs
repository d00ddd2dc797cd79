//! What this client knows of its own claims, sessions and lines. One mutex guards all of it; nothing here waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId, Grant, Moment, Place};
use leasehold_core::{FencingToken, Name};
use tokio::sync::mpsc::UnboundedSender;

use crate::line::{Count, Line};
use crate::names;
use crate::session::Session;

/// Tokens per hold: waiters are numbered when they enter the line, so turns of one hold can only be told apart below that
/// number.
const TURNS: u32 = 256;

/// The token of the first turn of the hold with this create_revision.
pub(crate) fn token(created: i64) -> FencingToken {
    FencingToken::new(created.unsigned_abs().saturating_mul(u64::from(TURNS)))
}

/// The create_revision of the hold with this token.
pub(crate) fn created_of(token: FencingToken) -> i64 {
    token.as_i64() / i64::from(TURNS)
}

/// One claim, from just before its first request until its release is confirmed.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    pub(crate) line: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) session: Arc<Session>,
    /// The key's create_revision, 0 while none is known.
    pub(crate) created: i64,
    pub(crate) granted: bool,
    /// A request that may create the key was sent and not answered.
    pub(crate) doubt: bool,
    /// Since when its release is asked for and not confirmed.
    pub(crate) leaving: Option<Moment>,
}

impl Entry {
    pub(crate) fn place(&self) -> Place {
        Place::new(self.key.clone())
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant::new(self.place(), token(self.created), self.session.validity()).turns(TURNS)
    }
}

/// A line that is watched, or will be.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) name: Name,
    pub(crate) line: Line<ClaimId>,
    /// Its watch was asked for.
    pub(crate) sent: bool,
    /// A read is on its way.
    pub(crate) reading: bool,
    /// When somebody was last seen waiting.
    pub(crate) waited: Moment,
    /// How long the watch stays after the last waiter.
    pub(crate) lingers: Duration,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) claims: HashMap<ClaimId, Entry>,
    /// The keys of all claims.
    keys: HashSet<Arc<str>>,
    /// By the TTL that was asked for, in seconds.
    pub(crate) sessions: HashMap<u64, Arc<Session>>,
    pub(crate) lines: HashMap<Arc<str>, Watched>,
    /// Tells the watcher to watch this line, or to read it.
    orders: UnboundedSender<Arc<str>>,
}

impl State {
    pub(crate) fn new(orders: UnboundedSender<Arc<str>>) -> State {
        State { claims: HashMap::new(), keys: HashSet::new(), sessions: HashMap::new(), lines: HashMap::new(), orders }
    }

    /// Takes the claim in, on the lowest slot that is free: keys are used again, because etcd keeps a tombstone of each.
    pub(crate) fn enroll(&mut self, claim: &Claim, line: Arc<str>, session: Arc<Session>) -> Entry {
        let mut keys = (0..).map(|slot| names::place(&line, session.lease, slot).into());
        let free = keys.find(|key| !self.keys.contains(key));
        let key: Arc<str> = free.unwrap_or_else(|| line.clone());
        self.keys.insert(key.clone());
        let name = claim.name.clone();
        let entry = Entry { name, line, key, session, created: 0, granted: false, doubt: false, leaving: None };
        self.claims.insert(claim.id, entry.clone());
        entry
    }

    /// Removes a claim of which the store surely has nothing left, and never will.
    pub(crate) fn strike(&mut self, id: ClaimId) {
        if let Some(entry) = self.claims.remove(&id) {
            self.keys.remove(&entry.key);
            self.unwatch(&entry);
        }
    }

    /// The claim's key is gone; a late request may bring it back.
    pub(crate) fn vanished(&mut self, id: ClaimId) {
        match self.claims.get_mut(&id) {
            Some(entry) if entry.doubt => {
                let gone = entry.clone();
                (entry.created, entry.granted) = (0, false);
                self.unwatch(&gone);
            }
            _ => self.strike(id),
        }
    }

    /// The line need not tell of this entry any more.
    pub(crate) fn unwatch(&mut self, entry: &Entry) {
        if let Some(watched) = self.lines.get_mut(&entry.line) {
            watched.line.forget(entry.created);
        }
    }

    /// Ends a session; answers whose claims ended with it.
    pub(crate) fn end(&mut self, session: &Session) -> Vec<ClaimId> {
        self.sessions.retain(|_, other| other.lease != session.lease);
        let ended = self.claims_in(session, |_| true);
        ended.iter().for_each(|id| self.strike(*id));
        ended
    }

    /// The claims in this session of which `which` is true.
    pub(crate) fn claims_in(&self, session: &Session, which: impl Fn(&Entry) -> bool) -> Vec<ClaimId> {
        let of = |entry: &Entry| entry.session.lease == session.lease && which(entry);
        self.claims.iter().filter(|(_, entry)| of(entry)).map(|(id, _)| *id).collect()
    }

    /// The claim's key exists, and is the head of the line if `holds`. `None` if the claim is gone by now.
    pub(crate) fn stand(&mut self, id: ClaimId, created: i64, holds: bool, count: Option<Count>) -> Option<()> {
        let old = self.claims.get(&id)?.clone();
        if old.created != created {
            self.unwatch(&old);
        }
        let entry = self.claims.get_mut(&id)?;
        entry.granted = holds || entry.granted && old.created == created;
        entry.created = created;
        let entry = entry.clone();
        if entry.granted {
            if let Some(watched) = self.lines.get_mut(&entry.line) {
                watched.line.hold(id, created);
            }
            return Some(());
        }
        if !self.lines.contains_key(&entry.line) {
            self.attend(&entry);
        }
        let watched = self.lines.get_mut(&entry.line)?;
        watched.lingers = watched.lingers.max(entry.session.ttl);
        watched.line.wait(id, created, count);
        if !watched.sent || watched.line.must_be_read() {
            // Fails only after the watcher has ended with the store.
            let _ = self.orders.send(entry.line);
        }
        Some(())
    }

    /// Begins to keep the line that this entry stands in, with all that is held there.
    fn attend(&mut self, entry: &Entry) {
        let mut line = Line::new();
        let holds = self.claims.iter().filter(|(_, other)| other.granted && other.line == entry.line);
        holds.for_each(|(id, hold)| line.hold(*id, hold.created));
        let (name, waited, lingers) = (entry.name.clone(), Moment::now(), Duration::ZERO);
        self.lines.insert(entry.line.clone(), Watched { name, line, sent: false, reading: false, waited, lingers });
    }
}
