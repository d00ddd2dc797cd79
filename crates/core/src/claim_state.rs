//! Where one claim stands: nowhere, waiting, granted, ended. The single truth that the acquire loop, the keeper, the notifications
//! and the guard share; validity is computed from it whenever somebody asks.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::{Claim, LeaseRef, Mode, Place, WaitPolicy};
use crate::clock::{Clock, Moment};
use crate::grant::{Grant, Validity};
use crate::hold::TurnSlot;
use crate::loss::Loss;
use crate::notifier::{Listener, Notification};
use crate::sync::locked;
use crate::token::FencingToken;

pub(crate) struct ClaimState {
    pub(crate) claim: Arc<Claim>,
    clock: Clock,
    state: Mutex<State>,
    /// The turn that is being taken under this claim, if it is shared by turns.
    turn: Mutex<TurnSlot>,
    /// Somebody should look again: a notification or a grant came, the hold ended.
    pub(crate) changed: Notify,
}

struct State {
    /// The claim as it is now: what its holder has made of it since, shared instead of exclusive, another label.
    now: Arc<Claim>,
    place: Option<Place>,
    grant: Option<Granted>,
    /// A guard was made of the grant: from now on an end of validity is a loss.
    taken: bool,
    /// The end of `max_hold`, if there is one.
    max_until: Option<Moment>,
    loss: Option<Loss>,
    /// When the store last said that nothing is left: a grant that was asked for before that may be the one that is gone.
    gone_at: Option<Moment>,
    notified: bool,
    /// Whoever listens is to be told once the lock on this is free again: a waker may run anybody's code.
    tell: bool,
}

#[derive(Clone)]
pub(crate) struct Granted {
    pub(crate) token: FencingToken,
    pub(crate) turns: u32,
    pub(crate) ttl: Duration,
    until: Moment,
}

impl ClaimState {
    pub(crate) fn new(claim: Arc<Claim>, clock: Clock) -> ClaimState {
        let (now, changed) = (claim.clone(), Notify::new());
        let state = Mutex::new(State {
            now,
            place: None,
            grant: None,
            taken: false,
            max_until: None,
            loss: None,
            gone_at: None,
            notified: false,
            tell: false,
        });
        ClaimState { claim, clock, state, turn: Mutex::default(), changed }
    }

    /// Works on the state of this instant. Loss is decided by time alone as soon as anybody looks, and whoever looks first
    /// tells the others.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let now = self.clock.now();
        let mut state = locked(&self.state);
        state.expire(now);
        let done = work(&mut state);
        let tell = std::mem::take(&mut state.tell);
        drop(state);
        if tell {
            self.changed.notify_waiters();
        }
        done
    }

    /// The store granted. Ignored once the hold has ended; a grant with another token than the guard's means that the
    /// guard's own is gone. `stamp`: an instant before it was asked for.
    pub(crate) fn grant(&self, grant: Grant, stamp: Moment) {
        self.with(|state| state.granted(grant, stamp));
    }

    /// The store says that the claim waits there.
    pub(crate) fn wait_at(&self, place: Place) {
        let mut state = locked(&self.state);
        state.place = Some(place);
    }

    /// A renewal that surely counted.
    pub(crate) fn extend(&self, validity: Validity, stamp: Moment) {
        self.with(|state| {
            if let (None, Some(mine)) = (state.loss, &mut state.grant) {
                mine.until = mine.until.max(validity.until(stamp));
                mine.ttl = validity.ttl();
            }
        });
    }

    /// The hold ended, or the store says that nothing of it is left. A waiting claim has no hold to lose: it claims again.
    pub(crate) fn lose(&self, loss: Loss) {
        let now = self.clock.now();
        let taken = self.with(|state| {
            state.tell = true;
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

    /// The store says that nothing is left of what it was asked about: the grant with this token, or a place in line. A grant
    /// that came since then is another matter.
    pub(crate) fn lose_lease(&self, token: Option<FencingToken>, loss: Loss) {
        let now = locked(&self.state).grant.as_ref().map(|g| g.token);
        if now == token {
            self.lose(loss);
        }
    }

    /// Makes the grant a guard's, if there is one that is still good.
    pub(crate) fn take(&self, max_hold: Option<Duration>) -> Option<Granted> {
        let now = self.clock.now();
        let mut state = locked(&self.state);
        let good = state.grant.take_if(|g| g.until <= now).is_none();
        debug_assert!(!state.taken, "a grant is taken once");
        let granted = state.grant.clone().filter(|_| good)?;
        state.taken = true;
        state.max_until = max_hold.map(|max| now + max);
        Some(granted)
    }

    /// Gives the standing to the next local turn: its `max_hold` counts from now.
    pub(crate) fn next_turn(&self, max_hold: Option<Duration>) {
        let now = self.clock.now();
        locked(&self.state).max_until = max_hold.map(|max| now + max);
    }

    /// The mode of the hold, also after a downgrade.
    pub(crate) fn mode(&self) -> Mode {
        locked(&self.state).now.mode
    }

    /// Whether an exclusive hold counts as shared from now on.
    pub(crate) fn count_as_shared(&self, shared: bool) {
        let mode = if shared { Mode::Shared } else { self.claim.mode };
        Arc::make_mut(&mut locked(&self.state).now).mode = mode;
    }

    /// From now on the hold has this label.
    pub(crate) fn relabel(&self, label: Arc<str>) {
        Arc::make_mut(&mut locked(&self.state).now).label = label;
    }

    /// The claim with which to ask for this hold again. If it is gone, it leaves no place in line.
    pub(crate) fn again(&self) -> Claim {
        Claim { policy: WaitPolicy::Try, ..(*locked(&self.state).now).clone() }
    }

    pub(crate) fn in_turn(&self, turn: TurnSlot) {
        let before = std::mem::replace(&mut *locked(&self.turn), turn);
        drop(before);
    }

    /// Nothing of the claim is left to take turns under.
    pub(crate) fn end_turns(&self) {
        let turn = locked(&self.turn).clone();
        // It goes to the next task only when the lock on the slot is free again.
        let ended = locked(&turn).take();
        drop(ended);
    }

    /// Why the hold ended, computed now: `None` means that it is valid at this instant.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.with(|state| state.loss)
    }

    /// The same for the keeper, which looks while it has a lock in hand: nobody is told.
    pub(crate) fn loss_by(&self, now: Moment) -> Option<Loss> {
        let state = locked(&self.state);
        state.loss.or_else(|| state.ended_by(now))
    }

    /// For how much longer the hold is surely good; zero once it ended.
    pub(crate) fn remaining(&self) -> Duration {
        if self.loss().is_some() {
            return Duration::ZERO;
        }
        let now = self.clock.now();
        locked(&self.state).ends_at().map_or(Duration::ZERO, |end| end.since(now))
    }

    /// For how much longer the lease itself is surely good, whatever `max_hold` says.
    pub(crate) fn lease_left(&self) -> Duration {
        let now = self.clock.now();
        locked(&self.state).grant.as_ref().map_or(Duration::ZERO, |g| g.until.since(now))
    }

    /// When the lease ends that was asked for at `asked`, if nothing renews it. A place in line is renewed a little before half
    /// of its lease is over, so it has at least the rest.
    pub(crate) fn lease_ends_at(&self, asked: Moment) -> Moment {
        locked(&self.state).grant.as_ref().map_or_else(|| asked + self.claim.ttl * 11 / 20, |g| g.until)
    }

    /// When the hold ends if nothing renews it; `None` while it is not a guard's.
    pub(crate) fn ends_at(&self) -> Option<Moment> {
        let state = locked(&self.state);
        if state.taken { state.ends_at() } else { None }
    }

    /// The lease: granted, or asked for.
    pub(crate) fn ttl(&self) -> Duration {
        locked(&self.state).grant.as_ref().map_or(self.claim.ttl, |g| g.ttl)
    }

    /// How long the first renewal may wait: as long as any, or half of what is left of a grant that was slow to come.
    pub(crate) fn renew_in(&self) -> Duration {
        let (each, now) = (self.renew_every(), self.clock.now());
        locked(&self.state).grant.as_ref().map_or(each, |g| each.min(g.until.since(now) / 2))
    }

    /// A third of the lease between renewals. Whoever waits has less to lose: nearly half, so that more than half of the lease
    /// is left when the grant comes.
    pub(crate) fn renew_every(&self) -> Duration {
        let ttl = self.ttl();
        if locked(&self.state).grant.is_some() { ttl / 3 } else { ttl * 9 / 20 }
    }

    pub(crate) fn place(&self) -> Option<Place> {
        locked(&self.state).place.clone()
    }

    /// The claim as it is now.
    pub(crate) fn now(&self) -> Arc<Claim> {
        locked(&self.state).now.clone()
    }

    /// What to ask the store to renew: the claim as it is now.
    pub(crate) fn lease(&self) -> Option<LeaseRef> {
        let state = locked(&self.state);
        let token = state.grant.as_ref().map(|g| g.token);
        state.place.clone().map(|place| LeaseRef { claim: state.now.clone(), place, token })
    }

    /// Whether there is something new for the acquire loop; clears the notification.
    pub(crate) fn take_change(&self) -> Change {
        let mut state = locked(&self.state);
        let notified = std::mem::take(&mut state.notified);
        match (&state.grant, notified) {
            (Some(_), _) => Change::Granted,
            (None, true) => Change::Notified,
            (None, false) => Change::Unchanged,
        }
    }
}

/// What the acquire loop sees when it looks.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Granted,
    Notified,
    Unchanged,
}

impl State {
    /// Ends the hold if its time has come. Loss is terminal.
    fn expire(&mut self, now: Moment) {
        if self.loss.is_none() {
            self.loss = self.ended_by(now);
            self.tell |= self.loss.is_some();
        }
    }

    fn ended_by(&self, now: Moment) -> Option<Loss> {
        let until = self.grant.as_ref().filter(|_| self.taken)?.until;
        if self.max_until.is_some_and(|max| max <= now && max <= until) {
            return Some(Loss::MaxHold);
        }
        (until <= now).then_some(Loss::Expired)
    }

    fn granted(&mut self, grant: Grant, stamp: Moment) {
        if self.loss.is_some() {
            return;
        }
        if !self.taken && self.gone_at.is_some_and(|gone| stamp < gone) {
            // It was asked for before the store said that it is gone: claim again and see.
            (self.notified, self.tell) = (true, true);
            return;
        }
        let until = grant.validity.until(stamp);
        let known = self.grant.as_ref().map(|g| g.token.cmp(&grant.token));
        match (&mut self.grant, known) {
            (Some(mine), Some(Ordering::Equal)) => mine.until = mine.until.max(until),
            (Some(_), _) if self.taken => self.loss = Some(Loss::Gone),
            (Some(_), Some(Ordering::Greater)) => return, // a late push of an older grant
            _ => {
                let Grant { place, token, turns, validity } = grant;
                self.place = Some(place);
                self.grant = Some(Granted { token, turns, ttl: validity.ttl(), until });
            }
        }
        self.tell = true;
    }

    /// The server goes by other terms now.
    fn shorten(&mut self, until: Moment) {
        if let Some(mine) = &mut self.grant {
            self.tell |= until < mine.until;
            mine.until = mine.until.min(until);
        }
    }

    fn ends_at(&self) -> Option<Moment> {
        let until = self.grant.as_ref()?.until;
        Some(self.max_until.map_or(until, |max| max.min(until)))
    }
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
                self.with(|state| (state.notified, state.tell) = (true, true))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Mode, WaitPolicy};
    use crate::clock::VirtualClock;

    const TTL: Duration = Duration::from_secs(10);

    fn state() -> (VirtualClock, ClaimState) {
        let time = VirtualClock::new();
        let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, TTL, "me");
        let state = ClaimState::new(Arc::new(claim), time.clock());
        (time, state)
    }

    fn grant(token: u64, since: Moment) -> Grant {
        Grant::new(Place::new("p"), FencingToken::new(token), Validity::since(since, TTL))
    }

    #[test]
    fn loss_is_terminal_even_when_a_renewal_comes_after_all() {
        let (time, s) = state();
        s.grant(grant(1, time.clock().now()), time.clock().now());
        assert!(s.take(None).is_some());
        time.advance(TTL);
        s.extend(Validity::from(TTL), time.clock().now());
        assert_eq!(s.loss(), Some(Loss::Expired));
        s.grant(grant(1, time.clock().now()), time.clock().now());
        assert_eq!((s.loss(), s.remaining()), (Some(Loss::Expired), Duration::ZERO));
    }

    #[test]
    fn other_terms_of_the_server_shorten_what_was_promised() {
        let (time, s) = state();
        let since = time.clock().now();
        s.grant(grant(1, since), since);
        assert!(s.take(None).is_some());
        s.notify(Notification::Shortened(Validity::since(since, TTL * 2)));
        assert!(s.remaining() > TTL / 2);
        s.notify(Notification::Shortened(Validity::since(since, TTL / 2)));
        time.advance(TTL / 2);
        assert_eq!((s.loss(), s.remaining()), (Some(Loss::Expired), Duration::ZERO));
    }

    #[tokio::test]
    async fn whoever_sees_the_end_first_tells_the_others() {
        for late in 0..3 {
            let (time, s) = state();
            s.grant(grant(1, time.clock().now()), time.clock().now());
            s.take(None);
            let told = s.changed.notified();
            time.advance(TTL);
            match late {
                0 => s.extend(Validity::from(TTL), time.clock().now()),
                1 => s.grant(grant(1, time.clock().now()), time.clock().now()),
                _ => assert_eq!(s.loss(), Some(Loss::Expired)),
            }
            tokio::time::timeout(Duration::from_secs(5), told).await.unwrap();
        }
    }

    #[test]
    fn an_end_of_validity_before_anybody_took_the_grant_is_no_loss() {
        let (time, s) = state();
        s.grant(grant(1, time.clock().now()), time.clock().now());
        time.advance(TTL);
        assert!(s.take(None).is_none());
        assert_eq!(s.loss(), None);
        s.grant(grant(2, time.clock().now()), time.clock().now());
        assert_eq!(s.take(None).map(|g| g.token.get()), Some(2));
    }

    #[test]
    fn another_token_under_a_guard_means_that_its_own_is_gone() {
        let (time, s) = state();
        s.grant(grant(1, time.clock().now()), time.clock().now());
        s.take(None);
        s.grant(grant(2, time.clock().now()), time.clock().now());
        assert_eq!(s.loss(), Some(Loss::Gone));
    }

    #[test]
    fn a_late_push_of_an_older_grant_changes_nothing() {
        let (time, s) = state();
        s.grant(grant(5, time.clock().now()), time.clock().now());
        s.notify(Notification::Granted(grant(4, time.clock().now())));
        assert_eq!(s.take(None).map(|g| g.token.get()), Some(5));
    }

    #[test]
    fn a_push_without_an_instant_is_only_a_notification() {
        let (_time, s) = state();
        s.notify(Notification::Granted(Grant::new(Place::new("p"), FencingToken::new(1), TTL)));
        assert_eq!(s.take_change(), Change::Notified);
        assert_eq!(s.take_change(), Change::Unchanged);
    }

    #[test]
    fn max_hold_ends_it_whatever_is_renewed() {
        let (time, s) = state();
        s.grant(grant(1, time.clock().now()), time.clock().now());
        s.take(Some(Duration::from_secs(3)));
        assert_eq!(s.remaining(), Duration::from_secs(3));
        time.advance(Duration::from_secs(3));
        s.extend(Validity::from(TTL), time.clock().now());
        assert_eq!(s.loss(), Some(Loss::MaxHold));
    }
}
