//! The ZooKeeper store of Leasehold: Curator's lock recipe, on sessions whose liveness is verified
//! by writes.
//!
//! # Layout
//!
//! Under the root node (the URL's path, or `/leasehold`) each lock is a container node. Its name is
//! that of the lock, with `/`, `%`, control characters, everything outside ASCII and a leading dot
//! percent-encoded. The queue of the lock is the container's ephemeral sequential children, in the
//! order of their numbers: `_c_<uuid>-lock-<number>` for an exclusive entry (a lock, or the write
//! side of a read-write lock), `_c_<uuid>-shared-lock-<number>` for a reader,
//! `_c_<uuid>-1of3-lock-<number>` for one of three permits. A downgrade is written into the node.
//! The first entry is created together with its container, and removes it if it is still the only
//! one. Otherwise ZooKeeper removes the container by itself, about a minute after its last use.
//!
//! # With other tools
//!
//! Curator's `InterProcessMutex` on the same path (`/leasehold/orders%2F42` for the lock
//! `orders/42`) is in the same queue, and so is kazoo's `Lock` with
//! `extra_lock_patterns=["-lock-"]`: they wait for all entries of this library, whatever the mode,
//! and its entries wait for theirs. **Either of the two, never both**: they do not see each other.
//! Both compare the numbers as they are written. For them this ends when ZooKeeper has counted 2³¹
//! − 1 entries of one lock, and gives all later ones the same number; this library then uses the
//! order of the transactions that created the entries.
//!
//! kazoo's `ReadLock` and `WriteLock`, with the same pattern, are kept out by all entries of this
//! library. Its entries are kept out by kazoo's write locks, and its readers share with kazoo's
//! read locks. Curator's `InterProcessReadWriteLock` reads only nodes that are named as its own
//! are: **it does not see the entries of this library**. No name can be a lock to it and to
//! `InterProcessMutex` alike: each takes the text after its own word for the number.
//!
//! # The recipe
//!
//! Burrows' sequencer and Hunt et al., *ZooKeeper: wait-free coordination for internet-scale
//! systems* (USENIX ATC 2010), 2.4: an entry holds if no entry before it conflicts with it. Every
//! other entry watches the entries that must end first: the nearest that conflicts, or, for
//! permits, as many of the nearest as there are permits. A lock that is free costs two requests
//! (create, delete), one that is waited for three more (list, watch, and list again), and a release
//! wakes one waiter. An entry that waits for long reads the entries that it waits for, and writes
//! nothing.
//!
//! # Work that is done once
//!
//! A completion is a persistent node at `.leasehold/done/<folder>/<name>` below the root, written
//! by the transaction that deletes the entry of its hold.

mod claim;
mod client;
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

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, LeaseRef, Notifier, Place, Raises,
    Renewal, Subscription, TokenFloor, async_trait,
};
use leasehold_core::{
    Completion, Fairness, Fencing, FencingToken, Guarantees, LockQueue, Name, Result, StoreId,
};

use crate::claim::table::Claims;
use crate::client::Sessions;
pub use crate::config::Config;
use crate::fence::raise::RAISES;
#[cfg(feature = "tls-no-provider")]
pub use leasehold_net::Tls;
#[doc(no_inline)]
pub use zookeeper_client;

/// A client of ZooKeeper. Clones are the same client. When the last one is dropped, its sessions
/// are closed, and all locks that were held through them are free.
///
/// Locks with the same TTL share one session, so they also share its end. Beyond eight TTLs in use,
/// further ones are rounded up to a power of two, in seconds, and share: a server takes 60
/// connections of a host by default (`maxClientCnxns`). The server decides how long a session lives
/// without being heard of: between two and twenty of its ticks (4 s and 40 s by default), whatever
/// the TTL is. Leases are then as long as the session.
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    sessions: Arc<Sessions<Claims>>,
}

impl ZooKeeper {
    /// Connects to
    /// `zookeeper://[user:password@]host[:port][,host[:port]…][/path][?timeout=milliseconds]`, or
    /// over TLS to `zookeepers://…`: see [`Config::from_url`].
    ///
    /// # Errors
    /// [`Invalid`](leasehold_core::ErrorKind::Invalid) for the URL,
    /// [`Unavailable`](leasehold_core::ErrorKind::Unavailable) within three seconds if no server
    /// can be reached, [`Unsupported`](leasehold_core::ErrorKind::Unsupported) before ZooKeeper
    /// 3.6, [`Denied`](leasehold_core::ErrorKind::Denied) if it refuses. ZooKeeper does not check a
    /// *digest* password: a wrong one fails at the first use of a node that was created with
    /// another one. Over TLS, at most a time-out later, `Invalid` also for a file that is missing
    /// or wrong, and `Denied` if a server's certificate or this client's is refused.
    pub async fn connect(url: &str) -> Result<ZooKeeper> {
        ZooKeeper::with_config(Config::from_url(url)?).await
    }

    /// Connects as the configuration says. The errors are those of [`connect`](ZooKeeper::connect).
    ///
    /// A ready client cannot take the place of the configuration: one client of ZooKeeper is one
    /// session with one timeout, and this store needs a session for each TTL. A connector can: see
    /// [`with_connector`](ZooKeeper::with_connector).
    pub async fn with_config(config: Config) -> Result<ZooKeeper> {
        let sessions = Arc::new(Sessions::new(config.checked()?));
        sessions.connect().await?;
        Ok(ZooKeeper { sessions })
    }

    /// Connects as the program does, with the credentials, the TLS and the SASL of its connector:
    /// see [`Config::with_connector`]. The errors are those of [`connect`](ZooKeeper::connect).
    ///
    #[cfg_attr(feature = "tls-no-provider", doc = "```")]
    #[cfg_attr(not(feature = "tls-no-provider"), doc = "```ignore")]
    /// # use leasehold_testbed::{Certificates, TlsPort, ZooKeeper as Server, ZooKeeperOptions};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let authority = Certificates::new()?;
    /// # let port = TlsPort::new(&authority)?.mutual();
    /// # let options = ZooKeeperOptions { tls: Some(port.clone()), ..ZooKeeperOptions::default() };
    /// # let server = Server::start_with(&options).await?;
    /// # let (servers, files) = (format!("tcp+tls://{}", port.addr()), authority.issue("client")?);
    /// # let read = std::fs::read_to_string::<&std::path::Path>;
    /// # let (ca, certificate, key) = (read(authority.ca())?, read(&files.certificate)?, read(&files.key)?);
    /// use leasehold_core::Store;
    /// use leasehold_zookeeper::ZooKeeper;
    /// use leasehold_zookeeper::zookeeper_client::{Client, TlsOptions};
    ///
    /// // The program's own, with its TLS and its credentials.
    /// let tls = TlsOptions::new().with_pem_ca(&ca)?.with_pem_identity(&certificate, &key)?;
    /// let connector = Client::connector().with_tls(tls).with_auth("digest", b"me:secret");
    ///
    /// let store = Store::new(ZooKeeper::with_connector(&servers, connector).await?);
    /// let guard = store.lock("orders/42").acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// [`zookeeper_client`] is that crate in the version that this store uses; a connector of another version of it does not fit.
    pub async fn with_connector(
        servers: &str,
        connector: zookeeper_client::Connector,
    ) -> Result<ZooKeeper> {
        ZooKeeper::with_config(Config::with_connector(servers, connector)).await
    }

    /// Executes a verb. If no server can be used, its error says why.
    async fn explained<R>(&self, verb: impl Future<Output = Result<R>>) -> Result<R> {
        match verb.await {
            Err(e) => Err(self.sessions.explained(e).await),
            done => done,
        }
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.explained(async {
            let session = self.sessions.with_ttl(claim.ttl).await?;
            claim::claim(&session, claim).await
        })
        .await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        Ok(renew::renew(&self.sessions, leases).await)
    }

    fn renew_batch(&self) -> usize {
        usize::MAX
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        let Some(session) = self.sessions.live(claim.ttl) else {
            return Ok(()); // its session has ended, and so has its entry
        };
        self.explained(async {
            let released = session.limited(release::release(&session, claim.id)).await;
            released.map_err(|e| session.config.writing(e))
        })
        .await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        self.explained(async {
            let session = self.sessions.any().await?;
            let queue = session.limited(inspect::inspect(&session, name)).await;
            queue.map_err(|e| session.config.reading(e))
        })
        .await
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.explained(async {
            let session = self.sessions.any().await?;
            let listed = inspect::list(&session, prefix, after, limit);
            let listed = session.limited(listed).await;
            listed.map_err(|e| session.config.reading(e))
        })
        .await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.explained(async {
            let session = self.sessions.any().await?;
            let evicted = session.limited(evict::evict(&session, name, token)).await;
            evicted.map_err(|e| session.config.writing(e))
        })
        .await
    }

    fn observe(&self, name: &Name) -> Subscription {
        observe::observe(&self.sessions, name)
    }

    fn identity(&self) -> Option<StoreId> {
        self.sessions.config.identity.id()
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("zookeeper")
            .with_fencing(Fencing::WhileDataLives)
            .with_fairness(Fairness::Strict)
            .with_pushed_wake(true)
            .with_ttl(Duration::from_millis(400), Duration::from_millis(1))
            .with_recovery(Duration::from_secs(4))
            .with_once(true)
            .with_notes(
                "Leases are sessions: the server rounds a ttl to between 2 and 20 of its ticks (by default 4 s to 40 s), and \
                 frees a dead holder's lock up to two ticks after it. Beyond eight ttls in use, further ones are rounded up to \
                 a power of two, in seconds. Fast is fair. Curator's InterProcessMutex, and kazoo's \
                 locks told to look for \"-lock-\", on the same path stand in the same queue; Curator's \
                 InterProcessReadWriteLock does not see it.",
            )
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        Some(self)
    }

    fn completions(&self) -> Option<&dyn Completions> {
        Some(self)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.sessions.notifier)
    }

    async fn close(&self) -> Result<()> {
        self.sessions.close().await;
        Ok(())
    }
}

#[async_trait]
impl TokenFloor for ZooKeeper {
    fn raises(&self) -> Raises {
        RAISES
    }

    async fn mark(&self) -> Result<FencingToken> {
        self.explained(async {
            let session = self.sessions.any().await?;
            let mark = session.limited(fence::raise::mark(&session)).await;
            mark.map_err(|e| session.config.reading(e))
        })
        .await
    }

    async fn raise(&self, number: FencingToken) -> Result<()> {
        RAISES.check(Some(number))?;
        self.explained(async {
            let session = self.sessions.any().await?;
            let raised = session.limited(fence::raise::raise(&session, number)).await;
            raised.map_err(|e| session.config.writing(e))
        })
        .await
    }
}

#[async_trait]
impl Completions for ZooKeeper {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        self.explained(async {
            let session = self.sessions.with_ttl(claim.ttl).await?;
            completion::complete(&session, claim, request).await
        })
        .await
    }

    async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        self.explained(async {
            let session = self.sessions.any().await?;
            let read = session
                .limited(completion::completion(&session, name))
                .await;
            read.map_err(|e| session.config.reading(e))
        })
        .await
    }

    async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.explained(async {
            let session = self.sessions.any().await?;
            let forgotten = session.limited(completion::forget(&session, name, token));
            forgotten.await.map_err(|e| session.config.writing(e))
        })
        .await
    }

    async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        self.explained(async {
            let session = self.sessions.any().await?;
            let listed = completion::list(&session, prefix, after, limit);
            let listed = session.limited(listed).await;
            listed.map_err(|e| session.config.reading(e))
        })
        .await
    }
}
