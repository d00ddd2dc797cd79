//! What this client knows of its own claims, sessions and lines. One mutex guards all of it; nothing here waits.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use leasehold_core::FencingToken;
use leasehold_core::seam::{ClaimId, Grant, Moment, Place};
use tokio::sync::mpsc::UnboundedSender;

use crate::line::{Line, Stand};
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

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) claims: HashMap<ClaimId, Entry>,
    /// The keys of all claims.
    keys: HashSet<Arc<str>>,
    /// By the TTL that was asked for, in seconds.
    pub(crate) sessions: HashMap<u64, Arc<Session>>,
    /// That are watched, or will be.
    pub(crate) lines: HashMap<Arc<str>, Line>,
    /// As long as somebody has the other end.
    pub(crate) observed: HashMap<Arc<str>, Weak<()>>,
    /// Tells the watcher to watch this line.
    orders: UnboundedSender<Arc<str>>,
}

impl State {
    pub(crate) fn new(orders: UnboundedSender<Arc<str>>) -> State {
        let (claims, keys, sessions) = (HashMap::new(), HashSet::new(), HashMap::new());
        State { claims, keys, sessions, lines: HashMap::new(), observed: HashMap::new(), orders }
    }

    /// Takes the claim in, on the lowest slot that is free: keys are used again, because etcd keeps a tombstone of each.
    pub(crate) fn enroll(&mut self, id: ClaimId, line: Arc<str>, session: Arc<Session>) -> Entry {
        let mut keys = (0..).map(|slot| names::place(&line, session.lease, slot).into());
        let free = keys.find(|key| !self.keys.contains(key));
        let key: Arc<str> = free.unwrap_or_else(|| line.clone());
        self.keys.insert(key.clone());
        let entry = Entry { line, key, session, created: 0, granted: false, doubt: false, leaving: None };
        self.claims.insert(id, entry.clone());
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
        if let Some(line) = self.lines.get_mut(&entry.line) {
            line.forget(entry.created);
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

    /// The key of the claim exists, unless the claim is gone by now.
    pub(crate) fn stand(&mut self, id: ClaimId, created: i64, stand: Stand) {
        let Some(old) = self.claims.get(&id).cloned() else { return };
        if old.created != created {
            self.unwatch(&old);
        }
        let granted = stand == Stand::Holds || old.granted && old.created == created;
        self.claims.insert(id, Entry { created, granted, ..old.clone() });
        if !granted {
            self.watched(&old.line).place(id, created, stand);
        } else if let Some(line) = self.lines.get_mut(&old.line) {
            line.place(id, created, Stand::Holds);
        }
    }

    /// The copy of this line; one that is watched from now on.
    pub(crate) fn watched(&mut self, line: &Arc<str>) -> &mut Line {
        self.lines.entry(line.clone()).or_insert_with(|| {
            // Fails only after the watcher has ended with the store.
            let _ = self.orders.send(line.clone());
            let mut copy = Line::default();
            let holds = self.claims.iter().filter(|(_, entry)| entry.granted && entry.line == *line);
            holds.for_each(|(id, hold)| copy.place(*id, hold.created, Stand::Holds));
            copy
        })
    }

    /// Looks over the lines.
    pub(crate) fn drop_idle_lines(&mut self) {
        let State { lines, observed, .. } = self;
        observed.retain(|_, observers| observers.strong_count() > 0);
        lines.retain(|name, line| observed.contains_key(name) || !line.is_over());
    }

    /// Nothing is known of any line any more; those that are observed are watched anew.
    pub(crate) fn forget_lines(&mut self) {
        self.lines.clear();
        for line in self.observed.keys().cloned().collect::<Vec<_>>() {
            self.watched(&line);
        }
    }
}
