//! The servers of a run, and what each counts by itself.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use leasehold_testbed::{Etcd, Postgres, PostgresOptions, Redis, ZooKeeper};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::processes;
use crate::subject::Result;

/// The stores that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    Memory,
    Sqlite,
    Redis,
    Redlock,
    Etcd,
    ZooKeeper,
    Postgres,
}

impl Store {
    pub const ALL: [Store; 7] = [
        Store::Memory,
        Store::Sqlite,
        Store::Redis,
        Store::Redlock,
        Store::Etcd,
        Store::ZooKeeper,
        Store::Postgres,
    ];
    /// All but the one that is made of others.
    pub const SINGLE: &[Store] = &[
        Store::Memory,
        Store::Sqlite,
        Store::Redis,
        Store::Etcd,
        Store::ZooKeeper,
        Store::Postgres,
    ];
    /// Those that several processes share.
    pub const SHARED: &[Store] = &[
        Store::Sqlite,
        Store::Redis,
        Store::Etcd,
        Store::ZooKeeper,
        Store::Postgres,
    ];
    /// Those that have a server of their own.
    pub const SERVED: &[Store] = &[Store::Redis, Store::Etcd, Store::ZooKeeper, Store::Postgres];
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

/// A store's private servers; of those that need none, the place.
pub enum Server {
    Memory,
    File(TempDir),
    Redis(Vec<Redis>),
    Etcd(Etcd),
    ZooKeeper(ZooKeeper),
    Postgres(Postgres),
}

/// What a server has counted since it started.
#[derive(Clone, Default, Debug)]
pub struct Counts {
    /// By command, method, or just `packets`.
    pub requests: BTreeMap<String, u64>,
    pub bytes: u64,
}

/// So many nodes has a Redlock.
const NODES: usize = 5;

impl Server {
    pub async fn start(store: Store) -> Result<Server> {
        Ok(match store {
            Store::Memory => Server::Memory,
            Store::Sqlite => Server::File(tempfile::tempdir()?),
            Store::Redis => Server::Redis(Redis::start_many(1).await?),
            Store::Redlock => Server::Redis(Redis::start_many(NODES).await?),
            Store::Etcd => Server::Etcd(Etcd::start().await?),
            Store::ZooKeeper => Server::ZooKeeper(ZooKeeper::start().await?),
            Store::Postgres => Server::Postgres(postgres().await?),
        })
    }

    /// Where `leasehold::connect` finds it.
    pub fn url(&self) -> String {
        match self {
            Server::Memory => "memory://".into(),
            Server::File(folder) => format!("sqlite://{}", file(folder).display()),
            Server::Redis(one) if one.len() == 1 => one[0].url(),
            Server::Redis(nodes) => {
                format!(
                    "redlock://{}",
                    nodes
                        .iter()
                        .map(|node| node.addr())
                        .collect::<Vec<_>>()
                        .join(",")
                )
            }
            Server::Etcd(etcd) => format!("etcd://{}", etcd.addr()),
            Server::ZooKeeper(zookeeper) => format!("zookeeper://{}", zookeeper.addr()),
            Server::Postgres(postgres) => postgres.url(),
        }
    }

    pub fn processes(&self) -> Vec<u32> {
        match self {
            Server::Memory | Server::File(_) => Vec::new(),
            Server::Redis(nodes) => nodes.iter().filter_map(|node| node.pid()).collect(),
            Server::Etcd(etcd) => etcd.pid().into_iter().collect(),
            Server::ZooKeeper(zookeeper) => zookeeper.pid().into_iter().collect(),
            // One for each connection, and some for the whole.
            Server::Postgres(postgres) => postgres.pid().map(processes::family).unwrap_or_default(),
        }
    }

    /// `None`: there is no server. What asking costs is in the counts.
    pub async fn counts(&self) -> Result<Option<Counts>> {
        let mut counts = Counts::default();
        match self {
            Server::Memory | Server::File(_) => return Ok(None),
            Server::Redis(nodes) => {
                for node in nodes {
                    for (command, calls) in node.commandstats().await? {
                        *counts.requests.entry(command).or_default() += calls;
                    }
                    let stats = node.info("stats").await?;
                    counts.bytes += numbers(&stats, "total_net_", ':')
                        .map(|(_, value)| value as u64)
                        .sum::<u64>();
                }
            }
            Server::Etcd(etcd) => {
                let metrics = metrics(etcd.addr()).await?;
                // Messages: a stream has many.
                for (name, value) in numbers(&metrics, "grpc_server_msg_received_total{", ' ') {
                    counts
                        .requests
                        .insert(word(name, "grpc_method=\"", "\"").into(), value as u64);
                }
                counts.bytes = numbers(&metrics, "etcd_network_client_grpc_", ' ')
                    .map(|(_, value)| value as u64)
                    .sum();
            }
            Server::ZooKeeper(zookeeper) => {
                counts
                    .requests
                    .insert("packets".into(), zookeeper.packets_received().await?);
                // It counts no bytes itself. Its log is in what it writes.
                counts.bytes = zookeeper
                    .pid()
                    .map(processes::bytes)
                    .transpose()?
                    .unwrap_or_default();
            }
            Server::Postgres(postgres) => {
                let statements = postgres
                    .number("SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements")
                    .await?;
                counts.requests.insert("statements".into(), statements);
                // It counts nothing on the wire.
                counts.bytes = postgres.wal().await?;
            }
        }
        Ok(Some(counts))
    }

    /// How many keys, nodes or rows it has. `None`: nobody can count what is in this process.
    pub async fn keys(&self) -> Result<Option<u64>> {
        Ok(Some(match self {
            Server::Memory => return Ok(None),
            Server::File(folder) => rows(&Connection::open(file(folder))?)?,
            Server::Redis(nodes) => {
                let mut keys = 0;
                for node in nodes {
                    keys += node.dbsize().await?;
                    // In Redlock's layout names live in these, too.
                    for hash in ["{}:rt", "{}:ro"] {
                        let names = node.command(&["HLEN", hash]).await?.integer();
                        keys += names
                            .and_then(|names| u64::try_from(names).ok())
                            .unwrap_or_default();
                    }
                }
                keys
            }
            Server::Etcd(etcd) => etcd.key_count().await?,
            Server::ZooKeeper(zookeeper) => zookeeper
                .mntr()
                .await?
                .get("zk_znode_count")
                .ok_or("no zk_znode_count")?
                .parse()?,
            Server::Postgres(postgres) => {
                let tables = ["lines", "place", "observer"]
                    .map(|table| format!("(SELECT count(*) FROM leasehold.{table})"));
                postgres
                    .number(&format!("SELECT {}", tables.join(" + ")))
                    .await?
            }
        }))
    }

    /// What it says that it is.
    pub async fn version(&self) -> Result<String> {
        Ok(match self {
            Server::Memory => "In this process".into(),
            Server::File(_) => format!("SQLite {}", rusqlite::version()),
            Server::Redis(nodes) => {
                let info = nodes[0].info("server").await?;
                format!(
                    "{} × Redis {}",
                    nodes.len(),
                    word(&info, "redis_version:", "\r\n")
                )
            }
            Server::Etcd(etcd) => {
                let status = etcd.post("/v3/maintenance/status", "{}").await?;
                format!("etcd {}, one member", word(&status, "\"version\":\"", "\""))
            }
            Server::ZooKeeper(zookeeper) => {
                let answer = zookeeper.four_letter_word("srvr").await?;
                format!(
                    "ZooKeeper {}, one member, C1 compiler only",
                    word(&answer, "Zookeeper version: ", "-")
                )
            }
            Server::Postgres(postgres) => {
                format!(
                    "PostgreSQL {}",
                    word(
                        &format!(" {}", postgres.text("SHOW server_version").await?),
                        " ",
                        " "
                    )
                )
            }
        })
    }
}

/// It counts statements as they end; the statistics of the server itself are up to ten seconds old.
async fn postgres() -> Result<Postgres> {
    let options = PostgresOptions::default()
        .set("shared_preload_libraries", "pg_stat_statements")
        .set("shared_buffers", "128MB")
        .set("max_connections", "800");
    let postgres = Postgres::start_with(&options).await?;
    postgres
        .query("CREATE EXTENSION pg_stat_statements")
        .await?;
    Ok(postgres)
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("locks.db")
}

/// Of all tables.
fn rows(connection: &Connection) -> Result<u64> {
    let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let mut tables = connection.prepare(sql)?;
    let tables = tables
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<String>>>()?;
    let count = |table| {
        connection.query_row(&format!("SELECT count(*) FROM \"{table}\""), [], |row| {
            row.get::<_, i64>(0)
        })
    };
    Ok(tables
        .iter()
        .map(count)
        .sum::<rusqlite::Result<i64>>()?
        .unsigned_abs())
}

/// The lines that begin so: what stands before and after the last sign.
fn numbers<'a>(
    text: &'a str,
    prefix: &'a str,
    sign: char,
) -> impl Iterator<Item = (&'a str, f64)> + 'a {
    let lines = text.lines().filter(move |line| line.starts_with(prefix));
    lines
        .filter_map(move |line| line.rsplit_once(sign))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
}

/// What etcd counts, as it prints it.
async fn metrics(addr: &str) -> Result<String> {
    let (mut stream, mut answer) = (TcpStream::connect(addr).await?, String::new());
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn word<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    text.split_once(before)
        .and_then(|(_, rest)| rest.split(after).next())
        .unwrap_or("of an unknown version")
}
