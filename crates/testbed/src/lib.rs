//! Real servers of a test's own, and a proxy that breaks their connections on purpose.
//!
//! - [`Redis`], [`Etcd`], [`ZooKeeper`], [`Postgres`] and [`PgBouncer`] start private servers on
//!   free loopback ports, with their data in a temporary folder. [`Server`] has the controls of
//!   every one of them (kill, pause, restart with or without data).
//! - [`RedisCluster`] is several Redis servers that share the keys, and moves slots between them.
//! - [`EtcdCluster`] and [`ZooKeeperEnsemble`] are several servers that belong together; their
//!   controls are at [`Cluster`].
//! - [`Proxy`] stands between a client and a server and cuts, holds, delays or loses the bytes that
//!   pass.
//! - [`RedisGate`] stands between a client and a Redis, and refuses what some proxies refuse.
//! - [`Certificates`] are those of a private CA, and [`TlsPort`] describes the TLS port of a
//!   server.
//! - [`verbs`] has the parts with which the tests of every store call a store, and [`seen`]
//!   records what a lock does under faults. [`mod@away`] starts a server after its client.
//! - [`mod@tls_cases`] are the cases of every store about TLS, [`mod@fleet_cases`] those about
//!   users and names. [`reasons`] compares what a store refuses with its page,
//!   and [`fence_matrix`] has the cells of the fence for stores with transactions.
//! - [`external_url`] names a server of the developer to use in place of a private one.
//!
//! No store's client crate is used here, and no store protocol is spoken beyond readiness, counters
//! and footprints: a test's knowledge of a server must not come through the code under test.
//!
//! The servers are found where Debian's packages put them. A missing one is [`Error::Missing`], never a skipped test.

pub mod away;
mod background;
mod certificates;
mod clock;
mod detour;
mod error;
pub mod fence_matrix;
mod find;
pub mod fleet_cases;
mod http;
mod kept;
mod link;
mod ports;
mod process;
mod proxy;
pub mod reasons;
mod resp;
pub mod seen;
mod server;
pub mod tls_cases;
pub mod verbs;

mod cluster;
mod links;

mod etcd;
mod etcd_cluster;
mod etcd_gates;
mod etcd_users;
mod zookeeper;
mod zookeeper_ensemble;
mod zookeeper_java;

mod pgbouncer;
mod postgres;
mod postgres_data;
mod postgres_wire;

mod redis;
mod redis_cluster;
mod redis_echo;
mod redis_gate;
mod redis_sentinel;

pub use certificates::{Certificates, KeyFiles, TlsPort};
pub use cluster::Cluster;
pub use detour::Detour;
pub use error::{Error, Result};
pub use etcd::{Etcd, EtcdOptions};
pub use etcd_cluster::EtcdCluster;
pub use find::{Program, external_url};
pub use pgbouncer::{PgBouncer, PgBouncerOptions};
pub use postgres::{Postgres, PostgresOptions};
pub use proxy::{Proxy, Trap};
pub use redis::{Redis, RedisOptions};
pub use redis_cluster::{RedisCluster, RedisClusterOptions};
pub use redis_echo::{RedisEcho, RedisLike};
pub use redis_gate::RedisGate;
pub use redis_sentinel::{RedisSentinel, SentinelOptions};
pub use resp::Reply;
pub use server::{ON_DISK, Server};
pub use zookeeper::{ZooKeeper, ZooKeeperOptions};
pub use zookeeper_ensemble::ZooKeeperEnsemble;
