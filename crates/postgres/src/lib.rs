//! The PostgreSQL store of Leasehold: leases in two tables, taken and given back by functions in the database.
//!
//! ```no_run
//! # async fn example() -> leasehold_core::Result<()> {
//! let postgres = leasehold_postgres::Postgres::connect("postgres://app:secret@10.0.0.1/orders").await?;
//! # Ok(()) }
//! ```
//!
//! # What no other store has
//!
//! [`HELD`] is a statement for a transaction of your own in the same database: what that transaction writes is committed before the next
//! holder begins, or not at all.
//!
//! # Layout, for operators
//!
//! In the schema `leasehold` (or another, each of which is a store of its own) `lines` has a row for each name in use, `place` one for each
//! holder and waiter, `observer` and `meta` few. [`migration`] is the whole of it. Each verb is one call of a function: one statement,
//! one round trip, one transaction at `READ COMMITTED`. It keeps no state in its session, so a pooler in transaction mode may stand
//! between; where notifications arrive over the address of the verbs, none does, and the frequent statements are prepared. Leases end by
//! the server's clock.
//!
//! # Cost
//!
//! A claim is one request, and a release is one; a release to which a client waits sends one more, off its way, that notifies exactly that
//! client. A refused try writes nothing. All places of a client are renewed by one request for each thousand. A line of waiters does not grow
//! what a hand-over costs; the verbs of one name are executed one after the other.

mod claim;
pub mod client;
mod config;
mod entry;
mod error;
mod evict;
mod fence;
mod inspect;
mod observe;
mod release;
mod renew;
mod scripts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{
    Backend, Claim, Claimed, ClaimedAll, LeaseRef, Notifier, Place, Renewal, Subscription, async_trait,
};
use leasehold_core::{Error, ErrorKind, Fairness, Fencing, FencingToken, Guarantees, LockQueue, Name, Result};
use tokio::runtime::Handle;

use crate::claim::shared::Shared;
pub use crate::config::Config;
pub use crate::fence::{HELD, LOST, StillHolds, held};
pub use crate::scripts::migration;
#[cfg(feature = "tls")]
pub use leasehold_tls::Tls;

/// How many names are taken in one step.
const AT_ONCE: usize = 100;

/// A PostgreSQL database as a store of locks.
///
/// Needs a tokio runtime, and the one in which it was connected must live as long as it does. Its connections are its own: those of the
/// verbs ([`Config::connections`]), up to two for renewals, one for notifications.
pub struct Postgres(Arc<Shared>);

impl Postgres {
    /// Connects to `postgres://user:password@host[:port][,host[:port]…]/database[?…]`: see [`Config::from_url`].
    ///
    /// # Errors
    ///
    /// Those of [`Config::from_url`] and [`with_config`](Postgres::with_config).
    pub async fn connect(url: &str) -> Result<Postgres> {
        Postgres::with_config(Config::from_url(url)?).await
    }

    /// Connects as the configuration says, looks at the server's settings, installs the schema where it is missing and may be installed,
    /// and finds out whether notifications arrive. What the settings mean for locks are [`Guarantees::warnings`]; behind a pooler that
    /// lets no notifications through, that too, and waiters poll.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a bad configuration, and for a database that does not exist;
    /// [`Unavailable`](ErrorKind::Unavailable) when no server answers that may write; [`Denied`](ErrorKind::Denied) for a user, a password
    /// or rights; [`Unsupported`](ErrorKind::Unsupported) for a server before 12, a database that is not encoded in UTF-8, a
    /// default isolation other than `READ COMMITTED`, and a schema that is missing and may not be installed: the message names the command.
    /// Over TLS also `Invalid` for a file that is missing or wrong, and `Denied` if the server's certificate is refused, or ours.
    pub async fn with_config(config: Config) -> Result<Postgres> {
        config.check()?;
        let runtime = Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::Unsupported, "a store on PostgreSQL connects only inside a tokio runtime")
        })?;
        Shared::connect(config, runtime).await.map(Postgres)
    }

    /// What the verbs share, unless the client was closed.
    fn opened(&self) -> Result<&Shared> {
        self.0.open().map(|()| &*self.0)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.0.shut();
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({:?})", self.0.config)
    }
}

#[async_trait]
impl Backend for Postgres {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.opened()?.claim(claim).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.opened()?.claim_all(claims).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        self.opened()?.renew(leases).await
    }

    fn renew_batch(&self) -> usize {
        1_000
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        self.opened()?.release(claim).await
    }

    async fn release_after(&self, claim: &Claim, _place: Option<&Place>, rest: Duration) -> Result<()> {
        self.opened()?.release_after(claim, rest).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        self.opened()?.inspect(name).await
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.opened()?.list(prefix, after, limit).await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.opened()?.evict(name, token).await
    }

    async fn mark(&self) -> Result<FencingToken> {
        self.opened()?.mark().await
    }

    async fn raise(&self, number: FencingToken) -> Result<()> {
        self.opened()?.raise(number).await
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("postgres")
            .fencing(Fencing::SurvivesDataLoss)
            .fairness(Fairness::Strict)
            .pushed_wake(self.0.is_rung())
            .ttl(entry::MIN_TTL, Duration::from_millis(1))
            .recovery(Duration::from_millis(250))
            .atomic_multi(AT_ONCE)
            .min_hold_outlives_process(true)
            .raises(entry::RAISES)
            .notes(NOTES)
            .warnings(self.0.warnings.clone())
    }

    fn observe(&self, name: &Name) -> Subscription {
        self.0.observe(name)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.0.notifier)
    }

    /// Rings who is the next of what was released, and closes the connections. There are no sessions: what is still held ends with its lease.
    async fn close(&self) -> Result<()> {
        self.0.close().await;
        Ok(())
    }
}

const NOTES: &str = "\
Exclusion holds while the server keeps its data, and its clock does not step forward: after a failover to an asynchronous replica, a \
restore, or a crash with fsync off, two may hold at once, and only the token tells them apart. Writes under held() in the same database are \
never stale but for those. Tokens rise with the server's clock: after a loss of data too, unless that clock is behind the last lost grant. \
A holder whose transaction under held() is open keeps the lock for up to one TTL longer.";
