//! What happens in a world, all of it made from a seed before it begins: who asks for what, when, and which faults there are.

use std::time::Duration;

use leasehold_chaos::{Mode, Policy};

use crate::kind::{Kind, Own};

mod deleted;

pub(crate) const MS: u64 = 1_000_000;

/// The locks: two whose names begin alike, one of each other primitive, and one that tasks of a process pass on.
pub(crate) const LOCKS: [&str; 6] = ["orders", "orders/1", "catalog", "slots", LEADER, "counter"];
pub(crate) const LEADER: &str = "leader";

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

impl Step {
    /// Without what only complete stores have: an order, and permits.
    fn simplify(&mut self) {
        if let Do::Lock(ask) = &mut self.what {
            if matches!(ask.mode, Mode::Permits { .. }) {
                (ask.lock, ask.mode) = (LOCKS[0], Mode::Exclusive);
            }
            if ask.policy == Policy::Fair {
                ask.policy = Policy::Fast;
            }
        }
    }
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
    pub(crate) at: u64,
    pub(crate) lasts: u64,
    pub(crate) what: Wrong,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let locks = random.usize(1..=LOCKS.len());
        // In a long queue, in which each client has little, a release of etcd names its successor.
        let crowd = kind.is_etcd() && seed.is_multiple_of(4);
        let processes = if crowd { vec![1; random.usize(12..=18)] } else { processes };
        let mut steps = steps(&mut random, &processes, unit, if crowd { 1 } else { locks });
        steps.retain(|step| !crowd || step.task < 2);
        vary(kind, &mut fastrand::Rng::with_seed(seed.rotate_left(32)), &mut steps, unit);
        let mut faults = faults(&mut random, &processes, unit);
        adapt(kind, &mut fastrand::Rng::with_seed(!seed), &mut faults, unit);
        if kind.is_slow() {
            deleted::outlast(&mut fastrand::Rng::with_seed(seed.rotate_left(16)), &mut faults, &mut steps, ttl);
        }
        let mut plan = Plan { tick, unit, ttl, air, processes, steps, faults };
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

/// The steps of all tasks. The fewer locks, the more they meet.
fn steps(random: &mut fastrand::Rng, processes: &[usize], unit: Duration, locks: usize) -> Vec<Step> {
    let first = random.usize(..LOCKS.len());
    let lock = |random: &mut fastrand::Rng| LOCKS[(first + random.usize(..locks)) % LOCKS.len()];
    let (tasks, each) = (random.usize(1..=4), random.usize(2..=6));
    let mut steps = Vec::new();
    for process in 0..processes.len() {
        for task in 0..tasks {
            for _ in 0..each {
                let pause = unit.mul_f64(random.f64() / [2.0, 10.0][random.usize(0..2)]);
                let name = lock(random);
                let what = if random.u8(..6) == 0 { Do::Look(name) } else { Do::Lock(ask(random, name, unit)) };
                steps.push(Step { nth: steps.len(), process, task, pause, what });
            }
        }
    }
    steps
}

fn ask(random: &mut fastrand::Rng, lock: &'static str, unit: Duration) -> Ask {
    let mode = match lock {
        "catalog" if random.u8(..3) > 0 => Mode::Shared,
        "slots" => Mode::Permits { n: random.u32(1..=2), of: 3 },
        LEADER => Mode::Leader,
        _ => Mode::Exclusive,
    };
    let policy = match random.u8(..4) {
        0 => Policy::Try,
        _ if lock == "counter" => Policy::Fast,
        _ => Policy::Fair,
    };
    let mut one_in = |n| random.u8(..n) == 0;
    let (timed, leaves, owned, drops) = (one_in(3), one_in(8), one_in(3), one_in(4));
    let (writes, confirms, downgrades) = (!one_in(4), one_in(6), one_in(4));
    let long = match random.u8(..24) {
        0 => 5.0,
        1..4 => 2.0,
        _ => 0.1,
    };
    let mut up_to = |times: f64| unit.mul_f64(times * random.f64());
    Ask {
        lock,
        mode,
        policy,
        limit: (timed && policy != Policy::Try).then(|| up_to(2.0)),
        leaves: leaves.then(|| up_to(1.0)),
        owned: owned && lock == "orders",
        holds: up_to(long),
        writes: writes && mode.is_exclusive(),
        confirms,
        most: None,
        downgrades: downgrades && (lock, mode) == ("catalog", Mode::Exclusive),
        drops,
    }
}

/// What only some stores have, and what incomplete ones do not.
fn vary(kind: Kind, random: &mut fastrand::Rng, steps: &mut [Step], unit: Duration) {
    let is_redis = matches!(kind, Kind::Redis | Kind::Redlock | Kind::Redlock5);
    for step in steps {
        if !kind.is_complete() {
            step.simplify();
        }
        let up_to = |random: &mut fastrand::Rng, times: f64| unit.mul_f64(times * random.f64());
        match &mut step.what {
            what if is_redis && random.u8(..12) == 0 => {
                // Nobody is told that it has one of both meanwhile: whoever waits for that one would seem to be forgotten.
                let limit = random.bool().then(|| up_to(random, 2.0).min(Duration::from_millis(100)));
                *what = Do::Both(limit, up_to(random, 0.3));
            }
            Do::Lock(ask) if is_redis && random.u8(..8) == 0 => ask.most = Some(up_to(random, 2.0)),
            _ => {}
        }
    }
}

/// Faults within the first leases.
fn faults(random: &mut fastrand::Rng, processes: &[usize], unit: Duration) -> Vec<Fault> {
    let unit = unit.as_nanos() as u64;
    let many = random.usize(0..=6);
    let fault = |nth| {
        let process = random.usize(..processes.len());
        let (at, lasts) = (random.u64(..6 * unit), random.u64(..5 * unit / 2));
        Fault { nth, at, lasts, what: wrong(random, process, processes[process], unit) }
    };
    (0..many).map(fault).collect()
}

fn wrong(random: &mut fastrand::Rng, process: usize, runtimes: usize, unit: u64) -> Wrong {
    let way = |random: &mut fastrand::Rng| [Way::There, Way::Back][random.usize(..2)];
    let requests = [Request::Claim, Request::Renew, Request::Release, Request::Push];
    match random.u8(..17) {
        0 | 1 => Wrong::Pause(process, None),
        2 => Wrong::Pause(process, Some(random.usize(..runtimes))),
        3 => Wrong::Kill(process),
        4 if runtimes > 1 => Wrong::EndRuntime(process, random.usize(..runtimes)),
        4 | 5 => Wrong::Cut(process, None, [Way::Both, way(random)][random.usize(..2)], random.bool()),
        6 => Wrong::Slow(process, None, random.u64(2..50)),
        7..11 => {
            let late = random.bool().then(|| random.u64(..2 * unit));
            Wrong::Aim(process, None, requests[random.usize(..requests.len())], way(random), late)
        }
        11 => Wrong::Close(process, None),
        12 => Wrong::PauseServer(0),
        13 => [Wrong::RestartServer(0), Wrong::Wipe(0)][random.usize(..2)].clone(),
        14 => Wrong::Lossy([30, 300, 2000][random.usize(..3)]),
        15 => Wrong::Evict(LOCKS[random.usize(..LOCKS.len())]),
        _ => Wrong::Delete(LOCKS[random.usize(..LOCKS.len())]),
    }
}

/// Makes faults to one of several servers, and adds those that only this store has.
fn adapt(kind: Kind, random: &mut fastrand::Rng, faults: &mut Vec<Fault>, unit: Duration) {
    let (servers, own, unit) = (kind.servers(), kind.own(), unit.as_nanos() as u64);
    for fault in faults.iter_mut() {
        // Links fail to all servers or to one.
        let some = (servers > 1 && random.bool()).then(|| random.usize(..servers));
        let one = random.usize(..servers);
        match &mut fault.what {
            Wrong::Cut(_, to, ..) | Wrong::Slow(_, to, _) | Wrong::Aim(_, to, ..) | Wrong::Close(_, to) => *to = some,
            Wrong::PauseServer(it) | Wrong::RestartServer(it) | Wrong::Wipe(it) => *it = one,
            // The runtime in which a client was connected has to live as long as it does.
            Wrong::EndRuntime(_, which) if kind.is_etcd() => *which = 1,
            _ => {}
        }
    }
    let more = if own.is_empty() || faults.is_empty() { 0 } else { random.usize(0..=2) };
    for _ in 0..more {
        let (at, lasts) = (random.u64(..6 * unit), random.u64(..5 * unit / 2));
        let mut what = own[random.usize(..own.len())];
        if let Own::ClockStep(by) = &mut what {
            *by = [random.i64(-3_600_000..0), random.i64(0..3_600_000)][random.usize(..2)] * MS as i64;
        }
        let what = Wrong::Own(random.usize(..servers), what);
        faults.push(Fault { nth: faults.len(), at, lasts, what });
    }
}
