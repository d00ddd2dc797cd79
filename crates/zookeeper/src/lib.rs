//! The ZooKeeper store of Leasehold: Curator's lock recipe, on sessions whose life is proven by writes.
//!
//! # Where things are
//!
//! Under the root node (the URL's path, or `/leasehold`) each lock is a container node, named as the lock with `/`, `%`, control
//! characters, everything outside ASCII and a leading dot percent-encoded. Its line are the container's ephemeral sequential
//! children `_c_<uuid>-lock-<number>`, in the order of their numbers. ZooKeeper removes the container by itself about a minute
//! after its last use.
//!
//! # With other tools
//!
//! Curator's `InterProcessMutex` on the same path (`/leasehold/orders%2F42` for the lock `orders/42`) stands in the same line,
//! and so does kazoo's `Lock` with `extra_lock_patterns=["-lock-"]`: mutual exclusion and order hold among all of them. Curator
//! compares the numbers as text, so for it this ends when the number wraps around, after 2³¹ entries of one lock.
//!
//! # The recipe
//!
//! Burrows' sequencer and Hunt et al., *ZooKeeper: wait-free coordination for internet-scale systems* (USENIX ATC 2010), 2.4:
//! whoever has the lowest number holds, everybody else watches whom they wait for. A lock that is free costs three requests
//! (create, list, delete), a release wakes two waiters at most.

mod claim;
mod config;
mod error;
mod heart;
mod line;
mod look;
mod names;
mod places;
mod proof;
mod record;
mod session;
mod sessions;
mod wait;
mod withdraw;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{Backend, Bells, Claim, Claimed, Mode, Place, Renewal, Tenure, async_trait};
use leasehold_core::{DEFAULT_TTL, Error, ErrorKind, Fairness, Fencing, FencingToken, Guarantees, Line, Name, Result};

pub use config::Config;
use sessions::Sessions;

/// A client of ZooKeeper. Clones are the same client; when the last one is dropped, its sessions are closed, and whatever was
/// held through them is free.
///
/// Locks with the same TTL share one session, so they also share its end. The server has the last word on how long a session
/// lives: between two and twenty of its ticks (4 s and 40 s as it is shipped), whatever the TTL says. Leases are then as long as
/// the session.
#[derive(Clone)]
pub struct ZooKeeper {
    sessions: Arc<Sessions>,
}

impl ZooKeeper {
    /// Connects to `zookeeper://[user:password@]host[:port][,host[:port]…][/path][?timeout=milliseconds]`: see
    /// [`Config::from_url`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for the URL, [`ErrorKind::Unavailable`] within three seconds if no server can be reached,
    /// [`ErrorKind::Denied`] if it refuses. ZooKeeper does not check a *digest* password: with a wrong one, what fails is the
    /// first use of a node that was made with another.
    pub async fn connect(url: &str) -> Result<ZooKeeper> {
        ZooKeeper::with_config(Config::from_url(url)?).await
    }

    /// Connects as the configuration says. The errors are those of [`connect`](ZooKeeper::connect).
    pub async fn with_config(config: Config) -> Result<ZooKeeper> {
        let sessions = Arc::new(Sessions::new(config));
        sessions.with_ttl(DEFAULT_TTL).await?;
        Ok(ZooKeeper { sessions })
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        if claim.mode != Mode::Exclusive {
            let message = format!("ZooKeeper has no {:?} locks yet", claim.mode);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let session = self.sessions.with_ttl(claim.ttl).await?;
        claim::claim(&session, claim).await
    }

    async fn renew(&self, tenures: &[Tenure]) -> Result<Vec<Renewal>> {
        Ok(self.sessions.renew(tenures).await)
    }

    async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()> {
        match self.sessions.for_release(claim.ttl) {
            Some(session) => withdraw::withdraw(&session, claim, place).await,
            None => Ok(()), // its session has ended, and so has its entry
        }
    }

    async fn inspect(&self, name: &Name) -> Result<Line> {
        look::inspect(&*self.sessions.any().await?, name).await
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        look::list(&*self.sessions.any().await?, prefix, after, limit).await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        look::evict(&*self.sessions.any().await?, name, token).await
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("zookeeper")
            .fencing(Fencing::WhileDataLives)
            .fairness(Fairness::Strict)
            .pushed_wake(true)
            .ttl(Duration::from_millis(400), Duration::from_millis(1))
            .recovery(Duration::from_secs(4))
            .notes(
                "Leases are sessions: the server rounds a ttl to between 2 and 20 of its ticks (by default 4 s to 40 s), and \
                 frees a dead holder's lock up to two ticks after it. Fast is fair. Curator's InterProcessMutex, and kazoo's \
                 Lock told to look for \"-lock-\", on the same path stand in the same line.",
            )
    }

    fn bells(&self) -> Option<&Bells> {
        Some(self.sessions.bells())
    }

    async fn close(&self) -> Result<()> {
        self.sessions.close().await;
        Ok(())
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ZooKeeper").field(self.sessions.config()).finish()
    }
}
