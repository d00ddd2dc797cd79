//! The etcd store of Leasehold: locks are keys under a session's lease, in the layout of Go's
//! `concurrency.Mutex`.
//!
//! ```no_run
//! # async fn example() -> leasehold_core::Result<()> {
//! let etcd = leasehold_etcd::Etcd::connect("etcd://10.0.0.1:2379,10.0.0.2:2379/prod").await?;
//! # Ok(()) }
//! ```
//!
//! # Layout, for operators and for other tools
//!
//! A lock named `orders/42` in the namespace `prod` is the queue of all keys that begin with
//! `prod/orders%2F42/`, ordered by create_revision. The first key holds, and so do the keys behind
//! it that share with it. `etcdctl lock`, `etcdctl elect`, Go's `concurrency.Mutex` and `Election`
//! wait in the same queue if they are given `prod/orders%2F42` as their name. In a name `/` is
//! written `%2F` and `%` is written `%25`, because for these tools every key below `a/` belongs to
//! the queue of `a`, even `a/b/…`. For the same reason a namespace must not lie inside a lock: do
//! not use `prod` as a namespace and as the name of a lock without one.
//!
//! The value of a key is the label, or a candidate's value, and a last line with the time at which
//! the place was taken. That line also has a mode that is not exclusive (`shared`, or `2/5` for two
//! of five permits), or `turns` if the release before the place is to name it. Other tools do not
//! know these modes. They wait until all keys of this library before them are gone, even readers;
//! and an entry of theirs is exclusive to this library.
//!
//! The fencing tokens of a hold are `create_revision << 8` and the 255 numbers behind it. An etcd
//! transaction can check a token by itself: see [`Etcd::still_holds`]. If tokens were raised
//! ([`TokenFloor::raise`]), the key `prod/%base` has the number of create_revisions by which they
//! are raised, and the value of each key that was created since ends in it: ` +<by>`.
//!
//! That the work of `orders/42` is done is the key `prod/%done/orders%2F42`, which lies in no
//! queue. It has a lease of its own, which is never renewed and lasts for the keep and a second; or
//! none, if it is kept for ever. Its value begins with the number of the fire.
//!
//! # Cost
//!
//! With a live session a claim is one request and a release is one; the next holder is notified by
//! its watch and sends none. The cost of a hand-over does not grow with the number of waiting
//! clients: in a long queue the release names the next holder. A `try` to share a held lock is two
//! requests, and more while others come at the same moment. A claim that may share reads the whole
//! queue with its request, an exclusive one reads the first entry. A session is one lease for each
//! TTL in use. One keep-alive renews all its holders and waiters, and one more request for each 128
//! of them reads whether their keys are there.
//!
//! # For operators
//!
//! * Each acquisition and each release is a revision, which etcd keeps until it is compacted: run
//!   it with `--auto-compaction-retention`.
//! * A restore from a backup turns revisions back, and with them tokens: restore with
//!   `--bump-revision`, so that a later hold has a greater token than any before. A holder whose
//!   key is not in the backup learns of its loss at its next renewal, and so does one whose key was
//!   deleted by hand.
//! * An eviction leaves a note under the evicted holder's lease for as long as that lives: under a
//!   long lease they pile up.
//! * A restart of the server, and each new leader, begins the lease of each record that work is
//!   done anew: the record counts longer than was asked for.
//! * A server that is full (alarm `NOSPACE`) still releases and evicts, without the note; a claim,
//!   a downgrade and a proclamation are refused as `Unavailable`, and leave everything as it was.
//! * Servers before 3.4.30 and 3.5.12 revoke live leases when a leader wakes that was stopped for
//!   longer than they last (etcd#15247): two clients hold then, until the renewal of the first. A
//!   woken leader, or one that is about to revoke a lease, may answer a keep-alive as if it counted
//!   (etcd#15247, #14758, #20590, #21389). That does no harm, because each renewal verifies the
//!   keys.
//! * Leave lease checkpoints (`--experimental-enable-lease-checkpoint`) off, which is the default,
//!   if TTLs are longer than five minutes: with them a lease may end sooner than was promised after
//!   a change of the leader.
//! * Every change of users or roles makes signed tokens (`--auth-token=jwt`) old; clients
//!   authenticate anew, once each.

mod claim;
pub mod client;
mod completion;
mod config;
mod entry;
mod error;
mod evict;
mod fence;
mod inspect;
mod names;
mod observe;
mod release;
mod renew;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, ClaimedAll, Complete, Completed, Completions, LeaseRef, Notifier,
    Place, Raises, Renewal, Subscription, TokenFloor, async_trait,
};
use leasehold_core::support::Background;
use leasehold_core::{
    Completion, Fairness, Fencing, FencingToken, Guarantees, LockQueue, Name, Result, StoreId,
};

use crate::claim::shared::Shared;
pub use crate::config::Config;
use crate::fence::raise::RAISES;
#[cfg(feature = "tls-no-provider")]
pub use leasehold_net::Tls;

/// The number of names in one transaction: a server in its default configuration lets it compare
/// 128 things.
const AT_ONCE: usize = 100;

/// An etcd cluster as a store of locks.
///
/// Needs a tokio runtime, and any runtime may use it: each connection and the watch live in one of
/// them, and another one makes them anew if that one ends or is not driven any more. When the store
/// is dropped its leases run out; [`Backend::close`] ends them at once.
pub struct Etcd(Arc<Shared>, Background);

impl Etcd {
    /// Connects to
    /// `etcd://[user:password@]host[:port][,host[:port]…][/namespace][?timeout=ms&discover=true]`:
    /// see [`Config::from_url`].
    ///
    /// # Errors
    ///
    /// Those of [`Config::from_url`] and [`with_config`](Etcd::with_config).
    pub async fn connect(url: &str) -> Result<Etcd> {
        Etcd::with_config(Config::from_url(url)?).await
    }

    /// Connects as the configuration says. All endpoints are asked at once: the cluster that most
    /// of them belong to is used, and none of another one. The connected endpoint is asked for its
    /// version and its alarms; their consequences for locks are [`Guarantees::warnings`].
    ///
    /// # Errors
    ///
    /// Within three seconds: [`Invalid`](leasehold_core::ErrorKind::Invalid) for a bad
    /// configuration, [`Unavailable`](leasehold_core::ErrorKind::Unavailable) when no endpoint
    /// answers, [`OtherStore`](leasehold_core::ErrorKind::OtherStore) when as many belong to one
    /// cluster as to another, or none to the one that is pinned,
    /// [`Denied`](leasehold_core::ErrorKind::Denied) for a user that etcd does not let in. Over
    /// TLS, at most a time-out later, `Invalid` also for a file that is missing or wrong, and
    /// `Denied` if a server's certificate or this client's is refused.
    pub async fn with_config(config: Config) -> Result<Etcd> {
        config.check()?;
        let config = Box::pin(config.discovered()).await?;
        let shared = Arc::new(Shared::new(config));
        Box::pin(shared.cluster.connect()).await?;
        let watching = shared.clone();
        let background = Background::new(move |anew| watching.clone().watch(anew));
        background.here();
        Ok(Etcd(shared, background))
    }

    /// Uses a client that the program has, with its endpoints, its user and its TLS. It stays the
    /// program's, and is never closed; closing this store ends its own leases. It is asked once, so
    /// an error of its user or its rights is reported now. A store that is connected by a URL fails
    /// over sooner. [`Config::with_client`] lists the options to build such a client with, and has
    /// a namespace and a time-out, too.
    ///
    #[cfg_attr(any(feature = "tls-aws-lc", feature = "tls-ring"), doc = "```")]
    #[cfg_attr(
        not(any(feature = "tls-aws-lc", feature = "tls-ring")),
        doc = "```ignore"
    )]
    /// # use leasehold_testbed::{Certificates, Etcd as Server, EtcdOptions, TlsPort};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let authority = Certificates::new()?;
    /// # let port = TlsPort::new(&authority)?.mutual();
    /// # let server = Server::start_with(&EtcdOptions { tls: Some(port.clone()), ..EtcdOptions::default() }).await?;
    /// # let (url, files) = (format!("https://{}", port.addr()), authority.issue("client")?);
    /// # let (ca, certificate, key) =
    /// #     (std::fs::read(authority.ca())?, std::fs::read(files.certificate)?, std::fs::read(files.key)?);
    /// use leasehold_core::Store;
    /// use leasehold_etcd::Etcd;
    /// use leasehold_etcd::client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
    ///
    /// // The program's own, with its TLS.
    /// let tls = TlsOptions::new()
    ///     .ca_certificate(Certificate::from_pem(ca))
    ///     .identity(Identity::from_pem(certificate, key));
    /// let client = Client::connect([url], Some(ConnectOptions::new().with_tls(tls))).await?;
    ///
    /// let store = Store::new(Etcd::with_client(client).await?);
    /// let guard = store.lock("orders/42").acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// [`client`] is the crate `etcd-client` in the version that this store uses; a client of another version of it does not fit.
    ///
    /// # Errors
    ///
    /// Those of [`with_config`](Etcd::with_config).
    pub async fn with_client(client: client::Client) -> Result<Etcd> {
        Etcd::with_config(Config::with_client(client)).await
    }

    /// The shared state of all operations. This runtime watches from now on if no other does.
    fn used(&self) -> &Arc<Shared> {
        self.1.here();
        &self.0
    }

    /// The shared state of all operations, unless the client was closed.
    fn opened(&self) -> Result<&Arc<Shared>> {
        self.0.cluster.open().map(|()| self.used())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.0.cluster.shut();
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({:?})", self.0.cluster.config)
    }
}

#[async_trait]
impl Backend for Etcd {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.used().claim(claim).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.used().claim_all(claims).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        Ok(self.used().renew(leases).await)
    }

    fn renew_batch(&self) -> usize {
        usize::MAX
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        Ok(self.used().release(&claim.name, claim.id).await?)
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

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("etcd")
            .with_fencing(Fencing::WhileDataLives)
            .with_fairness(Fairness::Strict)
            .with_pushed_wake(true)
            .with_ttl(Duration::from_secs(2), Duration::from_secs(1))
            .with_recovery(Duration::from_secs(2))
            .with_atomic_multi(AT_ONCE)
            .with_min_hold_outlives_process(true)
            .with_once(true)
            .with_notes(
                "A restore from a backup may turn revisions, and so tokens, back. The server raises a TTL to 1.5 times its \
                 election timeout; a new leader extends every lease by its TTL. All locks of one client and TTL share one \
                 lease, and are lost with it. What is left of a min_hold lasts whole seconds, rounded up. Servers before \
                 3.4.30 and 3.5.12 may revoke live leases when a stopped leader wakes (etcd#15247): the holder learns it at \
                 its next renewal.",
            )
            .with_warnings(self.0.cluster.warnings.get().cloned().unwrap_or_default())
    }

    fn identity(&self) -> Option<StoreId> {
        self.0.cluster.identity.id()
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        Some(self)
    }

    fn completions(&self) -> Option<&dyn Completions> {
        Some(self)
    }

    fn observe(&self, name: &Name) -> Subscription {
        self.used().observe(name)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.0.notifier)
    }

    async fn close(&self) -> Result<()> {
        self.0.leases_ended().await;
        self.0.sessions.close(|session| self.0.lose(session)).await
    }
}

#[async_trait]
impl Completions for Etcd {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        self.used().complete(claim, request).await
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
}

#[async_trait]
impl TokenFloor for Etcd {
    fn raises(&self) -> Raises {
        RAISES
    }

    async fn mark(&self) -> Result<FencingToken> {
        self.opened()?.mark().await
    }

    async fn raise(&self, number: FencingToken) -> Result<()> {
        self.opened()?.raise(number).await
    }
}
