//! Several names at once: all or nothing.
//!
//! Several locks that are taken one after the other can deadlock: two clients, two names, opposite
//! orders. Therefore they are always taken in the order of their names.
//!
//! The step that takes all of them at once is a try. A client that waited for all of them without
//! holding any would be passed for ever by clients that want one each. If a name is taken, the
//! names are therefore waited for one by one, as on every other store.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::task::coop::consume_budget;

use crate::api::acquire::Acquire;
use crate::api::guard::{Guard, run};
use crate::api::held::Held;
use crate::api::lease::Lease;
use crate::api::lock::Lock;
use crate::api::options::{Options, options};
use crate::api::scope::Scope;
use crate::backend::claim::{Claim, Mode, WaitPolicy};
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::loss::{Loss, Lost};
use crate::backend::name::Name;
use crate::backend::token::FencingToken;
use crate::engine::acquire::{Taken, acquire_all};
use crate::engine::hold::{Hold, Share};
use crate::engine::wait::Wait;

/// Exclusive locks of several names, taken together: all or none.
///
/// If one name cannot be had, none is kept. Use it for a change that touches several resources,
/// such as a transfer between two accounts.
///
/// # In one step
///
/// If the store can ([`Guarantees::atomic_multi`](crate::Guarantees), on memory, SQLite,
/// PostgreSQL, Redis and etcd), names that are all free are taken by one request, and no client
/// ever sees a part of them held. For eight names that is 9 requests for acquire and release,
/// instead of 16; a refused try costs 1 request instead of up to 15.
///
/// # Waiting
///
/// If another client is in the way of one name, [`acquire`](Self::acquire) and
/// [`acquire_timeout`](Self::acquire_timeout) wait for one name after the other: in the order of
/// the names, and under one deadline. Two clients with the same names therefore never wait for each
/// other, and no waiter is passed. Names that are taken meanwhile *are* held, and are released if
/// another one cannot be had. A store that cannot take several names in one step always does so,
/// for [`try_acquire`](Self::try_acquire) too.
///
/// Each name is renewed, lost and released by itself. Names that were taken in one step are
/// released to the store, not passed on to tasks of this process, also with `fast`.
///
/// # Examples
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

options!(MultiLock, .options);

impl MultiLock {
    pub(crate) fn new(scope: Scope, names: impl IntoIterator<Item = Name>) -> MultiLock {
        let mut names: Vec<Name> = names.into_iter().collect();
        names.sort();
        let options = scope.defaults.clone();
        MultiLock {
            scope,
            names,
            options,
        }
    }

    /// Waits until all names are held.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for no name, or for the same name twice.
    /// [`Lost`](crate::ErrorKind::Lost) if a name that it had was lost while it waited for another;
    /// then it holds none. The others are as in [`Lock::acquire`](crate::Lock::acquire), with the
    /// name that they concern.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, all names are released or withdrawn in the background.
    pub fn acquire(&self) -> Acquire<MultiGuard> {
        self.start(Wait::Forever)
    }

    /// Takes all names now, or none.
    ///
    /// # Errors
    ///
    /// [`Contended`](crate::ErrorKind::Contended) names the first lock that another client holds or
    /// waits for; the others are as in [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// match store.multi_lock(["a", "b"]).try_acquire().await {
    ///     Ok(both) => both.release().await?,
    ///     Err(e) => println!("{:?} is taken: {e}", e.name()),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self) -> Acquire<MultiGuard> {
        self.start(Wait::Try)
    }

    /// Waits for all names together, at most for `wait`. Each name is asked for once more at the end, as in
    /// [`Lock::acquire_timeout`](crate::Lock::acquire_timeout): if the store does not answer, that takes up to 40 ms longer for each,
    /// and as long for the step of all names.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](crate::ErrorKind::TimedOut) names the lock that it waited for last; the others
    /// are as in [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_timeout(&self, wait: Duration) -> Acquire<MultiGuard> {
        self.start(Wait::For(wait))
    }

    /// Acquires all names, runs `body`, and releases them: see
    /// [`MultiGuard::run`](crate::MultiGuard::run).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire) and [`MultiGuard::run`](crate::MultiGuard::run).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `body` is dropped first; then the names are released in the
    /// background.
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
        Acquire::new(async move {
            consume_budget().await;
            multi.take_all(wait).await
        })
    }

    async fn take_all(&self, wait: Wait) -> Result<MultiGuard> {
        if self.names.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a multi-lock has at least one name",
            ));
        }
        if let Some(twice) = self.names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(
                Error::new(ErrorKind::Invalid, "a multi-lock has each name once")
                    .with_name(&twice[0]),
            );
        }
        let client = &self.scope.client;
        let started = client.clock.now();
        if let [first, others @ ..] = &self.names[..]
            && (1..client.guarantees.atomic_multi()).contains(&others.len())
        {
            match self.take_at_once(first, others, wait).await {
                Err(e) if e.is_contended() && !matches!(wait, Wait::Try) => {} // another client is to be waited for
                outcome => return outcome,
            }
        }
        let mut taken = MultiGuard {
            guards: Vec::with_capacity(self.names.len()),
        };
        for name in &self.names {
            let lock =
                Lock::new(self.scope.clone(), name.clone(), Mode::Exclusive).with(&self.options);
            let guard = lock
                .enter(wait.left(client.clock.now().since(started)))
                .await
                .map_err(|e| e.with_name(name))?;
            taken.guards.push(guard);
        }
        // A caller that waited long for the last name may have lost the first one.
        taken.check()?;
        Ok(taken)
    }

    /// Takes all names in one step, or fails with [`Contended`](ErrorKind::Contended).
    async fn take_at_once(&self, first: &Name, others: &[Name], wait: Wait) -> Result<MultiGuard> {
        let client = &self.scope.client;
        let options = self.options.resolve(&client.guarantees)?;
        let claim = |name: &Name| {
            let full_name = self.scope.full_name(name).map_err(|e| e.with_name(name))?;
            let id = client.claim_id(client.clock.now())?;
            let mode = Mode::Exclusive;
            let policy = WaitPolicy::Try;
            Ok(Claim {
                name: full_name,
                id,
                mode,
                policy,
                ttl: options.ttl,
                label: options.label.clone(),
                floor: None,
                is_part: false,
                is_last: false,
                once: None,
                turns: 1,
            })
        };
        let one = claim(first)?;
        let others = others.iter().map(claim).collect::<Result<_>>()?;
        let taken = acquire_all(client, one, others, wait, options.max_hold).await;
        let taken = taken.map_err(|(at, e)| e.with_name(self.names.get(at).unwrap_or(first)))?;
        let guard = |(name, Taken { state, granted, at }): (&Name, Taken)| {
            let not_before = options.min_hold.map(|min| at + min);
            let hold = Hold {
                client: client.clone(),
                state,
                name: name.clone(),
                token: granted.token,
            };
            Guard::of(Share::new(hold, not_before, None))
        };
        Ok(MultiGuard {
            guards: self.names.iter().zip(taken).map(guard).collect(),
        })
    }
}

/// Several held locks. Dropping it releases all of them in the background.
///
/// It is valid as long as each of its guards is valid. When one is lost,
/// [`lost`](crate::MultiGuard::lost) resolves; the other names stay held until this is released or
/// dropped. The documentation of [`Guard`](crate::Guard) about validity and the end of a program
/// applies here too.
#[must_use = "dropping the guard releases the locks; bind it to a name, not to `_`"]
pub struct MultiGuard {
    /// The guards, in the order of their names.
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// The guard of one name, with its token; `None` for a name that was not asked for.
    pub fn get(&self, name: impl Into<Name>) -> Option<&Guard> {
        let name = name.into();
        self.guards.iter().find(|guard| *guard.name() == name)
    }

    /// Each name with its token, in the order of the names. Tokens of different names cannot be
    /// compared: send each one to the resource that it belongs to.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let both = store.multi_lock([("account", 3), ("account", 7)]).acquire().await?;
    /// for (name, token) in both.tokens() {
    ///     println!("UPDATE accounts SET token = {token} WHERE name = '{name}' AND token <= {token}");
    /// }
    /// both.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn tokens(&self) -> impl Iterator<Item = (&Name, FencingToken)> {
        self.guards
            .iter()
            .map(|guard| (guard.name(), guard.fencing_token()))
    }

    /// Returns whether all names are provably held at this instant: see
    /// [`Guard::is_valid`](crate::Guard::is_valid).
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(Guard::is_valid)
    }

    /// The time for which all names stay valid if no renewal succeeds.
    pub fn remaining(&self) -> Duration {
        self.guards
            .iter()
            .map(Guard::remaining)
            .min()
            .unwrap_or_default()
    }

    /// The shortest of the TTLs that the store granted: see [`Guard::granted_ttl`](crate::Guard::granted_ttl).
    pub fn granted_ttl(&self) -> Duration {
        self.guards
            .iter()
            .map(Guard::granted_ttl)
            .min()
            .unwrap_or_default()
    }

    /// Returns an error if one name is not valid any more.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost), with that name and the reason.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// A future that resolves as soon as one of the names is lost. For its properties see
    /// [`Guard::lost`](crate::Guard::lost).
    pub fn lost(&self) -> Lost {
        Lost::any(self.guards.iter().map(Guard::lost))
    }

    /// Releases all names, and waits for the answers of the store.
    ///
    /// The names are released one by one: another client may see some of them held and others free.
    /// Requests that fail are repeated for two seconds, of all names together.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if one of them was lost before. Any other error: a release
    /// is retried in the background.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the rest is released in the background.
    pub async fn release(self) -> Result<()> {
        let mut outcome = Ok(());
        let mut again_until = None;
        for guard in self.guards.into_iter().rev() {
            let again_until =
                *again_until.get_or_insert_with(|| guard.hold().client.release_again_until());
            match guard.release_until(again_until).await {
                // A loss is the most important error, so it replaces any other.
                Err(e) if outcome.is_ok() || e.loss().is_some() => outcome = Err(e),
                _ => {}
            }
        }
        outcome
    }

    /// Runs `body` while all names are held, and releases them afterwards.
    ///
    /// `body` gets one [`Held`](crate::Held) for each name, in the order of the names. If one is
    /// lost, `body` is dropped at its current await.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if a name was lost before `body` had ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `body` is dropped first; then the names are released in the
    /// background.
    pub async fn run<T, F: Future<Output = T>>(
        self,
        body: impl FnOnce(Vec<Held>) -> F,
    ) -> Result<T> {
        let held: Vec<Held> = self.guards.iter().map(Guard::view).collect();
        let ran = run(self.lost(), body(held.clone()), self.release()).await;
        // The error of the lost hold names it, with the reason.
        let lost = |loss| held.iter().find(|one| Lease::loss(*one) == Some(loss));
        ran.map_err(|e| match e.loss().and_then(lost).map(Held::check) {
            Some(Err(lost)) => lost,
            _ => e,
        })
    }
}

impl Lease for MultiGuard {
    fn loss(&self) -> Option<Loss> {
        self.guards.iter().find_map(Lease::loss)
    }
    fn remaining(&self) -> Duration {
        MultiGuard::remaining(self)
    }
    fn granted_ttl(&self) -> Duration {
        MultiGuard::granted_ttl(self)
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
