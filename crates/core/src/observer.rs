//! Watching who leads.

use std::time::Duration;

use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::bells::Observing;
use crate::election::Leader;
use crate::error::Result;
use crate::name::Name;
use crate::store::Store;

/// How often an observer looks although no bell rang: where the store rings, and where it does not.
const NAPS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(250));

/// Sees who leads, in the manner of a `watch` channel: every change at least as its latest value. A vacancy is a value.
///
/// It costs one look at the store for each change, and one from time to time. It holds nothing and stands in no line.
#[derive(Debug)]
pub struct Observer {
    store: Store,
    name: Name,
    full_name: Name,
    current: Option<Leader>,
    stirring: Receiver<Name>,
    observing: Observing,
}

impl Observer {
    pub(crate) async fn start(store: Store, name: Name) -> Result<Observer> {
        let full_name = store.full_name(&name)?;
        let client = store.client();
        client.ready()?;
        let stirring = client.bells.stirring();
        let observing = client.backend.observe(&full_name);
        let current = store.inspect(&name).await.map(Leader::of)?;
        Ok(Observer { store, name, full_name, current, stirring, observing })
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
        let client = self.store.client().clone();
        let patience = self.store.lease_of_defaults();
        let (rung, alone) = NAPS;
        let nap = if self.observing.is_rung() { rung } else { alone };
        let mut troubled_since = None;
        loop {
            match self.store.inspect(&self.name).await.map(Leader::of) {
                Ok(leader) if leader != self.current => {
                    self.current = leader;
                    return Ok(());
                }
                Ok(_) => troubled_since = None,
                Err(e) => {
                    let now = client.clock.now();
                    if !e.is_retryable() || now.since(*troubled_since.get_or_insert(now)) >= patience {
                        return Err(e);
                    }
                }
            }
            tokio::select! {
                () = stirred(&mut self.stirring, &self.full_name) => {}
                () = client.clock.sleep(nap) => {}
            }
        }
    }
}

/// Waits for a ring for this name. Rings that were missed may have been for it.
async fn stirred(stirring: &mut Receiver<Name>, name: &Name) {
    loop {
        match stirring.recv().await {
            Ok(rung) if rung != *name => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
