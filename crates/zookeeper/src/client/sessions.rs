//! The sessions of one client: one for each TTL in use, opened when it is needed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::backend::{Identity, Notifier};
use leasehold_core::support::locked;
use leasehold_core::{DEFAULT_TTL, Error, ErrorKind, Result};
use tokio::time::timeout;
use zookeeper_client::Error as ZkError;

use crate::client::reach::Reasons;
use crate::client::session::{Session, SessionHandler};
use crate::client::single_flight::SingleFlight;
use crate::config::Config;

/// The number of TTLs with sessions of their own. Further ones share: a server takes 60 connections
/// of a host in its default configuration (`maxClientCnxns`).
const EXACT: usize = 8;

/// The time limit to open a session.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(2500);

/// The leases that a session serves. The session of a TTL never changes while it lives: no exact
/// session is opened for a TTL that a shared one serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ttl {
    Exact(Duration),
    Shared(Duration),
}

/// All sessions of one client. When it is dropped they are closed.
pub(crate) struct Sessions<T: SessionHandler> {
    pub(crate) config: Arc<Config>,
    /// Notified when the sessions' watches may have missed something, and by the sessions' handlers.
    pub(crate) notifier: Notifier,
    open: Mutex<BTreeMap<Ttl, Arc<Session<T>>>>,
    /// One session is opened at a time.
    opening: SingleFlight,
    reasons: Reasons,
    closed: AtomicBool,
}

impl<T: SessionHandler> Sessions<T> {
    /// No sessions yet.
    pub(crate) fn new(mut config: Config) -> Sessions<T> {
        config.identity = Arc::new(Identity::pinned(config.store_id.clone()));
        config.alone = Arc::default();
        Sessions {
            config: Arc::new(config),
            notifier: Notifier::new(),
            open: Mutex::default(),
            opening: SingleFlight::default(),
            reasons: Reasons::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Opens the first session, or returns why there is none.
    pub(crate) async fn connect(&self) -> Result<()> {
        #[cfg(feature = "tls-no-provider")]
        self.config.check_files().await?;
        let Err(e) = self.with_ttl(DEFAULT_TTL).await else {
            return Ok(());
        };
        if e.kind() != ErrorKind::Unavailable {
            return Err(e);
        }
        #[cfg(feature = "tls-no-provider")]
        if let Some(why) = self.config.diagnose().await {
            return Err(why);
        }
        Err(self.explained(e).await)
    }

    /// Replaces the text of an error by the reasons why no server can be used, as the servers tell
    /// them in plain text. An error that a server answered stays as it is, and so does every error
    /// while a session is connected.
    pub(crate) async fn explained(&self, e: Error) -> Error {
        let cause = std::error::Error::source(&e).and_then(|cause| cause.downcast_ref());
        let Some(cause @ (ZkError::NoHosts | ZkError::Timeout | ZkError::ConnectionLoss)) = cause
        else {
            return e;
        };
        let is_connected = || self.all().iter().any(|session| session.client().is_ok());
        if self.config.is_secure() || is_connected() {
            return e;
        }
        let told = self.reasons.ask(&self.config).await;
        Error::new(e.kind(), format!("ZooKeeper cannot be used: {told}")).with_source(cause.clone())
    }

    /// The session for leases of `ttl`, a new one if there is none. Its timeout is `ttl` or longer:
    /// beyond the first few TTLs the next power of two, in seconds, so that there are never more
    /// than some dozens of sessions.
    pub(crate) async fn with_ttl(&self, ttl: Duration) -> Result<Arc<Session<T>>> {
        let opening = async {
            let there = || {
                self.is_closed()
                    .then(|| Err(Error::closed()))
                    .or_else(|| self.live(ttl).map(Ok))
            };
            let _turn = match self.opening.unless(CONNECT_TIMEOUT, there).await {
                Ok(there) => return there,
                Err(turn) => turn,
            };
            let new = {
                let mut open = locked(&self.open);
                open.retain(|_, session| !session.has_ended());
                Ttl::of_new_session(ttl, &open)
            };
            let (Ttl::Exact(asked) | Ttl::Shared(asked)) = new;
            let session = Session::open(&self.config, &self.notifier, asked).await?;
            let mut open = locked(&self.open);
            // Another task has opened one while this one was not polled: it may have locks.
            let other = Ttl::serving(ttl)
                .iter()
                .find_map(|ttl| open.get(ttl).filter(|it| !it.has_ended()))
                .cloned();
            if other.is_some() || self.is_closed() {
                drop(session.start_closing());
                return other.ok_or_else(Error::closed);
            }
            open.insert(new, session.clone());
            Ok(session)
        };
        let late = |_| {
            let what = format!("{}: no ZooKeeper server answers", self.config.servers);
            Err(Error::new(ErrorKind::Unavailable, what).with_source(ZkError::Timeout))
        };
        match self.live(ttl) {
            Some(session) => Ok(session),
            None => timeout(CONNECT_TIMEOUT, Box::pin(opening))
                .await
                .unwrap_or_else(late),
        }
    }

    /// The session for leases of `ttl`, if there is one that has not ended.
    pub(crate) fn live(&self, ttl: Duration) -> Option<Arc<Session<T>>> {
        let open = locked(&self.open);
        Ttl::serving(ttl)
            .iter()
            .filter_map(|ttl| open.get(ttl))
            .find(|session| session.mark_used())
            .cloned()
    }

    /// All sessions, including ended ones.
    pub(crate) fn all(&self) -> Vec<Arc<Session<T>>> {
        locked(&self.open).values().cloned().collect()
    }

    /// A session for requests that no lease depends on.
    pub(crate) async fn any(&self) -> Result<Arc<Session<T>>> {
        let open = locked(&self.open)
            .values()
            .find(|session| session.mark_used())
            .cloned();
        match open {
            Some(session) => Ok(session),
            None => self.with_ttl(DEFAULT_TTL).await,
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Closes all sessions. No further session is opened.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.opening.look_again();
        let sessions = std::mem::take(&mut *locked(&self.open));
        join_all(sessions.values().map(|session| session.close())).await;
    }
}

impl Ttl {
    /// The keys of the sessions that may serve leases of `ttl`.
    fn serving(ttl: Duration) -> [Ttl; 2] {
        [Ttl::Exact(ttl), Ttl::Shared(rounded_up(ttl))]
    }

    /// The key of a new session for leases of `ttl`.
    fn of_new_session<S>(ttl: Duration, open: &BTreeMap<Ttl, S>) -> Ttl {
        let [exact, shared] = Ttl::serving(ttl);
        let exact_ones = open
            .keys()
            .filter(|ttl| matches!(ttl, Ttl::Exact(_)))
            .count();
        if exact_ones < EXACT { exact } else { shared }
    }
}

/// The next power of two, in seconds.
fn rounded_up(ttl: Duration) -> Duration {
    let seconds = ttl
        .as_secs()
        .saturating_add(u64::from(ttl.subsec_nanos() > 0));
    seconds
        .checked_next_power_of_two()
        .map_or(ttl, Duration::from_secs)
}

impl<T: SessionHandler> Drop for Sessions<T> {
    fn drop(&mut self) {
        locked(&self.open)
            .values()
            .for_each(|session| drop(session.start_closing()));
    }
}

impl<T: SessionHandler> fmt::Debug for Sessions<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs compute TTLs, such as the time that is left to a deadline: each of them is different then.
    #[test]
    fn any_number_of_ttls_needs_few_sessions_and_no_more_memory() {
        let mut open = BTreeMap::new();
        for ttl in (3_000..103_000).map(Duration::from_millis) {
            if Ttl::serving(ttl).iter().all(|ttl| !open.contains_key(ttl)) {
                open.insert(Ttl::of_new_session(ttl, &open), ());
            }
        }
        assert_eq!(open.len(), EXACT + 6); // and from 4 s to 128 s
    }

    /// A claim finds its place in the same session later.
    #[test]
    fn a_ttl_keeps_its_session_also_when_others_end() {
        let seconds = Duration::from_secs;
        let mut open: BTreeMap<Ttl, u64> = (10..)
            .take(EXACT)
            .map(|s| (Ttl::Exact(seconds(s)), s))
            .collect();
        assert_eq!(
            Ttl::of_new_session(seconds(3), &open),
            Ttl::Shared(seconds(4))
        );
        open.insert(Ttl::Shared(seconds(4)), 4);
        open.retain(|_, session| *session == 4);
        let serving = |s: u64, open: &BTreeMap<Ttl, u64>| {
            Ttl::serving(seconds(s))
                .iter()
                .find_map(|ttl| open.get(ttl).copied())
        };
        assert_eq!(
            (serving(3, &open), serving(4, &open), serving(5, &open)),
            (Some(4), Some(4), None)
        );
        assert_eq!(
            Ttl::of_new_session(seconds(5), &open),
            Ttl::Exact(seconds(5)),
            "there is room again"
        );
    }

    #[test]
    fn a_ttl_is_rounded_up_and_never_down() {
        for (asked, given) in [
            (1, 1),
            (400, 1),
            (1000, 1),
            (1001, 2),
            (3000, 4),
            (4000, 4),
            (4001, 8),
            (60_000, 64),
        ] {
            assert_eq!(
                rounded_up(Duration::from_millis(asked)),
                Duration::from_secs(given),
                "{asked} ms"
            );
        }
        assert_eq!(rounded_up(Duration::MAX), Duration::MAX);
    }
}
