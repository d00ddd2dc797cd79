//! A world: processes, a network, a server and faults, turn by turn, from its beginning to its end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_chaos::{Breaks, Event, Limits, What};
use leasehold_core::seam::Moment;
use leasehold_core::support::locked;
use leasehold_core::{Owner, Store};

use crate::history::{History, Record, Resource};
use crate::machine::{Simulated, has_spun, outside};
use crate::network::{End, Network};
use crate::plan::{Fault, MS, Part, Plan, Wrong};
use crate::process::Process;
use crate::remote::{Remote, push};
use crate::server::Server;
use crate::work::{Worker, observe, work};

/// When it begins.
const BEGIN: u64 = 3_600_000 * MS;
/// How long everybody may take to come to an end.
const LONGEST: u64 = 40_000 * MS;
/// How long a closing store may take.
const CLOSING: u64 = 10_000 * MS;
/// The acquisitions of those that only look begin here.
const OBSERVERS: u64 = 1_000_000;

/// What was seen in a world.
pub(crate) struct Seen {
    pub(crate) events: Vec<Event>,
    pub(crate) unexpected: Vec<String>,
}

pub(crate) struct World {
    plan: Plan,
    now: u64,
    network: Network,
    server: Arc<Mutex<Server>>,
    server_until: u64,
    history: History,
    processes: Vec<(Process, Store)>,
    /// Which faults are there, and those to come.
    active: Vec<Fault>,
    coming: Vec<Fault>,
}

/// Runs the world of this seed.
pub(crate) fn run(seed: u64, part: &Part) -> Seen {
    let plan = Plan::of(seed, part);
    let _simulated = Simulated::with_seed(seed, BEGIN);
    let mut world = World::new(seed, plan);
    world.begin(seed);
    world.live();
    world.end();
    let (events, mut unexpected) = world.history.take();
    unexpected.extend(world.processes.iter_mut().flat_map(|(process, _)| process.panics()));
    if has_spun() {
        unexpected.push("a task ran in a circle, without an end".to_owned());
    }
    Seen { events, unexpected }
}

fn limits(plan: &Plan) -> Limits {
    let ttl = plan.ttl.as_nanos() as u64;
    let mut limits = Limits::default();
    // Where every message arrives, nothing has to wait for the end of a lease.
    let waits = if plan.faults.is_empty() { 0 } else { ttl };
    limits.wake = 3 * waits / 2 + 500 * MS;
    limits.settle = 2 * waits + if plan.faults.is_empty() { 500 * MS } else { 2_000 * MS };
    limits.late = 60 * MS;
    limits.lease = ttl + 500 * MS;
    limits
}

/// The number of a runtime of a process in the history.
fn number(process: usize, runtime: usize) -> u64 {
    10 * (process as u64 + 1) + runtime as u64
}

impl World {
    fn new(seed: u64, plan: Plan) -> World {
        let network = Network::new(seed, plan.air.clone(), plan.processes.len());
        let mut coming = plan.faults.clone();
        coming.sort_by_key(|fault| (fault.at, fault.nth));
        let (server, history) = (Arc::default(), History::default());
        let (processes, active) = (Vec::new(), Vec::new());
        World { plan, now: BEGIN, network, server, server_until: 0, history, processes, active, coming }
    }

    /// Starts the processes that have something to do, and their tasks.
    fn begin(&mut self, seed: u64) {
        let (store, limits) = ("simple".to_owned(), limits(&self.plan));
        self.history.record(BEGIN, 0, What::Begin { store, seed, limits });
        let resource = Resource::new(self.history.clone());
        for nth in 0..self.plan.processes.len() {
            let remote = Remote::new(self.network.clone(), self.server.clone(), nth);
            let store = Store::with_random_seed(remote, seed ^ nth as u64).ttl(self.plan.ttl);
            let mut process = Process::new(self.plan.processes[nth], self.now);
            let owner = Owner::new();
            let workers: Vec<Arc<Worker>> = (0..self.plan.processes[nth])
                .map(|runtime| {
                    let record = self.record(&process, number(nth, runtime));
                    let (store, owner, network) = (store.clone(), owner.clone(), self.network.clone());
                    let (resource, unit) = (resource.clone(), self.plan.unit);
                    Arc::new(Worker { process: nth, store, owner, record, network, resource, unit })
                })
                .collect();
            for task in 0.. {
                let mine = self.plan.steps.iter().filter(|step| step.process == nth);
                if mine.clone().all(|step| step.task < task) {
                    break;
                }
                let steps: Vec<_> = mine.filter(|step| step.task == task).cloned().collect();
                let runtime = task % workers.len();
                process.spawn(runtime, work(workers[runtime].clone(), steps), true);
            }
            if self.plan.steps.iter().any(|step| step.process == nth) {
                process.spawn(0, observe(workers[0].clone(), OBSERVERS + nth as u64), false);
            }
            self.processes.push((process, store));
        }
    }

    fn record(&self, process: &Process, p: u64) -> Record {
        Record { history: self.history.clone(), p, killed: process.killed.clone() }
    }

    /// Until everybody is done, and no fault is left.
    fn live(&mut self) {
        let end = BEGIN + LONGEST;
        let is_over = |world: &World| world.is_done() && world.coming.is_empty() && world.active.is_empty();
        while self.now < end && !is_over(self) && !has_spun() {
            self.turn();
        }
        if !self.is_done() {
            self.history.unexpected("some have not come to an end".to_owned());
        }
    }

    fn is_done(&self) -> bool {
        self.processes.iter().all(|(process, _)| process.is_done())
    }

    /// Closes the stores, and waits until all leases have run out.
    fn end(&mut self) {
        for (process, store) in &mut self.processes {
            let store = store.clone();
            let runtime = process.runtimes.len() - 1;
            // What was dropped is released in the background; what that cannot do the leases do.
            process.spawn(runtime, async move { drop(store.close(Duration::from_secs(2)).await) }, true);
        }
        let latest = self.now + CLOSING;
        while self.now < latest && !self.is_done() {
            self.turn();
        }
        let quiet = self.now + 2 * self.plan.ttl.as_nanos() as u64 + 500 * MS;
        while self.now < quiet {
            self.turn();
        }
        outside(self.now);
        let left = locked(&self.server).entries(Moment::from_nanos(self.now)) as u64;
        self.history.record(self.now, 0, What::Kv { name: "entries".into(), left, allowed: 0 });
        self.history.record(self.now, 0, What::End);
    }

    /// One turn of everything.
    fn turn(&mut self) {
        outside(self.now);
        self.break_and_heal();
        let server_reads = self.server_until <= self.now;
        for (end, job) in self.network.arrived(self.now, |end| end != End::Server || server_reads) {
            match end {
                End::Process(nth) => {
                    if let Some(runtime) = self.processes[nth].0.reader() {
                        runtime.inbox.push(job);
                    }
                }
                End::Server | End::Resource => job(),
            }
        }
        let end = self.now + self.plan.tick;
        for (nth, (process, _)) in self.processes.iter_mut().enumerate() {
            let runtimes = process.runtimes.len();
            for (_, ns) in process.drive(self.now, end) {
                (0..runtimes).for_each(|it| self.history.record(self.now, number(nth, it), What::Stall { ns }));
            }
        }
        self.now = end;
    }

    /// Makes the faults that are due, and ends those that have lasted.
    fn break_and_heal(&mut self) {
        let is_over = |fault: &Fault| BEGIN + fault.at + fault.lasts <= self.now;
        for fault in split(&mut self.active, is_over) {
            self.heal(&fault);
            self.history.record(self.now, 0, What::Healed { id: fault.nth as u64 });
        }
        let is_due = |fault: &Fault| BEGIN + fault.at <= self.now;
        for fault in split(&mut self.coming, is_due) {
            let (kind, breaks, lock) = fault.what.told();
            let lock = lock.map(str::to_owned);
            self.history.record(self.now, 0, What::Fault { id: fault.nth as u64, kind, breaks, lock });
            self.make(&fault);
            self.active.push(fault);
        }
    }

    fn make(&mut self, fault: &Fault) {
        let (until, now) = (self.now + fault.lasts, Moment::from_nanos(self.now));
        match fault.what {
            Wrong::Pause(process, which) => {
                for (nth, runtime) in self.processes[process].0.runtimes.iter_mut().enumerate() {
                    if which.is_none_or(|which| which == nth) {
                        runtime.paused_until = runtime.paused_until.max(until);
                    }
                }
            }
            Wrong::Kill(process) => self.kill(process),
            Wrong::EndRuntime(process, which) => self.end_runtime(process, which),
            Wrong::Cut(process, way, is_noticed) => self.network.cut(process, Some((way, is_noticed))),
            Wrong::Slow(process, times) => self.network.slow(process, times),
            Wrong::Aim(process, kind, way, late) => self.network.aim(process, kind, way, late),
            Wrong::Lossy(many) => self.network.lose(many),
            Wrong::Close(process) => self.network.close(process),
            Wrong::PauseServer => self.server_until = self.server_until.max(until),
            Wrong::RestartServer => self.close_all(),
            Wrong::Wipe => {
                locked(&self.server).wipe();
                self.close_all();
            }
            Wrong::Evict(lock) => locked(&self.server).evict(&lock.into(), true, now),
            Wrong::Delete(lock) => locked(&self.server).evict(&lock.into(), false, now),
        }
        push(&self.network, &self.server);
    }

    fn heal(&self, fault: &Fault) {
        match fault.what {
            Wrong::Cut(process, ..) => self.network.cut(process, None),
            Wrong::Slow(process, _) => self.network.slow(process, 1),
            Wrong::Lossy(_) => self.network.lose(0),
            Wrong::Aim(process, ..) => self.network.miss(process),
            _ => {}
        }
    }

    fn close_all(&self) {
        (0..self.processes.len()).for_each(|process| self.network.close(process));
    }

    fn end_runtime(&mut self, nth: usize, which: usize) {
        let process = &mut self.processes[nth].0;
        // What its tasks have not said by now is late because they stood still.
        let ns = process.stalled(which, self.now);
        self.history.record(self.now, number(nth, which), What::Stall { ns });
        process.end_runtime(which, self.now);
    }

    fn kill(&mut self, nth: usize) {
        let process = &mut self.processes[nth].0;
        if process.is_alive() {
            for runtime in 0..process.runtimes.len() {
                self.history.record(self.now, 0, What::Killed { target: number(nth, runtime) });
            }
            self.network.killed(nth);
            process.kill(self.now);
        }
    }
}

impl Wrong {
    /// Its kind, what is not promised under it, and the lock that it is about.
    fn told(&self) -> (String, Breaks, Option<&'static str>) {
        let text = format!("{self:?}");
        match self {
            Wrong::Wipe => (text, Breaks::Exclusion, None),
            Wrong::Evict(lock) | Wrong::Delete(lock) => (text, Breaks::Exclusion, Some(lock)),
            _ => (text, Breaks::Nothing, None),
        }
    }
}

/// Takes out those that are so.
fn split(faults: &mut Vec<Fault>, is_so: impl Fn(&Fault) -> bool) -> Vec<Fault> {
    let (so, rest) = std::mem::take(faults).into_iter().partition(is_so);
    *faults = rest;
    so
}
