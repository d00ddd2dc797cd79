//! What the ideal lock service keeps of a lock.

use leasehold_chaos::{Limits, Mode, Policy};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const TTL: u64 = 60 * MS;
/// How much earlier than the lease the validity ends.
pub(crate) const MARGIN: u64 = 3 * MS;

pub(crate) fn limits() -> Limits {
    let mut limits = Limits::default();
    (limits.wake, limits.settle, limits.late) = (20 * MS, TTL + 10 * MS, 20 * MS);
    limits
}

/// A process that stands still.
#[derive(Clone, Copy)]
pub(crate) struct Paused {
    pub(crate) until: u64,
    pub(crate) since: u64,
    /// The number of the fault.
    pub(crate) fault: u64,
}

/// A place in a queue, waiting or granted.
pub(crate) struct Claim {
    pub(crate) p: u64,
    pub(crate) owner: Option<u64>,
    pub(crate) mode: Mode,
    pub(crate) policy: Policy,
    pub(crate) deadline: Option<u64>,
    /// The acquisitions that have a guard of it, or the one that waits.
    pub(crate) guards: Vec<u64>,
    pub(crate) tok: Option<u64>,
    /// Whether its client has heard of the grant.
    pub(crate) told: bool,
    pub(crate) lost: bool,
    pub(crate) renewing: bool,
    pub(crate) sent: u64,
}

impl Claim {
    pub(crate) fn empty() -> Claim {
        let (mode, policy) = (Mode::Exclusive, Policy::Fair);
        let (owner, deadline, tok, guards) = (None, None, None, Vec::new());
        Claim {
            p: 0,
            owner,
            mode,
            policy,
            deadline,
            guards,
            tok,
            told: false,
            lost: false,
            renewing: false,
            sent: 0,
        }
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) name: String,
    pub(crate) claims: Vec<Claim>,
    /// What the store has forgotten, and its client has not noticed.
    pub(crate) forgotten: Vec<Claim>,
    pub(crate) seen: u64,
}

pub(crate) fn permits(mode: Mode) -> u32 {
    if let Mode::Permits { n, .. } = mode {
        n
    } else {
        0
    }
}

pub(crate) fn conflict(a: Mode, b: Mode) -> bool {
    match (a, b) {
        (Mode::Permits { of, .. }, Mode::Permits { of: same, .. }) => of != same,
        _ => a != b || a.is_exclusive(),
    }
}
