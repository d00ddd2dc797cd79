//! The short way: a lock that is free is taken, and given back, without a look at its queue. What is not sure of that takes the
//! long way. The client's own thread is not needed for it either, as long as nothing else of the client depends on that.

use leasehold_core::seam::{Admission, Claim, ClaimId, Grant, admit};
use rusqlite::params;

use crate::claim::queue::{Queues, Session};
use crate::claim::raise::floor_of;
use crate::client::time::nanos;
use crate::client::tokens::Tokens;
use crate::client::worker::{Attempt, Client};
use crate::entry::{Id, place, token, validity};

/// Draws a token, if nobody is in the queue and nobody observes it, and if our session is as we have written it last: others may
/// have ended it, and an older copy of the file has an older one.
pub(super) const DRAW: &str = "UPDATE meta SET token = ?1 WHERE rowid = 1
    AND EXISTS (SELECT 1 FROM session WHERE id = ?2 AND until = ?3)
    AND NOT EXISTS (SELECT 1 FROM place WHERE name = ?4)
    AND NOT EXISTS (SELECT 1 FROM observer WHERE name = ?4)";

/// Gives back a place, if nobody else is in the queue and nobody observes it.
pub(super) const GIVE_BACK: &str = "DELETE FROM place WHERE name = ?1 AND seq = ?2 AND claim = ?3 AND session > 0
    AND NOT EXISTS (SELECT 1 FROM place WHERE name = ?1 AND seq <> ?2)
    AND NOT EXISTS (SELECT 1 FROM observer WHERE name = ?1)";

impl Client {
    /// Takes a lock that is free; `None` is no answer. Only for a client that has no place: a disk that stalls would hold up the
    /// caller's runtime, which would then be late to tell of a loss.
    /// `alone`: it may change what is listened to.
    pub(crate) fn claim_at_once(&mut self, claim: &Claim, alone: bool) -> Option<Grant> {
        if !self.own.places.is_empty() || !self.ended.is_empty() || !self.is_found_at_once(alone) {
            return None;
        }
        self.announce_lease(Some(claim.ttl)).ok()?;
        match self.attempt(&mut |queues: &mut Queues<'_>| queues.take_free_or_begin(claim)) {
            Ok(Attempt::Done(grant, _)) => grant,
            _ => None,
        }
    }

    /// Gives back the only place that this client has, if nobody waits for it. No check of the files: what they have become
    /// grants nothing to a claim that is gone.
    pub(crate) fn release_at_once(&mut self, claim: &Claim) -> Option<()> {
        if self.own.places.len() != 1 || !self.ended.is_empty() {
            return None;
        }
        let seq = self.own.places.get(&claim.id)?.seq;
        let released = if self.is_brief { self.give_back_and_leave(claim, seq) } else { self.give_back(claim, seq) };
        if !released.ok()? {
            return None;
        }
        self.own.places.clear();
        self.watches.forget(claim.id);
        // Others may wait for us longer than they have to, after new files.
        let _ = self.announce_longest();
        Some(())
    }

    fn give_back(&self, claim: &Claim, seq: i64) -> rusqlite::Result<bool> {
        let mut give_back = self.file.connection.prepare_cached(GIVE_BACK)?;
        Ok(give_back.execute(params![claim.name.as_str(), seq, Id::from(claim.id)])? > 0)
    }

    /// The same with our sessions, which have no other place: then nothing is left to be done when we end.
    fn give_back_and_leave(&mut self, claim: &Claim, seq: i64) -> rusqlite::Result<bool> {
        let tx = self.file.begin()?;
        if !self.give_back(claim, seq)? {
            return Ok(false);
        }
        let leave = "DELETE FROM session WHERE fifo = ?1";
        self.file.connection.prepare_cached(leave)?.execute([self.own.address.fifo])?;
        self.file.commit()?;
        drop(tx);
        self.own.sessions.clear();
        self.has_left = true;
        Ok(true)
    }
}

impl Queues<'_> {
    /// Takes a lock that is free in our session, unless that is to be extended first.
    pub(crate) fn take_free(&mut self, claim: &Claim) -> rusqlite::Result<Option<Grant>> {
        let ttl = nanos(claim.ttl);
        let session = self.own.sessions.get(&ttl).copied().filter(|session| !self.is_worn(session.until, ttl));
        session.map_or(Ok(None), |session| self.take_free_in(session, claim))
    }

    /// The same for a client without places: its session is begun or extended first, if that is to be done.
    fn take_free_or_begin(&mut self, claim: &Claim) -> rusqlite::Result<Option<Grant>> {
        if let Some(grant) = self.take_free(claim)? {
            return Ok(Some(grant));
        }
        let ttl = nanos(claim.ttl);
        self.session(ttl)?;
        match self.written.iter().rev().find(|(of, _)| *of == ttl) {
            Some((_, session)) => self.take_free_in(*session, claim),
            // Then it is the queue that is not free.
            None => Ok(None),
        }
    }

    fn take_free_in(&mut self, session: Session, claim: &Claim) -> rusqlite::Result<Option<Grant>> {
        let (name, ttl) = (claim.name.as_str(), nanos(claim.ttl));
        let is_known = self.own.places.contains_key(&claim.id);
        let is_admitted = self.may_grant() && admit(&[], claim.mode) == Admission::In;
        if is_known || !is_admitted {
            return Ok(None);
        }
        let tokens = self.next_tokens(claim.turns(), floor_of(claim));
        if self.execute(DRAW, params![tokens.last(), session.id, session.until, name])? == 0 {
            return Ok(None);
        }
        self.meta.token = tokens.last();
        self.insert(claim, session.id, tokens, true)?;
        let Tokens { first, count } = tokens;
        Ok(Some(Grant::new(place(first), token(first), validity(ttl, session.until)).turns(count)))
    }

    /// Gives back a place whose number is known; answers whether nothing else is to be done for it.
    pub(crate) fn give_back(&self, name: &str, claim: ClaimId, seq: i64) -> rusqlite::Result<bool> {
        Ok(self.execute(GIVE_BACK, params![name, seq, Id::from(claim)])? > 0)
    }
}
