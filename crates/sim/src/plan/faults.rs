//! The faults of a world: each by itself, or several that come together.

use std::time::Duration;

use crate::kind::{Kind, Own};
use crate::plan::parts::{Fault, MS, Message, Moment, Request, Way, Wrong};

/// The number of values from which a fault is drawn. Frequent kinds have several values.
const KINDS: u8 = 20;

/// Faults that come together: at about one time, or at the moment of one message. They concern one
/// process and one lock, and are of few kinds.
pub(super) struct Together {
    at: u64,
    process: usize,
    lock: &'static str,
    moment: Option<Message>,
    kinds: Vec<u8>,
}

impl Together {
    pub(super) fn draw(
        random: &mut fastrand::Rng,
        processes: usize,
        locks: &[&'static str],
        unit: u64,
    ) -> Together {
        let process = random.usize(..processes);
        Together {
            at: random.u64(..5 * unit),
            process,
            lock: locks[random.usize(..locks.len())],
            moment: (random.u8(..3) > 0).then(|| message(random, process)),
            kinds: (0..random.usize(2..=3))
                .map(|_| random.u8(..KINDS))
                .collect(),
        }
    }

    /// The time of one of these faults, and its moment.
    fn when(&self, random: &mut fastrand::Rng, unit: u64) -> (u64, Option<Moment>) {
        // They do not come all at once, because the effect of each takes a while.
        let later = if random.bool() {
            0
        } else {
            random.u64(..unit / 2)
        };
        let moment = |message| Moment {
            message,
            later,
            by: self.at + 3 * unit,
        };
        if self.moment.is_some() {
            (self.at, self.moment.map(moment))
        } else {
            (self.at + later, None)
        }
    }
}

fn message(random: &mut fastrand::Rng, process: usize) -> Message {
    let all = [
        Request::Claim,
        Request::Renew,
        Request::Release,
        Request::Look,
    ];
    match random.u8(..3) {
        0 => (process, Request::Push, Way::Back),
        _ => (process, all[random.usize(..all.len())], way(random)),
    }
}

fn way(random: &mut fastrand::Rng) -> Way {
    [Way::There, Way::Back][random.usize(..2)]
}

/// Draws the faults, which come within the first leases.
pub(super) fn faults(
    random: &mut fastrand::Rng,
    processes: &[usize],
    (locks, together): (&[&'static str], Option<&Together>),
    unit: u64,
) -> Vec<Fault> {
    let many = if together.is_some() {
        random.usize(2..=6)
    } else {
        random.usize(0..=6)
    };
    let fault = |nth| {
        let together = together.filter(|_| random.u8(..5) > 0);
        let process = together.map_or_else(|| random.usize(..processes.len()), |them| them.process);
        let (at, moment) = match together {
            Some(them) => them.when(random, unit),
            None => (random.u64(..6 * unit), None),
        };
        let kind = match together {
            Some(them) => them.kinds[random.usize(..them.kinds.len())],
            None => random.u8(..KINDS),
        };
        let lock = together.map_or_else(|| locks[random.usize(..locks.len())], |them| them.lock);
        let lasts = random.u64(..5 * unit / 2);
        Fault {
            nth,
            at,
            lasts,
            moment,
            what: wrong(random, kind, (process, processes[process]), lock, unit),
        }
    };
    (0..many).map(fault).collect()
}

fn wrong(
    random: &mut fastrand::Rng,
    kind: u8,
    (process, runtimes): (usize, usize),
    lock: &'static str,
    unit: u64,
) -> Wrong {
    let requests = [
        Request::Claim,
        Request::Renew,
        Request::Release,
        Request::Push,
    ];
    let late = |random: &mut fastrand::Rng| random.bool().then(|| random.u64(..2 * unit));
    match kind {
        0 | 1 => Wrong::Pause(process, None),
        2 => Wrong::Pause(process, Some(random.usize(..runtimes))),
        3 => Wrong::Kill(process),
        4 if runtimes > 1 => Wrong::EndRuntime(process, random.usize(..runtimes)),
        4 | 5 => Wrong::Cut(
            process,
            None,
            [Way::Both, way(random)][random.usize(..2)],
            random.bool(),
        ),
        6 => Wrong::Slow(process, None, random.u64(2..50)),
        7..11 => {
            let request = requests[random.usize(..requests.len())];
            let way = way(random);
            Wrong::Aim(process, None, request, way, late(random))
        }
        11 | 12 => {
            let request = requests[random.usize(..requests.len())];
            let way = way(random);
            Wrong::Each(process, None, request, way, late(random))
        }
        13 => Wrong::Close(process, None),
        14 => Wrong::PauseServer(0),
        15 => [Wrong::RestartServer(0), Wrong::Wipe(0)][random.usize(..2)].clone(),
        16 => Wrong::Lossy([30, 300, 2000][random.usize(..3)]),
        17 => Wrong::Evict(lock),
        _ => Wrong::Delete(lock),
    }
}

/// Directs faults at one of several servers, and adds those that only this store has.
pub(super) fn adapt(
    kind: Kind,
    random: &mut fastrand::Rng,
    faults: &mut Vec<Fault>,
    together: Option<&Together>,
    unit: Duration,
) {
    let servers = kind.servers();
    let own = kind.own();
    let unit = unit.as_nanos() as u64;
    for fault in faults.iter_mut() {
        // Links fail to all servers or to one.
        let some = (servers > 1 && random.bool()).then(|| random.usize(..servers));
        let one = random.usize(..servers);
        match &mut fault.what {
            Wrong::Cut(_, to, ..) | Wrong::Slow(_, to, _) | Wrong::Close(_, to) => *to = some,
            Wrong::Aim(_, to, ..) | Wrong::Each(_, to, ..) => *to = some,
            Wrong::PauseServer(it) | Wrong::RestartServer(it) | Wrong::Wipe(it) => *it = one,
            // The runtime in which a client was connected ends in the suite and in campaigns.
            Wrong::EndRuntime(_, which) if kind.is_etcd() => *which = 1,
            _ => {}
        }
    }
    let more = if own.is_empty() || faults.is_empty() {
        0
    } else {
        random.usize(0..=2)
    };
    for _ in 0..more {
        let mut at = random.u64(..6 * unit);
        let mut moment = None;
        if let Some(them) = together.filter(|_| random.bool()) {
            (at, moment) = them.when(random, unit);
        }
        let mut what = own[random.usize(..own.len())];
        let lasts = random.u64(..5 * unit / 2);
        if let Own::ClockStep(by) = &mut what {
            *by = [random.i64(-3_600_000..0), random.i64(0..3_600_000)][random.usize(..2)]
                * MS as i64;
            // In half of these cases, the clocks of servers have been apart since before the first
            // request.
            (at, moment) = if random.bool() {
                (0, None)
            } else {
                (at, moment)
            };
        }
        let what = Wrong::Own(random.usize(..servers), what);
        faults.push(Fault {
            nth: faults.len(),
            at,
            lasts,
            moment,
            what,
        });
    }
}
