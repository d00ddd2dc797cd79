//! Plays a program on a store and compares each step with the models.

use std::time::Duration;

use leasehold_core::backend::async_trait;
use leasehold_core::{
    ErrorKind, Guard, Leadership, Lease, Lock, MultiGuard, Owner, Result as Answer, Store,
};
use tokio::task::JoinHandle;

use super::program::{ACTORS, NAMES, Op, Style};
use super::spec::{Entering, Spec, Verdict};

/// The limit for a single answer.
const LIMIT: Duration = Duration::from_secs(10);

macro_rules! ensure {
    ($ok:expr, $($why:tt)+) => {
        if !$ok {
            return Err(format!($($why)+));
        }
    };
}

mod checks;
mod holds;

/// The stage on which a program is played.
#[async_trait]
pub trait Stage: Send + Sync {
    /// One of three clients, all in one namespace of their own.
    fn store(&self, who: usize) -> Store;

    /// Most of a lease passes, and every holder renews.
    async fn pass(&self) {}

    /// The pause of a case that polls.
    async fn pause(&self) {
        crate::context::pause().await;
    }

    /// This client is cut off for longer than a lease, and then back.
    async fn crash(&self, _who: usize) {}
}

/// The guard of a client's hold.
enum Held {
    One(Guard),
    Lead(Leadership),
    All(MultiGuard),
}

/// A hold, and the entries in the lines (name, id) that it stands for.
struct Hold {
    held: Held,
    entries: Vec<(usize, usize)>,
}

struct Waiter {
    who: usize,
    at: usize,
    id: usize,
    task: JoinHandle<Answer<Held>>,
}

struct Players<'a> {
    stage: &'a dyn Stage,
    owners: Vec<Owner>,
    specs: Vec<Spec>,
    holds: Vec<Vec<Hold>>,
    waiters: Vec<Waiter>,
    labels: usize,
}

/// Plays the program. `Err` describes the difference between store and models.
pub async fn play(stage: &dyn Stage, program: &[Op]) -> Result<(), String> {
    let mut players = Players {
        stage,
        owners: (0..ACTORS).map(|_| Owner::new()).collect(),
        specs: vec![Spec::default(); NAMES],
        holds: (0..ACTORS).map(|_| Vec::new()).collect(),
        waiters: Vec::new(),
        labels: 0,
    };
    let mut observers = Vec::new();
    for at in 0..NAMES {
        let observer = stage.store(0).election(name(at)).observe().await;
        observers.push(observer.map_err(|e| format!("observing: {e:?}"))?);
    }
    for (i, op) in program.iter().enumerate() {
        let step = async {
            players.step(*op).await?;
            players.settle().await
        };
        step.await.map_err(|e| format!("step {i}, {op:?}: {e}"))?;
    }
    for (at, observer) in observers.iter_mut().enumerate() {
        players.observed(at, observer).await?;
    }
    players.part().await
}

fn name(at: usize) -> String {
    format!("name {at}")
}

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> Result<T, String> {
    tokio::time::timeout(LIMIT, work)
        .await
        .map_err(|_| format!("waited {LIMIT:?} for {what}"))
}

impl Hold {
    fn lease(&self) -> &dyn Lease {
        match &self.held {
            Held::One(guard) => guard,
            Held::Lead(leadership) => leadership,
            Held::All(all) => all,
        }
    }

    fn token(&self, at: usize) -> u64 {
        match &self.held {
            Held::One(guard) => guard.fencing_token().get(),
            Held::Lead(leadership) => leadership.fencing_token().get(),
            Held::All(all) => all
                .get(name(at))
                .map_or(0, |guard| guard.fencing_token().get()),
        }
    }
}

impl Players<'_> {
    fn label(&mut self) -> String {
        self.labels += 1;
        format!("e{}", self.labels)
    }

    /// The lock of a style, with a label; a candidate's is its value.
    fn lock(&self, who: usize, at: usize, style: Style, label: &str) -> Lock {
        let store = self.stage.store(who).label(label);
        match style {
            Style::Lock | Style::Candidate => store.lock(name(at)),
            Style::Read => store.rw_lock(name(at)).read(),
            Style::Write => store.rw_lock(name(at)).write(),
            Style::Permits(n, of) => store.semaphore(name(at), of).permits(n),
        }
    }

    async fn step(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Try { who, at, style } => self.attempt(who, at, style).await,
            Op::Wait { who, at, style } => self.wait(who, at, style).await,
            Op::Enter { who, at, style } => self.enter(who, at, style).await,
            Op::All { who } => self.all(who).await,
            Op::Release { who, nth } => self.release(who, nth, true).await,
            Op::Drop { who, nth } => self.release(who, nth, false).await,
            Op::Leave { who, nth } => {
                self.leave(who, nth);
                Ok(())
            }
            Op::Confirm { who, nth } => self.confirm(who, nth).await,
            Op::Downgrade { who, nth } => self.downgrade(who, nth).await,
            Op::Proclaim { who, nth, value } => self.proclaim(who, nth, value).await,
            Op::Evict { at, nth } => self.evict(at, nth).await,
            Op::Pass => {
                self.stage.pass().await;
                Ok(())
            }
            Op::Crash { who } => self.crash(who).await,
        }
    }

    /// Compares a claim's answer with the verdict, and keeps the granted hold.
    fn judge(
        &mut self,
        (who, at, style): (usize, usize, Style),
        (label, owned): (&str, bool),
        verdict: Verdict,
        answer: Answer<Held>,
    ) -> Result<(), String> {
        match (verdict, answer) {
            (Verdict::In, Ok(held)) => {
                let id = self.specs[at].join(who, style.mode(), label, owned);
                let hold = Hold {
                    held,
                    entries: vec![(at, id)],
                };
                self.specs[at].grant(id, hold.token(at))?;
                self.holds[who].push(hold);
                Ok(())
            }
            (Verdict::Busy, Err(e)) if e.kind() == ErrorKind::Contended => Ok(()),
            (Verdict::Invalid, Err(e)) if e.kind() == ErrorKind::Invalid => Ok(()),
            (expected, got) => {
                let got = got.map(|held| {
                    Hold {
                        held,
                        entries: Vec::new(),
                    }
                    .token(at)
                });
                Err(format!(
                    "expected {expected:?}, got {got:?} behind {:?}",
                    self.specs[at].queue()
                ))
            }
        }
    }

    async fn attempt(&mut self, who: usize, at: usize, style: Style) -> Result<(), String> {
        let verdict = self.specs[at].verdict(style.mode());
        let label = self.label();
        let answer = if style == Style::Candidate {
            self.stage
                .store(who)
                .election(name(at))
                .try_campaign(label.clone())
                .await
                .map(Held::Lead)
        } else {
            self.lock(who, at, style, &label)
                .try_acquire()
                .await
                .map(Held::One)
        };
        self.judge((who, at, style), (&label, false), verdict, answer)
    }

    async fn enter(&mut self, who: usize, at: usize, style: Style) -> Result<(), String> {
        let label = self.label();
        let lock = self.lock(who, at, style, &label).owner(&self.owners[who]);
        match (
            self.specs[at].entering(who, style.mode()),
            lock.try_acquire().await.map(Held::One),
        ) {
            (Entering::Shares(id), Ok(held)) => {
                let hold = Hold {
                    held,
                    entries: vec![(at, id)],
                };
                let entry = self.specs[at].entry(id).ok_or("shared and gone")?;
                ensure!(
                    entry.token == Some(hold.token(at)),
                    "re-entry changed the token of {entry:?}"
                );
                entry.guards += 1;
                self.holds[who].push(hold);
                Ok(())
            }
            (Entering::Shares(id), Err(e)) => Err(format!("expected to share {id}, got {e:?}")),
            (Entering::New(verdict), answer) => {
                self.judge((who, at, style), (&label, true), verdict, answer)
            }
        }
    }

    async fn wait(&mut self, who: usize, at: usize, style: Style) -> Result<(), String> {
        let verdict = self.specs[at].verdict(style.mode());
        let label = self.label();
        let task = if style == Style::Candidate {
            let campaign = self
                .stage
                .store(who)
                .election(name(at))
                .campaign(label.clone());
            tokio::spawn(async move { campaign.await.map(Held::Lead) })
        } else {
            let acquire = self.lock(who, at, style, &label).acquire();
            tokio::spawn(async move { acquire.await.map(Held::One) })
        };
        if verdict != Verdict::Busy {
            let answer = in_time("an answer", task)
                .await?
                .map_err(|e| format!("it panicked: {e}"))?;
            return self.judge((who, at, style), (&label, false), verdict, answer);
        }
        let id = self.specs[at].join(who, style.mode(), &label, false);
        self.waiters.push(Waiter { who, at, id, task });
        Ok(())
    }

    async fn all(&mut self, who: usize) -> Result<(), String> {
        let label = self.label();
        let free = |spec: &Spec| spec.queue().is_empty();
        let answer = self
            .stage
            .store(who)
            .label(&*label)
            .multi_lock((0..NAMES).map(name))
            .try_acquire()
            .await;
        match (self.specs.iter().position(|spec| !free(spec)), answer) {
            (None, Ok(all)) => {
                let mut hold = Hold {
                    held: Held::All(all),
                    entries: Vec::new(),
                };
                for at in 0..NAMES {
                    let id = self.specs[at].join(who, Style::Lock.mode(), &label, false);
                    self.specs[at].grant(id, hold.token(at))?;
                    hold.entries.push((at, id));
                }
                self.holds[who].push(hold);
                Ok(())
            }
            (Some(first), Err(e)) => {
                let said = e.name().map(|name| name.as_str().to_owned());
                ensure!(
                    e.kind() == ErrorKind::Contended && said == Some(name(first)),
                    "expected {first}, got {e:?}"
                );
                Ok(())
            }
            (expected, got) => Err(format!(
                "expected {expected:?} to be in the way, got {got:?}"
            )),
        }
    }

    fn nth(&mut self, who: usize, nth: usize) -> Option<Hold> {
        let n = self.holds[who].len();
        (n > 0).then(|| self.holds[who].remove(nth % n))
    }

    /// Returns whether every entry of a hold is still there.
    fn is_good(&mut self, hold: &Hold) -> bool {
        hold.entries
            .iter()
            .all(|(at, id)| self.specs[*at].entry(*id).is_some())
    }
}
