//! Local hand-over: tasks of one client that want the same `fast` lock stand behind one claim, and the lease passes from
//! task to task in memory, for a bounded number of turns and a bounded time (lock cohorting: Dice, Marathe and Shavit 2012).
//!
//! Between tasks of one process, a hand-over through the store costs a release, a notification and
//! a claim. Here it costs none: one task holds the claim in the store, and the others take turns
//! under it. With 64 tasks in 4 clients that was about 20 times as many acquisitions per second on
//! Redis (docs/measured.md).
//!
//! Three things bound it. The tokens: each turn needs a fencing token of its own, and the grant
//! reserved only so many. The number of turns: it goes beyond 64 of them only for a few milliseconds, in
//! which short turns are many; so what the store costs is spread over them, and other clients wait little
//! longer for it. The time: after one TTL the claim goes back to the store, so that other clients are
//! passed for one TTL at most.
//!
//! A claim reserves twice as many tokens as the last one of its queue has used, from 64 on. On some
//! stores a reserved token is a microsecond of their clock, so a lock that needs few must not take many.
//!
//! The store knows only the claim and its first turn. To tell it of each turn would cost the
//! request that this saves.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::coop::consume_budget;

use crate::engine::claim_state::{ClaimState, Granted};
use crate::engine::client::Client;
use crate::engine::hold::{Hold, Share};
use crate::engine::wait::Wait;
use crate::seam::claim::TURNS;
use crate::seam::clock::Moment;
use crate::seam::contention::Contention;
use crate::seam::error::{Error, Result};
use crate::seam::name::Name;
use crate::seam::token::FencingToken;
use crate::support::locked;
use crate::support::sync::Mutex;

/// So many turns a claim reserves at most: with more the store's part of a turn is no longer to be seen.
const MOST_TURNS: u32 = 1024;
/// For so long a claim may take more than [`TURNS`].
const BURST: Duration = Duration::from_millis(5);

/// So many waiters are counted one by one.
const SHORT: usize = 256;

/// Only exclusive claims that are equal in these may share one.
type Key = (Name, Duration);

/// The local queues of one client, one per lock with a claimant: those of a name by their TTL.
#[derive(Default)]
pub(crate) struct LocalQueues(Mutex<HashMap<Name, BTreeMap<Duration, LocalQueue>>>);

/// The tasks that wait for one lock, and the one that holds it.
#[derive(Default)]
struct LocalQueue {
    waiters: VecDeque<Waiter>,
    holder: Option<Holder>,
}

/// The task that holds now.
struct Holder {
    label: Arc<str>,
    token: FencingToken,
    /// The tokens of its claim: the first one, by which the store knows it, and how many.
    first: FencingToken,
    turns: u32,
    /// It is being evicted: no task gets a turn of that claim any more.
    is_last: bool,
}

/// A task that waits for a turn.
struct Waiter {
    hand_over: oneshot::Sender<Handoff>,
    turn: TurnOptions,
}

/// What a turn takes over from the options of the task that waits for it.
pub(crate) struct TurnOptions {
    pub(crate) name: Name,
    pub(crate) label: Arc<str>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
}

/// What a task of the queue is given.
pub(crate) enum Handoff {
    /// It claims in the store itself.
    Claimant(Claimant),
    /// It is its turn.
    Turn(Share),
}

/// The right to claim in the store for all tasks of the queue. Dropped, it goes to the next.
pub(crate) struct Claimant {
    local_queues: Weak<LocalQueues>,
    key: Key,
    /// Since when the store has answered no claimant: the retry budget of the next one counts from then.
    pub(crate) outage_since: Option<Moment>,
    /// How many turns its claim reserves.
    pub(crate) turns: u32,
}

/// One turn under a claimant's claim.
pub(crate) struct Turn {
    claimant: Claimant,
    first: FencingToken,
    /// How many came before.
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
        // A try that is refused here waits for nothing: one that asks in a loop would never let go of its thread.
        consume_budget().await;
        let handed_over = {
            let mut local_queues = locked(&self.0);
            let Some(queue) = queue_of(&mut local_queues, &key) else {
                local_queues.entry(key.0.clone()).or_default().insert(key.1, LocalQueue::default());
                let local_queues = Arc::downgrade(self);
                return Ok(Handoff::Claimant(Claimant { local_queues, key, outage_since: None, turns: TURNS }));
            };
            if matches!(wait, Wait::Try) {
                return Err(Error::contended(queue.contention()));
            }
            if queue.waiters.len() == queue.waiters.capacity() {
                // Not each time: a long queue would be walked by each task that enters it. So there is room for as many again.
                queue.waiters.retain(|waiter| !waiter.hand_over.is_closed());
                queue.waiters.reserve(queue.waiters.len().max(4));
            }
            let (hand_over, handed_over) = oneshot::channel();
            queue.waiters.push_back(Waiter { hand_over, turn });
            handed_over
        };
        let holder =
            || queue_of(&mut locked(&self.0), &key).map_or_else(Contention::unknown, |queue| queue.contention());
        let handoff = match wait {
            Wait::For(limit) => client.within(limit, handed_over).await.ok_or_else(|| Error::timed_out(holder()))?,
            Wait::Forever | Wait::Try => handed_over.await,
        };
        handoff.map_err(|_| Error::closed())
    }
}

impl LocalQueues {
    /// Whether a hold with this token may be evicted: not if a task of this client holds by a later turn of the same claim.
    /// One that may gets no other turn.
    pub(crate) fn may_evict(&self, name: &Name, token: FencingToken) -> bool {
        let is_current = |holder: &mut Holder| {
            holder.is_last |= holder.token == token;
            holder.token == token
        };
        self.with_holder(name, |holder| holder.owns(token), is_current).unwrap_or(true)
    }

    /// The store knows a claim by the label and the token of its first turn. If the claim is one of this client, they become
    /// those of the task that holds now.
    pub(crate) fn correct(&self, name: &Name, label: &mut Option<String>, token: &mut Option<FencingToken>) {
        let current =
            |first| self.with_holder(name, |holder| holder.first == first, |h| (h.label.to_string(), h.token));
        if let Some((task, turn)) = token.and_then(current) {
            (*label, *token) = (Some(task), Some(turn));
        }
    }

    /// Works on one of the tasks that hold this name now.
    fn with_holder<T>(
        &self,
        name: &Name,
        which: impl Fn(&Holder) -> bool,
        work: impl FnOnce(&mut Holder) -> T,
    ) -> Option<T> {
        let mut local_queues = locked(&self.0);
        let queues = local_queues.get_mut(name)?.values_mut();
        queues.filter_map(|queue| queue.holder.as_mut()).find(|holder| which(holder)).map(work)
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
        (self.first.get()..self.first.get().saturating_add(self.turns.into())).contains(&token.get())
    }
}

impl LocalQueue {
    /// The task of this process that is before; while the claimant's request is in flight, no task holds yet.
    fn contention(&self) -> Contention {
        // In a long queue those that have gone are counted, too: to look for them would take longer than anything else here.
        let lives = |waiter: &&Waiter| !waiter.hand_over.is_closed();
        let len = self.waiters.len();
        let waiting = if len > SHORT { len } else { self.waiters.iter().filter(lives).count() };
        let holder = match &self.holder {
            Some(Holder { label, token, .. }) => Contention::by(&**label).token(*token),
            None => Contention::by("another task of this process"),
        };
        holder.waiters(waiting)
    }
}

impl Claimant {
    /// The first turn of what the store granted.
    pub(crate) fn first_turn(mut self, granted: &Granted, label: Arc<str>, now: Moment) -> Turn {
        self.outage_since = None;
        let turn = Turn { claimant: self, first: granted.token, taken: 0, turns: granted.turns, began: now };
        turn.is_of(label);
        turn
    }

    /// From now on this task holds.
    fn held_by(&self, holder: Option<Holder>) {
        if let Some(local_queues) = self.local_queues.upgrade()
            && let Some(queue) = queue_of(&mut locked(&local_queues.0), &self.key)
        {
            queue.holder = holder;
        }
    }

    /// The next task that still waits. Without one the queue stays, or is removed with its claimant, in one step: a
    /// newcomer either is seen here or finds no queue and is the claimant.
    fn next_waiter(&self, and_close: bool) -> Option<Waiter> {
        let local_queues = self.local_queues.upgrade()?;
        let mut local_queues = locked(&local_queues.0);
        let LocalQueue { waiters, holder } = queue_of(&mut local_queues, &self.key)?;
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
            let (local_queues, key) = (self.local_queues.clone(), self.key.clone());
            let claimant = Claimant { local_queues, key, outage_since: self.outage_since, turns: self.turns };
            // A handoff that is not received any more is dropped here, and so goes on to the next task.
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
        self.claimant.held_by(Some(Holder { label, token: self.token(), first, turns, is_last: false }));
    }

    /// Passes the claim to the next local task; gives the turn back if it must be released in the store instead: no task waits here,
    /// others have waited long enough, too little of the lease is left, or the store may have forgotten the claim.
    pub(crate) fn pass(mut self, client: &Arc<Client>, state: &Arc<ClaimState>) -> Option<Turn> {
        let now = client.clock.now();
        let (seen, taken, so_far) = (state.look(), self.taken + 1, now.since(self.began));
        self.claimant.turns = (taken * 2).clamp(TURNS, MOST_TURNS);
        let may_pass = taken < self.turns
            && (taken < TURNS || so_far < BURST)
            && so_far < seen.ttl
            && state.loss().is_none()
            && !client.is_in_doubt(state)
            && seen.lease_left(now) > seen.ttl / 3;
        if !may_pass {
            return Some(self);
        }
        let Some(Waiter { hand_over, turn: options }) = self.claimant.next_waiter(false) else { return Some(self) };
        if state.next_turn(now, options.max_hold) {
            client.keeper.reschedule(state);
        }
        let turn = Turn { taken, ..self };
        turn.is_of(options.label);
        let not_before = options.min_hold.map(|min| now + min);
        let hold = Hold { client: client.clone(), state: state.clone(), name: options.name, token: turn.token() };
        // A hold that is not received any more is dropped here, and so ends its turn.
        drop(hand_over.send(Handoff::Turn(Share::new(hold, not_before, Some(turn)))));
        None
    }
}
