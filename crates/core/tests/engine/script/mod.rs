//! A store that answers what a test tells it to, and writes down what it was asked.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use leasehold_core::backend::{
    Backend, Claim, ClaimId, Claimed, ClaimedAll, Clock, Complete, Completed, Completions,
    LeaseRef, Notifier, Place, Renewal, Subscription, VirtualClock, async_trait,
};
use leasehold_core::{
    Completion, Fairness, FencingToken, Guarantees, LockQueue, Name, Result, Store,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, watch};

pub(crate) use answers::{
    all_granted, completion, error, granted, granted_since, renewed, turns, waiting,
};
pub(crate) use log::{Call, Log};

mod answers;
mod log;

/// The lease of these tests; a third and a sixth of it are whole.
pub(crate) const TTL: Duration = Duration::from_secs(6);
/// How long a grant of it may be believed: the lease without 1 % and 2 ms.
pub(crate) const GOOD: Duration = Duration::from_millis(6000 - 60 - 2);

/// How many names a script takes at once, if it does.
pub(crate) const AT_ONCE: usize = 4;

/// Returns whether a few of many random programs are enough.
pub(crate) fn is_glance() -> bool {
    std::env::var_os("LEASEHOLD_GLANCE").is_some_and(|on| on == "1")
}

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

type Hook<A, T> = Box<dyn Fn(A, usize) -> BoxFuture<'static, Result<T>> + Send + Sync>;

/// A scripted store. Each hook gets what was asked and how often it was asked before.
pub(crate) struct Script {
    clock: Clock,
    notifier: Option<Notifier>,
    log: Log,
    claim: Hook<Claim, Claimed>,
    /// A script without it takes names one after the other.
    claim_all: Option<Hook<Vec<Claim>, ClaimedAll>>,
    renew: Hook<Vec<LeaseRef>, Vec<Renewal>>,
    renew_batch: usize,
    longest: Option<Duration>,
    release: Hook<Claim, ()>,
    /// A script without it cannot.
    lapse: Option<Hook<Claim, ()>>,
    inspect: Hook<Name, LockQueue>,
    close: Hook<(), ()>,
    /// A script without it records no completions.
    complete: Option<Hook<(Claim, Complete), Completed>>,
    /// A script without it knows of no transactions.
    recorded: Option<Hook<(Claim, FencingToken), Option<Completion>>>,
}

impl Script {
    /// Grants everything, renews everything.
    pub(crate) fn new() -> (Script, VirtualClock, Log) {
        let time = VirtualClock::new();
        let script = Script::on(time.clock());
        let log = script.log.clone();
        (script, time, log)
    }

    pub(crate) fn on(clock: Clock) -> Script {
        Script {
            clock,
            notifier: Some(Notifier::new()),
            log: Log(watch::Sender::new(Vec::new())),
            claim: Box::new(|claim, n| ready(Ok(granted(&claim, n as u64 + 1))).boxed()),
            claim_all: None,
            renew: Box::new(|all, _| ready(Ok(renewed(&all))).boxed()),
            renew_batch: usize::MAX,
            longest: None,
            release: Box::new(|_, _| ready(Ok(())).boxed()),
            lapse: None,
            inspect: Box::new(|_, _| ready(Ok(LockQueue::default())).boxed()),
            close: Box::new(|(), _| ready(Ok(())).boxed()),
            complete: None,
            recorded: None,
        }
    }

    pub(crate) fn notifier(&self) -> Notifier {
        self.notifier.clone().unwrap()
    }

    pub(crate) fn claims<F>(
        self,
        hook: impl Fn(Claim, usize) -> F + Send + Sync + 'static,
    ) -> Script
    where
        F: Future<Output = Result<Claimed>> + Send + 'static,
    {
        Script {
            claim: Box::new(move |claim, n| hook(claim, n).boxed()),
            ..self
        }
    }

    /// Each claim waits.
    pub(crate) fn busy(self) -> Script {
        self.claims(async |claim, _| Ok(waiting(&claim)))
    }

    /// Each claim is answered so much later.
    pub(crate) fn claims_after(
        self,
        delay: impl Fn(usize) -> Duration + Send + Sync + 'static,
        answer: impl Fn(&Claim, usize) -> Claimed + Send + Sync + 'static,
    ) -> Script {
        let clock = self.clock.clone();
        self.claims(move |claim, n| {
            let (clock, delay, answer) = (clock.clone(), delay(n), answer(&claim, n));
            async move {
                clock.sleep(delay).await;
                Ok(answer)
            }
        })
    }

    /// Each claim is granted when the test says so.
    pub(crate) fn claims_on(self, landing: &Arc<Notify>) -> Script {
        let landing = landing.clone();
        self.claims(move |claim, _| {
            let landing = landing.clone();
            async move {
                landing.notified().await;
                Ok(granted(&claim, 1))
            }
        })
    }

    /// It takes up to [`AT_ONCE`] names at once.
    pub(crate) fn claims_of_all<F>(
        self,
        hook: impl Fn(Vec<Claim>, usize) -> F + Send + Sync + 'static,
    ) -> Script
    where
        F: Future<Output = Result<ClaimedAll>> + Send + 'static,
    {
        Script {
            claim_all: Some(Box::new(move |all, n| hook(all, n).boxed())),
            ..self
        }
    }

    pub(crate) fn renewals<F>(
        self,
        hook: impl Fn(Vec<LeaseRef>, usize) -> F + Send + Sync + 'static,
    ) -> Script
    where
        F: Future<Output = Result<Vec<Renewal>>> + Send + 'static,
    {
        Script {
            renew: Box::new(move |all, n| hook(all, n).boxed()),
            ..self
        }
    }

    /// It renews so many at once.
    pub(crate) fn renews_by(self, renew_batch: usize) -> Script {
        Script {
            renew_batch,
            ..self
        }
    }

    /// It says that it grants no longer leases.
    pub(crate) fn longest(self, longest: Duration) -> Script {
        Script {
            longest: Some(longest),
            ..self
        }
    }

    pub(crate) fn releases<F>(
        self,
        hook: impl Fn(Claim, usize) -> F + Send + Sync + 'static,
    ) -> Script
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Script {
            release: Box::new(move |claim, n| hook(claim, n).boxed()),
            ..self
        }
    }

    /// What is given back within its `min_hold` ends by itself.
    pub(crate) fn lapses<F>(
        self,
        hook: impl Fn(Claim, usize) -> F + Send + Sync + 'static,
    ) -> Script
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Script {
            lapse: Some(Box::new(move |claim, n| hook(claim, n).boxed())),
            ..self
        }
    }

    /// It records completions.
    pub(crate) fn completes<F>(
        self,
        hook: impl Fn((Claim, Complete), usize) -> F + Send + Sync + 'static,
    ) -> Script
    where
        F: Future<Output = Result<Completed>> + Send + 'static,
    {
        Script {
            complete: Some(Box::new(move |asked, n| hook(asked, n).boxed())),
            ..self
        }
    }

    /// Transactions record that work is done.
    pub(crate) fn records<F>(
        self,
        hook: impl Fn((Claim, FencingToken), usize) -> F + Send + Sync + 'static,
    ) -> Script
    where
        F: Future<Output = Result<Option<Completion>>> + Send + 'static,
    {
        Script {
            recorded: Some(Box::new(move |asked, n| hook(asked, n).boxed())),
            ..self
        }
    }

    pub(crate) fn inspects<F>(
        self,
        hook: impl Fn(Name, usize) -> F + Send + Sync + 'static,
    ) -> Script
    where
        F: Future<Output = Result<LockQueue>> + Send + 'static,
    {
        Script {
            inspect: Box::new(move |name, n| hook(name, n).boxed()),
            ..self
        }
    }

    pub(crate) fn closes<F>(self, hook: impl Fn((), usize) -> F + Send + Sync + 'static) -> Script
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Script {
            close: Box::new(move |(), n| hook((), n).boxed()),
            ..self
        }
    }

    /// It sends no notifications.
    pub(crate) fn silent(self) -> Script {
        Script {
            notifier: None,
            ..self
        }
    }

    pub(crate) fn store(self) -> Store {
        Store::with_random_seed(Watched(self), 1).ttl(TTL)
    }

    /// S6: an id ends with its release, which a store may send again to a server that has not seen it.
    fn never_released(&self, ids: &[ClaimId]) {
        let is_end = |call: &Call| matches!(call, Call::Release(id, _) | Call::Lapse(id, _) if ids.contains(id));
        assert_eq!(
            self.log.count(is_end),
            0,
            "a claim is sent after its release"
        );
    }

    fn write(&self, call: Call) {
        self.log
            .0
            .send_modify(|all| all.push((self.clock.now(), call)));
    }
}

/// The script as a backend, which writes its own end down.
struct Watched(Script);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.write(Call::Dropped);
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}

#[async_trait]
impl Backend for Watched {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let n = self.0.log.claims();
        self.0.never_released(&[claim.id]);
        self.0.write(Call::Claim(claim.id));
        let answer = (self.0.claim)(claim.clone(), n).await;
        self.0.write(Call::Answered(claim.id));
        answer
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let n = self.0.log.joint_claims().len();
        let ids: Vec<ClaimId> = claims.iter().map(|claim| claim.id).collect();
        self.0.never_released(&ids);
        self.0.write(Call::ClaimAll(ids));
        let Some(hook) = &self.0.claim_all else {
            panic!("asked for what it does not give")
        };
        let answer = hook(claims.to_vec(), n).await;
        self.0.write(Call::AnsweredAll);
        answer
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let n = self.0.log.renewals();
        self.0
            .write(Call::Renew(leases.iter().map(|t| t.claim.id).collect()));
        (self.0.renew)(leases.to_vec(), n).await
    }

    fn renew_batch(&self) -> usize {
        self.0.renew_batch
    }

    async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()> {
        let n = self.0.log.releases();
        self.0.write(Call::Release(claim.id, place.cloned()));
        (self.0.release)(claim.clone(), n).await
    }

    async fn release_after(&self, claim: &Claim, _: Option<&Place>, rest: Duration) -> Result<()> {
        let n = self.0.log.lapses().len();
        self.0.write(Call::Lapse(claim.id, rest));
        let Some(hook) = &self.0.lapse else {
            panic!("asked for what it does not give")
        };
        hook(claim.clone(), n).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let n = self.0.log.inspects();
        self.0.write(Call::Inspect(name.clone()));
        (self.0.inspect)(name.clone(), n).await
    }

    async fn list(&self, _: &str, _: Option<&Name>, _: usize) -> Result<Vec<Name>> {
        Ok(Vec::new())
    }

    async fn evict(&self, _: &Name, token: FencingToken) -> Result<bool> {
        self.0.write(Call::Evict(token));
        Ok(true)
    }

    fn guarantees(&self) -> Guarantees {
        let at_once = if self.0.claim_all.is_some() {
            AT_ONCE
        } else {
            1
        };
        let warnings = vec!["it may forget".to_owned()];
        Guarantees::none("script")
            .with_fairness(Fairness::Strict)
            .with_max_ttl(self.0.longest)
            .with_atomic_multi(at_once)
            .with_warnings(warnings)
            .with_min_hold_outlives_process(self.0.lapse.is_some())
            .with_once(self.0.complete.is_some())
            .with_once_in_transaction(self.0.recorded.is_some())
    }

    fn completions(&self) -> Option<&dyn Completions> {
        self.0.complete.as_ref().map(|_| self as &dyn Completions)
    }

    fn notifier(&self) -> Option<&Notifier> {
        self.0.notifier.as_ref()
    }

    fn observe(&self, _: &Name) -> Subscription {
        self.0
            .notifier
            .as_ref()
            .map_or_else(Subscription::none, |_| Subscription::new(()))
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    async fn close(&self) -> Result<()> {
        let n = self.0.log.count(|call| *call == Call::Close);
        self.0.write(Call::Close);
        (self.0.close)((), n).await
    }
}

#[async_trait]
impl Completions for Watched {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        let n = self.0.log.completions();
        self.0.write(Call::Complete(claim.id, request.token));
        let Some(hook) = &self.0.complete else {
            panic!("asked for what it does not give")
        };
        hook((claim.clone(), request.clone()), n).await
    }

    async fn recorded(&self, claim: &Claim, token: FencingToken) -> Result<Option<Completion>> {
        let n = self.0.log.count(|call| matches!(call, Call::Recorded(..)));
        self.0.write(Call::Recorded(claim.id, token));
        let Some(hook) = &self.0.recorded else {
            panic!("asked for what it does not give")
        };
        hook((claim.clone(), token), n).await
    }

    async fn completion(&self, _: &Name) -> Result<Option<Completion>> {
        Ok(None)
    }

    async fn forget(&self, _: &Name, _: FencingToken) -> Result<bool> {
        Ok(false)
    }

    async fn list_completions(
        &self,
        _: &str,
        _: Option<&Name>,
        _: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        Ok(Vec::new())
    }
}

/// A runtime that a test drives and ends.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Lets every task run until all of them wait.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Lets `d` pass in small steps, so that whatever sleeps wakes at its instant.
pub(crate) async fn pass(time: &VirtualClock, d: Duration, step: Duration) {
    let mut left = d;
    while !left.is_zero() {
        let now = left.min(step);
        time.advance(now);
        settle().await;
        left -= now;
    }
}

/// Fails if a test hangs; ten thousand holds take a minute on a busy machine.
pub(crate) async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(300), work)
        .await
        .expect("the test hangs")
}

/// Fails a test that would hang for good, and not only for as long as a timer says.
pub(crate) fn within_a_minute(work: impl FnOnce() + Send + 'static) {
    let (end, ended) = mpsc::channel();
    thread::spawn(move || {
        work();
        let _ = end.send(());
    });
    ended
        .recv_timeout(Duration::from_secs(60))
        .expect("it hangs, or has failed");
}

/// Drives virtual time until the work is done.
pub(crate) async fn driven<T>(time: &VirtualClock, work: impl Future<Output = T>) -> T {
    let passing = async {
        loop {
            settle().await;
            time.advance(ms(10));
        }
    };
    tokio::select! {
        done = work => done,
        () = passing => unreachable!("time passes for ever"),
    }
}
