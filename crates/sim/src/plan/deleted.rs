//! Locks that are deleted while they are held for leases to come: where nobody of that client waits, only a renewal can tell.

use std::time::Duration;

use crate::plan::{Do, Fault, Step, Wrong};

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
