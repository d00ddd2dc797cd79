//! `claim`: old, then new, until both know the hold by one token and neither has ended.
//!
//! Each step came out of a counterexample of a model:
//!
//! 1. Old is always first: with two orders, one client would hold old and wait in new, and another
//!    the reverse.
//! 2. A client that does not hold old has nothing in new. Otherwise it could wait in old behind a
//!    client that waits for it in new, for ever.
//! 3. A part that is left is withdrawn, and its id is never used again: a late withdrawal would end
//!    a later part with that id.
//! 4. Both stores know the hold by the greater token before the guard exists. Otherwise the next
//!    client that holds in only one of them would get a smaller token.
//! 5. A hold that has ended in a store meanwhile is claimed there again before the guard exists.
//! 6. If new does not answer, old is released before the error is returned, and new is asked
//!    something cheap before old is claimed again: nobody is kept out of old for nothing.

use std::sync::Arc;

use leasehold_core::backend::Raises;
use leasehold_core::backend::{Claim, Claimed, Grant, Mode, Place, RAISED_AHEAD, Validity};
use leasehold_core::{Error, ErrorKind, FencingToken, Loss, Result};

use crate::Bridge;
use crate::children::{Parent, Parts};
use crate::claim_in_store::{ClaimInStore, Held};
use crate::pair::Side;

/// The number of requests that one claim may take until both stores agree. Two are usual, and three
/// if new has greater tokens.
const ROUNDS: usize = 16;

/// One claim of core, on its way through both stores.
pub(crate) struct Attempt<'a> {
    bridge: &'a Bridge,
    parent: &'a Arc<Parent>,
    claim: &'a Claim,
    epoch: u64,
    /// The claim had nothing in any store when this attempt began.
    is_new: bool,
}

/// The next step of an attempt.
enum Next {
    /// Claim in this store, with this floor.
    Ask(Side, Option<FencingToken>),
    /// The place in this store has a smaller number than this token: raise the store, and take a
    /// new place there.
    Raise(Side, FencingToken),
    /// Both stores know the hold.
    Done(Grant),
}

/// The answer of a store.
enum Answer {
    Claimed(Claimed),
    /// The answer is about a part that has been left meanwhile.
    Outdated,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(
        bridge: &'a Bridge,
        parent: &'a Arc<Parent>,
        epoch: u64,
        claim: &'a Claim,
    ) -> Attempt<'a> {
        let is_new = parent.with(|parts| parts.is_gone());
        Attempt {
            bridge,
            parent,
            claim,
            epoch,
            is_new,
        }
    }

    pub(crate) async fn run(&self) -> Result<Claimed> {
        self.prepare().await?;
        let mut next = Next::Ask(Side::Old, None);
        let mut in_new = false;
        let mut answered = false;
        for left in (0..ROUNDS).rev() {
            if self.leave_lost() {
                (in_new, next) = (false, Next::Ask(Side::Old, None));
            }
            match next {
                Next::Done(grant) => return Ok(Claimed::Granted(grant)),
                Next::Raise(side, token) => {
                    self.raise(side, token).await?;
                    in_new = false;
                    next = Next::Ask(side, None);
                    continue;
                }
                Next::Ask(side, floor) => match self.ask(side, floor).await {
                    Ok(Answer::Claimed(Claimed::Granted(_))) => {
                        answered = true;
                        in_new |= side == Side::New;
                    }
                    Ok(Answer::Claimed(refused)) => return self.refused(side, refused).await,
                    Ok(Answer::Outdated) => {
                        in_new = false;
                        next = Next::Ask(Side::Old, None);
                        continue;
                    }
                    Err(e) => return Err(self.retreat(side, e, answered).await),
                },
            }
            next = self.next(in_new, left < ROUNDS / 2);
        }
        let slow = Error::new(
            ErrorKind::Unavailable,
            "the two stores did not agree on a token in time",
        );
        Err(self.give_up(Side::New, slow).await)
    }

    /// Withdraws the parts that were left before, and makes sure that new answers, before old is
    /// claimed.
    async fn prepare(&self) -> Result<()> {
        self.leave_lost();
        let holds = self.holds();
        for side in [Side::New, Side::Old] {
            if let (Err(e), false) = (self.bridge.withdraw(self.parent, side).await, holds) {
                return Err(self.retreat(side, e, false).await);
            }
        }
        if self.bridge.new_failed() && !holds {
            let asked = self
                .bridge
                .pair
                .on(Side::New)
                .inspect(&self.claim.name)
                .await;
            if let Err(e) = asked {
                return Err(self.retreat(Side::New, e, false).await);
            }
        }
        Ok(())
    }

    /// Leaves the parts that a store has reported as lost, and also the part in new if the one in
    /// old is lost. Returns whether there were any.
    fn leave_lost(&self) -> bool {
        let is_lost = |side| {
            self.parent.with(|parts| {
                parts
                    .on(side)
                    .as_ref()
                    .is_some_and(|part| part.lost.is_some())
            })
        };
        let old = is_lost(Side::Old);
        let new = is_lost(Side::New);
        if old || new {
            self.leave(if old {
                &[Side::New, Side::Old]
            } else {
                &[Side::New]
            });
        }
        old || new
    }

    /// Sends one request. The part is recorded before the request is sent.
    async fn ask(&self, side: Side, floor: Option<FencingToken>) -> Result<Answer> {
        let Bridge {
            pair,
            notifier,
            clock,
            ..
        } = self.bridge;
        let store = pair.on(side);
        let asked = self
            .parent
            .stand((side, store), self.claim, floor, (self.epoch, notifier))
            .ok_or_else(withdrawn)?;
        let id = asked.claim.id;
        let sent = clock.now();
        let answer = {
            let unanswered = (side == Side::New).then(|| self.bridge.asks_new());
            let answer = store.claim(&asked.claim).await;
            if let Some(unanswered) = unanswered {
                unanswered.answered(answer.as_ref().err());
            }
            answer
        };
        let mut lost = false;
        let current = self.parent.with(|parts| {
            let told = parts.told;
            let Some(part) = parts.current(side, id) else {
                return false;
            };
            match &answer {
                Ok(Claimed::Granted(grant)) if part.outgrew(grant) => part.unanswered = false,
                Ok(Claimed::Granted(grant)) => {
                    lost =
                        told.is_some() && part.grant.is_some_and(|held| held.token != grant.token);
                    part.granted_to(&asked, grant, sent);
                }
                Ok(Claimed::Waiting(waiting)) => {
                    if !part.waits(&asked, &waiting.place) {
                        return false;
                    }
                    // The hold was evicted there, and this request has taken a new place.
                    lost = told.is_some();
                }
                Ok(Claimed::Busy(_) | Claimed::Done(_)) => part.refused(),
                Err(e) if !may_have_been_executed(e.kind()) => part.not_executed(&asked),
                Err(_) => {}
            }
            true
        });
        if lost {
            self.lose();
        }
        if !current {
            // The part was left while the request was on its way. A request that arrived after the
            // withdrawal is withdrawn once more.
            let left = self.parent.with(|parts| parts.current(side, id).is_none());
            if left && answer.is_ok() {
                let _ = store.release(&asked.claim, None).await;
            }
            return Ok(Answer::Outdated);
        }
        answer.map(Answer::Claimed)
    }

    /// Handles the answer that another client is before this one in a store.
    async fn refused(&self, side: Side, refused: Claimed) -> Result<Claimed> {
        match (side, &refused) {
            // Old remains held, and is renewed.
            (Side::New, Claimed::Waiting(_)) => return Ok(refused),
            (Side::Old, Claimed::Waiting(_)) => {
                self.leave(&[Side::New]);
                // If the withdrawal is not answered, the lease ends, since it is not renewed any
                // more.
                let _ = self.bridge.withdraw(self.parent, Side::New).await;
                return Ok(refused);
            }
            _ => self.leave(&[Side::New, Side::Old]),
        }
        for side in [Side::New, Side::Old] {
            if let Err(e) = self.bridge.withdraw(self.parent, side).await {
                return Err(self.honest(side.says(e)));
            }
        }
        Ok(refused)
    }

    /// Raises the store above `token`, and leaves the place there, so that the next one has a
    /// greater number. If that is the place in old, the one in new is left as well.
    async fn raise(&self, side: Side, token: FencingToken) -> Result<()> {
        let limit = self.bridge.pair.limit(side);
        let part = |parts: &mut Parts| parts.on(side).as_ref().map(|part| part.claim.id);
        let before = self.parent.with(part);
        let raised = if token >= limit {
            let why = format!(
                "its tokens cannot be raised above {limit}, and the other store is there already"
            );
            Err(Error::new(ErrorKind::Unsupported, why))
        } else {
            let beyond = FencingToken::new(token.get().saturating_add(RAISED_AHEAD)).min(limit);
            async { self.bridge.pair.floor(side)?.raise(beyond).await }.await
        };
        if let Err(e) = raised {
            return Err(self.give_up(side, e).await);
        }
        if self.parent.with(part) != before {
            // Another attempt of this claim has taken a new place there already.
            return Ok(());
        }
        let anew: &[Side] = if side == Side::Old {
            &[Side::New, Side::Old]
        } else {
            &[Side::New]
        };
        for side in anew {
            self.leave(&[*side]);
            if let Err(e) = self.bridge.withdraw(self.parent, *side).await {
                return Err(self.retreat(*side, e, true).await);
            }
        }
        Ok(())
    }

    /// Decides the next step. `in_new`: this attempt was granted the lock in new. `long`: the
    /// stores have not agreed for many rounds.
    fn next(&self, in_new: bool, long: bool) -> Next {
        let now = self.bridge.clock.now();
        self.parent.with(|parts| {
            let held = |parts: &mut Parts, side| {
                let part = parts.on(side).as_ref().filter(|part| part.lost.is_none())?;
                Some((part.grant?, part.until, part.ttl))
            };
            let Some((old, old_until, old_ttl)) = held(parts, Side::Old) else {
                return Next::Ask(Side::Old, None);
            };
            let floor = Some(old.token);
            let Some((new, new_until, new_ttl)) = held(parts, Side::New).filter(|_| in_new) else {
                return Next::Ask(Side::New, floor);
            };
            let (token, turns) = match self.agree(old, new, long || parts.told.is_some()) {
                Ok(agreed) => agreed,
                Err(next) => return next,
            };
            if old_until <= now {
                return Next::Ask(Side::Old, None);
            }
            if new_until <= now {
                return Next::Ask(Side::New, floor);
            }
            parts.told = Some(token);
            let validity = Validity::ending(old_until.min(new_until), old_ttl.min(new_ttl));
            let place = Place::in_several_stores(self.parent.id);
            Next::Done(Grant::new(place, token, validity).turns(turns.min(self.claim.turns())))
        })
    }

    /// Returns the token by which both stores know the hold, and the number of its turns; otherwise
    /// the step that is still needed.
    fn agree(&self, old: Held, new: Held, long: bool) -> Result<(FencingToken, u32), Next> {
        // If several may hold, others may be granted in between, in one store and in the other,
        // again and again. The smaller number is also above all earlier holds that exclude this
        // one. Its only drawback is that an eviction by it ends the hold in one store and not in
        // both.
        let numbers_places = |side| matches!(self.bridge.pair.raises(side), Raises::Places(_));
        let any = long
            && self.claim.mode != Mode::Exclusive
            && ![Side::Old, Side::New].into_iter().any(numbers_places);
        let token = if any {
            old.token.min(new.token)
        } else {
            old.token.max(new.token)
        };
        for (side, held) in [(Side::New, new), (Side::Old, old)] {
            match self.bridge.pair.raises(side) {
                Raises::Holds(_) if held.token == token || any => {}
                Raises::Holds(_) => return Err(Next::Ask(side, Some(token))),
                Raises::Places(_) if held.token <= token && token.get() < held.end() => {}
                Raises::Places(_) => return Err(Next::Raise(side, token)),
            }
        }
        let turns = old.end().min(new.end()).saturating_sub(token.get());
        Ok((token, u32::try_from(turns).unwrap_or(u32::MAX)))
    }

    /// Handles the failure of a store: nothing remains held in the other store, unless core has a
    /// grant that is still good. Returns the error for core.
    async fn retreat(&self, side: Side, e: Error, answered: bool) -> Error {
        if self.holds() {
            // The other store has executed the claim: a hold that was made shared there counts as
            // shared.
            return if answered {
                ambiguous(side.says(e))
            } else {
                side.says(e)
            };
        }
        let may_hold_old = self.parent.with(|parts| {
            parts
                .on(Side::Old)
                .as_ref()
                .is_some_and(ClaimInStore::may_hold)
        });
        match side {
            Side::New if may_hold_old => self.leave(&[Side::New, Side::Old]),
            _ => self.leave(&[Side::New]),
        }
        // If this fails, the next claim or the release withdraws it.
        let _ = self.bridge.withdraw(self.parent, side.other()).await;
        self.honest(side.says(e))
    }

    /// Handles a claim that cannot be granted in both stores although both answer: it is released
    /// in both. Returns the error for core.
    async fn give_up(&self, side: Side, e: Error) -> Error {
        if self.holds() {
            return ambiguous(side.says(e));
        }
        self.leave(&[Side::New, Side::Old]);
        for side in [Side::New, Side::Old] {
            // If this fails, the next claim or the release withdraws it.
            let _ = self.bridge.withdraw(self.parent, side).await;
        }
        self.honest(side.says(e))
    }

    /// Ends the parts in these stores. If core was told of a grant, that is reported as lost before
    /// anything is withdrawn.
    fn leave(&self, sides: &[Side]) {
        let now = self.bridge.clock.now();
        let standing = self
            .parent
            .with(|parts| sides.iter().any(|side| parts.on(*side).is_some()));
        if standing {
            self.lose();
        }
        let left: Vec<_> = self
            .parent
            .with(|parts| sides.iter().map(|side| parts.leave(*side, now)).collect());
        drop(left);
    }

    fn lose(&self) {
        if self.parent.with(|parts| parts.told.take()).is_some() {
            self.bridge.notifier.lost(self.parent.id, Loss::Gone);
        }
    }

    fn holds(&self) -> bool {
        let now = self.bridge.clock.now();
        self.parent.with(|parts| parts.holds(now))
    }

    /// Makes the error of a new claim `Ambiguous` if something is left in a store: after an error
    /// that says that nothing was executed, core would not withdraw it.
    fn honest(&self, e: Error) -> Error {
        let left = !self.parent.with(|parts| parts.is_gone());
        if self.is_new && left { ambiguous(e) } else { e }
    }
}

fn may_have_been_executed(kind: ErrorKind) -> bool {
    use ErrorKind::{Closed, Denied, NoRuntime, OtherStore, Unavailable, Unsupported};
    // A store may notice a mistake in a claim only when the claim is in the queue.
    !matches!(
        kind,
        Unavailable | OtherStore | Denied | Unsupported | Closed | NoRuntime
    )
}

fn ambiguous(e: Error) -> Error {
    if may_have_been_executed(e.kind()) {
        e
    } else {
        e.with_kind(ErrorKind::Ambiguous)
    }
}

fn withdrawn() -> Error {
    Error::new(
        ErrorKind::Ambiguous,
        "the claim was released while it was asked for",
    )
}
