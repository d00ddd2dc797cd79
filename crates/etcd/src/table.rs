//! What this client knows of its own claims, sessions and watches. One mutex guards all of it; nothing here waits.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_core::seam::{Claim, ClaimId, Grant, Moment, Place, Tenure};
use leasehold_core::{FencingToken, Name};
use tokio::sync::mpsc::UnboundedSender;

use crate::line::Line;
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
    slot: u32,
    /// The key's create_revision, 0 while none is known.
    pub(crate) created: i64,
    pub(crate) granted: bool,
    /// When it entered the line, for people.
    pub(crate) since: SystemTime,
    /// The label that the store surely has.
    pub(crate) label: Option<Arc<str>>,
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

/// A line that is watched.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) watch: i64,
    pub(crate) name: Name,
    pub(crate) line: Line<ClaimId>,
    /// A read is on its way.
    pub(crate) reading: bool,
    /// Since when nobody waits.
    pub(crate) idle: Option<Moment>,
    /// How long the watch stays after the last waiter.
    lingers: Duration,
}

/// What a watch is for.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Line(Arc<str>),
    Session(Arc<Session>),
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) claims: HashMap<ClaimId, Entry>,
    /// The slots in use, by session and line.
    slots: HashMap<(i64, Arc<str>), BTreeSet<u32>>,
    /// By the TTL that was asked for, in seconds.
    pub(crate) sessions: HashMap<u64, Arc<Session>>,
    pub(crate) lines: HashMap<Arc<str>, Watched>,
    pub(crate) wanted: HashMap<i64, Wanted>,
    last_watch: i64,
    /// Tells the watcher to look whether this watch is wanted.
    orders: UnboundedSender<i64>,
}

impl State {
    pub(crate) fn new(orders: UnboundedSender<i64>) -> State {
        State {
            claims: HashMap::new(),
            slots: HashMap::new(),
            sessions: HashMap::new(),
            lines: HashMap::new(),
            wanted: HashMap::new(),
            last_watch: 0,
            orders,
        }
    }

    /// Takes the claim in, on the lowest slot that is free: keys are used again, because etcd keeps a tombstone of each.
    pub(crate) fn enroll(&mut self, claim: &Claim, line: Arc<str>, session: Arc<Session>) -> Entry {
        let used = self.slots.entry((session.lease, line.clone())).or_default();
        let slot =
            (0..).zip(used.iter()).find(|(free, used)| free != *used).map_or(used.len() as u32, |(free, _)| free);
        used.insert(slot);
        let entry = Entry {
            name: claim.name.clone(),
            key: names::place(&line, session.lease, slot).into(),
            line,
            session,
            slot,
            created: 0,
            granted: false,
            since: SystemTime::now(),
            label: None,
            doubt: false,
            leaving: None,
        };
        self.claims.insert(claim.id, entry.clone());
        entry
    }

    /// Removes a claim of which the store surely has nothing left, and never will.
    pub(crate) fn strike(&mut self, id: ClaimId) -> Option<Entry> {
        let entry = self.claims.remove(&id)?;
        let of = (entry.session.lease, entry.line.clone());
        if let Some(used) = self.slots.get_mut(&of) {
            used.remove(&entry.slot);
            if used.is_empty() {
                self.slots.remove(&of);
            }
        }
        self.unwatch(&entry);
        Some(entry)
    }

    /// The claim's key is gone; a late request may bring it back.
    pub(crate) fn vanished(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get(&id).cloned() else { return };
        if !entry.doubt {
            self.strike(id);
        } else if let Some(entry) = self.claims.get_mut(&id) {
            (entry.created, entry.granted, entry.label) = (0, false, None);
        }
        self.unwatch(&entry);
    }

    /// The line need not tell of this entry any more.
    pub(crate) fn unwatch(&mut self, entry: &Entry) {
        if let Some(watched) = self.lines.get_mut(&entry.line) {
            watched.line.forget(entry.created);
        }
    }

    pub(crate) fn has_claims(&self, lease: i64) -> bool {
        self.claims.values().any(|entry| entry.session.lease == lease)
    }

    /// Ends a session; answers whose claims ended with it.
    pub(crate) fn end(&mut self, session: &Session) -> Vec<ClaimId> {
        self.sessions.retain(|_, other| other.lease != session.lease);
        self.unwant(session.watch);
        let of = |(_, entry): &(&ClaimId, &Entry)| entry.session.lease == session.lease;
        let ended: Vec<ClaimId> = self.claims.iter().filter(of).map(|(id, _)| *id).collect();
        ended.iter().for_each(|id| drop(self.strike(*id)));
        ended
    }

    pub(crate) fn sessions_of(&self, tenures: &[Tenure]) -> Vec<Arc<Session>> {
        let mut seen = HashSet::new();
        let entries = tenures.iter().filter_map(|tenure| self.claims.get(&tenure.claim.id));
        entries.filter(|entry| seen.insert(entry.session.lease)).map(|entry| entry.session.clone()).collect()
    }

    /// The claims in this session whose release has not been confirmed for so long.
    pub(crate) fn leaving(&self, session: &Session, for_long: Duration) -> Vec<ClaimId> {
        let now = Moment::now();
        let late = |entry: &Entry| entry.leaving.is_some_and(|since| now.since(since) > for_long);
        let leaving = |entry: &Entry| entry.session.lease == session.lease && late(entry);
        self.claims.iter().filter(|(_, entry)| leaving(entry)).map(|(id, _)| *id).collect()
    }

    /// The holds in this session.
    pub(crate) fn holds(&self, session: &Session) -> Vec<(ClaimId, Entry)> {
        let holds = |entry: &Entry| entry.granted && entry.session.lease == session.lease;
        self.claims.iter().filter(|(_, entry)| holds(entry)).map(|(id, entry)| (*id, entry.clone())).collect()
    }

    pub(crate) fn number_watch(&mut self) -> i64 {
        self.last_watch += 1;
        self.last_watch
    }

    pub(crate) fn want(&mut self, watch: i64, what: Wanted) {
        self.wanted.insert(watch, what);
        // Fails only after the watcher has ended with the store.
        let _ = self.orders.send(watch);
    }

    pub(crate) fn unwant(&mut self, watch: i64) {
        self.wanted.remove(&watch);
        let _ = self.orders.send(watch);
    }

    /// The watched line that this entry waits in; from now on, if it was not.
    pub(crate) fn watched(&mut self, entry: &Entry) -> &mut Watched {
        if !self.lines.contains_key(&entry.line) {
            let watch = self.number_watch();
            self.want(watch, Wanted::Line(entry.line.clone()));
        }
        let (watch, name) = (self.last_watch, entry.name.clone());
        let new = || {
            let mut line = Line::new();
            let holds = self.claims.iter().filter(|(_, other)| other.granted && other.line == entry.line);
            holds.for_each(|(id, hold)| line.hold(*id, hold.created));
            Watched { watch, name, line, reading: false, idle: None, lingers: Duration::ZERO }
        };
        let watched = self.lines.entry(entry.line.clone()).or_insert_with(new);
        (watched.idle, watched.lingers) = (None, watched.lingers.max(entry.session.ttl));
        watched
    }

    /// Ends the watches of lines in which nobody has waited for a while.
    pub(crate) fn tidy(&mut self) {
        let now = Moment::now();
        let mut over = Vec::new();
        for watched in self.lines.values_mut() {
            let idle = watched.line.youngest().is_none();
            watched.idle = idle.then(|| watched.idle.unwrap_or(now));
            if watched.idle.is_some_and(|since| now.since(since) > watched.lingers) {
                over.push(watched.watch);
            }
        }
        self.lines.retain(|_, watched| !over.contains(&watched.watch));
        over.into_iter().for_each(|watch| self.unwant(watch));
    }
}
