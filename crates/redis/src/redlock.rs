//! The Redlock store of Leasehold: one lock on a majority of several independent Redis servers.
//!
//! ```no_run
//! # async fn example() -> leasehold_core::Result<()> {
//! use leasehold_core::Store;
//! use leasehold_redis::redlock::Redlock;
//!
//! let store = Store::new(Redlock::connect("redlock://10.0.0.1,10.0.0.2,10.0.0.3").await?);
//! let guard = store.lock("orders/42").acquire().await?;
//! # drop(guard);
//! # Ok(()) }
//! ```
//!
//! # The algorithm
//!
//! After [redis.io's
//! description](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), with its
//! gaps filled in.
//!
//! * **Claim.** All nodes are asked at once. A claim that a majority grants is granted, and valid
//!   for its TTL from *before the first send*, less a margin for drift. The other requests are left
//!   to complete, and their answers do not matter.
//! * **No majority.** The claim is given back on *every* node, whatever it answered, before the
//!   client returns. A waiter tries again when it is notified, when enough leases have run out, or
//!   after a pause with jitter.
//! * **Renewal.** All nodes are asked, in one flight for all locks. If a majority still has the
//!   lock, it is renewed. If so many certainly do not that no majority can have it, it is lost.
//!   Otherwise the outcome is unknown. Nodes that lack a lock which a majority has get it again,
//!   with its token; they count from the next renewal on.
//! * **Release.** It is sent to every node, and the answers of a majority are awaited. A node that
//!   does not get it, or that gets a late renewal after it, keeps the key for its TTL at most.
//! * **Eviction.** All nodes report their holds. The hold that has the token ends on every node
//!   that answers, also where it has another token so far, or arrives only now: a client that
//!   writes its token back there is told that the hold is gone.
//! * **The list of nodes** has a number once an operator gave it one ([`change_nodes`]). Claims and
//!   renewals carry it, and a node refuses a number that it does not serve, or has no record of. Such
//!   an answer is no vote. Without numbers the list may not change while programs run.
//! * A node has `timeout` to answer (250 ms), and fails at once while it is known to be away. With
//!   a minority of dead, stopped or cut-off nodes everything therefore goes on.
//!
//! # The token
//!
//! Each node keeps the greatest token that it gave out. The client proposes its clock in
//! microseconds; a node answers `max(greatest + 1, proposal)`, and the greatest answer is the token
//! `T`. If fewer than a majority answered `T`, it is written back, **only where the claim still
//! holds**, until a majority that holds the claim knows at least `T`; else the claim fails. A grant
//! therefore takes one round trip if the nodes agree, and two if not. A proposal leads the clocks
//! by a tenth of a second, so the nodes agree on a free lock if they get the claim within that
//! time.
//!
//! *Proof* that a later conflicting grant has a greater token, while nodes keep their data. Let `G`
//! be granted with `T`, and `G'` later with `T'`. The majority that knew `T` while it held `G`, and
//! the majority that granted `G'`, share a node. A node holds only one of two conflicting claims,
//! so there `G'` began after `G` had ended, and after the node's greatest was at least `T`;
//! greatest tokens never fall. Therefore the node answered `G'` with more than `T`, and `T'` is the
//! greatest answer. ∎ Writing back to nodes that do not hold the claim breaks the proof at its
//! second step, and there are short runs in which the tokens then fall; this crate's tests search
//! all runs of a small model for one.
//!
//! A node forgets the greatest token of a name seconds after its own clock has passed it, and a
//! name without one starts from the clock, so tokens also rise for names that were idle. For a
//! clock that steps back, the node keeps a bound of all tokens of all names, for two hours after
//! its clock has passed the bound. The tokens of names are in a hash that expires as a whole, so
//! the node notices that it has forgotten some. If its clock is not past the forgotten tokens, a
//! name without a greatest token starts from the bound. Tokens therefore rise through every step
//! back of up to two hours, however long the lock was idle. (One fence for all names, as on one
//! Redis, would differ from node to node as requests of several clients pass one another, and most
//! tokens would be written back.) A proposal is cut to a minute above the node's clock, so that one
//! client whose clock is years ahead does not drive the tokens of all.
//!
//! # What it cannot promise
//!
//! * **A node that loses data may break it.** A restart without persistence, an eviction, a
//!   failover to a replica: two majorities may then share only the node that forgot, and two may
//!   hold at once. If the list of nodes has a number, a node without any data has no vote; one that
//!   lost a part of them is not recognized. Run the nodes with `appendfsync always` and `maxmemory-policy noeviction`, or
//!   keep a node that lost its data away for the longest TTL. In that case tokens still rise if the
//!   time between the two grants exceeds the difference of the clocks of clients and nodes by more
//!   than a tenth of a second: tokens may run ahead of the clocks by that much, as proposals lead
//!   them and each attempt takes a block of numbers. With equal clock readings, two may even draw
//!   one token.
//! * **Leases are measured by each node's wall clock.** A clock that is stepped forward ends leases early, there.
//! * **No order.** Nodes that hand over would hand to different waiters, and none would get a
//!   majority. Therefore [`fair`](leasehold_core::Options::fair) is refused, and
//!   [`fast`](leasehold_core::Options::fast) is the default. A release notifies the waiter that
//!   came first, and reserves the lock for it for 50 ms; a reader lets a waiting writer go first.
//!   That is no promise: a waiter may be passed, and for ever.
//! * **No semaphores.** Of three holders each may have two of three nodes while no node ever has more than two of them: a
//!   majority excludes, but it does not count.
//! * **No condition for your own writes** (`still_holds`, as on the stores with one server): your data is on one server, and the
//!   lock on a majority of several, so no server can check one together with the other.
//! * **`inspect`, `list` and `evict` compare no list of nodes.** They ask the nodes by which this client goes, so in
//!   a program whose list is out of date they may miss a hold; its claims are refused. A program compares the list as it starts.
//! * A lease cannot stop requests that a paused holder has already sent. The token at the resource
//!   can.
//!
//! # Layout and rights
//!
//! **The lock is the key**, on each node, like the one that `SET name value NX PX ttl` makes. Every
//! Redlock client that locks this way (redsync, node-redlock, redlock-py, rslock) therefore
//! excludes us and is excluded. It is waited for, reported as foreign, and polled every quarter of
//! a second. In a name `%`, `{` and `}` are percent-encoded. All other data of a name lie beside
//! the lock, in keys that begin with `{name}:r`; all expire by themselves, and after a release none
//! stays, after an eviction its token for two TTLs. Each node has four more keys, for all names:
//! `{prefix}:rt` and `{prefix}:ro`, the greatest tokens of the last names, which go within six
//! seconds after the last claim; `{prefix}:rb`, the bound, which stays for two hours; and
//! `{prefix}:rn`, the list of nodes, which stays if it has a number. While
//! readers hold the lock, its value is `leasehold:shared`.
//!
//! An ACL user needs on each node `+@scripting +@read +@write +@pubsub +@connection +time`, the
//! channels `&leasehold:*`, and its keys twice: `~prefix*` and `~{prefix*`, and `~{prefix}:r*` if
//! these are for some names only. Warnings need `+info +config|get`.

mod change;
mod claim;
pub mod client;
mod config;
mod entry;
mod evict;
mod inspect;
mod observe;
mod release;
mod renew;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::link::{Call, Connection, Inbox, Names};
use leasehold_core::backend::{
    Backend, Claim, ClaimId, Claimed, LeaseRef, Mode, Notifier, Place, Renewal, Subscription,
    async_trait,
};
use leasehold_core::support::locked;
use leasehold_core::{Fairness, Fencing, FencingToken, Guarantees, LockQueue, Name, Result};

pub use crate::redlock::change::{NodesChange, change_nodes};
use crate::redlock::client::nodes::{NODE, Nodes};
pub use crate::redlock::config::Config;
use crate::redlock::config::invalid;
use crate::redlock::entry::{Held, ttl};
#[cfg(feature = "tls-no-provider")]
pub use leasehold_net::Tls;

/// The endings of the keys beside a lock.
const BESIDE: [&str; 5] = ["rq", "rh", "rw", "rs", "re"];
/// The endings of the keys that all names share, in the order in which the scripts take them.
const OF_ALL: [&str; 4] = ["rt", "ro", "rb", "rn"];

/// The keys that all names with this prefix share.
fn keys_of_all(prefix: &str) -> [String; 4] {
    OF_ALL.map(|end| format!("{{{prefix}}}:{end}"))
}

/// The shortest lease; a shorter one is extended to this.
const MIN_TTL: Duration = Duration::from_millis(200);

/// A store on several independent Redis servers (6 or newer), each a master of its own: no replicas of one another, no
/// Cluster.
///
/// One connection to each carries every request and every push, and is made again for as long as the store lives.
pub struct Redlock(Arc<Shared>);

/// The client's state, which its background tasks share.
struct Shared {
    nodes: Nodes,
    names: Arc<Names>,
    /// The keys of a node that all names share.
    of_all: [String; 4],
    inbox: Inbox,
    warnings: Vec<String>,
    holds: Mutex<HashMap<ClaimId, Held>>,
    /// Numbers the requests that claim, renew and release.
    attempts: AtomicU64,
}

impl Redlock {
    /// Connects to
    /// `redlock://[user:password@]host[:port],host[:port],host[:port]…[/db][?timeout=ms][&prefix=text]`,
    /// or, with every node over TLS, to such a URL with `redlocks://`: that needs the feature
    /// `tls`, and has the options of `Tls`.
    ///
    /// All nodes share credentials and the number of the database. `timeout` limits each request to
    /// each node (default 250 ms). `prefix` stands before every key. A minority of nodes may be
    /// away, and is used as soon as it is back. Each node that is there is asked whether it may
    /// forget a lock that is held; the answers are [`Guarantees::warnings`].
    ///
    /// # Errors
    ///
    /// `Invalid` for fewer than three nodes or an even number, unless that list has a number, for one
    /// server named twice (also under two names, if both are there), and for a URL that is anything
    /// else; `OtherStore` if the list of nodes has a number, and it is another list; `Denied` if a node refuses
    /// the password; `Unsupported` if one is a node of a Redis Cluster; `Unavailable` if a majority
    /// does not answer within two timeouts. No error shows a credential, or a server's words about
    /// one.
    pub async fn connect(url: &str) -> Result<Redlock> {
        Redlock::with_config(Config::from_url(url)?).await
    }

    /// Connects according to the configuration. The errors are those of
    /// [`connect`](Redlock::connect).
    pub async fn with_config(config: Config) -> Result<Redlock> {
        config::check(&config.nodes)?;
        let names = Arc::new(Names::new(&config.prefix, &BESIDE)?);
        let of_all = keys_of_all(&config.prefix);
        let inbox = Inbox::new(false);
        let keys = (&of_all, &*names.absent(), &*names.mark());
        let (nodes, warnings) = Nodes::connect(config.nodes, config.timeout, &inbox, keys).await?;
        let holds = Mutex::default();
        let attempts = AtomicU64::new(1);
        Ok(Redlock(Arc::new(Shared {
            nodes,
            names,
            of_all,
            inbox,
            warnings,
            holds,
            attempts,
        })))
    }

    /// Connects to the servers of ready clients, with their credentials and their TLS: a `redis::Client` has no connection of its
    /// own. The errors are those of [`connect`](Redlock::connect).
    pub async fn with_clients(clients: &[client::Client]) -> Result<Redlock> {
        let nodes = clients
            .iter()
            .map(|client| client.get_connection_info().clone());
        Redlock::with_config(Config::new(nodes.collect())).await
    }
}

impl Shared {
    /// The beginning of every call for a claim: `verb id ttl mode turns channel label attempt list`.
    fn call(&self, verb: &str, claim: &Claim) -> Call {
        let mode = if claim.mode == Mode::Shared { "s" } else { "x" };
        let call = self
            .on(&claim.name)
            .arg(verb)
            .arg(claim.id)
            .arg(ttl(claim).as_millis());
        let call = call
            .arg(mode)
            .arg(claim.turns())
            .arg(&self.inbox.channel)
            .arg(&claim.label);
        call.arg(self.attempts.fetch_add(1, Ordering::Relaxed))
            .arg(self.nodes.list.number())
    }

    /// The beginning of every call for a name, with its keys.
    fn on(&self, name: &Name) -> Call {
        let call = Call::of(&NODE, 1 + BESIDE.len() + OF_ALL.len());
        let call = call.lock(&self.names.lock(name), &BESIDE);
        self.of_all.iter().fold(call, Call::arg)
    }

    /// The hold of this client with this id.
    fn held(&self, id: ClaimId) -> Option<Held> {
        self.holds().get(&id).cloned()
    }

    /// Forgets this hold, and gives up its calls: the requests that end it on the nodes may be sent
    /// after that.
    fn forget(&self, id: ClaimId) {
        if let Some(held) = self.holds().remove(&id) {
            held.released.set();
        }
    }

    fn holds(&self) -> MutexGuard<'_, HashMap<ClaimId, Held>> {
        locked(&self.holds)
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({:?}, {:?})", self.0.names, self.0.nodes)
    }
}

#[async_trait]
impl Backend for Redlock {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.0.claim(claim).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        Ok(self.0.renew(leases).await)
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        self.0.release(claim).await
    }

    async fn release_after(
        &self,
        claim: &Claim,
        _place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        self.0.release_after(claim, rest).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        self.0.inspect(name).await
    }

    /// Walks all keys of every node with `SCAN`, so it costs O(keys) and is meant for people and tools.
    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.0.list(prefix, after, limit).await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.0.evict(name, token).await
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("redlock")
            .with_fencing(Fencing::WhileDataLives)
            .with_fairness(Fairness::None)
            .with_pushed_wake(true)
            .with_ttl(MIN_TTL, Duration::from_millis(1))
            .with_recovery(Duration::from_millis(500))
            .with_min_hold_outlives_process(true)
            .with_notes(NOTES)
            .with_warnings(self.0.warnings.clone())
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.0.inbox.notifier)
    }

    fn observe(&self, name: &Name) -> Subscription {
        self.0.observe(name)
    }

    /// Closes the connections. Redis has no sessions: holds end with their leases.
    async fn close(&self) -> Result<()> {
        self.0.nodes.connections().for_each(Connection::close);
        Ok(())
    }
}

const NOTES: &str = "\
Exclusion and rising tokens hold while the nodes keep their data and their clocks: use appendfsync always and noeviction. \
If a node loses data, two may hold at once (if it loses all, only where the list of nodes has no number), and tokens rise only if all clocks agree better than the time between two \
grants. No order, so fair is refused and a waiter may be passed for ever, a writer by readers too; no semaphores, since a \
majority does not count permits. Other Redlock clients (SET NX PX) are excluded, and seen to release within 250 ms.";

#[cfg(test)]
mod tests;
