//! Several names at once: all or nothing.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::api::acquire::Acquire;
use crate::api::guard::{Guard, while_held};
use crate::api::held::Held;
use crate::api::lease::Lease;
use crate::api::lock::Lock;
use crate::api::options::{Options, options};
use crate::api::scope::Scope;
use crate::engine::acquire::{Taken, acquire_all};
use crate::engine::hold::{Hold, Share};
use crate::engine::wait::Wait;
use crate::seam::claim::{Claim, Mode, WaitPolicy};
use crate::seam::error::{Error, ErrorKind, Result};
use crate::seam::loss::{Loss, Lost};
use crate::seam::name::Name;
use crate::seam::token::FencingToken;

/// Exclusive locks of several names, taken together.
///
/// **All or nothing.** If one cannot be had, none is kept. Where the store can
/// ([`Guarantees::atomic_multi`](crate::Guarantees)), they are taken in one step: with one request, and nobody ever sees a
/// part of them held.
///
/// **Waiting.** If somebody stands in the way of one, [`acquire`](MultiLock::acquire) and
/// [`acquire_timeout`](MultiLock::acquire_timeout) stand in line for one name after the other, in the order of the names and
/// under one deadline, so that two who want the same names never wait for each other, and nobody is passed. Meanwhile those
/// already taken *are* held, and given back if another cannot be had. A store that cannot take them in one step always
/// does so, for [`try_acquire`](MultiLock::try_acquire) too.
///
/// Each name is renewed, lost and released by itself. `fast` is for the waiting: names that were taken in one step are given
/// back to the store, not passed on to tasks of this process.
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let both = store.multi_lock([("account", 7), ("account", 3)]).acquire().await?;
/// println!("{:?}", both.get(("account", 3)).map(|guard| guard.fencing_token()));
/// both.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is acquired"]
pub struct MultiLock {
    scope: Scope,
    names: Vec<Name>,
    options: Options,
}

options!(MultiLock, options);

impl MultiLock {
    pub(crate) fn new(scope: Scope, names: impl IntoIterator<Item = Name>) -> MultiLock {
        let mut names: Vec<Name> = names.into_iter().collect();
        names.sort();
        let options = scope.defaults.clone();
        MultiLock { scope, names, options }
    }

    /// Waits until all are held. No name, or the same name twice, is [`Invalid`](crate::ErrorKind::Invalid).
    pub fn acquire(&self) -> Acquire<MultiGuard> {
        self.start(Wait::Forever)
    }

    /// Takes all of them now or none. The error names the one that somebody else holds.
    pub fn try_acquire(&self) -> Acquire<MultiGuard> {
        self.start(Wait::Try)
    }

    /// Waits for all of them together at most `wait`. The error names the one that was waited for last.
    pub fn acquire_timeout(&self, wait: Duration) -> Acquire<MultiGuard> {
        self.start(Wait::For(wait))
    }

    /// Acquires, runs `body`, releases: see [`MultiGuard::run`].
    pub fn run<T, F, B>(&self, body: B) -> impl Future<Output = Result<T>> + use<T, F, B>
    where
        B: FnOnce(Vec<Held>) -> F,
        F: Future<Output = T>,
    {
        let acquire = self.acquire();
        async move { acquire.await?.run(body).await }
    }

    fn start(&self, wait: Wait) -> Acquire<MultiGuard> {
        let multi = self.clone();
        Acquire::new(async move { multi.take_all(wait).await })
    }

    async fn take_all(&self, wait: Wait) -> Result<MultiGuard> {
        if self.names.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a multi-lock has at least one name"));
        }
        if let Some(twice) = self.names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::new(ErrorKind::Invalid, "a multi-lock has each name once").with_name(&twice[0]));
        }
        let client = &self.scope.client;
        let started = client.clock.now();
        if let [first, others @ ..] = &self.names[..]
            && (1..client.guarantees.atomic_multi).contains(&others.len())
        {
            match self.take_at_once(first, others, wait).await {
                Err(e) if e.is_contended() && !matches!(wait, Wait::Try) => {} // somebody is to be waited for
                outcome => return outcome,
            }
        }
        let mut taken = MultiGuard { guards: Vec::with_capacity(self.names.len()) };
        for name in &self.names {
            let lock = Lock::new(self.scope.clone(), name.clone(), Mode::Exclusive).with(&self.options);
            let guard =
                lock.enter(wait.left(client.clock.now().since(started))).await.map_err(|e| e.with_name(name))?;
            taken.guards.push(guard);
        }
        // Whoever waited long for the last may have lost the first.
        taken.check()?;
        Ok(taken)
    }

    /// One step: all of them, or [`Contended`](ErrorKind::Contended).
    async fn take_at_once(&self, first: &Name, others: &[Name], wait: Wait) -> Result<MultiGuard> {
        let client = &self.scope.client;
        let options = self.options.resolve(&client.guarantees)?;
        let claim = |name: &Name| {
            let full_name = self.scope.full_name(name).map_err(|e| e.with_name(name))?;
            Ok(Claim::new(full_name, Mode::Exclusive, WaitPolicy::Try, options.ttl, &options.label))
        };
        let (one, others) = (claim(first)?, others.iter().map(claim).collect::<Result<_>>()?);
        let taken = acquire_all(client, one, others, wait, options.max_hold).await;
        let taken = taken.map_err(|(at, e)| e.with_name(self.names.get(at).unwrap_or(first)))?;
        let not_before = options.min_hold.map(|min| client.clock.now() + min);
        let guard = |(name, (state, granted)): (&Name, Taken)| {
            Guard::of(Share::new(Hold::new(client.clone(), state, name.clone(), granted.token, not_before)))
        };
        Ok(MultiGuard { guards: self.names.iter().zip(taken).map(guard).collect() })
    }
}

/// Several held locks. They live and are lost together; dropping it gives all of them back in the background.
#[must_use = "dropping the guard releases the locks; bind it to a name, not to `_`"]
pub struct MultiGuard {
    /// In the order of their names.
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// The guard of one name, with its token.
    pub fn get(&self, name: impl Into<Name>) -> Option<&Guard> {
        let name = name.into();
        self.guards.iter().find(|guard| *guard.name() == name)
    }

    /// Each name and its token, in the order of the names. Tokens of different names do not compare.
    pub fn tokens(&self) -> impl Iterator<Item = (&Name, FencingToken)> {
        self.guards.iter().map(|guard| (guard.name(), guard.fencing_token()))
    }

    /// Whether all of them are provably ours at this instant.
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(Guard::is_valid)
    }

    /// For how much longer all of them are provably ours if nothing renews them.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// `Err` of kind [`Lost`](crate::ErrorKind::Lost), with the name, once one is not ours any more.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// Resolves as soon as one of them has ended.
    pub fn lost(&self) -> Lost {
        Lost::any(self.guards.iter().map(Guard::lost))
    }

    /// Gives all of them back, and waits for the store's word on each.
    ///
    /// `Err` of kind [`Lost`](crate::ErrorKind::Lost) if one was not ours up to now; any other error: a release goes on in
    /// the background. Cancel-safe: dropped midway, the rest is released in the background.
    pub async fn release(self) -> Result<()> {
        let mut outcome = Ok(());
        for guard in self.guards.into_iter().rev() {
            match guard.release().await {
                // A loss says the most.
                Err(e) if outcome.is_ok() || e.loss().is_some() => outcome = Err(e),
                _ => {}
            }
        }
        outcome
    }

    /// Runs `body` while all are held, with a look at each in the order of the names, and gives them back afterwards; on
    /// loss as [`Guard::run`] says.
    pub async fn run<T, F: Future<Output = T>>(self, body: impl FnOnce(Vec<Held>) -> F) -> Result<T> {
        let held = self.guards.iter().map(Guard::view).collect();
        let done = while_held(self.lost(), body(held)).await?;
        match self.release().await {
            Err(e) if e.loss().is_some() => Err(e),
            _ => Ok(done),
        }
    }
}

impl Lease for MultiGuard {
    fn loss(&self) -> Option<Loss> {
        self.guards.iter().find_map(Lease::loss)
    }
    fn remaining(&self) -> Duration {
        MultiGuard::remaining(self)
    }
    fn lost(&self) -> Lost {
        MultiGuard::lost(self)
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
