//! What is known of one claim at one instant, and what news of it change.
//!
//! All times here are instants at which a request was *sent*. A comparison of two of them is
//! correct whatever the order was in which their answers arrived.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::seam::claim::{Claim, Place};
use crate::seam::clock::Moment;
use crate::seam::grant::Grant;
use crate::seam::loss::Loss;
use crate::seam::token::FencingToken;

#[derive(Default)]
pub(super) struct State {
    /// The claim as it is now, if its holder has changed it since: shared instead of exclusive, another label.
    pub(super) now: Option<Arc<Claim>>,
    pub(super) place: Option<Place>,
    pub(super) grant: Option<Granted>,
    /// A guard was made of the grant: from now on an end of validity is a loss.
    pub(super) taken: bool,
    /// The end of `max_hold`, if there is one.
    pub(super) max_until: Option<Moment>,
    pub(super) loss: Option<Loss>,
    /// How many guards the turn of now has.
    pub(super) guards: usize,
    /// The token of the latest turn that its guards gave back while it was good.
    pub(super) released: Option<FencingToken>,
    /// When the store last said that nothing is left: a grant that was asked for before that may be the one that is gone.
    pub(super) gone_at: Option<Moment>,
    pub(super) notified: bool,
    /// Listeners are to be notified once the mutex is free again: a waker may run foreign code.
    pub(super) must_notify: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) token: FencingToken,
    pub(crate) turns: u32,
    pub(crate) ttl: Duration,
    pub(super) until: Moment,
    /// When the latest request was sent whose answer confirmed it.
    pub(super) asked: Moment,
}

impl Granted {
    /// A request that was sent then was answered: it is good at least until then.
    pub(super) fn confirmed(&mut self, asked: Moment, until: Moment) {
        (self.asked, self.until) = (self.asked.max(asked), self.until.max(until));
    }
}

impl State {
    /// Why the turn with this token ended. A turn that was given back has not been lost, whatever becomes of the claim.
    pub(super) fn loss_of(&self, token: FencingToken) -> Option<Loss> {
        if self.released >= Some(token) { Some(Loss::Released) } else { self.loss }
    }

    /// One more guard for the turn with this token, if it is good and has a guard.
    pub(super) fn share(&mut self, token: FencingToken) -> bool {
        let good = self.guards > 0 && self.loss_of(token).is_none();
        self.guards += usize::from(good);
        good
    }

    /// One guard of the turn with this token goes. With the last of them the turn ends: why.
    pub(super) fn leave(&mut self, token: FencingToken) -> Option<Loss> {
        self.guards = self.guards.saturating_sub(1);
        if self.guards > 0 {
            return None;
        }
        self.must_notify = true;
        if self.loss.is_none() {
            self.released = Some(token);
        }
        self.loss_of(token)
    }

    /// Ends the hold if its time has come. Loss is terminal.
    pub(super) fn expire(&mut self, now: Moment) {
        if self.loss.is_none() {
            self.loss = self.ended_by(now);
            self.must_notify |= self.loss.is_some();
        }
    }

    fn ended_by(&self, now: Moment) -> Option<Loss> {
        self.end().and_then(|end| end.by(now))
    }

    /// When a guard's hold ends.
    pub(super) fn end(&self) -> Option<End> {
        let lease = self.grant.as_ref().filter(|_| self.taken)?.until;
        Some(End { lease, max: self.max_until })
    }

    /// What matters for its renewal. `asked`: the TTL that was asked for.
    pub(super) fn seen(&self, asked: Duration) -> Seen {
        let lease = self.grant.as_ref().map(|g| g.until);
        // A waiter has less to lose: nearly half of the lease, so that more than half of it is left when the grant comes.
        let (ttl, renew_every) = self.grant.as_ref().map_or((asked, asked * 9 / 20), |g| (g.ttl, g.ttl / 3));
        Seen { ttl, renew_every, lease, end: self.end(), loss: self.loss }
    }

    pub(super) fn granted(&mut self, grant: Grant, stamp: Moment) {
        if self.loss.is_some() {
            return;
        }
        if !self.taken && self.gone_at.is_some_and(|gone| stamp < gone) {
            // It was asked for before the store said that it is gone: claim again and see.
            (self.notified, self.must_notify) = (true, true);
            return;
        }
        let (asked, until) = (grant.validity.start(stamp), grant.validity.until(stamp));
        let known = self.grant.as_ref().map(|g| g.token.cmp(&grant.token));
        match (&mut self.grant, known) {
            (Some(mine), Some(Ordering::Equal)) => mine.confirmed(asked, until),
            (Some(_), _) if self.taken => self.loss = Some(Loss::Gone),
            (Some(_), Some(Ordering::Greater)) => return, // a late push of an older grant
            _ => {
                let Grant { place, token, turns, validity } = grant;
                self.place = Some(place);
                self.grant = Some(Granted { token, turns, ttl: validity.ttl(), until, asked });
            }
        }
        self.must_notify = true;
    }

    /// The server goes by other terms now.
    pub(super) fn shorten(&mut self, until: Moment) {
        if let Some(mine) = &mut self.grant {
            self.must_notify |= until < mine.until;
            mine.until = mine.until.min(until);
        }
    }
}

/// When a hold ends if nothing renews it: its lease, and its `max_hold`.
#[derive(Clone, Copy)]
pub(super) struct End {
    lease: Moment,
    max: Option<Moment>,
}

impl End {
    pub(super) fn at(&self) -> Moment {
        self.max.map_or(self.lease, |max| max.min(self.lease))
    }

    fn by(&self, now: Moment) -> Option<Loss> {
        if self.max.is_some_and(|max| max <= now && max <= self.lease) {
            return Some(Loss::MaxHold);
        }
        (self.lease <= now).then_some(Loss::Expired)
    }
}

/// What of a claim's state matters for its renewal, at one instant.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// The lease: granted, or asked for.
    pub(crate) ttl: Duration,
    /// The time between renewals.
    pub(crate) renew_every: Duration,
    /// The end of a lease that was granted.
    lease: Option<Moment>,
    end: Option<End>,
    loss: Option<Loss>,
}

impl Seen {
    /// When the hold ends if nothing renews it; `None` while it is not a guard's.
    pub(crate) fn ends_at(&self) -> Option<Moment> {
        self.end.map(|end| end.at())
    }

    pub(crate) fn loss_by(&self, now: Moment) -> Option<Loss> {
        self.loss.or_else(|| self.end.and_then(|end| end.by(now)))
    }

    /// For how much longer the lease itself is surely good, whatever `max_hold` says.
    pub(crate) fn lease_left(&self, now: Moment) -> Duration {
        self.lease.map_or(Duration::ZERO, |until| until.since(now))
    }

    /// How long the first renewal may wait: as long as any, or half of what is left of a grant that was slow to come.
    pub(crate) fn renew_in(&self, now: Moment) -> Duration {
        self.lease.map_or(self.renew_every, |until| self.renew_every.min(until.since(now) / 2))
    }

    /// When a third of the lease is left that was asked for at `asked`. A place in the queue is renewed a little before half of its
    /// lease is over, so it has at least the rest.
    pub(crate) fn third_left_at(&self, asked: Moment) -> Moment {
        self.lease.unwrap_or_else(|| asked + self.ttl * 11 / 20).before(self.ttl / 3)
    }
}
