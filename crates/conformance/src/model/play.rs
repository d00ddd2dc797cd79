//! Plays a program on a store and compares each step with the models.

use std::collections::HashSet;
use std::time::Duration;

use leasehold_core::seam::async_trait;
use leasehold_core::{ErrorKind, Guard, Leadership, Lease, Lock, MultiGuard, Observer, Owner, Result as Answer, Store};
use tokio::task::JoinHandle;

use super::program::{ACTORS, NAMES, Op, Style};
use super::spec::{Entering, Spec, Verdict};

/// No single answer takes longer.
const LIMIT: Duration = Duration::from_secs(10);

macro_rules! ensure {
    ($ok:expr, $($why:tt)+) => {
        if !$ok {
            return Err(format!($($why)+));
        }
    };
}

/// Where a program is played.
#[async_trait]
pub trait Stage: Send + Sync {
    /// One of three clients, all in one namespace of their own.
    fn store(&self, who: usize) -> Store;

    /// Most of a lease passes, and everybody renews.
    async fn pass(&self) {}

    /// The nap of a judge who looks again.
    async fn nap(&self) {
        crate::context::nap().await;
    }

    /// This client is cut off for longer than a lease, and then back.
    async fn crash(&self, _who: usize) {}
}

/// What a client holds.
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

/// Plays it. `Err` says where store and models differ.
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
    tokio::time::timeout(LIMIT, work).await.map_err(|_| format!("waited {LIMIT:?} for {what}"))
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
            Held::All(all) => all.get(name(at)).map_or(0, |guard| guard.fencing_token().get()),
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

    /// Compares a claim's answer with the verdict, and keeps what was granted.
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
                let hold = Hold { held, entries: vec![(at, id)] };
                self.specs[at].grant(id, hold.token(at))?;
                self.holds[who].push(hold);
                Ok(())
            }
            (Verdict::Busy, Err(e)) if e.kind() == ErrorKind::Contended => Ok(()),
            (Verdict::Invalid, Err(e)) if e.kind() == ErrorKind::Invalid => Ok(()),
            (expected, got) => {
                let got = got.map(|held| Hold { held, entries: Vec::new() }.token(at));
                Err(format!("expected {expected:?}, got {got:?} behind {:?}", self.specs[at].line()))
            }
        }
    }

    async fn attempt(&mut self, who: usize, at: usize, style: Style) -> Result<(), String> {
        let (verdict, label) = (self.specs[at].verdict(style.mode()), self.label());
        let answer = if style == Style::Candidate {
            self.stage.store(who).election(name(at)).try_campaign(label.clone()).await.map(Held::Lead)
        } else {
            self.lock(who, at, style, &label).try_acquire().await.map(Held::One)
        };
        self.judge((who, at, style), (&label, false), verdict, answer)
    }

    async fn enter(&mut self, who: usize, at: usize, style: Style) -> Result<(), String> {
        let label = self.label();
        let lock = self.lock(who, at, style, &label).owner(&self.owners[who]);
        match (self.specs[at].entering(who, style.mode()), lock.try_acquire().await.map(Held::One)) {
            (Entering::Shares(id), Ok(held)) => {
                let hold = Hold { held, entries: vec![(at, id)] };
                let entry = self.specs[at].entry(id).ok_or("shared and gone")?;
                ensure!(entry.token == Some(hold.token(at)), "re-entry changed the token of {entry:?}");
                entry.guards += 1;
                self.holds[who].push(hold);
                Ok(())
            }
            (Entering::Shares(id), Err(e)) => Err(format!("expected to share {id}, got {e:?}")),
            (Entering::New(verdict), answer) => self.judge((who, at, style), (&label, true), verdict, answer),
        }
    }

    async fn wait(&mut self, who: usize, at: usize, style: Style) -> Result<(), String> {
        let (verdict, label) = (self.specs[at].verdict(style.mode()), self.label());
        let task = if style == Style::Candidate {
            let campaign = self.stage.store(who).election(name(at)).campaign(label.clone());
            tokio::spawn(async move { campaign.await.map(Held::Lead) })
        } else {
            let acquire = self.lock(who, at, style, &label).acquire();
            tokio::spawn(async move { acquire.await.map(Held::One) })
        };
        if verdict != Verdict::Busy {
            let answer = in_time("an answer", task).await?.map_err(|e| format!("it panicked: {e}"))?;
            return self.judge((who, at, style), (&label, false), verdict, answer);
        }
        let id = self.specs[at].join(who, style.mode(), &label, false);
        self.waiters.push(Waiter { who, at, id, task });
        Ok(())
    }

    async fn all(&mut self, who: usize) -> Result<(), String> {
        let label = self.label();
        let free = |spec: &Spec| spec.line().is_empty();
        let answer = self.stage.store(who).label(&*label).multi_lock((0..NAMES).map(name)).try_acquire().await;
        match (self.specs.iter().position(|spec| !free(spec)), answer) {
            (None, Ok(all)) => {
                let mut hold = Hold { held: Held::All(all), entries: Vec::new() };
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
                ensure!(e.kind() == ErrorKind::Contended && said == Some(name(first)), "expected {first}, got {e:?}");
                Ok(())
            }
            (expected, got) => Err(format!("expected {expected:?} to be in the way, got {got:?}")),
        }
    }

    fn nth(&mut self, who: usize, nth: usize) -> Option<Hold> {
        let n = self.holds[who].len();
        (n > 0).then(|| self.holds[who].remove(nth % n))
    }

    /// Whether every entry of a hold is still there.
    fn is_good(&mut self, hold: &Hold) -> bool {
        hold.entries.iter().all(|(at, id)| self.specs[*at].entry(*id).is_some())
    }

    async fn release(&mut self, who: usize, nth: usize, told: bool) -> Result<(), String> {
        let Some(hold) = self.nth(who, nth) else { return Ok(()) };
        let good = self.is_good(&hold);
        for (at, id) in hold.entries {
            let last = self.specs[at].entry(id).is_some_and(|entry| {
                entry.guards -= 1;
                entry.guards == 0
            });
            if last {
                self.specs[at].leave(id);
            }
        }
        if !told {
            return Ok(());
        }
        let answer = match hold.held {
            Held::One(guard) => guard.release().await,
            Held::Lead(leadership) => leadership.resign().await,
            Held::All(all) => all.release().await,
        };
        expected(good, answer)
    }

    fn leave(&mut self, who: usize, nth: usize) {
        let mine: Vec<usize> = (0..self.waiters.len()).filter(|i| self.waiters[*i].who == who).collect();
        if !mine.is_empty() {
            let waiter = self.waiters.remove(mine[nth % mine.len()]);
            waiter.task.abort();
            self.specs[waiter.at].leave(waiter.id);
        }
    }

    async fn confirm(&mut self, who: usize, nth: usize) -> Result<(), String> {
        let Some(hold) = self.nth(who, nth) else { return Ok(()) };
        let answer = match &hold.held {
            Held::One(guard) => guard.confirm().await,
            Held::Lead(leadership) => leadership.confirm().await,
            Held::All(all) => all.check(),
        };
        let good = self.is_good(&hold);
        self.holds[who].push(hold);
        expected(good, answer)
    }

    async fn downgrade(&mut self, who: usize, nth: usize) -> Result<(), String> {
        let Some(hold) = self.nth(who, nth) else { return Ok(()) };
        let good = self.is_good(&hold);
        if let (Held::One(guard), [(at, id)]) = (&hold.held, &hold.entries[..]) {
            let answer = guard.downgrade().await;
            match self.specs[*at].entry(*id) {
                Some(entry) if entry.mode == Style::Read.mode() => expected(good, answer)?,
                Some(entry) if entry.mode == Style::Write.mode() && entry.guards == 1 => {
                    entry.mode = Style::Read.mode();
                    expected(good, answer)?;
                }
                Some(entry) => {
                    let refused = answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::Invalid);
                    ensure!(refused, "a downgrade of {entry:?} answered {answer:?}");
                }
                None => expected(false, answer)?,
            }
        }
        self.holds[who].push(hold);
        Ok(())
    }

    async fn proclaim(&mut self, who: usize, nth: usize, value: u8) -> Result<(), String> {
        let Some(at) = self.holds[who].iter().position(|hold| matches!(hold.held, Held::Lead(_))) else {
            return Ok(());
        };
        let Some(hold) = self.nth(who, if nth.is_multiple_of(2) { at } else { nth }) else { return Ok(()) };
        if let (Held::Lead(leadership), [(at, id)]) = (&hold.held, &hold.entries[..]) {
            let value = format!("{id} proclaims {value}");
            expected(self.is_good(&hold), leadership.proclaim(value.clone()).await)?;
            if let Some(entry) = self.specs[*at].entry(*id) {
                entry.label = value;
            }
        }
        self.holds[who].push(hold);
        Ok(())
    }

    async fn evict(&mut self, at: usize, nth: usize) -> Result<(), String> {
        let holders: Vec<_> = self.specs[at].line().iter().filter_map(|e| Some((e.id, e.token?))).collect();
        if holders.is_empty() {
            return Ok(());
        }
        let (id, token) = holders[nth % holders.len()];
        let token = leasehold_core::FencingToken::new(token);
        for there in [true, false] {
            let was = self.stage.store(0).evict(name(at), token).await.map_err(|e| format!("{e:?}"))?;
            ensure!(was == there, "an eviction by token {token:?} said {was}");
        }
        self.specs[at].leave(id);
        for hold in self.holds.iter().flatten().filter(|hold| hold.entries.contains(&(at, id))) {
            in_time("the evicted to hear of it", hold.lease().lost()).await?;
        }
        Ok(())
    }

    async fn crash(&mut self, who: usize) -> Result<(), String> {
        while self.waiters.iter().any(|waiter| waiter.who == who) {
            self.leave(who, 0);
        }
        self.settle().await?;
        self.stage.crash(who).await;
        for spec in &mut self.specs {
            let dead: Vec<usize> = spec.line().iter().filter(|e| e.who == who).map(|e| e.id).collect();
            dead.into_iter().for_each(|id| spec.leave(id));
        }
        for hold in self.holds[who].drain(..) {
            in_time("a dead client's loss", hold.lease().lost()).await?;
        }
        Ok(())
    }

    /// Each client that must hold now does, and each sees what the models say.
    async fn settle(&mut self) -> Result<(), String> {
        while let Some(i) = self.waiters.iter().position(|w| self.specs[w.at].must_hold(w.id)) {
            let Waiter { who, at, id, task } = self.waiters.remove(i);
            let answer = in_time(&format!("the turn of {id} in {:?}", self.specs[at].line()), task).await?;
            let held = answer.map_err(|e| format!("it panicked: {e}"))?.map_err(|e| format!("{id}: {e:?}"))?;
            let hold = Hold { held, entries: vec![(at, id)] };
            self.specs[at].grant(id, hold.token(at))?;
            self.holds[who].push(hold);
        }
        for hold in self.holds.iter().flatten() {
            let good = hold.entries.iter().all(|(at, id)| self.specs[*at].line().iter().any(|e| e.id == *id));
            let loss = hold.lease().loss();
            ensure!(good == loss.is_none(), "a hold of {:?} should be good: {good}, and says {loss:?}", hold.entries);
        }
        let early: HashSet<usize> = self.waiters.iter().filter(|w| w.task.is_finished()).map(|w| w.id).collect();
        ensure!(early.is_empty(), "served before their turn: {early:?}");
        for at in 0..NAMES {
            self.seen(at).await?;
        }
        Ok(())
    }

    /// The line as the store shows it is the model's.
    async fn seen(&self, at: usize) -> Result<(), String> {
        let expected = self.specs[at].view();
        let mut last = None;
        let look = async {
            loop {
                let line = self.stage.store(1).lock(name(at)).inspect().await;
                let label = |e: &leasehold_core::Participant| e.label.clone().unwrap_or_default();
                last = line.ok().map(|line| {
                    let holders = line.holders.iter().map(|e| (e.token.map_or(0, |token| token.get()), label(e)));
                    let mut holders: Vec<_> = holders.collect();
                    holders.sort();
                    (holders, line.waiters.iter().map(label).collect::<Vec<_>>())
                });
                if last.as_ref() == Some(&expected) {
                    return;
                }
                self.stage.nap().await;
            }
        };
        let seen = tokio::time::timeout(LIMIT, look).await;
        seen.map_err(|_| format!("the store shows {last:?}, the model {expected:?}"))
    }

    /// Each observer has seen the latest.
    async fn observed(&self, at: usize, observer: &mut Observer) -> Result<(), String> {
        let holders = self.specs[at].view().0;
        if holders.len() > 1 {
            return Ok(()); // which of several is first is not said
        }
        let expected = holders.first().cloned();
        let now = |o: &Observer| o.current().map(|leader| (leader.token.get(), leader.value.clone()));
        in_time(&format!("an observer to see {expected:?}"), async {
            while now(observer) != expected {
                observer.changed().await.map_err(|e| format!("watching: {e:?}"))?;
            }
            Ok(())
        })
        .await?
    }

    /// Everybody leaves; nothing stays.
    async fn part(mut self) -> Result<(), String> {
        self.waiters.iter().for_each(|waiter| waiter.task.abort());
        self.waiters.clear();
        self.holds.iter_mut().for_each(Vec::clear);
        self.specs = vec![Spec::default(); NAMES];
        for at in 0..NAMES {
            self.seen(at).await.map_err(|e| format!("after all have left: {e}"))?;
        }
        Ok(())
    }
}

/// What a good hold answers, and what a lost one does.
fn expected(good: bool, answer: Answer<()>) -> Result<(), String> {
    match answer {
        Ok(()) if good => Ok(()),
        Err(e) if !good && e.kind() == ErrorKind::Lost => Ok(()),
        other => Err(format!("a hold that should be good ({good}) answered {other:?}")),
    }
}
