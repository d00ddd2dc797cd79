//! The number of suites that run side by side.
//!
//! Most suites wait for leases to end, and compute in a quarter of their time. So a quick machine
//! has room for many of them, and a slow or busy one for few: tests of a lock fail on a machine that
//! is late for everything. Beyond a few suites, another one begins only after the processors were
//! idle for a part of the time since the last one began.

use std::{
    fs, thread,
    time::{Duration, SystemTime},
};

/// The number of suites beyond one for each processor that run on any machine.
const ALWAYS: usize = 1;
/// The number of suites that run at most.
const MOST: usize = 8;
/// The share of idle time that another suite takes.
const IDLE: f64 = 0.35;
/// The time over which the machine is observed.
const OBSERVED: Duration = Duration::from_secs(2);

/// The observed load of the machine.
#[derive(Default)]
pub(crate) struct Room {
    since: Option<(SystemTime, Ticks)>,
}

/// The time of all processors since the machine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Room {
    /// Returns whether another suite may begin beside this number of them.
    pub(crate) fn for_another(&mut self, running: usize) -> bool {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let is_room = running < cores + ALWAYS || running < MOST && self.is_idle();
        if is_room {
            self.observe();
        }
        is_room
    }

    fn is_idle(&mut self) -> bool {
        let Some((since, before)) = self.since else {
            self.observe();
            return false;
        };
        if since.elapsed().unwrap_or(OBSERVED) < OBSERVED {
            return false;
        }
        self.observe();
        self.since
            .is_some_and(|(_, now)| now.idle_since(before) > IDLE)
    }

    /// Begins to observe. Where there is no `/proc`, or where it shows the processors of a machine
    /// of which this container has only some, nothing seems idle.
    fn observe(&mut self) {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let ticks = Ticks::read(&stat).filter(|_| processors(&stat) == cores);
        self.since = ticks.map(|ticks| (SystemTime::now(), ticks));
    }
}

/// The number of processors in `/proc/stat`: a line for each follows that of all.
fn processors(stat: &str) -> usize {
    let each = stat.lines().skip(1);
    each.take_while(|line| line.starts_with("cpu")).count()
}

impl Ticks {
    /// Reads the first line of `/proc/stat`: user, nice, system, idle, waiting for a disk, and so on.
    fn read(stat: &str) -> Option<Self> {
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
        let each: Vec<u64> = numbers
            .split_whitespace()
            .map(|number| number.parse().unwrap_or_default())
            .collect();
        Some(Self {
            idle: *each.get(3)?,
            all: each.iter().take(8).sum(),
        })
    }

    fn idle_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        self.idle.saturating_sub(before.idle) as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_suites_always_run_and_no_more_than_the_most() {
        let mut room = Room::default();
        assert!(room.for_another(0) && room.for_another(ALWAYS));
        assert!(!room.for_another(MOST.max(thread::available_parallelism().unwrap().get() + 1)));
    }

    #[test]
    fn idle_time_is_a_share_of_all() {
        let before = Ticks::read("cpu  10 0 10 100 5 0 0 5 0 0\ncpu0 1").unwrap();
        assert_eq!(
            before,
            Ticks {
                idle: 100,
                all: 130
            }
        );
        let after = Ticks::read("cpu  30 0 20 150 5 0 0 15 7 7").unwrap();
        assert!((after.idle_since(before) - 50.0 / 90.0).abs() < 1e-9);
        assert_eq!(Ticks::read("intr 1"), None);
        assert_eq!(processors("cpu  1\ncpu0 1\ncpu1 1\nintr 1\ncpu"), 2);
    }
}
