//! A process of a world: one or two runtimes, each with a clock of its own that is driven turn by turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep_until};

use crate::machine::{inside, outside, read};
use crate::network::Job;

/// One process.
pub(crate) struct Process {
    nth: usize,
    pub(crate) runtimes: Vec<Driven>,
    /// The latest time that the process has read.
    read: u64,
    random: fastrand::Rng,
    /// When the process goes on, it sees its timers before the messages that have arrived
    /// meanwhile.
    reads_late: bool,
    pub(crate) killed: Arc<AtomicBool>,
}

/// One runtime of a process.
pub(crate) struct Driven {
    /// `None` if it has ended.
    runtime: Option<Runtime>,
    clock: (Instant, u64),
    /// The time until which it has been driven.
    until: u64,
    /// The time until which it stands still.
    pub(crate) paused_until: u64,
    pub(crate) inbox: Vec<Job>,
    pub(crate) tasks: Vec<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn new(seed: u64, nth: usize, runtimes: usize, now: u64) -> Process {
        let random = fastrand::Rng::with_seed(seed ^ (nth as u64 + 1).rotate_left(40));
        let runtimes = (0..runtimes).map(|_| Driven::new(now)).collect();
        let killed = Arc::default();
        Process {
            nth,
            runtimes,
            read: now,
            random,
            reads_late: false,
            killed,
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.killed.load(Ordering::Relaxed)
    }

    /// The runtime that takes in the messages that arrive.
    pub(crate) fn reader(&mut self) -> Option<&mut Driven> {
        self.runtimes.iter_mut().find(|it| it.runtime.is_some())
    }

    /// Lets the process, or one of its runtimes, stand still until this time.
    pub(crate) fn pause(&mut self, which: Option<usize>, until: u64) {
        self.reads_late = self.random.bool();
        for (nth, runtime) in self.runtimes.iter_mut().enumerate() {
            if which.is_none_or(|which| which == nth) {
                runtime.paused_until = runtime.paused_until.max(until);
            }
        }
    }

    /// Returns whether messages that arrive now are seen only after the process has gone on.
    pub(crate) fn is_deaf(&self, now: u64) -> bool {
        self.reads_late
            && self
                .runtimes
                .iter()
                .all(|it| it.runtime.is_none() || it.until < now)
    }

    /// Runs everything that is ready from `now` to `end`, unless it stands still. Returns the
    /// runtimes that had stood still, and for how long.
    pub(crate) fn drive(&mut self, now: u64, end: u64) -> Vec<(usize, u64)> {
        let mut stalls = Vec::new();
        let mut order: Vec<usize> = (0..self.runtimes.len()).collect();
        self.random.shuffle(&mut order);
        for nth in order {
            let it = &mut self.runtimes[nth];
            if it.runtime.is_none() || it.paused_until > now {
                continue;
            }
            let stalled = now - it.until;
            if stalled > 0 {
                stalls.push((nth, stalled));
            }
            inside(self.nth, it.clock, self.read);
            it.drive(stalled, end);
            self.read = read();
            outside(end);
        }
        stalls
    }

    /// Spawns `work` in this runtime.
    pub(crate) fn spawn(
        &mut self,
        nth: usize,
        work: impl Future<Output = ()> + Send + 'static,
        is_awaited: bool,
    ) {
        let it = &mut self.runtimes[nth];
        if let Some(runtime) = &it.runtime {
            let task = runtime.spawn(work);
            if is_awaited {
                it.tasks.push(task);
            }
        }
    }

    /// The time for which this runtime has stood still.
    pub(crate) fn stalled(&self, nth: usize, now: u64) -> u64 {
        now - self.runtimes[nth].until
    }

    /// Ends a runtime, with all its tasks.
    pub(crate) fn end_runtime(&mut self, nth: usize, now: u64) {
        let it = &mut self.runtimes[nth];
        let runtime = it.runtime.take();
        outside(now.max(self.read));
        drop((runtime, std::mem::take(&mut it.tasks)));
        let inbox = std::mem::take(&mut it.inbox);
        if let Some(other) = self.reader() {
            other.inbox.extend(inbox);
        }
        outside(now);
    }

    pub(crate) fn kill(&mut self, now: u64) {
        self.killed.store(true, Ordering::Relaxed);
        (0..self.runtimes.len()).for_each(|nth| self.end_runtime(nth, now));
    }

    /// Returns whether all its tasks have ended.
    pub(crate) fn is_done(&self) -> bool {
        self.runtimes
            .iter()
            .all(|it| it.tasks.iter().all(JoinHandle::is_finished))
    }

    /// The panics of its tasks.
    pub(crate) fn panics(&mut self) -> Vec<String> {
        let tasks = self
            .runtimes
            .iter_mut()
            .flat_map(|it| std::mem::take(&mut it.tasks));
        tasks
            .filter(JoinHandle::is_finished)
            .filter_map(|task| task.now_or_never()?.err())
            .map(|e| e.to_string())
            .collect()
    }
}

impl Driven {
    fn new(now: u64) -> Driven {
        #[expect(clippy::expect_used, reason = "there is no simulation without it")]
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let clock = {
            let _inside = runtime.enter();
            (Instant::now(), now)
        };
        let (inbox, tasks) = Default::default();
        Driven {
            runtime: Some(runtime),
            clock,
            until: now,
            paused_until: 0,
            inbox,
            tasks,
        }
    }

    fn drive(&mut self, stalled: u64, end: u64) {
        let Some(runtime) = &self.runtime else { return };
        let inbox = std::mem::take(&mut self.inbox);
        let instant = self.clock.0 + Duration::from_nanos(end - self.clock.1);
        runtime.block_on(async {
            if stalled > 0 {
                // All timers of the runtime are late at once.
                advance(Duration::from_nanos(stalled)).await;
            }
            inbox.into_iter().for_each(|job| job());
            sleep_until(instant).await;
        });
        self.until = end;
    }
}
