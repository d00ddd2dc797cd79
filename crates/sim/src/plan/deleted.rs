//! Locks that are deleted while they are held for leases to come: where nobody of that client waits, only a renewal can tell.

use std::time::Duration;

use crate::plan::parts::{Do, Fault, Step, Wrong};

/// Steps of a lock that is deleted, at most, that hold it for leases: who holds it beside another one is to be seen.
const MOST: usize = 4;

/// Lets some hold a lock that is deleted as long, where leases are short.
pub(super) fn beside(random: &mut fastrand::Rng, faults: &mut [Fault], steps: &mut [Step], ttl: Duration) {
    for fault in faults {
        let Wrong::Delete(lock) = fault.what else { continue };
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

/// Makes most locks that are deleted such ones.
pub(super) fn outlast(random: &mut fastrand::Rng, faults: &mut [Fault], steps: &mut [Step], ttl: Duration) {
    for fault in faults.iter_mut().filter(|fault| matches!(fault.what, Wrong::Delete(_))) {
        let nth = random.usize(..steps.len());
        if let Do::Lock(ask) = &mut steps[nth].what {
            ask.holds = ttl * random.u32(2..5);
            fault.what = Wrong::Delete(ask.lock);
            (fault.at, fault.lasts) = (random.u64(..2 * ttl.as_nanos() as u64), 0);
        }
    }
}
