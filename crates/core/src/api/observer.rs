//! Watching who leads.

use std::time::Duration;

use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::api::election::Leader;
use crate::api::scope::Scope;
use crate::seam::error::Result;
use crate::seam::name::Name;
use crate::seam::notifier::Subscription;

/// How often an observer looks without a notification: where the store notifies, and where it does not.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(250));

/// Sees who leads, in the manner of a `watch` channel: every change at least as its latest value. A vacancy is a value.
///
/// It costs one look at the store for each change, and one from time to time. It holds nothing and stands in no line.
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
        Ok(Observer { scope, name, full_name, current, holder_changes, subscription })
    }

    /// Who led when it last looked. `None`: nobody.
    pub fn current(&self) -> Option<&Leader> {
        self.current.as_ref()
    }

    /// Waits until the leader, or its value, is another than [`current`](Observer::current), and makes it current.
    ///
    /// A store that cannot be reached is asked again for as long as the store's default lease; then its error is returned,
    /// and watching may be gone on with by calling again. Cancel-safe: a change that was not returned yet is found again.
    pub async fn changed(&mut self) -> Result<()> {
        let client = self.scope.client.clone();
        let retry_budget = self.scope.lease_of_defaults();
        let (notified, alone) = POLL_INTERVALS;
        let poll_interval = if self.subscription.is_pushed() { notified } else { alone };
        let mut outage_since = None;
        loop {
            match self.scope.inspect(&self.name).await.map(Leader::of) {
                Ok(leader) if leader != self.current => {
                    self.current = leader;
                    return Ok(());
                }
                Ok(_) => outage_since = None,
                Err(e) => {
                    let now = client.clock.now();
                    if !e.is_retryable() || now.since(*outage_since.get_or_insert(now)) >= retry_budget {
                        return Err(e);
                    }
                }
            }
            tokio::select! {
                () = holder_changed(&mut self.holder_changes, &self.full_name) => {}
                () = client.clock.sleep(poll_interval) => {}
            }
        }
    }
}

/// Waits for a notification for this name. Those that were missed may have been for it.
async fn holder_changed(holder_changes: &mut Receiver<Name>, name: &Name) {
    loop {
        match holder_changes.recv().await {
            Ok(notified) if notified != *name => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
