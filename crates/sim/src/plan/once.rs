//! Work that is done once, in place of some locks of a plan.

use std::time::Duration;

use leasehold_chaos::{Mode, Policy};

use crate::plan::parts::{Ask, Do, Ends, Step, Work};

/// The greatest fire. The fires of a world are few, so that they meet.
const FIRES: u64 = 3;

/// Replaces most exclusive locks by work of their names. The others stay, and share its queues.
pub(super) fn replace(random: &mut fastrand::Rng, steps: &mut [Step], ttl: Duration) {
    // A record takes the place of the one of the fire before, with its own keep.
    let keep = ttl.mul_f64(1.0 + random.f64());
    for step in steps {
        if let Do::Lock(ask) = &step.what
            && ask.mode == Mode::Exclusive
            && random.u8(..4) > 0
        {
            step.what = Do::Once(work(random, ask, (ttl, keep)));
            step.is_told = false;
        }
    }
}

fn work(random: &mut fastrand::Rng, ask: &Ask, (ttl, keep): (Duration, Duration)) -> Work {
    let soon = ttl.mul_f64(random.f64());
    Work {
        lock: ask.lock,
        fire: random.u64(..FIRES),
        keep,
        tries: ask.policy == Policy::Try,
        limit: ask.limit,
        leaves: ask.leaves,
        takes: ask.holds,
        ends: match random.u8(..12) {
            0 => Ends::Left(soon / 20),
            1 => Ends::Left(soon),
            2 => Ends::Failed,
            3 => Ends::Dropped,
            4 => Ends::Forgotten,
            _ => Ends::Done,
        },
    }
}
