//! The sessions of one client: one for each TTL in use, made when it is needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::seam::{Bells, Renewal, Tenure};
use leasehold_core::{DEFAULT_TTL, Error, ErrorKind, Loss, Result};
use tokio::time::timeout;

use crate::config::Config;
use crate::error::unavailable;
use crate::session::{Session, locked};

/// How long making a session may take.
const CONNECT: Duration = Duration::from_millis(2500);

pub(crate) struct Sessions {
    pub(crate) config: Arc<Config>,
    pub(crate) bells: Bells,
    /// `None` once the client is closed.
    open: Mutex<Option<ByTtl>>,
    /// One makes a session, the others wait for it.
    making: tokio::sync::Mutex<()>,
}

type ByTtl = HashMap<Duration, Arc<Session>>;

impl Sessions {
    pub(crate) fn new(config: Config) -> Sessions {
        let open = Mutex::new(Some(HashMap::new()));
        Sessions { config: Arc::new(config), bells: Bells::new(), open, making: tokio::sync::Mutex::default() }
    }

    /// The session for leases of `ttl`, a new one if there is none (any more).
    pub(crate) async fn with_ttl(&self, ttl: Duration) -> Result<Arc<Session>> {
        let making = async {
            let _alone = self.making.lock().await;
            if let Some(session) = self.live(ttl) {
                return Ok(session);
            }
            self.opened(|_| ())?;
            let session = Session::open(&self.config, &self.bells, ttl).await?;
            self.opened(|sessions| {
                sessions.retain(|_, session| session.current().is_some());
                sessions.insert(ttl, session.clone());
            })
            .inspect_err(|_| drop(session.leave()))?;
            Ok(session)
        };
        match self.live(ttl) {
            Some(session) => Ok(session),
            None => timeout(CONNECT, making).await.unwrap_or_else(|_| Err(unavailable("no ZooKeeper server answers"))),
        }
    }

    /// The session through which claims with this TTL were made, if it has not ended.
    pub(crate) fn live(&self, ttl: Duration) -> Option<Arc<Session>> {
        locked(&self.open).as_ref()?.get(&ttl).filter(|session| session.touch()).cloned()
    }

    /// A session for what needs none of its own.
    pub(crate) async fn any(&self) -> Result<Arc<Session>> {
        match self.opened(|sessions| sessions.values().find(|session| session.touch()).cloned())? {
            Some(session) => Ok(session),
            None => self.with_ttl(DEFAULT_TTL).await,
        }
    }

    /// One request per session tells what is still there.
    pub(crate) async fn renew(&self, tenures: &[Tenure]) -> Vec<Renewal> {
        let mut sessions: HashMap<Duration, Option<Arc<Session>>> = HashMap::new();
        for tenure in tenures {
            sessions.entry(tenure.claim.ttl).or_insert_with_key(|ttl| self.live(*ttl));
        }
        // An audit that fails says nothing, and takes nothing from what heartbeats have proven.
        join_all(sessions.values().flatten().map(|session| session.audit(Loss::Gone))).await;
        let renewal = |tenure: &Tenure| match &sessions[&tenure.claim.ttl] {
            Some(session) => session.renew(tenure),
            None => Renewal::Lost(Loss::Expired),
        };
        tenures.iter().map(renewal).collect()
    }

    /// Closes all sessions.
    pub(crate) async fn close(&self) {
        let sessions = locked(&self.open).take().unwrap_or_default();
        join_all(sessions.values().map(|session| session.close())).await;
    }

    fn opened<T>(&self, f: impl FnOnce(&mut ByTtl) -> T) -> Result<T> {
        let closed = || Error::new(ErrorKind::Closed, "the store was closed");
        locked(&self.open).as_mut().map(f).ok_or_else(closed)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        let _ = self.opened(|sessions| sessions.values().for_each(|session| drop(session.leave())));
    }
}
