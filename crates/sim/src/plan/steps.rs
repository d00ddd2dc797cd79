//! The steps of all tasks: their requests and their times.

use std::time::Duration;

use leasehold_chaos::{Mode, Policy};

use crate::kind::Kind;
use crate::plan::parts::{Ask, Do, LEADER, LOCKS, Step};

/// The properties that all steps of a world share.
pub(super) struct Habits {
    /// The locks that are used.
    pub(super) locks: Vec<&'static str>,
    /// Most holds last for a lease or longer.
    hold_long: bool,
    /// Few clients use one lock, and only try. A client that releases it tells the others.
    pub(super) tell: bool,
    /// The faults of the world come together.
    pub(super) together: bool,
}

impl Habits {
    pub(super) fn draw(
        kind: Kind,
        random: &mut fastrand::Rng,
        style: &mut fastrand::Rng,
    ) -> Habits {
        let many = random.usize(1..=LOCKS.len());
        let first = random.usize(..LOCKS.len());
        let together = style.bool();
        let narrow = style.bool();
        let tell = style.u8(..4) == 0;
        let many = if together && narrow || tell { 1 } else { many };
        // Incomplete stores have no permits.
        let there_is = |lock| {
            if lock == "slots" && !kind.is_complete() {
                LOCKS[0]
            } else {
                lock
            }
        };
        let locks = (0..many)
            .map(|nth| there_is(LOCKS[(first + nth) % LOCKS.len()]))
            .collect();
        Habits {
            locks,
            hold_long: style.u8(..3) == 0,
            tell,
            together,
        }
    }

    /// Makes all clients use one lock.
    pub(super) fn crowded(mut self) -> Habits {
        self.locks.truncate(1);
        self
    }
}

impl Step {
    /// Removes the order, which only complete stores have.
    fn simplify(&mut self) {
        if let Do::Lock(ask) = &mut self.what
            && ask.policy == Policy::Fair
        {
            ask.policy = Policy::Fast;
        }
    }
}

/// The steps of all tasks. The fewer locks there are, the more the tasks meet.
pub(super) fn steps(
    random: &mut fastrand::Rng,
    processes: &[usize],
    unit: Duration,
    habits: &Habits,
) -> Vec<Step> {
    let tasks = random.usize(1..=4);
    let each = random.usize(2..=6);
    let (tasks, each) = if habits.tell {
        (1, 2 * each)
    } else {
        (tasks, each)
    };
    let mut steps = Vec::new();
    for process in 0..processes.len() {
        for task in 0..tasks {
            for _ in 0..each {
                let pause = unit.mul_f64(random.f64() / [2.0, 10.0][random.usize(0..2)]);
                let name = habits.locks[random.usize(..habits.locks.len())];
                let what = if random.u8(..6) == 0 {
                    Do::Look(name)
                } else {
                    Do::Lock(ask(random, name, habits, unit))
                };
                let is_told =
                    matches!(&what, Do::Lock(ask) if habits.tell && ask.policy == Policy::Try);
                let pause = if is_told {
                    unit.mul_f64(random.f64())
                } else {
                    pause
                };
                steps.push(Step {
                    nth: steps.len(),
                    process,
                    task,
                    pause,
                    is_told,
                    what,
                });
            }
        }
    }
    steps
}

fn ask(random: &mut fastrand::Rng, lock: &'static str, habits: &Habits, unit: Duration) -> Ask {
    let mode = match lock {
        "catalog" if random.u8(..3) > 0 => Mode::Shared,
        "slots" => Mode::Permits {
            n: random.u32(1..=2),
            of: 3,
        },
        LEADER => Mode::Leader,
        _ => Mode::Exclusive,
    };
    let policy = match random.u8(..4) {
        0 => Policy::Try,
        1..4 if habits.tell => Policy::Try,
        _ if lock == "counter" => Policy::Fast,
        _ => Policy::Fair,
    };
    let mut one_in = |n| random.u8(..n) == 0;
    let timed = one_in(3);
    let leaves = one_in(8);
    let owned = one_in(3);
    let drops = one_in(4);
    let writes = !one_in(4);
    let confirms = one_in(6);
    let downgrades = one_in(4);
    let long = match random.u8(..24) {
        0..8 if habits.hold_long => 5.0,
        8..16 if habits.hold_long => 2.0,
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

/// Adds requests that only some stores have, and removes those that incomplete stores do not have.
pub(super) fn vary(kind: Kind, random: &mut fastrand::Rng, steps: &mut [Step], unit: Duration) {
    let is_redis = matches!(kind, Kind::Redis | Kind::Redlock | Kind::Redlock5);
    for step in steps {
        if !kind.is_complete() {
            step.simplify();
        }
        let up_to = |random: &mut fastrand::Rng, times: f64| unit.mul_f64(times * random.f64());
        match &mut step.what {
            what if is_redis && random.u8(..12) == 0 => {
                // Nobody is told that the client has one of both locks meanwhile, so a client that
                // waits for that lock would seem to be forgotten.
                let limit = random
                    .bool()
                    .then(|| up_to(random, 2.0).min(Duration::from_millis(100)));
                *what = Do::Both(limit, up_to(random, 0.3));
            }
            Do::Lock(ask) if is_redis && random.u8(..8) == 0 => ask.most = Some(up_to(random, 2.0)),
            _ => {}
        }
    }
}
