//! The Redis store of Leasehold: the public type, and the methods of `Backend`, each delegated to a file.
//!
//! Each verb has its file, and `scripts` is the server's side of all. Connections, keys, errors and
//! the checks of the server's settings are in `link`, which the Redlock store shares: the module
//! `redlock`, with the feature of that name.

mod claim;
pub mod client;
mod completion;
mod config;
mod entry;
mod evict;
mod fence;
mod inspect;
mod link;
mod plain;
#[cfg(feature = "redlock")]
pub mod redlock;
mod release;
mod renew;
mod scripts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::link::{Inbox, Keys, Names, StoreMark};
use crate::plain::Plain;
use leasehold_core::backend::{
    Backend, Claim, Claimed, ClaimedAll, Complete, Completed, Completions, LeaseRef, Notifier,
    Place, Raises, Renewal, Subscription, TokenFloor, async_trait,
};
use leasehold_core::{
    Completion, Error, ErrorKind, Fairness, Fencing, FencingToken, Guarantees, LockQueue, Name,
    Result, StoreId,
};

use crate::client::nodes::Nodes;
use crate::client::replicas::Replicas;
pub use crate::config::Config;
use crate::entry::{MIN_TTL, RAISES};
pub use crate::fence::{StillHolds, write_fenced};
use crate::release::repeat::Releases;
use crate::scripts::{FENCE, NEEDS};
pub use leasehold_net::Host;
#[cfg(feature = "tls-no-provider")]
pub use leasehold_net::Tls;

/// The endings of the keys beside a lock.
const BESIDE: [&str; 4] = ["l", "o", "s", "r"];
/// The ending of the key of a completion. Only scripts for work that is done once are given it.
const COMPLETION: &str = "d";
/// The greatest number of names that one script takes or renews: the server does nothing else
/// meanwhile.
const AT_ONCE: usize = 100;

/// A store on one Redis server, on the current primary behind an address, or on a
/// Redis Cluster.
///
/// One multiplexed connection carries every request and every push, and is made again for as long as the store lives.
/// While it is down, requests fail at once with [`Unavailable`](leasehold_core::ErrorKind::Unavailable) and the reason.
///
/// ```no_run
/// # async fn example() -> leasehold_core::Result<()> {
/// use leasehold_core::Store;
/// use leasehold_redis::Redis;
///
/// let store = Store::new(Redis::connect("redis://127.0.0.1/?timeout=500").await?);
/// let guard = store.lock("orders/42").acquire().await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
///
/// **The lock is the key.** A lock's name, with `%`, `{` and `}` percent-encoded, is a Redis string
/// that holds some value and expires, like the one that `SET name value NX PX ttl` makes. Every
/// client that locks this way therefore excludes Leasehold, and is excluded by it. Leasehold waits
/// for such a holder and reports it as foreign, but is not notified of its release, and polls every
/// quarter of a second. While several share the lock, the key lives as long as the last of their
/// leases. The other data that Leasehold keeps of a name lie beside it, in keys that begin with
/// `{name}`; all expire by themselves, and go with the last holder and waiter. One key exists for
/// all names of a database, `{}:f`: the greatest token, for two hours.
///
/// **Waiting.** One queue for all modes, ordered by ticket; its places are alive by the server's
/// clock, and each is a lease of its own. A release admits from the queue, in its order, every live
/// place for which there is now room, and notifies exactly their clients, in that script.
/// [`WaitPolicy::Fast`] keeps this order, since no room is left while a live waiter could have it;
/// it adds a block of tokens, for tasks of one process that pass the lock on among themselves.
///
/// **Rights.** An ACL user needs `+@scripting +@read +@write +@pubsub +@connection +time`, the
/// channels `&leasehold:*`, and its keys as `~prefix*`, `~{prefix*` and `~{}:f`. Warnings, and
/// noticing that a server was replaced, need `+info +config|get`, and replicas need `+wait +info`.
/// A missing right is named when the store connects, before anything is written.
///
/// **RESP2.** A server, or a proxy before it, that refuses `HELLO 3` is spoken to by RESP2. Nothing is pushed then: waiters
/// ask up to 20 times a second, and [`Guarantees::pushed_wake`] is false. See [`Config::resp2`].
///
/// **In a Cluster** there is a connection to each primary, and a fence for each slot, `{}:f:n`: a
/// user needs `~{}:f:*` instead of `~{}:f`, and `+cluster|slots`. Several names are taken one after
/// the other. The store's page in the documentation explains the consequences for locks when a slot
/// moves or a primary dies.
///
/// [`WaitPolicy::Fast`]: leasehold_core::backend::WaitPolicy::Fast
pub struct Redis {
    nodes: Arc<Nodes>,
    replicas: Option<Replicas>,
    warnings: Vec<String>,
    names: Names,
    inbox: Inbox,
    releases: Releases,
    mark: Arc<StoreMark>,
    /// The verbs without scripts, if the server runs none.
    plain: Option<Plain>,
}

impl Redis {
    /// Connects to `redis://[:password@|user:password@]host[:port][/db]`, and asks the server a few
    /// questions: whether it may forget a lock that is held, by an eviction policy, for want of
    /// persistence, or as a replica takes its place. The answers become [`Guarantees::warnings`],
    /// and events. These options may follow after a `?`, joined by `&`:
    ///
    /// * `timeout=ms` limits each request and each step of connecting (default 1000).
    /// * `prefix=text` stands before every key.
    /// * `store=id` is [`Config::store_id`].
    /// * `scripts=off` is [`Config::without_scripts`], for a server that forbids scripts.
    /// * after `rediss://`, which is the same over TLS and needs the feature `tls`: `ca=file`, `cert=file` and `key=file`,
    ///   `server_name=name`, as `Tls` has them.
    /// * `min_replicas=n` and `min_replicas_timeout=ms` (default 100) wait for replicas: [`Config::min_replicas`].
    ///
    /// Or connects to the master that sentinels name,
    /// `redis+sentinel://sentinel,sentinel,sentinel/master-name[/db]`, over TLS
    /// `rediss+sentinel://`, with these options and those of [`Config::from_url`]. The sentinels
    /// are asked before each connection, and they publish when they put another server in the
    /// master's place. A failover may lose locks: see [`Config::min_replicas`], and the store's
    /// page in the documentation.
    ///
    /// Or connects to a Redis Cluster, `redis+cluster://[…@]host:port,host:port…`, over TLS
    /// `rediss+cluster://`: the hosts are asked for all others, and the options are these except
    /// `min_replicas`. Hosts that belong to another Cluster than most of them, and later nodes of
    /// another one, are not used.
    ///
    /// # Errors
    ///
    /// `Invalid` for a URL that is anything else (the message names the part) and for a database
    /// that the server does not have. `Unsupported` for TLS without its feature, for a Sentinel or a node of a Redis Cluster in the place of one server and the
    /// reverse, and for a server or a proxy that cannot run the scripts. `OtherStore` if the server
    /// is another one than `store` names, or no Cluster has most of the hosts. `Invalid` if sentinels
    /// know no master of that name. `Denied` for a refused password, and for a user without the
    /// rights above, which are named. `Unavailable` if no server answers within two timeouts (with
    /// sentinels three, in a Cluster five, and eight with `store` or a tie), or only a replica, or one that takes writes. No error
    /// shows a credential, or the server's words about one. Over TLS also `Invalid` for a file that
    /// is missing or wrong, and `Denied` if the server's certificate is refused, or ours.
    pub async fn connect(url: &str) -> Result<Redis> {
        Redis::with_config(Config::from_url(url)?).await
    }

    /// Connects according to the configuration. The errors are those of
    /// [`connect`](Redis::connect).
    pub async fn with_config(config: Config) -> Result<Redis> {
        let names = Names::new(&config.prefix, &BESIDE)?;
        let inbox = Inbox::new(config.min_replicas.is_some());
        let mark = StoreMark::pinned(config.store_id.clone(), names.mark());
        let mark = Arc::new(mark);
        if !config.scripts && config.cluster.is_some() {
            return Err(plain::no_cluster());
        }
        let (nodes, warnings) = Nodes::connect(&config, &inbox, &mark).await?;
        let nodes = Arc::new(nodes);
        if !nodes.has_pushes() {
            if config.min_replicas.is_some() {
                return Err(needs_resp3("min_replicas"));
            }
            if !config.scripts {
                return Err(needs_resp3("scripts=off"));
            }
        }
        let mut plain = None;
        if !config.scripts {
            plain = Some(Plain::on(&nodes, &names, &inbox, &config).await?);
        } else if let Err(e) = nodes.check(&NEEDS, FENCE, &names).await {
            return Err(nodes.or_without_scripts(e).await);
        }
        let replicas = Replicas::open(&config).await?;
        let releases = Redis::releases(&nodes, &names, &inbox);
        let redis = Redis {
            nodes,
            replicas,
            warnings,
            names,
            inbox,
            releases,
            mark,
            plain,
        };
        if redis.plain.is_none() {
            redis.check().await?;
        }
        Ok(redis)
    }

    /// Connects to the server of a ready client, with its credentials and its TLS: a `redis::Client` has no connection of its
    /// own. For options, give its `get_connection_info` to [`Config::new`]. The errors are those of [`connect`](Redis::connect).
    ///
    #[cfg_attr(feature = "tls-no-provider", doc = "```")]
    #[cfg_attr(not(feature = "tls-no-provider"), doc = "```ignore")]
    /// # use leasehold_testbed::{Certificates, Redis as Server, RedisOptions, TlsPort};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let authority = Certificates::new()?;
    /// # let port = TlsPort::new(&authority)?.mutual();
    /// # let options = RedisOptions { extra: port.redis(), password: Some("secret".into()), ..RedisOptions::default() };
    /// # let server = Server::start_with(&options).await?;
    /// # let (url, files) = (format!("rediss://:secret@{}", port.addr()), authority.issue("client")?);
    /// # let (ca, client_cert, client_key) =
    /// #     (std::fs::read(authority.ca())?, std::fs::read(files.certificate)?, std::fs::read(files.key)?);
    /// use leasehold_core::Store;
    /// use leasehold_redis::Redis;
    /// use leasehold_redis::client::{Client, ClientTlsConfig, TlsCertificates};
    ///
    /// // The program's own, with its credentials and its TLS.
    /// let client_tls = Some(ClientTlsConfig { client_cert, client_key });
    /// let client = Client::build_with_tls(url, TlsCertificates { client_tls, root_cert: Some(ca) })?;
    ///
    /// let store = Store::new(Redis::with_client(&client).await?);
    /// let guard = store.lock("orders/42").acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn with_client(client: &client::Client) -> Result<Redis> {
        Redis::with_config(Config::new(client.get_connection_info().clone())).await
    }
}

impl Redis {
    /// Refuses what takes a script, and what the guarantees without scripts do not promise.
    fn uses_scripts(&self) -> Result<()> {
        self.plain
            .as_ref()
            .map_or(Ok(()), |_| Err(plain::no_script()))
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({:?}, {:?})", self.nodes, self.names)
    }
}

#[async_trait]
impl Backend for Redis {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        match &self.plain {
            None => self.claim(claim).await,
            // Boxed: it is larger, and unboxed it would enlarge every call's future.
            Some(plain) => Box::pin(self.claim_plain(plain, claim)).await,
        }
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.uses_scripts()?;
        self.claim_all(claims).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        Ok(match &self.plain {
            None => self.renew(leases).await,
            Some(plain) => Box::pin(plain.renew(leases)).await,
        })
    }

    /// A multiple of the leases that one script renews.
    fn renew_batch(&self) -> usize {
        3 * AT_ONCE
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        match &self.plain {
            None => self.release(claim).await,
            Some(plain) => Box::pin(plain.release(claim)).await,
        }
    }

    async fn release_after(
        &self,
        claim: &Claim,
        _place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        self.uses_scripts()?;
        self.release_after(claim, rest).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        match &self.plain {
            None => self.inspect(name).await,
            Some(plain) => Box::pin(plain.inspect(name)).await,
        }
    }

    /// Walks all keys of the database with `SCAN`, so it costs O(keys) and is meant for people and tools.
    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.nodes
            .list(&self.names, Keys::InUse, prefix, after, limit)
            .await
    }

    /// The hold of another tool is ended by the number that `inspect` shows for it, if its value
    /// has not changed.
    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        match &self.plain {
            None => self.evict(name, token).await,
            Some(plain) => Box::pin(plain.evict(name, token)).await,
        }
    }

    fn identity(&self) -> Option<StoreId> {
        self.mark.id()
    }

    fn guarantees(&self) -> Guarantees {
        if self.plain.is_some() {
            return plain::guarantees().with_warnings(self.warnings.clone());
        }
        let is_one = matches!(*self.nodes, Nodes::One(_));
        let has_pushes = self.nodes.has_pushes();
        let notes = match (is_one, has_pushes) {
            (true, true) => NOTES,
            (true, false) => RESP2_NOTES,
            (false, _) => CLUSTER_NOTES,
        };
        Guarantees::none("redis")
            .with_fencing(Fencing::SurvivesDataLoss)
            .with_fairness(Fairness::Strict)
            .with_pushed_wake(has_pushes)
            .with_ttl(MIN_TTL, Duration::from_millis(1))
            .with_recovery(Duration::from_millis(200))
            .with_atomic_multi(if is_one { AT_ONCE } else { 1 })
            .with_min_hold_outlives_process(true)
            .with_once(true)
            .with_notes(notes)
            .with_warnings(self.warnings.clone())
    }

    /// Without scripts nothing records completions.
    fn completions(&self) -> Option<&dyn Completions> {
        self.plain.is_none().then_some(self as &dyn Completions)
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        let raises = matches!(*self.nodes, Nodes::One(_)) && self.plain.is_none();
        raises.then_some(self as &dyn TokenFloor)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.inbox.notifier)
    }

    /// Without scripts nothing is published, and observers look from time to time.
    fn observe(&self, name: &Name) -> Subscription {
        if self.plain.is_some() {
            return Subscription::none();
        }
        self.nodes.observe(name, &self.names)
    }

    /// Closes the connection. Redis has no sessions: holds end with their leases.
    async fn close(&self) -> Result<()> {
        self.nodes.close();
        self.replicas
            .iter()
            .for_each(|replicas| replicas.connection.close());
        Ok(())
    }
}

#[async_trait]
impl TokenFloor for Redis {
    fn raises(&self) -> Raises {
        RAISES
    }

    async fn mark(&self) -> Result<FencingToken> {
        self.raise(FencingToken::new(0)).await
    }

    async fn raise(&self, number: FencingToken) -> Result<()> {
        self.raise(number).await.map(drop)
    }
}

#[async_trait]
impl Completions for Redis {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        self.complete(claim, request).await
    }

    async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        self.completion(name).await
    }

    async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.forget(name, token).await
    }

    /// Walks all keys of the database with `SCAN`, as `list` does.
    async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        self.list_completions(prefix, after, limit).await
    }
}

fn needs_resp3(what: &str) -> Error {
    let what = format!("{what} is for a server that speaks RESP3");
    Error::new(ErrorKind::Unsupported, what)
}

macro_rules! notes {
    () => {
        "\
Exclusion holds while the server keeps its data and its clock: after an asynchronous failover, a restart without \
persistence, an eviction (use maxmemory-policy noeviction) or a step of its clock, two may hold at once, and only the \
token tells them apart. Each grant raises the fence behind all tokens to the server's clock: \
tokens that were not raised ahead of it rise after a loss of data, unless that clock steps back past the loss (a failover is a step from one server's \
clock to another's); with the data kept, they rise through steps back of up to two hours. SET-NX-PX clients are \
excluded, but stand in no queue and take a lock that expired before the waiters. A holder that dies before its first \
renewal may be noticed late by up to a third of the waiter's TTL. The same losses of data, and a step of the clock, may end completions: \
work that is done once is then done again."
    };
}

const NOTES: &str = notes!();

const RESP2_NOTES: &str = concat!(
    notes!(),
    " Over RESP2 nothing is pushed: the first waiter asks every 50 ms, so it gets the lock so much later, and a holder learns of its \
eviction at its next renewal."
);

const CLUSTER_NOTES: &str = "\
Exclusion holds while every node keeps its data, its slots and its clock: after a failover to a replica, which may lack the last writes, a \
restart without persistence, an eviction or a step of a node's clock, two may hold at once, and only the token tells them apart. \
Tokens rise within a slot: with it when it is moved to another node, and after a failover unless the new primary's clock is behind the \
old one's by more than the failover took. While a slot is moved, exclusive holds in it are renewed, and all else in it waits. \
SET-NX-PX clients are excluded, but stand in no queue and take a lock that expired before the waiters. The same losses of data, and a \
step of the clock, may end completions: work that is done once is then done again.";
