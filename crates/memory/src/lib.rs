//! The in-memory store of Leasehold: locks among the tasks of one process, the executable specification of what a store
//! does, and a store with virtual time for users' own tests.

mod claim;
mod client;
mod completion;
mod entry;
mod evict;
mod fence;
mod inspect;
mod release;
mod renew;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, ClaimId, Claimed, ClaimedAll, Clock, Completions, LeaseRef, Moment, Notifier,
    Place, Raises, Renewal, Subscription, TokenFloor, VirtualClock, async_trait,
};
use leasehold_core::support::{locked, uuid};
use leasehold_core::{
    Error, ErrorKind, Fairness, Fencing, FencingToken, Guarantees, LockQueue, Loss, Name, Result,
    StoreId,
};
use tokio::task::coop::consume_budget;

use crate::claim::Queue;
use crate::client::{Link, Passes};
use crate::completion::Recorded;
use crate::entry::{RAISES, Tokens};

/// A client of an in-memory store.
///
/// Clones are the same client; [`another_client`](Memory::another_client) is a second one of the same store, as another
/// process would be. Each [`Memory::new`] is a world of its own.
///
/// For tests, a store may live on virtual time, and a client may be cut off:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold_core::Result<()> {
/// use std::time::Duration;
/// use leasehold_core::{Loss, Store};
/// use leasehold_memory::Memory;
///
/// let (memory, time) = Memory::with_virtual_time();
/// let store = Store::new(memory.clone());
/// let guard = store.lock("a").ttl(Duration::from_secs(10)).acquire().await?;
/// memory.cut_off();
/// time.advance(Duration::from_secs(10)); // no wait: the lease is over
/// assert_eq!(guard.lost().await, Loss::Expired);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Memory {
    world: Arc<World>,
    link: Link,
}

/// The state that the clients of one store share.
struct World {
    id: StoreId,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<Name, Queue>,
    tokens: Tokens,
    recorded: Recorded,
    observers: Vec<Arc<(Name, Link)>>,
    /// A queue that is empty: the next name that is taken need not allocate one.
    spare: Option<Queue>,
}

/// A queue that has had room for more is not kept as a spare one.
const SPARE: usize = 8;

/// Removes the observer when it is dropped.
struct Observation(Arc<World>, Arc<(Name, Link)>);

impl Memory {
    /// A client of a new, empty store, for `memory://`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for any other URL.
    pub async fn connect(url: &str) -> Result<Memory> {
        match url {
            "memory://" => Ok(Memory::new()),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                "memory:// takes neither host nor path",
            )),
        }
    }

    /// A client of a new, empty store on the machine's clock.
    pub fn new() -> Memory {
        Memory::on(Clock::boot())
    }

    /// A client of a new, empty store whose time stands still until the test advances it.
    pub fn with_virtual_time() -> (Memory, VirtualClock) {
        let time = VirtualClock::new();
        (Memory::on(time.clock()), time)
    }

    fn on(clock: Clock) -> Memory {
        let link = Link::to(Place::new(ClaimId::fresh().to_string()));
        Memory {
            world: Arc::new(World {
                id: StoreId::of("memory", uuid().simple()),
                clock,
                state: Mutex::default(),
            }),
            link,
        }
    }

    /// Another client of the same store, as another process would be.
    pub fn another_client(&self) -> Memory {
        Memory {
            world: self.world.clone(),
            link: Link::to(self.link.place().clone()),
        }
    }

    /// A client of another, empty store on the same clock: for a bridge between the two.
    pub fn another_store(&self) -> Memory {
        Memory::on(self.world.clock.clone())
    }

    /// From now on no request of this client arrives, and no notification reaches it, until [`reconnect`](Memory::reconnect).
    pub fn cut_off(&self) {
        self.link.set(Passes::Nothing);
    }

    /// From now on requests of this client arrive and are executed, but neither an answer nor a notification comes back: each is
    /// [`Ambiguous`](ErrorKind::Ambiguous), until [`reconnect`](Memory::reconnect).
    pub fn lose_replies(&self) {
        self.link.set(Passes::Requests);
    }

    /// Ends a [`cut_off`](Memory::cut_off) or [`lose_replies`](Memory::lose_replies).
    pub fn reconnect(&self) {
        self.link.set(Passes::All);
        self.link.notifier().notify_all();
    }

    /// Ends the lease of the holders of `name`, now, and notifies them; says whether there were any. The next waiter is granted
    /// the lock.
    pub fn expire(&self, name: impl Into<Name>) -> bool {
        self.with_queue(&name.into(), |queue, _, _| {
            queue.evict(Some(Loss::Expired), |_| true)
        })
    }

    /// Deletes the holders' entries of `name` without notifying any client, as an operator's careless command would; says
    /// whether there were any.
    pub fn delete(&self, name: impl Into<Name>) -> bool {
        self.with_queue(&name.into(), |queue, _, _| queue.evict(None, |_| true))
    }

    /// The number of holders and waiters of all names.
    pub fn entries(&self) -> usize {
        self.swept()
            .queues
            .values()
            .map(|queue| queue.entries.len())
            .sum()
    }

    fn with_queue<T>(
        &self,
        name: &Name,
        work: impl FnOnce(&mut Queue, Moment, &mut Tokens) -> T,
    ) -> T {
        let (mut state, now) = self.world.state();
        state.with_queue(name, now, work)
    }

    /// The state without the dead, whose names no client may have asked for since they died.
    fn swept(&self) -> MutexGuard<'_, State> {
        let (mut state, now) = self.world.state();
        let State { queues, tokens, .. } = &mut *state;
        queues.retain(|_, queue| {
            queue.admit_waiters(now, tokens, None);
            !queue.entries.is_empty()
        });
        state
    }

    /// One request of this client. A store in memory never makes its caller wait, and a caller that asks in a loop would never
    /// yield its thread: so each request counts for tokio's cooperative budget.
    async fn request<T>(&self, work: impl FnOnce(&Memory) -> T) -> Result<T> {
        consume_budget().await;
        if self.link.is(Passes::Nothing) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "this client was cut off",
            ));
        }
        let answer = work(self);
        if self.link.is(Passes::Requests) {
            return Err(Error::new(
                ErrorKind::Ambiguous,
                "this client hears no answers",
            ));
        }
        Ok(answer)
    }
}

impl World {
    /// The state, and the instant at which it was entered. Not one that was read before others had their turn: it would
    /// count from before what they did.
    fn state(&self) -> (MutexGuard<'_, State>, Moment) {
        let state = locked(&self.state);
        (state, self.clock.now())
    }
}

impl State {
    /// Works on one queue, admits waiters before and after, notifies observers, and leaves nothing behind of an empty queue.
    fn with_queue<T>(
        &mut self,
        name: &Name,
        now: Moment,
        work: impl FnOnce(&mut Queue, Moment, &mut Tokens) -> T,
    ) -> T {
        let State {
            queues,
            tokens,
            observers,
            spare,
            ..
        } = self;
        let queue = queues
            .entry(name.clone())
            .or_insert_with(|| spare.take().unwrap_or_default());
        let before = (!observers.is_empty()).then(|| queue.leaders());
        queue.admit_waiters(now, tokens, None);
        let outcome = work(queue, now, tokens);
        queue.admit_waiters(now, tokens, None);
        if before.is_some_and(|before| before != queue.leaders()) {
            let links = observers
                .iter()
                .filter(|observer| observer.0 == *name)
                .map(|observer| &observer.1);
            links.for_each(|link| link.notify(|notifier| notifier.holder_changed(name)));
        }
        if queue.entries.is_empty() {
            *spare = queues
                .remove(name)
                .filter(|queue| queue.entries.capacity() <= SPARE);
        }
        outcome
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.0
            .state()
            .0
            .observers
            .retain(|observer| !Arc::ptr_eq(observer, &self.1));
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} names)", self.world.state().0.queues.len())
    }
}

#[async_trait]
impl Backend for Memory {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.request(|store| {
            let (mut state, now) = store.world.state();
            let done = state.recorded.done(claim, now);
            state.with_queue(&claim.name, now, |queue, now, tokens| match done {
                Some(completion) => {
                    queue.release(claim.id);
                    Ok(Claimed::Done(completion))
                }
                None => queue.claim(claim, &self.link, now, tokens),
            })
        })
        .await?
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let all = |store: &Memory| {
            let (mut state, now) = store.world.state();
            for (i, claim) in claims.iter().enumerate() {
                let blocked_by =
                    |queue: &mut Queue, now, _: &mut Tokens| queue.blocked_by(claim.id, now);
                if let Some(by) = state.with_queue(&claim.name, now, blocked_by) {
                    return Ok(ClaimedAll::Busy(i, by));
                }
            }
            let link = &self.link;
            let one = |claim: &Claim| {
                state.with_queue(&claim.name, now, |q, now, tokens| {
                    q.claim(claim, link, now, tokens)
                })
            };
            claims.iter().map(one).collect()
        };
        self.request(all).await?
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let one = |store: &Memory, l: &LeaseRef| {
            store.with_queue(&l.claim.name, |queue, now, _| queue.renew(l, now))
        };
        self.request(|store| leases.iter().map(|lease| one(store, lease)).collect())
            .await
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        self.request(|store| store.with_queue(&claim.name, |queue, _, _| queue.release(claim.id)))
            .await
    }

    async fn release_after(
        &self,
        claim: &Claim,
        _place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        let release =
            |queue: &mut Queue, now, _: &mut Tokens| queue.release_after(claim.id, now + rest);
        self.request(|store| store.with_queue(&claim.name, release))
            .await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        self.request(|store| store.with_queue(name, |queue, now, _| queue.inspect(now)))
            .await
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        let wanted = |name: &&Name| {
            name.as_str().starts_with(prefix) && after.is_none_or(|after| *name > after)
        };
        self.request(|store| {
            store
                .swept()
                .queues
                .keys()
                .filter(wanted)
                .take(limit)
                .cloned()
                .collect()
        })
        .await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let evict = |queue: &mut Queue, _, _: &mut Tokens| {
            queue.evict(Some(Loss::Evicted), |entry| entry.owns(token))
        };
        self.request(|store| store.with_queue(name, evict)).await
    }

    fn identity(&self) -> Option<StoreId> {
        Some(self.world.id.clone())
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("memory")
            .with_fencing(Fencing::WhileDataLives)
            .with_fairness(Fairness::Strict)
            .with_pushed_wake(true)
            .with_ttl(Duration::from_millis(50), Duration::from_nanos(1))
            .with_recovery(Duration::from_millis(5))
            .with_atomic_multi(usize::MAX)
            .with_min_hold_outlives_process(true)
            .with_once(true)
            .with_notes("one process; lives and dies with it")
    }

    fn completions(&self) -> Option<&dyn Completions> {
        Some(self)
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        Some(self)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(self.link.notifier())
    }

    fn observe(&self, name: &Name) -> Subscription {
        let observer = Arc::new((name.clone(), self.link.clone()));
        self.world.state().0.observers.push(observer.clone());
        self.link.notify(|notifier| notifier.holder_changed(name));
        Subscription::new(Observation(self.world.clone(), observer))
    }

    fn clock(&self) -> Clock {
        self.world.clock.clone()
    }
}

#[async_trait]
impl TokenFloor for Memory {
    fn raises(&self) -> Raises {
        RAISES
    }

    async fn mark(&self) -> Result<FencingToken> {
        self.request(|store| store.world.state().0.tokens.mark())
            .await
    }

    async fn raise(&self, number: FencingToken) -> Result<()> {
        RAISES.check(Some(number))?;
        self.request(|store| store.world.state().0.tokens.raise(number.get()))
            .await
    }
}
