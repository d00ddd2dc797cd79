//! The pairs of stores, their servers, and the ways to them.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Backend;
use leasehold::{Guarantees, Store};
use leasehold_bridge::Bridge;
use leasehold_chaos::Limits;
use leasehold_postgres::Postgres as PostgresStore;
use leasehold_testbed::{Etcd, Postgres, Proxy, Redis, RedisOptions, Server};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// A move that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    RedisToEtcd,
    RedisToPostgres,
    SqliteToRedis,
    RedisToRedis,
}

/// What a process holds in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Stage {
    One,
    Bridge,
    Three,
}

impl Kind {
    pub(crate) const ALL: [Kind; 4] = [
        Kind::RedisToEtcd,
        Kind::RedisToPostgres,
        Kind::SqliteToRedis,
        Kind::RedisToRedis,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::RedisToEtcd => "redis-etcd",
            Kind::RedisToPostgres => "redis-postgres",
            Kind::SqliteToRedis => "sqlite-redis",
            Kind::RedisToRedis => "redis-redis",
        }
    }

    /// Whether some seconds show something.
    pub(crate) fn is_quick(self) -> bool {
        matches!(self, Kind::SqliteToRedis | Kind::RedisToRedis)
    }

    /// Short, so that much happens; what the slower of both takes.
    pub(crate) fn ttl(self) -> Duration {
        Duration::from_millis(match self {
            Kind::RedisToEtcd => 2000,
            Kind::RedisToPostgres => 1000,
            Kind::SqliteToRedis | Kind::RedisToRedis => 600,
        })
    }

    /// How long after a death, or the end of a fault, a store may keep what a client has left, and dead connections go unnoticed.
    pub(crate) fn settle(self) -> Duration {
        2 * self.ttl() + Duration::from_secs(5)
    }

    pub(crate) fn limits(self) -> Limits {
        let mut limits = Limits::default();
        limits.settle = nanos(self.settle());
        limits.wake = nanos(Duration::from_secs(3));
        limits.late = nanos(Duration::from_millis(300));
        limits.lease = nanos(self.ttl() + Duration::from_secs(1));
        limits
    }
}

pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// One of the two stores, with a server of its own.
pub(crate) enum Side {
    File(TempDir),
    Redis(Redis),
    Etcd(Etcd),
    Postgres(Box<Postgres>),
}

impl Side {
    async fn redis() -> Side {
        let persistent = RedisOptions {
            persistent: true,
            ..RedisOptions::default()
        };
        Side::Redis(Redis::start_with(&persistent).await.unwrap())
    }

    /// Old and new.
    pub(crate) async fn both(kind: Kind) -> [Side; 2] {
        match kind {
            Kind::RedisToEtcd => [
                Side::redis().await,
                Side::Etcd(Etcd::start().await.unwrap()),
            ],
            Kind::RedisToPostgres => [
                Side::redis().await,
                Side::Postgres(Box::new(Postgres::start().await.unwrap())),
            ],
            Kind::RedisToRedis => [Side::redis().await, Side::redis().await],
            Kind::SqliteToRedis => [
                Side::File(tempfile::tempdir().unwrap()),
                Side::redis().await,
            ],
        }
    }

    /// None: it is a file.
    pub(crate) fn server(&self) -> Option<&Server> {
        match self {
            Side::File(_) => None,
            Side::Redis(server) => Some(server),
            Side::Etcd(server) => Some(server),
            Side::Postgres(server) => Some(server),
        }
    }

    pub(crate) async fn proxy(&self) -> Option<Proxy> {
        Some(Proxy::to(self.server()?.addr()).await.unwrap())
    }

    /// Its URL, by this way to it.
    pub(crate) fn url(&self, proxy: Option<&Proxy>) -> String {
        let address = proxy.map(|proxy| proxy.addr().to_owned());
        let address = address
            .or_else(|| Some(self.server()?.addr().to_owned()))
            .unwrap_or_default();
        match self {
            Side::File(folder) => format!("sqlite://{}", folder.path().join("locks.db").display()),
            Side::Redis(_) => format!("redis://{address}"),
            Side::Etcd(_) => format!("etcd://{address}"),
            Side::Postgres(server) => server.url().replace(server.addr(), &address),
        }
    }
}

/// A client of one store.
pub(crate) async fn connect(url: &str) -> leasehold::Result<Arc<dyn Backend>> {
    if url.starts_with("postgres") {
        return Ok(Arc::new(PostgresStore::connect(url).await?));
    }
    leasehold::connect(url).backend().await
}

/// A client of this stage.
pub(crate) async fn connect_as(
    stage: Stage,
    [old, new]: &[String; 2],
) -> leasehold::Result<(Store, Guarantees)> {
    let store = match stage {
        Stage::One => Store::new(connect(old).await?),
        Stage::Three => Store::new(connect(new).await?),
        Stage::Bridge => Store::new(Bridge::new(connect(old).await?, connect(new).await?)?),
    };
    let guarantees = store.guarantees().clone();
    Ok((store, guarantees))
}
