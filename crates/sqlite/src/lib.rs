//! The embedded store of Leasehold: one SQLite file that the processes of one machine share,
//! without a server.
//!
//! Each verb has its own source file, as in every store. `schema.sql` describes the tables.
//! `client` is the connection, its thread, and the check whether the file can be trusted.
//! `completed.sql` describes the second file, of completions. Processes notify each other by FIFOs.

#[cfg(not(target_os = "linux"))]
compile_error!("leasehold-sqlite needs Linux: CLOCK_BOOTTIME, boot ids and /proc");

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

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, ClaimedAll, Completions, Identity, LeaseRef, Notifier, Place, Raises,
    Renewal, Subscription, TokenFloor, async_trait,
};
use leasehold_core::{
    Fairness, Fencing, FencingToken, Guarantees, LockQueue, Name, Result, StoreId,
};
use tokio::task::coop::consume_budget;

use crate::claim::queue::Queues;
use crate::client::thread::Handle;
use crate::client::time::limit;
use crate::client::tokens::{RAISES, above};
use crate::client::worker::Client;
pub use crate::config::Config;
use crate::entry::token;
pub use crate::fence::StillHolds;

/// The number of names that one transaction takes at most: all other clients wait meanwhile.
const AT_ONCE: usize = 100;
/// The shortest lease that survives a busy machine.
const MIN_TTL: Duration = Duration::from_millis(100);

/// A client of the store in one file, for the processes of one machine and one boot.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_core::Store;
/// use leasehold_sqlite::{Config, Sqlite};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("locks.db");
/// let store = Store::new(Sqlite::with_config(Config::new(&path)).await?); // in each process: the same path
/// let guard = store.lock("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// **Sharing.** All processes that open the same path and may write there share the store, in
/// containers too if they share the directory and the kernel. If the directory lets its group
/// write, the files are shared with that group. Each client has a thread, and a FIFO
/// `<file>-fifo-<number>` beside the file.
///
/// **Threads.** A client that has no other lock and waits for none takes a free lock, and releases
/// it, on the caller's thread: in some ten microseconds, and only if no other client is writing at
/// that moment. All other requests run on the client's own thread, and only that thread waits for
/// other writers; a runtime therefore waits for nobody, and the client reports each loss on time. A
/// disk that stalls is an exception: a request on the caller's thread waits for it, and so does
/// everything else on that thread, other clients included.
///
/// **Waiting.** A queue is a table in the order of arrival. A release grants the lock to the next
/// waiter in the same transaction, and then notifies exactly that waiter's FIFO; no client polls. A
/// FIFO also shows that its process lives: it ends when the process does, however that ends, and
/// the next waiter sees that at once. A holder that is stopped does not end: its lease has to.
///
/// **Files.** The file, a log of 2 MB (`-wal`) and its index (`-shm`) belong together. If one of
/// them is deleted or replaced, the next client begins all three anew. Each client that holds or
/// waits has a lock on their directory, whose length is its longest lease. The new files grant
/// nothing for the longest of these leases, so that nobody holds beside a holder in the old files,
/// which learns of its loss at the next renewal. After a reboot the files are begun anew as well,
/// without a wait, and tokens keep rising. Nothing of them is ever synced to the disk.
///
/// **Work that is done once.** Completions are in a second file, `<file>-done`, with a log and an
/// index of its own, which the first completion makes. It outlives a reboot; a power failure takes
/// the last completions, and who deletes it forgets all. If one of its files is deleted or replaced,
/// the next client copies what is there into new files.
///
/// Files that are deleted again and again, more often than once per TTL, keep every client waiting.
/// A child process that forks without `exec` keeps the descriptors of its parent open: the parent's
/// locks are then freed only at the end of their TTL.
///
/// **Limits.** Network file systems are refused, and so is a file that is mounted by itself, as into
/// a container: mount its directory. A process that is stopped inside a transaction, which takes
/// some ten microseconds of each request, holds up every lock in the file until it is continued or
/// ended: the errors of all others name it. Only SQLite should open the file: a `close` of any
/// descriptor of it drops the locks that SQLite has in that process, as POSIX demands.
pub struct Sqlite {
    path: PathBuf,
    identity: Arc<Identity>,
    client: Arc<Handle>,
    notifier: Notifier,
}

impl Sqlite {
    /// Opens `sqlite:///absolute/path`, percent-encoded. The file is made if there is none, unless
    /// the URL names its identity with `store`; its directory has to exist.
    ///
    /// # Errors
    ///
    /// [`Invalid`](leasehold_core::ErrorKind::Invalid) for another URL, a missing directory, or a
    /// path to something that is no file; `Denied` if the file or its directory may not be written;
    /// `Unsupported` on a network file system, in a time namespace, for another program's database,
    /// for a file of another version of Leasehold, or for one that is mounted without its
    /// directory; `OtherStore` if the URL names another store than the file's, or there is no file;
    /// `Corrupt` if the file is damaged; `Unavailable` if it stays locked (the text names the
    /// process) or the disk is full.
    pub async fn connect(url: &str) -> Result<Sqlite> {
        Sqlite::with_config(Config::from_url(url)?).await
    }

    /// Opens the file of the configuration. The errors are those of [`connect`](Sqlite::connect).
    ///
    /// A connection of the application cannot be used instead: the store checks the file before it
    /// opens it, and in each transaction.
    pub async fn with_config(config: Config) -> Result<Sqlite> {
        let path = std::path::absolute(&config.path);
        let notifier = Notifier::new();
        let identity = Arc::new(Identity::pinned(config.store_id));
        let path = path.map_err(|e| error::of_io(&e, Path::new(""), "is no path"))?;
        let at_once = config
            .at_once
            .then(|| Handle::open_at_once(&path, identity.clone(), notifier.clone(), config.looks))
            .flatten();
        let client = match at_once {
            Some(client) => client,
            None => {
                let identity = identity.clone();
                let notifier = notifier.clone();
                Handle::start(path.clone(), identity, notifier, config.looks).await?
            }
        };
        let client = Arc::new(client);
        Ok(Sqlite {
            path,
            identity,
            client,
            notifier,
        })
    }

    /// Returns descriptors of this client's FIFO and of the lock that says how long its leases are.
    /// As long as both are open in some process, no client takes this one for dead before its
    /// leases have ended, even if the file is deleted.
    ///
    /// They are for a guardian that outlives this process to end its work: without them, `kill -9`
    /// of this process frees its locks while that work still runs. The guardian only holds them; it
    /// does not read or write.
    pub async fn life_line(&self) -> Result<[OwnedFd; 2]> {
        match self.client.at_once_alone(|client| client.life_line().ok()) {
            Some(line) => Ok(line),
            None => self.client.ask(Client::life_line).await,
        }
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.path.display())
    }
}

#[async_trait]
impl Backend for Sqlite {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        // Requests that are done at once would never yield the thread otherwise.
        RAISES.check(claim.floor)?;
        consume_budget().await;
        if let Some(claimed) = self
            .client
            .at_once(|client, alone| client.claim_at_once(claim, alone))
        {
            if let Claimed::Granted(_) = claimed {
                self.client.listen_soon();
            }
            return Ok(claimed);
        }
        let (claim, limit) = (claim.clone(), limit(Some(claim.ttl)));
        self.client
            .ask(move |client| client.claim(&claim, limit))
            .await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        claims
            .iter()
            .try_for_each(|claim| RAISES.check(claim.floor))?;
        let (claims, limit) = (
            claims.to_vec(),
            limit(claims.iter().map(|claim| claim.ttl).min()),
        );
        self.client
            .ask(move |client| client.claim_all(&claims, limit))
            .await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let (leases, limit) = (
            leases.to_vec(),
            limit(leases.iter().map(|lease| lease.claim.ttl).min()),
        );
        self.client
            .ask(move |client| client.renew(&leases, limit))
            .await
    }

    fn renew_batch(&self) -> usize {
        usize::MAX
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        consume_budget().await;
        if let Some(()) = self
            .client
            .at_once(|client, _| client.release_at_once(claim))
        {
            return Ok(());
        }
        let (claim, limit) = (claim.clone(), limit(Some(claim.ttl)));
        self.client
            .ask(move |client| client.release(&claim, limit))
            .await
    }

    async fn release_after(
        &self,
        claim: &Claim,
        _place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        let (claim, limit) = (claim.clone(), limit(Some(claim.ttl)));
        self.client
            .ask(move |client| client.release_after(&claim, rest, limit))
            .await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let name = name.clone();
        self.client.ask(move |client| client.inspect(&name)).await
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        let prefix = prefix.to_owned();
        let after = after.cloned();
        self.client
            .ask(move |client| client.list(&prefix, after.as_ref(), limit))
            .await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let name = name.clone();
        let limit = limit(None);
        self.client
            .ask(move |client| client.evict(&name, token, limit))
            .await
    }

    fn identity(&self) -> Option<StoreId> {
        self.identity.id()
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("sqlite")
            .with_fencing(Fencing::SurvivesDataLoss)
            .with_fairness(Fairness::Strict)
            .with_pushed_wake(true)
            .with_ttl(MIN_TTL, Duration::from_nanos(1))
            .with_recovery(Duration::from_millis(100))
            .with_atomic_multi(AT_ONCE)
            .with_min_hold_outlives_process(true)
            .with_once(true)
            .with_notes(NOTES)
    }

    fn completions(&self) -> Option<&dyn Completions> {
        Some(self)
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        Some(self)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.notifier)
    }

    fn observe(&self, name: &Name) -> Subscription {
        observe::observe(&self.client, name)
    }

    /// Releases everything that is still held, at once.
    async fn close(&self) -> Result<()> {
        match self.client.at_once_alone(Client::leave_at_once) {
            Some(()) => Ok(()),
            None => self.client.ask(Client::leave).await,
        }
    }
}

#[async_trait]
impl TokenFloor for Sqlite {
    fn raises(&self) -> Raises {
        RAISES
    }

    async fn mark(&self) -> Result<FencingToken> {
        let last = |queues: &mut Queues<'_>| Ok(queues.meta.token.max(above(queues.wall)));
        let limit = limit(None);
        self.client
            .ask(move |client| client.write(limit, last))
            .await
            .map(token)
    }

    async fn raise(&self, number: FencingToken) -> Result<()> {
        RAISES.check(Some(number))?;
        let limit = limit(None);
        self.client
            .ask(move |client| client.write(limit, |queues| queues.raise_all(number.as_i64())))
            .await
    }
}

const NOTES: &str = "\
For processes of one machine. Exclusion holds while they use the same path in the same directory: if the files there are \
deleted or replaced, the new ones grant nothing until every lease of a living client may have ended. A process that dies is \
replaced at once, a stopped one after its TTL. A process stopped inside a transaction holds up all locks of the file. Tokens \
are never below the wall clock in µs: they rise also when the file is lost, unless that clock steps back past the loss.";
