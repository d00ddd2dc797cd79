//! `claim`: old, then new, until both know the hold by one token and neither has ended.
//!
//! Each step came out of a counterexample of a model:
//!
//! 1. Old first, always: with two orders, one client holds old and waits in new, and another the reverse.
//! 2. Who does not hold old has nothing in new. Else it stands in old behind one that waits for it in new, for ever.
//! 3. A stay that is left is withdrawn, and its id never used again: a late withdrawal would end what stands there later.
//! 4. Both stores know the hold by the greater token before the guard exists. Else the next that holds in only one of them gets
//!    a smaller one.
//! 5. Whatever has ended meanwhile is claimed again before the guard exists.
//! 6. If new does not answer, old is given back before the error goes up, and new is asked something cheap before old is
//!    claimed again: nobody is kept out of old for nothing.

use std::sync::Arc;

use leasehold_core::seam::{Claim, Claimed, Grant, Mode, RAISED_AHEAD, Validity};
use leasehold_core::{Error, ErrorKind, FencingToken, Loss, Raises, Result};

use crate::Bridge;
use crate::children::{Parent, Stays};
use crate::pair::Side;
use crate::stay::{Held, Stay};

/// How many requests one claim may take until both stores agree. Two are usual, and three where new has greater tokens.
const ROUNDS: usize = 16;

/// One claim of core, on its way through both stores.
pub(crate) struct Attempt<'a> {
    bridge: &'a Bridge,
    parent: &'a Arc<Parent>,
    claim: &'a Claim,
    epoch: u64,
    /// Nothing of it was in any store when it began.
    is_new: bool,
}

/// What is to be done next.
enum Next {
    /// Claim in this store, with this floor.
    Ask(Side, Option<FencingToken>),
    /// The place in this store has a smaller number than this token: raise the store, and stand there anew.
    Raise(Side, FencingToken),
    /// Both know it.
    Done(Grant),
}

/// What a store answered.
enum Answer {
    Claimed(Claimed),
    /// It was about a stay that has been left meanwhile.
    Outdated,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(bridge: &'a Bridge, parent: &'a Arc<Parent>, epoch: u64, claim: &'a Claim) -> Attempt<'a> {
        let is_new = parent.with(|stays| stays.is_gone());
        Attempt { bridge, parent, claim, epoch, is_new }
    }

    pub(crate) async fn run(&self) -> Result<Claimed> {
        self.prepare().await?;
        let mut next = Next::Ask(Side::Old, None);
        let (mut in_new, mut answered) = (false, false);
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
        let slow = Error::new(ErrorKind::Unavailable, "the two stores did not agree on a token in time");
        Err(self.give_up(Side::New, slow).await)
    }

    /// What was left before is withdrawn, and new can be asked, before old is claimed.
    async fn prepare(&self) -> Result<()> {
        self.leave_lost();
        let holds = self.holds();
        for side in [Side::New, Side::Old] {
            if let (Err(e), false) = (self.bridge.withdraw(self.parent, side).await, holds) {
                return Err(self.retreat(side, e, false).await);
            }
        }
        if self.bridge.new_failed() && !holds {
            let asked = self.bridge.pair.on(Side::New).inspect(&self.claim.name).await;
            if let Err(e) = asked {
                return Err(self.retreat(Side::New, e, false).await);
            }
        }
        Ok(())
    }

    /// What a store has said is gone is left; who does not stand in old has nothing in new.
    fn leave_lost(&self) -> bool {
        let is_lost = |side| self.parent.with(|stays| stays.on(side).as_ref().is_some_and(|stay| stay.lost.is_some()));
        let (old, new) = (is_lost(Side::Old), is_lost(Side::New));
        if old || new {
            self.leave(if old { &[Side::New, Side::Old] } else { &[Side::New] });
        }
        old || new
    }

    /// One request. What it takes is written down before it is sent.
    async fn ask(&self, side: Side, floor: Option<FencingToken>) -> Result<Answer> {
        let Bridge { pair, notifier, clock, .. } = self.bridge;
        let store = pair.on(side);
        let asked =
            self.parent.stand((side, store), self.claim, floor, (self.epoch, notifier)).ok_or_else(withdrawn)?;
        let (id, sent) = (asked.claim.id, clock.now());
        let answer = {
            let unanswered = (side == Side::New).then(|| self.bridge.asks_new());
            let answer = store.claim(&asked.claim).await;
            if let Some(unanswered) = unanswered {
                unanswered.answered(answer.as_ref().err());
            }
            answer
        };
        let mut lost = false;
        let current = self.parent.with(|stays| {
            let told = stays.told;
            let Some(stay) = stays.current(side, id) else { return false };
            match &answer {
                Ok(Claimed::Granted(grant)) if stay.outgrew(grant) => stay.unanswered = false,
                Ok(Claimed::Granted(grant)) => {
                    lost = told.is_some() && stay.grant.is_some_and(|held| held.token != grant.token);
                    stay.granted_to(&asked, grant, sent);
                }
                Ok(Claimed::Waiting(waiting)) => {
                    if !stay.waits(&asked, &waiting.place) {
                        return false;
                    }
                    // It was evicted there, and this request stood anew.
                    lost = told.is_some();
                }
                Ok(Claimed::Busy(_)) => stay.refused(),
                Err(e) if !may_have_been_executed(e.kind()) => stay.not_executed(&asked),
                Err(_) => {}
            }
            true
        });
        if lost {
            self.lose();
        }
        if !current {
            // It was left while this was on its way, and what arrived after its withdrawal is withdrawn once more.
            let left = self.parent.with(|stays| stays.current(side, id).is_none());
            if left && answer.is_ok() {
                let _ = store.release(&asked.claim, None).await;
            }
            return Ok(Answer::Outdated);
        }
        answer.map(Answer::Claimed)
    }

    /// Another client is before it in this store.
    async fn refused(&self, side: Side, refused: Claimed) -> Result<Claimed> {
        match (side, &refused) {
            // Old stays held, and is renewed.
            (Side::New, Claimed::Waiting(_)) => return Ok(refused),
            (Side::Old, Claimed::Waiting(_)) => {
                self.leave(&[Side::New]);
                // If that is not answered, its lease ends: it is not renewed any more.
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

    /// The place in this store, and all that are taken from now on, get greater numbers than `token`.
    async fn raise(&self, side: Side, token: FencingToken) -> Result<()> {
        let limit = self.bridge.pair.limit(side);
        let stay = |stays: &mut Stays| stays.on(side).as_ref().map(|stay| stay.claim.id);
        let before = self.parent.with(stay);
        let raised = if token >= limit {
            let why = format!("its tokens cannot be raised above {limit}, and the other store is there already");
            Err(Error::new(ErrorKind::Unsupported, why))
        } else {
            let beyond = FencingToken::new(token.get().saturating_add(RAISED_AHEAD)).min(limit);
            self.bridge.pair.on(side).raise(beyond).await
        };
        if let Err(e) = raised {
            return Err(self.give_up(side, e).await);
        }
        if self.parent.with(stay) != before {
            // Another attempt of this claim stands there anew already.
            return Ok(());
        }
        let anew: &[Side] = if side == Side::Old { &[Side::New, Side::Old] } else { &[Side::New] };
        for side in anew {
            self.leave(&[*side]);
            if let Err(e) = self.bridge.withdraw(self.parent, *side).await {
                return Err(self.retreat(*side, e, true).await);
            }
        }
        Ok(())
    }

    /// What is missing. `in_new`: this attempt has asked both. `long`: they have not agreed for long.
    fn next(&self, in_new: bool, long: bool) -> Next {
        let now = self.bridge.clock.now();
        self.parent.with(|stays| {
            let held = |stays: &mut Stays, side| {
                let stay = stays.on(side).as_ref().filter(|stay| stay.lost.is_none())?;
                Some((stay.grant?, stay.until, stay.ttl, stay.place.clone()?))
            };
            let Some((old, old_until, old_ttl, _)) = held(stays, Side::Old) else {
                return Next::Ask(Side::Old, None);
            };
            let floor = Some(old.token);
            let Some((new, new_until, new_ttl, place)) = held(stays, Side::New).filter(|_| in_new) else {
                return Next::Ask(Side::New, floor);
            };
            let (token, turns) = match self.agree(old, new, long || stays.told.is_some()) {
                Ok(agreed) => agreed,
                Err(next) => return next,
            };
            if old_until <= now {
                return Next::Ask(Side::Old, None);
            }
            if new_until <= now {
                return Next::Ask(Side::New, floor);
            }
            stays.told = Some(token);
            let validity = Validity::ending(old_until.min(new_until), old_ttl.min(new_ttl));
            Next::Done(Grant::new(place, token, validity).turns(turns))
        })
    }

    /// The token by which both know the hold, and how many turns of it; or what is to be done so that they do.
    fn agree(&self, old: Held, new: Held, long: bool) -> Result<(FencingToken, u32), Next> {
        // Where several hold, others of them may be granted in between, in one store and in the other, again and again. The smaller
        // number is above all earlier holds that exclude it, too; only an eviction by it ends the hold in one store and not in both.
        let numbers_places = |side| matches!(self.bridge.pair.raises(side), Raises::Places(_));
        let any = long && self.claim.mode != Mode::Exclusive && ![Side::Old, Side::New].into_iter().any(numbers_places);
        let token = if any { old.token.min(new.token) } else { old.token.max(new.token) };
        for (side, held) in [(Side::New, new), (Side::Old, old)] {
            match self.bridge.pair.raises(side) {
                Raises::Holds(_) if held.token == token || any => {}
                Raises::Holds(_) => return Err(Next::Ask(side, Some(token))),
                _ if held.token <= token && token.get() < held.end() => {}
                _ => return Err(Next::Raise(side, token)),
            }
        }
        let turns = old.end().min(new.end()).saturating_sub(token.get());
        Ok((token, u32::try_from(turns).unwrap_or(u32::MAX)))
    }

    /// This store has failed. Nothing is held in the other for it, unless core has a grant that is still good.
    async fn retreat(&self, side: Side, e: Error, answered: bool) -> Error {
        if self.holds() {
            // The other has executed it: a hold that was made shared there counts as shared.
            return if answered { ambiguous(side.says(e)) } else { side.says(e) };
        }
        let may_hold_old = self.parent.with(|stays| stays.on(Side::Old).as_ref().is_some_and(Stay::may_hold));
        match side {
            Side::New if may_hold_old => self.leave(&[Side::New, Side::Old]),
            _ => self.leave(&[Side::New]),
        }
        // What this cannot withdraw is withdrawn by the next claim, or the release.
        let _ = self.bridge.withdraw(self.parent, side.other()).await;
        self.honest(side.says(e))
    }

    /// It cannot be had in both, though both answer: it is given back in both.
    async fn give_up(&self, side: Side, e: Error) -> Error {
        if self.holds() {
            return ambiguous(side.says(e));
        }
        self.leave(&[Side::New, Side::Old]);
        for side in [Side::New, Side::Old] {
            // What this cannot withdraw is withdrawn by the next claim, or the release.
            let _ = self.bridge.withdraw(self.parent, side).await;
        }
        self.honest(side.says(e))
    }

    /// Its stays there end. A grant that core was told of is over before anything of it is withdrawn.
    fn leave(&self, sides: &[Side]) {
        let now = self.bridge.clock.now();
        let standing = self.parent.with(|stays| sides.iter().any(|side| stays.on(*side).is_some()));
        if standing {
            self.lose();
        }
        let left: Vec<_> = self.parent.with(|stays| sides.iter().map(|side| stays.leave(*side, now)).collect());
        drop(left);
    }

    fn lose(&self) {
        if self.parent.with(|stays| stays.told.take()).is_some() {
            self.bridge.notifier.lost(self.parent.id, Loss::Gone);
        }
    }

    fn holds(&self) -> bool {
        let now = self.bridge.clock.now();
        self.parent.with(|stays| stays.holds(now))
    }

    /// Whoever is told that it was not executed withdraws nothing.
    fn honest(&self, e: Error) -> Error {
        let left = !self.parent.with(|stays| stays.is_gone());
        if self.is_new && left { ambiguous(e) } else { e }
    }
}

fn may_have_been_executed(kind: ErrorKind) -> bool {
    use ErrorKind::{Closed, Denied, Unavailable, Unsupported};
    // What is wrong with a claim, a store may have seen only in the queue.
    !matches!(kind, Unavailable | Denied | Unsupported | Closed)
}

fn ambiguous(e: Error) -> Error {
    if may_have_been_executed(e.kind()) { e } else { Error::new(ErrorKind::Ambiguous, e.to_string()).with_source(e) }
}

fn withdrawn() -> Error {
    Error::new(ErrorKind::Ambiguous, "the claim was released while it was asked for")
}
