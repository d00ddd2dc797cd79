//! The front door: one concrete type for every store.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::api::election::Election;
use crate::api::lock::Lock;
use crate::api::multi::MultiLock;
use crate::api::once::Once;
use crate::api::options::options;
use crate::api::rw_lock::RwLock;
use crate::api::scope::Scope;
use crate::api::semaphore::Semaphore;
use crate::backend::claim::Mode;
use crate::backend::completion::Completion;
use crate::backend::contract::Backend;
use crate::backend::error::Result;
use crate::backend::guarantees::Guarantees;
use crate::backend::identity::StoreId;
use crate::backend::name::Name;
use crate::backend::token::FencingToken;
use crate::engine::client::Client;
use crate::support::thread::OwnThread;

/// A store of locks: the entry point, one concrete type for every kind of server.
///
/// A `Store` is a handle on one client of a lock service: PostgreSQL, Redis, etcd, ZooKeeper, SQLite, memory,
/// or an implementation of [`Backend`](crate::backend::Backend) of your own. It makes the primitives:
/// [`lock`](crate::Store::lock), [`rw_lock`](crate::Store::rw_lock),
/// [`semaphore`](crate::Store::semaphore), [`election`](crate::Store::election),
/// [`multi_lock`](crate::Store::multi_lock). Clones are cheap and share the client, so clone it
/// into tasks instead of connecting again: renewals are batched by client.
///
/// Options that are set on the store, such as [`ttl`](crate::Store::ttl), are the defaults of
/// everything that it makes afterwards.
///
/// # Runtimes
///
/// Making a `Store` does no I/O and needs no runtime. Each request needs a tokio runtime with its
/// timers enabled. Renewals and background releases run in one of the runtimes that use the store:
/// when that one ends, or is not driven for half a second, another one continues. If no other
/// runtime is driven, nothing is renewed and the locks are lost, each of them before another client
/// can get it. Use [`Store::on_own_thread`](crate::Store::on_own_thread) if your runtime may be
/// blocked for longer than a lease.
///
/// # How many locks
///
/// One client can keep as many locks as its store renews within about half of their TTL, network
/// delays included. Near that limit an event of level `WARN` and target `leasehold` says so. Beyond
/// it locks are lost. Use longer TTLs or several clients.
///
/// At most 128 new claims of one client are under way at once, and 128 that have a place already;
/// further ones wait inside the client, in their order. Beside 128 new claims, a
/// [`try_acquire`](crate::Lock::try_acquire) waits too.
///
/// # End of life
///
/// When the last clone, guard, [`Held`](crate::Held) and [`Lost`](crate::Lost) are gone, the client
/// is dropped. A program that must not leave locks behind ends with
/// [`Store::close`](crate::Store::close).
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// use std::time::Duration;
///
/// let store = store.namespace("billing").ttl(Duration::from_secs(5));
/// let guard = store.lock("invoice/7").acquire().await?; // the name in the store is billing/invoice/7
/// guard.release().await?;
/// store.close(Duration::from_secs(1)).await
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a store does nothing by itself, and each option returns a changed one"]
pub struct Store {
    pub(crate) scope: Scope,
}

options!(Store, .scope.defaults);

impl Store {
    /// Makes a store over this backend.
    ///
    /// It sends nothing. For each warning in the backend's
    /// [`Guarantees::warnings`](crate::Guarantees) it emits an event of level `WARN`, because a
    /// program that never reads its guarantees should not learn of a server without persistence
    /// from its first lost lock.
    ///
    /// Decorators are backends too: anything that implements [`Backend`](crate::backend::Backend) can
    /// be passed, also boxed.
    pub fn new(backend: impl Backend) -> Store {
        Store::make(backend, fastrand::Rng::new(), None)
    }

    /// Makes a store whose client and background task run on a thread of their own, with a runtime
    /// of their own.
    ///
    /// `make` runs on that thread and connects. Renewals then continue while the program's own
    /// runtime is blocked, for example by a long computation in an async function. Without it, a
    /// runtime that is blocked for longer than a lease loses its locks.
    ///
    /// The thread costs one hop between threads for each request. It ends when the last clone and
    /// the last guard are gone and the background releases are done.
    ///
    /// # Errors
    ///
    /// The error of `make`; [`Unavailable`](crate::ErrorKind::Unavailable) if the thread cannot be
    /// started; [`Internal`](crate::ErrorKind::Internal) if `make` panics.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `make` is dropped on the thread, or what it has made, and the thread ends.
    pub async fn on_own_thread<B: Backend>(
        make: impl Future<Output = Result<B>> + Send + 'static,
    ) -> Result<Store> {
        let (thread, backend) = OwnThread::start(make).await?;
        Ok(Store::make(backend, fastrand::Rng::new(), Some(thread)))
    }

    /// Makes a store whose jitter comes from this seed: for tests that repeat a run.
    ///
    /// A seed determines the sequence of random delays, but not the schedule: tasks and servers
    /// have their own timing. Ids of claims are not drawn from it, because they must be
    /// unpredictable.
    pub fn with_random_seed(backend: impl Backend, seed: u64) -> Store {
        Store::make(backend, fastrand::Rng::with_seed(seed), None)
    }

    fn make(backend: impl Backend, random: fastrand::Rng, thread: Option<OwnThread>) -> Store {
        Store {
            scope: Scope::new(Client::new(Arc::new(backend), random, thread)),
        }
    }

    /// Returns a store in which each name is prefixed by `prefix/`.
    ///
    /// Applications that share a server keep their locks apart by namespaces. Namespaces nest:
    /// `store.namespace("a").namespace("b")` prefixes `a/b/`. Errors and lists show names without
    /// the prefix. An empty prefix changes nothing. The client stays the same, so renewals of all
    /// namespaces are batched together.
    ///
    /// A namespace separates names, not rights: every client of the server can use any name.
    ///
    /// # Errors
    ///
    /// A prefix with a NUL character is reported by the first request, as
    /// [`Invalid`](crate::ErrorKind::Invalid). The limit of
    /// [`MAX_NAME_BYTES`](crate::MAX_NAME_BYTES) does not count the namespace.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(store: leasehold_core::Store) {
    /// let (test, live) = (store.clone().namespace("test"), store.namespace("live"));
    /// let (a, b) = (test.lock("jobs"), live.lock("jobs")); // two locks
    /// # let _ = (a, b); }
    /// ```
    pub fn namespace(mut self, prefix: &str) -> Store {
        self.scope.enter(prefix);
        self
    }

    /// The exclusive lock of this name. It sends nothing: see
    /// [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// All primitives of one name share one queue, so `lock("a")` also excludes the readers of
    /// `rw_lock("a")`.
    pub fn lock(&self, name: impl Into<Name>) -> Lock {
        Lock::new(self.scope.clone(), name.into(), Mode::Exclusive)
    }

    /// The reader-writer lock of this name. It sends nothing: see [`RwLock`](crate::RwLock).
    pub fn rw_lock(&self, name: impl Into<Name>) -> RwLock {
        RwLock(self.lock(name))
    }

    /// The semaphore of this name, with so many permits. It sends nothing: see
    /// [`Semaphore`](crate::Semaphore).
    ///
    /// The number of permits is not stored anywhere by itself: all clients must use the same
    /// `permits` for a name. A claim with another number than the claims in the queue is refused as
    /// [`Invalid`](crate::ErrorKind::Invalid).
    ///
    /// Redlock has no semaphores: there each acquire is
    /// [`Unsupported`](crate::ErrorKind::Unsupported), because two majorities of permits need not
    /// overlap.
    pub fn semaphore(&self, name: impl Into<Name>, permits: u32) -> Semaphore {
        Semaphore {
            lock: self.lock(name),
            capacity: permits,
        }
    }

    /// The leader election of this name. It sends nothing: see [`Election`](crate::Election).
    ///
    /// An election is an exclusive lock whose holder publishes a value, so it shares its queue with
    /// `lock` of the same name.
    pub fn election(&self, name: impl Into<Name>) -> Election {
        Election(self.lock(name))
    }

    /// Work of this name that is done once. It sends nothing: see [`Once`](crate::Once).
    ///
    /// It shares its queue with `lock` of the same name.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> Result<(), Box<dyn std::error::Error>> {
    /// let migration = store.once("schema/17").keep_forever();
    /// let outcome = migration.run(async |_| migrate().await).await??;
    /// println!("{outcome:?}"); // in all replicas: it is done
    /// # Ok(()) }
    /// # async fn migrate() -> std::io::Result<()> { Ok(()) }
    /// ```
    pub fn once(&self, name: impl Into<Name>) -> Once {
        Once::new(self.lock(name))
    }

    /// The exclusive locks of all these names, taken together: all or none. It sends nothing: see
    /// [`MultiLock`](crate::MultiLock).
    ///
    /// The names may come in any order; they are always taken in the same order, so that two
    /// clients with the same names never wait for each other.
    pub fn multi_lock<N: Into<Name>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(self.scope.clone(), names.into_iter().map(Into::into))
    }

    /// Lists the records of work that is done, with their names: see [`Once`](crate::Once).
    ///
    /// As [`list`](crate::Store::list), it is in the order of the names' bytes and in pages, and no
    /// snapshot.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a prefix with NUL;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the store keeps no records; otherwise what
    /// the store reports, within a few seconds.
    ///
    /// # Cancel safety
    ///
    /// It only reads, so it can be dropped at any await.
    pub async fn list_done(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        self.scope.list_completions(prefix, after, limit).await
    }

    /// Lists the names that are held or waited for.
    ///
    /// Only names that begin with `prefix` are listed, in the order of their bytes, and only those
    /// after `after`, at most `limit`. To read a long list in pages, pass the last name of a page
    /// as `after`.
    ///
    /// The list is not a snapshot: locks that are taken or released meanwhile may be missing or
    /// listed. The cost of a list depends on the store; on Redis it walks the whole database. See
    /// [the guarantees of your store](crate::Store::guarantees) before you call it often.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a prefix with NUL; otherwise what the store
    /// reports, within a few seconds.
    ///
    /// # Cancel safety
    ///
    /// It only reads, so it can be dropped at any await.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let mut after = None;
    /// loop {
    ///     let page = store.list("orders/", after.as_ref(), 100).await?;
    ///     for name in &page {
    ///         println!("{name}");
    ///     }
    ///     let Some(last) = page.last().cloned() else { break };
    ///     after = Some(last);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        self.scope.list(prefix, after, limit).await
    }

    /// Ends the hold with this token, and no other. Returns whether there was one.
    ///
    /// For operators, when a holder hangs and its lock cannot wait for the end of its lease. The
    /// token makes sure that it is the hold that you saw: if the lock has changed hands meanwhile,
    /// nothing happens. The next waiter gets the lock at once.
    ///
    /// The evicted holder is told when the store can tell it. No bound is promised for that, so
    /// until then two clients may act at the same time, and only a resource that checks fencing
    /// tokens is protected. An eviction is therefore outside of the exclusion that
    /// [`Guard::is_valid`](crate::Guard::is_valid) promises.
    ///
    /// The hold of another tool has no token. If the store can end it (Redis, Redlock),
    /// [`inspect`](crate::Lock::inspect) shows the text that the tool wrote, and the number by
    /// which this very hold is ended: [`Participant::evict_by`](crate::Participant::evict_by).
    ///
    /// # Turns of a `fast` lock
    ///
    /// Tasks of one client that pass a [`fast`](crate::Lock::fast) lock on share one hold of the
    /// store. Each turn has a token of its own. Their client knows whose turn it is: through it,
    /// the token of a past turn ends nothing. The store knows only the hold and its first turn:
    /// through another client, each token of the hold ends it, and
    /// [`inspect`](crate::Lock::inspect) shows the first turn's task and token. To tell the store
    /// of each turn would cost the request that `fast` saves.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a bad name;
    /// [`Ambiguous`](crate::ErrorKind::Ambiguous) if the store did not answer: the hold may or may
    /// not have ended. Ask again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the eviction may or may not have happened. It is safe to call it
    /// again with the same token.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let queue = store.lock("nightly").inspect().await?;
    /// if let Some(token) = queue.holders.first().and_then(|holder| holder.token) {
    ///     let ended = store.evict("nightly", token).await?;
    ///     println!("{}", if ended { "ended" } else { "it had ended already" });
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn evict(&self, name: impl Into<Name>, token: FencingToken) -> Result<bool> {
        self.scope.evict(&name.into(), token).await
    }

    /// The identity of the store: two clients exclude each other only if theirs are equal. `None`
    /// where the store has none, or does not know it yet.
    ///
    /// A client uses no server with another identity: see
    /// [`OtherStore`](crate::ErrorKind::OtherStore). A Redis server and a SQLite file in its
    /// place are exceptions, because they may lose their identity with their data: there only a client whose
    /// URL names the identity refuses another one.
    pub fn identity(&self) -> Option<StoreId> {
        self.scope.client.backend.identity()
    }

    /// The guarantees of this store, as it is configured now: data that a program can check before
    /// it starts.
    ///
    /// It is asked once, when the store is made; this call sends nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// use leasehold_core::Fencing;
    ///
    /// let guarantees = store.guarantees();
    /// guarantees.require_fencing(Fencing::WhileDataLives)?;
    /// for warning in guarantees.warnings() {
    ///     eprintln!("the server may lose locks: {warning}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn guarantees(&self) -> Guarantees {
        self.scope.client.guarantees.clone()
    }

    /// Releases what this client holds, and ends the client.
    ///
    /// First all guards are lost, with [`Loss::Gone`](crate::Loss), before anything is sent.
    /// Waiters get [`Closed`](crate::ErrorKind::Closed), and so does each later call of any clone.
    /// Then it waits until the store has answered the releases, also those of holds within their
    /// `min_hold`: at most `limit` for the releases, and up to five seconds more for the client's
    /// own connections and sessions.
    ///
    /// Call it at the end of a program. Dropping the last guard releases in the background, but a
    /// program that returns from `main` ends its runtime before the background has sent anything;
    /// then the locks stay taken until their TTL has passed.
    ///
    /// # Errors
    ///
    /// [`Ambiguous`](crate::ErrorKind::Ambiguous): the client is closed, but the store has not
    /// answered everything. Locks that are left in the store end with their leases. Closing a
    /// closed store is `Ok`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the client is closed all the same, and locks that are left in the
    /// store end with their leases. Closing again continues to wait for the answers.
    pub async fn close(&self, limit: Duration) -> Result<()> {
        self.scope.client.close(limit).await
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scope.fmt(f)
    }
}
