//! What happens in a world, all of it made from a seed before it begins: who asks for what, when, and which faults there are.

use std::time::Duration;

use crate::kind::Kind;
use crate::plan::faults::{Together, adapt, faults};
use crate::plan::steps::{Habits, steps, vary};

mod deleted;
mod faults;
mod parts;
mod steps;

pub(crate) use parts::{Air, Ask, Do, Fault, LEADER, LOCKS, MS, Message, Request, Step, Way, Wrong};

/// What is drawn of a world as a whole is drawn from other numbers than its steps and faults.
const STYLE: u64 = 0x5851_f42d_4c95_7f2d;

/// How long everybody may take to come to an end, beside what was planned.
const LONGEST: u64 = 40_000 * MS;

/// Which part of what a seed makes is left: the rest is as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The numbers of the steps; `None`: all.
    pub steps: Option<Vec<usize>>,
    /// The numbers of the faults.
    pub faults: Option<Vec<usize>>,
}

/// What happens in a world.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// How long one turn of all processes takes.
    pub(crate) tick: u64,
    /// The time in which pauses and holds are measured: mostly a lease.
    pub(crate) unit: Duration,
    pub(crate) ttl: Duration,
    pub(crate) air: Air,
    /// Waiters of the store `simple` ask again long before anything can have changed.
    pub(crate) polls: bool,
    /// How many runtimes each process has.
    pub(crate) processes: Vec<usize>,
    pub(crate) steps: Vec<Step>,
    pub(crate) faults: Vec<Fault>,
}

impl Plan {
    /// That of this seed for a store, or a part of it. What a seed decides on several stores is the same on all.
    pub(crate) fn of(kind: Kind, seed: u64, part: &Part) -> Plan {
        let mut random = fastrand::Rng::with_seed(seed);
        let scale = u64::from(kind.scale());
        let tick = scale * MS * [1, 2, 5][random.usize(0..3)];
        let unit = Duration::from_millis(random.u64(200..600)) * kind.scale();
        // What somebody leaves behind is in the way of others for a lease, and shows only if that is long.
        let ttl = unit * [1, 1, 1, 10][random.usize(0..4)];
        let ttl = if kind.is_etcd() { whole(ttl) } else { ttl };
        let more = [1, 4, 15][random.usize(0..3)] * MS;
        let air = Air { least: tick, more };
        let processes: Vec<usize> = (0..random.usize(2..=4)).map(|_| if random.u8(..3) == 0 { 2 } else { 1 }).collect();
        let mut style = fastrand::Rng::with_seed(seed ^ STYLE);
        let habits = Habits::draw(kind, &mut random, &mut style);
        // In a long queue, in which each client has little, a release of etcd names its successor.
        let crowd = kind.is_etcd() && seed.is_multiple_of(4);
        let processes = if crowd { vec![1; random.usize(12..=18)] } else { processes };
        let habits = if crowd { habits.crowded() } else { habits };
        let few = if habits.tell && !crowd { 2 } else { processes.len() };
        let processes = processes[..few].to_vec();
        let mut steps = steps(&mut random, &processes, unit, &habits);
        steps.retain(|step| !crowd || step.task < 2);
        vary(kind, &mut fastrand::Rng::with_seed(seed.rotate_left(32)), &mut steps, unit);
        let together =
            habits.together.then(|| Together::draw(&mut style, processes.len(), &habits.locks, unit.as_nanos() as u64));
        let mut faults = faults(&mut random, &processes, (&habits.locks, together.as_ref()), unit.as_nanos() as u64);
        adapt(kind, &mut fastrand::Rng::with_seed(!seed), &mut faults, together.as_ref(), unit);
        if kind.is_slow() {
            deleted::outlast(&mut fastrand::Rng::with_seed(seed.rotate_left(16)), &mut faults, &mut steps, ttl);
        } else if ttl == unit {
            deleted::beside(&mut style, &mut faults, &mut steps, ttl);
        }
        if habits.tell && style.bool() {
            // Without faults each refusal is judged.
            faults.clear();
        }
        let polls = style.bool();
        let mut plan = Plan { tick, unit, ttl, air, polls, processes, steps, faults };
        let left = |part: &Option<Vec<usize>>, nth| part.as_ref().is_none_or(|part| part.contains(&nth));
        plan.steps.retain(|step| left(&part.steps, step.nth));
        plan.faults.retain(|fault| left(&part.faults, fault.nth));
        plan
    }

    /// How long everybody may take to come to an end, if each waits for all others.
    pub(crate) fn longest(&self, kind: Kind) -> u64 {
        // Whose lock is lost can wait as long again, to write then.
        let planned: Duration = self.steps.iter().map(|step| step.pause + 2 * step.holds()).sum();
        LONGEST * u64::from(kind.scale()) + planned.as_nanos() as u64
    }
}

/// Whole seconds, two at least.
fn whole(ttl: Duration) -> Duration {
    Duration::from_secs((ttl + Duration::from_millis(999)).as_secs().max(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--store zookeeper --seed 43103` of before: a deleted lock is held for four leases, waited for as long again, and then taken once more
    /// for as long.
    #[test]
    fn a_world_has_the_time_that_its_holds_need() {
        for kind in Kind::ALL {
            let mut plan = Plan::of(kind, 43_103, &Part::default());
            plan.steps.truncate(2);
            let long = Duration::from_secs(120);
            for step in &mut plan.steps {
                step.what = Do::Both(None, long);
            }
            assert!(plan.longest(kind) > 4 * long.as_nanos() as u64, "{}", kind.name());
        }
    }
}
