//! Which task keeps a session alive, and in which runtime: when that one ends, or is not driven any more, another task goes on. Pure.

use std::time::Duration;

use leasehold_core::seam::Moment;
use tokio::runtime::Id;

/// How late a task may be for what it was to do before another runtime looks after it, and how long that one looks.
pub(crate) const LATE: Duration = Duration::from_millis(250);

/// The tasks of one session: one of them counts.
#[derive(Default)]
pub(crate) struct Tasks {
    /// How many there were.
    begun: u64,
    running: Option<Running>,
}

struct Running {
    runtime: Id,
    /// When it is to do something.
    due: Moment,
    /// Until then another runtime looks whether it is driven. It may be driven no more itself.
    watched_until: Moment,
}

/// What a runtime that uses the session has to do for it.
pub(crate) enum Needed {
    /// There is no task.
    Task,
    /// This task is late.
    Look(u64),
}

impl Tasks {
    /// A task begins in this runtime, and is the one that counts.
    pub(crate) fn begin(&mut self, runtime: Id, now: Moment) -> u64 {
        self.begun += 1;
        self.running = Some(Running { runtime, due: now, watched_until: now });
        self.begun
    }

    /// Whether this task counts.
    pub(crate) fn is_of(&self, nth: u64) -> bool {
        self.begun == nth
    }

    /// Its runtime drives this task, which has something to do again by `due`.
    pub(crate) fn has_looked(&mut self, nth: u64, due: Moment) {
        if let Some(running) = self.running.as_mut().filter(|_| self.begun == nth) {
            running.due = due;
        }
    }

    /// This task has ended.
    pub(crate) fn ended(&mut self, nth: u64) {
        if self.is_of(nth) {
            self.running = None;
        }
    }

    /// What a runtime that uses the session now has to do. Its own task is not late for it: both are driven, or none is.
    pub(crate) fn needed(&mut self, runtime: Id, now: Moment) -> Option<Needed> {
        let Some(running) = &mut self.running else { return Some(Needed::Task) };
        if now < running.watched_until || running.runtime == runtime || !running.is_late(now) {
            return None;
        }
        running.watched_until = now + LATE * 2;
        Some(Needed::Look(self.begun))
    }

    /// Whether this task counts, and is late.
    pub(crate) fn is_late(&self, nth: u64, now: Moment) -> bool {
        self.is_of(nth) && self.running.as_ref().is_some_and(|running| running.is_late(now))
    }
}

impl Running {
    fn is_late(&self, now: Moment) -> bool {
        self.due + LATE <= now
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_task_that_is_late_is_looked_after_by_one_other_runtime() {
        let runtimes = [(); 2].map(|()| Builder::new_current_thread().build().unwrap());
        let [here, there] = [0, 1].map(|nth: usize| runtimes[nth].handle().id());
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let mut tasks = Tasks::default();
        assert!(matches!(tasks.needed(here, at(0)), Some(Needed::Task)));
        let first = tasks.begin(here, at(0));
        tasks.has_looked(first, at(1000));
        assert!(tasks.needed(there, at(1249)).is_none() && tasks.needed(here, at(9000)).is_none());
        assert!(matches!(tasks.needed(there, at(1250)), Some(Needed::Look(late)) if late == first));
        assert!(tasks.needed(there, at(1300)).is_none(), "somebody looks");
        tasks.has_looked(first, at(2000));
        assert!(!tasks.is_late(first, at(1500)), "it has looked itself");
        assert!(tasks.needed(there, at(2250)).is_some() && tasks.is_late(first, at(2500)));
        assert!(tasks.needed(there, at(2749)).is_none());
        assert!(tasks.needed(there, at(2750)).is_some(), "whoever looked is driven no more either");
        let second = tasks.begin(there, at(2500));
        tasks.has_looked(first, at(9000));
        tasks.ended(first);
        assert!(!tasks.is_of(first) && !tasks.is_late(first, at(9000)) && tasks.is_of(second));
        assert!(matches!(tasks.needed(here, at(2750)), Some(Needed::Look(_))));
        tasks.ended(second);
        assert!(matches!(tasks.needed(here, at(2800)), Some(Needed::Task)));
    }
}
