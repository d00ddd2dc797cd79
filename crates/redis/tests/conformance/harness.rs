//! The powers of the suite over a private Redis server, reached as it is or over TLS, and over one of somebody else.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a harness that cannot do its part has failed"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_conformance::harness::{FencedResource, ForeignHold};
use leasehold_conformance::{Budget, Capabilities, Harness, Link, Need};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::{Fenced, Result};
use leasehold_redis::Redis as RedisStore;
use leasehold_redis::client::Client;
use leasehold_redis::client::aio::MultiplexedConnection;
use leasehold_testbed::verbs::connected;
use leasehold_testbed::{
    Certificates, Detour, Proxy, Redis, RedisGate, RedisOptions, RedisSentinel, SentinelOptions,
    TlsPort,
};

use crate::ALLOCATOR;

/// A server of ours, or somebody else's.
pub enum World {
    Private(Arc<Redis>),
    /// The clients of the store come over TLS, as a user with the documented rights.
    Secure(Arc<Redis>, Box<TlsPort>, Box<Certificates>),
    /// They come by way of a proxy that refuses scripts which touch undeclared keys.
    Declared(Arc<Redis>, Arc<RedisGate>),
    /// They come by way of a proxy that closes the connection at `HELLO` and other commands.
    Resp2(Arc<Redis>, Arc<RedisGate>),
    /// They come as a user that may run no scripts.
    Plain(Arc<Redis>),
    /// They ask sentinels where the master of two replicas is.
    Sentinel(Box<RedisSentinel>),
    External(String),
}

/// The documented rights.
const USER: &str = "app on >pw ~* resetchannels &leasehold:* +@scripting +@read +@write +@pubsub +@connection +time +info +config|get";

/// The documented rights without scripts.
const PLAIN_USER: &str = "app on >pw ~* resetchannels &leasehold:* +@read +@write +@pubsub +@connection +@transaction +time +info +config|get -@scripting";

impl World {
    pub async fn without_scripts() -> Arc<dyn Harness> {
        let server = World::server_without_scripts().await;
        Arc::new(World::Plain(Arc::new(server)))
    }

    async fn server_without_scripts() -> Redis {
        let user = ["--user"].into_iter().chain(PLAIN_USER.split(' '));
        let options = RedisOptions {
            persistent: true,
            extra: user.map(str::to_owned).collect(),
            ..RedisOptions::default()
        };
        Redis::start_with(&options)
            .await
            .expect("a private redis-server")
    }

    pub async fn private_one() -> Arc<dyn Harness> {
        Arc::new(World::Private(World::persistent().await))
    }

    pub async fn with_declared_keys() -> Arc<dyn Harness> {
        let server = World::persistent().await;
        let gate = RedisGate::declared_keys(server.addr()).await;
        let gate = Arc::new(gate.expect("a proxy"));
        Arc::new(World::Declared(server, gate))
    }

    pub async fn resp2_one() -> Arc<dyn Harness> {
        let server = World::persistent().await;
        let gate = RedisGate::twemproxy(vec![server.addr().to_owned()]).await;
        let gate = Arc::new(gate.expect("a proxy"));
        Arc::new(World::Resp2(server, gate))
    }

    async fn persistent() -> Arc<Redis> {
        let options = RedisOptions {
            persistent: true,
            ..RedisOptions::default()
        };
        let server = Redis::start_with(&options).await;
        Arc::new(server.expect("a private redis-server"))
    }

    pub async fn secure_one() -> Arc<dyn Harness> {
        let certificates = Certificates::new().expect("a CA");
        let port = TlsPort::new(&certificates).expect("a port").mutual();
        let user = ["--user"]
            .into_iter()
            .chain(USER.split(' '))
            .map(str::to_owned);
        let options = RedisOptions {
            persistent: true,
            extra: port.redis().into_iter().chain(user).collect(),
            ..RedisOptions::default()
        };
        let server = Redis::start_with(&options)
            .await
            .expect("a private redis-server");
        certificates
            .issue("client")
            .expect("a client's certificate");
        Arc::new(World::Secure(
            Arc::new(server),
            Box::new(port),
            Box::new(certificates),
        ))
    }

    pub async fn behind_sentinels() -> Arc<dyn Harness> {
        let servers = RedisOptions {
            persistent: true,
            password: Some("pw".into()),
            ..RedisOptions::default()
        };
        let options = SentinelOptions {
            servers,
            password: Some("s3ntinel".into()),
            ..SentinelOptions::default()
        };
        let all = RedisSentinel::start_with(&options)
            .await
            .expect("a master, its replicas and sentinels");
        Arc::new(World::Sentinel(Box::new(all)))
    }

    fn server(&self) -> &Redis {
        match self {
            World::Private(server)
            | World::Secure(server, ..)
            | World::Declared(server, _)
            | World::Resp2(server, _)
            | World::Plain(server) => server,
            // Nobody has it replaced.
            World::Sentinel(all) => &all.servers()[0],
            World::External(_) => unreachable!("not among the capabilities"),
        }
    }

    /// Where clients of the store connect, by way of this address if it is another one.
    fn url(&self, by: Option<&str>) -> String {
        match self {
            World::Private(server) => by.map_or_else(|| server.url(), |by| format!("redis://{by}")),
            World::Declared(_, gate) | World::Resp2(_, gate) => {
                format!("redis://{}", by.unwrap_or(gate.addr()))
            }
            World::Plain(server) => {
                let by = by.unwrap_or(server.addr());
                format!("redis://app:pw@{by}?scripts=off")
            }
            World::Secure(_, port, certificates) => {
                let (at, folder) = (
                    port.addr(),
                    certificates.ca().parent().expect("a folder").display(),
                );
                let files =
                    format!("ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key");
                format!("rediss://app:pw@{}?{files}", by.unwrap_or(&at))
            }
            World::Sentinel(all) => by.map_or_else(|| all.url(), |by| all.url_of(by)),
            World::External(url) => url.clone(),
        }
    }
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        match self {
            World::Secure(..) => "redis, TLS",
            World::Plain(_) => "redis, scripts=off",
            World::Sentinel(_) => "redis, Sentinel",
            World::Declared(..) => "redis, declared keys",
            World::Resp2(..) => "redis, RESP2",
            _ => "redis",
        }
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let url = self.url(None);
        Arc::new(connected(|| RedisStore::connect(&url)).await)
    }

    fn ttl(&self) -> Duration {
        // With one second, a machine with many times more work than cores loses leases that nothing is wrong with.
        Duration::from_secs(2)
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{
            AnotherTool, AtomicMulti, Contents, DeleteHolder, Downgrade, Fair, Fence, Floor,
            Footprint, Heap, Junk, Link, MinHold, Once, Permits, Private, PushedWake, Raise,
            Requests, Restart, Shared, Wipe,
        };
        let plain = [
            Private,
            Link,
            Fence,
            DeleteHolder,
            AnotherTool,
            Junk,
            Restart,
            Wipe,
            Footprint,
            Requests,
            Contents,
            Heap,
        ];
        let all = [&plain[..], &[PushedWake]].concat();
        match self {
            World::Private(_) => Capabilities::new(&[&all[..], &[Need::Detour]].concat(), ""),
            World::Secure(..) | World::Sentinel(_) => {
                Capabilities::new(&all, "the way to another server is led in plain text")
            }
            World::Declared(..) => {
                Capabilities::new(&all, "the proxy is not led to another server")
            }
            World::Resp2(..) => Capabilities::new(
                &plain,
                "nothing is pushed over RESP2, and the proxy is not led to another server",
            ),
            World::Plain(_) => Capabilities::new(
                &[
                    Private,
                    Link,
                    DeleteHolder,
                    AnotherTool,
                    Junk,
                    Restart,
                    Wipe,
                    Footprint,
                    Contents,
                    Heap,
                    Need::Detour,
                ],
                "nothing is pushed, conditions are scripts, and a verb is a transaction of several requests",
            )
            .lacks(&[Fair], "waiters have no order")
            .lacks(&[Shared, Permits, Downgrade], "a lock is one exclusive hold")
            .lacks(&[AtomicMulti], "one transaction takes one name")
            .lacks(&[MinHold], "the client that holds keeps it")
            .lacks(&[Once], "completions are written by scripts")
            .lacks(&[Raise, Floor], "tokens follow the fence alone"),
            World::External(url) => {
                let able = Capabilities::new(
                    &[PushedWake],
                    "the server of LEASEHOLD_REDIS_URL is not ours to disturb",
                );
                let cluster = url
                    .split_once("://")
                    .is_some_and(|(scheme, _)| scheme.ends_with("+cluster"));
                if !cluster {
                    return able;
                }
                able.lacks(&[AtomicMulti], "names are in different slots")
                    .lacks(
                        &[Raise, Floor],
                        "each slot numbers its holds by itself",
                    )
            }
        }
    }

    async fn private(&self) -> Arc<dyn Harness> {
        match self {
            World::Secure(..) => World::secure_one().await,
            World::Plain(_) => World::without_scripts().await,
            World::Sentinel(_) => World::behind_sentinels().await,
            World::Declared(..) => World::with_declared_keys().await,
            World::Resp2(..) => World::resp2_one().await,
            _ => World::private_one().await,
        }
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let to = match self {
            World::Secure(_, port, _) => port.addr(),
            World::Declared(_, gate) | World::Resp2(_, gate) => gate.addr().to_owned(),
            _ => self.server().addr().to_owned(),
        };
        let proxy = Proxy::to(&to).await.expect("a proxy");
        let mut by = proxy.addr().to_owned();
        if let World::Sentinel(all) = self {
            // To the sentinels it is another master.
            by = format!("by-{}", proxy.port());
            all.watch_too(&by, proxy.port()).await.expect("sentinels");
        }
        let url = self.url(Some(&by));
        let client = connected(|| RedisStore::connect(&url)).await;
        (Arc::new(client), Arc::new(proxy))
    }

    async fn misled_client(&self) -> (Arc<dyn Backend>, Arc<dyn leasehold_conformance::Detour>) {
        let other = match self {
            World::Plain(_) => World::server_without_scripts().await,
            _ => Redis::start().await.expect("another Redis"),
        };
        let url = match self {
            World::Plain(_) => self.url(Some(other.addr())),
            _ => other.url(),
        };
        let elsewhere = Arc::new(connected(|| RedisStore::connect(&url)).await);
        let ways = vec![[self.server().addr().to_owned(), other.addr().to_owned()]];
        let way = Detour::between(ways, elsewhere, other)
            .await
            .expect("a proxy");
        // Only a client that names its store recognizes another one.
        let id = self.client().await.identity().expect("an identity");
        let url = self.url(Some(way.addrs()[0]));
        let word = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{word}store={id}");
        let client = connected(|| RedisStore::connect(&url)).await;
        (Arc::new(client), Arc::new(way))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        static ROWS: AtomicU64 = AtomicU64::new(0);
        let url = self.url(None);
        let locks = Arc::new(connected(|| RedisStore::connect(&url)).await);
        let client = Client::open(self.server().url()).expect("a URL");
        let connection = client
            .get_multiplexed_async_connection()
            .await
            .expect("a connection");
        let row = format!("row/{}", ROWS.fetch_add(1, Ordering::Relaxed));
        (
            locks.clone(),
            Arc::new(Row {
                locks,
                connection,
                row,
            }),
        )
    }

    async fn delete_holder(&self, full_name: &str) {
        let gone = self
            .server()
            .command(&["DEL", full_name])
            .await
            .expect("DEL");
        assert_eq!(gone.integer(), Some(1));
    }

    async fn hold_as_another_tool(&self, full_name: &str) -> Box<dyn ForeignHold> {
        // What every client of the Redlock family does.
        let set = ["SET", full_name, "somebody-else", "NX", "PX", "30000"];
        assert_eq!(
            self.server()
                .command(&set)
                .await
                .expect("SET")
                .text()
                .as_deref(),
            Some("OK")
        );
        Box::new(Foreign(
            Client::open(self.server().url()).expect("a URL"),
            full_name.to_owned(),
        ))
    }

    async fn put_junk(&self, full_name: &str) {
        self.server()
            .command(&["RPUSH", full_name, "junk"])
            .await
            .expect("RPUSH");
    }

    async fn restart(&self) {
        self.server().restart_with_data().await.expect("a restart");
    }

    async fn wipe(&self) {
        self.server()
            .command(&["FLUSHALL"])
            .await
            .expect("FLUSHALL");
    }

    async fn requests(&self) -> u64 {
        let stats = self
            .server()
            .commandstats()
            .await
            .expect("INFO commandstats");
        // What scripts call inside is counted too, under its own name. Sentinels ping.
        let pings = if matches!(self, World::Sentinel(_)) {
            ""
        } else {
            "ping"
        };
        ["evalsha", "eval", "script|load", pings]
            .iter()
            .filter_map(|command| stats.get(*command))
            .sum()
    }

    fn budget(&self) -> Budget {
        Budget {
            cycle: 2.0,
            hand_over: 2.1,
            permits: 2.1,
            // Without pushes waiters poll, the later in the queue the less often.
            idle: match self {
                World::Resp2(..) => 150.0,
                _ => 0.0,
            },
        }
    }

    async fn footprint(&self) -> u64 {
        let mut lasting = 0;
        for key in self.server().keys("*").await.expect("KEYS") {
            let ttl = self.server().command(&["PTTL", &key]).await.expect("PTTL");
            lasting += u64::from(ttl.integer() == Some(-1));
        }
        lasting
    }

    async fn contents(&self) -> u64 {
        self.server().dbsize().await.expect("DBSIZE")
    }

    fn cycles(&self) -> usize {
        1_000_000
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

/// A number that is added to while its writer still holds.
struct Row {
    locks: Arc<RedisStore>,
    connection: MultiplexedConnection,
    row: String,
}

#[async_trait]
impl FencedResource for Row {
    async fn write(&self, by: &dyn Fenced) -> Result<bool> {
        let add = "return redis.call('INCR', KEYS[1])";
        let held = self.locks.still_holds(by)?;
        let written = held
            .then::<i64>(&mut self.connection.clone(), add, &[&self.row], &[""; 0])
            .await?;
        Ok(written.is_some())
    }

    async fn written(&self) -> u64 {
        let row: Option<u64> = leasehold_redis::client::cmd("GET")
            .arg(&self.row)
            .query_async(&mut self.connection.clone())
            .await
            .expect("GET");
        row.unwrap_or_default()
    }
}

struct Foreign(Client, String);

#[async_trait]
impl ForeignHold for Foreign {
    async fn release(self: Box<Self>) {
        let mut connection = self
            .0
            .get_multiplexed_async_connection()
            .await
            .expect("a connection");
        let del = leasehold_redis::client::cmd("DEL")
            .arg(&self.1)
            .exec_async(&mut connection)
            .await;
        del.expect("DEL");
    }
}
