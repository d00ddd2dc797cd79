//! The front door: one concrete type for every store.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::api::election::Election;
use crate::api::lock::Lock;
use crate::api::multi::MultiLock;
use crate::api::options::options;
use crate::api::rw_lock::RwLock;
use crate::api::scope::Scope;
use crate::api::semaphore::Semaphore;
use crate::engine::client::Client;
use crate::seam::backend::Backend;
use crate::seam::claim::Mode;
use crate::seam::error::Result;
use crate::seam::guarantees::Guarantees;
use crate::seam::name::Name;
use crate::seam::token::FencingToken;
use crate::support::thread::OwnThread;

/// A store of locks: Redis, etcd, ZooKeeper, memory, or one of your own. Clones share one client.
///
/// Making one does no I/O and needs no runtime; every request needs tokio, with its timers enabled. What runs in the background
/// runs in one of the runtimes that use the store: when that one ends, or is not driven any more, another goes on. If no other
/// is driven, nothing is renewed: see [`Store::on_own_thread`].
///
/// One client keeps as many locks as its store renews within about half of their TTL, waits for the network included. Near that
/// ceiling `tracing` is told (`WARN`, target `leasehold`); see *the ceiling* in `docs/guarantees.md`.
///
/// When the last clone, guard, [`Held`](crate::Held) and [`Lost`](crate::Lost) are gone, so is the client.
#[derive(Clone)]
pub struct Store {
    scope: Scope,
}

options!(Store, scope.defaults);

impl Store {
    /// A store over this backend.
    pub fn new(backend: impl Backend) -> Store {
        Store::make(backend, fastrand::Rng::new(), None)
    }

    /// A store whose client and keeper live on a thread and a runtime of their own, where `make` is run: renewals go on
    /// while the program's own runtime is blocked. Without it a blocked runtime loses its locks, on time and visibly.
    ///
    /// The thread ends when the last clone and the last guard are gone and the background releases are done.
    pub async fn on_own_thread<B: Backend>(make: impl Future<Output = Result<B>> + Send + 'static) -> Result<Store> {
        let (thread, backend) = OwnThread::start(make).await?;
        Ok(Store::make(backend, fastrand::Rng::new(), Some(thread)))
    }

    /// The same with injected randomness, from which every jitter is drawn.
    pub fn with_random_seed(backend: impl Backend, seed: u64) -> Store {
        Store::make(backend, fastrand::Rng::with_seed(seed), None)
    }

    fn make(backend: impl Backend, random: fastrand::Rng, thread: Option<OwnThread>) -> Store {
        Store { scope: Scope::new(Client::new(Arc::new(backend), random, thread)) }
    }

    /// The same store, with every name inside `prefix/`. Namespaces nest; errors and lists show names without them. One with
    /// NUL is reported by the first request, as [`Invalid`](crate::ErrorKind::Invalid).
    #[must_use]
    pub fn namespace(mut self, prefix: &str) -> Store {
        self.scope.enter(prefix);
        self
    }

    /// The exclusive lock of this name.
    pub fn lock(&self, name: impl Into<Name>) -> Lock {
        Lock::new(self.scope.clone(), name.into(), Mode::Exclusive)
    }

    /// The lock of readers and writers of this name.
    pub fn rw_lock(&self, name: impl Into<Name>) -> RwLock {
        RwLock::new(self.scope.clone(), name.into())
    }

    /// The semaphore of this name. Everybody must say the same `permits`.
    pub fn semaphore(&self, name: impl Into<Name>, permits: u32) -> Semaphore {
        Semaphore::new(self.scope.clone(), name.into(), permits)
    }

    /// The election of this name.
    pub fn election(&self, name: impl Into<Name>) -> Election {
        Election::new(self.scope.clone(), name.into())
    }

    /// The exclusive locks of all these names, taken together.
    pub fn multi_lock<N: Into<Name>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(self.scope.clone(), names.into_iter().map(Into::into))
    }

    /// Names under `prefix` that are held or waited for, in byte order, after `after`, at most `limit`. The cost depends on
    /// the store: see its guarantees.
    pub async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.scope.list(prefix, after, limit).await
    }

    /// Ends the hold with this token, and no other; says whether there was one. The next waiter gets the lock at once. The
    /// evicted holder learns it when the store can tell it, and its writes are stale from now on: only a resource that
    /// checks tokens is protected. Dropped midway it may or may not have happened, and may be asked again.
    ///
    /// Tasks of one client that pass a `fast` lock on among themselves share one hold by turns, each with its own token. The
    /// client knows whose turn it is: evicting through the same client, only that one's token counts, and one of a turn that
    /// is over ends nothing. The store knows the hold and its first turn only: through another client each token of the hold
    /// ends it, whosever turn it is, and [`inspect`](Lock::inspect) names the first turn's task and token.
    pub async fn evict(&self, name: impl Into<Name>, token: FencingToken) -> Result<bool> {
        self.scope.evict(&name.into(), token).await
    }

    pub(crate) fn client(&self) -> &Client {
        &self.scope.client
    }

    /// What this store, configured like this, really gives.
    pub fn guarantees(&self) -> Guarantees {
        self.scope.client.guarantees.clone()
    }

    /// Gives up what this client holds, and ends it. Guards are lost ([`Loss::Gone`](crate::Loss)) before anything is sent,
    /// those who wait get [`Closed`](crate::ErrorKind::Closed), and so does every later call. Then it waits, at most `limit`, until
    /// the store has answered the releases, also those of holds within their `min_hold`, and up to five seconds for the
    /// client itself. Closing what is closed is `Ok`.
    ///
    /// `Err` of kind [`Ambiguous`](crate::ErrorKind::Ambiguous): it is closed, but the store has not answered everything; what is left
    /// there ends with its lease.
    ///
    /// # Cancel safety
    ///
    /// Dropped midway the client is closed all the same, and what is left in the store ends with its lease; closing again goes
    /// on with it.
    pub async fn close(&self, limit: Duration) -> Result<()> {
        self.scope.client.close(limit).await
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scope.fmt(f)
    }
}
