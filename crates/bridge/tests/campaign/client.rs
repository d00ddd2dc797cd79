//! A client process: the real library in one of the three stages. It acquires in several ways, counts in the resource, and writes down
//! what it sees.

use std::cell::{Cell, RefCell};
use std::io::BufRead;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use leasehold::backend::Moment;
use leasehold::{Error, ErrorKind, Guard, Loss, Store};
use leasehold_chaos::{Mode, Policy, Recorder, What};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::pairs::{Kind, Stage, connect_as, nanos};
use crate::resource::{Ask, Connection};

/// The lock that all clients want, and the number of their tasks that want it.
pub(crate) const ORDERS: &str = "orders";
const TASKS: usize = 2;

/// What a client process is told.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) p: u64,
    pub(crate) kind: Kind,
    pub(crate) stage: Stage,
    /// Old and new.
    pub(crate) urls: [String; 2],
    pub(crate) folder: PathBuf,
    pub(crate) resource: String,
    pub(crate) lock: String,
    pub(crate) seed: u64,
}

struct Client {
    plan: Plan,
    store: Store,
    record: Recorder,
    random: RefCell<fastrand::Rng>,
    ops: Cell<u64>,
    draining: watch::Receiver<bool>,
}

/// By the clock that all processes share.
pub(crate) fn now() -> u64 {
    Moment::now().as_nanos()
}

/// Works until its standard input says something, then ends what is under way. Ends at once when its standard input does.
pub(crate) fn main(plan: Plan) {
    let (drain, draining) = watch::channel(false);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            drain.send_replace(true);
        }
        std::process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, run(plan, draining));
}

async fn run(plan: Plan, draining: watch::Receiver<bool>) {
    let record = Recorder::new(&plan.folder, plan.p).unwrap();
    let store = loop {
        match connect_as(plan.stage, &plan.urls).await {
            Ok((store, _)) => break store.ttl(plan.kind.ttl()),
            Err(error) if !error.is_retryable() => unexpected("connecting", &error),
            Err(_) if *draining.borrow() => return,
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let random = RefCell::new(fastrand::Rng::with_seed(plan.seed));
    let client = Rc::new(Client {
        plan,
        store,
        record,
        random,
        ops: Cell::new(0),
        draining,
    });
    tokio::task::spawn_local(note_stalls(client.clone()));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| tokio::task::spawn_local(work(client.clone())))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // What is not released by then the leases end.
    let _ = client.store.close(Duration::from_secs(2)).await;
}

async fn work(client: Rc<Client>) {
    let mut resource = Connection::to(&client.plan.resource).await;
    while !*client.draining.borrow() {
        let op = client.op();
        if let Some(guard) = client.acquire(op).await {
            tokio::task::spawn_local(watch_loss(client.clone(), op, guard.lost()));
            client.hold(op, &guard, &mut resource).await;
            client.end(op, guard).await;
        }
        let pause = if client.one_in(3) {
            client.plan.kind.ttl() / 4
        } else {
            Duration::from_millis(20)
        };
        tokio::time::sleep(client.up_to(pause)).await;
    }
}

impl Client {
    fn op(&self) -> u64 {
        self.ops.set(self.ops.get() + 1);
        self.plan.p * 1_000_000_000 + self.ops.get()
    }

    fn one_in(&self, n: u8) -> bool {
        self.random.borrow_mut().u8(0..n) == 0
    }

    /// A random time, up to this.
    fn up_to(&self, d: Duration) -> Duration {
        d.mul_f64(self.random.borrow_mut().f64())
    }

    fn at(&self, t: u64, what: What) {
        self.record.write(t, what).unwrap();
    }

    fn now(&self, what: What) {
        self.at(now(), what);
    }

    /// Tries, waits, waits for a time, or leaves at some moment.
    async fn acquire(&self, op: u64) -> Option<Guard> {
        let ttl = self.plan.kind.ttl();
        let tries = self.one_in(6);
        let limit = (!tries && self.one_in(4)).then(|| self.up_to(3 * ttl));
        let patience = if self.one_in(8) {
            self.up_to(ttl)
        } else {
            Duration::from_secs(600)
        };
        let (begin, lock) = (now(), self.plan.lock.clone());
        let policy = if tries { Policy::Try } else { Policy::Fair };
        let deadline = limit.map(|limit| begin + nanos(limit));
        self.at(
            begin,
            What::Invoke {
                op,
                lock,
                mode: Mode::Exclusive,
                policy,
                deadline,
                owner: None,
            },
        );
        let lock = self.store.lock(&self.plan.lock).label(format!("op-{op}"));
        let asked = async {
            match limit {
                _ if tries => lock.try_acquire().await,
                Some(limit) => lock.acquire_timeout(limit).await,
                None => lock.acquire().await,
            }
        };
        match tokio::time::timeout(patience, asked).await {
            Ok(Ok(guard)) => {
                let (t, left) = (now(), nanos(guard.remaining()));
                // A guard whose validity has ended meanwhile claims nothing.
                let what = if left == 0 {
                    What::Info { op }
                } else {
                    What::Ok {
                        op,
                        tok: guard.fencing_token().get(),
                        valid: t + left,
                    }
                };
                self.at(t, what);
                (left > 0).then_some(guard)
            }
            Ok(Err(error)) => {
                self.now(match error.kind() {
                    ErrorKind::Contended => What::Fail { op, busy: true },
                    ErrorKind::TimedOut | ErrorKind::Unavailable => What::Fail { op, busy: false },
                    ErrorKind::Ambiguous => What::Info { op },
                    _ => {
                        unexpected("acquiring", &error);
                        What::Info { op }
                    }
                });
                None
            }
            Err(_) => {
                self.now(What::Info { op });
                None
            }
        }
    }

    /// Counts in two steps, as long as it is told that it holds. Now and then for longer than a lease.
    async fn hold(&self, op: u64, guard: &Guard, resource: &mut Connection) {
        let ttl = self.plan.kind.ttl();
        let until = now() + nanos(self.up_to(if self.one_in(12) { 2 * ttl } else { ttl / 10 }));
        let tok = guard.fencing_token().get();
        let ask = |value| Ask {
            op,
            lock: self.plan.lock.clone(),
            tok,
            value,
        };
        while self.says_valid(op, guard) {
            let Some(value) = resource.ask(&ask(None)).await else {
                return;
            };
            tokio::time::sleep(self.up_to(ttl / 40)).await;
            // It does not look again: only the token protects what it writes.
            if resource.ask(&ask(Some(value + 1))).await.is_none()
                || now() >= until
                || *self.draining.borrow()
            {
                return;
            }
        }
    }

    fn says_valid(&self, op: u64, guard: &Guard) -> bool {
        let (t, left) = (now(), nanos(guard.remaining()));
        if left > 0 {
            self.at(
                t,
                What::Use {
                    op,
                    valid: t + left,
                },
            );
        }
        left > 0
    }

    async fn end(&self, op: u64, guard: Guard) {
        let dropped = self.one_in(4);
        self.now(What::Release { op, dropped });
        if dropped {
            return drop(guard);
        }
        match guard.release().await {
            Ok(()) => self.now(What::Released { op }),
            Err(error) => {
                if !error.is_retryable() && error.loss().is_none() {
                    unexpected("releasing", &error);
                }
                self.now(What::Unreleased { op });
            }
        }
    }
}

/// An error that no fault of the campaign explains. It is in the log of the process, and fails the run.
fn unexpected(doing: &str, error: &Error) {
    eprintln!("UNEXPECTED {doing}: {error:?}");
}

async fn watch_loss(client: Rc<Client>, op: u64, lost: leasehold::Lost) {
    let loss = lost.await;
    if loss != Loss::Released {
        client.now(What::Lost {
            op,
            why: format!("{loss:?}"),
            aside: false,
        });
    }
}

/// Notes for how long this process did not run: what is late meanwhile is not the library's fault.
async fn note_stalls(client: Rc<Client>) {
    let tick = Duration::from_millis(10);
    let mut last = now();
    loop {
        tokio::time::sleep(tick).await;
        let before = std::mem::replace(&mut last, now());
        let stalled = (last - before).saturating_sub(nanos(tick));
        if stalled > nanos(tick) {
            client.now(What::Stall {
                ns: stalled,
                aside: false,
            });
        }
    }
}
