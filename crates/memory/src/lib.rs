//! The in-memory store of Leasehold: locks among the tasks of one process, the executable specification of what a store
//! does, and a store with virtual time for users' own tests.

mod line;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::seam::{
    Backend, Claim, Claimed, ClaimedAll, Clock, LeaseRef, Moment, Notifier, Place, Renewal, Subscription, VirtualClock,
    async_trait, locked,
};
use leasehold_core::{
    Error, ErrorKind, Fairness, Fenced, Fencing, FencingToken, Guarantees, LockQueue, Loss, Name, Result,
};
use tokio::task::coop::consume_budget;

use line::{Cord, Link, Mint, Queue};

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
pub struct Memory(Arc<Client>);

struct Client {
    world: Arc<World>,
    cord: Cord,
}

struct World {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lines: BTreeMap<Name, Queue>,
    mint: Mint,
    observers: Vec<Arc<Observer>>,
}

/// A client that wants to hear of a name.
struct Observer {
    name: Name,
    cord: Cord,
}

/// Ends the observing of one observer.
struct Observation {
    world: Arc<World>,
    observer: Arc<Observer>,
}

impl Memory {
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
        Memory::of(Arc::new(World { clock, state: Mutex::default() }))
    }

    fn of(world: Arc<World>) -> Memory {
        Memory(Arc::new(Client { world, cord: Cord::default() }))
    }

    /// Another client of the same store, as another process would be.
    pub fn another_client(&self) -> Memory {
        Memory::of(self.0.world.clone())
    }

    /// From now on no request of this client arrives, and no notification reaches it, until [`reconnect`](Memory::reconnect).
    pub fn cut_off(&self) {
        self.0.cord.set(Link::Cut);
    }

    /// From now on requests of this client arrive and are executed, but neither an answer nor a notification comes back: each is
    /// [`Ambiguous`](ErrorKind::Ambiguous), until [`reconnect`](Memory::reconnect).
    pub fn lose_replies(&self) {
        self.0.cord.set(Link::Mute);
    }

    /// Ends a [`cut_off`](Memory::cut_off) or [`lose_replies`](Memory::lose_replies).
    pub fn reconnect(&self) {
        self.0.cord.set(Link::Whole);
        self.0.cord.notifier.notify_all();
    }

    /// Runs `write` in one step with the check that `by` still holds its lock in this store; `None` if it does not. What other
    /// stores do by a condition in the resource's own transaction: no other holder gets between the check and the write.
    ///
    /// It is the store that decides, not what `by` believes: a hold that is over here is refused although its guard has not
    /// heard of it. All other users of the store wait, blocked, while `write` runs; one that uses the store waits for ever.
    pub fn while_held<R>(&self, by: &(impl Fenced + ?Sized), write: impl FnOnce() -> R) -> Option<R> {
        let place = by.place().filter(|_| by.is_valid())?;
        self.with_line(by.full_name(), |line, _, _| line.holds(&place, by.fencing_token()).then(write))
    }

    /// Ends the lease of whoever holds `name`, now, and tells it; says whether anybody did. The next waiter is served.
    pub fn expire(&self, name: impl Into<Name>) -> bool {
        self.end(&name.into(), Loss::Expired, |_| true)
    }

    /// Deletes the holder's entry of `name` without a word to anybody, as an operator's careless command would; says whether
    /// there was one.
    pub fn delete(&self, name: impl Into<Name>) -> bool {
        self.with_line(&name.into(), |line, _, _| line.forget_holders())
    }

    /// How many holders and waiters there are, over all names.
    pub fn entries(&self) -> usize {
        self.swept().lines.values().map(Queue::len).sum()
    }

    fn end(&self, name: &Name, loss: Loss, which: impl Fn(&line::Entry) -> bool) -> bool {
        self.with_line(name, |line, _, _| line.end(loss, which))
    }

    /// Works on one line, serves whoever is next, and leaves nothing behind of an empty line.
    fn with_line<T>(&self, name: &Name, work: impl FnOnce(&mut Queue, Moment, &mut Mint) -> T) -> T {
        let (mut state, now) = self.state_now();
        state.with_line(name, now, work)
    }

    /// The state without the dead, of whom nobody may have asked since they died.
    fn swept(&self) -> MutexGuard<'_, State> {
        let (mut state, now) = self.state_now();
        let State { lines, mint, .. } = &mut *state;
        lines.retain(|_, line| {
            line.settle(now, mint);
            line.len() > 0
        });
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.world.state()
    }

    /// The state, and the instant at which it was entered. Not one that was read before others had their turn: it would
    /// count from before what they did.
    fn state_now(&self) -> (MutexGuard<'_, State>, Moment) {
        let state = self.state();
        let now = self.0.world.clock.now();
        (state, now)
    }

    /// One request of this client. A store in memory never makes its caller wait, so that one who asks in a loop would never
    /// let go of its thread: each request counts for tokio's cooperative budget.
    async fn request<T>(&self, work: impl FnOnce(&Memory) -> Result<T>) -> Result<T> {
        consume_budget().await;
        if self.0.cord.is(Link::Cut) {
            return Err(Error::new(ErrorKind::Unavailable, "this client was cut off"));
        }
        let answer = work(self);
        if self.0.cord.is(Link::Mute) {
            return Err(Error::new(ErrorKind::Ambiguous, "this client hears no answers"));
        }
        answer
    }
}

impl State {
    /// Works on one line, serves whoever is next, and leaves nothing behind of an empty line.
    fn with_line<T>(&mut self, name: &Name, now: Moment, work: impl FnOnce(&mut Queue, Moment, &mut Mint) -> T) -> T {
        let State { lines, mint, observers } = self;
        let line = lines.entry(name.clone()).or_default();
        let before = line.face();
        line.settle(now, mint);
        let outcome = work(line, now, mint);
        line.settle(now, mint);
        if line.face() != before {
            observers.iter().filter(|observer| observer.name == *name).for_each(|o| o.cord.holder_changed(name));
        }
        if line.len() == 0 {
            lines.remove(name);
        }
        outcome
    }
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.world.state().observers.retain(|observer| !Arc::ptr_eq(observer, &self.observer));
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} names)", self.state().lines.len())
    }
}

#[async_trait]
impl Backend for Memory {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let take = |line: &mut Queue, now, mint: &mut Mint| line.claim(claim, &self.0.cord, now, mint);
        self.request(|store| store.with_line(&claim.name, take)).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let all = |store: &Memory| {
            let (mut state, now) = store.state_now();
            for (i, claim) in claims.iter().enumerate() {
                if let Some(who) = state.with_line(&claim.name, now, |line, now, _| line.before(claim.id, now)) {
                    return Ok(ClaimedAll::Busy(i, who));
                }
            }
            let cord = &self.0.cord;
            let take =
                |claim: &Claim| state.with_line(&claim.name, now, |line, now, mint| line.claim(claim, cord, now, mint));
            claims.iter().map(take).collect()
        };
        self.request(all).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let one = |store: &Memory, t: &LeaseRef| store.with_line(&t.claim.name, |line, now, _| line.renew(t, now));
        self.request(|store| Ok(leases.iter().map(|t| one(store, t)).collect())).await
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        let withdraw = |store: &Memory| {
            store.with_line(&claim.name, |line, _, _| line.remove(claim.id));
            Ok(())
        };
        self.request(withdraw).await
    }

    async fn release_after(&self, claim: &Claim, _place: Option<&Place>, rest: Duration) -> Result<()> {
        let lapse = |store: &Memory| {
            store.with_line(&claim.name, |line, now, _| line.lapse(claim.id, now + rest));
            Ok(())
        };
        self.request(lapse).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        self.request(|store| Ok(store.with_line(name, |line, _, _| line.inspect()))).await
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        let wanted = |name: &&Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| *name > after);
        self.request(|store| Ok(store.swept().lines.keys().filter(wanted).take(limit).cloned().collect())).await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.request(|store| Ok(store.end(name, Loss::Evicted, |entry| entry.owns(token)))).await
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("memory")
            .fencing(Fencing::WhileDataLives)
            .fairness(Fairness::Strict)
            .pushed_wake(true)
            .ttl(Duration::from_millis(50), Duration::from_nanos(1))
            .recovery(Duration::from_millis(5))
            .atomic_multi(usize::MAX)
            .min_hold_outlives_process(true)
            .notes("one process; lives and dies with it")
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.0.cord.notifier)
    }

    fn observe(&self, name: &Name) -> Subscription {
        let observer = Arc::new(Observer { name: name.clone(), cord: self.0.cord.clone() });
        self.state().observers.push(observer.clone());
        observer.cord.holder_changed(name);
        Subscription::new(Observation { world: self.0.world.clone(), observer })
    }

    fn clock(&self) -> Clock {
        self.0.world.clock.clone()
    }
}
