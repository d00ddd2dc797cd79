//! What is seen of a lock that many take in turn under faults: whether guards overlap, whether tokens rise, and how long nobody got it.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{Guard, Held};

use crate::support::clock;

/// What the lock protects, which refuses a token below one that it has seen; and what its users have seen.
#[derive(Default)]
pub struct Seen {
    /// The guards that may be valid now.
    held: Mutex<Vec<Held>>,
    grants: Mutex<Vec<Instant>>,
    granted: AtomicU64,
    written: AtomicU64,
    /// Guards that said that they are valid while another one did.
    pub overlaps: AtomicU64,
    /// Grants with a token that is no greater than one of before.
    pub stale: AtomicU64,
    /// Writes with a token below that of another write.
    pub refused: AtomicU64,
}

impl Seen {
    /// The greatest token so far: a grant that is asked for from now on has a greater one.
    pub fn floor(&self) -> u64 {
        self.granted.load(Ordering::SeqCst)
    }

    /// A guard that was asked for when this was the floor.
    pub fn granted(&self, guard: &Guard, floor: u64) {
        let token = guard.fencing_token().get();
        assert!(token > floor, "token {token}, and {floor} had been granted before it was asked for");
        let mut held = self.held.lock().unwrap();
        held.retain(Held::is_valid);
        if guard.is_valid() {
            self.overlaps.fetch_add(held.len() as u64, Ordering::SeqCst);
            held.push(guard.view());
        }
        self.stale.fetch_add(u64::from(self.granted.fetch_max(token, Ordering::SeqCst) >= token), Ordering::SeqCst);
        self.grants.lock().unwrap().push(clock());
    }

    /// Writes with the guard's token, which the resource may refuse.
    pub fn write(&self, guard: &Guard) {
        let token = guard.fencing_token().get();
        let refused = self.written.fetch_max(token, Ordering::SeqCst) > token;
        self.refused.fetch_add(u64::from(refused), Ordering::SeqCst);
    }

    /// How many grants there were.
    pub fn grants(&self) -> usize {
        self.grants.lock().unwrap().len()
    }

    /// The first grant after this instant.
    pub fn next(&self, since: Instant) -> Option<Duration> {
        let grants = self.grants.lock().unwrap();
        grants.iter().find(|at| **at > since).map(|at| at.duration_since(since))
    }

    /// For how long nobody was granted the lock after this instant.
    pub fn longest_wait(&self, since: Instant) -> Duration {
        let grants = self.grants.lock().unwrap();
        let times = grants.iter().copied().filter(|at| *at > since);
        let mut before = since;
        let waits = times.map(|at| at.duration_since(std::mem::replace(&mut before, at)));
        waits.max().unwrap_or_default()
    }
}

/// Prints how long faults of this kind kept everybody waiting.
pub fn told(what: &str, mut waits: Vec<Duration>) {
    waits.sort();
    let Some(last) = waits.len().checked_sub(1) else { return };
    let at = |part: usize| waits[(last * part).div_ceil(100)].as_millis();
    let (least, half, most, all) = (at(0), at(50), at(90), last + 1);
    println!("{what}: {all} faults; ms without a grant: least {least}, half {half}, p90 {most}, most {}", at(100));
}
