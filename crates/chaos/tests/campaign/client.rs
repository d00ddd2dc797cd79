//! A client process: the real library, doing random lock work, and writing down what it sees.

use std::{
    cell::{Cell, RefCell},
    io::BufRead,
    path::PathBuf,
    rc::Rc,
    time::Duration,
};

use leasehold::{ErrorKind, Owner, Store};
use leasehold_chaos::What;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::{
    runtime::Runtime,
    sync::{mpsc, watch},
    task::{JoinHandle, LocalSet},
};

use super::{
    aside::Aside,
    command, foreign, idlers,
    kind::{self, Kind, NAIVE_FROM, nanos},
    lodgers::Lodgers,
    looks,
    recorder::{Record, now},
    work,
};

/// What a client process is told.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) p: u64,
    pub(crate) kind: Kind,
    pub(crate) url: String,
    pub(crate) folder: PathBuf,
    pub(crate) resource: String,
    pub(crate) seed: u64,
    /// How many times as long as usual its leases are.
    pub(crate) leases: u32,
    pub(crate) tasks: u64,
    /// It believes that it holds until it releases, and sends no token with its writes.
    pub(crate) naive: bool,
    /// The library runs on a thread of its own.
    pub(crate) own_thread: bool,
    /// Other runtimes use the same store, and end.
    pub(crate) lodgers: bool,
    /// It is some other clients of the store, too, which pass a lock on: one for each of these URLs.
    pub(crate) relays: Vec<String>,
    /// It is a client of another library.
    pub(crate) foreign: bool,
    /// It runs programs by the command.
    pub(crate) command: bool,
}

/// How many numbers each of its runtimes has, and each other client beside it.
const LODGER: u64 = 1_000_000;
/// How long a client is looked at that does nothing any more, and how much of a processor's time it may take meanwhile.
const IDLE: (Duration, u64) = (Duration::from_secs(2), MOST);
/// How many milliseconds of a processor's time it takes to do nothing, at most.
pub(super) const MOST: u64 = 200;

/// What the tasks of a client share.
pub(crate) struct Client {
    pub(crate) plan: Plan,
    pub(crate) store: Store,
    pub(crate) record: Record,
    pub(crate) owner: Owner,
    /// The thread that hears of losses, if its runtime does not.
    pub(crate) aside: Option<Aside>,
    pub(crate) random: RefCell<fastrand::Rng>,
    ops: Cell<u64>,
    /// No new work is begun.
    pub(crate) draining: watch::Receiver<bool>,
}

impl Client {
    pub(super) fn new(
        plan: Plan,
        store: Store,
        record: Record,
        draining: watch::Receiver<bool>,
    ) -> Client {
        let random = RefCell::new(fastrand::Rng::with_seed(plan.seed));
        let aside = plan.own_thread.then(|| Aside::start(&plan));
        Client {
            plan,
            store,
            record,
            owner: Owner::new(),
            aside,
            random,
            ops: Cell::new(0),
            draining,
        }
    }

    /// Its numbers begin further on: it is beside another one in the same process.
    pub(super) fn lodger(self, nth: u64) -> Client {
        self.ops.set(nth * LODGER);
        self
    }

    /// The number of its owner in the history.
    pub(crate) fn owner_number(&self) -> u64 {
        self.plan.p * 1000 + self.ops.get() / LODGER
    }

    pub(crate) fn op(&self) -> u64 {
        self.ops.set(self.ops.get() + 1);
        self.plan.p * 1_000_000_000 + self.ops.get()
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.plan.kind.ttl()
    }

    pub(crate) fn random<T>(&self, choose: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        choose(&mut self.random.borrow_mut())
    }

    /// A random time, up to this.
    pub(crate) fn up_to(&self, d: Duration) -> Duration {
        d.mul_f64(self.random(fastrand::Rng::f64))
    }

    pub(crate) fn drains(&self) -> bool {
        *self.draining.borrow()
    }
}

/// Works until its standard input says `drain`, then ends what is under way. Blocks its runtime when it says `block` and for how many
/// milliseconds. Ends at once when its standard input does.
pub(crate) fn main(plan: Plan) {
    kind::lengthen(plan.leases);
    if plan.foreign {
        foreign::go_on(&plan);
    }
    let (drain, draining) = watch::channel(false);
    let (block, blocks) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line.strip_prefix("block ").and_then(|ms| ms.parse().ok()) {
                // It has ended.
                Some(ms) => drop(block.send(Duration::from_millis(ms))),
                None => drop(drain.send_replace(true)),
            }
        }
        std::process::exit(3);
    });
    if plan.command {
        return command::work(&plan, &draining);
    }
    let runtime = runtime();
    let lodgers = plan
        .lodgers
        .then(|| Lodgers::start(plan.clone(), draining.clone()));
    if let Some(None) = lodgers {
        return;
    }
    LocalSet::new().block_on(&runtime, run(plan, draining, blocks, lodgers.flatten()));
}

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

async fn run(
    plan: Plan,
    draining: watch::Receiver<bool>,
    blocks: mpsc::UnboundedReceiver<Duration>,
    lodgers: Option<Lodgers>,
) {
    let record = Record::new(&plan.folder, plan.p);
    let store = match &lodgers {
        Some(lodgers) => Some(lodgers.store.clone()),
        None => connect(&plan, &draining).await,
    };
    let Some(store) = store else { return };
    tokio::task::spawn_local(block(blocks));
    let mut tasks = Vec::new();
    // What is in memory is of one process, so the naive clients are in it, too.
    if plan.kind == Kind::Memory {
        let naive = Plan {
            p: NAIVE_FROM,
            tasks: 2,
            naive: true,
            ..plan.clone()
        };
        let record = Record::new(&naive.folder, naive.p);
        tasks.extend(start(&Rc::new(Client::new(
            naive,
            store.clone(),
            record,
            draining.clone(),
        ))));
    }
    let client = Rc::new(Client::new(
        plan.clone(),
        store.clone(),
        record,
        draining.clone(),
    ));
    tasks.extend(start(&client));
    let mut stores = vec![store];
    let mut relays = Vec::new();
    for (nth, url) in (1..).zip(plan.relays.clone()) {
        let plan = Plan {
            url,
            ..plan.clone()
        };
        let Some(store) = connect(&plan, &draining).await else {
            break;
        };
        stores.push(store.clone());
        let record = Record::new(&plan.folder, plan.p);
        relays.push(Rc::new(
            Client::new(plan, store, record, draining.clone()).lodger(nth),
        ));
    }
    if !relays.is_empty() {
        tasks.push(tokio::task::spawn_local(work::relay(relays)));
    }
    let idler = plan
        .lodgers
        .then(|| std::thread::spawn(move || idlers::idle(&plan, &draining)));
    for task in tasks {
        task.await.unwrap();
    }
    if let Some(idler) = idler {
        tokio::task::spawn_blocking(|| idler.join())
            .await
            .unwrap()
            .unwrap();
    }
    if let Some(lodgers) = lodgers {
        let last = tokio::task::spawn_blocking(|| lodgers.thread.join())
            .await
            .unwrap()
            .unwrap();
        idle(&client).await;
        last.shutdown_background();
    }
    for store in stores {
        // What was dropped is released in the background; what that cannot do the leases do.
        let _ = store.close(Duration::from_secs(2)).await;
    }
}

/// Notes how much of a processor it takes to do nothing.
async fn idle(client: &Client) {
    let used = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
    let gauge = |value, baseline| What::Gauge {
        name: "milliseconds of an idle client's processor".into(),
        value,
        baseline,
    };
    client.record.now(gauge(IDLE.1, true));
    let before = used();
    tokio::time::sleep(IDLE.0).await;
    client
        .record
        .now(gauge(nanos(used() - before) / 1_000_000, false));
}

/// Does what no task of a runtime may do.
async fn block(mut blocks: mpsc::UnboundedReceiver<Duration>) {
    while let Some(length) = blocks.recv().await {
        std::thread::sleep(length);
    }
}

fn start(client: &Rc<Client>) -> Vec<JoinHandle<()>> {
    tokio::task::spawn_local(note_stalls(
        Record::new(&client.plan.folder, client.plan.p),
        false,
    ));
    if !client.plan.naive {
        tokio::task::spawn_local(looks::look(client.clone()));
        // Before a grant on Redlock is complete, its nodes say numbers of their own, and observers see them.
        if client.plan.kind.is_complete() {
            tokio::task::spawn_local(looks::observe(client.clone()));
        }
    }
    (0..client.plan.tasks)
        .map(|_| tokio::task::spawn_local(work::work(client.clone())))
        .collect()
}

/// Its servers may be down just now.
pub(super) async fn connect(plan: &Plan, draining: &watch::Receiver<bool>) -> Option<Store> {
    loop {
        let connected = if plan.own_thread {
            leasehold::connect(&plan.url).on_own_thread().await
        } else {
            leasehold::connect(&plan.url).await
        };
        match connected {
            Ok(store) => return Some(store.ttl(plan.kind.ttl())),
            Err(_) if *draining.borrow() => return None,
            // Two addresses lead to one node just now.
            Err(error) if plan.kind == Kind::Redlock && error.kind() == ErrorKind::Invalid => {}
            Err(error) if !error.is_retryable() => work::unexpected("connecting", &error),
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Notes for how long this process, or this thread of it, did not run: what it hears late meanwhile is not the library's fault.
pub(super) async fn note_stalls(record: Record, aside: bool) {
    let tick = Duration::from_millis(10);
    let mut last = now();
    loop {
        tokio::time::sleep(tick).await;
        // From one look to the next: it may also stand still while it writes a line.
        let before = std::mem::replace(&mut last, now());
        let stalled = (last - before).saturating_sub(nanos(tick));
        if stalled > nanos(tick) {
            record.now(What::Stall { ns: stalled, aside });
        }
    }
}
