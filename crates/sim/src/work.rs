//! The work of a process's tasks: they acquire in every way, hold, use, and end in every way.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use leasehold_chaos::{Mode, Policy, What};
use leasehold_core::backend::Backend;
use leasehold_core::{
    Error, ErrorKind, Fenced, FencingToken, Guard, Leadership, Lock, Loss, Lost, Owner, Result,
    Store,
};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::history::{Record, Resource, Told};
use crate::machine::now_nanos;
use crate::meanwhile::meanwhile;
use crate::network::{End, Network};
use crate::plan::{Ask, Do, LEADER, Request, Step, Way};

/// The time for which a writer waits for the resource.
const WRITE: Duration = Duration::from_millis(100);

/// The parts that the tasks of one runtime share.
pub(crate) struct Worker {
    pub(crate) process: usize,
    pub(crate) store: Store,
    pub(crate) owner: Owner,
    pub(crate) record: Record,
    pub(crate) network: Network,
    pub(crate) resource: Resource,
    pub(crate) told: Told,
    pub(crate) unit: Duration,
    /// The servers may lose the identity of the store. Its clients refuse them from then on.
    pub(crate) loses_identity: bool,
}

/// Does one step after the other.
pub(crate) async fn work(worker: Arc<Worker>, steps: Vec<Step>) {
    for step in steps {
        match &step.what {
            Do::Lock(ask) if step.is_told => worker.told.wait(ask.lock, step.pause).await,
            _ => sleep(step.pause).await,
        }
        match &step.what {
            Do::Lock(ask) => worker.once(step.nth as u64 + 1, ask).await,
            Do::Once(work) => worker.work_once(step.nth as u64 + 1, work).await,
            Do::Both(limit, holds) => worker.both(step.nth as u64 + 1, *limit, *holds).await,
            Do::Look(lock) => worker.look(lock).await,
        }
    }
}

/// Watches the election, and records who leads.
pub(crate) async fn observe(worker: Arc<Worker>, op: u64) {
    let election = worker.store.election(LEADER);
    loop {
        let Ok(mut observer) = election.observe().await else {
            sleep(worker.unit / 4).await;
            continue;
        };
        loop {
            if let Some(leader) = observer.current() {
                worker.record.now(What::Observed {
                    op,
                    lock: LEADER.into(),
                    tok: leader.token.get(),
                });
            }
            if observer.changed().await.is_err() {
                break;
            }
        }
    }
}

/// Raises the tokens, where the store can, and ends all holds of this lock.
pub(crate) async fn evict(backend: Arc<dyn Backend>, lock: &'static str) {
    let name = lock.into();
    if let Some(floor) = backend.token_floor()
        && let Ok(mark) = floor.mark().await
    {
        // This is more than a store's tokens ever run ahead.
        let _ = floor
            .raise(FencingToken::new(mark.get() + 200_000_000_000))
            .await;
    }
    let Ok(queue) = backend.inspect(&name).await else {
        return;
    };
    for holder in queue.holders.iter().filter_map(|holder| holder.token) {
        let _ = backend.evict(&name, holder).await;
    }
}

/// A hold: a guard or a leadership.
enum Held {
    Guard(Guard),
    Leadership(Leadership),
}

/// Calls the method of either kind.
macro_rules! both {
    ($held:expr, $it:ident => $call:expr) => {
        match $held {
            Held::Guard($it) => $call,
            Held::Leadership($it) => $call,
        }
    };
}

impl Held {
    fn token(&self) -> u64 {
        both!(self, it => it.fencing_token().get())
    }

    fn left(&self) -> u64 {
        both!(self, it => it.remaining().as_nanos() as u64)
    }

    fn lost(&self) -> Lost {
        both!(self, it => it.lost())
    }

    async fn confirm(&self) -> Result<()> {
        both!(self, it => it.confirm().await)
    }

    /// The claim by which it holds: turns of one claim, and re-entries, have one place in the
    /// store.
    fn claim(&self, process: usize) -> Option<u64> {
        both!(self, it => it.place()).map(|place| claim(process, place.as_str()))
    }
}

/// The number of a claim of a process.
pub(crate) fn claim(process: usize, place: &str) -> u64 {
    let mut number = DefaultHasher::new();
    (process, place).hash(&mut number);
    number.finish()
}

/// An acquisition whose end is not recorded yet. It ends with its task, if not before.
pub(crate) struct Open<'a> {
    pub(crate) op: u64,
    pub(crate) record: &'a Record,
    pub(crate) holds: bool,
    pub(crate) noted: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let op = self.op;
        if !self.noted {
            self.record.now(if self.holds {
                What::Release { op, dropped: true }
            } else {
                What::Info { op }
            });
        }
    }
}

impl Worker {
    async fn look(&self, lock: &str) {
        let Ok(queue) = self.store.lock(lock).inspect().await else {
            return;
        };
        let t = now_nanos();
        let ops = queue
            .waiters
            .iter()
            .filter_map(|it| it.label.as_deref()?.strip_prefix("op-")?.parse().ok());
        ops.for_each(|op| self.record.at(t, What::Queued { op }));
    }

    async fn once(&self, op: u64, ask: &Ask) {
        // Dropped after `open`, which records its end.
        let held;
        let mut open = Open {
            op,
            record: &self.record,
            holds: false,
            noted: false,
        };
        match self.acquire(&mut open, ask).await {
            Some(granted) => held = granted,
            None => return,
        }
        let lost = held.lost();
        let record = self.record.clone();
        tokio::spawn(async move {
            let loss = lost.await;
            if loss != Loss::Released {
                record.now(What::Lost {
                    op,
                    why: format!("{loss:?}"),
                    aside: false,
                });
            }
        });
        self.hold(op, ask, &held).await;
        if held.left() == 0 && ask.writes {
            // This is a write that was on its way when the lock was lost.
            sleep(ask.holds).await;
            self.write(op, ask.lock, held.token()).await;
        }
        if !ask.drops {
            open.noted = true;
            self.record.now(What::Release { op, dropped: false });
            let released = match held {
                Held::Guard(guard) => guard.release().await,
                Held::Leadership(leads) => leads.resign().await,
            };
            if released.is_ok() {
                self.told.tell(ask.lock);
            }
            self.note(released.is_ok(), op, released.err().as_ref());
        }
    }

    pub(crate) fn note(&self, released: bool, op: u64, error: Option<&Error>) {
        if let Some(error) = error.filter(|error| !error.is_retryable() && error.loss().is_none()) {
            self.unexpected(op, error);
        }
        self.record.now(if released {
            What::Released { op }
        } else {
            What::Unreleased { op }
        });
    }

    async fn acquire(&self, open: &mut Open<'_>, ask: &Ask) -> Option<Held> {
        let op = open.op;
        let begin = now_nanos();
        let deadline = ask.limit.map(|limit| begin + limit.as_nanos() as u64);
        let owner = ask.owned.then_some(self.process as u64);
        let lock = ask.lock.to_owned();
        let mode = ask.mode;
        let policy = ask.policy;
        self.record.at(
            begin,
            What::Invoke {
                op,
                lock,
                mode,
                policy,
                deadline,
                owner,
            },
        );
        let answer = timeout(
            ask.leaves.unwrap_or(Duration::from_secs(3600)),
            self.send(op, ask),
        )
        .await;
        let t = now_nanos();
        let held = match answer {
            // The caller leaves.
            Err(_) => return None,
            Ok(Err(error)) => {
                self.record.at(t, self.refusal(op, &error));
                open.noted = true;
                return None;
            }
            Ok(Ok(held)) => held,
        };
        let left = held.left();
        // A guard whose validity has ended meanwhile claims nothing.
        if left == 0 {
            return None;
        }
        if let Some(claim) = held.claim(self.process) {
            self.record.at(t, What::Under { op, claim });
        }
        self.record.at(
            t,
            What::Ok {
                op,
                tok: held.token(),
                valid: t + left,
            },
        );
        open.holds = true;
        Some(held)
    }

    /// Calls the library. The label is the number of the acquisition, so that it is known in the
    /// queue.
    async fn send(&self, op: u64, ask: &Ask) -> Result<Held> {
        let label = format!("op-{op}");
        if ask.mode == Mode::Leader {
            let election = self.store.election(ask.lock);
            let leads = match (ask.policy, ask.limit) {
                (Policy::Try, _) => election.try_campaign(label),
                (_, Some(limit)) => election.campaign_timeout(label, limit),
                (_, None) => election.campaign(label),
            };
            return leads.await.map(Held::Leadership);
        }
        let lock: Lock = match ask.mode {
            Mode::Shared => self.store.rw_lock(ask.lock).read(),
            Mode::Permits { n, of } => self.store.semaphore(ask.lock, of).permits(n),
            _ => self.store.lock(ask.lock),
        };
        let lock = lock.label(label);
        let lock = if let Some(most) = ask.most {
            lock.max_hold(most)
        } else {
            lock
        };
        let lock = if ask.owned {
            lock.owner(&self.owner)
        } else {
            lock
        };
        let lock = if ask.policy == Policy::Fast {
            lock.fast()
        } else {
            lock
        };
        let guard = match (ask.policy, ask.limit) {
            (Policy::Try, _) => lock.try_acquire(),
            (_, Some(limit)) => lock.acquire_timeout(limit),
            (_, None) => lock.acquire(),
        };
        guard.await.map(Held::Guard)
    }

    /// Uses the hold for a while, as long as the library says that it holds.
    async fn hold(&self, op: u64, ask: &Ask, held: &Held) {
        let end = now_nanos() + ask.holds.as_nanos() as u64;
        let mut writes = ask.writes;
        let mut confirms = ask.confirms;
        let says = || self.says_valid(op, held);
        while held.left() > 0 {
            // A writer that is refused goes on without writes: by the library, it may be the holder
            // all the same.
            if writes {
                writes = meanwhile(says, self.write(op, ask.lock, held.token())).await;
            } else {
                says();
            }
            if std::mem::take(&mut confirms) {
                let confirmed = meanwhile(says, held.confirm()).await;
                confirmed
                    .err()
                    .iter()
                    .for_each(|error| self.expect(op, error));
            }
            if let Held::Guard(guard) = held
                && ask.downgrades
            {
                self.record.now(What::Downgrade { op });
                return drop(meanwhile(says, guard.downgrade()).await);
            }
            let now = now_nanos();
            if now >= end {
                return;
            }
            sleep((self.unit / 20).min(Duration::from_nanos(end - now))).await;
        }
    }

    pub(crate) fn refusal(&self, op: u64, error: &Error) -> What {
        match error.kind() {
            ErrorKind::Contended => What::Fail { op, busy: true },
            ErrorKind::TimedOut | ErrorKind::Unavailable => What::Fail { op, busy: false },
            ErrorKind::Ambiguous => What::Info { op },
            ErrorKind::OtherStore if self.loses_identity => What::Fail { op, busy: false },
            _ => {
                self.unexpected(op, error);
                What::Info { op }
            }
        }
    }

    pub(crate) fn expect(&self, op: u64, error: &Error) {
        use ErrorKind::{Ambiguous, Lost, OtherStore, TimedOut, Unavailable};
        match error.kind() {
            Lost | TimedOut | Unavailable | Ambiguous => {}
            OtherStore if self.loses_identity => {}
            _ => self.unexpected(op, error),
        }
    }

    /// Records an error that no fault explains.
    pub(crate) fn unexpected(&self, op: u64, error: &Error) {
        self.record
            .history
            .unexpected(format!("op {op}: {error:?}"));
    }

    /// Records until when the hold is valid, if it is. Returns the nanoseconds that are left.
    fn says_valid(&self, op: u64, held: &Held) -> u64 {
        let t = now_nanos();
        let left = held.left();
        if left > 0 {
            self.record.at(
                t,
                What::Use {
                    op,
                    valid: t + left,
                },
            );
        }
        left
    }

    /// Writes with this token. Returns whether the write was accepted, or may have been.
    pub(crate) async fn write(&self, op: u64, lock: &'static str, token: u64) -> bool {
        let (answer, answered) = oneshot::channel();
        let network = self.network.clone();
        let resource = self.resource.clone();
        let process = self.process;
        let there = move || {
            let accepted = resource.write(op, lock, token);
            let back = Box::new(move || _ = answer.send(accepted));
            drop(network.send(
                (process, 0),
                Way::Back,
                End::Process(process),
                Request::Write,
                back,
            ));
        };
        let sent = self.network.send(
            (self.process, 0),
            Way::There,
            End::Resource,
            Request::Write,
            Box::new(there),
        );
        sent.is_err() || !matches!(timeout(WRITE, answered).await, Ok(Ok(false)))
    }
}
