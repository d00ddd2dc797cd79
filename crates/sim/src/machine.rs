//! Replaces the operating system for the code under test: the time, random numbers, and connections
//! to servers.
//!
//! A runtime of a simulated process has tokio's paused clock: its time is that of its timers, and
//! passes only while it is driven. Code outside of a runtime, such as a server, reads the time of
//! the world.

use std::cell::{Cell, RefCell};
use std::io;

use leasehold_core::support::{Machine, Stream, simulate};
use tokio::time::Instant;

thread_local! {
    /// The time of the world.
    static NOW: Cell<u64> = const { Cell::new(0) };
    /// While a runtime is driven: an instant of its clock, and the time of the world at that
    /// instant.
    static CLOCK: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    /// The latest time that the process has read, perhaps in another one of its runtimes.
    static READ: Cell<u64> = const { Cell::new(0) };
    /// The number of readings in this turn, and whether there were ever too many.
    static READS: Cell<u32> = const { Cell::new(0) };
    static SPINS: Cell<bool> = const { Cell::new(false) };
    /// The process that is driven.
    static PROCESS: Cell<usize> = const { Cell::new(0) };
    /// The function by which a process reaches the server of a host's name.
    static DIAL: RefCell<Option<Dial>> = const { RefCell::new(None) };
    static RANDOM: RefCell<fastrand::Rng> = const { RefCell::new(fastrand::Rng::with_seed(0)) };
}

/// The greatest number of clock readings in one turn of a runtime. Only a task that runs in a
/// circle has more.
const MOST_READS: u32 = 100_000;

/// The wall clock at the world's time 0, in microseconds since 1970.
const EPOCH: u64 = 1_795_000_000_000_000;

/// Connects a process with the server of a host's name.
pub(crate) type Dial = Box<dyn Fn(usize, &str) -> io::Result<Box<dyn Stream>>>;

/// Keeps this thread on the simulated machine for as long as this value lives.
pub(crate) struct Simulated;

impl Simulated {
    pub(crate) fn with_seed(seed: u64, now: u64) -> Simulated {
        RANDOM.replace(fastrand::Rng::with_seed(seed));
        // This seeds code that asks for no seed of its own.
        fastrand::seed(seed);
        SPINS.set(false);
        outside(now);
        simulate(Some(Machine {
            nanos: now_nanos,
            wall,
            random,
            dial,
        }));
        Simulated
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        simulate(None);
        DIAL.take();
    }
}

/// Makes processes reach servers by this function, from now on.
pub(crate) fn dial_by(dial: Dial) {
    DIAL.replace(Some(dial));
}

fn dial(host: &str, _port: u16) -> io::Result<Box<dyn Stream>> {
    let nobody = || {
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("no server is called {host}"),
        ))
    };
    DIAL.with_borrow(|dial| {
        dial.as_ref()
            .map_or_else(nobody, |dial| dial(PROCESS.get(), host))
    })
}

/// The wall clock at this time.
pub(crate) fn wall_of(nanos: u64) -> u64 {
    EPOCH + nanos / 1000
}

fn wall() -> u64 {
    wall_of(now_nanos())
}

/// From now on, no runtime is driven, and this is the time.
pub(crate) fn outside(now: u64) {
    CLOCK.set(None);
    READ.set(0);
    READS.set(0);
    NOW.set(now);
}

/// From now on, a runtime of this process is driven. `clock` is an instant of its clock and the
/// time at that instant. `read` is the latest time that the process has read.
pub(crate) fn inside(process: usize, clock: (Instant, u64), read: u64) {
    PROCESS.set(process);
    CLOCK.set(Some(clock));
    READ.set(read);
    READS.set(0);
}

/// The current time, as the code under test sees it. Within a process it never goes back.
pub(crate) fn now_nanos() -> u64 {
    let now = match CLOCK.get() {
        Some((instant, at)) => at + u64::try_from(instant.elapsed().as_nanos()).unwrap_or(u64::MAX),
        None => NOW.get(),
    };
    READ.set(READ.get().max(now));
    READS.set(READS.get() + 1);
    if READS.get() > MOST_READS {
        SPINS.set(true);
        READS.set(0);
        // Nothing else ends a task that never yields.
        #[expect(clippy::panic, reason = "the task ends, and the world says why")]
        {
            panic!("a task runs in a circle");
        }
    }
    READ.get()
}

/// Returns whether a task ran in a circle.
pub(crate) fn has_spun() -> bool {
    SPINS.get()
}

/// The latest time that was read in this process. After its runtime was driven, the clock of that
/// runtime tells nothing.
pub(crate) fn read() -> u64 {
    READ.get()
}

fn random(bytes: &mut [u8]) {
    RANDOM.with_borrow_mut(|random| random.fill(bytes));
}
