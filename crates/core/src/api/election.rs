//! Leader election: a view of an exclusive claim whose label is the candidate's value.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::api::acquire::Acquire;
use crate::api::guard::Guard;
use crate::api::held::{Held, view_methods};
use crate::api::lock::{Lock, checked_value};
use crate::api::observer::Observer;
use crate::api::options::{Options, options};
use crate::api::scope::Scope;
use crate::engine::wait::Wait;
use crate::seam::claim::Mode;
use crate::seam::error::Result;
use crate::seam::name::Name;
use crate::seam::queue::LockQueue;
use crate::seam::token::FencingToken;

/// A name that one candidate leads at a time, with a value for all to see: an address, say.
///
/// Candidates stand in the name's line. Leadership is a lease with a token, and can be lost like any other: the value that
/// an observer sees is what was true when the store was asked. The value stands in the store where locks have their label, so
/// the word `label` changes nothing here.
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let election = store.election("scheduler");
/// let leadership = election.campaign("10.0.0.7:8080").await?;
/// leadership.proclaim("10.0.0.7:8081").await?;
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until somebody campaigns or observes"]
pub struct Election {
    scope: Scope,
    name: Name,
    options: Options,
}

options!(Election, options);

impl Election {
    pub(crate) fn new(scope: Scope, name: Name) -> Election {
        let options = scope.defaults.clone();
        Election { scope, name, options }
    }

    /// The name, as it was written.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Waits until this candidate leads, with this value of at most [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES).
    pub fn campaign(&self, value: impl Into<String>) -> Acquire<Leadership> {
        self.start(value.into(), Wait::Forever)
    }

    /// Leads now or not at all. [`Contended`](crate::ErrorKind::Contended) says who leads.
    pub fn try_campaign(&self, value: impl Into<String>) -> Acquire<Leadership> {
        self.start(value.into(), Wait::Try)
    }

    /// Waits at most `wait` to lead: [`Lock::acquire_timeout`].
    pub fn campaign_timeout(&self, value: impl Into<String>, wait: Duration) -> Acquire<Leadership> {
        self.start(value.into(), Wait::For(wait))
    }

    /// Campaigns, runs `body` while leading, resigns: see [`Guard::run`].
    pub fn run<T, F, B, V>(&self, value: V, body: B) -> impl Future<Output = Result<T>> + use<T, F, B, V>
    where
        V: Into<String>,
        B: FnOnce(Held) -> F,
        F: Future<Output = T>,
    {
        let campaign = self.campaign(value);
        async move { campaign.await?.0.run(body).await }
    }

    /// Who leads now. `None` while nobody does.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.scope.inspect(&self.name).await.map(Leader::of)
    }

    /// Looks who leads, and goes on watching.
    pub async fn observe(&self) -> Result<Observer> {
        Observer::start(self.scope.clone(), self.name.clone()).await
    }

    /// Who leads and who campaigns.
    pub async fn inspect(&self) -> Result<LockQueue> {
        self.scope.inspect(&self.name).await
    }

    fn start(&self, value: String, wait: Wait) -> Acquire<Leadership> {
        let lock =
            Lock::new(self.scope.clone(), self.name.clone(), Mode::Exclusive).with(&self.options).with_value(value);
        Acquire::new(async move { lock.enter(wait).await.map(Leadership).map_err(|e| e.with_name(lock.name())) })
    }
}

/// Who leads: what it stands for, and its token.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The value with which it campaigned, or proclaimed since.
    pub value: String,
    /// Its fencing token: rises from leader to leader.
    pub token: FencingToken,
}

impl Leader {
    /// The first holder. Another tool's entry has no token of ours, and leads nobody here.
    pub(crate) fn of(line: LockQueue) -> Option<Leader> {
        let first = line.holders.into_iter().find(|entry| entry.token.is_some())?;
        Some(Leader { value: first.label.unwrap_or_default(), token: first.token? })
    }
}

/// Being the leader: a guard with a value. Dropping it resigns in the background.
#[must_use = "dropping the leadership resigns; bind it to a name, not to `_`"]
pub struct Leadership(Guard);

view_methods!(Leadership, 0.held());

impl Leadership {
    /// Changes the value, with one request; the leader and its token stay.
    ///
    /// `Err` of kind [`Lost`](crate::ErrorKind::Lost): not the leader any more, nothing was proclaimed. Any other error: it
    /// may or may not have been; proclaim again. Cancel-safe: dropped midway, the value is the old or the new one.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        self.check()?;
        let hold = &self.0.held().0;
        let value = checked_value(value.into().into()).map_err(|e| e.with_name(&hold.name))?;
        hold.state.relabel(value);
        hold.claim_again().await
    }

    /// Asks the store whether this is the leader *now*: [`Guard::confirm`].
    pub async fn confirm(&self) -> Result<()> {
        self.0.confirm().await
    }

    /// Gives the leadership up, and waits for the store's word: [`Guard::release`].
    pub async fn resign(self) -> Result<()> {
        self.0.release().await
    }

    /// Runs `body` while leading, and resigns: [`Guard::run`].
    pub async fn run<T, F: Future<Output = T>>(self, body: impl FnOnce(Held) -> F) -> Result<T> {
        self.0.run(body).await
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leadership({:?})", self.view())
    }
}
