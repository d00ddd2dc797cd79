//! Time that counts suspend: the only clock that validity may be computed from, and its virtual
//! twin for tests.
//!
//! Validity must be computed from a clock that counts suspend. On Linux `CLOCK_MONOTONIC`, and with
//! it `std::time::Instant`, stands still while the machine sleeps: after a resume a guard would be
//! valid that another client's guard has replaced hours ago.
//!
//! Tokio's timers use that clock too. Therefore a sleep here is made of slices, and looks at the
//! right clock after each: after a resume it is late by one slice at most. The slices of all
//! sleepers end at the same instants, so a process with thousands of locks wakes as seldom as one
//! with a single lock.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::support::locked;
use crate::support::sync::Mutex;
use crate::support::system;

/// Tokio's timers run on CLOCK_MONOTONIC, which stops while the machine is suspended. Sleeping in
/// slices bounds how late a timer can fire after a resume.
const SLICE: Duration = Duration::from_millis(250);

/// The slices of sleepers without a hold. A multiple of [`SLICE`], so that all wake together.
const COARSE_SLICE: Duration = Duration::from_secs(4);

/// An instant on the clock that counts suspend (`CLOCK_BOOTTIME` on Linux), in nanoseconds.
///
/// It is the only kind of instant that core and a store exchange: `std::time::Instant` stops during
/// suspend on Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Now, on the machine's clock that counts suspend. A store that takes an injected clock asks
    /// [`Clock::now`](crate::backend::Clock::now).
    pub fn now() -> Moment {
        Moment(system::nanos())
    }

    /// The instant so many nanoseconds after the clock's zero. With
    /// [`Moment::as_nanos`](crate::backend::Moment::as_nanos), a store lets a server return the
    /// instant at which it sent a request.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this instant; zero if `earlier` is not earlier.
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This long before this moment, not before the clock's zero.
    pub(crate) fn before(self, d: Duration) -> Moment {
        Moment(
            self.0
                .saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, d: Duration) -> Moment {
        Moment(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Moment({:?})", Duration::from_nanos(self.0))
    }
}

/// The clock that core reads: the machine's, or that of a
/// [`VirtualClock`](crate::backend::VirtualClock).
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Virtual>>);

/// Time that a test makes, and the tasks that sleep in it.
#[derive(Debug)]
struct Virtual {
    now: watch::Sender<Moment>,
    /// The number of sleepers for each instant at which they wake.
    sleepers: Mutex<BTreeMap<Moment, usize>>,
}

impl Clock {
    /// The machine's clock.
    pub const fn boot() -> Clock {
        Clock(None)
    }

    /// Returns whether instants of both clocks can be compared.
    pub fn is_same(&self, other: &Clock) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }

    /// Now, on this clock.
    pub fn now(&self) -> Moment {
        match &self.0 {
            None => Moment::now(),
            Some(time) => *time.now.borrow(),
        }
    }

    /// Completes when this clock has reached `at`.
    ///
    /// On the machine's clock it needs a tokio runtime with timers. Tokio's timers stop during
    /// suspend, so it sleeps in slices; after a suspend it is late by at most a quarter of a
    /// second.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped at any await.
    pub async fn sleep_until(&self, at: Moment) {
        self.sleep_in(SLICE, at).await;
    }

    /// Completes when this clock has reached `at`. It is for sleepers without a hold: after a
    /// suspend it is late by at most four seconds.
    pub(crate) async fn coarse_sleep_until(&self, at: Moment) {
        self.sleep_in(COARSE_SLICE, at).await;
    }

    async fn sleep_in(&self, slices: Duration, at: Moment) {
        match &self.0 {
            None => {
                while let Some(slice) = slice(slices, Moment::now(), at) {
                    tokio::time::sleep(slice).await;
                }
            }
            Some(time) => time.sleep_until(at).await,
        }
    }

    /// Completes after `d` on this clock. See [`sleep_until`](crate::backend::Clock::sleep_until).
    ///
    /// # Cancel safety
    ///
    /// It can be dropped at any await.
    pub async fn sleep(&self, d: Duration) {
        self.sleep_until(self.now() + d).await;
    }
}

/// The length of the next sleep; `None` at the end. The slices of all sleepers end at the same
/// instants, however many sleepers there are and whenever they began: a process with thousands of
/// them wakes as seldom as a process with one.
fn slice(slices: Duration, now: Moment, at: Moment) -> Option<Duration> {
    let left = at.since(now);
    let over = Duration::from_nanos(now.0 % slices.as_nanos() as u64);
    (!left.is_zero()).then(|| left.min(slices - over))
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("Clock(boot)"),
            Some(time) => write!(f, "Clock(virtual, {:?})", *time.now.borrow()),
        }
    }
}

impl Virtual {
    async fn sleep_until(&self, at: Moment) {
        let mut now = self.now.subscribe();
        *locked(&self.sleepers).entry(at).or_default() += 1;
        let _asleep = Asleep { time: self, at };
        // The sender is ours, so the wait cannot fail.
        drop(now.wait_for(|now| *now >= at).await);
    }
}

/// One sleeper.
struct Asleep<'a> {
    time: &'a Virtual,
    at: Moment,
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let mut sleepers = locked(&self.time.sleepers);
        if let Some(others) = sleepers.get_mut(&self.at) {
            *others -= 1;
            if *others == 0 {
                sleepers.remove(&self.at);
            }
        }
    }
}

/// A clock that stands still until a test advances it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use leasehold_core::backend::VirtualClock;
///
/// let time = VirtualClock::new();
/// let (clock, before) = (time.clock(), time.clock().now());
/// time.advance(Duration::from_secs(10)); // takes no time
/// assert_eq!(clock.now().since(before), Duration::from_secs(10));
/// ```
#[derive(Clone, Debug)]
pub struct VirtualClock(Arc<Virtual>);

impl VirtualClock {
    /// A clock that stands at one hour after its zero.
    pub fn new() -> VirtualClock {
        let now = watch::Sender::new(Moment(3_600_000_000_000));
        VirtualClock(Arc::new(Virtual {
            now,
            sleepers: Mutex::default(),
        }))
    }

    /// The clock to give to a store.
    pub fn clock(&self) -> Clock {
        Clock(Some(self.0.clone()))
    }

    /// Lets `d` pass in one leap, as if the process had been paused.
    ///
    /// Tasks that sleep until then or earlier wake up afterwards, and find that they are late. A
    /// hold whose renewals were due in between is lost.
    /// [`pass`](crate::backend::VirtualClock::pass) lets time pass as for a process that runs.
    pub fn advance(&self, d: Duration) {
        self.0.now.send_modify(|now| *now = *now + d);
    }

    /// Lets `d` pass step by step, from one sleeper's instant to the next, so that each runs at its
    /// own time: holds are renewed meanwhile.
    ///
    /// It lets the other tasks of the current runtime run in between, so it needs a runtime of a
    /// single thread, as `#[tokio::test]` has. Tasks that wait for a socket are not waited for.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the clock stands somewhere between the two instants.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold_core::backend::VirtualClock;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let time = VirtualClock::new();
    /// let clock = time.clock();
    /// let ticks = tokio::spawn(async move {
    ///     for _ in 0..3 {
    ///         clock.sleep(Duration::from_secs(1)).await;
    ///     }
    /// });
    /// time.pass(Duration::from_secs(3)).await; // each sleep ends at its own time
    /// assert!(ticks.await.is_ok());
    /// # });
    /// ```
    pub async fn pass(&self, d: Duration) {
        let end = self.clock().now() + d;
        // A task that was woken just now falls asleep first.
        settle().await;
        loop {
            let now = self.clock().now();
            let sleeps_until = locked(&self.0.sleepers)
                .keys()
                .find(|at| **at > now)
                .copied();
            let next = sleeps_until.map_or(end, |at| at.min(end)).max(now);
            self.0.now.send_modify(|now| *now = (*now).max(next));
            // A sleeper that is kept but not polled never runs, so the wait for it is bounded.
            for _ in 0..TURNS {
                if locked(&self.0.sleepers)
                    .keys()
                    .next()
                    .is_none_or(|at| *at > next)
                {
                    break;
                }
                tokio::task::yield_now().await;
            }
            settle().await;
            if next >= end {
                return;
            }
        }
    }
}

/// The greatest number of times that `pass` yields until every sleeper whose instant has come has
/// run, and the number of times that it yields so that the work they start is done.
const TURNS: usize = 1000;
const SETTLING: usize = 50;

async fn settle() {
    for _ in 0..SETTLING {
        tokio::task::yield_now().await;
    }
}

impl Default for VirtualClock {
    fn default() -> VirtualClock {
        VirtualClock::new()
    }
}

#[cfg(test)]
mod tests;
