//! Acquisitions that go by one claim in the store: the turns that tasks of a process take under it,
//! and re-entries by its owner.
//!
//! The store granted the claim once. If it has lost its data since, what goes by the claim is no
//! more than the claim was: it excludes nobody, and its token is one of before.

use std::collections::{BTreeMap, VecDeque};

use super::{Checker, tokens::Floor};

/// The number of claims that are remembered.
const KEPT: usize = 10_000;

#[derive(Default)]
pub(super) struct Claims {
    /// When the first acquisition of each was asked for, and the tokens that its own had to exceed.
    first: BTreeMap<u64, (u64, Floor)>,
    order: VecDeque<u64>,
}

impl Checker {
    /// The acquisition `op`, which is about to return, goes by this claim.
    pub(super) fn under(&mut self, op: u64, claim: u64) {
        let Some(lock) = self.ops.get(&op).map(|at| &mut self.locks[*at]) else {
            return;
        };
        let Some(waiter) = lock.waiting.get_mut(&op) else {
            return;
        };
        let Claims { first, order } = &mut self.claims;
        let (asked, floor) = *first.entry(claim).or_insert_with(|| {
            order.push_back(claim);
            (waiter.invoked.t, waiter.floor)
        });
        if self.faults.forfeits(&lock.name, asked, self.limits.lease) > 0 {
            (waiter.asked, waiter.floor) = (asked, floor);
        }
        while order.len() > KEPT {
            order.pop_front().map(|claim| first.remove(&claim));
        }
    }
}
