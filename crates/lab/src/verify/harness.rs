//! The suite's harness as a guest on an existing server: clients, and no control over it.

#![allow(
    clippy::panic,
    reason = "the suite judges by panicking: a client that cannot be made fails its case"
)]

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Raises;
use leasehold::backend::{Backend, async_trait};
use leasehold::memory::Memory;
use leasehold::{ErrorKind, Fairness, Guarantees, Guard, MAX_VALUE_BYTES, Result, Store};
use leasehold_conformance::{Capabilities, Harness, Need};

/// A source of further clients of a URL; those of `memory://` share one store.
#[derive(Clone)]
pub(crate) struct Clients {
    url: String,
    memory: Option<Memory>,
}

impl Clients {
    pub(crate) fn of(url: &str) -> Clients {
        Clients {
            url: url.to_owned(),
            memory: (url == "memory://").then(Memory::new),
        }
    }

    pub(crate) async fn another(&self) -> Result<Arc<dyn Backend>> {
        match &self.memory {
            Some(memory) => Ok(Arc::new(memory.another_client())),
            None => leasehold::connect(&self.url).backend().await,
        }
    }
}

/// Returns whether the store cuts or refuses a candidate's long value; `None` if that is unknown.
async fn cuts_values(store: &Store) -> Option<bool> {
    let election = store.election("value");
    let value = "é".repeat(MAX_VALUE_BYTES / 2);
    let leadership = match election.try_campaign(value.as_str()).await {
        Ok(leadership) => leadership,
        Err(e) => {
            return matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Invalid).then_some(true);
        }
    };
    let leader = election.leader().await;
    let _ = leadership.resign().await;
    Some(leader.ok()??.value != value)
}

/// A guest.
pub(crate) struct ExistingServer {
    pub(crate) clients: Clients,
    pub(crate) guarantees: Guarantees,
    pub(crate) prefix: String,
    pub(crate) ttl: Duration,
    /// The capabilities that the store says it lacks.
    pub(crate) lacking: Vec<Need>,
}

/// Asks the store for each mode, and believes a plain "unsupported".
pub(crate) async fn lacking(client: &dyn Backend, store: &Store) -> Vec<Need> {
    let refused =
        |outcome: Result<Guard>| outcome.is_err_and(|e| e.kind() == ErrorKind::Unsupported);
    let mut lacking = Vec::new();
    if store.guarantees().fairness() == Fairness::None {
        lacking.push(Need::Fair);
    }
    if store.guarantees().atomic_multi() < 2 {
        lacking.push(Need::AtomicMulti);
    }
    if !store.guarantees().min_hold_outlives_process() {
        lacking.push(Need::MinHold);
    }
    if !store.guarantees().once() {
        lacking.push(Need::Once);
    }
    match client.token_floor().map(|floor| floor.raises()) {
        Some(Raises::Holds(_)) => {}
        Some(Raises::Places(_)) => lacking.push(Need::Floor),
        None => lacking.extend([Need::Raise, Need::Floor]),
    }
    if refused(store.rw_lock("shared").read().try_acquire().await) {
        lacking.push(Need::Shared);
    }
    if refused(store.semaphore("permits", 2).try_acquire().await) {
        lacking.push(Need::Permits);
    }
    if let Ok(guard) = store.rw_lock("downgrade").write().try_acquire().await
        && guard
            .downgrade()
            .await
            .is_err_and(|e| e.kind() == ErrorKind::Unsupported)
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
        self.guarantees.store()
    }

    async fn client(&self) -> Arc<dyn Backend> {
        self.clients
            .another()
            .await
            .unwrap_or_else(|e| panic!("no client: {e}"))
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn tell(&self, _what: &str) {}

    fn capabilities(&self) -> Capabilities {
        let able: &[Need] = if self.guarantees.pushed_wake() {
            &[Need::PushedWake]
        } else {
            &[]
        };
        Capabilities::new(
            able,
            "a guest neither disturbs the server nor counts its requests",
        )
        .lacks(&self.lacking, "this store says that it cannot")
    }
}
