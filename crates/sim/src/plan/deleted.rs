//! Locks that are deleted while they are held for several leases. If no waiter of the holder's
//! client is in the queue, only a renewal can notice it.

use std::time::Duration;

use crate::plan::parts::{Do, Fault, Step, Wrong};

/// The greatest number of steps that hold a deleted lock for several leases, so that a holder
/// beside another one is seen.
const MOST: usize = 4;

/// Lets some steps hold a deleted lock for several leases, where leases are short.
pub(super) fn beside(
    random: &mut fastrand::Rng,
    faults: &mut [Fault],
    steps: &mut [Step],
    ttl: Duration,
) {
    for fault in faults {
        let Wrong::Delete(lock) = fault.what else {
            continue;
        };
        fault.lasts = 0;
        let uses = |step: &&mut Step| matches!(&step.what, Do::Lock(ask) if ask.lock == lock);
        let mut of_it: Vec<&mut Step> = steps.iter_mut().filter(uses).collect();
        random.shuffle(&mut of_it);
        for step in of_it.into_iter().take(MOST) {
            if let Do::Lock(ask) = &mut step.what {
                ask.holds = ttl * random.u32(2..5);
            }
        }
    }
}

/// Makes most deletions hit a lock that is held for several leases.
pub(super) fn outlast(
    random: &mut fastrand::Rng,
    faults: &mut [Fault],
    steps: &mut [Step],
    ttl: Duration,
) {
    for fault in faults
        .iter_mut()
        .filter(|fault| matches!(fault.what, Wrong::Delete(_)))
    {
        let nth = random.usize(..steps.len());
        if let Do::Lock(ask) = &mut steps[nth].what {
            ask.holds = ttl * random.u32(2..5);
            fault.what = Wrong::Delete(ask.lock);
            (fault.at, fault.lasts) = (random.u64(..2 * ttl.as_nanos() as u64), 0);
        }
    }
}
