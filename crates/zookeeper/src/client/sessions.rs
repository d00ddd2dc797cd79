//! The sessions of one client: one for each TTL in use, made when it is needed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::seam::{Notifier, locked};
use leasehold_core::{DEFAULT_TTL, Error, ErrorKind, Result};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::client::session::{Session, Tenant};
use crate::config::Config;

/// So many leases of different lengths have sessions of their own. More share: a server takes 60 connections of a host as it is
/// shipped (`maxClientCnxns`).
const EXACT: usize = 8;

/// How long making a session may take.
const CONNECT: Duration = Duration::from_millis(2500);

/// How long a session's leases are. In the order in which sessions serve: which of them serves a length never changes while it
/// lives, as no exact one is made for what a shared one serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Length {
    Exact(Duration),
    Shared(Duration),
}

/// All sessions of one client. When it is dropped they are closed.
pub(crate) struct Sessions<T: Tenant> {
    config: Arc<Config>,
    /// Rung when the sessions' watches may have missed something, and by whoever lives in them.
    pub(crate) notifier: Notifier,
    open: Mutex<HashMap<Length, Arc<Session<T>>>>,
    /// One makes a session, the others wait for it. Closed with the client.
    turn: Semaphore,
}

impl<T: Tenant> Sessions<T> {
    /// No sessions yet.
    pub(crate) fn new(config: Config) -> Sessions<T> {
        Sessions {
            config: Arc::new(config),
            notifier: Notifier::new(),
            open: Mutex::default(),
            turn: Semaphore::new(1),
        }
    }

    /// The session for leases of `ttl`, a new one if there is none (any more). Its timeout is that, or longer: beyond the first
    /// few lengths the next power of two, in seconds, so that there are never more than some dozens of sessions.
    pub(crate) async fn with_ttl(&self, ttl: Duration) -> Result<Arc<Session<T>>> {
        let closed = || Error::new(ErrorKind::Closed, "the store was closed");
        let making = async {
            let _turn = self.turn.acquire().await.map_err(|_| closed())?;
            if let Some(session) = self.live(ttl) {
                return Ok(session);
            }
            let length = {
                let mut open = locked(&self.open);
                open.retain(|_, session| !session.is_left());
                Length::of_another(ttl, &open)
            };
            let (Length::Exact(asked) | Length::Shared(asked)) = length;
            let session = Session::open(&self.config, &self.notifier, asked).await?;
            let mut open = locked(&self.open);
            if self.turn.is_closed() {
                drop(session.leave());
                return Err(closed());
            }
            open.insert(length, session.clone());
            Ok(session)
        };
        let late = |_| Err(Error::new(ErrorKind::Unavailable, "no ZooKeeper server answers"));
        match self.live(ttl) {
            Some(session) => Ok(session),
            None => timeout(CONNECT, making).await.unwrap_or_else(late),
        }
    }

    /// The session for leases of `ttl`, if there is one that has not ended.
    pub(crate) fn live(&self, ttl: Duration) -> Option<Arc<Session<T>>> {
        let open = locked(&self.open);
        Length::serving(ttl).iter().filter_map(|length| open.get(length)).find(|session| session.touch()).cloned()
    }

    /// All sessions that have not ended.
    pub(crate) fn all(&self) -> Vec<Arc<Session<T>>> {
        locked(&self.open).values().cloned().collect()
    }

    /// A session for what needs none of its own.
    pub(crate) async fn any(&self) -> Result<Arc<Session<T>>> {
        let open = locked(&self.open).values().find(|session| session.touch()).cloned();
        match open {
            Some(session) => Ok(session),
            None => self.with_ttl(DEFAULT_TTL).await,
        }
    }

    /// Closes all sessions. There will be no others.
    pub(crate) async fn close(&self) {
        self.turn.close();
        let sessions = std::mem::take(&mut *locked(&self.open));
        join_all(sessions.values().map(|session| session.close())).await;
    }
}

impl Length {
    /// Those that may serve leases of `ttl`.
    fn serving(ttl: Duration) -> [Length; 2] {
        [Length::Exact(ttl), Length::Shared(rounded_up(ttl))]
    }

    /// For leases of `ttl` that none of these serves.
    fn of_another<S>(ttl: Duration, open: &HashMap<Length, S>) -> Length {
        let [exact, shared] = Length::serving(ttl);
        let exact_ones = open.keys().filter(|length| matches!(length, Length::Exact(_))).count();
        if exact_ones < EXACT { exact } else { shared }
    }
}

/// The next power of two, in seconds.
fn rounded_up(ttl: Duration) -> Duration {
    let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    seconds.checked_next_power_of_two().map_or(ttl, Duration::from_secs)
}

impl<T: Tenant> Drop for Sessions<T> {
    fn drop(&mut self) {
        locked(&self.open).values().for_each(|session| drop(session.leave()));
    }
}

impl<T: Tenant> fmt::Debug for Sessions<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs compute TTLs, such as what is left of a deadline: no two are alike then.
    #[test]
    fn any_number_of_lengths_needs_few_sessions_and_no_more_memory() {
        let mut open = HashMap::new();
        for ttl in (3_000..103_000).map(Duration::from_millis) {
            if Length::serving(ttl).iter().all(|length| !open.contains_key(length)) {
                let length = Length::of_another(ttl, &open);
                open.insert(length, ());
            }
        }
        assert_eq!(open.len(), EXACT + 6); // and from 4 s to 128 s
    }

    /// Whoever has a place in a session finds it there.
    #[test]
    fn a_length_keeps_its_session_also_when_others_end() {
        let seconds = Duration::from_secs;
        let mut open: HashMap<Length, u64> = (10..).take(EXACT).map(|s| (Length::Exact(seconds(s)), s)).collect();
        assert_eq!(Length::of_another(seconds(3), &open), Length::Shared(seconds(4)));
        open.insert(Length::Shared(seconds(4)), 4);
        open.retain(|_, session| *session == 4);
        let serving = |s: u64, open: &HashMap<Length, u64>| {
            Length::serving(seconds(s)).iter().find_map(|length| open.get(length).copied())
        };
        assert_eq!((serving(3, &open), serving(4, &open), serving(5, &open)), (Some(4), Some(4), None));
        assert_eq!(Length::of_another(seconds(5), &open), Length::Exact(seconds(5)), "there is room again");
    }

    #[test]
    fn a_lease_is_rounded_up_and_never_down() {
        for (asked, given) in [(1, 1), (400, 1), (1000, 1), (1001, 2), (3000, 4), (4000, 4), (4001, 8), (60_000, 64)] {
            assert_eq!(rounded_up(Duration::from_millis(asked)), Duration::from_secs(given), "{asked} ms");
        }
        assert_eq!(rounded_up(Duration::MAX), Duration::MAX);
    }
}
