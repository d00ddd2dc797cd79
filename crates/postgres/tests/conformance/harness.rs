//! The powers of the suite over a private PostgreSQL server, reached as it is, through PgBouncer, or both, and over one of somebody else.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a harness that cannot do its part has failed"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_conformance::harness::FencedResource;
use leasehold_conformance::{Budget, Capabilities, Harness, Link, Need};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::{Fenced, Result};
use leasehold_postgres::client::{Client, NoTls};
use leasehold_postgres::{Config, LOST, PoolOptions, Postgres as Store};
use leasehold_testbed::verbs::connected;
use leasehold_testbed::{Detour, PgBouncer, Postgres, PostgresOptions, Proxy};
use tokio::sync::Mutex;

use crate::ALLOCATOR;

/// A server of our own, and how clients reach it.
pub struct World {
    server: Postgres,
    way: Way,
}

enum Way {
    /// Without a pooler.
    Direct,
    /// By a pooler in transaction mode: nobody is notified.
    Pooled(PgBouncer),
    /// The same, with notifications from the server itself.
    Listen(PgBouncer),
    /// Over a pool of the program, with notifications from the server itself.
    Lent(Lender),
}

/// The kind of the program's pool.
#[derive(Clone, Copy)]
enum Lender {
    #[cfg(feature = "deadpool")]
    Deadpool,
    #[cfg(feature = "sqlx")]
    Sqlx,
}

impl Lender {
    /// A client over a pool of its own, as another program has it, to this server.
    async fn client(self, url: &str, listen: &str) -> Result<Store> {
        let listen = Config::from_url(listen)?;
        let options = PoolOptions::new().listen(listen);
        match self {
            #[cfg(feature = "deadpool")]
            Lender::Deadpool => {
                let settings = url.parse().expect("a URL");
                let manager = deadpool_postgres::Manager::new(settings, NoTls);
                let pool = deadpool_postgres::Pool::builder(manager).max_size(2);
                Store::with_pool(pool.build().expect("a pool"), options).await
            }
            #[cfg(feature = "sqlx")]
            Lender::Sqlx => {
                let pool = sqlx_postgres::PgPoolOptions::new().max_connections(2);
                Store::with_pool(pool.connect_lazy(url).expect("a pool"), options).await
            }
        }
    }
}

impl World {
    pub async fn direct() -> Arc<dyn Harness> {
        Arc::new(World {
            server: server().await,
            way: Way::Direct,
        })
    }

    pub async fn pooled() -> Arc<dyn Harness> {
        let server = server().await;
        let pooler = PgBouncer::start(&server)
            .await
            .expect("a private PgBouncer");
        Arc::new(World {
            server,
            way: Way::Pooled(pooler),
        })
    }

    pub async fn listen() -> Arc<dyn Harness> {
        let server = server().await;
        let pooler = PgBouncer::start(&server)
            .await
            .expect("a private PgBouncer");
        Arc::new(World {
            server,
            way: Way::Listen(pooler),
        })
    }

    #[cfg(feature = "deadpool")]
    pub async fn deadpool() -> Arc<dyn Harness> {
        Arc::new(World {
            server: server().await,
            way: Way::Lent(Lender::Deadpool),
        })
    }

    #[cfg(feature = "sqlx")]
    pub async fn sqlx() -> Arc<dyn Harness> {
        Arc::new(World {
            server: server().await,
            way: Way::Lent(Lender::Sqlx),
        })
    }

    /// A client by these addresses, for the verbs and for the listener.
    async fn connect(&self, verbs: &str, listen: &str) -> Store {
        let url = self.url(verbs, listen);
        match self.way {
            Way::Lent(lender) => {
                let listen = self.url(listen, listen);
                connected(|| lender.client(&url, &listen)).await
            }
            _ => connected(|| Store::connect(&url)).await,
        }
    }

    /// Where verbs are executed.
    fn addr(&self) -> &str {
        match &self.way {
            Way::Direct | Way::Lent(_) => self.server.addr(),
            Way::Pooled(pooler) | Way::Listen(pooler) => pooler.addr(),
        }
    }

    /// The store by these addresses, for the verbs and for the listener.
    fn url(&self, verbs: &str, listen: &str) -> String {
        let listen = match self.way {
            Way::Direct | Way::Lent(_) => String::new(),
            Way::Pooled(_) => "?listen=off".to_owned(),
            Way::Listen(_) => format!("?listen={listen}"),
        };
        format!(
            "postgres://{}:{}@{verbs}/{}{listen}",
            Postgres::USER,
            Postgres::PASSWORD,
            Postgres::DATABASE
        )
    }
}

async fn server() -> Postgres {
    // No machine is switched off here, and a disk that many share would decide what is judged.
    let counted = PostgresOptions::default()
        .set("shared_preload_libraries", "pg_stat_statements")
        .set("fsync", "off");
    let server = Postgres::start_with(&counted)
        .await
        .expect("a private PostgreSQL");
    server
        .query("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        .await
        .expect("the server's counters");
    server
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        match self.way {
            Way::Direct => "postgres",
            Way::Pooled(_) => "postgres, PgBouncer",
            Way::Listen(_) => "postgres, PgBouncer with listen=",
            Way::Lent(_) => "postgres, a pool of the program",
        }
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.connect(self.addr(), self.server.addr()).await)
    }

    fn ttl(&self) -> Duration {
        // An fsync takes its time beside the rest of a busy machine.
        Duration::from_secs(2)
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{
            Contents, DeleteHolder, Fence, Footprint, Heap, Junk, Link, Private, PushedWake,
            Requests, Restart, Wipe,
        };
        let able = [
            Private,
            Link,
            Fence,
            DeleteHolder,
            Junk,
            Restart,
            Wipe,
            Footprint,
            Contents,
            Heap,
        ];
        let able = match self.way {
            Way::Pooled(_) => able.to_vec(),
            Way::Direct => [&able[..], &[PushedWake, Requests, Need::Detour]].concat(),
            Way::Listen(_) => [&able[..], &[PushedWake, Requests]].concat(),
            // Each connection that is borrowed is asked who it is.
            Way::Lent(_) => [&able[..], &[PushedWake]].concat(),
        };
        Capabilities::new(
            &able,
            "no other tool holds these locks; without notifications waiters poll, as often as time goes by",
        )
    }

    async fn private(&self) -> Arc<dyn Harness> {
        match self.way {
            Way::Direct => World::direct().await,
            Way::Pooled(_) => World::pooled().await,
            Way::Listen(_) => World::listen().await,
            Way::Lent(lender) => Arc::new(World {
                server: server().await,
                way: Way::Lent(lender),
            }),
        }
    }

    async fn linked_client(&self) -> (Arc<dyn Backend>, Arc<dyn Link>) {
        let verbs = Proxy::to(self.addr()).await.expect("a proxy");
        let listen = Proxy::to(self.server.addr()).await.expect("a proxy");
        let client = self.connect(verbs.addr(), listen.addr()).await;
        (Arc::new(client), Arc::new(Links(verbs, listen)))
    }

    async fn misled_client(&self) -> (Arc<dyn Backend>, Arc<dyn leasehold_conformance::Detour>) {
        let other = server().await;
        let url = self.url(other.addr(), other.addr());
        let elsewhere = Arc::new(connected(|| Store::connect(&url)).await);
        let ways = vec![[self.addr().to_owned(), other.addr().to_owned()]];
        let way = Detour::between(ways, elsewhere, other)
            .await
            .expect("a proxy");
        let url = self.url(way.addrs()[0], self.server.addr());
        let client = connected(|| Store::connect(&url)).await;
        (Arc::new(client), Arc::new(way))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        static ROWS: AtomicU64 = AtomicU64::new(0);
        let locks = Arc::new(self.connect(self.addr(), self.server.addr()).await);
        let (client, connection) = leasehold_postgres::client::connect(&self.server.url(), NoTls)
            .await
            .expect("a connection");
        tokio::spawn(connection);
        let table = format!("leasehold_orders_{}", ROWS.fetch_add(1, Ordering::Relaxed));
        client
            .batch_execute(&format!(
                "CREATE SCHEMA {table}; CREATE TABLE {table}.orders ()"
            ))
            .await
            .expect("a table");
        (
            locks.clone(),
            Arc::new(Orders {
                locks,
                client: Mutex::new(client),
                table: format!("{table}.orders"),
            }),
        )
    }

    async fn delete_holder(&self, full_name: &str) {
        let delete = "DELETE FROM leasehold.place WHERE token IS NOT NULL AND name = ";
        let gone = self
            .server
            .query(&format!("{delete}{} RETURNING name", quoted(full_name)))
            .await
            .expect("DELETE");
        assert_eq!(gone.len(), 1);
    }

    async fn put_junk(&self, full_name: &str) {
        let name = quoted(full_name);
        let line = format!("INSERT INTO leasehold.lines VALUES ({name}, 1, 1, 1, 1, now())");
        let place = format!(
            "INSERT INTO leasehold.place VALUES ({name}, 1, gen_random_uuid(), 9, 0, 0, 0, NULL, '', 'junk', now(), 1, 'infinity', 0, 0)"
        );
        self.server
            .query(&format!("{line}; {place}"))
            .await
            .expect("junk");
    }

    async fn restart(&self) {
        self.server.restart_with_data().await.expect("a restart");
    }

    async fn wipe(&self) {
        self.server
            .query("DROP SCHEMA leasehold CASCADE")
            .await
            .expect("DROP");
    }

    async fn requests(&self) -> u64 {
        let role = format!(
            "(SELECT oid FROM pg_roles WHERE rolname = '{}')",
            Postgres::USER
        );
        let count = format!(
            "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE userid = {role}"
        );
        self.server.number(&count).await.expect("a count")
    }

    fn budget(&self) -> Budget {
        // The third is the notification, which nobody waits for; a listener without notifications is checked each five seconds.
        Budget {
            cycle: 2.0,
            hand_over: 3.1,
            permits: 3.1,
            idle: 0.4,
        }
    }

    async fn footprint(&self) -> u64 {
        // A place ends with its lease, and what a name leaves is swept away.
        let lasting = "SELECT (SELECT count(*) FROM leasehold.place WHERE until > now() + interval '1 day')
            + (SELECT count(*) FROM leasehold.observer WHERE until > now() + interval '1 day')
            + (SELECT count(*) FROM pg_prepared_xacts) + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')";
        self.server.number(lasting).await.expect("a count")
    }

    async fn contents(&self) -> u64 {
        let rows = ["lines", "place", "observer", "meta"]
            .map(|table| format!("(SELECT count(*) FROM leasehold.{table})"));
        self.server
            .number(&format!("SELECT {}", rows.join(" + ")))
            .await
            .expect("a count")
    }

    fn forgets_within(&self, _names: usize) -> Duration {
        Duration::from_secs(60)
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

/// A server of somebody else, with or without a pooler before it: it is used, and not disturbed.
pub struct External {
    url: String,
    is_rung: bool,
}

impl External {
    pub async fn at(url: String) -> Arc<dyn Harness> {
        let is_rung = connected(|| Store::connect(&url))
            .await
            .guarantees()
            .pushed_wake();
        Arc::new(External { url, is_rung })
    }
}

#[async_trait]
impl Harness for External {
    fn store_name(&self) -> &'static str {
        "postgres"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(connected(|| Store::connect(&self.url)).await)
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn capabilities(&self) -> Capabilities {
        let able: &[Need] = if self.is_rung {
            &[Need::PushedWake]
        } else {
            &[]
        };
        Capabilities::new(
            able,
            "the server of LEASEHOLD_POSTGRES_URL is not ours to disturb",
        )
    }
}

/// Both ways of one client, which are cut and healed together.
struct Links(Proxy, Proxy);

#[async_trait]
impl Link for Links {
    async fn black_hole(&self) {
        Link::black_hole(&self.0).await;
        Link::black_hole(&self.1).await;
    }

    async fn lose_replies(&self) {
        Link::lose_replies(&self.0).await;
        Link::lose_replies(&self.1).await;
    }

    async fn cut(&self) {
        Link::cut(&self.0).await;
        Link::cut(&self.1).await;
    }

    async fn heal(&self) {
        Link::heal(&self.0).await;
        Link::heal(&self.1).await;
    }
}

/// A table in the same database, in which each write is a transaction that begins with the condition.
struct Orders {
    locks: Arc<Store>,
    client: Mutex<Client>,
    table: String,
}

#[async_trait]
impl FencedResource for Orders {
    async fn write(&self, by: &dyn Fenced) -> Result<bool> {
        let still_holds = self.locks.still_holds(by)?;
        let (name, token) = still_holds.params();
        let mut client = self.client.lock().await;
        let tx = client.transaction().await.expect("a transaction");
        match tx.execute(still_holds.sql(), &[&name, &token]).await {
            Ok(_) => {}
            Err(e) if e.code().is_some_and(|code| code.code() == LOST) => return Ok(false),
            Err(e) => panic!("held: {e:?}"),
        }
        tx.execute(&format!("INSERT INTO {} DEFAULT VALUES", self.table), &[])
            .await
            .expect("a row");
        tx.commit().await.expect("a commit");
        Ok(true)
    }

    async fn written(&self) -> u64 {
        let count = format!("SELECT count(*) FROM {}", self.table);
        let row = self
            .client
            .lock()
            .await
            .query_one(&count, &[])
            .await
            .expect("a count");
        row.get::<_, i64>(0) as u64
    }
}
