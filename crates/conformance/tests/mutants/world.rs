//! A broken world: one in-memory store, and clients that all make the same mistake.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_conformance::{Capabilities, FencedResource, Harness, Need};
use leasehold_core::backend::{Backend, Claim, ClaimId, Grant, Moment, Notifier, async_trait};
use leasehold_core::{Contention, Fenced, Result};
use leasehold_memory::Memory;

use crate::broken::Broken;
use crate::defect::Defect;

/// What the clients of one store share.
pub(crate) struct World {
    pub(crate) defect: Option<Defect>,
    memory: Mutex<Memory>,
    known: Mutex<Vec<Known>>,
    wipes: AtomicU64,
    pub(crate) answers: AtomicU64,
    /// A renewal is on its way that takes long.
    pub(crate) dawdling: AtomicBool,
    /// The number that was raised to last, who waited then, and by how much it was ever less than before.
    pub(crate) raised: AtomicU64,
    pub(crate) raised_past: Mutex<Vec<ClaimId>>,
    pub(crate) lowered: AtomicU64,
}

/// What a client remembers of a claim.
pub(crate) struct Known {
    pub(crate) claim: Claim,
    /// The claim as the store has it.
    pub(crate) asked: Claim,
    pub(crate) notifier: Notifier,
    pub(crate) sent: Moment,
    pub(crate) waits: bool,
    pub(crate) grant: Option<Grant>,
    /// A late claim undid its downgrade.
    pub(crate) undone: bool,
    /// The holder's token when it took its place.
    pub(crate) behind: Option<u64>,
    /// What was known of the holder then.
    pub(crate) who: Option<Contention>,
    /// It was evicted before it was granted to any client's knowledge.
    pub(crate) untold: bool,
}

impl World {
    pub(crate) fn new(defect: Option<Defect>) -> Arc<World> {
        Arc::new(World {
            defect,
            memory: Mutex::new(Memory::new()),
            known: Mutex::default(),
            wipes: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            dawdling: AtomicBool::new(false),
            raised: AtomicU64::new(0),
            raised_past: Mutex::default(),
            lowered: AtomicU64::new(0),
        })
    }

    pub(crate) fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory.lock().unwrap().clone()
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap()
    }

    /// What a sound store adds to the counter so that tokens rise after its data is gone.
    pub(crate) fn floor(&self) -> u64 {
        if self.is(Defect::RestartsItsCounter) {
            0
        } else {
            self.wipes.load(Ordering::Relaxed) * 1_000_000
        }
    }
}

/// The suite's view of a [`World`].
pub(crate) struct Harnessed(pub(crate) Arc<World>);

#[async_trait]
impl Harness for Harnessed {
    fn store_name(&self) -> &'static str {
        "broken"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(Broken::new(self.0.clone()))
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{Contents, DeleteHolder, Fence, Footprint, Private, PushedWake, Wipe};
        let able = [
            Private,
            Fence,
            DeleteHolder,
            Footprint,
            Contents,
            Wipe,
            PushedWake,
        ];
        Capabilities::new(&able, "not needed to judge mistakes")
    }

    async fn private(&self) -> Arc<dyn Harness> {
        Arc::new(Harnessed(World::new(self.0.defect)))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        (
            self.client().await,
            Arc::new(Resource(self.0.clone(), AtomicU64::new(0))),
        )
    }

    async fn delete_holder(&self, full_name: &str) {
        assert!(self.0.memory().delete(full_name));
    }

    async fn wipe(&self) {
        *self.0.memory.lock().unwrap() = Memory::new();
        self.0.known().clear();
        self.0.wipes.fetch_add(1, Ordering::Relaxed);
    }

    async fn footprint(&self) -> u64 {
        self.0.memory().entries() as u64
    }

    async fn contents(&self) -> u64 {
        self.footprint().await
    }
}

/// A resource whose condition may be mistaken.
struct Resource(Arc<World>, AtomicU64);

#[async_trait]
impl FencedResource for Resource {
    async fn write(&self, by: &dyn Fenced) -> Result<bool> {
        let memory = self.0.memory();
        let write = || self.1.fetch_add(1, Ordering::Relaxed);
        let believes = self.0.is(Defect::FenceBelieves) && by.is_valid();
        let ends_alike = self.0.is(Defect::FenceGoesByTheEnd) && {
            let last = by
                .full_name()
                .as_str()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            let held = memory.list("", None, usize::MAX).await?;
            held.iter().any(|name| name.as_str().ends_with(&last))
        };
        if believes || ends_alike {
            write();
            return Ok(true);
        }
        by.check_condition()?;
        Ok(memory.while_held(by, write).is_some())
    }

    async fn written(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }
}
