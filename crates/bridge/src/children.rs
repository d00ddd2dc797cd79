//! The claims of core, the *parents*, and what each has in the two stores.
//!
//! A *stay* is a claim of ours in one of them, with an id of its own. Whenever a parent has left a store, or may have, that id is never
//! used again: a late withdrawal of it must not end what stands there later.
//!
//! A stay is written down before its request is sent. A caller may drop a request at any await, and the store may execute it all
//! the same: a release finds all that may be there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use leasehold_core::seam::{
    Backend, Claim, ClaimId, Grant, LeaseRef, Moment, Notification, Notifier, Place, Subscription, Validity,
};
use leasehold_core::support::locked;
use leasehold_core::{FencingToken, Loss};

use crate::pair::Side;

/// All parents that may have something in a store.
#[derive(Debug, Default)]
pub(crate) struct Children(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    parents: HashMap<ClaimId, Arc<Parent>>,
    /// With so many of them, those are looked for of which core has said nothing for long.
    sweep_at: usize,
}

/// Fewer are not worth looking through.
const SWEEP_AT: usize = 64;

impl Children {
    /// The parent of this id, which is there from now on.
    pub(crate) fn of(&self, claim: &Claim, now: Moment) -> Arc<Parent> {
        let mut table = locked(&self.0);
        if table.parents.len() >= table.sweep_at.max(SWEEP_AT) {
            table.parents.retain(|_, parent| locked(&parent.stays).remembered_until > now);
            table.sweep_at = table.parents.len() * 2;
        }
        let parent = table.parents.entry(claim.id).or_insert_with(|| Arc::new(Parent::new(claim.id))).clone();
        drop(table);
        parent.with(|stays| stays.touched(now, claim.ttl));
        parent
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<Parent>> {
        locked(&self.0).parents.get(&id).cloned()
    }

    /// Forgets this parent if nothing of it is left anywhere.
    pub(crate) fn forget_if_gone(&self, parent: &Arc<Parent>) {
        let mut table = locked(&self.0);
        let gone = parent.with(|stays| stays.is_gone().then(|| stays.end()));
        let parent = gone.is_some().then(|| table.parents.remove(&parent.id));
        drop(table);
        drop((gone, parent));
    }

    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *locked(&self.0));
        drop(all);
    }
}

/// A claim of core.
#[derive(Debug)]
pub(crate) struct Parent {
    pub(crate) id: ClaimId,
    stays: Mutex<Stays>,
}

/// What a parent has in the two stores.
#[derive(Debug)]
pub(crate) struct Stays {
    old: Option<Stay>,
    new: Option<Stay>,
    /// What was left, or may have been, and was not confirmed as withdrawn.
    pub(crate) former: Vec<Former>,
    /// The token of the grant that core was told.
    pub(crate) told: Option<FencingToken>,
    /// How often it was released. What was asked for before that is not gone on with.
    pub(crate) epoch: u64,
    /// Core asks for what it has within this time: later it has forgotten it.
    remembered_until: Moment,
}

impl Parent {
    fn new(id: ClaimId) -> Parent {
        let remembered_until = Moment::from_nanos(0);
        let stays = Stays { old: None, new: None, former: Vec::new(), told: None, epoch: 0, remembered_until };
        Parent { id, stays: Mutex::new(stays) }
    }

    /// Works on its stays. What `work` takes out of them is dropped by the caller: the mutex is free again by then.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Stays) -> T) -> T {
        work(&mut locked(&self.stays))
    }

    /// The stay in that store, a new one if there is none; `None` if the parent was released since `epoch`. It is asked for from now on.
    pub(crate) fn stand(
        self: &Arc<Parent>,
        (side, store): (Side, &dyn Backend),
        claim: &Claim,
        floor: Option<FencingToken>,
        (epoch, upper): (u64, &Notifier),
    ) -> Option<Asked> {
        let missing = self.with(|stays| stays.epoch == epoch && stays.on(side).is_none());
        // It listens before its request is sent.
        let mut fresh = missing.then(|| Stay::new(self, (side, store), claim, upper));
        let asked = self.with(|stays| {
            let standing = Some(stays).filter(|stays| stays.epoch == epoch)?.on(side);
            if standing.is_none() {
                *standing = fresh.take().or_else(|| Some(Stay::new(self, (side, store), claim, upper)));
            }
            standing.as_mut().map(|stay| stay.asked(claim, floor))
        });
        drop(fresh);
        asked
    }
}

impl Stays {
    pub(crate) fn on(&mut self, side: Side) -> &mut Option<Stay> {
        match side {
            Side::Old => &mut self.old,
            Side::New => &mut self.new,
        }
    }

    /// The stay there, if it still is the one with this id.
    pub(crate) fn current(&mut self, side: Side, id: ClaimId) -> Option<&mut Stay> {
        self.on(side).as_mut().filter(|stay| stay.claim.id == id)
    }

    /// Both, if it stands in both.
    pub(crate) fn both(&self) -> Option<(&Stay, &Stay)> {
        self.old.as_ref().zip(self.new.as_ref())
    }

    /// The earlier end of those that it has.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.standing().map(|stay| stay.until).min()
    }

    /// The shorter lease of those that it has.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.standing().map(|stay| stay.ttl).min()
    }

    /// Why one of them is gone.
    pub(crate) fn lost(&self) -> Option<Loss> {
        self.standing().find_map(|stay| stay.lost)
    }

    fn standing(&self) -> impl Iterator<Item = &Stay> {
        self.old.iter().chain(&self.new)
    }

    /// Core was told of a grant, and may still believe it.
    pub(crate) fn holds(&self, now: Moment) -> bool {
        let good = |(old, new): (&Stay, &Stay)| old.until.min(new.until) > now;
        self.told.is_some() && self.both().is_some_and(good)
    }

    /// Its stay there ends. What it may have left is to be withdrawn.
    pub(crate) fn leave(&mut self, side: Side, now: Moment) -> Option<Subscription> {
        let stay = self.on(side).take()?;
        if stay.traces {
            let give_up_at = now + stay.claim.ttl;
            self.former.push(Former { side, claim: stay.claim, place: stay.place, give_up_at });
        }
        stay.listens
    }

    /// Core has asked for it.
    pub(crate) fn touched(&mut self, now: Moment, rest: Duration) {
        self.remembered_until = self.remembered_until.max(now + rest * 4 + Duration::from_secs(1));
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.former.is_empty() && self.standing().all(|stay| !stay.traces)
    }

    /// Nothing is gone on with.
    fn end(&mut self) -> [Option<Stay>; 2] {
        self.epoch += 1;
        self.told = None;
        [self.old.take(), self.new.take()]
    }

    /// All that it may have is to be withdrawn.
    pub(crate) fn release(&mut self, now: Moment) -> [Option<Subscription>; 2] {
        let left = [Side::New, Side::Old].map(|side| self.leave(side, now));
        self.end();
        left
    }
}

/// A claim of ours in one of the two stores.
#[derive(Debug)]
pub(crate) struct Stay {
    pub(crate) claim: Arc<Claim>,
    pub(crate) place: Option<Place>,
    pub(crate) grant: Option<Held>,
    /// Until when it surely stands there, and by which TTL.
    pub(crate) until: Moment,
    pub(crate) ttl: Duration,
    /// The store has said that it is gone.
    pub(crate) lost: Option<Loss>,
    /// Something of it may be there.
    traces: bool,
    /// The latest request has no answer.
    unanswered: bool,
    /// The store has notified of it since the latest answer.
    notified: bool,
    /// An earlier one had none, and may arrive late.
    doubt: bool,
    requests: u64,
    listens: Option<Subscription>,
}

/// The tokens of a grant in one store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) token: FencingToken,
    pub(crate) turns: u32,
}

impl Held {
    /// The first number that is not its own.
    pub(crate) fn end(self) -> u64 {
        self.token.get() + u64::from(self.turns)
    }
}

/// A request for a stay that is about to be sent.
pub(crate) struct Asked {
    pub(crate) claim: Claim,
    /// Which request of its stay it is.
    request: u64,
    /// Whether something may have been there before it.
    traces: bool,
}

/// What was left in a store and not confirmed as withdrawn.
#[derive(Clone, Debug)]
pub(crate) struct Former {
    pub(crate) side: Side,
    pub(crate) claim: Arc<Claim>,
    pub(crate) place: Option<Place>,
    /// By then it has ended by itself.
    pub(crate) give_up_at: Moment,
}

impl Stay {
    fn new(parent: &Arc<Parent>, (side, store): (Side, &dyn Backend), claim: &Claim, upper: &Notifier) -> Stay {
        let mut claim = claim.clone();
        claim.id = ClaimId::fresh();
        let (id, parent, upper) = (claim.id, Arc::downgrade(parent), upper.clone());
        let heard = move |notification| heard(&parent, (side, id), notification, &upper);
        let listens = store.notifier().map(|notifier| notifier.subscribe(id, heard));
        let (until, ttl) = (Moment::from_nanos(0), claim.ttl);
        let claim = Arc::new(claim);
        let (place, grant, lost) = (None, None, None);
        let (traces, unanswered, notified, doubt, requests) = (false, false, false, false, 0);
        Stay { claim, place, grant, until, ttl, lost, traces, unanswered, notified, doubt, requests, listens }
    }

    /// It is asked for now, with the mode, the policy and the label that its parent has now. A floor stays.
    fn asked(&mut self, claim: &Claim, floor: Option<FencingToken>) -> Asked {
        let traces = std::mem::replace(&mut self.traces, true);
        self.doubt |= std::mem::replace(&mut self.unanswered, true);
        self.requests += 1;
        self.notified = false;
        let mut asked = claim.clone();
        (asked.id, asked.floor) = (self.claim.id, floor.max(self.claim.floor));
        self.claim = Arc::new(asked.clone());
        Asked { claim: asked, request: self.requests, traces }
    }

    /// It was surely not executed: only what was there before may be there.
    pub(crate) fn not_executed(&mut self, asked: &Asked) {
        if self.requests == asked.request {
            (self.traces, self.unanswered) = (asked.traces, false);
        }
    }

    /// A try was refused: nothing is there, unless an earlier request arrives late.
    pub(crate) fn refused(&mut self) {
        (self.traces, self.unanswered) = (self.doubt, false);
    }

    /// It is granted, or may be by now.
    pub(crate) fn may_hold(&self) -> bool {
        self.grant.is_some() || self.unanswered || self.notified
    }

    pub(crate) fn waits(&mut self, place: &Place) {
        (self.grant, self.place) = (None, Some(place.clone()));
        (self.traces, self.unanswered) = (true, false);
    }

    pub(crate) fn granted(&mut self, grant: &Grant, sent: Moment) {
        (self.traces, self.unanswered) = (true, false);
        (self.grant, self.place) = (Some(Held { token: grant.token, turns: grant.turns }), Some(grant.place.clone()));
        self.extended(grant.validity, sent);
    }

    /// An answer never makes it shorter.
    pub(crate) fn extended(&mut self, validity: Validity, sent: Moment) {
        (self.until, self.ttl) = (self.until.max(validity.until(sent)), validity.ttl());
    }

    /// What to ask its store to renew: with the mode and the label that the parent has now.
    pub(crate) fn lease(&self, now: &Claim) -> Option<LeaseRef> {
        let place = self.place.clone()?;
        let mut claim = self.claim.clone();
        if claim.mode != now.mode || claim.label != now.label {
            let changed = Arc::make_mut(&mut claim);
            (changed.mode, changed.label) = (now.mode, now.label.clone());
        }
        Some(LeaseRef::new(claim, place, self.grant.map(|held| held.token)))
    }
}

/// A store has said something of a stay. A grant of one store is no grant of the bridge: the parent is claimed again.
fn heard(parent: &Weak<Parent>, (side, id): (Side, ClaimId), notification: Notification, upper: &Notifier) {
    let Some(parent) = parent.upgrade() else { return };
    match notification {
        Notification::Lost(loss) => {
            let mine = parent.with(|stays| stays.current(side, id).map(|stay| stay.lost = Some(loss)));
            if mine.is_some() {
                upper.lost(parent.id, loss);
            }
        }
        Notification::Shortened(validity) => {
            // The validity names its instant, so this one does not count.
            let until = validity.until(Moment::from_nanos(u64::MAX));
            let mine = parent.with(|stays| stays.current(side, id).map(|stay| stay.until = stay.until.min(until)));
            if mine.is_some() {
                upper.shortened(parent.id, validity);
            }
        }
        _ => {
            parent.with(|stays| stays.current(side, id).map(|stay| stay.notified = true));
            upper.claim_again(parent.id);
        }
    }
}
