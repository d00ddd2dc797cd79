//! Leases, by the leader's clock.

use std::collections::{BTreeMap, BTreeSet};

use crate::etcd::kv::PUT;
use crate::etcd::messages::Event;
use crate::plan::MS;

/// The shortest lease that is granted, in seconds: 1.5 election time-outs as etcd is shipped,
/// rounded up.
const LEAST: i64 = 2;
/// The longest lease, in seconds. A longer one is refused.
const MOST: i64 = 9_000_000_000;
/// The interval in nanoseconds at which the leader looks for leases that are over.
const ROUND: u64 = 500 * MS;

#[derive(Default)]
pub(crate) struct Leases {
    all: BTreeMap<i64, Lease>,
    /// The lease of each key.
    of_key: BTreeMap<Vec<u8>, i64>,
    next_round: u64,
}

pub(crate) struct Lease {
    pub(crate) ttl: i64,
    ends: u64,
    keys: BTreeSet<Vec<u8>>,
}

fn nanos(seconds: i64) -> u64 {
    seconds.unsigned_abs().saturating_mul(1000 * MS)
}

/// The reason why no lease is granted.
pub(crate) enum Refused {
    TooLong,
    Exists,
}

impl Leases {
    pub(crate) fn grant(&mut self, id: i64, ttl: i64, now: u64) -> Result<i64, Refused> {
        if ttl > MOST {
            return Err(Refused::TooLong);
        }
        if self.all.contains_key(&id) {
            return Err(Refused::Exists);
        }
        let ttl = ttl.max(LEAST);
        self.all.insert(
            id,
            Lease {
                ttl,
                ends: now.saturating_add(nanos(ttl)),
                keys: BTreeSet::new(),
            },
        );
        Ok(ttl)
    }

    pub(crate) fn get(&self, id: i64) -> Option<&Lease> {
        self.all.get(&id)
    }

    /// Renews a lease. Returns its TTL, or `None` if it is over.
    pub(crate) fn keep_alive(&mut self, id: i64, now: u64) -> Option<i64> {
        let lease = self.all.get_mut(&id).filter(|lease| lease.ends > now)?;
        lease.ends = now.saturating_add(nanos(lease.ttl));
        Some(lease.ttl)
    }

    /// Forgets a lease. Returns its keys, which the caller deletes.
    pub(crate) fn revoke(&mut self, id: i64) -> Option<BTreeSet<Vec<u8>>> {
        Some(self.all.remove(&id)?.keys)
    }

    /// The leases that are over, if the leader looks for them now.
    pub(crate) fn over(&mut self, now: u64) -> Vec<i64> {
        if self.next_round > now {
            return Vec::new();
        }
        self.next_round = now + ROUND;
        self.all
            .iter()
            .filter(|(_, lease)| lease.ends <= now)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Makes another member the leader: it gives each lease its whole TTL again, and the time that
    /// an election takes.
    pub(crate) fn promote(&mut self, election: u64, now: u64) {
        for lease in self.all.values_mut() {
            lease.ends = now
                .saturating_add(election)
                .saturating_add(nanos(lease.ttl));
        }
    }

    /// Moves changed keys to their leases.
    pub(crate) fn take_in(&mut self, changes: &[Event]) {
        for event in changes {
            let Some(kv) = &event.kv else { continue };
            if let Some(lease) = self
                .of_key
                .remove(&kv.key)
                .and_then(|id| self.all.get_mut(&id))
            {
                lease.keys.remove(&kv.key);
            }
            if event.kind == PUT && kv.lease != 0 {
                self.of_key.insert(kv.key.clone(), kv.lease);
                self.all
                    .entry(kv.lease)
                    .and_modify(|lease| _ = lease.keys.insert(kv.key.clone()));
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }
}
