//! One name's line: who holds, who waits, and who is next. Synchronous and without a clock of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use leasehold_core::seam::{
    Admission, Claim, ClaimId, Claimed, Grant, LeaseRef, Mode, Moment, Notifier, Place, Renewal, Validity, WaitPolicy,
    Waiting, admit, same_permits,
};
use leasehold_core::{Contention, FencingToken, LockQueue, Loss, Name, Result};

/// How many tokens a `fast` grant reserves for turns among the tasks of its process.
const TURNS: u32 = 64;

/// A client's notifications, and what becomes of its requests. Notifications are silent while answers are.
#[derive(Clone, Default)]
pub(crate) struct Cord {
    pub(crate) notifier: Notifier,
    link: Arc<AtomicU8>,
}

/// What arrives between a client and the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// Everything.
    Whole = 0,
    /// Requests, but neither answers nor notifications.
    Mute = 1,
    /// Nothing.
    Cut = 2,
}

impl Cord {
    pub(crate) fn set(&self, link: Link) {
        self.link.store(link as u8, Ordering::Release);
    }

    pub(crate) fn is(&self, link: Link) -> bool {
        self.link.load(Ordering::Acquire) == link as u8
    }

    fn notify(&self, how: impl FnOnce(&Notifier)) {
        if self.is(Link::Whole) {
            how(&self.notifier);
        }
    }

    fn granted(&self, id: ClaimId, grant: Grant) {
        self.notify(|notifier| notifier.granted(id, grant));
    }

    fn claim_again(&self, id: ClaimId) {
        self.notify(|notifier| notifier.claim_again(id));
    }

    pub(crate) fn holder_changed(&self, name: &Name) {
        self.notify(|notifier| notifier.holder_changed(name));
    }

    fn lost(&self, id: ClaimId, loss: Loss) {
        self.notify(|notifier| notifier.lost(id, loss));
    }
}

/// Tokens are minted from one counter for all names.
#[derive(Default)]
pub(crate) struct Mint(u64);

impl Mint {
    fn reserve(&mut self, turns: u32) -> FencingToken {
        let first = self.0 + 1;
        self.0 += u64::from(turns);
        FencingToken::new(first)
    }
}

/// The line of one name, in the order in which places were taken.
#[derive(Default)]
pub(crate) struct Queue(Vec<Entry>);

pub(crate) struct Entry {
    claim: Claim,
    cord: Cord,
    /// The latest claim or renewal that the store saw: what a grant's validity counts from. It never goes back (S13).
    sent: Moment,
    /// When it ends whatever is asked, because its client gave it back within its `min_hold` (S15).
    ends: Option<Moment>,
    grant: Option<(FencingToken, u32)>,
    since: SystemTime,
    began: Moment,
}

impl Entry {
    fn deadline(&self) -> Moment {
        self.ends.unwrap_or(self.sent + self.claim.ttl)
    }

    /// A claim or a renewal has come. An older one, that was overtaken on its way, takes nothing away.
    fn extend(&mut self, now: Moment) {
        self.sent = self.sent.max(now);
    }

    /// For how long it surely lives.
    fn validity(&self) -> Validity {
        Validity::since(self.sent, self.deadline().since(self.sent))
    }

    fn place(&self) -> Place {
        Place::new(self.claim.id.to_string())
    }

    fn shown(&self) -> leasehold_core::Participant {
        let mut shown = leasehold_core::Participant::new(&*self.claim.label).since(self.since).mode(self.claim.mode);
        shown.token = self.grant.map(|(token, _)| token);
        shown
    }

    fn granted(&self) -> Option<Grant> {
        let (token, turns) = self.grant?;
        Some(Grant::new(self.place(), token, self.validity()).turns(turns))
    }

    /// Whether this token is one of this hold's turns.
    pub(crate) fn owns(&self, token: FencingToken) -> bool {
        self.grant.is_some_and(|(first, turns)| (first.get()..first.get() + u64::from(turns)).contains(&token.get()))
    }
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Drops the dead and grants to whoever is admitted now.
    pub(crate) fn settle(&mut self, now: Moment, mint: &mut Mint) {
        self.0.retain(|entry| entry.deadline() > now);
        let modes: Vec<Mode> = self.0.iter().map(|entry| entry.claim.mode).collect();
        for (i, entry) in self.0.iter_mut().enumerate().filter(|(_, entry)| entry.grant.is_none()) {
            if admit(&modes[..i], entry.claim.mode) == Admission::In {
                let turns = if entry.claim.policy == WaitPolicy::Fast { TURNS } else { 1 };
                entry.grant = Some((mint.reserve(turns), turns));
                (entry.since, entry.began) = (SystemTime::now(), now);
                if let Some(grant) = entry.granted() {
                    entry.cord.granted(entry.claim.id, grant);
                }
            }
        }
    }

    /// Takes or keeps a place.
    pub(crate) fn claim(&mut self, claim: &Claim, cord: &Cord, now: Moment, mint: &mut Mint) -> Result<Claimed> {
        let known = self.0.iter().position(|entry| entry.claim.id == claim.id);
        let at = known.unwrap_or(self.0.len());
        if known.is_none() {
            let modes: Vec<Mode> = self.0.iter().map(|entry| entry.claim.mode).collect();
            same_permits(&modes, claim.mode)?;
            if claim.policy == WaitPolicy::Try && admit(&modes, claim.mode) != Admission::In {
                return Ok(Claimed::Busy(self.contention(at, now)));
            }
            let (claim, cord) = (claim.clone(), cord.clone());
            let (since, began) = (SystemTime::now(), now);
            self.0.push(Entry { claim, cord, sent: now, ends: None, grant: None, since, began });
            self.settle(now, mint);
        }
        let entry = &mut self.0[at];
        entry.extend(now);
        entry.claim.label = claim.label.clone();
        if let Some(grant) = entry.granted() {
            if claim.mode == Mode::Shared && entry.claim.mode == Mode::Exclusive {
                entry.claim.mode = Mode::Shared;
            }
            return Ok(Claimed::Granted(grant));
        }
        let place = entry.place();
        // When a holder's lease ends, whoever looks first serves the line.
        let free = self.0[..at].iter().filter(|e| e.grant.is_some()).map(Entry::deadline).min();
        let look = free.map_or(claim.ttl, |at| at.since(now)) + Duration::from_millis(1);
        Ok(Claimed::Waiting(Waiting::new(place, self.contention(at, now)).retry_after(look)))
    }

    /// Who is in line before this claim, if anybody is.
    pub(crate) fn before(&self, id: ClaimId, now: Moment) -> Option<Contention> {
        self.0.first().filter(|first| first.claim.id != id).map(|_| self.contention(self.0.len(), now))
    }

    pub(crate) fn renew(&mut self, lease: &LeaseRef, now: Moment) -> Renewal {
        let Some(entry) = self.0.iter_mut().find(|entry| entry.claim.id == lease.claim.id) else {
            return Renewal::Lost(Loss::Gone);
        };
        entry.extend(now);
        match entry.granted() {
            Some(grant) if lease.token != Some(grant.token) => Renewal::Granted(grant),
            _ => Renewal::Renewed(entry.validity()),
        }
    }

    /// Lets a hold end at this instant, or before if it was to end before. Whoever waits counted on its lease, and looks anew.
    pub(crate) fn lapse(&mut self, id: ClaimId, at: Moment) {
        let Some(entry) = self.0.iter_mut().find(|entry| entry.claim.id == id && entry.grant.is_some()) else { return };
        entry.ends = Some(entry.ends.map_or(at, |before| before.min(at)));
        let waiting = self.0.iter().filter(|entry| entry.grant.is_none());
        waiting.for_each(|entry| entry.cord.claim_again(entry.claim.id));
    }

    /// Whether the hold at this place holds now, by this token.
    pub(crate) fn holds(&self, place: &Place, token: FencingToken) -> bool {
        self.0.iter().any(|entry| entry.owns(token) && entry.place() == *place)
    }

    pub(crate) fn remove(&mut self, id: ClaimId) {
        self.0.retain(|entry| entry.claim.id != id);
    }

    /// Ends the holds that `which` names, and tells them.
    pub(crate) fn end(&mut self, loss: Loss, which: impl Fn(&Entry) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| {
            let ends = entry.grant.is_some() && which(entry);
            if ends {
                entry.cord.lost(entry.claim.id, loss);
            }
            !ends
        });
        self.0.len() < before
    }

    /// Drops the holds without a notification.
    pub(crate) fn forget_holders(&mut self) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| entry.grant.is_none());
        self.0.len() < before
    }

    /// What observers see: who holds it, and its label.
    pub(crate) fn face(&self) -> Vec<(FencingToken, Arc<str>)> {
        self.0.iter().filter_map(|e| e.grant.map(|(token, _)| (token, e.claim.label.clone()))).collect()
    }

    pub(crate) fn inspect(&self) -> LockQueue {
        let (holders, waiters) = self.0.iter().map(Entry::shown).partition(|entry| entry.token.is_some());
        LockQueue::new(holders, waiters)
    }

    /// Who stands in the way of the entry at `at`.
    fn contention(&self, at: usize, now: Moment) -> Contention {
        let waiting = self.0.iter().enumerate().filter(|(i, e)| *i != at && e.grant.is_none()).count();
        let first = self.0.iter().find(|entry| entry.grant.is_some());
        let by = |first: &Entry| Contention::from(&first.shown()).held_for(now.since(first.began));
        first.map_or_else(Contention::unknown, by).waiters(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(secs: u64) -> Moment {
        Moment::from_nanos(1_000_000_000) + Duration::from_secs(secs)
    }

    /// A line that somebody has held since the tenth second.
    fn held() -> (Queue, Mint, Claim) {
        let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "test");
        let (mut line, mut mint) = (Queue::default(), Mint::default());
        assert!(matches!(line.claim(&claim, &Cord::default(), at(10), &mut mint), Ok(Claimed::Granted(_))));
        (line, mint, claim)
    }

    fn lease(claim: &Claim) -> LeaseRef {
        LeaseRef::new(Arc::new(claim.clone()), Place::new(claim.id.to_string()), Some(FencingToken::new(1)))
    }

    /// S13: a renewal that was overtaken by a confirmation shortens nothing, and what it answers is true.
    #[test]
    fn a_lease_never_gets_shorter_by_an_older_request() {
        let (mut line, mut mint, claim) = held();
        let Renewal::Renewed(validity) = line.renew(&lease(&claim), at(7)) else { panic!("it is there") };
        assert_eq!(line.0[0].deadline(), at(20));
        assert!(validity.until(at(30)) <= at(20));
        assert!(matches!(line.claim(&claim, &Cord::default(), at(9), &mut mint), Ok(Claimed::Granted(_))));
        assert_eq!(line.0[0].deadline(), at(20));
        line.settle(at(19), &mut mint);
        assert_eq!(line.len(), 1);
    }

    /// S15: a hold that lapses is neither renewed nor put off, and what is answered about it is true.
    #[test]
    fn what_lapses_is_not_renewed() {
        let (mut line, mut mint, claim) = held();
        line.lapse(claim.id, at(13));
        line.lapse(claim.id, at(15));
        let Renewal::Renewed(validity) = line.renew(&lease(&claim), at(12)) else { panic!("it is there") };
        assert!(validity.until(at(30)) <= at(13));
        assert_eq!(line.0[0].deadline(), at(13));
        line.settle(at(13), &mut mint);
        assert_eq!(line.len(), 0);
    }
}
