//! The sessions of one client: one for each TTL in use, made when it is needed, and what `renew` asks of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::seam::{Bells, Moment, Renewal, Tenure};
use leasehold_core::{DEFAULT_TTL, Error, ErrorKind, Loss, Result};

use crate::config::Config;
use crate::error::unavailable;
use crate::session::{Session, locked};

pub(crate) struct Sessions {
    config: Arc<Config>,
    bells: Bells,
    slots: Mutex<HashMap<Duration, Arc<Slot>>>,
    closed: AtomicBool,
}

/// Where the session of one TTL is.
#[derive(Default)]
struct Slot {
    current: Mutex<Option<Arc<Session>>>,
    /// One makes it, the others wait and share its failure: when that was.
    making: tokio::sync::Mutex<Option<Moment>>,
}

impl Sessions {
    pub(crate) fn new(config: Config) -> Sessions {
        Sessions {
            config: Arc::new(config),
            bells: Bells::new(),
            slots: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn bells(&self) -> &Bells {
        &self.bells
    }

    /// The session for leases of `ttl`, a new one if there is none (any more).
    pub(crate) async fn with_ttl(&self, ttl: Duration) -> Result<Arc<Session>> {
        let ttl = in_milliseconds(ttl);
        let slot = locked(&self.slots).entry(ttl).or_default().clone();
        if let Some(session) = slot.live() {
            return Ok(session);
        }
        let arrived = Moment::now();
        let mut failed = slot.making.lock().await;
        if let Some(session) = slot.live() {
            return Ok(session);
        }
        self.check_open()?;
        if failed.is_some_and(|failed| failed > arrived) {
            return Err(unavailable("no session with ZooKeeper can be made"));
        }
        let opened = Session::open(&self.config, &self.bells, ttl).await;
        *failed = opened.is_err().then(Moment::now);
        let session = opened?;
        let before = locked(&slot.current).replace(session.clone());
        // `close` has looked already, or will see it.
        if let Err(closed) = self.check_open() {
            session.leave();
            return Err(closed);
        }
        self.forget_unused();
        if before.is_some() {
            self.bells.everyone();
        }
        Ok(session)
    }

    /// A session for what needs none of its own.
    pub(crate) async fn any(&self) -> Result<Arc<Session>> {
        let slots: Vec<Arc<Slot>> = locked(&self.slots).values().cloned().collect();
        match slots.iter().find_map(|slot| slot.live()) {
            Some(session) => Ok(session),
            None => self.with_ttl(DEFAULT_TTL).await,
        }
    }

    /// Extends nothing by itself: heartbeats do. One request per session tells what is still there.
    pub(crate) async fn renew(&self, tenures: &[Tenure]) -> Vec<Renewal> {
        let mut sessions: HashMap<Duration, Option<Arc<Session>>> = HashMap::new();
        for tenure in tenures {
            sessions.entry(tenure.claim.ttl).or_insert_with(|| self.live(tenure.claim.ttl));
        }
        let audits = sessions.values().flatten().map(|session| {
            // An audit that fails says nothing, and takes nothing from what heartbeats have proven.
            session.audit(self.config.timeout.min(session.timeout / 8), Loss::Gone)
        });
        join_all(audits).await;
        tenures.iter().map(|tenure| renewal(sessions[&tenure.claim.ttl].as_deref(), tenure)).collect()
    }

    /// Closes all sessions.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let slots: Vec<Arc<Slot>> = std::mem::take(&mut *locked(&self.slots)).into_values().collect();
        let sessions: Vec<Arc<Session>> = slots.iter().filter_map(|slot| locked(&slot.current).take()).collect();
        join_all(sessions.iter().map(|session| session.close())).await;
    }

    /// The session through which claims with this TTL were made, if it has not ended.
    pub(crate) fn live(&self, ttl: Duration) -> Option<Arc<Session>> {
        locked(&self.slots).get(&in_milliseconds(ttl))?.live()
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the store was closed"));
        }
        Ok(())
    }

    /// Forgets the slots of TTLs that are no longer in use.
    fn forget_unused(&self) {
        locked(&self.slots).retain(|_, slot| Arc::strong_count(slot) > 1 || slot.live().is_some());
    }
}

impl Slot {
    fn live(&self) -> Option<Arc<Session>> {
        locked(&self.current).clone().filter(|session| session.touch())
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        for slot in locked(&self.slots).values() {
            if let Some(session) = locked(&slot.current).take() {
                session.leave();
            }
        }
    }
}

fn renewal(session: Option<&Session>, tenure: &Tenure) -> Renewal {
    let Some(session) = session else { return Renewal::Lost(Loss::Expired) };
    let now = Moment::now();
    match session.places().renew(tenure.claim.id, now) {
        Some(None) => return Renewal::Unknown(unavailable("the claim is just being made again")),
        Some(Some(node)) if *node.path == *tenure.place.as_str() => {}
        Some(Some(_)) | None => return Renewal::Lost(Loss::Gone),
    }
    let unproven = || Renewal::Unknown(unavailable("ZooKeeper has not answered the session's heartbeats lately"));
    session.validity(now).map_or_else(unproven, Renewal::Renewed)
}

/// ZooKeeper counts in milliseconds. A lease is never shorter than was asked for.
fn in_milliseconds(ttl: Duration) -> Duration {
    let ms = ttl.as_nanos().div_ceil(1_000_000).clamp(1, i32::MAX as u128);
    Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
}
