//! What happens in a world, all of it made from a seed before it begins: who asks for what, when, and which faults there are.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_chaos::{Mode, Policy};

use crate::kind::{Kind, Own};
use crate::plan::faults::{Together, adapt, faults};
use crate::plan::steps::{Habits, steps, vary};

mod deleted;
mod faults;
mod steps;

pub(crate) const MS: u64 = 1_000_000;

/// The locks: two whose names begin alike, one of each other primitive, and one that tasks of a process pass on.
pub(crate) const LOCKS: [&str; 6] = ["orders", "orders/1", "catalog", "slots", LEADER, "counter"];
pub(crate) const LEADER: &str = "leader";

/// What is drawn of a world as a whole is drawn from other numbers than its steps and faults.
const STYLE: u64 = 0x5851_f42d_4c95_7f2d;

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

/// What the network is like.
#[derive(Clone, Debug)]
pub(crate) struct Air {
    /// The least time on the way, and how much more it usually is.
    least: u64,
    more: u64,
}

impl Air {
    pub(crate) fn latency(&self, random: &mut fastrand::Rng) -> u64 {
        // Few take long.
        let long = if random.u8(..16) == 0 { 8 } else { 1 };
        self.least + random.u64(0..=self.more * long)
    }
}

/// What a task does next.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) nth: usize,
    pub(crate) process: usize,
    pub(crate) task: usize,
    pub(crate) pause: Duration,
    /// It does not wait so long if it is told before that its lock was released.
    pub(crate) is_told: bool,
    pub(crate) what: Do,
}

#[derive(Clone, Debug)]
pub(crate) enum Do {
    Lock(Ask),
    /// Two locks at once: for how long it waits, unless it only tries, and how long it holds them.
    Both(Option<Duration>, Duration),
    /// Reads the queue of a lock.
    Look(&'static str),
}

/// An acquisition, and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) lock: &'static str,
    pub(crate) mode: Mode,
    pub(crate) policy: Policy,
    /// How long the library may wait.
    pub(crate) limit: Option<Duration>,
    /// After how long the caller leaves.
    pub(crate) leaves: Option<Duration>,
    pub(crate) owned: bool,
    pub(crate) holds: Duration,
    pub(crate) writes: bool,
    pub(crate) confirms: bool,
    pub(crate) downgrades: bool,
    /// The longest that it may hold.
    pub(crate) most: Option<Duration>,
    pub(crate) drops: bool,
}

/// Something that goes wrong for a while.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) nth: usize,
    /// When, or from when on its moment may come.
    pub(crate) at: u64,
    pub(crate) lasts: u64,
    pub(crate) moment: Option<Moment>,
    pub(crate) what: Wrong,
}

/// A message of a process: what it is about, and which way.
pub(crate) type Message = (usize, Request, Way);

/// A fault is made when such a message was sent, before it arrives, or so much later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) message: Message,
    pub(crate) later: u64,
    /// At the latest.
    pub(crate) by: u64,
}

impl Fault {
    /// These were sent just now.
    pub(crate) fn notice(&mut self, sent: &BTreeSet<Message>, now: u64) {
        if let Some(moment) = self.moment.filter(|_| self.at <= now) {
            if sent.contains(&moment.message) {
                (self.at, self.moment) = (now + moment.later, None);
            } else if moment.by <= now {
                (self.at, self.moment) = (now, None);
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Wrong {
    /// The process does not run; or one of its runtimes.
    Pause(usize, Option<usize>),
    Kill(usize),
    /// A runtime of the process ends.
    EndRuntime(usize, usize),
    /// What does not pass to this server (`None`: to all) or back, and whether that is noticed.
    Cut(usize, Option<usize>, Way, bool),
    Slow(usize, Option<usize>, u64),
    /// The next of these messages is lost, or late by so much.
    Aim(usize, Option<usize>, Request, Way, Option<u64>),
    /// Each of these messages, for as long as the fault lasts.
    Each(usize, Option<usize>, Request, Way, Option<u64>),
    /// So many of ten thousand messages of all are lost.
    Lossy(u32),
    /// The connection is closed, and made again.
    Close(usize, Option<usize>),
    PauseServer(usize),
    /// All connections are closed.
    RestartServer(usize),
    /// All data of a server are gone.
    Wipe(usize),
    /// The holders of a lock are evicted.
    Evict(&'static str),
    /// What there is of a lock is deleted, and nobody is told.
    Delete(&'static str),
    /// What only servers of this kind have.
    Own(usize, Own),
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    There,
    Back,
    Both,
}

impl Way {
    pub(crate) fn includes(self, other: Way) -> bool {
        self == Way::Both || self == other
    }
}

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    Claim,
    Renew,
    Release,
    Look,
    Push,
    Write,
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
}

/// Whole seconds, two at least.
fn whole(ttl: Duration) -> Duration {
    Duration::from_secs((ttl + Duration::from_millis(999)).as_secs().max(2))
}
