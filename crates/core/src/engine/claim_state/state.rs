//! The knowledge about one claim at one instant, and its changes by grants, renewals and losses.
//!
//! Answers are compared by the instants at which their requests were *sent*. The comparison is
//! correct in whatever order the answers arrived.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::Bounds;
use crate::backend::claim::{Claim, Place};
use crate::backend::clock::Moment;
use crate::backend::error::Error;
use crate::backend::grant::{Grant, Validity};
use crate::backend::loss::Loss;
use crate::backend::token::FencingToken;

#[derive(Default)]
pub(super) struct State {
    /// The claim as it is now, if its holder has changed it since: shared instead of exclusive, another label.
    pub(super) now: Option<Arc<Claim>>,
    pub(super) place: Option<Place>,
    pub(super) grant: Option<Granted>,
    /// The grant was not taken in time and is given back. Another claim replaces this one.
    pub(super) given_back: bool,
    /// A guard was made of the grant: since then an end of validity is a loss.
    pub(super) taken: bool,
    /// The end of `max_hold`, if there is one.
    pub(super) max_until: Option<Moment>,
    /// The moment until which the task of a local turn must take it; `None` once it has.
    pub(super) untaken_until: Option<Moment>,
    pub(super) loss: Option<Loss>,
    /// The work under the hold has ended, and the store is asked to complete it. From then on only
    /// its answer ends the hold: the completion ends it in the store, and a renewal that then finds
    /// nothing is no loss.
    pub(super) is_completing: bool,
    /// The loss was reported to `tracing`.
    pub(super) told: bool,
    /// The error of the latest failed renewal, unless one has succeeded since.
    pub(super) unrenewed: Option<Arc<Error>>,
    /// The number of guards of the current turn.
    pub(super) guards: usize,
    /// The token of the latest turn that its guards gave back while it was good.
    pub(super) released: Option<FencingToken>,
    /// The moment when the store last answered that nothing is left. A grant that was asked for
    /// before it may be the one that is gone.
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
    /// The moment when the latest request that confirmed it was sent.
    pub(super) asked: Moment,
    /// The moment when this client first heard of it.
    pub(super) heard: Moment,
}

/// The least time after the deadline for which a grant is kept for a caller that has not taken it.
/// It is kept for a sixth of the lease if that is longer.
const LEAST_KEPT: Duration = Duration::from_millis(40);

impl Granted {
    /// Processes an answer that confirms the grant: the grant is valid at least as long as the
    /// answer says. The answer to the latest request sets the length of the lease.
    pub(super) fn confirmed(&mut self, validity: &Validity, stamp: Moment) {
        let asked = validity.start(stamp);
        if self.asked <= asked {
            self.asked = asked;
            self.ttl = validity.ttl();
        }
        self.until = self.until.max(validity.until(stamp));
    }

    /// The moment until which the grant is kept for a caller that could have taken it from `since`
    /// on and does not: for at most a lease or `max_hold`, and not for long after the caller's
    /// deadline.
    pub(super) fn kept_until(&self, since: Moment, bounds: &Bounds) -> Moment {
        let longest = bounds.max_hold.map_or(self.ttl, |max| max.min(self.ttl));
        let at = since + longest;
        bounds.deadline.map_or(at, |deadline| {
            at.min(deadline.max(since) + LEAST_KEPT.max(self.ttl / 6))
        })
    }
}

impl State {
    /// The reason why the turn with this token ended; `None` if it has not. A turn that was given
    /// back has not been lost, also if the claim is lost later.
    pub(super) fn loss_of(&self, token: FencingToken) -> Option<Loss> {
        if self.released >= Some(token) {
            Some(Loss::Released)
        } else {
            self.loss
        }
    }

    /// Returns the loss if it has not been reported yet, and marks it as reported.
    pub(super) fn untold_loss(&mut self) -> Option<Loss> {
        let loss = self.loss?;
        (!std::mem::replace(&mut self.told, true)).then_some(loss)
    }

    /// Adds a guard to the turn with this token if the turn is valid and has a guard. Returns
    /// whether it did.
    pub(super) fn share(&mut self, token: FencingToken) -> bool {
        let good = self.guards > 0 && self.loss_of(token).is_none();
        self.guards += usize::from(good);
        good
    }

    /// Removes one guard of the turn with this token. With the last guard the turn ends; then it
    /// returns the reason.
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

    /// Ends the turn with this token, because its work has ended and is completed now. Returns the
    /// reason if it had ended before: then nothing may be completed.
    pub(super) fn begin_completion(&mut self, token: FencingToken) -> Option<Loss> {
        match self.leave(token) {
            Some(Loss::Released) => {
                self.is_completing = true;
                None
            }
            ended => ended,
        }
    }

    fn ended_by(&self, now: Moment) -> Option<Loss> {
        self.end().and_then(|end| end.by(now))
    }

    /// The end of the hold; `None` if no guard was made of the grant.
    pub(super) fn end(&self) -> Option<End> {
        let is_held = self.taken && !self.is_completing;
        let lease = self.grant.as_ref().filter(|_| is_held)?.until;
        Some(End {
            lease,
            max: self.max_until,
            untaken: self.untaken_until,
        })
    }

    /// The moment at which the grant is given back if it has not been taken by then.
    fn given_back_at(&self, bounds: &Bounds) -> Option<Moment> {
        let mine = self.grant.as_ref().filter(|_| !self.taken)?;
        Some(mine.kept_until(mine.heard, bounds))
    }

    /// Gives back a grant that was not taken in time. Returns whether it is given back now, or was
    /// before.
    pub(super) fn give_back(&mut self, now: Moment, bounds: &Bounds) -> bool {
        self.given_back |= self.given_back_at(bounds).is_some_and(|at| at <= now);
        self.given_back
    }

    /// Returns the facts that matter for its renewal.
    pub(super) fn seen(&self, claim: &Claim, bounds: &Bounds) -> RenewalFacts {
        let asked = claim.ttl;
        // The lease of a hold that is being completed may run out, and is renewed all the same.
        let is_held = |_: &&Granted| !self.is_completing;
        let lease = self.grant.as_ref().filter(is_held).map(|g| g.until);
        // A waiter has less to lose, so it is renewed only after nearly half of the lease; more
        // than half is then left when the grant comes.
        let (ttl, renew_every) = self
            .grant
            .as_ref()
            .map_or((asked, asked * 9 / 20), |g| (g.ttl, g.ttl / 3));
        RenewalFacts {
            ttl,
            renew_every,
            lease,
            end: self.end(),
            given_back_at: self.given_back_at(bounds),
            loss: self.loss,
        }
    }

    pub(super) fn granted(&mut self, now: Moment, grant: Grant, stamp: Moment) {
        if self.loss.is_some() || self.given_back || self.is_completing {
            return;
        }
        if !self.taken && self.gone_at.is_some_and(|gone| stamp < gone) {
            // It was asked for before the store answered that nothing is left, so it may be gone:
            // the claim is sent again.
            (self.notified, self.must_notify) = (true, true);
            return;
        }
        let known = self.grant.as_ref().map(|g| g.token.cmp(&grant.token));
        match (&mut self.grant, known) {
            (Some(mine), Some(Ordering::Equal)) => {
                mine.confirmed(&grant.validity, stamp);
                self.unrenewed = None;
            }
            (Some(_), _) if self.taken => self.loss = Some(Loss::Gone),
            (Some(_), Some(Ordering::Greater)) => return, // a late push of an older grant
            _ => {
                let Grant {
                    place,
                    token,
                    turns,
                    validity,
                } = grant;
                self.place = Some(place);
                self.grant = Some(Granted {
                    token,
                    turns,
                    ttl: validity.ttl(),
                    until: validity.until(stamp),
                    asked: validity.start(stamp),
                    heard: now,
                });
            }
        }
        self.must_notify = true;
    }

    /// Shortens the lease, because the server has changed its terms.
    pub(super) fn shorten(&mut self, validity: &Validity, now: Moment) {
        let until = validity.until(now);
        if let Some(mine) = &mut self.grant {
            mine.ttl = mine.ttl.min(validity.ttl());
            self.must_notify |= until < mine.until;
            mine.until = mine.until.min(until);
        }
    }
}

/// The times at which a hold ends if nothing renews it: the end of its lease, of its `max_hold`,
/// and of the time in which its task must take the turn. The first one counts.
#[derive(Clone, Copy)]
pub(super) struct End {
    lease: Moment,
    max: Option<Moment>,
    untaken: Option<Moment>,
}

impl End {
    pub(super) fn at(&self) -> Moment {
        self.max
            .into_iter()
            .chain(self.untaken)
            .fold(self.lease, Moment::min)
    }

    fn by(&self, now: Moment) -> Option<Loss> {
        let at = self.at();
        if now < at {
            None
        } else if self.untaken == Some(at) {
            Some(Loss::Released)
        } else if self.max == Some(at) {
            Some(Loss::MaxHold)
        } else {
            Some(Loss::Expired)
        }
    }
}

/// The facts of a claim's state at one instant that matter for its renewal.
#[derive(Clone, Copy)]
pub(crate) struct RenewalFacts {
    /// The TTL that was granted, or the one asked for.
    pub(crate) ttl: Duration,
    /// The time between renewals.
    pub(crate) renew_every: Duration,
    /// The end of a lease that was granted.
    lease: Option<Moment>,
    end: Option<End>,
    /// The moment at which the grant is given back if it is not taken.
    given_back_at: Option<Moment>,
    loss: Option<Loss>,
}

impl RenewalFacts {
    /// The moment when the hold ends if nothing renews it; `None` while no guard has it.
    pub(crate) fn ends_at(&self) -> Option<Moment> {
        self.end.map(|end| end.at())
    }

    /// The moment at which a grant that was not taken is given back.
    pub(crate) fn given_back_at(&self) -> Option<Moment> {
        self.given_back_at
    }

    pub(crate) fn loss_by(&self, now: Moment) -> Option<Loss> {
        self.loss.or_else(|| self.end.and_then(|end| end.by(now)))
    }

    /// The time for which the lease itself is surely valid, regardless of `max_hold`.
    pub(crate) fn lease_left(&self, now: Moment) -> Duration {
        self.lease.map_or(Duration::ZERO, |until| until.since(now))
    }

    /// The delay until the next renewal: at most until half of the lease is left. A lease whose
    /// answer came late may have less left than that. It is renewed after an eighth of the lease,
    /// or after half of the rest if that is shorter.
    pub(crate) fn renew_in(&self, now: Moment) -> Duration {
        self.lease.map_or(self.renew_every, |until| {
            let left = until.since(now);
            let spare = left.saturating_sub(self.ttl / 2).max(self.ttl / 8);
            self.renew_every.min(spare).min(left / 2)
        })
    }

    /// The moment when a third of the lease is left. A place in the queue that is renewed at
    /// `asked` has at least eleven twentieths of its lease left then, because it is renewed a
    /// little before half of the lease is over.
    pub(crate) fn third_left_at(&self, asked: Moment) -> Moment {
        self.lease
            .unwrap_or_else(|| asked + self.ttl * 11 / 20)
            .before(self.ttl / 3)
    }
}
