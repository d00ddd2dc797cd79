//! The suite's harness as a guest on somebody's server: clients, and no power over it.

#![allow(clippy::panic, reason = "the suite judges by panicking: a client that cannot be made fails its case")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::memory::Memory;
use leasehold::seam::{Backend, async_trait};
use leasehold::{ErrorKind, Fairness, Guarantees, Guard, MAX_VALUE_BYTES, Result, Store};
use leasehold_conformance::{Capabilities, Harness, Need};

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;

/// How to get another client.
#[derive(Clone)]
pub(crate) struct Connect(Arc<dyn Fn() -> Connecting + Send + Sync>);

impl Connect {
    /// Clients of this URL; those of `memory://` share one world.
    pub(crate) fn to(url: &str) -> Connect {
        let url = url.trim().to_owned();
        if url == "memory://" {
            let world = Memory::new();
            return Connect(Arc::new(move || {
                let client: Arc<dyn Backend> = Arc::new(world.another_client());
                Box::pin(async move { Ok(client) })
            }));
        }
        Connect(Arc::new(move || {
            let url = url.clone();
            Box::pin(async move { Ok(Arc::from(leasehold::connect_backend(&url).await?)) })
        }))
    }

    pub(crate) async fn client(&self) -> Result<Arc<dyn Backend>> {
        (self.0)().await
    }
}

/// Whether a candidate's long value comes back shorter, or is refused; `None` if that could not be found out.
async fn cuts_values(store: &Store) -> Option<bool> {
    let (election, value) = (store.election("value"), "é".repeat(MAX_VALUE_BYTES / 2));
    let leadership = match election.try_campaign(value.as_str()).await {
        Ok(leadership) => leadership,
        Err(e) => return matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Invalid).then_some(true),
    };
    let leader = election.leader().await;
    let _ = leadership.resign().await;
    Some(leader.ok()??.value != value)
}

/// A guest.
pub(crate) struct ExistingServer {
    pub(crate) connect: Connect,
    pub(crate) guarantees: Guarantees,
    pub(crate) prefix: String,
    pub(crate) ttl: Duration,
    /// What the store says that it cannot do.
    pub(crate) lacking: Vec<Need>,
}

/// Asks the store for each mode, and believes a plain "unsupported".
pub(crate) async fn lacking(store: &Store) -> Vec<Need> {
    let refused = |outcome: Result<Guard>| outcome.is_err_and(|e| e.kind() == ErrorKind::Unsupported);
    let mut lacking = Vec::new();
    if store.guarantees().fairness == Fairness::None {
        lacking.push(Need::Fair);
    }
    if store.guarantees().atomic_multi < 2 {
        lacking.push(Need::AtomicMulti);
    }
    if !store.guarantees().min_hold_outlives_process {
        lacking.push(Need::MinHold);
    }
    if refused(store.rw_lock("shared").read().try_acquire().await) {
        lacking.push(Need::Shared);
    }
    if refused(store.semaphore("permits", 2).try_acquire().await) {
        lacking.push(Need::Permits);
    }
    if let Ok(guard) = store.rw_lock("downgrade").write().try_acquire().await
        && guard.downgrade().await.is_err_and(|e| e.kind() == ErrorKind::Unsupported)
    {
        lacking.push(Need::Downgrade);
    }
    if cuts_values(store).await == Some(true) {
        lacking.push(Need::Values);
    }
    lacking
}

#[async_trait]
impl Harness for ExistingServer {
    fn store_name(&self) -> &'static str {
        self.guarantees.store
    }

    async fn client(&self) -> Arc<dyn Backend> {
        self.connect.client().await.unwrap_or_else(|e| panic!("no client: {e}"))
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn tell(&self, _what: &str) {}

    fn capabilities(&self) -> Capabilities {
        let able: &[Need] = if self.guarantees.pushed_wake { &[Need::PushedWake] } else { &[] };
        Capabilities::new(able, "a guest neither disturbs the server nor counts its requests")
            .lacks(&self.lacking, "this store says that it cannot")
    }
}
