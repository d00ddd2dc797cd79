//! A world: processes, a network, a server and faults, turn by turn, from its beginning to its end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_chaos::{Event, What};
use leasehold_core::backend::Backend;
use leasehold_core::support::locked;
use leasehold_core::{Owner, Store};

use crate::history::{History, Record, Resource, Told};
use crate::kind::{Kind, Own};
use crate::machine::{Simulated, dial_by, has_spun, outside};
use crate::network::{End, Network};
use crate::plan::{Fault, MS, Part, Plan, Wrong};
use crate::process::Process;
use crate::servers::{Servers, Setting};
use crate::work::{Worker, evict, observe, work};

/// The time at which a world begins.
const BEGIN: u64 = 3_600_000 * MS;
/// The time that clients may take to connect, before the first fault.
const CONNECTING: u64 = 10_000 * MS;
/// The time that a closing store may take.
const CLOSING: u64 = 10_000 * MS;
/// The first number for the acquisitions of observers.
const OBSERVERS: u64 = 1_000_000;

/// The history of a world, and its errors that no fault explains.
pub(crate) struct Seen {
    pub(crate) events: Vec<Event>,
    pub(crate) unexpected: Vec<String>,
}

pub(crate) struct World {
    kind: Kind,
    plan: Plan,
    now: u64,
    /// The time since which all clients have been connected.
    begun: u64,
    network: Network,
    servers: Arc<dyn Servers>,
    /// The time until which each server stands still.
    still_until: Vec<u64>,
    history: History,
    processes: Vec<Process>,
    stores: Vec<Store>,
    /// The process and the client that evict, if the servers do not.
    operator: Option<(usize, Arc<dyn Backend>)>,
    /// The faults under way, and those to come.
    active: Vec<Fault>,
    coming: Vec<Fault>,
}

/// Runs the world of this seed.
pub(crate) fn run(kind: Kind, seed: u64, part: &Part) -> Seen {
    let plan = Plan::of(kind, seed, part);
    let _simulated = Simulated::with_seed(seed, BEGIN);
    let mut world = World::new(kind, seed, plan);
    world.begin(seed);
    world.live();
    world.end();
    let (events, mut unexpected) = world.history.take();
    unexpected.extend(world.processes.iter_mut().flat_map(Process::panics));
    world.processes.clear();
    world.network.end();
    if has_spun() {
        unexpected.push("a task ran in a circle, without an end".to_owned());
    }
    Seen { events, unexpected }
}

/// The number of a runtime of a process in the history.
fn number(process: usize, runtime: usize) -> u64 {
    10 * (process as u64 + 1) + runtime as u64
}

impl World {
    fn new(kind: Kind, seed: u64, plan: Plan) -> World {
        let many = plan.processes.len();
        let servers = kind.servers();
        // One more process is for the client that evicts.
        let network = Network::new(seed, plan.air.clone(), many + 1, servers);
        let mut coming = plan.faults.clone();
        coming.sort_by_key(|fault| (fault.at, fault.nth));
        let setting = Setting {
            seed: plan.unit.as_nanos() as u64,
            ttl: plan.ttl,
            polls: plan.polls,
            operator: plan.processes.len(),
        };
        let still_until = vec![0; servers];
        let servers = kind.start(&network, &setting);
        let dialed = servers.clone();
        dial_by(Box::new(move |process, host| {
            let nth = host.trim_start_matches('s').parse().unwrap_or_default();
            dialed.dial((process, nth))
        }));
        let (history, processes, stores, active) = Default::default();
        let now = BEGIN;
        let operator = None;
        // Until all have connected, no fault is due.
        let begun = u64::MAX / 2;
        World {
            kind,
            plan,
            now,
            begun,
            network,
            servers,
            still_until,
            history,
            processes,
            stores,
            operator,
            active,
            coming,
        }
    }

    /// Starts the processes that have something to do, and their tasks.
    fn begin(&mut self, seed: u64) {
        let store = self.kind.name().to_owned();
        let limits = self.kind.limits(&self.plan);
        self.history.record(
            BEGIN,
            0,
            What::Begin {
                store,
                seed,
                limits,
            },
        );
        let mut backends = self.connect(seed);
        if self.servers.has_operator() {
            self.operator = backends
                .pop()
                .map(|backend| (self.plan.processes.len(), backend));
        }
        self.begun = self.now;
        let resource = Resource::new(self.history.clone());
        let told = Told::default();
        for (nth, backend) in backends.into_iter().enumerate() {
            let store = Store::with_random_seed(backend, seed ^ nth as u64).ttl(self.plan.ttl);
            let owner = Owner::new();
            let workers: Vec<Arc<Worker>> = (0..self.plan.processes[nth])
                .map(|runtime| {
                    let record = self.record(&self.processes[nth], number(nth, runtime));
                    let store = store.clone();
                    let owner = owner.clone();
                    let network = self.network.clone();
                    let resource = resource.clone();
                    let told = told.clone();
                    let unit = self.plan.unit;
                    let loses_identity = self.kind.loses_identity(&self.plan);
                    Arc::new(Worker {
                        process: nth,
                        store,
                        owner,
                        record,
                        network,
                        resource,
                        told,
                        unit,
                        loses_identity,
                    })
                })
                .collect();
            for task in 0.. {
                let mine = self.plan.steps.iter().filter(|step| step.process == nth);
                if mine.clone().all(|step| step.task < task) {
                    break;
                }
                let steps: Vec<_> = mine.filter(|step| step.task == task).cloned().collect();
                let runtime = task % workers.len();
                self.processes[nth].spawn(runtime, work(workers[runtime].clone(), steps), true);
            }
            if self.kind.observes() && self.plan.steps.iter().any(|step| step.process == nth) {
                self.processes[nth].spawn(
                    0,
                    observe(workers[0].clone(), OBSERVERS + nth as u64),
                    false,
                );
            }
            self.stores.push(store);
        }
    }

    /// Makes all processes, and connects a client in each.
    fn connect(&mut self, seed: u64) -> Vec<Arc<dyn Backend>> {
        let runtimes = self
            .plan
            .processes
            .iter()
            .copied()
            .chain(self.servers.has_operator().then_some(1));
        let connected: Arc<Mutex<BTreeMap<usize, Arc<dyn Backend>>>> = Arc::default();
        for (nth, runtimes) in runtimes.collect::<Vec<_>>().into_iter().enumerate() {
            let mut process = Process::new(seed, nth, runtimes, self.now);
            let connects = self.servers.connect(nth);
            let connected = connected.clone();
            let history = self.history.clone();
            let connect = async move {
                match connects.await {
                    Ok(backend) => _ = locked(&connected).insert(nth, backend),
                    Err(error) => {
                        history.unexpected(format!("process {nth} does not connect: {error:?}"));
                    }
                }
            };
            process.spawn(0, connect, true);
            self.processes.push(process);
        }
        while !self.is_done() && self.now < BEGIN + CONNECTING {
            self.turn();
        }
        std::mem::take(&mut *locked(&connected))
            .into_values()
            .collect()
    }

    fn record(&self, process: &Process, p: u64) -> Record {
        Record {
            history: self.history.clone(),
            p,
            killed: process.killed.clone(),
        }
    }

    /// Runs until everybody is done, and no fault is left.
    fn live(&mut self) {
        let end = BEGIN + self.plan.longest(self.kind);
        let is_over =
            |world: &World| world.is_done() && world.coming.is_empty() && world.active.is_empty();
        while self.now < end && !is_over(self) && !has_spun() {
            self.turn();
        }
        if !self.is_done() {
            self.history
                .unexpected("some have not come to an end".to_owned());
        }
    }

    fn is_done(&self) -> bool {
        self.processes.iter().all(Process::is_done)
    }

    /// Closes the stores, and waits until all leases have run out.
    fn end(&mut self) {
        for (process, store) in self.processes.iter_mut().zip(&self.stores) {
            let store = store.clone();
            let runtime = process.runtimes.len() - 1;
            // Dropped holds are released in the background. Those that this misses end with their
            // leases.
            process.spawn(
                runtime,
                async move { drop(store.close(Duration::from_secs(2)).await) },
                true,
            );
        }
        let latest = self.now + CLOSING;
        while self.now < latest && !self.is_done() {
            self.turn();
        }
        // A claim that was sent on a slow link, and comes after its release, stays for a lease.
        let quiet =
            self.now.max(self.network.latest()) + 2 * self.plan.ttl.as_nanos() as u64 + 500 * MS;
        while self.now < quiet {
            self.turn();
        }
        outside(self.now);
        let left = self.servers.left(self.now);
        self.history.record(
            self.now,
            0,
            What::Kv {
                name: "entries".into(),
                left,
                allowed: 0,
            },
        );
        self.history.record(self.now, 0, What::End);
    }

    /// Runs one turn of everything.
    fn turn(&mut self) {
        outside(self.now);
        self.break_and_heal();
        self.servers.tick(self.now);
        let reads = |end| match end {
            End::Server(nth) => self.still_until[nth] <= self.now,
            End::Process(nth) | End::Socket(nth) => !self.processes[nth].is_deaf(self.now),
            End::Resource => true,
        };
        for (end, job) in self.network.arrived(self.now, reads) {
            match end {
                End::Process(nth) => {
                    if let Some(runtime) = self.processes[nth].reader() {
                        runtime.inbox.push(job);
                    }
                }
                End::Server(_) | End::Resource | End::Socket(_) => job(),
            }
        }
        let end = self.now + self.plan.tick;
        for (nth, process) in self.processes.iter_mut().enumerate() {
            let runtimes = process.runtimes.len();
            for (_, ns) in process.drive(self.now, end) {
                (0..runtimes).for_each(|it| {
                    self.history.record(
                        self.now,
                        number(nth, it),
                        What::Stall { ns, aside: false },
                    );
                });
            }
        }
        self.now = end;
    }

    /// Makes the faults that are due, and ends those that have lasted long enough.
    fn break_and_heal(&mut self) {
        // An eviction lasts until it is done.
        let is_evicted = self
            .operator
            .as_ref()
            .is_none_or(|(nth, _)| self.processes[*nth].is_done());
        let is_over = |fault: &Fault| {
            self.begun + fault.at + fault.lasts <= self.now
                && (is_evicted || !matches!(fault.what, Wrong::Evict(_)))
        };
        for fault in split(&mut self.active, is_over) {
            self.heal(&fault);
            self.history.record(
                self.now,
                0,
                What::Healed {
                    id: fault.nth as u64,
                },
            );
        }
        let sent = self.network.passed();
        let since = self.now.saturating_sub(self.begun);
        if self.begun <= self.now {
            self.coming
                .iter_mut()
                .for_each(|fault| fault.notice(&sent, since));
        }
        let is_due = |fault: &Fault| fault.moment.is_none() && self.begun + fault.at <= self.now;
        for fault in split(&mut self.coming, is_due) {
            let kind = format!("{:?}", fault.what);
            let breaks = self.kind.breaks(&self.plan, &fault.what);
            let lock = fault.what.lock().map(str::to_owned);
            self.history.record(
                self.now,
                0,
                What::Fault {
                    id: fault.nth as u64,
                    kind,
                    breaks,
                    lock,
                },
            );
            self.make(&fault);
            self.active.push(fault);
        }
    }

    fn make(&mut self, fault: &Fault) {
        let until = self.now + fault.lasts;
        match fault.what {
            Wrong::Pause(process, which) => self.processes[process].pause(which, until),
            Wrong::Kill(process) => self.kill(process),
            Wrong::EndRuntime(process, which) => self.end_runtime(process, which),
            Wrong::Cut(process, to, way, is_noticed) => {
                self.network.cut(process, to, Some((way, is_noticed)));
            }
            Wrong::Slow(process, to, times) => self.network.slow(process, to, times),
            Wrong::Aim(process, to, kind, way, late) => {
                self.network.aim(process, to, (kind, way), late, false);
            }
            Wrong::Each(process, to, kind, way, late) => {
                self.network.aim(process, to, (kind, way), late, true);
            }
            Wrong::Lossy(many) => self.network.lose(many),
            Wrong::Close(process, to) => {
                self.network
                    .close(|pair| pair.0 == process && to.is_none_or(|to| to == pair.1));
            }
            Wrong::PauseServer(nth) => self.still_until[nth] = self.still_until[nth].max(until),
            Wrong::RestartServer(nth) | Wrong::Wipe(nth) => {
                self.network.close(|pair| pair.1 == nth);
            }
            Wrong::Evict(_) | Wrong::Delete(_) | Wrong::Own(..) => {}
        }
        self.servers.make(&fault.what, self.now);
        if let (Wrong::Evict(lock), Some((nth, backend))) = (&fault.what, &self.operator) {
            self.processes[*nth].spawn(0, evict(backend.clone(), lock), true);
        }
    }

    fn heal(&self, fault: &Fault) {
        match fault.what {
            Wrong::Cut(process, ..) => self.network.cut(process, None, None),
            Wrong::Slow(process, ..) => self.network.slow(process, None, 1),
            Wrong::Lossy(_) => self.network.lose(0),
            Wrong::Aim(process, ..) | Wrong::Each(process, ..) => self.network.miss(process),
            Wrong::Own(nth, Own::Restore) => self.network.close(|pair| pair.1 == nth),
            _ => {}
        }
        self.servers.heal(&fault.what, self.now);
    }

    fn end_runtime(&mut self, nth: usize, which: usize) {
        let process = &mut self.processes[nth];
        // Events that its tasks have not recorded by now are late because they stood still.
        let ns = process.stalled(which, self.now);
        self.history.record(
            self.now,
            number(nth, which),
            What::Stall { ns, aside: false },
        );
        process.end_runtime(which, self.now);
    }

    fn kill(&mut self, nth: usize) {
        let process = &mut self.processes[nth];
        if process.is_alive() {
            for runtime in 0..process.runtimes.len() {
                self.history.record(
                    self.now,
                    0,
                    What::Killed {
                        target: number(nth, runtime),
                    },
                );
            }
            self.network.killed(nth);
            process.kill(self.now);
        }
    }
}

impl Wrong {
    /// The lock that the fault is about.
    fn lock(&self) -> Option<&'static str> {
        match self {
            Wrong::Evict(lock) | Wrong::Delete(lock) => Some(lock),
            _ => None,
        }
    }
}

/// Takes out the faults for which `is_so` returns true.
fn split(faults: &mut Vec<Fault>, is_so: impl Fn(&Fault) -> bool) -> Vec<Fault> {
    let (so, rest) = std::mem::take(faults).into_iter().partition(is_so);
    *faults = rest;
    so
}
