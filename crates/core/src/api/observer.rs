//! Watching which candidate leads.
//!
//! An observer has no claim, so notifications for claims do not reach it. It has its own, by name,
//! and it also reads from time to time: a missed notification delays it by a second at most.

use std::time::Duration;

use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::api::election::Leader;
use crate::api::options::DEFAULT_TTL;
use crate::api::scope::Scope;
use crate::backend::clock::Moment;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::name::Name;
use crate::backend::notifier::Subscription;

/// The intervals at which an observer reads without a notification: on a store that notifies, and
/// on one that does not.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(250));

/// Watches which candidate leads an election.
///
/// It works like a `watch` channel: it sees the latest value of each change, and may skip values
/// that were replaced quickly. A vacancy is a value. It sends one request for each change, and one
/// from time to time: each second where the store pushes changes, four times a second where it does
/// not. It holds nothing, and has no place in the queue.
///
/// Its value may be outdated: a leader that it has just seen may have lost the leadership. Let the
/// resource compare tokens.
#[derive(Debug)]
pub struct Observer {
    scope: Scope,
    name: Name,
    full_name: Name,
    current: Option<Leader>,
    holder_changes: Receiver<Name>,
    subscription: Subscription,
}

impl Observer {
    pub(crate) async fn start(scope: Scope, name: Name) -> Result<Observer> {
        let full_name = scope.full_name(&name)?;
        let client = &scope.client;
        client.ready()?;
        let holder_changes = client.notifier.holder_changes();
        let subscription = client.backend.observe(&full_name);
        let current = scope.inspect(&name).await.map(Leader::of)?;
        Ok(Observer {
            scope,
            name,
            full_name,
            current,
            holder_changes,
            subscription,
        })
    }

    /// The leader when the store was last asked; `None` if there was none. It sends nothing.
    pub fn current(&self) -> Option<&Leader> {
        self.current.as_ref()
    }

    /// Waits until the leader or its value differs from [`current`](crate::Observer::current), and
    /// makes that the current one.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached for the store's default TTL, its error. Call it again to
    /// continue.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped at any await: a change that was not returned is found by the next call.
    pub async fn changed(&mut self) -> Result<()> {
        let client = self.scope.client.clone();
        let retry_budget = self.scope.defaults.ttl.unwrap_or(DEFAULT_TTL);
        let (notified, alone) = POLL_INTERVALS;
        let poll_interval = if self.subscription.is_pushed() {
            notified
        } else {
            alone
        };
        // The moment of the first failed request since the store last answered, and the error of
        // the latest one.
        let mut outage: Option<(Moment, Error)> = None;
        loop {
            let asked = client.clock.now();
            let since = outage.as_ref().map_or(asked, |(since, _)| *since);
            let left = retry_budget.saturating_sub(asked.since(since));
            let answer = tokio::select! {
                biased;
                answer = self.scope.inspect(&self.name) => answer.map(Leader::of),
                () = client.clock.sleep(left) => {
                    let late = || Error::new(ErrorKind::Unavailable, "the store does not answer").with_name(&self.name);
                    return Err(outage.map_or_else(late, |(_, why)| why));
                }
            };
            match answer {
                Ok(leader) if leader != self.current => {
                    self.current = leader;
                    return Ok(());
                }
                Ok(_) => outage = None,
                Err(e) if !e.is_retryable() => return Err(e),
                // One that fails at once is answered before the time is over, also when none is left.
                Err(e) if client.clock.now().since(since) >= retry_budget => return Err(e),
                Err(e) => outage = Some((since, e)),
            }
            tokio::select! {
                biased;
                () = holder_changed(&mut self.holder_changes, &self.full_name) => {}
                () = client.clock.sleep(poll_interval) => {}
            }
        }
    }
}

/// Waits for a notification for this name. Missed notifications may have been for it, so they
/// count.
async fn holder_changed(holder_changes: &mut Receiver<Name>, name: &Name) {
    loop {
        match holder_changes.recv().await {
            Ok(notified) if notified != *name => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
