//! Where one claim stands: nowhere, waiting, granted, ended. The single truth that the acquire loop, the keeper, the notifications
//! and the guard share; validity is computed from it at each call.
//!
//! Several parties act on one claim at the same time: the acquire loop waits for it, the keeper
//! renews it, the store notifies of it, the guard is asked whether it is valid. If each had its own
//! view, they would disagree in the moment of a loss. So there is one state, and all changes go
//! through it.
//!
//! Loss is decided by the clock, whenever the state is asked. No timer has to fire for it: a runtime that is
//! blocked, or a process that was stopped, sees the truth with the first question. And loss is
//! final. Nothing makes a lost hold valid again, because the program may have acted on the loss
//! already.
//!
//! An answer counts from before its request was sent, whenever it arrives. So late answers are no
//! danger and need not be thrown away.

use std::sync::Arc;
use std::time::Duration;

use crate::seam::claim::{Claim, ClaimRef, HasClaim, LeaseRef, Mode, Place, WaitPolicy};
use crate::seam::clock::{Clock, Moment};
use crate::seam::grant::{Grant, Validity};
use crate::seam::loss::Loss;
use crate::seam::notifier::{Listener, Notification};
use crate::seam::token::FencingToken;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::support::sync::{Mutex, Notify};
use crate::support::{fault, locked};
use state::State;
pub(crate) use state::{Granted, Seen};

mod state;

pub(crate) struct ClaimState {
    /// As it began.
    pub(crate) claim: Claim,
    clock: Clock,
    state: Mutex<State>,
    /// The turn that is being taken under this claim, if it is shared by turns.
    turn: Mutex<Option<EndTurn>>,
    /// Waiting tasks check the state again: a notification or a grant came, the hold ended.
    pub(crate) changed: Notify,
    /// Downgrades go one after the other.
    pub(crate) downgrading: tokio::sync::Mutex<()>,
    /// Its number among the claims that the keeper has kept; 0 before.
    kept_as: AtomicU64,
}

/// Ends the turn that is being taken under a claim.
pub(crate) type EndTurn = Box<dyn FnOnce() + Send>;

impl ClaimState {
    pub(crate) fn new(claim: Claim, clock: Clock) -> ClaimState {
        ClaimState {
            claim,
            clock,
            state: Mutex::default(),
            turn: Mutex::default(),
            changed: Notify::new(),
            downgrading: tokio::sync::Mutex::default(),
            kept_as: AtomicU64::new(0),
        }
    }

    /// Its number among the claims that the keeper has kept.
    pub(crate) fn kept_as(&self) -> u64 {
        self.kept_as.load(Ordering::Relaxed)
    }

    /// The same, and gives it one if it has none. The keeper calls it, which has its mutex locked.
    pub(crate) fn number(&self, next: impl FnOnce() -> u64) -> u64 {
        if self.kept_as() == 0 {
            self.kept_as.store(next(), Ordering::Relaxed);
        }
        self.kept_as()
    }

    /// What matters for its renewal. Nothing is notified: the keeper has its mutex locked.
    pub(crate) fn look(&self) -> Seen {
        locked(&self.state).seen(self.claim.ttl)
    }

    /// Works on the state of this instant.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        self.with_at(self.clock.now(), work)
    }

    /// Loss is decided by time alone at the first call after the end, which notifies the others.
    fn with_at<T>(&self, now: Moment, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = locked(&self.state);
        state.expire(now);
        let done = work(&mut state);
        let must_notify = std::mem::take(&mut state.must_notify);
        drop(state);
        if must_notify {
            self.changed.notify_waiters();
        }
        done
    }

    /// The store granted. Ignored once the hold has ended; a grant with another token than the guard's means that the
    /// guard's own is gone. `stamp`: an instant before it was asked for.
    pub(crate) fn grant(&self, grant: Grant, stamp: Moment) {
        self.with(|state| state.granted(grant, stamp));
    }

    /// The same, for a caller that has just looked at the clock.
    pub(crate) fn grant_at(&self, now: Moment, grant: Grant, stamp: Moment) {
        self.with_at(now, |state| state.granted(grant, stamp));
    }

    /// The store says that the claim waits there. A grant that was pushed meanwhile stays at its own place: a renewal that
    /// named another one could prove a place in the queue, and not the hold.
    pub(crate) fn wait_at(&self, place: Place) {
        let mut state = locked(&self.state);
        if state.grant.is_none() || fault("place-is-hold") {
            state.place = Some(place);
        }
    }

    /// A renewal that surely counted, of the grant with this token. That of a place in the queue extends no grant: the place may be a new
    /// one, and the grant one of before, which was pushed while this process stood still and whose lease is over. Returns what is
    /// so then.
    pub(crate) fn extend_at(
        &self,
        now: Moment,
        token: Option<FencingToken>,
        validity: Validity,
        stamp: Moment,
    ) -> Seen {
        self.with_at(now, |state| {
            let mine = state.grant.as_mut().filter(|mine| Some(mine.token) == token || fault("place-extends"));
            if let (None, Some(mine)) = (state.loss, mine) {
                mine.confirmed(validity.start(stamp), validity.until(stamp));
                mine.ttl = validity.ttl();
            }
            state.seen(self.claim.ttl)
        })
    }

    /// The hold ended, or the store says that nothing of it is left. A waiting claim has no hold to lose: it claims again.
    pub(crate) fn lose(&self, loss: Loss) {
        let now = self.clock.now();
        let taken = self.with(|state| {
            state.must_notify = true;
            if state.taken {
                state.loss.get_or_insert(loss);
            } else {
                state.grant = None;
                state.gone_at = Some(now);
                state.notified = true;
            }
            state.taken
        });
        if taken {
            self.end_turns();
        }
    }

    /// The store says that nothing is left of what it was asked about: the grant with this token, or a place in the queue. A grant
    /// that came since then is another matter.
    pub(crate) fn lose_lease(&self, token: Option<FencingToken>, loss: Loss) {
        let now = locked(&self.state).grant.as_ref().map(|g| g.token);
        if now == token {
            self.lose(loss);
        }
    }

    /// Makes the grant a guard's, if there is one that is still good.
    pub(crate) fn take_grant(&self, now: Moment, max_hold: Option<Duration>) -> Option<Granted> {
        let mut state = locked(&self.state);
        let good = state.grant.take_if(|g| g.until <= now).is_none();
        debug_assert!(!state.taken, "a grant is taken once");
        let granted = state.grant.filter(|_| good)?;
        state.taken = true;
        state.guards = 1;
        state.max_until = max_hold.map(|max| now + max);
        Some(granted)
    }

    /// Gives the claim to the next local turn: its `max_hold` counts from now. Says whether that changes the end of the hold.
    pub(crate) fn next_turn(&self, now: Moment, max_hold: Option<Duration>) -> bool {
        let mut state = locked(&self.state);
        state.guards = 1;
        let before = std::mem::replace(&mut state.max_until, max_hold.map(|max| now + max));
        before != state.max_until
    }

    /// One more guard for the turn with this token, if it is good and has a guard.
    pub(crate) fn share(&self, token: FencingToken) -> bool {
        self.with(|state| state.share(token))
    }

    /// One guard of the turn with this token goes. With the last of them the turn ends, and this is why: `Released` if it was
    /// good up to now.
    pub(crate) fn leave(&self, token: FencingToken) -> Option<Loss> {
        self.with(|state| state.leave(token))
    }

    /// How many guards the turn of now has.
    pub(crate) fn guards(&self) -> usize {
        locked(&self.state).guards
    }

    /// The mode of the hold, also after a downgrade.
    pub(crate) fn mode(&self) -> Mode {
        locked(&self.state).now.as_ref().map_or(self.claim.mode, |now| now.mode)
    }

    /// Whether an exclusive hold counts as shared from now on.
    pub(crate) fn count_as_shared(&self, shared: bool) {
        let mode = if shared { Mode::Shared } else { self.claim.mode };
        self.change(|now| now.mode = mode);
    }

    /// From now on the claim has this label: what core sends for a hold carries it. It wakes no task.
    pub(crate) fn relabel(&self, label: Arc<str>) {
        self.change(|now| now.label = label);
    }

    fn change(&self, change: impl FnOnce(&mut Claim)) {
        let mut state = locked(&self.state);
        change(Arc::make_mut(state.now.get_or_insert_with(|| Arc::new(self.claim.clone()))));
    }

    /// The claim with which to ask for this hold again, with its mode and label of now. If the hold is gone, the claim leaves no
    /// place in the queue.
    pub(crate) fn again(self: &Arc<ClaimState>) -> Claim {
        Claim { policy: WaitPolicy::Try, ..(*self.now()).clone() }
    }

    pub(crate) fn in_turn(&self, end: EndTurn) {
        let before = locked(&self.turn).replace(end);
        drop(before);
    }

    /// Nothing of the claim is left to take turns under.
    pub(crate) fn end_turns(&self) {
        let end = locked(&self.turn).take();
        // It goes to the next task: no lock is held meanwhile.
        if let Some(end) = end {
            end();
        }
    }

    /// Why the hold ended, computed now: `None` means that it is valid at this instant.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.with(|state| state.loss)
    }

    /// Why the turn with this token ended, computed now.
    pub(crate) fn loss_of(&self, token: FencingToken) -> Option<Loss> {
        self.with(|state| state.loss_of(token))
    }

    /// For how much longer a hold that is not lost is surely good.
    pub(crate) fn remaining(&self) -> Duration {
        let now = self.clock.now();
        locked(&self.state).end().map_or(Duration::ZERO, |end| end.at().since(now))
    }

    /// When the latest request was sent that confirmed the grant.
    pub(crate) fn asked(&self) -> Option<Moment> {
        locked(&self.state).grant.as_ref().map(|grant| grant.asked)
    }

    /// The lease: granted, or asked for.
    pub(crate) fn ttl(&self) -> Duration {
        self.look().ttl
    }

    pub(crate) fn place(&self) -> Option<Place> {
        locked(&self.state).place.clone()
    }

    /// The claim as it is now.
    pub(crate) fn now(self: &Arc<ClaimState>) -> ClaimRef {
        self.as_of(&locked(&self.state))
    }

    /// One that its holder has not changed is the one that is here: it is not copied for each request.
    fn as_of(self: &Arc<ClaimState>, state: &State) -> ClaimRef {
        ClaimRef(match &state.now {
            Some(now) => now.clone(),
            None => self.clone(),
        })
    }

    /// What matters for its renewal, whether it is lost by then, and if not what to ask the store to renew: the claim as it is now.
    pub(crate) fn to_renew(self: &Arc<ClaimState>, now: Moment) -> (Seen, bool, Option<LeaseRef>) {
        let state = locked(&self.state);
        let seen = state.seen(self.claim.ttl);
        let lost = seen.loss_by(now).is_some();
        let place = state.place.clone().filter(|_| !lost);
        let token = state.grant.as_ref().map(|g| g.token);
        (seen, lost, place.map(|place| LeaseRef { claim: self.as_of(&state), place, token }))
    }

    /// What is new for the acquire loop; clears the notification.
    pub(crate) fn take_change(&self) -> Option<Woken> {
        let mut state = locked(&self.state);
        let notified = std::mem::take(&mut state.notified);
        if state.grant.is_some() { Some(Woken::Granted) } else { notified.then_some(Woken::Again) }
    }
}

impl HasClaim for ClaimState {
    fn claim(&self) -> &Claim {
        &self.claim
    }
}

/// Why the acquire loop goes on: it is granted, it is to claim again, or its deadline has passed.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    Granted,
    Again,
    Late,
}

impl Listener for ClaimState {
    fn notify(&self, notification: Notification) {
        match notification {
            Notification::Granted(grant) if grant.validity.is_anchored() => {
                // It grew from a request that was sent when its validity began.
                let sent = grant.validity.start(self.clock.now());
                self.grant(grant, sent);
            }
            Notification::Lost(loss) => self.lose(loss),
            Notification::Shortened(validity) => {
                let until = validity.until(self.clock.now());
                self.with(|state| state.shorten(until));
            }
            Notification::Granted(_) | Notification::ClaimAgain => {
                self.with(|state| (state.notified, state.must_notify) = (true, true));
            }
        }
    }
}

#[cfg(test)]
mod tests;
