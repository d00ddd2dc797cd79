//! The state of one claim: nowhere, waiting, granted or ended. The acquire loop, the keeper, the
//! notifications and the guard share it; validity is computed from it at each call.
//!
//! Several parties act on one claim at the same time: the acquire loop waits for it, the keeper
//! renews it, the store notifies of it, the guard is asked whether it is valid. If each had its own
//! view, they would disagree in the moment of a loss. Therefore there is one state, and all changes
//! go through it.
//!
//! Loss is decided by the clock, whenever the state is asked. No timer has to fire for it: a runtime that is
//! blocked, or a process that was stopped, sees the truth with the first question. And loss is
//! final. Nothing makes a lost hold valid again, because the program may have acted on the loss
//! already.
//!
//! An answer counts from before its request was sent, whenever it arrives. Late answers are
//! therefore no danger and need not be thrown away.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::claim::{Claim, ClaimRef, HasClaim, LeaseRef, Mode, Place, WaitPolicy};
use crate::backend::clock::{Clock, Moment};
use crate::backend::error::Error;
use crate::backend::grant::{Grant, Validity};
use crate::backend::loss::Loss;
use crate::backend::notifier::{Listener, Notification};
use crate::backend::token::FencingToken;
use crate::engine::events;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::support::sync::{Mutex, Notify};
use crate::support::{fault, locked};
use state::State;
pub(crate) use state::{Granted, RenewalFacts};

mod state;

pub(crate) struct ClaimState {
    /// The claim in its original form.
    pub(crate) claim: Claim,
    bounds: Bounds,
    clock: Clock,
    state: Mutex<State>,
    /// Ends the turn that is being taken under this claim, if tasks take turns under it.
    turn: Mutex<Option<EndTurn>>,
    /// Waiting tasks check the state again: a notification or a grant came, the hold ended.
    pub(crate) changed: Notify,
    /// Downgrades go one after the other.
    pub(crate) downgrading: tokio::sync::Mutex<()>,
    /// Its number among the claims that the keeper has kept; 0 before.
    kept_as: AtomicU64,
}

/// The limits that the caller sets for a claim.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bounds {
    /// The longest hold, from the grant on.
    pub(crate) max_hold: Option<Duration>,
    /// The moment until which the caller waits.
    pub(crate) deadline: Option<Moment>,
}

/// Ends the turn that is being taken under a claim.
pub(crate) type EndTurn = Box<dyn FnOnce() + Send>;

impl ClaimState {
    pub(crate) fn new(claim: Claim, clock: Clock, bounds: Bounds) -> ClaimState {
        ClaimState {
            claim,
            bounds,
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

    /// Returns its number among the claims that the keeper has kept, and assigns one if it has
    /// none. The keeper calls it while its mutex is locked.
    pub(crate) fn number(&self, next: impl FnOnce() -> u64) -> u64 {
        if self.kept_as() == 0 {
            self.kept_as.store(next(), Ordering::Relaxed);
        }
        self.kept_as()
    }

    /// Returns the facts that matter for its renewal. Nothing is notified: the keeper has its mutex
    /// locked.
    pub(crate) fn look(&self) -> RenewalFacts {
        locked(&self.state).seen(&self.claim, &self.bounds)
    }

    /// Ends the hold if its time has come by `now`, and returns why it ended. What was decided
    /// since the keeper looked counts: a turn that its task has taken meanwhile is not given back.
    /// It notifies nobody, because the keeper has its mutex locked.
    pub(crate) fn ended_by(&self, now: Moment) -> Option<Loss> {
        let mut state = locked(&self.state);
        state.expire(now);
        state.loss
    }

    /// Works on the state of this instant.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        self.with_at(self.clock.now(), work)
    }

    /// Works on the state at `now`. The first call after the end of validity sets the loss by time
    /// alone and notifies the others. The first call that sees a loss also reports it to `tracing`.
    fn with_at<T>(&self, now: Moment, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = locked(&self.state);
        state.expire(now);
        // The last guard that goes may be the first that sees the loss.
        let has_guard = state.guards > 0;
        let done = work(&mut state);
        let must_notify = std::mem::take(&mut state.must_notify);
        let loss = if has_guard { state.untold_loss() } else { None };
        drop(state);
        if let Some(loss) = loss {
            self.tell(loss);
        }
        if must_notify {
            self.changed.notify_waiters();
        }
        done
    }

    /// Processes a grant. It is ignored once the hold has ended; a grant with another token than
    /// the guard's means that the guard's own hold is gone. `stamp` is an instant before the
    /// request was sent.
    pub(crate) fn grant(&self, grant: Grant, stamp: Moment) {
        self.grant_at(self.clock.now(), grant, stamp);
    }

    /// Processes a grant like [`grant`](Self::grant), for a caller that has just read the clock.
    pub(crate) fn grant_at(&self, now: Moment, grant: Grant, stamp: Moment) {
        self.with_at(now, |state| state.granted(now, grant, stamp));
    }

    /// Records the place at which the claim waits. A grant that was pushed meanwhile keeps its own
    /// place: a renewal that named another place could prove a place in the queue instead of the
    /// hold.
    pub(crate) fn wait_at(&self, place: Place) {
        let mut state = locked(&self.state);
        if state.grant.is_none() || fault("place-is-hold") {
            state.place = Some(place);
        }
    }

    /// Processes a successful renewal of the grant with this token. The renewal of a place in the
    /// queue extends no grant: the place may be new, and the grant an old one whose lease is over,
    /// pushed while this process stood still. Returns the facts that matter for the next renewal.
    pub(crate) fn extend_at(
        &self,
        now: Moment,
        token: Option<FencingToken>,
        validity: Validity,
        stamp: Moment,
    ) -> RenewalFacts {
        self.with_at(now, |state| {
            let mine = state
                .grant
                .as_mut()
                .filter(|mine| Some(mine.token) == token || fault("place-extends"));
            if let (None, Some(mine)) = (state.loss, mine) {
                mine.confirmed(&validity, stamp);
                state.unrenewed = None;
            }
            state.seen(&self.claim, &self.bounds)
        })
    }

    /// Records the error of a failed renewal.
    pub(crate) fn unrenewed(&self, why: Arc<Error>) {
        let before = locked(&self.state).unrenewed.replace(why);
        drop(before);
    }

    /// The error of the latest failed renewal, if the hold was lost because its lease ran out.
    pub(crate) fn cause_of(&self, loss: Loss) -> Option<Arc<Error>> {
        let unrenewed = locked(&self.state).unrenewed.clone();
        unrenewed.filter(|_| loss == Loss::Expired)
    }

    /// Ends the hold, because it has ended or the store answered that nothing of it is left. A
    /// waiting claim has no hold to lose: it claims again.
    pub(crate) fn lose(&self, loss: Loss) {
        let now = self.clock.now();
        let taken = self.with(|state| {
            state.must_notify = true;
            if state.is_completing {
                return false;
            }
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

    fn tell(&self, loss: Loss) {
        match loss {
            // A local turn that its task did not take in time.
            Loss::Released => events::given_back(&self.claim),
            _ => events::lost(&self.claim, loss, self.cause_of(loss).as_deref()),
        }
    }

    /// Reports the end of a hold that has no guard any more and was kept for its `min_hold`.
    pub(crate) fn tell_loss(&self) {
        let loss = locked(&self.state).untold_loss();
        if let Some(loss) = loss {
            self.tell(loss);
        }
    }

    /// Ends the lease that a renewal asked about, because the store answered that it is gone: the
    /// grant with this token, or a place in the queue (`None`). A grant that came after the request
    /// is not affected.
    pub(crate) fn lose_lease(&self, token: Option<FencingToken>, loss: Loss) {
        let now = locked(&self.state).grant.as_ref().map(|g| g.token);
        if now == token {
            self.lose(loss);
        }
    }

    /// Takes the grant for a guard, if there is one that is still valid and that the caller has
    /// taken in time.
    pub(crate) fn take_grant(&self, now: Moment) -> Option<Granted> {
        let mut state = locked(&self.state);
        let good = state.grant.take_if(|g| g.until <= now).is_none();
        debug_assert!(!state.taken, "a grant is taken once");
        let granted = state.grant.filter(|_| good)?;
        if state.give_back(now, &self.bounds) {
            return None;
        }
        state.taken = true;
        state.guards = 1;
        state.max_until = self.bounds.max_hold.map(|max| granted.heard + max);
        Some(granted)
    }

    /// Gives back a grant that was not taken in time. Returns whether it is given back now, or was
    /// before. Nothing is notified: the keeper has its mutex locked.
    pub(crate) fn give_back(&self, now: Moment) -> bool {
        locked(&self.state).give_back(now, &self.bounds)
    }

    /// Returns whether the claim was granted, and given back because no caller took it.
    pub(crate) fn is_given_back(&self) -> bool {
        locked(&self.state).given_back
    }

    /// Passes the claim to the next local turn: its `max_hold` and the time in which its task must
    /// take it count from now. Returns whether the `max_hold` has changed, so that the keeper must
    /// schedule another end of the hold. A turn that is not taken needs no schedule: the keeper
    /// looks often enough.
    pub(crate) fn next_turn(&self, now: Moment, bounds: &Bounds) -> bool {
        let mut state = locked(&self.state);
        state.guards = 1;
        state.untaken_until = state.grant.map(|grant| grant.kept_until(now, bounds));
        let max_until = bounds.max_hold.map(|max| now + max);
        let before = std::mem::replace(&mut state.max_until, max_until);
        before != max_until
    }

    /// Takes a local turn for its task; false if the hold has ended.
    pub(crate) fn take_turn(&self) -> bool {
        self.with(|state| {
            state.untaken_until = None;
            state.loss.is_none()
        })
    }

    /// Adds a guard to the turn with this token if the turn is valid and has a guard. Returns
    /// whether it did.
    pub(crate) fn share(&self, token: FencingToken) -> bool {
        self.with(|state| state.share(token))
    }

    /// Removes one guard of the turn with this token. With the last guard the turn ends; then it
    /// returns the reason, `Released` if the turn was valid until now.
    pub(crate) fn leave(&self, token: FencingToken) -> Option<Loss> {
        self.with(|state| state.leave(token))
    }

    /// Ends the turn with this token, because its work has ended and is completed now. Returns the
    /// reason if it had ended before: then nothing may be completed. From now on nothing but the
    /// answer to the completion ends the claim, and it is renewed until it is forgotten.
    pub(crate) fn begin_completion(&self, token: FencingToken) -> Option<Loss> {
        self.with(|state| state.begin_completion(token))
    }

    /// Returns whether its work has ended and is being completed.
    pub(crate) fn is_completing(&self) -> bool {
        locked(&self.state).is_completing
    }

    /// The end of the lease; `None` if there was no grant.
    pub(crate) fn lease_until(&self) -> Option<Moment> {
        locked(&self.state).grant.as_ref().map(|grant| grant.until)
    }

    /// Processes a grant that is no answer to the claim itself: a notification, or the answer to the
    /// renewal of a place. The store may have handed the lock over without a look at whether the
    /// work is done (S19), so a claim for work that is done once is sent again.
    pub(crate) fn handed_over(&self, grant: Grant, sent: Moment) {
        self.with(|state| {
            if self.claim.once.is_some() && !state.taken && !fault("push-begins") {
                (state.notified, state.must_notify) = (true, true);
            } else {
                state.granted(self.clock.now(), grant, sent);
            }
        });
    }

    /// The number of guards of the current turn.
    pub(crate) fn guards(&self) -> usize {
        locked(&self.state).guards
    }

    /// The mode of the hold, also after a downgrade.
    pub(crate) fn mode(&self) -> Mode {
        locked(&self.state)
            .now
            .as_ref()
            .map_or(self.claim.mode, |now| now.mode)
    }

    /// Makes an exclusive hold count as shared, or in its original mode again.
    pub(crate) fn count_as_shared(&self, shared: bool) {
        let mode = if shared {
            Mode::Shared
        } else {
            self.claim.mode
        };
        self.change(|now| now.mode = mode);
    }

    /// Gives the claim this label, which all further requests for the hold carry. It wakes no task.
    pub(crate) fn relabel(&self, label: Arc<str>) {
        self.change(|now| now.label = label);
    }

    fn change(&self, change: impl FnOnce(&mut Claim)) {
        let mut state = locked(&self.state);
        change(Arc::make_mut(
            state
                .now
                .get_or_insert_with(|| Arc::new(self.claim.clone())),
        ));
    }

    /// Returns the claim that asks for this hold again, with its current mode and label. If the
    /// hold is gone, the claim leaves no place in the queue.
    pub(crate) fn again(self: &Arc<ClaimState>) -> Claim {
        Claim {
            policy: WaitPolicy::Try,
            ..(*self.now()).clone()
        }
    }

    pub(crate) fn in_turn(&self, end: EndTurn) {
        let before = locked(&self.turn).replace(end);
        drop(before);
    }

    /// Ends the turns under this claim, because nothing of it is left.
    pub(crate) fn end_turns(&self) {
        let end = locked(&self.turn).take();
        // The turn goes to the next task while no mutex is locked.
        if let Some(end) = end {
            end();
        }
    }

    /// The reason why the hold ended, computed now; `None` if it is valid at this instant.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.with(|state| state.loss)
    }

    /// The reason why the turn with this token ended, computed now; `None` if it has not.
    pub(crate) fn loss_of(&self, token: FencingToken) -> Option<Loss> {
        self.with(|state| state.loss_of(token))
    }

    /// The time for which a hold that is not lost is surely valid.
    pub(crate) fn remaining(&self) -> Duration {
        let now = self.clock.now();
        locked(&self.state)
            .end()
            .map_or(Duration::ZERO, |end| end.at().since(now))
    }

    /// The moment when the latest request that confirmed the grant was sent.
    pub(crate) fn asked(&self) -> Option<Moment> {
        locked(&self.state).grant.as_ref().map(|grant| grant.asked)
    }

    /// The TTL that was granted, or the one asked for.
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

    /// A claim that its holder has not changed is shared and not copied for each request.
    fn as_of(self: &Arc<ClaimState>, state: &State) -> ClaimRef {
        ClaimRef(match &state.now {
            Some(now) => now.clone(),
            None => self.clone(),
        })
    }

    /// Returns the facts that matter for its renewal, whether it is lost by `now`, and if not the
    /// lease to renew, with the claim as it is now.
    pub(crate) fn to_renew(
        self: &Arc<ClaimState>,
        now: Moment,
    ) -> (RenewalFacts, bool, Option<LeaseRef>) {
        let state = locked(&self.state);
        let seen = state.seen(&self.claim, &self.bounds);
        let lost = seen.loss_by(now).is_some();
        let place = state.place.clone().filter(|_| !lost);
        let token = state.grant.as_ref().map(|g| g.token);
        (
            seen,
            lost,
            place.map(|place| LeaseRef {
                claim: self.as_of(&state),
                place,
                token,
            }),
        )
    }

    /// Returns the reason to go on for the acquire loop, if there is one, and clears the
    /// notification.
    pub(crate) fn take_change(&self) -> Option<Woken> {
        let mut state = locked(&self.state);
        let notified = std::mem::take(&mut state.notified);
        if state.given_back {
            Some(Woken::Again)
        } else if state.grant.is_some() {
            Some(Woken::Granted)
        } else {
            notified.then_some(Woken::Again)
        }
    }
}

impl HasClaim for ClaimState {
    fn claim(&self) -> &Claim {
        &self.claim
    }
}

/// The reason why the acquire loop goes on: the claim is granted, it must claim again, or its
/// deadline has passed.
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
                // The grant goes back to a request that was sent when its validity began.
                let sent = grant.validity.start(self.clock.now());
                self.handed_over(grant, sent);
            }
            Notification::Lost(loss) => self.lose(loss),
            Notification::Shortened(validity) => {
                let now = self.clock.now();
                self.with_at(now, |state| state.shorten(&validity, now));
            }
            Notification::Granted(_) | Notification::ClaimAgain => {
                self.with(|state| (state.notified, state.must_notify) = (true, true));
            }
        }
    }
}

#[cfg(test)]
mod tests;
