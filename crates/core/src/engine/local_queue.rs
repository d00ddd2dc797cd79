//! Local hand-over: tasks of one client that want the same `fast` lock stand behind one claim, and the lease passes from
//! task to task in memory, for a bounded number of turns and a bounded time (lock cohorting: Dice, Marathe and Shavit 2012).
//!
//! Between tasks of one process, a hand-over through the store costs a release, a notification and
//! a claim. Here it costs none: one task holds the claim in the store, and the others take turns
//! under it. With 64 tasks in 4 clients that was about 20 times as many acquisitions per second on
//! Redis (docs/measured.md).
//!
//! Three things bound it. The tokens: each turn needs a fencing token of its own, and the grant
//! reserved a limited number. The number of turns: it exceeds 64 only for a few milliseconds. Many
//! short turns fit into that time, so the cost of the store is spread over them, and other clients
//! wait only a little longer. The time: after one TTL the claim goes back to the store, so that
//! other clients are passed for one TTL at most.
//!
//! A claim reserves twice as many tokens as the last one of its queue has used, from 64 on. On some
//! stores a reserved token is a microsecond of their clock, so a lock that needs few must not take many.
//!
//! The store knows only the claim and its first turn. A report of each turn would cost the request
//! that the hand-over saves.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Context;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;
use tokio::task::coop::consume_budget;

use crate::backend::claim::TURNS;
use crate::backend::clock::Moment;
use crate::backend::contention::Contention;
use crate::backend::error::{Error, Result};
use crate::backend::name::Name;
use crate::backend::token::FencingToken;
use crate::engine::acquire::not_polled;
use crate::engine::claim_state::{Bounds, ClaimState, Granted};
use crate::engine::client::Client;
use crate::engine::events;
use crate::engine::hold::{Hold, Share};
use crate::engine::wait::Wait;
use crate::support::locked;
use crate::support::sync::Mutex;
use crate::support::sync::atomic::{AtomicBool, Ordering};

/// The greatest number of turns that a claim reserves: with more, the store's share in the cost of
/// a turn is no longer noticeable.
const MOST_TURNS: u32 = 1024;
/// The time for which a claim may take more turns than [`TURNS`].
const BURST: Duration = Duration::from_millis(5);

/// The longest queue whose waiters are counted one by one.
const SHORT: usize = 256;

/// Only exclusive claims that are equal in these may share one.
type Key = (Name, Duration);

/// The local queues of one client, one per lock with a claimant: those of a name by their TTL.
#[derive(Default)]
pub(crate) struct LocalQueues(Mutex<HashMap<Name, BTreeMap<Duration, LocalQueue>>>);

/// The tasks that wait for one lock, and the one that holds it.
struct LocalQueue {
    waiters: VecDeque<Waiter>,
    holder: Option<Holder>,
    /// Of the task that claims for them.
    pulse: Arc<Pulse>,
    /// When that task was last woken to show that it goes on, or began.
    woken: Moment,
}

/// Whether the task that claims for a queue is polled. One that is not, although it was woken, keeps its right no longer.
struct Pulse {
    polled: AtomicBool,
    waker: AtomicWaker,
}

/// The task that holds now.
struct Holder {
    label: Arc<str>,
    token: FencingToken,
    /// The first token of its claim, by which the store knows it; `turns` is the number of its
    /// tokens.
    first: FencingToken,
    turns: u32,
    /// The hold is being evicted: no task gets a turn of its claim any more.
    is_last: bool,
    /// It gives the claim back to the store.
    leaves: bool,
}

/// A task that waits for a turn.
struct Waiter {
    hand_over: oneshot::Sender<Handoff>,
    turn: TurnOptions,
}

/// The options of a waiting task that its turn uses.
#[derive(Clone)]
pub(crate) struct TurnOptions {
    pub(crate) name: Name,
    pub(crate) label: Arc<str>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    /// The moment until which the task waits.
    pub(crate) deadline: Option<Moment>,
}

/// The value that a task of the queue receives.
pub(crate) enum Handoff {
    /// The task claims in the store itself.
    Claimant(Claimant),
    /// The task has the turn.
    Turn(Share),
}

/// The right to claim in the store for all tasks of the queue. When it is dropped, it goes to the
/// next task.
pub(crate) struct Claimant {
    local_queues: Weak<LocalQueues>,
    key: Key,
    pulse: Arc<Pulse>,
    /// The moment since which the store has answered no claimant. The retry budget of the next one
    /// counts from it.
    pub(crate) outage_since: Option<Moment>,
    /// The number of turns that its claim reserves.
    pub(crate) turns: u32,
}

/// One turn under a claimant's claim.
pub(crate) struct Turn {
    claimant: Claimant,
    first: FencingToken,
    /// The number of turns before this one.
    taken: u32,
    turns: u32,
    began: Moment,
}

impl LocalQueues {
    /// Waits for a turn, or to be the claimant.
    pub(crate) async fn enter(
        self: &Arc<LocalQueues>,
        client: &Client,
        key: Key,
        turn: TurnOptions,
        wait: Wait,
    ) -> Result<Handoff> {
        let started = client.clock.now();
        let mut left = wait;
        loop {
            match self.enter_once(client, &key, &turn, left).await? {
                Handoff::Turn(share) if !share.hold.take_turn() => {
                    // The turn was given back before this task was polled.
                    let now = client.clock.now();
                    if turn.deadline.is_some_and(|at| at <= now) {
                        return Err(Error::timed_out(not_polled()));
                    }
                    left = wait.left(now.since(started));
                }
                handoff => return Ok(handoff),
            }
        }
    }

    async fn enter_once(
        self: &Arc<LocalQueues>,
        client: &Client,
        key: &Key,
        turn: &TurnOptions,
        wait: Wait,
    ) -> Result<Handoff> {
        // A try that is refused here awaits nothing else: without this, a loop of tries would never
        // yield its thread.
        consume_budget().await;
        let now = client.clock.now();
        self.look_after(key, now);
        let handed_over = {
            let mut local_queues = locked(&self.0);
            let Some(queue) = queue_of(&mut local_queues, key) else {
                let queue = LocalQueue {
                    waiters: VecDeque::new(),
                    holder: None,
                    pulse: Arc::default(),
                    woken: now,
                };
                let claimant = self.claimant(key, &queue.pulse);
                local_queues
                    .entry(key.0.clone())
                    .or_default()
                    .insert(key.1, queue);
                return Ok(Handoff::Claimant(claimant));
            };
            if matches!(wait, Wait::Try) {
                return Err(Error::contended(queue.contention()));
            }
            if queue.waiters.len() == queue.waiters.capacity() {
                // Waiters that have left are removed only when the queue is full: otherwise each
                // task that enters would walk a long queue. Then room for as many again is
                // reserved.
                queue.waiters.retain(|waiter| !waiter.hand_over.is_closed());
                queue.waiters.reserve(queue.waiters.len().max(4));
            }
            let (hand_over, handed_over) = oneshot::channel();
            let turn = turn.clone();
            queue.waiters.push_back(Waiter { hand_over, turn });
            handed_over
        };
        let mut handed_over = pin!(handed_over);
        let deadline = wait.ends_at(now);
        let mut look_at = now + key.1;
        loop {
            let until = deadline.map_or(look_at, |at| at.min(look_at));
            tokio::select! {
                biased;
                handoff = &mut handed_over => return handoff.map_err(|_| Error::closed()),
                () = client.clock.coarse_sleep_until(until) => {}
            }
            let now = client.clock.now();
            if deadline.is_some_and(|at| at <= now) {
                // This task is not one of the waiters in its own error.
                handed_over.close();
                let holder = queue_of(&mut locked(&self.0), key)
                    .map_or_else(Contention::unknown, |queue| queue.contention());
                return Err(Error::timed_out(holder));
            }
            self.look_after(key, now);
            look_at = now + key.1;
        }
    }

    fn claimant(self: &Arc<LocalQueues>, key: &Key, pulse: &Arc<Pulse>) -> Claimant {
        let local_queues = Arc::downgrade(self);
        Claimant {
            local_queues,
            key: key.clone(),
            pulse: pulse.clone(),
            outage_since: None,
            turns: TURNS,
        }
    }

    /// Wakes the task that claims for this queue, once a lease. If it was not polled since the last time, its right goes to the next task:
    /// should it come back, it claims for itself.
    fn look_after(self: &Arc<LocalQueues>, key: &Key, now: Moment) {
        let mut local_queues = locked(&self.0);
        let Some(queue) = queue_of(&mut local_queues, key) else {
            return;
        };
        let holds = queue.holder.as_ref().is_some_and(|holder| !holder.leaves);
        if holds || now < queue.woken + key.1 {
            return;
        }
        let pulse = queue.pulse.clone();
        let goes_on = pulse.polled.swap(false, Ordering::AcqRel);
        queue.woken = now;
        let claimant = if goes_on {
            None
        } else {
            queue.pulse = Arc::default();
            Some(self.claimant(key, &queue.pulse))
        };
        drop(local_queues);
        // Either runs code of others: no lock is held meanwhile.
        pulse.waker.wake();
        drop(claimant);
    }
}

impl LocalQueues {
    /// Returns whether a hold with this token may be evicted: not if a task of this client holds by
    /// another turn of the same claim. If the token is that of the task that holds, its claim gets
    /// no further turn.
    pub(crate) fn may_evict(&self, name: &Name, token: FencingToken) -> bool {
        let is_current = |holder: &mut Holder| {
            holder.is_last |= holder.token == token;
            holder.token == token
        };
        self.with_holder(name, |holder| holder.owns(token), is_current)
            .unwrap_or(true)
    }

    /// Corrects the label and the token of a holder as the store knows it, which are those of the
    /// first turn of its claim. If the claim is one of this client, they become those of the task
    /// that holds now.
    pub(crate) fn correct(
        &self,
        name: &Name,
        label: &mut Option<String>,
        token: &mut Option<FencingToken>,
    ) {
        let current = |first| {
            self.with_holder(
                name,
                |holder| holder.first == first,
                |h| (h.label.to_string(), h.token),
            )
        };
        if let Some((task, turn)) = token.and_then(current) {
            (*label, *token) = (Some(task), Some(turn));
        }
    }

    /// Runs `work` on the first holder of this name that `which` selects.
    fn with_holder<T>(
        &self,
        name: &Name,
        which: impl Fn(&Holder) -> bool,
        work: impl FnOnce(&mut Holder) -> T,
    ) -> Option<T> {
        let mut local_queues = locked(&self.0);
        let queues = local_queues.get_mut(name)?.values_mut();
        queues
            .filter_map(|queue| queue.holder.as_mut())
            .find(|holder| which(holder))
            .map(work)
    }
}

fn queue_of<'a>(
    local_queues: &'a mut HashMap<Name, BTreeMap<Duration, LocalQueue>>,
    (name, ttl): &Key,
) -> Option<&'a mut LocalQueue> {
    local_queues.get_mut(name)?.get_mut(ttl)
}

impl Holder {
    fn owns(&self, token: FencingToken) -> bool {
        (self.first.get()..self.first.get().saturating_add(self.turns.into()))
            .contains(&token.get())
    }
}

impl LocalQueue {
    /// The task of this process that is in the way; while the claimant's request is in flight, no
    /// task holds yet.
    fn contention(&self) -> Contention {
        // In a long queue the waiters that have left are counted too: a search for them would take
        // longer than anything else here.
        let lives = |waiter: &&Waiter| !waiter.hand_over.is_closed();
        let len = self.waiters.len();
        let waiting = if len > SHORT {
            len
        } else {
            self.waiters.iter().filter(lives).count()
        };
        let holder = match &self.holder {
            Some(Holder { label, token, .. }) => Contention::by(&**label).token(*token),
            None => Contention::by("another task of this process"),
        };
        holder.waiters(waiting)
    }
}

impl Pulse {
    fn polled(&self) {
        self.polled.store(true, Ordering::Release);
    }
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse {
            polled: AtomicBool::new(true),
            waker: AtomicWaker::new(),
        }
    }
}

impl Claimant {
    /// Its task is being polled.
    pub(crate) fn goes_on(&self, context: &Context<'_>) {
        self.pulse.waker.register(context.waker());
        self.pulse.polled();
    }

    /// Works on its queue, if its right to it has not gone to another task.
    fn with_queue<T>(&self, work: impl FnOnce(&mut LocalQueue) -> T) -> Option<T> {
        let local_queues = self.local_queues.upgrade()?;
        let mut local_queues = locked(&local_queues.0);
        let queue = queue_of(&mut local_queues, &self.key)?;
        Arc::ptr_eq(&queue.pulse, &self.pulse).then(|| work(queue))
    }

    /// Begins the first turn of a grant.
    pub(crate) fn first_turn(mut self, granted: &Granted, label: Arc<str>, now: Moment) -> Turn {
        self.outage_since = None;
        let turn = Turn {
            claimant: self,
            first: granted.token,
            taken: 0,
            turns: granted.turns,
            began: now,
        };
        turn.is_of(label);
        turn
    }

    /// Records the task that holds from now on.
    fn held_by(&self, holder: Option<Holder>) {
        let before = self.with_queue(|queue| std::mem::replace(&mut queue.holder, holder));
        drop(before);
    }

    /// The claim goes back to the store.
    fn leaves(&self) {
        self.pulse.polled();
        self.with_queue(|queue| {
            if let Some(holder) = &mut queue.holder {
                holder.leaves = true;
            }
        });
    }

    /// Removes and returns the next task that still waits. If there is none and `and_close` is
    /// true, the queue is removed in the same step: a newcomer is either seen here, or finds no
    /// queue and becomes the claimant.
    fn next_waiter(&self, and_close: bool) -> Option<Waiter> {
        let local_queues = self.local_queues.upgrade()?;
        let mut local_queues = locked(&local_queues.0);
        let LocalQueue {
            waiters,
            holder,
            pulse,
            ..
        } = queue_of(&mut local_queues, &self.key)?;
        if !Arc::ptr_eq(pulse, &self.pulse) {
            return None;
        }
        if !and_close && holder.as_ref().is_some_and(|holder| holder.is_last) {
            return None;
        }
        while let Some(waiter) = waiters.pop_front() {
            if !waiter.hand_over.is_closed() {
                return Some(waiter);
            }
        }
        if and_close && let Entry::Occupied(mut of_name) = local_queues.entry(self.key.0.clone()) {
            of_name.get_mut().remove(&self.key.1);
            if of_name.get().is_empty() {
                of_name.remove();
            }
        }
        None
    }
}

impl Drop for Claimant {
    fn drop(&mut self) {
        if let Some(waiter) = self.next_waiter(true) {
            self.held_by(None);
            self.pulse.polled();
            let local_queues = self.local_queues.clone();
            let key = self.key.clone();
            let pulse = self.pulse.clone();
            let claimant = Claimant {
                local_queues,
                key,
                pulse,
                outage_since: self.outage_since,
                turns: self.turns,
            };
            // A handoff that is no longer received is dropped here, and thereby goes on to the next
            // task.
            drop(waiter.hand_over.send(Handoff::Claimant(claimant)));
        }
    }
}

impl Turn {
    pub(crate) fn token(&self) -> FencingToken {
        FencingToken::new(self.first.get() + u64::from(self.taken))
    }

    fn is_of(&self, label: Arc<str>) {
        let Turn { first, turns, .. } = *self;
        self.claimant.held_by(Some(Holder {
            label,
            token: self.token(),
            first,
            turns,
            is_last: false,
            leaves: false,
        }));
    }

    /// Passes the claim to the next local task. Returns the turn if it must be released in the
    /// store instead: no task waits here, other clients have waited long enough, too little of the
    /// lease is left, or the store may have forgotten the claim.
    pub(crate) fn pass(mut self, client: &Arc<Client>, state: &Arc<ClaimState>) -> Option<Turn> {
        let now = client.clock.now();
        let seen = state.look();
        let taken = self.taken + 1;
        let so_far = now.since(self.began);
        self.claimant.turns = (taken * 2).clamp(TURNS, MOST_TURNS);
        let may_pass = taken < self.turns
            && (taken < TURNS || so_far < BURST)
            && so_far < seen.ttl
            && state.loss().is_none()
            && !client.is_in_doubt(state)
            && seen.lease_left(now) > seen.ttl / 3;
        let next = may_pass.then(|| self.claimant.next_waiter(false)).flatten();
        let Some(Waiter {
            hand_over,
            turn: options,
        }) = next
        else {
            self.claimant.leaves();
            return Some(self);
        };
        events::passed(&state.claim, self.token());
        let bounds = Bounds {
            max_hold: options.max_hold,
            deadline: options.deadline,
        };
        if state.next_turn(now, &bounds) {
            client.keeper.reschedule(state);
        }
        let turn = Turn { taken, ..self };
        turn.is_of(options.label);
        let not_before = options.min_hold.map(|min| now + min);
        let hold = Hold {
            client: client.clone(),
            state: state.clone(),
            name: options.name,
            token: turn.token(),
        };
        // A hold that is no longer received is dropped here, which ends its turn.
        drop(hand_over.send(Handoff::Turn(Share::new(hold, not_before, Some(turn)))));
        None
    }
}
