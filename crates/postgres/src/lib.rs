//! The PostgreSQL store of Leasehold: it keeps leases in tables, and functions in the database take and
//! release them.
//!
//! ```no_run
//! # async fn example() -> leasehold_core::Result<()> {
//! let postgres = leasehold_postgres::Postgres::connect("postgres://app:secret@10.0.0.1/orders").await?;
//! # Ok(()) }
//! ```
//!
//! # Transactions under a lock
//!
//! [`HELD`] is a statement for a transaction of your own in the same database: the writes of that
//! transaction are committed before the next holder begins, or not at all. [`DONE`] is one for work
//! that is done once: that it is done is committed with its effects.
//!
//! # Layout, for operators
//!
//! The schema is `leasehold` unless another is configured; each schema is a store of its own. The
//! table `lines` has a row for each name in use, `place` has one for each holder and each waiter, and
//! `completion` one for each name whose work is done once; the tables `observer` and `meta` have few
//! rows. [`migration`] returns the SQL of all of it. Each
//! verb is one call of a function: one statement, one round trip, one transaction at
//! `READ COMMITTED`. It depends on no state of its session, not even on a prepared statement, so a
//! pooler in transaction mode may stand between client and server, or be added later. Leases end by
//! the server's clock.
//!
//! # Cost
//!
//! A claim is one request, and so is a release. After a release for which another client waits, one
//! more request notifies exactly that client; the release does not wait for it. A refused try
//! writes nothing. One request renews up to a thousand places of a client. The cost of a hand-over
//! does not grow with the number of waiters. The verbs of one name are executed one after the
//! other.

mod claim;
pub mod client;
mod completion;
mod config;
mod entry;
mod error;
mod evict;
mod fence;
mod inspect;
mod observe;
pub mod pool;
mod release;
mod renew;
mod scripts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, ClaimedAll, Complete, Completed, Completions, LeaseRef, Notifier,
    Place, Raises, Renewal, Subscription, TokenFloor, async_trait,
};
use leasehold_core::{
    Completion, Error, ErrorKind, Fairness, Fencing, FencingToken, Guarantees, LockQueue, Name,
    Result, StoreId,
};
use tokio::runtime::Handle;

use crate::claim::shared::Shared;
pub use crate::config::{Config, PoolOptions};
pub use crate::fence::{ALREADY_DONE, DONE, Done, HELD, LOST, PASSED_ON, StillHolds, done, held};
use crate::pool::ConnectionPool;
pub use crate::scripts::migration;
#[cfg(feature = "tls-no-provider")]
pub use leasehold_net::Tls;

/// The number of names that one step takes at most.
const AT_ONCE: usize = 100;

/// A PostgreSQL database as a store of locks.
///
/// It needs a tokio runtime, and any runtime may use it. Its connections are its own, unless it
/// borrows them from [a pool of the program](Postgres::with_pool): in each runtime that uses it
/// those of the verbs ([`Config::connections`]) and up to two more for renewals, and one for
/// notifications in one of them. If the server accepts no more, one connection suffices for
/// everything. A runtime that ends, or is not driven any more, takes only its own connections along.
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

    /// Connects with this configuration: it reads the server's settings, installs the schema if it
    /// is missing and may be installed, and tests whether notifications arrive.
    /// [`Guarantees::warnings`] say what the settings mean for locks. If notifications do not
    /// arrive, as behind a pooler in transaction mode, waiters poll, and a warning says so.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a bad configuration, and for a database that does not
    /// exist; [`Unavailable`](ErrorKind::Unavailable) if no server that accepts writes answers;
    /// [`Denied`](ErrorKind::Denied) for a user, a password or rights;
    /// [`Unsupported`](ErrorKind::Unsupported) for a server before 12, a database that is not
    /// encoded in UTF-8, and a schema that is missing and may not be installed: the message names
    /// the command. [`NoRuntime`](ErrorKind::NoRuntime) outside of a tokio runtime. Over TLS also `Invalid` for a file that is missing or wrong, and `Denied` if
    /// the server's certificate is refused, or the client's.
    pub async fn with_config(config: Config) -> Result<Postgres> {
        Postgres::over(config, None).await
    }

    /// Connects over a pool that the program has already: it borrows one connection of the pool, and
    /// keeps it for as long as it holds or waits for a lock, and ten seconds longer, so that renewals
    /// do not wait for the program's own work. It borrows others for one request each, at most
    /// [`PoolOptions::connections`] at once. With several runtimes this applies to each of them that
    /// uses the client.
    ///
    /// Nothing is left in a session. Each borrowed connection is checked first: one that leads to
    /// another database or to a standby, that has another role than the first one (`SET ROLE`), or
    /// that may not write (`default_transaction_read_only`), goes back, and one in which a
    /// transaction was left open is closed. A connection on which a request was not answered is
    /// closed too. One whose session ended a request by its `statement_timeout` is kept only if no other is there. A pool
    /// lends no connection for notifications, so waiters poll unless [`PoolOptions::listen`] names
    /// the server.
    ///
    /// Close this client before the pool. The module [`pool`] has the kinds of pools, and the trait
    /// for others.
    ///
    #[cfg_attr(feature = "deadpool", doc = "```no_run")]
    #[cfg_attr(not(feature = "deadpool"), doc = "```ignore")]
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use deadpool_postgres::{Manager, Pool};
    /// use leasehold_core::Store;
    /// use leasehold_postgres::client::{Config, NoTls};
    /// use leasehold_postgres::{PoolOptions, Postgres};
    ///
    /// let server: Config = "postgres://app:secret@10.0.0.1/orders".parse()?;
    /// let pool = Pool::builder(Manager::new(server, NoTls)).max_size(8).build()?;
    ///
    /// let store = Store::new(Postgres::with_pool(pool.clone(), PoolOptions::new()).await?);
    /// let guard = store.lock("orders/42").acquire().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`with_config`](Postgres::with_config). A pool that lends no connection within the
    /// [`timeout`](PoolOptions::timeout), or that is closed, is
    /// [`Unavailable`](ErrorKind::Unavailable), also of later requests that find the kept connection
    /// in use or at its end; the message names the pool.
    pub async fn with_pool(pool: impl ConnectionPool, options: PoolOptions) -> Result<Postgres> {
        Postgres::over(options.into(), Some(Arc::new(pool))).await
    }

    async fn over(config: Config, lender: Option<Arc<dyn ConnectionPool>>) -> Result<Postgres> {
        config.check()?;
        Handle::try_current().map_err(|_| {
            Error::new(
                ErrorKind::NoRuntime,
                "a store on PostgreSQL connects only inside a tokio runtime",
            )
        })?;
        Box::pin(Shared::connect(config, lender))
            .await
            .map(Postgres)
    }

    /// Returns the state that the verbs share, or an error if the client was closed.
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
        let schema = &self.0.config.schema;
        write!(f, "Postgres({:?}, schema {schema})", self.0.pool)
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

    async fn release_after(
        &self,
        claim: &Claim,
        _place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
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

    fn identity(&self) -> Option<StoreId> {
        self.0.config.server.identity.id()
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("postgres")
            .with_fencing(Fencing::SurvivesDataLoss)
            .with_fairness(Fairness::Strict)
            .with_pushed_wake(self.0.hearing.arrive())
            .with_ttl(entry::MIN_TTL, Duration::from_millis(1))
            .with_recovery(Duration::from_millis(250))
            .with_atomic_multi(AT_ONCE)
            .with_min_hold_outlives_process(true)
            .with_once(true)
            .with_once_in_transaction(true)
            .with_connections(Some(self.0.connections()))
            .with_notes(NOTES)
            .with_warnings(self.0.warnings())
    }

    fn completions(&self) -> Option<&dyn Completions> {
        Some(self)
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        Some(self)
    }

    fn observe(&self, name: &Name) -> Subscription {
        self.0.observe(name)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.0.notifier)
    }

    /// Sends the notifications of releases that are still due, and closes the connections. The
    /// server keeps no sessions, so the leases of locks that are still held run out.
    async fn close(&self) -> Result<()> {
        self.0.close().await;
        Ok(())
    }
}

#[async_trait]
impl TokenFloor for Postgres {
    fn raises(&self) -> Raises {
        entry::RAISES
    }

    async fn mark(&self) -> Result<FencingToken> {
        self.opened()?.mark().await
    }

    async fn raise(&self, number: FencingToken) -> Result<()> {
        self.opened()?.raise(number).await
    }
}

#[async_trait]
impl Completions for Postgres {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        self.opened()?.complete(claim, request).await
    }

    async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        self.opened()?.completion(name).await
    }

    async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.opened()?.forget(name, token).await
    }

    async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        self.opened()?.list_completions(prefix, after, limit).await
    }

    /// The hold of the claim ends with the answer, unless a transaction keeps it.
    async fn recorded(&self, claim: &Claim, token: FencingToken) -> Result<Option<Completion>> {
        self.opened()?.recorded(claim, token).await
    }
}

const NOTES: &str = "\
Exclusion holds while the server keeps its data, and its clock does not step forward: after a failover to an asynchronous replica, a \
restore, or a crash with fsync off, two may hold at once, and only the token tells them apart. Writes under held() in the same database are \
never stale but for those, and work that is done once is done again after those. Tokens rise with the server's clock: after a loss of data too, unless that clock is behind the last lost grant. \
A holder whose transaction under held() is open keeps the lock for up to one TTL longer.";
