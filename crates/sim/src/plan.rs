//! The plan of a world, made from a seed before the world begins: all requests, their times, and
//! the faults.

use std::time::Duration;

use crate::kind::Kind;
use crate::plan::faults::{Together, adapt, faults};
use crate::plan::steps::{Habits, steps, vary};

mod deleted;
mod faults;
mod once;
mod parts;
mod steps;

pub(crate) use parts::{
    Air, Ask, Do, Ends, Fault, LEADER, LOCKS, MS, Message, Request, Step, Way, Work, Wrong,
};

/// Changes the seed for properties of a world as a whole, so that they are drawn from other numbers
/// than its steps and faults.
const STYLE: u64 = 0x5851_f42d_4c95_7f2d;

/// The time, in nanoseconds, that everybody may take to come to an end, besides the planned time.
const LONGEST: u64 = 40_000 * MS;

/// The part of a seed's plan that is left. Leaving out the rest changes nothing in this part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The numbers of the steps; `None` for all.
    pub steps: Option<Vec<usize>>,
    /// The numbers of the faults; `None` for all.
    pub faults: Option<Vec<usize>>,
}

/// The plan of a world.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The length of one turn of all processes, in nanoseconds.
    pub(crate) tick: u64,
    /// The unit of pauses and holds: mostly a lease.
    pub(crate) unit: Duration,
    pub(crate) ttl: Duration,
    pub(crate) air: Air,
    /// Waiters of the store `simple` ask again long before anything can have changed.
    pub(crate) polls: bool,
    /// The number of runtimes of each process.
    pub(crate) processes: Vec<usize>,
    pub(crate) steps: Vec<Step>,
    pub(crate) faults: Vec<Fault>,
}

impl Plan {
    /// The plan of this seed for a store, or a part of it. Decisions of a seed that concern several
    /// stores are equal for all of them.
    pub(crate) fn of(kind: Kind, seed: u64, part: &Part) -> Plan {
        let mut random = fastrand::Rng::with_seed(seed);
        let scale = u64::from(kind.scale());
        let tick = scale * MS * [1, 2, 5][random.usize(0..3)];
        let unit = Duration::from_millis(random.u64(200..600)) * kind.scale();
        // Records that a client leaves behind are in the way of others for a lease. This shows only
        // if the lease is long.
        let ttl = unit * [1, 1, 1, 10][random.usize(0..4)];
        let ttl = if kind.is_etcd() { whole(ttl) } else { ttl };
        let more = [1, 4, 15][random.usize(0..3)] * MS;
        let air = Air { least: tick, more };
        let processes: Vec<usize> = (0..random.usize(2..=4))
            .map(|_| if random.u8(..3) == 0 { 2 } else { 1 })
            .collect();
        let mut style = fastrand::Rng::with_seed(seed ^ STYLE);
        let habits = Habits::draw(kind, &mut random, &mut style);
        // In a long queue of clients that have few steps each, a release of etcd names its
        // successor.
        let crowd = kind.is_etcd() && seed.is_multiple_of(4);
        let processes = if crowd {
            vec![1; random.usize(12..=18)]
        } else {
            processes
        };
        let habits = if crowd { habits.crowded() } else { habits };
        let few = if habits.tell && !crowd {
            2
        } else {
            processes.len()
        };
        let processes = processes[..few].to_vec();
        let mut steps = steps(&mut random, &processes, unit, &habits);
        steps.retain(|step| !crowd || step.task < 2);
        vary(
            kind,
            &mut fastrand::Rng::with_seed(seed.rotate_left(32)),
            &mut steps,
            unit,
        );
        let together = habits.together.then(|| {
            Together::draw(
                &mut style,
                processes.len(),
                &habits.locks,
                unit.as_nanos() as u64,
            )
        });
        let mut faults = faults(
            &mut random,
            &processes,
            (&habits.locks, together.as_ref()),
            unit.as_nanos() as u64,
        );
        adapt(
            kind,
            &mut fastrand::Rng::with_seed(!seed),
            &mut faults,
            together.as_ref(),
            unit,
        );
        if kind.is_slow() {
            deleted::outlast(
                &mut fastrand::Rng::with_seed(seed.rotate_left(16)),
                &mut faults,
                &mut steps,
                ttl,
            );
        } else if ttl == unit {
            deleted::beside(&mut style, &mut faults, &mut steps, ttl);
        }
        if habits.tell && style.bool() {
            // Without faults, each refusal is judged.
            faults.clear();
        }
        let polls = style.bool();
        if kind.does_once() && style.u8(..3) == 0 {
            once::replace(&mut style, &mut steps, ttl);
        }
        let mut plan = Plan {
            tick,
            unit,
            ttl,
            air,
            polls,
            processes,
            steps,
            faults,
        };
        let left =
            |part: &Option<Vec<usize>>, nth| part.as_ref().is_none_or(|part| part.contains(&nth));
        plan.steps.retain(|step| left(&part.steps, step.nth));
        plan.faults.retain(|fault| left(&part.faults, fault.nth));
        plan
    }

    /// The time, in nanoseconds, that everybody may take to come to an end, if each waits for all
    /// others.
    pub(crate) fn longest(&self, kind: Kind) -> u64 {
        // A client whose lock is lost may wait as long again before it writes.
        let planned: Duration = self
            .steps
            .iter()
            .map(|step| step.pause + 2 * step.holds())
            .sum();
        LONGEST * u64::from(kind.scale()) + planned.as_nanos() as u64
    }
}

/// Rounds up to whole seconds, two at least.
fn whole(ttl: Duration) -> Duration {
    Duration::from_secs((ttl + Duration::from_millis(999)).as_secs().max(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--store zookeeper --seed 43103` of an earlier plan: a deleted lock is held for four leases,
    /// waited for as long again, and then taken once more for as long.
    #[test]
    fn a_world_has_the_time_that_its_holds_need() {
        for kind in Kind::ALL {
            let mut plan = Plan::of(kind, 43_103, &Part::default());
            plan.steps.truncate(2);
            let long = Duration::from_secs(120);
            for step in &mut plan.steps {
                step.what = Do::Both(None, long);
            }
            assert!(
                plan.longest(kind) > 4 * long.as_nanos() as u64,
                "{}",
                kind.name()
            );
        }
    }
}
