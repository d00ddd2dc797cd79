//! Observations of a lock that many clients take in turn under faults: overlapping guards, falling
//! tokens, and the longest time without a grant.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]
#![allow(
    missing_docs,
    reason = "each does what its name says, and fails the test if it cannot"
)]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold_core::{Guard, Held, Store};
use tokio::{task::JoinHandle, time::timeout};

use crate::verbs::sleep;

/// The longest time that any task may wait, whatever happens.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// The number of tasks of each client that take the lock.
const TASKS: usize = 3;

/// The resource that the lock protects, which refuses a token below one that it has seen, and the
/// observations of its users.
#[derive(Debug, Default)]
pub struct Seen {
    /// The guards that may be valid now.
    held: Mutex<Vec<Held>>,
    grants: Mutex<Vec<Instant>>,
    granted: AtomicU64,
    written: AtomicU64,
    /// Guards that reported to be valid while another one did.
    pub overlaps: AtomicU64,
    /// Grants with a token that is no greater than an earlier one.
    pub stale: AtomicU64,
    /// Writes with a token below that of another write.
    pub refused: AtomicU64,
}

impl Seen {
    /// The greatest token so far: a grant that is requested from now on has a greater one.
    pub fn floor(&self) -> u64 {
        self.granted.load(Ordering::SeqCst)
    }

    /// Records a guard that was requested when `floor` was the floor.
    pub fn granted(&self, guard: &Guard, floor: u64) {
        let token = guard.fencing_token().get();
        assert!(
            token > floor,
            "token {token}, and {floor} had been granted before it was asked for"
        );
        let mut held = self.held.lock().unwrap();
        held.retain(Held::is_valid);
        if guard.is_valid() {
            self.overlaps.fetch_add(held.len() as u64, Ordering::SeqCst);
            held.push(guard.view());
        }
        self.stale.fetch_add(
            u64::from(self.granted.fetch_max(token, Ordering::SeqCst) >= token),
            Ordering::SeqCst,
        );
        self.grants.lock().unwrap().push(clock());
    }

    /// Writes with the guard's token. The resource may refuse it.
    pub fn write(&self, guard: &Guard) {
        let token = guard.fencing_token().get();
        let refused = self.written.fetch_max(token, Ordering::SeqCst) > token;
        self.refused.fetch_add(u64::from(refused), Ordering::SeqCst);
    }

    /// The number of grants.
    pub fn grants(&self) -> usize {
        self.grants.lock().unwrap().len()
    }

    /// The time from this instant to the next grant.
    pub fn next(&self, since: Instant) -> Option<Duration> {
        let grants = self.grants.lock().unwrap();
        grants
            .iter()
            .find(|at| **at > since)
            .map(|at| at.duration_since(since))
    }

    /// The longest time without a grant after this instant.
    pub fn longest_wait(&self, since: Instant) -> Duration {
        let grants = self.grants.lock().unwrap();
        let times = grants.iter().copied().filter(|at| *at > since);
        let mut before = since;
        let waits = times.map(|at| at.duration_since(std::mem::replace(&mut before, at)));
        waits.max().unwrap_or_default()
    }
}

/// A thread that looks at the clock all the time and records the longest time for which it did not
/// run, on an overloaded machine.
#[derive(Debug)]
struct Stalls(Arc<AtomicU64>);

impl Stalls {
    fn watch() -> Stalls {
        let longest = Arc::new(AtomicU64::new(0));
        let watched = Arc::downgrade(&longest);
        thread::spawn(move || {
            let mut last = clock();
            while let Some(longest) = watched.upgrade() {
                thread::sleep(Duration::from_millis(10));
                let stood = u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX);
                longest.fetch_max(stood, Ordering::SeqCst);
                last = clock();
            }
        });
        Stalls(longest)
    }
}

/// Tasks of several clients that take a lock in turn until they are ended.
#[derive(Debug)]
pub struct Turns {
    pub seen: Arc<Seen>,
    stalls: Stalls,
    ends: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<[Duration; 2]>>,
}

impl Turns {
    pub fn of(stores: &[Store]) -> Turns {
        let seen = Arc::new(Seen::default());
        let ends = Arc::new(AtomicBool::new(false));
        let each = stores.iter().flat_map(|store| [store; TASKS]);
        let tasks = each
            .map(|store| tokio::spawn(take_turns(store.clone(), seen.clone(), ends.clone())))
            .collect();
        Turns {
            seen,
            stalls: Stalls::watch(),
            ends,
            tasks,
        }
    }

    /// Returns the hold if it is still valid, or else another one. A hold may be lost only if no
    /// task was served for long: on an overloaded machine the servers stand still, and renew
    /// nothing.
    pub async fn check(&self, held: Guard, store: &Store, lease: Duration) -> Guard {
        if held.is_valid() {
            return held;
        }
        let stood = self.stalls.0.load(Ordering::SeqCst);
        let unserved = clock()
            .checked_sub(lease * 3)
            .map_or(Duration::ZERO, |since| self.seen.longest_wait(since));
        let what = format!(
            "{:?}; ms: nobody was served for {}, no thread ran for {stood}",
            held.check(),
            unserved.as_millis()
        );
        assert!(unserved > lease / 2, "{what}");
        println!("{what}");
        timeout(PATIENCE, acquired(store, held.name().as_str()))
            .await
            .unwrap()
    }

    /// Waits for this number of further grants.
    pub async fn go_on(&self, times: usize) {
        let before = self.seen.grants();
        while self.seen.grants() < before + times {
            sleep(5).await;
        }
    }

    /// Ends the tasks once each has had its turn. Returns the observations, for tests in which two
    /// may have held at once.
    pub async fn finish(self) -> Arc<Seen> {
        self.ends.store(true, Ordering::SeqCst);
        let mut first = Vec::new();
        let mut longest = Vec::new();
        for task in self.tasks {
            let waits = task.await.unwrap().map(|wait| wait.as_millis());
            first.push(waits[0]);
            longest.push(waits[1]);
        }
        let stood = self.stalls.0.load(Ordering::SeqCst);
        println!(
            "ms that each task waited for its first turn: {first:?}; for another at most: {longest:?}; that no thread ran: {stood}"
        );
        self.seen
    }

    /// Ends the tasks as [`finish`](Self::finish) does, and fails if two have held at once, or one
    /// has written after a later one. Returns the number of grants.
    pub async fn end(self) -> usize {
        let seen = self.finish().await;
        let faults =
            [&seen.overlaps, &seen.stale, &seen.refused].map(|all| all.load(Ordering::SeqCst));
        assert_eq!(
            faults, [0; 3],
            "overlaps, tokens that fell, writes that were refused"
        );
        seen.grants()
    }
}

/// Takes the lock again and again, whatever outages there are. Returns the wait for the first turn,
/// and the longest wait after that.
async fn take_turns(store: Store, seen: Arc<Seen>, ends: Arc<AtomicBool>) -> [Duration; 2] {
    let mut waits = [Duration::ZERO; 2];
    while !ends.load(Ordering::SeqCst) || waits[0].is_zero() {
        let floor = seen.floor();
        let asked = clock();
        let guard = timeout(PATIENCE, acquired(&store, "x")).await.unwrap();
        let longest = &mut waits[usize::from(!waits[0].is_zero())];
        *longest = asked.elapsed().max(*longest);
        seen.granted(&guard, floor);
        sleep(2).await;
        seen.write(&guard);
        // A release without an answer goes on in the background.
        let _ = guard.release().await;
    }
    waits
}

/// Acquires the lock, whatever outages there are.
pub async fn acquired(store: &Store, name: &str) -> Guard {
    loop {
        match store.lock(name).acquire().await {
            Ok(guard) => return guard,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "how long something takes")]
pub fn clock() -> Instant {
    Instant::now()
}

/// Prints the times without a grant that faults of this kind caused.
pub fn told(what: &str, mut waits: Vec<Duration>) {
    waits.sort();
    let Some(last) = waits.len().checked_sub(1) else {
        return;
    };
    let at = |part: usize| waits[(last * part).div_ceil(100)].as_millis();
    let least = at(0);
    let half = at(50);
    let most = at(90);
    let all = last + 1;
    println!(
        "{what}: {all} faults; ms without a grant: least {least}, half {half}, p90 {most}, most {}",
        at(100)
    );
}
