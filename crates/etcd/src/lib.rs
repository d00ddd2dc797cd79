//! The etcd store of Leasehold: locks are keys under a session's lease, in the layout of Go's `concurrency.Mutex`.
//!
//! ```no_run
//! # async fn example() -> leasehold_core::Result<()> {
//! let etcd = leasehold_etcd::Etcd::connect("etcd://10.0.0.1:2379,10.0.0.2:2379/prod").await?;
//! # Ok(()) }
//! ```
//!
//! # Layout, for operators and for other tools
//!
//! A lock named `orders/42` in the namespace `prod` is the queue of all keys that begin with `prod/orders%2F42/`, by
//! create_revision: the first one holds, and those behind it that share with it. `etcdctl lock`, `etcdctl elect`, Go's
//! `concurrency.Mutex` and `Election` wait in the same queue if they are given `prod/orders%2F42` as their name: in a name
//! `/` is written `%2F` and `%` is written `%25`, because every key below `a/` belongs to the queue of `a` for them, `a/b/…`
//! too. For the same reason a namespace must not lie inside a lock: do not use `prod` as a namespace and as the name of a
//! lock without one.
//!
//! The value of a key is the label, or a candidate's value, and a last line with the time at which the place was taken and
//! a mode that is not exclusive: `shared`, or `2/5` for two of five permits; or `turns`, if the release before it is to name it.
//! Other tools know no such modes. They wait until all of ours before them are gone, also readers; and an entry of theirs is
//! exclusive to us.
//!
//! The fencing token of a hold is `create_revision << 8`, and the 255 numbers behind it. An etcd transaction can check it
//! by itself: see [`Etcd::still_holds`]. Where tokens were raised ([`Backend::raise`]), the key `prod/%base` says by how many
//! create_revisions, and so does the value of each key that was created since: ` +<by>` at its end.
//!
//! # Cost
//!
//! With a live session a claim is one request and a release is one; the next holder is notified by its watch and sends
//! none. What a hand-over costs does not grow with the clients that wait: in a long queue the release names the next one. A `try`
//! to share what others hold is two, and more while others come at the same moment. A claim that may share reads the whole
//! queue with its request, an exclusive one the first entry. A session is one lease for each TTL in use, renewed by one
//! keep-alive for all that is held and waited for, and one more request for each 128 of them, which reads whether they are there.
//!
//! # For operators
//!
//! * Each acquisition and each release is a revision, which etcd keeps until it is compacted: run it with
//!   `--auto-compaction-retention`.
//! * A restore from a backup turns revisions back, and with them tokens: restore with `--bump-revision`, so that a later hold has
//!   a greater token than any before. A holder whose key is not in the backup learns of its loss at its next renewal, and so does
//!   one whose key was deleted by hand.
//! * An eviction leaves a note under the evicted holder's lease, as long as that lives: under a long lease they pile up.
//! * A server that is full (alarm `NOSPACE`) still releases and evicts, without the note; a claim, a downgrade and a
//!   proclamation are refused as `Unavailable`, and leave everything as it was.
//! * Servers before 3.4.30 and 3.5.12 revoke live leases when a leader wakes that was stopped for longer than they last
//!   (etcd#15247): two hold then, until the renewal of the first. That a woken leader, or one that is about to revoke a lease,
//!   answers a keep-alive as if it counted (etcd#15247, #14758, #20590, #21389) does no harm: each renewal verifies the keys.
//! * Leave lease checkpoints (`--experimental-enable-lease-checkpoint`) off, as they are shipped, if TTLs are longer than five
//!   minutes: after a change of the leader a lease may end sooner than was promised with them.
//! * Every change of users or roles makes signed tokens (`--auth-token=jwt`) old; clients authenticate anew, once each.

mod claim;
pub mod client;
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

use leasehold_core::seam::{
    Backend, Claim, Claimed, ClaimedAll, LeaseRef, Notifier, Place, Renewal, Subscription, async_trait,
};
use leasehold_core::{Fairness, Fencing, FencingToken, Guarantees, LockQueue, Name, Result};

use crate::claim::shared::Shared;
pub use crate::config::Config;
use crate::fence::raise::RAISES;
#[cfg(feature = "tls")]
pub use leasehold_tls::Tls;

/// How many names one transaction takes: a server that is configured as it is shipped lets it compare 128 things.
const AT_ONCE: usize = 100;

/// An etcd cluster as a store of locks.
///
/// Needs a tokio runtime, and the one in which it was connected must live as long as it does. When it is dropped its
/// leases run out; [`Backend::close`] ends them at once.
pub struct Etcd(Arc<Shared>);

impl Etcd {
    /// Connects to `etcd://[user:password@]host[:port][,host[:port]…][/namespace][?timeout=ms&discover=true]`: see [`Config::from_url`].
    ///
    /// # Errors
    ///
    /// Those of [`Config::from_url`] and [`with_config`](Etcd::with_config).
    pub async fn connect(url: &str) -> Result<Etcd> {
        Etcd::with_config(Config::from_url(url)?).await
    }

    /// Connects as the configuration says: all endpoints are tried, from one at random on, and none is waited for while another was not
    /// asked. The one that is connected to is asked for its version and its alarms: what they mean for locks are
    /// [`Guarantees::warnings`].
    ///
    /// # Errors
    ///
    /// Within three seconds: [`Invalid`](leasehold_core::ErrorKind::Invalid) for a bad configuration,
    /// [`Unavailable`](leasehold_core::ErrorKind::Unavailable) when no endpoint answers,
    /// [`Denied`](leasehold_core::ErrorKind::Denied) for a user that etcd does not let in. Over TLS, at most a time-out later,
    /// `Invalid` also for a file that is missing or wrong, and `Denied` if a server's certificate is refused, or ours.
    pub async fn with_config(config: Config) -> Result<Etcd> {
        config.check()?;
        let config = Box::pin(config.discovered()).await?;
        let shared = Arc::new(Shared::new(config));
        Box::pin(shared.cluster.connect()).await?;
        tokio::spawn(shared.clone().watch());
        Ok(Etcd(shared))
    }

    /// Uses a client that the program has, with its endpoints, its user and its TLS. It stays the program's, and is never closed; closing
    /// this store ends its own leases. It is asked once, so what is wrong with its user or its rights is said now. A store that is
    /// connected by a URL fails over sooner: what such a client should be built with is at [`Config::with_client`], which has a namespace
    /// and a time-out, too.
    ///
    #[cfg_attr(feature = "tls", doc = "```")]
    #[cfg_attr(not(feature = "tls"), doc = "```ignore")]
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
    /// let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca)).identity(Identity::from_pem(certificate, key));
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

    /// What the verbs share, unless the client was closed.
    fn opened(&self) -> Result<&Shared> {
        self.0.cluster.open().map(|()| &*self.0)
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
        self.0.claim(claim).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.0.claim_all(claims).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        Ok(self.0.renew(leases).await)
    }

    fn renew_batch(&self) -> usize {
        usize::MAX
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        Ok(self.0.release(&claim.name, claim.id).await?)
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
        Guarantees::none("etcd")
            .fencing(Fencing::WhileDataLives)
            .fairness(Fairness::Strict)
            .pushed_wake(true)
            .ttl(Duration::from_secs(2), Duration::from_secs(1))
            .recovery(Duration::from_secs(2))
            .atomic_multi(AT_ONCE)
            .min_hold_outlives_process(true)
            .raises(RAISES)
            .notes(
                "A restore from a backup may turn revisions, and so tokens, back. The server raises a TTL to 1.5 times its \
                 election timeout; a new leader extends every lease by its TTL. All locks of one client and TTL share one \
                 lease, and are lost with it. What is left of a min_hold lasts whole seconds, rounded up. Servers before \
                 3.4.30 and 3.5.12 may revoke live leases when a stopped leader wakes (etcd#15247): the holder learns it at \
                 its next renewal.",
            )
            .warnings(self.0.cluster.warnings.get().cloned().unwrap_or_default())
    }

    fn observe(&self, name: &Name) -> Subscription {
        self.0.observe(name)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.0.notifier)
    }

    async fn close(&self) -> Result<()> {
        self.0.sessions.close(|session| self.0.lose(session)).await
    }
}
