//! Leader election: a thin layer over an exclusive claim that has the candidate's value in place of a label.
//!
//! An election is an exclusive lock whose label is a value that others read. It needs nothing from
//! a store that a lock does not need, and has the same guarantees.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::task::coop::consume_budget;

use crate::api::acquire::Acquire;
use crate::api::guard::Guard;
use crate::api::held::{Held, view_methods};
use crate::api::lock::{Lock, checked_value};
use crate::api::observer::Observer;
use crate::api::options::options;
use crate::backend::error::Result;
use crate::backend::name::Name;
use crate::backend::queue::LockQueue;
use crate::backend::token::FencingToken;
use crate::engine::wait::Wait;

/// A leader election: one candidate leads at a time, and publishes a value, such as its address.
///
/// Candidates wait in the queue of the name. Leadership is a lease with a fencing token, and can be
/// lost like any lock. The value that an observer sees was true when the store was asked; a leader
/// may have been replaced since. Compare tokens where that matters.
///
/// The store keeps the value where a lock has its label, so the option `label` has no effect here.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let election = store.election("scheduler");
/// let leadership = election.campaign("10.0.0.7:8080").await?;
/// leadership.proclaim("10.0.0.7:8081").await?;
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until a candidate campaigns or an observer watches"]
pub struct Election(pub(crate) Lock);

options!(Election, .0.options);

impl Election {
    /// The name, as it was written: without the store's namespace.
    pub fn name(&self) -> &Name {
        self.0.name()
    }

    /// Waits until this candidate leads, with this value.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a value of more than
    /// [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES); the others are as in
    /// [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire): a candidate whose future is dropped is
    /// withdrawn, and does not lead later.
    pub fn campaign(&self, value: impl Into<String>) -> Acquire<Leadership> {
        self.start(value.into(), Wait::Forever)
    }

    /// Leads now, or not at all.
    ///
    /// # Errors
    ///
    /// [`Contended`](crate::ErrorKind::Contended) names the leader; the others are as in
    /// [`campaign`](crate::Election::campaign).
    ///
    /// # Cancel safety
    ///
    /// As [`campaign`](crate::Election::campaign).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// match store.election("scheduler").try_campaign("10.0.0.7:8080").await {
    ///     Ok(leadership) => leadership.resign().await?,
    ///     Err(e) => println!("another leader: {}", e.into_contention()?),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_campaign(&self, value: impl Into<String>) -> Acquire<Leadership> {
        self.start(value.into(), Wait::Try)
    }

    /// Waits to lead, at most for `wait`. For errors and cancel safety see
    /// [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    pub fn campaign_timeout(
        &self,
        value: impl Into<String>,
        wait: Duration,
    ) -> Acquire<Leadership> {
        self.start(value.into(), Wait::For(wait))
    }

    /// Campaigns, runs `body` while leading, and resigns: see [`Guard::run`](crate::Guard::run).
    ///
    /// For a service that should be a candidate for ever, call it in a loop: it returns with
    /// [`Lost`](crate::ErrorKind::Lost) when the leadership is lost.
    ///
    /// # Errors
    ///
    /// As [`campaign`](crate::Election::campaign) and [`Guard::run`](crate::Guard::run).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `body` is dropped first; then the leadership is resigned in the
    /// background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let election = store.election("scheduler");
    /// loop {
    ///     let served = election.run("10.0.0.7:8080", async |held| println!("leading, token {}", held.fencing_token()));
    ///     match served.await {
    ///         Err(e) if e.loss().is_some() => continue, // lost: campaign again
    ///         other => break other,
    ///     }
    /// }
    /// # }
    /// ```
    pub fn run<T, F, B, V>(
        &self,
        value: V,
        body: B,
    ) -> impl Future<Output = Result<T>> + use<T, F, B, V>
    where
        V: Into<String>,
        B: FnOnce(Held) -> F,
        F: Future<Output = T>,
    {
        let campaign = self.campaign(value);
        async move { campaign.await?.0.run(body).await }
    }

    /// Asks the store which candidate leads now; `None` while none does.
    ///
    /// One request. To follow the leader, use [`observe`](crate::Election::observe), which does not
    /// poll where the store can push.
    ///
    /// # Errors
    ///
    /// As [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// It only reads, so it can be dropped at any await.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.inspect().await.map(Leader::of)
    }

    /// Reads which candidate leads, and starts to watch for changes.
    ///
    /// # Errors
    ///
    /// As [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is watched.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let mut observer = store.election("scheduler").observe().await?;
    /// loop {
    ///     match observer.current() {
    ///         Some(leader) => println!("{} leads with token {}", leader.value, leader.token),
    ///         None => println!("vacant"),
    ///     }
    ///     observer.changed().await?;
    /// }
    /// # }
    /// ```
    pub async fn observe(&self) -> Result<Observer> {
        Observer::start(self.0.scope.clone(), self.name().clone()).await
    }

    /// Shows which candidate leads and which campaign, with their values. See
    /// [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Errors
    ///
    /// As [`Lock::inspect`](crate::Lock::inspect).
    ///
    /// # Cancel safety
    ///
    /// It only reads, so it can be dropped at any await.
    pub async fn inspect(&self) -> Result<LockQueue> {
        self.0.inspect().await
    }

    fn start(&self, value: String, wait: Wait) -> Acquire<Leadership> {
        let lock = self.0.with_value(value);
        Acquire::new(async move {
            consume_budget().await;
            lock.enter(wait)
                .await
                .map(Leadership)
                .map_err(|e| e.with_name(lock.name()))
        })
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug_as("Election", f).finish()
    }
}

/// The candidate that leads: its value and its token.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The value with which it campaigned, or which it has proclaimed since.
    pub value: String,
    /// Its fencing token, which rises from leader to leader.
    pub token: FencingToken,
}

impl Leader {
    /// Returns the first holder as the leader. The entry of another tool has no token, and is no
    /// leader.
    pub(crate) fn of(queue: LockQueue) -> Option<Leader> {
        let first = queue
            .holders
            .into_iter()
            .find(|entry| entry.token.is_some())?;
        Some(Leader {
            value: first.label.unwrap_or_default(),
            token: first.token?,
        })
    }
}

/// The leadership of one election: a guard with a value. Dropping it resigns in the background.
///
/// The documentation of [`Guard`](crate::Guard) about validity, loss and the end of a program
/// applies here too.
#[must_use = "dropping the leadership resigns; bind it to a name, not to `_`"]
pub struct Leadership(Guard);

view_methods!(Leadership, .0.hold());

impl Leadership {
    /// Publishes another value, with one request. The leader and its token stay the same.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](crate::ErrorKind::Invalid): more than
    ///   [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES). Nothing was sent.
    /// - [`Lost`](crate::ErrorKind::Lost): this is not the leader any more. Nothing was proclaimed.
    /// - Any other error: the value may or may not have been published. Proclaim again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, observers see the old or the new value.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leadership: leasehold_core::Leadership) -> leasehold_core::Result<()> {
    /// leadership.proclaim("10.0.0.7:8081").await?; // the service has moved to another port
    /// # Ok(()) }
    /// ```
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        self.check()?;
        let hold = self.0.hold();
        let value = checked_value(value.into().into()).map_err(|e| e.with_name(&hold.name))?;
        hold.state.relabel(value);
        hold.claim_again().await
    }

    /// Asks the store whether this candidate leads now. For errors and cancel safety see
    /// [`Guard::confirm`](crate::Guard::confirm).
    pub async fn confirm(&self) -> Result<()> {
        self.0.confirm().await
    }

    /// Gives up the leadership, and waits for the answer of the store. For errors and cancel safety
    /// see [`Guard::release`](crate::Guard::release).
    pub async fn resign(self) -> Result<()> {
        self.0.release().await
    }

    /// Runs `body` while leading, and resigns afterwards. For errors and cancel safety see
    /// [`Guard::run`](crate::Guard::run).
    pub async fn run<T, F: Future<Output = T>>(self, body: impl FnOnce(Held) -> F) -> Result<T> {
        self.0.run(body).await
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leadership({:?})", self.view())
    }
}
