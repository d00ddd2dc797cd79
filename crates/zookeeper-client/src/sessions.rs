//! The sessions of one client: one for each TTL in use, made when it is needed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::seam::{Bells, locked};
use leasehold_core::{DEFAULT_TTL, Error, ErrorKind, Result};
use tokio::time::timeout;

use crate::config::Config;
use crate::session::{Session, Tenant};

/// How long making a session may take.
const CONNECT: Duration = Duration::from_millis(2500);

/// All sessions of one client. When it is dropped they are closed.
pub struct Sessions<T: Tenant> {
    config: Arc<Config>,
    /// Rung when the sessions' watches may have missed something, and by whoever lives in them.
    pub bells: Bells,
    /// `None` once the client is closed.
    open: Mutex<Option<ByTtl<T>>>,
    /// One makes a session, the others wait for it.
    making: tokio::sync::Mutex<()>,
}

type ByTtl<T> = HashMap<Duration, Arc<Session<T>>>;

impl<T: Tenant> Sessions<T> {
    /// No sessions yet.
    pub fn new(config: Config) -> Sessions<T> {
        let open = Mutex::new(Some(HashMap::new()));
        Sessions { config: Arc::new(config), bells: Bells::new(), open, making: tokio::sync::Mutex::default() }
    }

    /// The session for leases of `ttl`, a new one if there is none (any more).
    pub async fn with_ttl(&self, ttl: Duration) -> Result<Arc<Session<T>>> {
        let making = async {
            let _alone = self.making.lock().await;
            if let Some(session) = self.live(ttl) {
                return Ok(session);
            }
            self.opened(|_| ())?;
            let session = Session::open(&self.config, &self.bells, ttl).await?;
            self.opened(|sessions| {
                sessions.retain(|_, session| session.client().is_ok());
                sessions.insert(ttl, session.clone());
            })
            .inspect_err(|_| drop(session.leave()))?;
            Ok(session)
        };
        let late = |_| Err(Error::new(ErrorKind::Unavailable, "no ZooKeeper server answers"));
        match self.live(ttl) {
            Some(session) => Ok(session),
            None => timeout(CONNECT, making).await.unwrap_or_else(late),
        }
    }

    /// The session for leases of `ttl`, if there is one that has not ended.
    pub fn live(&self, ttl: Duration) -> Option<Arc<Session<T>>> {
        locked(&self.open).as_ref()?.get(&ttl).filter(|session| session.touch()).cloned()
    }

    /// A session for what needs none of its own.
    pub async fn any(&self) -> Result<Arc<Session<T>>> {
        match self.opened(|sessions| sessions.values().find(|session| session.touch()).cloned())? {
            Some(session) => Ok(session),
            None => self.with_ttl(DEFAULT_TTL).await,
        }
    }

    /// Closes all sessions. There will be no others.
    pub async fn close(&self) {
        let sessions = locked(&self.open).take().unwrap_or_default();
        join_all(sessions.values().map(|session| session.close())).await;
    }

    fn opened<R>(&self, f: impl FnOnce(&mut ByTtl<T>) -> R) -> Result<R> {
        let closed = || Error::new(ErrorKind::Closed, "the store was closed");
        locked(&self.open).as_mut().map(f).ok_or_else(closed)
    }
}

impl<T: Tenant> Drop for Sessions<T> {
    fn drop(&mut self) {
        let _ = self.opened(|sessions| sessions.values().for_each(|session| drop(session.leave())));
    }
}

impl<T: Tenant> fmt::Debug for Sessions<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}
